/* engines.c - an engine on a small model, what it told of each request, and what each gives alone. */
#include "engine/engines.h"

/* ---- what is told ------------------------------------------------------------------------ */

/* A copy whose unused part is zero. */
static void keep_logprobs(const sheaf__logprobs *told, sheaf__logprobs *kept)
{
    *kept = (sheaf__logprobs){.value = told->value, .n_top = told->n_top};
    memcpy(kept->top, told->top, told->n_top * sizeof *told->top);
}

static int hear_token(asked *a, const sheaf__engine_event *e)
{
    uint32_t c = e->choice;
    if (!a->admitted || a->n_tokens[c] >= ENGINES_TOKENS ||
        a->finish[c] != SHEAF__FINISH_NONE || e->position != a->ask.n_tokens + a->n_tokens[c] ||
        (e->logprobs != NULL) != a->ask.logprobs) {
        a->broken = true;
        return 0;
    }
    if (e->logprobs != NULL) keep_logprobs(e->logprobs, &a->logprobs[c][a->n_tokens[c]]);
    a->tokens[c][a->n_tokens[c]++] = e->token;
    return a->n_tokens[c] == a->stop_after[c];
}

/* In their order, each once, before all tokens. */
static void hear_prompt(asked *a, const sheaf__engine_event *e)
{
    uint32_t position = ++a->n_prompt_told;
    a->broken |= !a->admitted || !a->ask.prompt_logprobs || e->choice != 0 ||
                 e->position != position || position >= a->ask.n_tokens ||
                 e->token != a->prompt[position] || e->logprobs == NULL ||
                 a->finish[0] != SHEAF__FINISH_NONE;
    for (uint32_t c = 0; c < ENGINES_CHOICES; c++) a->broken |= a->n_tokens[c] != 0;
    if (!a->broken) keep_logprobs(e->logprobs, &a->prompt_told[position]);
}

/* Once, before anything else. */
static void hear_admitted(asked *a)
{
    a->broken |= a->admitted || a->n_prompt_told != 0;
    for (uint32_t c = 0; c < ENGINES_CHOICES; c++)
        a->broken |= a->n_tokens[c] != 0 || a->finish[c] != SHEAF__FINISH_NONE;
    a->admitted = true;
}

/* On the engine's thread: an assertion may not leave it. */
static int hear(void *ctx, const sheaf__engine_event *e)
{
    host *h = ctx;
    asked *a = e->ctx;
    a->broken |= a->done || e->choice >= ENGINES_CHOICES || e->n_prompt != a->ask.n_tokens ||
                 e->cached_tokens >= e->n_prompt;
    if (a->broken) return 0;
    a->cached = e->cached_tokens;
    a->n_computed = e->n_computed;
    switch (e->kind) {
    case SHEAF__EVENT_TOKEN: return hear_token(a, e);
    case SHEAF__EVENT_ADMITTED: hear_admitted(a); break;
    case SHEAF__EVENT_PROMPT: hear_prompt(a, e); break;
    case SHEAF__EVENT_OVER:
        a->broken |= a->finish[e->choice] != SHEAF__FINISH_NONE;
        a->finish[e->choice] = e->finish;
        a->status = e->status;
        break;
    case SHEAF__EVENT_DONE:
        for (uint32_t c = 0; c < (a->ask.n_choices == 0 ? 1 : a->ask.n_choices); c++)
            a->broken |= a->finish[c] == SHEAF__FINISH_NONE;
        a->pin = e->pin;
        a->pinned_tokens = e->pinned_tokens;
        a->done = true;
        a->place = ++h->n_done;
    }
    return 0;
}

/* ---- hosts ------------------------------------------------------------------------------- */

void host_open(host *h, const char *dir, sheaf__model_options m, sheaf__engine_options e)
{
    sheaf_error err = {0};
    *h = (host){0};
    h->model = runs_open(dir, m);
    h->dir = dir;
    h->oracle_options = m;
    h->oracle_options.kv_backend = SHEAF__KV_DENSE;
    h->oracle_options.kv_budget_bytes = 0;
    h->oracle_options.allocator = NULL;
    e.on_event = hear;
    e.on_event_ctx = h;
    if (sheaf__engine_create(h->model, &e, &h->engine, &err) != SHEAF_OK)
        fail_msg("%s", err.text);
}

uint64_t host_budget(const char *dir, sheaf__model_options m, uint32_t tokens)
{
    sheaf__model *model = runs_open(dir, m);
    uint32_t block = sheaf_pool_block_tokens(model->pool);
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < sheaf_pool_groups(model->pool); g++) {
        sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
        assert_int_equal(sheaf_pool_group_info(model->pool, g, &info), SHEAF_OK);
        uint64_t blocks = (tokens + block - 1) / block;
        bytes += (blocks + info.slab_blocks - 1) / info.slab_blocks * info.slab_bytes;
    }
    sheaf__model_close(model);
    return bytes;
}

void host_check(const host *h)
{
    sheaf_error err = {0};
    if (h->model->pool == NULL) return;
    if (sheaf_pool_check(h->model->pool, &err) != SHEAF_OK) fail_msg("%s", err.text);
    if (sheaf_prefix_check(h->engine->prefix, &err) != SHEAF_OK) fail_msg("%s", err.text);
}

uint64_t host_held(const host *h)
{
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    if (h->model->pool == NULL) return 0;
    assert_int_equal(sheaf_pool_stats_read(h->model->pool, &stats), SHEAF_OK);
    return stats.owners[SHEAF_OWNER_TABLE];
}

sheaf__engine_stats host_stats(const host *h)
{
    sheaf__engine_stats stats;
    sheaf__engine_stats_read(h->engine, &stats);
    return stats;
}

void host_close(host *h)
{
    sheaf__engine_destroy(h->engine);
    if (h->model->pool != NULL) assert_int_equal(runs_count(h->model).blocks_held, 0);
    sheaf__model_close(h->model);
    sheaf__model_close(h->oracle);
}

/* ---- requests ---------------------------------------------------------------------------- */

void host_ask(host *h, asked *a, want w)
{
    int32_t common[ENGINES_PROMPT];
    assert_true(w.n <= ENGINES_PROMPT && w.max_tokens <= ENGINES_TOKENS);
    *a = (asked){.host = h};
    runs_prompt(a->prompt, w.n, w.kind);
    runs_prompt(common, w.n, 0);
    memcpy(a->prompt, common, (w.shared < w.n ? w.shared : w.n) * sizeof *common);
    a->ask = (sheaf__ask){.tokens = a->prompt,
                          .n_tokens = w.n,
                          .n_choices = w.n_choices,
                          .max_tokens = w.max_tokens,
                          .priority = w.priority,
                          .prompt_logprobs = w.tells_prompt,
                          .salt = w.salt,
                          .salt_bytes = w.salt != NULL ? strlen(w.salt) : 0,
                          .ignore_eos = w.ignore_eos,
                          .logprobs = w.logprobs,
                          .n_top = w.tells_prompt && w.n_top == 0 ? 3 : w.n_top,
                          .presence_penalty = w.presence_penalty,
                          .frequency_penalty = w.frequency_penalty,
                          .bias = w.bias,
                          .n_bias = w.n_bias,
                          .ctx = a};
    if (w.seed != 0)
        a->ask.sampler =
            (sheaf__sampler_options){.temperature = 1.1f, .top_p = 0.95f, .seed = w.seed};
}

void host_send(host *h, asked *a)
{
    sheaf_error err = {0};
    if (sheaf__engine_submit(h->engine, &a->ask, &a->id, &err) != SHEAF_OK)
        fail_msg("%s", err.text);
}

void host_submit(host *h, asked *a, want w)
{
    host_ask(h, a, w);
    host_send(h, a);
}

void host_idle(host *h)
{
    for (uint32_t i = 0; sheaf__engine_step(h->engine); i++) assert_true(i < 100000);
    sheaf__engine_stats stats = host_stats(h);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(host_held(h), 0);
    host_check(h);
}

/* ---- alone ------------------------------------------------------------------------------- */

static sheaf__model *oracle_of(host *h)
{
    if (h->oracle == NULL) h->oracle = runs_open(h->dir, h->oracle_options);
    return h->oracle;
}

/* One token after the other, each by itself, on the dense backend. */
typedef struct lone {
    sheaf__model *model;
    const asked *asked;
    sheaf__kv kv;
    sheaf__sampler *sampler;
    float *logits, *bent; /* [vocab] of the last token */
} lone;

static void lone_run(lone *l, const int32_t *tokens, uint32_t n)
{
    sheaf_error err = {0};
    if (sheaf__model_prefill(l->model, &l->kv, tokens, n, l->logits, &err) != SHEAF_OK)
        fail_msg("%s", err.text);
}

static void lone_begin(lone *l, host *h, const asked *a, uint32_t choice)
{
    sheaf__model *model = oracle_of(h);
    uint32_t vocab = model->config.vocab;
    sheaf__sampler_options o = a->ask.sampler;
    o.choice = choice;
    *l = (lone){.model = model, .asked = a};
    l->logits = calloc(vocab, sizeof *l->logits);
    l->bent = calloc(vocab, sizeof *l->bent);
    assert_true(l->logits != NULL && l->bent != NULL);
    assert_int_equal(sheaf__sampler_create(&o, vocab, &model->memory, &l->sampler), SHEAF_OK);
    assert_int_equal(sheaf__model_new_kv(l->model, &l->kv), SHEAF_OK);
}

static void lone_end(lone *l)
{
    sheaf__sampler_destroy(l->sampler);
    sheaf__kv_destroy(&l->kv);
    free(l->logits);
    free(l->bent);
}

/* The logits as the ask bends them, looking through the whole answer for each. */
static void lone_bend(lone *l, const int32_t *tokens, uint32_t n)
{
    const sheaf__ask *ask = &l->asked->ask;
    for (uint32_t t = 0; t < l->model->config.vocab; t++) {
        uint32_t count = 0;
        l->bent[t] = l->logits[t];
        for (uint32_t i = 0; i < ask->n_bias; i++)
            if ((uint32_t)ask->bias[i].token == t)
                l->bent[t] =
                    ask->bias[i].value <= -100 ? -1e30f : l->logits[t] + ask->bias[i].value;
        for (uint32_t i = 0; i < n; i++) count += (uint32_t)tokens[i] == t;
        if (count != 0 && l->bent[t] != -1e30f)
            l->bent[t] = (float)((double)l->bent[t] - (double)ask->presence_penalty -
                                 (double)ask->frequency_penalty * count);
    }
}

uint32_t host_alone_told(host *h, const asked *a, uint32_t choice, int32_t *tokens,
                         sheaf__logprobs *logprobs)
{
    const sheaf__model *model = oracle_of(h);
    const sheaf__config *config = &model->config;
    uint32_t n = 0;
    lone l;
    lone_begin(&l, h, a, choice);
    lone_run(&l, a->prompt, a->ask.n_tokens);
    for (;;) {
        lone_bend(&l, tokens, n);
        int32_t token = sheaf__sampler_pick(l.sampler, l.bent, a->ask.n_tokens + n - 1);
        if (sheaf__config_is_eos(config, token) && !a->ask.ignore_eos) break;
        if (logprobs != NULL) {
            logprobs[n] = (sheaf__logprobs){0};
            sheaf__logprobs_of(l.logits, config->vocab, token, a->ask.n_top, &logprobs[n]);
        }
        tokens[n++] = token;
        if (n == a->ask.max_tokens || a->ask.n_tokens + n > model->options.ctx_size) break;
        lone_run(&l, &token, 1);
    }
    lone_end(&l);
    return n;
}

uint32_t host_alone(host *h, const asked *a, uint32_t choice, int32_t *tokens)
{
    return host_alone_told(h, a, choice, tokens, NULL);
}

/* What a cold run says of the prompt, by all its rows at once. */
static void expect_prompt_told(host *h, const asked *a)
{
    sheaf__model *model = oracle_of(h);
    uint32_t n = a->ask.n_tokens, vocab = model->config.vocab;
    sheaf__kv kv;
    float *logits = malloc((uint64_t)n * vocab * sizeof *logits);
    assert_non_null(logits);
    assert_int_equal(a->n_prompt_told, n - 1);
    assert_int_equal(sheaf__model_new_kv(model, &kv), SHEAF_OK);
    assert_int_equal(sheaf__kv_extend(&kv, n), SHEAF_OK);
    const sheaf__forward_item item = {&kv, a->prompt, n, n, 0};
    assert_int_equal(sheaf__forward_run(model->forward, &item, 1, logits), SHEAF_OK);
    for (uint32_t i = 1; i < n; i++) {
        sheaf__logprobs wanted = {0};
        sheaf__logprobs_of(logits + (uint64_t)(i - 1) * vocab, vocab, a->prompt[i],
                           a->ask.n_top, &wanted);
        assert_memory_equal(&a->prompt_told[i], &wanted, sizeof wanted);
    }
    sheaf__kv_destroy(&kv);
    free(logits);
}

void host_expect(host *h, const asked *a)
{
    static sheaf__logprobs logprobs[ENGINES_TOKENS];
    int32_t tokens[ENGINES_TOKENS];
    assert_false(a->broken);
    assert_true(a->done);
    if (a->ask.prompt_logprobs) expect_prompt_told(h, a);
    for (uint32_t c = 0; c < (a->ask.n_choices == 0 ? 1 : a->ask.n_choices); c++) {
        uint32_t n = host_alone_told(h, a, c, tokens, logprobs);
        bool stops = a->stop_after[c] != 0 && a->stop_after[c] <= n;
        if (stops) n = a->stop_after[c];
        assert_int_equal(a->finish[c], stops ? SHEAF__FINISH_STOP : SHEAF__FINISH_LENGTH);
        assert_int_equal(a->n_tokens[c], n);
        assert_memory_equal(a->tokens[c], tokens, n * sizeof *tokens);
        if (a->ask.logprobs)
            assert_memory_equal(a->logprobs[c], logprobs, n * sizeof *logprobs);
    }
}
