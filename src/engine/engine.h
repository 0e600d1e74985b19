/* engine/engine.h - many requests on one model: who runs next.
 *
 * Owns: the queue, the prefix cache, one ragged batch a step, preemption, what is told. Does not own:
 * the model, threads, sockets, text.
 *
 *     sheaf__engine_options o = {.on_event = tell, .parallel = 8};
 *     st = sheaf__engine_create(model, &o, &engine, &err);
 *     ... one thread:   sheaf__engine_run(engine);               // until drained or stopped
 *     ... any thread:   st = sheaf__engine_submit(engine, &ask, &id, &err);
 *                       sheaf__engine_cancel(engine, id);
 *     sheaf__engine_drain(engine);                               // and join that thread
 *     sheaf__engine_destroy(engine);
 *
 * Each step: new requests are taken, cancelled ones let go; the oldest of those that wait are admitted;
 * decode rows, then prompt chunks, are reserved as a whole (sheaf_prefix_reserve), run in one
 * batch, committed, published, sampled and told. Where there is no room, nobody is admitted, chunks
 * shrink, then the youngest running answer is preempted: it resumes with what is left of its blocks
 * in the prefix cache and computes the rest again. The oldest always gets on; alone in a pool that is
 * too small for it, it ends with SHEAF__FINISH_LENGTH, or where pins leave no room for its prompt, with
 * SHEAF__FINISH_ERROR and SHEAF_FULL.
 *
 * A request's tokens are a function of its ask alone: not of what else runs, nor of anything above.
 */
#ifndef SHEAF_ENGINE_ENGINE_H
#define SHEAF_ENGINE_ENGINE_H

#include "engine/logprobs.h"
#include "engine/request.h"
#include "sheaf/rows.h"

typedef struct sheaf__engine sheaf__engine;

enum {
    SHEAF__EVENT_TOKEN = 0, /* a choice has got a token */
    SHEAF__EVENT_OVER = 1,  /* a choice has ended */
    SHEAF__EVENT_DONE = 2,  /* all have; the last event of a request */
    SHEAF__EVENT_ADMITTED =
        3, /* it has left the queue: cached_tokens is known. Once, before all others
                                  unless it ends in the queue */
    SHEAF__EVENT_PROMPT =
        4 /* prompt_logprobs: of the prompt's token at `position`, in ascending order,
                               all before the first TOKEN; told once, also after a preemption */
};

typedef struct sheaf__engine_event {
    uint32_t kind;
    uint32_t choice;
    uint64_t request;
    void *ctx;     /* of the ask */
    int32_t token; /* TOKEN, PROMPT. TOKEN: one that ends the text with ignore_eos alone */
    const sheaf__logprobs
        *logprobs;          /* TOKEN, PROMPT, where wanted; else null. Good during the call */
    uint32_t position;      /* TOKEN: absolute, the prompt's first token has 0 */
    uint32_t finish;        /* OVER: SHEAF__FINISH_... */
    sheaf_status status;    /* OVER with SHEAF__FINISH_ERROR: which */
    uint32_t cached_tokens; /* of the prompt, not computed: at most one less than it has */
    uint32_t n_prompt;
    uint64_t n_computed;    /* positions run for the request so far, all choices, also again */
    uint64_t pin;           /* DONE of one with `pin`: the pin; 0: nothing could be pinned */
    uint32_t pinned_tokens; /* DONE: that it keeps */
} sheaf__engine_event;

/* On the engine's thread, in the middle of a step: may submit, cancel and post, and nothing else.
 * After TOKEN, non-zero ends this choice with SHEAF__FINISH_STOP (a stop text has been met): what was
 * computed of it is published, the token is not. After other events the value is ignored. */
typedef int sheaf__engine_event_fn(void *ctx, const sheaf__engine_event *event);

/* The namespace of a salt: [salt_bytes] (null: none), on the model's pool. Any thread. */
typedef sheaf_status sheaf__engine_space_fn(void *ctx, const sheaf_pool *pool, const void *salt,
                                            uint64_t salt_bytes, sheaf_key *out);

typedef struct sheaf__engine_options {
    uint32_t parallel;     /* requests that run at most; 0: 8 */
    uint32_t max_queue;    /* requests that wait to be admitted at most; 0: 256 */
    uint32_t batch_tokens; /* rows a step at most, from 2; 0: 512, or prefill_chunk if more */
    uint32_t
        prefill_chunk; /* of one request a step at most; 0: the model's, or batch_tokens if less */
    bool no_prompt_cache;               /* nothing is kept, nothing found */
    const sheaf_prefix_options *prefix; /* limits of the prompt cache; null: the defaults */
    sheaf__engine_space_fn *space;      /* null: by the salt alone; the pool is one model's */
    void *space_ctx;
    sheaf__engine_event_fn *on_event;
    void *on_event_ctx;
} sheaf__engine_options;

/* With the dense backend there is no prompt cache and no budget, and nobody is preempted while there is
 * host memory: `prefix`, no_prompt_cache and the namespaces are ignored, and an ask with `pin` is
 * refused (SHEAF_E_UNSUPPORTED).
 * The model must outlive it, and its pool be empty. Opens the pool's prefix cache. An allocator of the
 * model's own is called by submitting threads too.
 * SHEAF_E_INVALID: no callback, a batch of less than two rows,
 * or less than a chunk. SHEAF_E_NO_MEMORY; else as sheaf_prefix_open. */
sheaf_status sheaf__engine_create(sheaf__model *model, const sheaf__engine_options *options,
                                  sheaf__engine **out, sheaf_error *err);

/* Nobody runs it and nobody will submit. What is left ends as cancelled, and is told. Null is allowed. */
void sheaf__engine_destroy(sheaf__engine *engine);

/* Takes a request into the queue. Any thread. *id names it, also in events, which may come before
 * this returns; `err` may be null.
 * SHEAF_FULL: max_queue of them wait. SHEAF_REFUSED: the prompt's blocks are more than the prompt cache
 * may hold, and the ask wants it pinned. SHEAF_E_CONTEXT: the prompt is longer than the context, or than
 * the pool has room for; the sentence has both numbers. SHEAF_E_INVALID: no token, one outside the
 * vocabulary, a value of the ask out of its range. SHEAF_E_CANCELLED: draining or stopped.
 * SHEAF_E_NO_MEMORY; else as the namespace function. */
sheaf_status sheaf__engine_submit(sheaf__engine *engine, const sheaf__ask *ask, uint64_t *id,
                                  sheaf_error *err);

/* Ends a request within one step. Any thread. SHEAF_MISS: there is none of this number (any more). */
sheaf_status sheaf__engine_cancel(sheaf__engine *engine, uint64_t id);

/* One step, on the engine's thread, and before it the jobs that are posted. False: no request is
 * there, and nothing else was done. */
bool sheaf__engine_step(sheaf__engine *engine);

/* Steps, and sleeps while there is nothing to do (what the prompt cache has had for too long goes
 * meanwhile, within a second), until drained or stopped and no request is left. The
 * calling thread is the engine's. */
void sheaf__engine_run(sheaf__engine *engine);

/* No more submissions; what is there goes on to its end. Any thread. */
void sheaf__engine_drain(sheaf__engine *engine);

/* No more submissions; what is there is cancelled. Any thread. */
void sheaf__engine_stop(sheaf__engine *engine);

typedef struct sheaf__engine_stats {
    uint64_t running;         /* requests that hold blocks */
    uint64_t waiting;         /* requests that do not */
    uint64_t dense_bytes;     /* of the buffers of those that run; 0 with the paged backend */
    uint64_t steps;           /* ever, as all that follows */
    uint64_t rows;            /* of all batches */
    uint64_t tokens_computed; /* positions whose K and V were computed */
    uint64_t tokens_reused;   /* positions found in the prefix cache */
    uint64_t tokens_told;
    uint64_t preemptions;
    uint64_t finished; /* requests, none of whose choices was cancelled or failed */
    uint64_t cancelled;
    uint64_t failed;
} sheaf__engine_stats;

/* As of the end of a step's work: a request that is DONE is counted before that is told. Any thread. */
void sheaf__engine_stats_read(const sheaf__engine *engine, sheaf__engine_stats *out);

/* Its options with the defaults filled in; `prefix` is null. Any thread. */
const sheaf__engine_options *sheaf__engine_settings(const sheaf__engine *engine);

/* For its statistics, from any thread, and for all else between steps on the engine's thread. Null with
 * the dense backend. */
sheaf_prefix *sheaf__engine_prefix(sheaf__engine *engine);

/* ---- between steps ----------------------------------------------------------------------- */

/* Something to be done on the engine's thread between two steps, where pool and prefix cache may be
 * used. The caller's memory, until fn is called; fn may free it. */
typedef struct sheaf__engine_job sheaf__engine_job;
typedef void sheaf__engine_job_fn(sheaf__engine *engine, sheaf__engine_job *job);
struct sheaf__engine_job {
    sheaf__list link; /* the engine's */
    sheaf__engine_job_fn *fn;
};

/* Calls job->fn once, soon: also on an engine that drains or stops, and at the latest in
 * sheaf__engine_destroy. In the order in which they were posted; what a job posts comes after the next
 * step, where there is one. Any thread. */
void sheaf__engine_post(sheaf__engine *engine, sheaf__engine_job *job);

/* A request as it stands. */
typedef struct sheaf__request_info {
    uint64_t id;
    void *ctx; /* of the ask */
    uint32_t n_prompt, cached_tokens;
    uint32_t n_choices, n_over;
    uint32_t n_waiting; /* choices that have no blocks: never admitted, or preempted */
    uint32_t n_run;     /* positions in the sequence of the first choice that runs */
    uint32_t n_told;    /* tokens of all answers so far */
    int32_t priority;
    bool admitted;
} sheaf__request_info;

/* Those that are live, in the order in which they are served: at most `capacity` of them into out[].
 * Returns how many there are. The engine's thread (of a job). */
uint32_t sheaf__engine_requests(sheaf__engine *engine, sheaf__request_info *out,
                                uint32_t capacity);

/* As sheaf_prefix_map; owners: [n], the request that has the row in a running table, the oldest of
 * several; 0: none. The engine's thread (of a job). SHEAF_E_UNSUPPORTED: the dense backend.
 * O(n, the pins' blocks, and the running tables). */
sheaf_status sheaf__engine_map(sheaf__engine *engine, uint32_t group, uint32_t first_row,
                               uint32_t n, sheaf_row *rows, uint64_t *owners);

#endif
