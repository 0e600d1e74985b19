/* test_engine_threads.c - an engine on a thread of its own, asked from others. */
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include "engine/engines.h"
#include "testing.h"

#define N_CLIENTS 4
#define N_EACH    12

typedef struct client {
    host *h;
    uint32_t number;
    uint32_t n_full;
    bool failed;
    asked asked[N_EACH];
} client;

static void *run_engine(void *arg)
{
    sheaf__engine_run(arg);
    return NULL;
}

static pthread_t start(host *h)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_engine, h->engine), 0);
    return thread;
}

/* Asks for all of its requests, and cancels every fourth while it may be at any phase. */
static void *run_client(void *arg)
{
    client *c = arg;
    for (uint32_t i = 0; i < N_EACH;) {
        asked *a = &c->asked[i];
        sheaf_status st = sheaf__engine_submit(c->h->engine, &a->ask, &a->id, NULL);
        if (st == SHEAF_FULL) {
            c->n_full++;
            const struct timespec pause = {.tv_nsec = 1000000};
            nanosleep(&pause, NULL);
            continue;
        }
        c->failed |= st != SHEAF_OK;
        sheaf__engine_stats stats;
        sheaf__engine_stats_read(c->h->engine, &stats);
        c->failed |= stats.running > 3;
        if (i++ % 4 != 3) continue;
        st = sheaf__engine_cancel(c->h->engine, a->id);
        c->failed |= st != SHEAF_OK && st != SHEAF_MISS;
    }
    return NULL;
}

static void clients_on_other_threads_are_answered_as_alone(void **state)
{
    (void)state;
    static host h;
    static client clients[N_CLIENTS];
    pthread_t threads[N_CLIENTS];
    sheaf__model_options m = {.block_tokens = 8, .slab_blocks = 2};
    m.kv_budget_bytes = host_budget(RUNS_LLAMA, m, 200);
    host_open(&h, RUNS_LLAMA, m, (sheaf__engine_options){.parallel = 3, .max_queue = 5});
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        clients[i] = (client){.h = &h, .number = i};
        for (uint32_t k = 0; k < N_EACH; k++)
            host_ask(&h, &clients[i].asked[k],
                     (want){.n = 20 + 9 * k,
                            .kind = i + k,
                            .shared = k % 2 == 0 ? 64 : 0,
                            .max_tokens = 10,
                            .n_choices = 1 + k % 2,
                            .seed = k});
    }
    pthread_t engine = start(&h);
    for (uint32_t i = 0; i < N_CLIENTS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_client, &clients[i]), 0);
    for (uint32_t i = 0; i < N_CLIENTS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    sheaf__engine_drain(h.engine);
    assert_int_equal(pthread_join(engine, NULL), 0);
    uint32_t n_cancelled = 0;
    for (uint32_t i = 0; i < N_CLIENTS; i++) {
        assert_false(clients[i].failed);
        for (uint32_t k = 0; k < N_EACH; k++) {
            const asked *a = &clients[i].asked[k];
            assert_true(a->done && !a->broken);
            bool cut = false;
            for (uint32_t c = 0; c < 1 + k % 2; c++)
                cut |= a->finish[c] == SHEAF__FINISH_CANCELLED;
            n_cancelled += cut;
            if (!cut) host_expect(&h, a);
            assert_true(!cut || k % 4 == 3);
        }
    }
    sheaf__engine_stats stats = host_stats(&h);
    assert_int_equal(stats.cancelled, n_cancelled);
    assert_int_equal(stats.finished, N_CLIENTS * N_EACH - n_cancelled);
    assert_int_equal(host_held(&h), 0);
    host_close(&h);
}

static void draining_ends_when_the_last_is_answered(void **state)
{
    (void)state;
    static host h;
    static asked a[4], late;
    host_open(&h, RUNS_LLAMA, (sheaf__model_options){0},
              (sheaf__engine_options){.parallel = 2});
    for (uint32_t i = 0; i < 4; i++)
        host_submit(&h, &a[i], (want){.n = 50, .kind = i, .max_tokens = 30});
    pthread_t engine = start(&h);
    sheaf__engine_drain(h.engine);
    host_ask(&h, &late, (want){.n = 5, .max_tokens = 1});
    assert_int_equal(sheaf__engine_submit(h.engine, &late.ask, &late.id, NULL),
                     SHEAF_E_CANCELLED);
    assert_int_equal(pthread_join(engine, NULL), 0);
    for (uint32_t i = 0; i < 4; i++) host_expect(&h, &a[i]);
    host_close(&h);
}

/* A job between two steps that holds the engine up: it begins, and waits to be let on. */
typedef struct gate {
    sheaf__engine_job job;
    sem_t begun, open;
} gate;

static void hold_up(sheaf__engine *engine, sheaf__engine_job *job)
{
    gate *g = SHEAF__CONTAINER(job, gate, job);
    (void)engine;
    sem_post(&g->begun);
    while (sem_wait(&g->open) != 0) continue;
}

/* A job that submits requests, and the gate to come after their first step. */
typedef struct asking {
    sheaf__engine_job job;
    gate *after;
    asked *asked;
    uint32_t n;
} asking;

static void ask_and_hold(sheaf__engine *engine, sheaf__engine_job *job)
{
    asking *a = SHEAF__CONTAINER(job, asking, job);
    for (uint32_t i = 0; i < a->n; i++) host_send(a->asked[i].host, &a->asked[i]);
    sheaf__engine_post(engine, &a->after->job);
}

/* They have run one step when the engine is stopped, however slow this thread is. */
static void stopping_cancels_what_is_there_and_wakes_who_sleeps(void **state)
{
    (void)state;
    static host h;
    static asked a[4];
    gate g = {.job.fn = hold_up};
    asking first = {.job.fn = ask_and_hold, .after = &g, .asked = a, .n = 4};
    assert_int_equal(sem_init(&g.begun, 0, 0) | sem_init(&g.open, 0, 0), 0);
    host_open(&h, RUNS_LLAMA, (sheaf__model_options){0}, (sheaf__engine_options){0});
    for (uint32_t i = 0; i < 4; i++)
        host_ask(&h, &a[i], (want){.n = 400, .kind = i, .max_tokens = 60});
    pthread_t engine = start(&h); /* sleeps: there is nothing to do */
    sheaf__engine_post(h.engine, &first.job);
    while (sem_wait(&g.begun) != 0) continue;
    assert_int_equal(host_stats(&h).steps, 1);
    sheaf__engine_stop(h.engine);
    sem_post(&g.open);
    assert_int_equal(pthread_join(engine, NULL), 0);
    for (uint32_t i = 0; i < 4; i++) assert_true(a[i].done && !a[i].broken);
    assert_int_equal(host_stats(&h).cancelled, 4);
    host_close(&h);
    sem_destroy(&g.begun), sem_destroy(&g.open);

    host_open(&h, RUNS_LLAMA, (sheaf__model_options){0}, (sheaf__engine_options){0});
    engine = start(&h);
    sheaf__engine_stop(h.engine);
    assert_int_equal(pthread_join(engine, NULL), 0);
    host_close(&h);
}

static void what_lived_too_long_goes_while_the_engine_sleeps(void **state)
{
    (void)state;
    static host h;
    static asked a;
    sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
    o.ttl_ns = 300000000;
    host_open(&h, RUNS_LLAMA, (sheaf__model_options){.block_tokens = 8, .slab_blocks = 1},
              (sheaf__engine_options){.prefix = &o});
    host_submit(&h, &a, (want){.n = 200, .kind = 1, .max_tokens = 2});
    while (sheaf__engine_step(h.engine)) continue;
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    assert_int_equal(sheaf_pool_stats_read(h.model->pool, &stats), SHEAF_OK);
    uint64_t held = stats.blocks_held, bytes = stats.bytes_reserved;
    assert_true(held >= 25);
    pthread_t engine = start(&h); /* sleeps: nobody asks for anything any more */
    for (uint32_t i = 0; stats.blocks_held != 0; i++) {
        assert_true(i < 2000);
        const struct timespec pause = {.tv_nsec = 5000000};
        nanosleep(&pause, NULL);
        assert_int_equal(sheaf_pool_stats_read(h.model->pool, &stats), SHEAF_OK);
    }
    assert_true(stats.bytes_reserved < bytes / 4); /* the system has its memory back */
    sheaf__engine_drain(h.engine);
    assert_int_equal(pthread_join(engine, NULL), 0);
    host_expect(&h, &a);
    host_close(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_on_other_threads_are_answered_as_alone),
        cmocka_unit_test(draining_ends_when_the_last_is_answered),
        cmocka_unit_test(what_lived_too_long_goes_while_the_engine_sleeps),
        cmocka_unit_test(stopping_cancels_what_is_there_and_wakes_who_sleeps),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
