/* tests/engine/requests.c - a model with a prefix cache, and requests that run on it. */
#include "engine/requests.h"

#include "pool/holder.h"
#include "testing.h"

#define MAX_BATCH 8

static void must(sheaf_status st, const char *what, const sheaf_error *err)
{
    if (st == SHEAF_OK) return;
    print_error("%s: %s%s%s\n", what, sheaf_status_text(st), err != NULL ? ": " : "",
                err != NULL ? err->text : "");
    fail();
}

/* ---- scenes ------------------------------------------------------------------------------ */

void scene_open(scene *s, const rig_options *options, const sheaf_prefix_options *prefix)
{
    sheaf_error err = {0};
    *s = (scene){0};
    rig_open(&s->r, options);
    if (prefix == NULL) return;
    must(sheaf_prefix_open(s->r.pool, prefix, &s->cache, &err), "prefix cache", &err);
    const sheaf_field field = {"model", options->dir, strlen(options->dir)};
    must(sheaf_space_make(s->r.pool, &field, 1, &s->space), "namespace", NULL);
}

void scene_close(scene *s)
{
    if (s->cache != NULL) {
        sheaf_prefix_stats stats = scene_check(s);
        assert_int_equal(stats.bytes_exclusive, stats.bytes_held);
    }
    sheaf_prefix_close(s->cache);
    rig_close(&s->r);
}

sheaf_prefix_stats scene_check(const scene *s)
{
    sheaf_error err = {0};
    sheaf_prefix_stats stats = SHEAF_PREFIX_STATS_INIT;
    sheaf_pool_stats pool = SHEAF_POOL_STATS_INIT;
    must(sheaf_pool_check(s->r.pool, &err), "pool", &err);
    must(sheaf_prefix_check(s->cache, &err), "prefix cache", &err);
    must(sheaf_prefix_stats_read(s->cache, &stats), "statistics of the cache", NULL);
    must(sheaf_pool_stats_read(s->r.pool, &pool), "statistics of the pool", NULL);
    assert_int_equal(stats.blocks_held, pool.owners[SHEAF_OWNER_TREE]);
    assert_int_equal(stats.bytes_exclusive, sheaf__pool_tree_only_bytes(s->r.pool));
    assert_true(stats.bytes_held <= pool.bytes_in_use);
    assert_true(stats.bytes_exclusive <= stats.bytes_held);
    assert_true(stats.bytes_exclusive <= stats.capacity_bytes);
    return stats;
}

/* ---- a request --------------------------------------------------------------------------- */

void request_begin(request *q, scene *s, const int32_t *ids, uint32_t n, uint32_t n_answer)
{
    const request plain = {0};
    request_begin_as(q, &plain, s, ids, n, n_answer);
}

void request_begin_as(request *q, const request *how, scene *s, const int32_t *ids, uint32_t n,
                      uint32_t n_answer)
{
    uint32_t most = n + n_answer;
    *q = (request){.scene = s,
                   .n_prompt = n,
                   .n_answer = n_answer,
                   .n_ids = n,
                   .logits_from = how->logits_from,
                   .quiet = how->quiet,
                   .door = how->door,
                   .may_slide = how->may_slide};
    q->ids = calloc(most, sizeof *q->ids);
    q->ran = calloc(most, sizeof *q->ran);
    q->logits =
        calloc((uint64_t)(most - q->logits_from) * s->r.config.vocab, sizeof *q->logits);
    assert_non_null(q->ids);
    assert_non_null(q->ran);
    assert_non_null(q->logits);
    memcpy(q->ids, ids, n * sizeof *ids);
    q->match = (sheaf_match)SHEAF_MATCH_INIT;
    if (s->cache == NULL) {
        q->kv = rig_kv(&s->r);
        return;
    }
    q->prompt = how->prompt;
    q->prompt.struct_size = sizeof q->prompt;
    q->prompt.tokens = q->ids;
    q->prompt.n_tokens = n;
    q->prompt.space = &s->space;
    q->kv.backend = SHEAF__KV_PAGED;
    if (q->door) return;
    must(sheaf_prefix_match(s->cache, &q->prompt, &q->kv.sequence, &q->match), "match", NULL);
    assert_int_equal(sheaf__kv_length(&q->kv), q->match.length);
}

bool request_done(const request *q)
{
    return q->n_ids == q->n_prompt + q->n_answer;
}

/* Reserves what each runs next, at most `chunk` positions. False: there is no room. */
static bool reserve(request *const *q, uint32_t n, uint32_t chunk)
{
    sheaf_step steps[MAX_BATCH];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t left = q[i]->n_ids, n_next;
        bool begun = !q[i]->door || q[i]->kv.sequence != NULL;
        if (begun) left -= sheaf__kv_length(&q[i]->kv);
        n_next = left < chunk ? left : chunk;
        if (!q[i]->door) must(sheaf__kv_extend(&q[i]->kv, n_next), "extend", NULL);
        steps[i] = (sheaf_step)SHEAF_STEP_INIT;
        steps[i].n = n_next;
        steps[i].prompt = &q[i]->prompt;
        steps[i].sequence = q[i]->kv.sequence;
    }
    if (!q[0]->door) return true;
    sheaf_status st = sheaf_prefix_reserve(q[0]->scene->cache, steps, n, NULL);
    if (st == SHEAF_FULL) return false;
    must(st, "reserve", NULL);
    for (uint32_t i = 0; i < n; i++) {
        if (q[i]->kv.sequence == NULL) q[i]->match = steps[i].match;
        q[i]->kv.sequence = steps[i].sequence;
        assert_int_equal(sheaf__kv_reserved(&q[i]->kv), steps[i].reserved);
    }
    return true;
}

/* The request's part of a batch, its positions reserved. */
static sheaf__forward_item next_item(request *q)
{
    uint32_t length = sheaf__kv_length(&q->kv), n = sheaf__kv_reserved(&q->kv);
    if (n == 0) return (sheaf__forward_item){&q->kv, q->ids + length - 1, 1, 1, 1};
    uint32_t unwanted = q->logits_from > length ? q->logits_from - length : 0;
    return (sheaf__forward_item){&q->kv, q->ids + length, n, n > unwanted ? n - unwanted : 0,
                                 0};
}

/* Keeps the logits of an item that has been run, and picks the answer's next token at its end. */
static void keep(request *q, const sheaf__forward_item *item, const float *logits)
{
    uint64_t vocab = q->scene->r.config.vocab;
    uint32_t first = (uint32_t)(item->tokens - q->ids), end = first + item->n_tokens;
    for (uint32_t pos = first; pos < end; pos++) q->ran[pos] = true;
    if (item->n_logits == 0) return;
    float *to = q->logits + (uint64_t)(end - item->n_logits - q->logits_from) * vocab;
    memcpy(to, logits, item->n_logits * vocab * sizeof *to);
    if (end == q->n_ids)
        q->ids[q->n_ids++] = rig_argmax(logits + (item->n_logits - 1) * vocab, (uint32_t)vocab);
}

static void publish(request *q, uint32_t flags)
{
    uint32_t n = 0, length = sheaf__kv_length(&q->kv);
    sheaf_status st =
        sheaf_prefix_publish(q->scene->cache, &q->prompt, q->kv.sequence, flags, &n);
    if (st == SHEAF_REFUSED && q->may_slide) {
        assert_int_equal(scene_check(q->scene).last_refusal, SHEAF_REFUSED_SLID);
        return;
    }
    must(st, "publish", NULL);
    uint32_t tail = length % sheaf_pool_block_tokens(q->scene->r.pool);
    assert_int_equal(n, flags == SHEAF_PUBLISH_TAIL ? length : length - tail);
}

bool request_step_if_room(request *const *q, uint32_t n, uint32_t chunk)
{
    sheaf__forward_item items[MAX_BATCH];
    request *running[MAX_BATCH];
    uint32_t n_items = 0;
    uint64_t n_logits = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (request_done(q[i])) continue;
        assert_true(n_items < MAX_BATCH);
        running[n_items++] = q[i];
    }
    if (n_items == 0) return true;
    if (!reserve(running, n_items, chunk)) return false;
    for (uint32_t i = 0; i < n_items; i++) {
        items[i] = next_item(running[i]);
        n_logits += items[i].n_logits;
    }
    rig *r = &running[0]->scene->r;
    float *logits = malloc((n_logits + 1) * r->config.vocab * sizeof *logits), *at = logits;
    assert_non_null(logits);
    must(sheaf__forward_run(r->forward, items, n_items, logits), "forward", NULL);
    for (uint32_t i = 0; i < n_items; i++) {
        request *x = running[i];
        must(sheaf__kv_commit(&x->kv, items[i].n_tokens - items[i].n_cached, items[i].tokens),
             "commit", NULL);
        keep(x, &items[i], at);
        at += (uint64_t)items[i].n_logits * r->config.vocab;
        if (x->scene->cache == NULL) continue;
        if (!x->quiet) publish(x, 0);
        must(sheaf__kv_slide(&x->kv, 0), "slide", NULL);
        scene_check(x->scene);
    }
    free(logits);
    return true;
}

void request_step(request *const *q, uint32_t n, uint32_t chunk)
{
    assert_true(request_step_if_room(q, n, chunk));
}

void request_preempt(request *q)
{
    sheaf__kv_destroy(&q->kv);
    q->prompt.n_tokens = q->n_ids;
}

void request_run(request *q, uint32_t chunk)
{
    while (!request_done(q)) request_step(&q, 1, chunk);
}

void request_end(request *q)
{
    if (q->scene->cache != NULL) publish(q, SHEAF_PUBLISH_TAIL);
    sheaf__kv_destroy(&q->kv);
    if (q->scene->cache != NULL) scene_check(q->scene);
}

void request_free(request *q)
{
    sheaf__kv_destroy(&q->kv);
    free(q->ids);
    free(q->ran);
    free(q->logits);
}

/* ---- comparing --------------------------------------------------------------------------- */

void request_compare(const request *q, const request *cold)
{
    uint32_t vocab = q->scene->r.config.vocab;
    assert_int_equal(q->logits_from + cold->logits_from, 0);
    assert_int_equal(q->n_ids, cold->n_ids);
    assert_memory_equal(q->ids, cold->ids, q->n_ids * sizeof *q->ids);
    for (uint32_t pos = 0; pos + 1 < q->n_ids; pos++) {
        const float *wanted = cold->logits + (uint64_t)pos * vocab;
        assert_true(cold->ran[pos]);
        if (pos + 1 >= q->n_prompt)
            assert_int_equal(q->ids[pos + 1], rig_argmax(wanted, vocab));
        if (q->ran[pos] &&
            memcmp(q->logits + (uint64_t)pos * vocab, wanted, vocab * sizeof *wanted) != 0) {
            print_error("the logits of position %u differ\n", pos);
            fail();
        }
    }
}

uint32_t request_ran(const request *q)
{
    uint32_t n = 0;
    for (uint32_t pos = 0; pos < q->n_ids; pos++) n += q->ran[pos];
    return n;
}
