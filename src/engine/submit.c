/* engine/submit.c - what other threads ask of an engine: requests, cancelling, the end. */
#include <math.h>

#include "base/status.h"
#include "cache/prefix.h"
#include "engine/scheduler.h"
#include "sheaf/ledger.h"

#define MAX_CHOICES 128

/* ---- submitting -------------------------------------------------------------------------- */

static sheaf_status check_bias(const sheaf__ask *ask, uint32_t vocab, sheaf_error *err)
{
    if (ask->n_bias > SHEAF__MAX_BIAS)
        return sheaf__error_set(err, SHEAF_E_INVALID, "a bias for %u tokens: at most %u may",
                                ask->n_bias, SHEAF__MAX_BIAS);
    if (ask->n_bias != 0 && ask->bias == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "a bias of no tokens");
    for (uint32_t i = 0; i < ask->n_bias; i++) {
        const sheaf__bias *bias = &ask->bias[i];
        if (bias->token < 0 || (uint32_t)bias->token >= vocab)
            return sheaf__error_set(err, SHEAF_E_INVALID,
                                    "a bias for token %d, outside the vocabulary of %u",
                                    bias->token, vocab);
        if (!isfinite(bias->value))
            return sheaf__error_set(err, SHEAF_E_INVALID, "the bias of token %d is no number",
                                    bias->token);
        for (uint32_t k = 0; k < i; k++)
            if (ask->bias[k].token == bias->token)
                return sheaf__error_set(err, SHEAF_E_INVALID, "two biases for token %d",
                                        bias->token);
    }
    return SHEAF_OK;
}

/* Whether the prompt can be pinned at all. */
static sheaf_status check_pin(const sheaf__engine *engine, const sheaf__ask *ask,
                              sheaf_error *err)
{
    sheaf_prefix_stats stats = SHEAF_PREFIX_STATS_INIT;
    if (!ask->pin) return SHEAF_OK;
    if (ask->kind != SHEAF__ASK_PROMPT || (ask->pin_flags & ~(uint32_t)SHEAF_PIN_REVOCABLE))
        return sheaf__error_set(err, SHEAF_E_INVALID,
                                "pins are of prompts alone, revocable or not");
    if (engine->options.no_prompt_cache || engine->prefix == NULL)
        return sheaf__error_set(err, SHEAF_E_UNSUPPORTED,
                                "nothing can be pinned: there is no prompt cache");
    SHEAF__TRY(sheaf_prefix_stats_read(engine->prefix, &stats));
    uint64_t bytes = sheaf__prefix_entry_bytes(engine->prefix, ask->n_tokens);
    if (bytes <= stats.capacity_bytes) return SHEAF_OK;
    return sheaf__error_set(err, SHEAF_REFUSED,
                            "a prompt of %u tokens takes %llu bytes, more than the %llu that "
                            "the prompt cache may hold",
                            ask->n_tokens, (unsigned long long)bytes,
                            (unsigned long long)stats.capacity_bytes);
}

/* What is wanted beside the tokens themselves. */
static sheaf_status check_wishes(const sheaf__engine *engine, const sheaf__ask *ask,
                                 sheaf_error *err)
{
    if (ask->kind > SHEAF__ASK_PROMPT)
        return sheaf__error_set(err, SHEAF_E_INVALID, "an ask of an unknown kind: %u",
                                ask->kind);
    if (ask->n_top > SHEAF__MAX_TOP)
        return sheaf__error_set(err, SHEAF_E_INVALID, "%u likeliest tokens are more than %d",
                                ask->n_top, SHEAF__MAX_TOP);
    if (!isfinite(ask->presence_penalty) || !isfinite(ask->frequency_penalty))
        return sheaf__error_set(err, SHEAF_E_INVALID, "a penalty is no number");
    SHEAF__TRY(check_bias(ask, engine->model->config.vocab, err));
    return check_pin(engine, ask, err);
}

static sheaf_status check_ask(const sheaf__engine *engine, const sheaf__ask *ask,
                              sheaf_error *err)
{
    const sheaf__model *model = engine->model;
    uint32_t n = ask->n_tokens;
    if (n == 0 || ask->tokens == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "a prompt of no tokens");
    if (n > model->options.ctx_size)
        return sheaf__error_set(err, SHEAF_E_CONTEXT,
                                "a prompt of %u tokens is beyond the context of %u", n,
                                model->options.ctx_size);
    if (n > engine->max_prompt)
        return sheaf__error_set(
            err, SHEAF_E_CONTEXT,
            "a prompt of %u tokens is more than the KV cache has room for: %u", n,
            engine->max_prompt);
    for (uint32_t i = 0; i < n; i++)
        if (ask->tokens[i] < 0 || (uint32_t)ask->tokens[i] >= model->config.vocab)
            return sheaf__error_set(err, SHEAF_E_INVALID,
                                    "token %d (number %u) is outside the vocabulary of %u",
                                    ask->tokens[i], i, model->config.vocab);
    if (ask->n_choices > MAX_CHOICES)
        return sheaf__error_set(err, SHEAF_E_INVALID, "%u choices are more than %u",
                                ask->n_choices, MAX_CHOICES);
    if (ask->priority < SHEAF_PRIORITY_MIN || ask->priority > SHEAF_PRIORITY_MAX)
        return sheaf__error_set(err, SHEAF_E_INVALID, "priority %d is not in %d to %d",
                                ask->priority, SHEAF_PRIORITY_MIN, SHEAF_PRIORITY_MAX);
    if (sheaf__sampler_check(&ask->sampler) != SHEAF_OK)
        return sheaf__error_set(err, SHEAF_E_INVALID, "a sampling value is out of range");
    return check_wishes(engine, ask, err);
}

static sheaf_status find_space(const sheaf__engine *engine, const sheaf__ask *ask,
                               sheaf_key *out, sheaf_error *err)
{
    const sheaf__engine_options *o = &engine->options;
    const sheaf_pool *pool = engine->model->pool;
    if (pool == NULL) { /* nothing is shared */
        *out = (sheaf_key){{0}};
        return SHEAF_OK;
    }
    const sheaf_field field = {"salt", ask->salt, ask->salt_bytes};
    sheaf_status st = o->space != NULL
                          ? o->space(o->space_ctx, pool, ask->salt, ask->salt_bytes, out)
                          : sheaf_space_make(pool, &field, ask->salt != NULL ? 1 : 0, out);
    if (st == SHEAF_OK) return st;
    return sheaf__error_set(err, st, "the prompt's namespace cannot be named: %s",
                            sheaf_status_text(st));
}

/* With the lock held. */
static sheaf_status enqueue(sheaf__engine *engine, const sheaf__ask *ask,
                            const sheaf_key *space, uint64_t *id, sheaf_error *err)
{
    sheaf__request *request;
    if (engine->closing)
        return sheaf__error_set(err, SHEAF_E_CANCELLED, "no more requests are taken");
    if (engine->n_queued >= engine->options.max_queue)
        return sheaf__error_set(err, SHEAF_FULL, "%u requests wait, which is the most",
                                engine->n_queued);
    sheaf_status st = sheaf__request_create(ask, space, &engine->memory, &request);
    if (st != SHEAF_OK) return sheaf__error_set(err, st, "no memory for a request");
    request->id = engine->next_id++;
    engine->n_queued++;
    sheaf__list_insert(&engine->inbox, &request->link);
    pthread_cond_signal(&engine->wake);
    *id = request->id;
    return SHEAF_OK;
}

sheaf_status sheaf__engine_submit(sheaf__engine *engine, const sheaf__ask *ask, uint64_t *id,
                                  sheaf_error *err)
{
    sheaf_key space;
    SHEAF__TRY(check_ask(engine, ask, err));
    SHEAF__TRY(find_space(engine, ask, &space, err));
    sheaf__ask settled = *ask;
    uint32_t most = engine->model->options.ctx_size - ask->n_tokens + 1;
    if (settled.n_choices == 0) settled.n_choices = 1;
    if (settled.max_tokens == 0 || settled.max_tokens > most) settled.max_tokens = most;
    pthread_mutex_lock(&engine->mutex);
    sheaf_status st = enqueue(engine, &settled, &space, id, err);
    pthread_mutex_unlock(&engine->mutex);
    return st;
}

/* ---- cancelling and closing -------------------------------------------------------------- */

/* Marks the request of a list that has this number, or all with 0. True: there was one. */
static bool mark(sheaf__list *list, uint64_t id)
{
    bool any = false;
    for (sheaf__list *at = list->next; at != list; at = at->next) {
        sheaf__request *request = sheaf__request_of(at);
        if (id != 0 && request->id != id) continue;
        atomic_store_explicit(&request->cancelled, true, memory_order_relaxed);
        any = true;
    }
    return any;
}

sheaf_status sheaf__engine_cancel(sheaf__engine *engine, uint64_t id)
{
    if (id == 0) return SHEAF_MISS;
    pthread_mutex_lock(&engine->mutex);
    bool found = mark(&engine->live, id) || mark(&engine->inbox, id);
    pthread_mutex_unlock(&engine->mutex);
    return found ? SHEAF_OK : SHEAF_MISS;
}

static void close_door(sheaf__engine *engine, bool cancel)
{
    pthread_mutex_lock(&engine->mutex);
    engine->closing = true;
    if (cancel) {
        mark(&engine->live, 0);
        mark(&engine->inbox, 0);
    }
    pthread_cond_signal(&engine->wake);
    pthread_mutex_unlock(&engine->mutex);
}

void sheaf__engine_drain(sheaf__engine *engine)
{
    close_door(engine, false);
}

void sheaf__engine_stop(sheaf__engine *engine)
{
    close_door(engine, true);
}
