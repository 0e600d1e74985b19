/* engine/engine.c - many requests on one model: life, events, steps. */
#include "engine/engine.h"

#include <errno.h>
#include <time.h>

#include "base/bits.h"
#include "base/status.h"
#include "engine/scheduler.h"
#include "sheaf/ledger.h"

#define DEFAULT_PARALLEL     8
#define DEFAULT_MAX_QUEUE    256
#define DEFAULT_BATCH_TOKENS 512
#define NS_PER_S             1000000000ull
#define MIN_NAP_NS           10000000ull /* 10 ms */
#define MAX_NAP_NS           NS_PER_S

_Static_assert(sizeof(sheaf__engine_stats) % sizeof(uint64_t) == 0,
               "the snapshot is whole words");

/* ---- life -------------------------------------------------------------------------------- */

static sheaf_status settle_options(sheaf__engine *engine, sheaf_error *err)
{
    sheaf__engine_options *o = &engine->options;
    uint32_t chunk = engine->model->options.prefill_chunk;
    if (o->on_event == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "nobody to tell of events");
    if (o->parallel == 0) o->parallel = DEFAULT_PARALLEL;
    if (o->max_queue == 0) o->max_queue = DEFAULT_MAX_QUEUE;
    if (o->batch_tokens == 0)
        o->batch_tokens =
            o->prefill_chunk > DEFAULT_BATCH_TOKENS ? o->prefill_chunk : DEFAULT_BATCH_TOKENS;
    if (o->prefill_chunk == 0)
        o->prefill_chunk = chunk < o->batch_tokens ? chunk : o->batch_tokens;
    if (o->batch_tokens < 2)
        return sheaf__error_set(err, SHEAF_E_INVALID, "a batch has at least 2 tokens, not %u",
                                o->batch_tokens);
    if (o->prefill_chunk > o->batch_tokens)
        return sheaf__error_set(err, SHEAF_E_INVALID,
                                "chunks of %u tokens are more than a batch of %u",
                                o->prefill_chunk, o->batch_tokens);
    return SHEAF_OK;
}

static sheaf_status open_parts(sheaf__engine *engine, sheaf_error *err)
{
    sheaf__model *model = engine->model;
    SHEAF__TRY(settle_options(engine, err));
    SHEAF__TRY(engine->store->open(engine, err));
    const sheaf__sampler_options greedy = {0};
    sheaf_status st =
        sheaf__sampler_create(&greedy, model->config.vocab, &model->memory, &engine->sampler);
    if (st == SHEAF_OK) st = sheaf__engine_grow_logits(engine, 1);
    if (st == SHEAF_OK) return st;
    return sheaf__error_set(err, st, "the engine cannot be set up: %s", sheaf_status_text(st));
}

/* Timed by a clock that nobody sets. */
static void init_wake(pthread_cond_t *wake)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(wake, &attr);
    pthread_condattr_destroy(&attr);
}

sheaf_status sheaf__engine_create(sheaf__model *model, const sheaf__engine_options *options,
                                  sheaf__engine **out, sheaf_error *err)
{
    sheaf__engine *engine = sheaf__memory_alloc(&model->memory, 1, sizeof *engine);
    if (engine == NULL)
        return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no memory for an engine");
    engine->model = model;
    engine->options = *options;
    engine->store = model->pool != NULL ? &sheaf__store_paged : &sheaf__store_dense;
    engine->next_id = 1;
    sheaf__memory_init(&engine->memory, model->options.allocator);
    sheaf__list_init(&engine->inbox);
    sheaf__list_init(&engine->jobs);
    sheaf__list_init(&engine->live);
    pthread_mutex_init(&engine->mutex, NULL);
    init_wake(&engine->wake);
    sheaf_status st = open_parts(engine, err);
    if (st != SHEAF_OK) {
        sheaf__engine_destroy(engine);
        return st;
    }
    engine->options.prefix = NULL; /* the caller's, read by now */
    *out = engine;
    return SHEAF_OK;
}

void sheaf__engine_destroy(sheaf__engine *engine)
{
    if (engine == NULL) return;
    sheaf__memory *memory = &engine->model->memory;
    sheaf__engine_stop(engine);
    while (sheaf__engine_step(engine) || !sheaf__list_empty(&engine->jobs)) continue;
    sheaf_prefix_close(engine->prefix);
    sheaf__sampler_destroy(engine->sampler);
    uint64_t n = engine->shares_capacity;
    sheaf__memory_free(memory, engine->shares, n, sizeof *engine->shares);
    sheaf__memory_free(memory, engine->steps, n, sizeof *engine->steps);
    sheaf__memory_free(memory, engine->prompts, n, sizeof *engine->prompts);
    sheaf__memory_free(memory, engine->items, n, sizeof *engine->items);
    sheaf__memory_free(memory, engine->logits, engine->logits_rows,
                       engine->model->config.vocab * sizeof *engine->logits);
    pthread_cond_destroy(&engine->wake);
    pthread_mutex_destroy(&engine->mutex);
    sheaf__memory_free(memory, engine, 1, sizeof *engine);
}

const sheaf__engine_options *sheaf__engine_settings(const sheaf__engine *engine)
{
    return &engine->options;
}

sheaf_prefix *sheaf__engine_prefix(sheaf__engine *engine)
{
    return engine->prefix;
}

/* ---- events ------------------------------------------------------------------------------ */

int sheaf__engine_tell(sheaf__engine *engine, const sheaf__choice *choice,
                       sheaf__engine_event event)
{
    const sheaf__request *request = choice->request;
    event.choice = choice->index;
    event.request = request->id;
    event.ctx = request->ctx;
    event.cached_tokens = request->cached_tokens;
    event.n_prompt = request->n_prompt;
    event.n_computed = request->n_computed;
    return engine->options.on_event(engine->options.on_event_ctx, &event);
}

void sheaf__engine_end_choice(sheaf__engine *engine, sheaf__choice *choice, uint32_t finish,
                              sheaf_status status)
{
    sheaf__request *request = choice->request;
    SHEAF__ASSERT(choice->state != SHEAF__CHOICE_OVER);
    if (choice->state == SHEAF__CHOICE_RUNNING &&
        (finish == SHEAF__FINISH_STOP || finish == SHEAF__FINISH_LENGTH))
        engine->store->keep(engine, choice);
    sheaf__engine_drop_ticket(engine, choice);
    sheaf__kv_destroy(&choice->kv);
    choice->state = SHEAF__CHOICE_OVER;
    request->n_over++;
    request->failed |= finish == SHEAF__FINISH_ERROR;
    request->cut |= finish == SHEAF__FINISH_CANCELLED;
    sheaf__engine_tell(
        engine, choice,
        (sheaf__engine_event){.kind = SHEAF__EVENT_OVER, .finish = finish, .status = status});
    if (choice->index != 0) return;
    for (uint32_t i = 1; i < request->n_choices; i++) /* these will never be forked */
        if (request->choices[i].state == SHEAF__CHOICE_HELD)
            sheaf__engine_end_choice(engine, &request->choices[i], finish, status);
}

static void end_request(sheaf__engine *engine, sheaf__request *request, uint32_t finish,
                        sheaf_status status)
{
    for (uint32_t i = 0; i < request->n_choices; i++)
        if (request->choices[i].state != SHEAF__CHOICE_OVER)
            sheaf__engine_end_choice(engine, &request->choices[i], finish, status);
}

/* ---- a step ------------------------------------------------------------------------------ */

/* Room for the shares of all that are live. */
static sheaf_status grow_shares(sheaf__engine *engine)
{
    uint64_t had = engine->shares_capacity, need = engine->n_live_choices;
    struct {
        void *data;
        uint64_t size;
    } arrays[] = {{engine->shares, sizeof *engine->shares},
                  {engine->steps, sizeof *engine->steps},
                  {engine->prompts, sizeof *engine->prompts},
                  {engine->items, sizeof *engine->items}};
    const uint32_t n_arrays = sizeof arrays / sizeof arrays[0];
    sheaf__memory *memory = &engine->model->memory;
    void *grown[sizeof arrays / sizeof arrays[0]];
    if (need <= had) return SHEAF_OK;
    if (need < 2 * had) need = 2 * had;
    for (uint32_t i = 0; i < n_arrays; i++) {
        grown[i] = sheaf__memory_alloc(memory, need, arrays[i].size);
        if (grown[i] != NULL) continue;
        while (i-- > 0) sheaf__memory_free(memory, grown[i], need, arrays[i].size);
        return SHEAF_E_NO_MEMORY;
    }
    for (uint32_t i = 0; i < n_arrays; i++) /* between steps there is nothing in them */
        sheaf__memory_free(memory, arrays[i].data, had, arrays[i].size);
    engine->shares = grown[0];
    engine->steps = grown[1];
    engine->prompts = grown[2];
    engine->items = grown[3];
    engine->shares_capacity = need;
    return SHEAF_OK;
}

/* The next new request, put to its place among those that are live; null: there is none. */
static sheaf__request *take_one(sheaf__engine *engine)
{
    sheaf__request *request = NULL;
    pthread_mutex_lock(&engine->mutex);
    if (!sheaf__list_empty(&engine->inbox)) {
        request = sheaf__request_of(engine->inbox.next);
        sheaf__list_remove(&request->link);
        sheaf__list *at = &engine->live;
        while (at->prev != &engine->live &&
               sheaf__choice_order(request->choices, sheaf__request_of(at->prev)->choices) < 0)
            at = at->prev;
        sheaf__list_insert(at, &request->link);
    }
    pthread_mutex_unlock(&engine->mutex);
    return request;
}

static void take_new(sheaf__engine *engine)
{
    for (sheaf__request *request; (request = take_one(engine)) != NULL;) {
        for (uint32_t i = 0; i < request->n_choices; i++)
            request->choices[i].served = ++engine->turn;
        engine->n_live_choices += request->n_choices;
        if (grow_shares(engine) == SHEAF_OK) continue;
        end_request(engine, request, SHEAF__FINISH_ERROR, SHEAF_E_NO_MEMORY);
    }
}

static void end_cancelled(sheaf__engine *engine)
{
    SHEAF__FOR_REQUESTS(engine, at)
    {
        sheaf__request *request = sheaf__request_of(at);
        if (atomic_load_explicit(&request->cancelled, memory_order_relaxed))
            end_request(engine, request, SHEAF__FINISH_CANCELLED, SHEAF_OK);
    }
}

static bool is_over(const sheaf__request *request)
{
    return request->n_over == request->n_choices;
}

/* Of one that is over: before it is told, so that whoever has heard of the end sees it counted, and its
 * place in the queue is free. */
static void count_end(sheaf__engine *engine, sheaf__request *request)
{
    sheaf__engine_stats *stats = &engine->stats;
    stats->failed += request->failed;
    stats->cancelled += !request->failed && request->cut;
    stats->finished += !request->failed && !request->cut;
    engine->n_live_choices -= request->n_choices;
    if (request->admitted) return;
    pthread_mutex_lock(&engine->mutex);
    engine->n_queued--;
    pthread_mutex_unlock(&engine->mutex);
}

static void let_go(sheaf__engine *engine, sheaf__request *request)
{
    sheaf__engine_tell(engine, request->choices,
                       (sheaf__engine_event){.kind = SHEAF__EVENT_DONE,
                                             .pin = request->pin,
                                             .pinned_tokens = request->pinned_tokens});
    pthread_mutex_lock(&engine->mutex);
    sheaf__list_remove(&request->link);
    sheaf__request_destroy(request, &engine->memory);
    pthread_mutex_unlock(&engine->mutex);
}

static bool holds_blocks(const sheaf__request *request)
{
    for (uint32_t i = 0; i < request->n_choices; i++)
        if (request->choices[i].state == SHEAF__CHOICE_RUNNING) return true;
    return false;
}

static uint64_t dense_bytes_of(const sheaf__request *request)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < request->n_choices; i++)
        if (request->choices[i].kv.dense != NULL)
            bytes += sheaf__dense_bytes(request->choices[i].kv.dense);
    return bytes;
}

/* Counts what runs, what waits, and what has come to its end, and shows the figures. */
static void publish_stats(sheaf__engine *engine)
{
    sheaf__engine_stats *stats = &engine->stats;
    stats->running = stats->waiting = stats->dense_bytes = 0;
    SHEAF__FOR_REQUESTS(engine, at)
    {
        sheaf__request *request = sheaf__request_of(at);
        if (is_over(request)) {
            count_end(engine, request);
        } else if (holds_blocks(request)) {
            stats->running++;
            stats->dense_bytes += dense_bytes_of(request);
        } else {
            stats->waiting++;
        }
    }
    sheaf__snapshot_store(&engine->snapshot, engine->words, stats, SHEAF__ENGINE_WORDS);
}

/* Lets go of the requests that are over. */
static void sweep(sheaf__engine *engine)
{
    for (sheaf__list *at = engine->live.next, *next; at != &engine->live; at = next) {
        next = at->next;
        if (is_over(sheaf__request_of(at))) let_go(engine, sheaf__request_of(at));
    }
}

bool sheaf__engine_step(sheaf__engine *engine)
{
    take_new(engine);
    if (sheaf__engine_run_jobs(engine)) take_new(engine); /* jobs may have submitted some */
    if (sheaf__list_empty(&engine->live)) return false;
    end_cancelled(engine);
    engine->store->expire(engine);
    sheaf__engine_plan(engine);
    if (engine->n_shares != 0) sheaf__engine_run_batch(engine);
    engine->stats.steps += engine->n_shares != 0;
    publish_stats(engine);
    sweep(engine);
    return true;
}

/* With the lock held. */
static bool is_asked(const sheaf__engine *engine)
{
    return !sheaf__list_empty(&engine->inbox) || !sheaf__list_empty(&engine->jobs);
}

/* How long the engine may sleep at most before it looks for what has lived too long; 0: for ever. Entries
 * may be younger or pinned, so it is no more than a guess. */
static uint64_t nap_ns(const sheaf__engine *engine)
{
    sheaf_prefix_stats stats = SHEAF_PREFIX_STATS_INIT;
    if (engine->prefix == NULL) return 0;
    if (sheaf_prefix_stats_read(engine->prefix, &stats) != SHEAF_OK) return 0;
    if (stats.ttl_ns == 0 || stats.entries == 0) return 0;
    return sheaf__max_u64(MIN_NAP_NS, sheaf__min_u64(stats.ttl_ns, MAX_NAP_NS));
}

/* With the lock held. False: so long has passed. */
static bool wait_ns(sheaf__engine *engine, uint64_t ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    ns += (uint64_t)until.tv_nsec;
    until.tv_sec += (time_t)(ns / NS_PER_S);
    until.tv_nsec = (long)(ns % NS_PER_S);
    return pthread_cond_timedwait(&engine->wake, &engine->mutex, &until) != ETIMEDOUT;
}

/* Sleeps until there is something to do. False: there will not be. What has lived too long goes
 * meanwhile. */
static bool sleep_until_asked(sheaf__engine *engine)
{
    pthread_mutex_lock(&engine->mutex);
    while (!is_asked(engine) && !engine->closing) {
        uint64_t ns = nap_ns(engine);
        if (ns == 0) {
            pthread_cond_wait(&engine->wake, &engine->mutex);
        } else if (!wait_ns(engine, ns)) {
            pthread_mutex_unlock(&engine->mutex);
            engine->store->expire(engine);
            pthread_mutex_lock(&engine->mutex);
        }
    }
    bool asked = is_asked(engine);
    pthread_mutex_unlock(&engine->mutex);
    return asked;
}

void sheaf__engine_run(sheaf__engine *engine)
{
    do
        while (sheaf__engine_step(engine)) continue;
    while (sleep_until_asked(engine));
}

void sheaf__engine_stats_read(const sheaf__engine *engine, sheaf__engine_stats *out)
{
    sheaf__snapshot_load(&engine->snapshot, engine->words, out, SHEAF__ENGINE_WORDS);
}
