/* test_engine_jobs.c - what is done between the steps of an engine: jobs, looking, being stopped. */
#include <pthread.h>

#include "engine/engines.h"
#include "testing.h"

static const sheaf__model_options SMALL = {.block_tokens = 8, .slab_blocks = 1};

/* ---- jobs -------------------------------------------------------------------------------- */

typedef struct noted_job {
    sheaf__engine_job job;
    uint32_t number;
    sheaf__engine_job *next; /* posted by it */
} noted_job;

static struct {
    uint32_t order[16];
    uint32_t n;
} noted;

static void note(sheaf__engine *engine, sheaf__engine_job *job)
{
    noted_job *j = SHEAF__CONTAINER(job, noted_job, job);
    noted.order[noted.n++] = j->number;
    if (j->next != NULL) sheaf__engine_post(engine, j->next);
}

static void jobs_are_run_in_order_between_steps(void **state)
{
    (void)state;
    static host h;
    static asked a;
    noted_job last = {{.fn = note}, 4, NULL}, third = {{.fn = note}, 3, &last.job};
    noted_job jobs[2] = {{{.fn = note}, 1, NULL}, {{.fn = note}, 2, &third.job}};
    noted.n = 0;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    sheaf__engine_post(h.engine, &jobs[0].job);
    sheaf__engine_post(h.engine, &jobs[1].job);
    assert_int_equal(noted.n, 0);
    assert_false(sheaf__engine_step(h.engine)); /* idle */
    assert_int_equal(noted.n, 2);
    host_submit(&h, &a, (want){.n = 20, .kind = 1, .max_tokens = 3});
    assert_true(sheaf__engine_step(h.engine));
    assert_int_equal(noted.n, 3);
    assert_true(sheaf__engine_step(h.engine));
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(noted.order[i], i + 1);
    host_idle(&h);
    host_expect(&h, &a);
    host_close(&h);
}

typedef struct asking_job {
    sheaf__engine_job job;
    asked *asked;
} asking_job;

static void ask_of_job(sheaf__engine *engine, sheaf__engine_job *job)
{
    asking_job *j = SHEAF__CONTAINER(job, asking_job, job);
    j->asked->broken |=
        sheaf__engine_submit(engine, &j->asked->ask, &j->asked->id, NULL) != SHEAF_OK;
    free(j); /* it is the job's own */
}

static void a_job_may_submit_and_free_itself(void **state)
{
    (void)state;
    static host h;
    static asked a;
    asking_job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    job->job.fn = ask_of_job;
    job->asked = &a;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    host_ask(&h, &a, (want){.n = 20, .kind = 1, .max_tokens = 3});
    sheaf__engine_post(h.engine, &job->job);
    host_idle(&h); /* the first step has a request already */
    host_expect(&h, &a);
    host_close(&h);
}

static void jobs_that_are_left_are_run_at_the_end(void **state)
{
    (void)state;
    static host h;
    static asked a;
    noted_job second = {{.fn = note}, 2, NULL}, first = {{.fn = note}, 1, &second.job};
    noted.n = 0;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    host_submit(&h, &a, (want){.n = 20, .kind = 1, .max_tokens = 3});
    sheaf__engine_post(h.engine, &first.job);
    host_close(&h);
    assert_int_equal(noted.n, 2);
    assert_true(a.done && a.finish[0] == SHEAF__FINISH_CANCELLED);
}

/* ---- jobs of other threads --------------------------------------------------------------- */

#define N_THREADS 3
#define N_POSTS   60

typedef struct counting_job {
    sheaf__engine_job job;
    pthread_mutex_t *mutex;
    pthread_cond_t *changed;
    uint32_t *n;
} counting_job;

static void count(sheaf__engine *engine, sheaf__engine_job *job)
{
    counting_job *j = SHEAF__CONTAINER(job, counting_job, job);
    sheaf__request_info info[4];
    (void)sheaf__engine_requests(engine, info, 4);
    pthread_mutex_lock(j->mutex);
    (*j->n)++;
    pthread_cond_signal(j->changed);
    pthread_mutex_unlock(j->mutex);
}

typedef struct poster {
    host *h;
    counting_job jobs[N_POSTS];
} poster;

static void *post_all(void *arg)
{
    poster *p = arg;
    for (uint32_t i = 0; i < N_POSTS; i++) sheaf__engine_post(p->h->engine, &p->jobs[i].job);
    return NULL;
}

static void *run_engine(void *arg)
{
    sheaf__engine_run(arg);
    return NULL;
}

static void wait_for(pthread_mutex_t *mutex, pthread_cond_t *changed, const uint32_t *n,
                     uint32_t wanted)
{
    pthread_mutex_lock(mutex);
    while (*n < wanted) pthread_cond_wait(changed, mutex);
    pthread_mutex_unlock(mutex);
}

static void jobs_of_other_threads_wake_an_idle_engine(void **state)
{
    (void)state;
    static host h;
    static asked a;
    static poster posters[N_THREADS];
    pthread_t engine, threads[N_THREADS];
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
    uint32_t n = 0;
    const counting_job job = {{.fn = count}, &mutex, &changed, &n};
    counting_job first = job, late = job;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    assert_int_equal(pthread_create(&engine, NULL, run_engine, h.engine), 0);
    sheaf__engine_post(h.engine, &first.job); /* nothing else is there */
    wait_for(&mutex, &changed, &n, 1);
    host_submit(&h, &a, (want){.n = 60, .kind = 1, .max_tokens = 40});
    for (uint32_t i = 0; i < N_THREADS; i++) {
        posters[i].h = &h;
        for (uint32_t k = 0; k < N_POSTS; k++) posters[i].jobs[k] = job;
        assert_int_equal(pthread_create(&threads[i], NULL, post_all, &posters[i]), 0);
    }
    for (uint32_t i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    sheaf__engine_drain(h.engine);
    wait_for(&mutex, &changed, &n, 1 + N_THREADS * N_POSTS);
    assert_int_equal(pthread_join(engine, NULL), 0);
    sheaf__engine_post(h.engine, &late.job); /* nobody runs it any more */
    host_expect(&h, &a);
    host_close(&h);
    assert_int_equal(n, 2 + N_THREADS * N_POSTS);
    pthread_cond_destroy(&changed);
    pthread_mutex_destroy(&mutex);
}

/* ---- looking ----------------------------------------------------------------------------- */

static void requests_are_seen_as_they_stand(void **state)
{
    (void)state;
    static host h;
    static asked a, b, c;
    sheaf__request_info info[3];
    host_open(&h, RUNS_LLAMA, SMALL,
              (sheaf__engine_options){.parallel = 2, .batch_tokens = 40, .prefill_chunk = 16});
    host_submit(&h, &a, (want){.n = 10, .kind = 1, .max_tokens = 9, .n_choices = 3, .seed = 1});
    host_submit(&h, &b, (want){.n = 50, .kind = 2, .max_tokens = 9});
    host_submit(&h, &c, (want){.n = 20, .kind = 3, .max_tokens = 9, .priority = -1});
    assert_int_equal(sheaf__engine_requests(h.engine, info, 3), 0); /* nobody took them yet */
    for (uint32_t i = 0; i < 3; i++) assert_true(sheaf__engine_step(h.engine));
    info[2].id = 77;
    assert_int_equal(sheaf__engine_requests(h.engine, info, 2), 3);
    assert_int_equal(info[2].id, 77);
    assert_int_equal(sheaf__engine_requests(h.engine, info, 3), 3);
    assert_int_equal(info[0].id, a.id);
    assert_ptr_equal(info[0].ctx, &a);
    assert_int_equal(info[0].n_prompt, 10);
    assert_int_equal(info[0].n_choices, 3);
    assert_int_equal(info[0].n_waiting + info[0].n_over, 0);
    assert_int_equal(info[0].n_run, 12);
    assert_int_equal(info[0].n_told, 9);
    assert_true(info[0].admitted);
    assert_int_equal(info[1].id, b.id);
    assert_int_equal(info[1].n_run, 48);
    assert_int_equal(info[1].n_told, 0);
    assert_int_equal(info[2].id, c.id);
    assert_int_equal(info[2].priority, -1);
    assert_int_equal(info[2].n_waiting, 1);
    assert_int_equal(info[2].n_run, 0);
    assert_false(info[2].admitted);
    host_idle(&h);
    host_close(&h);
}

/* Counts the rows of each of two requests, and those that are nobody's but held. */
static void count_rows(host *h, const asked *a, const asked *b, uint32_t counts[3])
{
    sheaf_row rows[64];
    uint64_t owners[64];
    uint32_t n = sheaf_pool_rows(h->model->pool, 0);
    assert_true(n <= 64);
    assert_int_equal(sheaf__engine_map(h->engine, 0, 0, n, rows, owners), SHEAF_OK);
    memset(counts, 0, 3 * sizeof *counts);
    for (uint32_t i = 0; i < n; i++) {
        bool held = rows[i].state == SHEAF_ROW_RUNNING || rows[i].state == SHEAF_ROW_SHARED;
        assert_int_equal(held, owners[i] != 0);
        counts[0] += owners[i] == a->id;
        counts[1] += owners[i] == b->id;
        counts[2] += rows[i].state == SHEAF_ROW_CACHED;
        /* a part of the map says the same */
        sheaf_row row;
        uint64_t owner = 77;
        assert_int_equal(sheaf__engine_map(h->engine, 0, i, 1, &row, &owner), SHEAF_OK);
        assert_int_equal(owner, owners[i]);
        assert_int_equal(row.state, rows[i].state);
    }
}

static void the_map_names_who_has_a_row(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    uint32_t counts[3];
    uint64_t owner = 77;
    sheaf_row row = {77, 0, 0};
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    host_submit(&h, &a, (want){.n = 41, .kind = 1, .shared = 32, .max_tokens = 20});
    assert_true(sheaf__engine_step(h.engine));
    host_submit(&h, &b, (want){.n = 44, .kind = 2, .shared = 32, .max_tokens = 20});
    assert_true(sheaf__engine_step(h.engine));
    count_rows(&h, &a, &b, counts);
    assert_int_equal(counts[0], 6); /* of 42 positions; the shared ones are the older one's */
    assert_int_equal(counts[1], 2);
    assert_int_equal(counts[2], 0);
    assert_int_equal(sheaf__engine_cancel(h.engine, a.id), SHEAF_OK);
    assert_true(sheaf__engine_step(h.engine));
    count_rows(&h, &a, &b, counts);
    assert_int_equal(counts[0], 0);
    assert_int_equal(counts[1], 6);
    assert_int_equal(counts[2], 1); /* its last whole block, published */
    assert_int_equal(sheaf__engine_map(h.engine, 7, 0, 1, &row, &owner), SHEAF_E_INVALID);
    assert_int_equal(owner, 77);
    assert_int_equal(row.state, 77);
    host_idle(&h);
    host_close(&h);
}

/* ---- being told of an end ---------------------------------------------------------------- */

typedef struct listener {
    host *h;
    sheaf__engine_event_fn *hear; /* the host's own */
    asked *next;                  /* submitted at the first end; null: nobody */
    sheaf_status submitted;
    sheaf__engine_stats stats; /* at the last end */
} listener;

static int listen_to(void *ctx, const sheaf__engine_event *e)
{
    listener *l = ctx;
    int said = l->hear(l->h, e);
    if (e->kind != SHEAF__EVENT_DONE) return said;
    l->stats = host_stats(l->h);
    if (l->next == NULL) return said;
    l->submitted = sheaf__engine_submit(l->h->engine, &l->next->ask, &l->next->id, NULL);
    l->next = NULL;
    return said;
}

static void begin_to_listen(listener *l, host *h, asked *next)
{
    *l = (listener){.h = h, .hear = h->engine->options.on_event, .next = next};
    h->engine->options.on_event = listen_to;
    h->engine->options.on_event_ctx = l;
}

static void who_hears_of_an_end_finds_it_counted(void **state)
{
    (void)state;
    static host h;
    static asked a;
    listener l;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    begin_to_listen(&l, &h, NULL);
    host_submit(&h, &a, (want){.n = 20, .kind = 1, .max_tokens = 3});
    host_idle(&h);
    assert_int_equal(l.stats.running + l.stats.waiting, 0);
    assert_int_equal(l.stats.finished, 1);
    assert_int_equal(l.stats.tokens_told, 3);
    assert_int_equal(l.stats.tokens_computed, 22);
    host_expect(&h, &a);
    host_close(&h);
}

static void who_hears_of_an_end_finds_its_place_free(void **state)
{
    (void)state;
    static host h;
    static asked runs, waits, next;
    listener l;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){.parallel = 1, .max_queue = 1});
    host_submit(&h, &runs, (want){.n = 20, .kind = 1, .max_tokens = 5});
    assert_true(sheaf__engine_step(h.engine));
    host_submit(&h, &waits, (want){.n = 20, .kind = 2, .max_tokens = 5});
    host_ask(&h, &next, (want){.n = 20, .kind = 3, .max_tokens = 5});
    assert_int_equal(sheaf__engine_submit(h.engine, &next.ask, &next.id, NULL), SHEAF_FULL);
    begin_to_listen(&l, &h, &next);
    assert_int_equal(sheaf__engine_cancel(h.engine, waits.id), SHEAF_OK);
    assert_true(sheaf__engine_step(h.engine));
    assert_true(waits.done && !runs.done);
    assert_int_equal(l.submitted, SHEAF_OK);
    assert_int_equal(l.stats.cancelled, 1);
    host_idle(&h);
    host_expect(&h, &runs);
    host_expect(&h, &next);
    host_close(&h);
}

/* ---- being stopped ----------------------------------------------------------------------- */

static void the_callback_ends_a_choice(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
    host_ask(&h, &a, (want){.n = 20, .kind = 1, .max_tokens = 30});
    a.stop_after[0] = 7;
    host_send(&h, &a);
    host_idle(&h);
    host_expect(&h, &a);
    assert_int_equal(a.n_tokens[0], 7);
    assert_int_equal(a.n_computed, 20 + 6); /* the one it stopped at was never run */
    assert_int_equal(host_stats(&h).finished, 1);
    /* what was run is found again: a next turn begins with the prompt and the answer */
    host_ask(&h, &b, (want){.n = 40, .kind = 2, .max_tokens = 2});
    memcpy(b.prompt, a.prompt, 20 * sizeof *b.prompt);
    memcpy(b.prompt + 20, a.tokens[0], 7 * sizeof *b.prompt);
    host_send(&h, &b);
    host_idle(&h);
    host_expect(&h, &b);
    assert_int_equal(b.cached, 26);
    host_close(&h);
}

static void one_choice_stops_and_the_others_go_on(void **state)
{
    (void)state;
    static host h;
    static asked a;
    for (uint32_t stopped = 0; stopped < 3; stopped++) {
        for (uint32_t after = 1; after <= 12; after += 11) {
            host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){0});
            host_ask(&h, &a,
                     (want){.n = 21, .kind = 4, .max_tokens = 20, .n_choices = 3, .seed = 6});
            a.stop_after[stopped] = after;
            host_send(&h, &a);
            host_idle(&h);
            host_expect(&h, &a);
            assert_int_equal(a.n_tokens[stopped], after);
            assert_int_equal(a.n_computed, 21 + 2 * 19 + after - 1);
            host_close(&h);
        }
    }
}

static void who_ends_in_the_queue_is_not_admitted(void **state)
{
    (void)state;
    static host h;
    static asked a, b;
    host_open(&h, RUNS_LLAMA, SMALL, (sheaf__engine_options){.parallel = 1});
    host_submit(&h, &a, (want){.n = 20, .kind = 1, .max_tokens = 5});
    host_submit(&h, &b, (want){.n = 20, .kind = 2, .max_tokens = 5});
    assert_true(sheaf__engine_step(h.engine));
    assert_true(a.admitted && !b.admitted);
    assert_int_equal(sheaf__engine_cancel(h.engine, b.id), SHEAF_OK);
    host_idle(&h);
    assert_true(b.done && !b.broken && !b.admitted);
    host_expect(&h, &a);
    host_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(jobs_are_run_in_order_between_steps),
        cmocka_unit_test(a_job_may_submit_and_free_itself),
        cmocka_unit_test(jobs_that_are_left_are_run_at_the_end),
        cmocka_unit_test(jobs_of_other_threads_wake_an_idle_engine),
        cmocka_unit_test(requests_are_seen_as_they_stand),
        cmocka_unit_test(the_map_names_who_has_a_row),
        cmocka_unit_test(who_hears_of_an_end_finds_it_counted),
        cmocka_unit_test(who_hears_of_an_end_finds_its_place_free),
        cmocka_unit_test(the_callback_ends_a_choice),
        cmocka_unit_test(one_choice_stops_and_the_others_go_on),
        cmocka_unit_test(who_ends_in_the_queue_is_not_admitted),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
