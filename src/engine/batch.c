/* engine/batch.c - a step is run: one forward pass, then each share is committed, published and
 * sampled.
 *
 * Tokens are picked as soon as their logits are there, and run in the next step. So no logits are
 * kept between steps, and a choice that is preempted is its tokens and nothing else: what is
 * drawn depends on the seed, the choice and the position alone.
 */
#include "base/status.h"
#include "engine/scheduler.h"

/* ---- logits ------------------------------------------------------------------------------ */

sheaf_status sheaf__engine_grow_logits(sheaf__engine *engine, uint64_t rows)
{
    if (rows <= engine->logits_rows) return SHEAF_OK;
    sheaf__memory *memory = &engine->model->memory;
    uint64_t row_bytes = engine->model->config.vocab * sizeof(float);
    float *grown = sheaf__memory_alloc(memory, rows, row_bytes);
    if (grown == NULL) return SHEAF_E_NO_MEMORY;
    sheaf__memory_free(memory, engine->logits, engine->logits_rows, row_bytes);
    engine->logits = grown;
    engine->logits_rows = rows;
    return SHEAF_OK;
}

/* ---- the prompt's log-probabilities ------------------------------------------------------ */

/* Rows of positions [first, end) whose logits are wanted: the last ones. */
static uint32_t count_logits(const sheaf__choice *choice, uint32_t first, uint32_t end)
{
    const sheaf__request *request = choice->request;
    if (!sheaf__choice_tells_prompt(choice))
        return end == choice->n_ids && request->kind == SHEAF__ASK_ANSWER;
    uint32_t from = request->told_prompt - 1;
    if (from < first) from = first;
    return from < end ? end - from : 0;
}

/* Tells what the rows of logits say of the positions after them: [n, vocab], the last one that of the
 * sequence's last token. */
static void tell_prompt(sheaf__engine *engine, sheaf__choice *choice, const float *logits,
                        uint32_t n)
{
    sheaf__request *request = choice->request;
    uint32_t vocab = engine->model->config.vocab, end = sheaf__kv_length(&choice->kv);
    for (uint32_t i = 0; i < n && sheaf__choice_tells_prompt(choice); i++) {
        uint32_t position = end - n + i + 1;
        SHEAF__ASSERT(position == request->told_prompt);
        sheaf__logprobs logprobs;
        sheaf__logprobs_of(logits + (uint64_t)i * vocab, vocab, choice->ids[position],
                           request->n_top, &logprobs);
        request->told_prompt++;
        sheaf__engine_tell(engine, choice,
                           (sheaf__engine_event){.kind = SHEAF__EVENT_PROMPT,
                                                 .token = choice->ids[position],
                                                 .position = position,
                                                 .logprobs = &logprobs});
    }
}

/* ---- sampling ---------------------------------------------------------------------------- */

/* A function of the logits, the ask and the choice's tokens alone. */
static int32_t pick(sheaf__engine *engine, const sheaf__choice *choice, const float *logits)
{
    const sheaf__request *request = choice->request;
    const sheaf__bending bending = {.bias = request->bias,
                                    .n_bias = request->n_bias,
                                    .presence_penalty = request->presence_penalty,
                                    .frequency_penalty = request->frequency_penalty,
                                    .tokens = choice->ids + request->n_prompt,
                                    .n_tokens = choice->n_ids - request->n_prompt};
    sheaf__sampler_options o = request->sampler;
    o.choice = choice->index;
    sheaf_status st = sheaf__sampler_set(engine->sampler, &o);
    SHEAF__ASSERT(st == SHEAF_OK); /* checked when it was submitted */
    (void)st;
    return sheaf__sampler_pick_bent(engine->sampler, logits, &bending, choice->n_ids - 1);
}

/* Tells the choice's last token, which was picked by these logits, and ends the choice where that is
 * its last. */
static void tell_token(sheaf__engine *engine, sheaf__choice *choice, const float *logits)
{
    const sheaf__request *request = choice->request;
    sheaf__logprobs logprobs;
    sheaf__engine_event event = {.kind = SHEAF__EVENT_TOKEN,
                                 .token = choice->ids[choice->n_ids - 1],
                                 .position = choice->n_ids - 1};
    if (request->logprobs) {
        sheaf__logprobs_of(logits, engine->model->config.vocab, event.token, request->n_top,
                           &logprobs);
        event.logprobs = &logprobs;
    }
    engine->stats.tokens_told++;
    if (sheaf__engine_tell(engine, choice, event) != 0)
        sheaf__engine_end_choice(engine, choice, SHEAF__FINISH_STOP, SHEAF_OK);
    else if (choice->n_ids - request->n_prompt == request->max_tokens)
        sheaf__engine_end_choice(engine, choice, SHEAF__FINISH_LENGTH, SHEAF_OK);
}

/* The choice's next token, by the logits of its last one. */
static void answer(sheaf__engine *engine, sheaf__choice *choice, const float *logits)
{
    int32_t token = pick(engine, choice, logits);
    if (sheaf__config_is_eos(&engine->model->config, token) && !choice->request->ignore_eos) {
        sheaf__engine_end_choice(engine, choice, SHEAF__FINISH_STOP, SHEAF_OK);
        return;
    }
    pthread_mutex_lock(&engine->mutex);
    sheaf_status st = sheaf__choice_push(choice, token, &engine->memory);
    pthread_mutex_unlock(&engine->mutex);
    if (st == SHEAF_OK)
        tell_token(engine, choice, logits);
    else
        sheaf__engine_end_choice(engine, choice, SHEAF__FINISH_ERROR, st);
}

static void fork_choice(sheaf__engine *engine, sheaf__choice *first, sheaf__choice *choice)
{
    pthread_mutex_lock(&engine->mutex);
    sheaf_status st = sheaf__choice_take_prompt(choice, &engine->memory);
    pthread_mutex_unlock(&engine->mutex);
    if (st != SHEAF_OK) {
        sheaf__engine_end_choice(engine, choice, SHEAF__FINISH_ERROR, st);
        return;
    }
    st = sheaf__kv_fork(&first->kv, &choice->kv);
    choice->state = st == SHEAF_OK ? SHEAF__CHOICE_RUNNING : SHEAF__CHOICE_WAITING;
    choice->published = first->published;
    choice->served = ++engine->turn;
}

/* At the end of the prompt: the other choices share its blocks from here on. One that cannot have a
 * sequence now enters later, as after a preemption. */
static void fork_choices(sheaf__engine *engine, sheaf__choice *first)
{
    sheaf__request *request = first->request;
    for (uint32_t i = 1; i < request->n_choices; i++)
        fork_choice(engine, first, &request->choices[i]);
}

static void answer_all(sheaf__engine *engine, sheaf__choice *choice, const float *logits)
{
    sheaf__request *request = choice->request;
    if (choice->index != 0 || choice->n_ids != request->n_prompt) {
        answer(engine, choice, logits);
        return;
    }
    if (request->kind == SHEAF__ASK_PROMPT) {
        sheaf__engine_end_choice(engine, choice, SHEAF__FINISH_LENGTH, SHEAF_OK);
        return;
    }
    fork_choices(engine, choice);
    for (uint32_t i = 0; i < request->n_choices; i++)
        if (request->choices[i].state != SHEAF__CHOICE_OVER)
            answer(engine, &request->choices[i], logits);
}

/* ---- running ----------------------------------------------------------------------------- */

/* The share as an item: of a prompt that was found whole the last token again. */
static sheaf__forward_item item_of(sheaf__share *share)
{
    sheaf__choice *choice = share->choice;
    uint32_t length = sheaf__kv_length(&choice->kv);
    bool cached = share->n == 0;
    return (sheaf__forward_item){.kv = &choice->kv,
                                 .tokens = choice->ids + length - cached,
                                 .n_tokens = share->n + cached,
                                 .n_logits =
                                     count_logits(choice, length - cached, length + share->n),
                                 .n_cached = cached};
}

static void fail_share(sheaf__engine *engine, sheaf__choice *choice, sheaf_status why)
{
    sheaf_status st = sheaf__kv_commit(&choice->kv, 0, NULL);
    SHEAF__ASSERT(st == SHEAF_OK);
    (void)st;
    sheaf__engine_end_choice(engine, choice, SHEAF__FINISH_ERROR, why);
}

/* Makes what was run part of the sequence. logits: [item->n_logits, vocab]. */
static void settle(sheaf__engine *engine, const sheaf__forward_item *item,
                   sheaf__choice *choice, const float *logits)
{
    uint32_t n = item->n_tokens - item->n_cached;
    sheaf_status st = sheaf__kv_commit(&choice->kv, n, item->tokens + item->n_cached);
    if (st != SHEAF_OK) {
        fail_share(engine, choice, st);
        return;
    }
    choice->served = ++engine->turn;
    choice->request->n_computed += n;
    engine->stats.tokens_computed += n;
    engine->stats.rows += item->n_tokens;
    engine->store->publish(engine, choice);
    st = sheaf__kv_slide(&choice->kv, 0);
    SHEAF__ASSERT(st == SHEAF_OK); /* nothing is reserved */
    tell_prompt(engine, choice, logits, item->n_logits);
    if (sheaf__kv_length(&choice->kv) != choice->n_ids) return;
    sheaf__engine_drop_ticket(engine, choice); /* all that was claimed is there */
    const uint64_t vocab = engine->model->config.vocab;
    answer_all(engine, choice,
               item->n_logits != 0 ? logits + (item->n_logits - 1) * vocab : NULL);
}

/* After a batch has failed: each share by itself, so that only those end that cannot be run. */
static void run_apart(sheaf__engine *engine)
{
    for (uint32_t i = 0; i < engine->n_shares; i++) {
        sheaf__choice *choice = engine->shares[i].choice;
        sheaf__forward_item item = item_of(&engine->shares[i]);
        sheaf_status st = sheaf__engine_grow_logits(engine, item.n_logits);
        if (st == SHEAF_OK)
            st = sheaf__forward_run(engine->model->forward, &item, 1, engine->logits);
        if (st == SHEAF_OK)
            settle(engine, &item, choice, engine->logits);
        else
            fail_share(engine, choice, st);
    }
}

void sheaf__engine_run_batch(sheaf__engine *engine)
{
    const uint64_t vocab = engine->model->config.vocab;
    uint32_t n_logits = 0;
    for (uint32_t i = 0; i < engine->n_shares; i++) {
        engine->items[i] = item_of(&engine->shares[i]);
        n_logits += engine->items[i].n_logits;
    }
    sheaf_status st = sheaf__engine_grow_logits(engine, n_logits);
    if (st == SHEAF_OK)
        st = sheaf__forward_run(engine->model->forward, engine->items, engine->n_shares,
                                engine->logits);
    if (st != SHEAF_OK) {
        run_apart(engine);
        return;
    }
    const float *at = engine->logits;
    for (uint32_t i = 0; i < engine->n_shares; i++) {
        const sheaf__forward_item *item = &engine->items[i];
        settle(engine, item, engine->shares[i].choice, at);
        at += item->n_logits * vocab;
    }
}
