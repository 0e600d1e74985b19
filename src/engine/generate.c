/* engine/generate.c - a loaded model, and answers out of it.
 *
 * A decode step has four parts, in this order:
 *
 *   pick     the next token of each unfinished answer, by its logits and position alone
 *   reserve  a position for each token that has to be run: all, or the step ends here unseen
 *   publish  tokens into the answers, to the callback; ends what is to end
 *   run      one ragged batch of the rest, whose positions are committed; blocks that a window has
 *            left go back to the pool
 *
 * Since picking depends on nothing that is drawn before, a step that found no room can be taken
 * up again later and picks the same.
 */
#include "engine/generate.h"

#include <string.h>

#include "base/fpenv.h"
#include "base/status.h"

#define DEFAULT_PREFILL_CHUNK 512
#define DEFAULT_BLOCK_TOKENS                                                                   \
    32 /* must match sheaf_pool_options: the dense form has no pool to ask */
#define RANDOM_PREFIX "random:"

/* ---- opening ----------------------------------------------------------------------------- */

static bool is_random(const char *path)
{
    return strncmp(path, RANDOM_PREFIX, strlen(RANDOM_PREFIX)) == 0;
}

/* Fills the defaults in and refuses what does not fit the model. */
static sheaf_status settle_options(sheaf__model *model, sheaf_error *err)
{
    sheaf__model_options *o = &model->options;
    const uint32_t limit = model->config.max_positions;
    uint32_t isa;
    if (o->kv_backend > SHEAF__KV_DENSE || o->attn_path > SHEAF_ATTN_REFERENCE)
        return sheaf__error_set(err, SHEAF_E_INVALID, "unknown KV backend or attention path");
    if (o->kv_backend == SHEAF__KV_DENSE && o->kv_budget_bytes != 0)
        return sheaf__error_set(
            err, SHEAF_E_UNSUPPORTED,
            "a KV budget binds the paged backend only; the dense one has none");
    if (o->ctx_size > limit)
        return sheaf__error_set(err, SHEAF_E_CONTEXT,
                                "a context of %u positions is beyond the model's %u",
                                o->ctx_size, limit);
    sheaf_status st = sheaf_isa_resolve(o->isa, &isa);
    if (st != SHEAF_OK)
        return sheaf__error_set(err, st, "this processor or build lacks %s",
                                sheaf_isa_name(o->isa));
    o->isa = isa;
    if (o->ctx_size == 0) o->ctx_size = limit;
    if (o->block_tokens == 0) o->block_tokens = DEFAULT_BLOCK_TOKENS;
    if (o->prefill_chunk == 0) o->prefill_chunk = DEFAULT_PREFILL_CHUNK;
    return SHEAF_OK;
}

static sheaf_status open_weights(sheaf__model *model, const char *path, sheaf_error *err)
{
    const sheaf__weights_options o = {.copy_to_huge_pages = model->options.copy_weights,
                                      .threads = model->threads,
                                      .progress = model->options.progress,
                                      .progress_ctx = model->options.progress_ctx,
                                      .allocator = model->options.allocator};
    if (is_random(path)) return sheaf__weights_random(&model->config, &o, &model->weights, err);
    return sheaf__weights_open(path, &model->config, &o, &model->weights, err);
}

static sheaf_status open_tokenizer(sheaf__model *model, const char *path, sheaf_error *err)
{
    if (model->options.no_tokenizer) return SHEAF_OK;
    if (is_random(path))
        return sheaf__tokenizer_open_bytes(model->config.vocab, &model->tokenizer, err);
    return sheaf__tokenizer_open(path, &model->tokenizer, err);
}

static sheaf_status open_pool(sheaf__model *model, sheaf_error *err)
{
    const sheaf__model_options *o = &model->options;
    if (o->kv_backend == SHEAF__KV_DENSE) return SHEAF_OK;
    sheaf_pool_options p = SHEAF_POOL_OPTIONS_INIT;
    p.layers = model->layers;
    p.n_layers = model->config.n_layers;
    p.budget_bytes = o->kv_budget_bytes;
    p.block_tokens = o->block_tokens;
    p.slab_blocks = o->slab_blocks;
    p.allocator = o->allocator;
    return sheaf_pool_open(&p, &model->pool, err);
}

/* Tells how far a prompt is, layer by layer of each chunk. */
static void report_layer(void *ctx, uint32_t done, uint32_t n_layers)
{
    const sheaf__model *model = ctx;
    if (model->prefill.total == 0 || model->options.progress == NULL) return;
    uint64_t share = (uint64_t)model->prefill.chunk * done / n_layers;
    model->options.progress(model->options.progress_ctx, "prefill", model->prefill.done + share,
                            model->prefill.total);
}

static sheaf_status open_forward(sheaf__model *model, sheaf_error *err)
{
    const sheaf__forward_options o = {.threads = model->threads,
                                      .isa = model->options.isa,
                                      .attn_path = model->options.attn_path,
                                      .max_positions = model->options.ctx_size,
                                      .memory = &model->memory,
                                      .on_layer = report_layer,
                                      .on_layer_ctx = model};
    sheaf_status st =
        sheaf__forward_create(&model->config, model->weights, &o, &model->forward);
    if (st == SHEAF_OK) return st;
    return sheaf__error_set(err, st, "the forward pass cannot be set up: %s",
                            sheaf_status_text(st));
}

static sheaf_status open_parts(sheaf__model *model, const char *path, sheaf_error *err)
{
    if (is_random(path))
        SHEAF__TRY(sheaf__weights_random_config(path, &model->config, err));
    else
        SHEAF__TRY(sheaf__config_read(path, &model->config, err));
    SHEAF__TRY(settle_options(model, err));
    sheaf_status st = sheaf_threads_create(model->options.n_threads, &model->threads);
    if (st != SHEAF_OK)
        return sheaf__error_set(err, st, "%u threads cannot be started: %s",
                                model->options.n_threads, sheaf_status_text(st));
    model->options.n_threads = sheaf_threads_count(model->threads);
    model->layers =
        sheaf__memory_alloc(&model->memory, model->config.n_layers, sizeof *model->layers);
    if (model->layers == NULL)
        return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no memory for %u layers",
                                model->config.n_layers);
    sheaf__forward_layout(&model->config, model->options.codec_k, model->options.codec_v,
                          model->layers);
    SHEAF__TRY(open_weights(model, path, err));
    SHEAF__TRY(open_tokenizer(model, path, err));
    SHEAF__TRY(open_pool(model, err));
    return open_forward(model, err);
}

sheaf_status sheaf__model_open(const char *path, const sheaf__model_options *options,
                               sheaf__model **out, sheaf_error *err)
{
    sheaf__memory memory;
    sheaf__memory_init(&memory, options == NULL ? NULL : options->allocator);
    sheaf__model *model = sheaf__memory_alloc(&memory, 1, sizeof *model);
    if (model == NULL) return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no memory for a model");
    model->memory = memory;
    if (options != NULL) model->options = *options;
    uint64_t saved = sheaf__fpenv_enter(); /* settings and norms are rounded here */
    sheaf_status st = open_parts(model, path, err);
    sheaf__fpenv_leave(saved);
    if (st != SHEAF_OK) {
        sheaf__model_close(model);
        return st;
    }
    *out = model;
    return SHEAF_OK;
}

void sheaf__model_close(sheaf__model *model)
{
    if (model == NULL) return;
    sheaf__forward_destroy(model->forward);
    sheaf_status st = sheaf_pool_close(model->pool);
    SHEAF__ASSERT(st == SHEAF_OK); /* else a cache is still open */
    (void)st;
    sheaf__tokenizer_close(model->tokenizer);
    sheaf__weights_close(model->weights);
    sheaf__memory_free(&model->memory, model->layers, model->config.n_layers,
                       sizeof *model->layers);
    sheaf_threads_destroy(model->threads);
    sheaf__memory memory = model->memory;
    sheaf__memory_free(&memory, model, 1, sizeof *model);
}

sheaf_status sheaf__model_new_kv(sheaf__model *model, sheaf__kv *out)
{
    sheaf__kv kv = {.backend = model->options.kv_backend};
    if (kv.backend == SHEAF__KV_DENSE)
        SHEAF__TRY(sheaf__dense_create(&model->memory, model->layers, model->config.n_layers,
                                       model->options.block_tokens, 0, &kv.dense));
    else
        SHEAF__TRY(sheaf_sequence_create(model->pool, &kv.sequence));
    *out = kv;
    return SHEAF_OK;
}

/* ---- prefill ----------------------------------------------------------------------------- */

/* Reserves, runs and commits one chunk; on failure the cache is as before. */
static sheaf_status run_chunk(sheaf__model *model, sheaf__kv *kv, const int32_t *tokens,
                              uint32_t n, float *logits)
{
    const sheaf__forward_item item = {kv, tokens, n, logits != NULL, 0};
    SHEAF__TRY(sheaf__kv_extend(kv, n));
    sheaf_status st = sheaf__forward_run(model->forward, &item, 1, logits);
    if (st == SHEAF_OK) st = sheaf__kv_commit(kv, n, tokens);
    if (st == SHEAF_OK) return sheaf__kv_slide(kv, 0);
    sheaf_status dropped = sheaf__kv_commit(kv, 0, NULL);
    SHEAF__ASSERT(dropped == SHEAF_OK);
    (void)dropped;
    return st;
}

static sheaf_status check_prompt(const sheaf__model *model, const sheaf__kv *kv,
                                 const int32_t *tokens, uint32_t n, sheaf_error *err)
{
    uint32_t length = sheaf__kv_length(kv), limit = model->options.ctx_size;
    if (n == 0) return sheaf__error_set(err, SHEAF_E_INVALID, "a prompt of no tokens");
    if ((uint64_t)length + n > limit)
        return sheaf__error_set(err, SHEAF_E_CONTEXT,
                                "a prompt of %u tokens after %u is beyond the context of %u", n,
                                length, limit);
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= model->config.vocab)
            return sheaf__error_set(err, SHEAF_E_INVALID,
                                    "token %d (number %u) is outside the vocabulary of %u",
                                    tokens[i], i, model->config.vocab);
    return SHEAF_OK;
}

/* The chunks of a prompt that has been checked. */
static sheaf_status run_prompt(sheaf__model *model, sheaf__kv *kv, const int32_t *tokens,
                               float *logits, sheaf_error *err)
{
    const uint32_t n = model->prefill.total;
    for (uint32_t done = 0; done < n; done += model->prefill.chunk) {
        uint32_t left = n - done, most = model->options.prefill_chunk;
        model->prefill.done = done;
        model->prefill.chunk = left < most ? left : most;
        float *wanted = model->prefill.chunk == left ? logits : NULL;
        report_layer(model, 0, model->config.n_layers);
        sheaf_status st = run_chunk(model, kv, tokens + done, model->prefill.chunk, wanted);
        if (st != SHEAF_OK)
            return sheaf__error_set(err, st, "prefill stopped after %u of %u tokens: %s", done,
                                    n, sheaf_status_text(st));
    }
    return SHEAF_OK;
}

sheaf_status sheaf__model_prefill(sheaf__model *model, sheaf__kv *kv, const int32_t *tokens,
                                  uint32_t n, float *logits, sheaf_error *err)
{
    SHEAF__TRY(check_prompt(model, kv, tokens, n, err));
    model->prefill.total = n;
    sheaf_status st = run_prompt(model, kv, tokens, logits, err);
    model->prefill.total = 0;
    return st;
}

sheaf_status sheaf__model_logits(sheaf__model *model, sheaf__kv *kv, float *logits,
                                 sheaf_error *err)
{
    uint32_t length = sheaf__kv_length(kv);
    if (length == 0)
        return sheaf__error_set(err, SHEAF_E_INVALID, "an empty cache has no last token");
    const sheaf__forward_item item = {kv, sheaf__kv_tokens(kv) + length - 1, 1, 1, 1};
    sheaf_status st = sheaf__forward_run(model->forward, &item, 1, logits);
    if (st == SHEAF_OK) return st;
    return sheaf__error_set(err, st, "the token at position %u cannot be looked at again: %s",
                            length - 1, sheaf_status_text(st));
}

/* ---- decode ------------------------------------------------------------------------------ */

/* One call's scratch memory, and the step it is at. */
typedef struct decoding {
    sheaf__model *model;
    sheaf__answer *answers; /* [n] */
    uint32_t n;
    int32_t *picked;            /* [n], of unfinished answers */
    bool *reserved;             /* [n] the pick has a position to be run at */
    uint32_t *running;          /* [n] answers of the step's batch */
    sheaf__forward_item *items; /* [n], the batch */
    float *logits;              /* [n, vocab], the batch's */
    sheaf__token_fn *on_token;
    void *ctx;
} decoding;

static void free_scratch(decoding *d)
{
    sheaf__memory *memory = &d->model->memory;
    sheaf__memory_free(memory, d->picked, d->n, sizeof *d->picked);
    sheaf__memory_free(memory, d->reserved, d->n, sizeof *d->reserved);
    sheaf__memory_free(memory, d->running, d->n, sizeof *d->running);
    sheaf__memory_free(memory, d->items, d->n, sizeof *d->items);
    sheaf__memory_free(memory, d->logits, d->n, d->model->config.vocab * sizeof *d->logits);
}

static sheaf_status alloc_scratch(decoding *d)
{
    sheaf__memory *memory = &d->model->memory;
    d->picked = sheaf__memory_alloc(memory, d->n, sizeof *d->picked);
    d->reserved = sheaf__memory_alloc(memory, d->n, sizeof *d->reserved);
    d->running = sheaf__memory_alloc(memory, d->n, sizeof *d->running);
    d->items = sheaf__memory_alloc(memory, d->n, sizeof *d->items);
    d->logits = sheaf__memory_alloc(memory, d->n, d->model->config.vocab * sizeof *d->logits);
    if (d->picked != NULL && d->reserved != NULL && d->running != NULL && d->items != NULL &&
        d->logits != NULL)
        return SHEAF_OK;
    free_scratch(d);
    return SHEAF_E_NO_MEMORY;
}

/* Whether the answer goes on after the token it has just got. */
static uint32_t finish_after(const decoding *d, const sheaf__answer *a)
{
    if (sheaf__config_is_eos(&d->model->config, d->picked[a - d->answers]))
        return SHEAF__FINISH_STOP;
    if (a->tokens.n + 1 >= a->max_tokens) return SHEAF__FINISH_LENGTH;
    if (sheaf__kv_length(a->kv) >= d->model->options.ctx_size) return SHEAF__FINISH_LENGTH;
    return SHEAF__FINISH_NONE;
}

static void drop_reservation(decoding *d, uint32_t i)
{
    if (!d->reserved[i]) return;
    sheaf_status dropped = sheaf__kv_commit(d->answers[i].kv, 0, NULL);
    SHEAF__ASSERT(dropped == SHEAF_OK);
    (void)dropped;
    d->reserved[i] = false;
}

static void drop_reservations(decoding *d)
{
    for (uint32_t i = 0; i < d->n; i++) drop_reservation(d, i);
}

static int32_t pick(const sheaf__answer *a)
{
    sheaf__bending bending = a->bending;
    bending.tokens = a->tokens.data;
    bending.n_tokens = a->tokens.n;
    return sheaf__sampler_pick_bent(a->sampler, a->logits, &bending,
                                    sheaf__kv_length(a->kv) - 1);
}

/* Picks, and reserves all positions that the picks need, or none. */
static sheaf_status pick_and_reserve(decoding *d)
{
    for (uint32_t i = 0; i < d->n; i++) {
        sheaf__answer *a = &d->answers[i];
        if (a->finish != SHEAF__FINISH_NONE) continue;
        d->picked[i] = pick(a);
        if (finish_after(d, a) != SHEAF__FINISH_NONE) continue;
        sheaf_status st = sheaf__kv_extend(a->kv, 1);
        if (st != SHEAF_OK) return st;
        d->reserved[i] = true;
    }
    return SHEAF_OK;
}

/* Gives the picked token out. */
static sheaf_status publish(decoding *d, uint32_t i)
{
    sheaf__answer *a = &d->answers[i];
    uint64_t vocab = d->model->config.vocab;
    uint32_t finish = finish_after(d, a);
    if (a->all_logits != NULL)
        memcpy(a->all_logits + a->tokens.n * vocab, a->logits, vocab * sizeof *a->logits);
    if (finish != SHEAF__FINISH_STOP) {
        SHEAF__TRY(sheaf__ids_push(&a->tokens, d->picked[i]));
        if (d->on_token != NULL && d->on_token(d->ctx, i, d->picked[i]) != 0)
            finish = SHEAF__FINISH_CANCELLED;
    }
    a->finish = finish;
    if (finish != SHEAF__FINISH_NONE) drop_reservation(d, i);
    return SHEAF_OK;
}

/* Runs the batch of all that have a reservation, and commits it. */
static sheaf_status run_batch(decoding *d)
{
    uint64_t vocab = d->model->config.vocab;
    uint32_t n_running = 0;
    for (uint32_t i = 0; i < d->n; i++) {
        if (!d->reserved[i]) continue;
        d->items[n_running] = (sheaf__forward_item){d->answers[i].kv, &d->picked[i], 1, 1, 0};
        d->running[n_running++] = i;
    }
    if (n_running == 0) return SHEAF_OK;
    SHEAF__TRY(sheaf__forward_run(d->model->forward, d->items, n_running, d->logits));
    for (uint32_t r = 0; r < n_running; r++) {
        uint32_t i = d->running[r];
        SHEAF__TRY(sheaf__kv_commit(d->answers[i].kv, 1, &d->picked[i]));
        SHEAF__TRY(sheaf__kv_slide(d->answers[i].kv, 0));
        d->reserved[i] = false;
        memcpy(d->answers[i].logits, d->logits + r * vocab, vocab * sizeof *d->logits);
    }
    return SHEAF_OK;
}

static sheaf_status decode_step(decoding *d)
{
    SHEAF__TRY(pick_and_reserve(d));
    for (uint32_t i = 0; i < d->n; i++)
        if (d->answers[i].finish == SHEAF__FINISH_NONE) SHEAF__TRY(publish(d, i));
    return run_batch(d);
}

static sheaf_status check_answers(sheaf__answer *answers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        sheaf__answer *a = &answers[i];
        if (a->kv == NULL || a->sampler == NULL || a->logits == NULL ||
            sheaf__kv_length(a->kv) == 0)
            return SHEAF_E_INVALID;
        for (uint32_t j = 0; j < i; j++)
            if (sheaf__kv_same(a->kv, answers[j].kv)) return SHEAF_E_INVALID;
    }
    for (uint32_t i = 0; i < n; i++)
        if (answers[i].finish == SHEAF__FINISH_NONE &&
            answers[i].tokens.n >= answers[i].max_tokens)
            answers[i].finish = SHEAF__FINISH_LENGTH;
    return SHEAF_OK;
}

static bool all_finished(const sheaf__answer *answers, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (answers[i].finish == SHEAF__FINISH_NONE) return false;
    return true;
}

sheaf_status sheaf__model_decode(sheaf__model *model, sheaf__answer *answers, uint32_t n,
                                 sheaf__token_fn *on_token, void *ctx, sheaf_error *err)
{
    decoding d = {.model = model, .answers = answers, .n = n, .on_token = on_token, .ctx = ctx};
    sheaf_status st = check_answers(answers, n);
    if (st == SHEAF_OK && all_finished(answers, n)) return SHEAF_OK;
    if (st == SHEAF_OK) st = alloc_scratch(&d);
    if (st != SHEAF_OK)
        return sheaf__error_set(err, st, "decoding cannot begin: %s", sheaf_status_text(st));
    while (st == SHEAF_OK && !all_finished(answers, n)) st = decode_step(&d);
    drop_reservations(&d);
    free_scratch(&d);
    if (st == SHEAF_OK) return st;
    return sheaf__error_set(err, st, "decoding stopped: %s", sheaf_status_text(st));
}
