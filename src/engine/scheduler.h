/* engine/scheduler.h - what the files of an engine share: its state, and the parts of a step.
 *
 *     submit.c     what other threads ask: requests, cancelling, the end
 *     engine.c     life, events, the order of a step
 *     scheduler.c  who has a share in the step, and what gives way where there is no room
 *     batch.c      the step is run, committed, published, sampled
 *     store_*.c    where K and V live: what finds room, what is kept
 *     jobs.c       what is done between steps: jobs, looking at what runs
 *
 * Invariants between steps, on the engine's thread:
 *   1 `live` is in the order of sheaf__choice_order; only the engine's thread changes it, with the
 *     lock held, so it may read it without
 *   2 a choice has a cache (its kv), with nothing reserved, exactly while it is RUNNING
 *   3 a RUNNING choice's ids go at least one beyond that cache
 *   4 a ticket of a RUNNING choice is a claim, one of a WAITING choice a place to wait
 */
#ifndef SHEAF_ENGINE_SCHEDULER_H
#define SHEAF_ENGINE_SCHEDULER_H

#include <pthread.h>

#include "base/snapshot.h"
#include "engine/engine.h"

/* A choice's part of a step. */
typedef struct sheaf__share {
    sheaf__choice *choice;
    uint32_t n;  /* positions to run; of one that enters at most so many */
    bool enters; /* has no cache yet */
} sheaf__share;

enum {
    SHEAF__LOOK_ENTERS,
    SHEAF__LOOK_WAITS,  /* another computes what it needs next: it has a ticket */
    SHEAF__LOOK_NO_ROOM /* and nobody after it may have it */
};

/* Where the K and V of requests live, as far as the backends differ. */
typedef struct sheaf__store {
    /* Sets max_prompt, and what else the backend has in the engine. */
    sheaf_status (*open)(sheaf__engine *engine, sheaf_error *err);

    /* Lets go of what nobody has used for long. */
    void (*expire)(sheaf__engine *engine);

    /* Whether a waiting choice can enter now (SHEAF__LOOK_...), and *n positions that it would have to
     * run. */
    int (*look)(sheaf__engine *engine, sheaf__choice *choice, uint32_t *n);

    /* Reserves all shares, or nothing: their choices have a cache then, and `steps` say how many
     * positions are reserved and what was found. Else as sheaf_prefix_reserve. */
    sheaf_status (*reserve)(sheaf__engine *engine);

    /* Brings together what is free. False: that cannot be, reserving would fail as before. */
    bool (*tidy)(sheaf__engine *engine);

    /* Offers the whole blocks of a running choice to others. */
    void (*publish)(sheaf__engine *engine, sheaf__choice *choice);

    /* Offers all that a choice has which has come to its end, and pins it where that is wanted. */
    void (*keep)(sheaf__engine *engine, sheaf__choice *choice);
} sheaf__store;

extern const sheaf__store sheaf__store_paged, sheaf__store_dense;

#define SHEAF__ENGINE_WORDS (sizeof(sheaf__engine_stats) / sizeof(uint64_t))

struct sheaf__engine {
    sheaf__model *model;
    const sheaf__store *store;
    sheaf_prefix *prefix; /* null with the dense backend */
    sheaf__engine_options options;
    uint32_t max_prompt; /* tokens that there is room for at most */
    bool windows;        /* some layers have one */

    pthread_mutex_t mutex; /* guards the following eight */
    pthread_cond_t wake;
    sheaf__list inbox; /* requests, oldest first */
    sheaf__list jobs;  /* oldest first */
    sheaf__list live;  /* see invariant 1 */
    sheaf__memory memory;
    uint64_t next_id;
    uint32_t n_queued; /* requests that were never admitted */
    bool closing;      /* draining or stopped */

    uint64_t turn;              /* the last that was given: see sheaf__choice.served */
    uint32_t n_shares;          /* of it */
    uint64_t n_live_choices;    /* of all that are live */
    uint64_t shares_capacity;   /* of the following four, at least so many */
    sheaf__share *shares;       /* [n_shares] */
    sheaf_step *steps;          /* [n_shares] */
    sheaf_prompt *prompts;      /* [n_shares] */
    sheaf__forward_item *items; /* [n_shares] */
    uint64_t logits_rows;
    float *logits; /* [logits_rows, vocab] */
    sheaf__sampler *sampler;
    bool compacted; /* in this step */

    sheaf__engine_stats stats;
    sheaf__snapshot snapshot;
    _Atomic uint64_t words[SHEAF__ENGINE_WORDS];
};

#define SHEAF__FOR_REQUESTS(engine, at)                                                        \
    for (sheaf__list *at = (engine)->live.next; at != &(engine)->live; at = at->next)

static inline sheaf__request *sheaf__request_of(sheaf__list *link)
{
    return SHEAF__CONTAINER(link, sheaf__request, link);
}

/* ---- engine.c ---- */

/* Tells of a choice: what is not set here is filled in. Returns what the callback does. */
int sheaf__engine_tell(sheaf__engine *engine, const sheaf__choice *choice,
                       sheaf__engine_event event);

/* Ends a choice that is not over: its whole answer is published where it came to its end, its
 * blocks go back, and it is told. */
void sheaf__engine_end_choice(sheaf__engine *engine, sheaf__choice *choice, uint32_t finish,
                              sheaf_status status);

/* ---- jobs.c ---- */

/* Runs the jobs that are there now. False: there was none. */
bool sheaf__engine_run_jobs(sheaf__engine *engine);

/* ---- scheduler.c ---- */

/* Fills `shares`, and reserves them all. None: nothing can be run in this step. */
void sheaf__engine_plan(sheaf__engine *engine);

/* ---- store_paged.c ---- */

/* Lets go of a ticket of either kind. */
void sheaf__engine_drop_ticket(sheaf__engine *engine, sheaf__choice *choice);

/* ---- batch.c ---- */

/* Runs what is reserved. */
void sheaf__engine_run_batch(sheaf__engine *engine);

/* Room for so many rows. SHEAF_E_NO_MEMORY: as before. */
sheaf_status sheaf__engine_grow_logits(sheaf__engine *engine, uint64_t rows);

#endif
