/* tests/engine/requests.h - a model with a prefix cache, and requests that run on it.
 *
 * A request is a prompt and the greedy answer to it. It finds what the cache has of the prompt,
 * runs the rest in chunks, publishes after each, and keeps the logits of every position that it
 * ran, so that they can be compared with those of a cold run: the same request where there is
 * nothing to find.
 *
 *     request_begin(&q, &scene, ids, n, n_answer);
 *     while (!request_done(&q)) request_step((request *[]){&q}, 1, chunk);
 *     request_end(&q);
 *     request_compare(&q, &cold);
 *
 * All failures are failed assertions of the running case.
 */
#ifndef SHEAF_TESTS_ENGINE_REQUESTS_H
#define SHEAF_TESTS_ENGINE_REQUESTS_H

#include "model/rig.h"
#include "sheaf/ledger.h"
#include "sheaf/prefix.h"

typedef struct scene {
    rig r;
    sheaf_prefix *cache; /* null: everything is run cold */
    sheaf_key space;
} scene;

/* `prefix` null: without a cache. */
void scene_open(scene *s, const rig_options *options, const sheaf_prefix_options *prefix);

/* Every block must be the cache's alone. */
void scene_close(scene *s);

/* Verifies pool and cache, and that both count alike what the cache holds. Returns its accounts. */
sheaf_prefix_stats scene_check(const scene *s);

typedef struct request {
    scene *scene;
    sheaf_prompt prompt;
    sheaf_match match; /* what was found */
    sheaf__kv kv;
    uint32_t n_prompt;
    uint32_t n_answer;
    uint32_t n_ids;
    uint32_t logits_from; /* positions before it get no logits */
    bool quiet;           /* publishes nothing before its end */
    bool door;      /* matches and reserves with its whole batch, by sheaf_prefix_reserve */
    bool may_slide; /* what it publishes may be refused for what a window let go of */
    int32_t *ids;   /* [n_prompt + n_answer]: the prompt, then the answer so far */
    bool *ran;      /* [n_prompt + n_answer]: run here */
    float *logits;  /* [n_prompt + n_answer - logits_from, vocab], where it was */
} request;

/* Finds and holds what is there: of the whole prompt. */
void request_begin(request *q, scene *s, const int32_t *ids, uint32_t n, uint32_t n_answer);

/* The same with choices: of `how` logits_from, quiet, door, may_slide, and the prompt's
 * max_match, session, ticket and priority count. Through the door it finds what is there in
 * its first step. */
void request_begin_as(request *q, const request *how, scene *s, const int32_t *ids, uint32_t n,
                      uint32_t n_answer);

bool request_done(const request *q);

/* One ragged batch: of each that is not done the next tokens, at most `chunk`, or, where all
 * are cached, the last one's query alone; what is run is committed, published, and the
 * windows slide. All go through the door, or none. */
void request_step(request *const *q, uint32_t n, uint32_t chunk);

/* The same; false: there was no room for all of it, and nothing has changed. */
bool request_step_if_room(request *const *q, uint32_t n, uint32_t chunk);

/* Lets go of the sequence in the middle: what it published may be found when it is stepped
 * again, through the door. */
void request_preempt(request *q);

/* All of it. */
void request_run(request *q, uint32_t chunk);

/* Publishes the rest and lets go of the sequence; ids and logits stay. */
void request_end(request *q);
void request_free(request *q);

/* The same tokens, each of the answer the one that the cold logits give; and for what `q`
 * ran the same logits, to the bit. Both have them from position 0 on. */
void request_compare(const request *q, const request *cold);

/* How many positions were run here. */
uint32_t request_ran(const request *q);

#endif
