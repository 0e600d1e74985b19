/* tests/cache/oom_prefix_door.c - every host allocation and every slab commit of claims, pins
 * and the door fails once, alone and with all after it; what failed has changed nothing, and
 * nothing leaks. */
#include "door.h"

/* What an observer sees of the cache; its memory, and counters of what was tried, may move. */
typedef struct observed {
    sheaf_prefix_stats cache;
    uint64_t blocks_held, blocks_shared;
    uint64_t owners[SHEAF_OWNER_KINDS];
} observed;

static observed observe(const rig *r)
{
    observed o;
    memset(&o, 0, sizeof o);
    o.cache = rig_stats(r);
    o.cache.host_bytes = 0;
    memset(o.cache.refusals, 0, sizeof o.cache.refusals);
    o.cache.last_refusal = 0;
    o.cache.last_refusal_needed = o.cache.last_refusal_possible = 0;
    o.cache.last_refusal_tokens = 0;
    sheaf_pool_stats pool = fixture_stats(&r->f);
    o.blocks_held = pool.blocks_held, o.blocks_shared = pool.blocks_shared;
    memcpy(o.owners, pool.owners, sizeof o.owners);
    return o;
}

/* Repeats a call until it gives `wanted`; a failure must have changed nothing. The fault is
 * lifted after the first failure: with all after it failing there would be no end. */
#define UNTIL(r, wanted, call)                                                                 \
    do {                                                                                       \
        for (uint32_t tries = 0;; tries++) {                                                   \
            observed before_ = observe(r);                                                     \
            sheaf_status st_ = (call);                                                         \
            assert_cache_whole(r);                                                             \
            if (st_ == (wanted)) break;                                                        \
            assert_true(st_ == SHEAF_E_NO_MEMORY || st_ == SHEAF_FULL);                        \
            assert_true(tries < 3);                                                            \
            observed now_ = observe(r);                                                        \
            assert_memory_equal(&before_, &now_, sizeof now_);                                 \
            (r)->f.host.fail_at = (r)->f.slabs.fail_at = 0;                                    \
        }                                                                                      \
    } while (0)

static void claims(rig *r)
{
    asked t;
    sheaf_prompt *p = ask(r, &t, "abcd efgh ijkl");
    uint64_t claim, waits;
    UNTIL(r, SHEAF_OK, sheaf_prefix_claim(r->cache, p, 0, &claim));
    UNTIL(r, SHEAF_PENDING, sheaf_prefix_claim(r->cache, p, 0, &waits));
    assert_int_equal(sheaf_prefix_drop(r->cache, claim), SHEAF_OK);
    assert_int_equal(sheaf_prefix_poll(r->cache, waits), SHEAF_OK);
}

static void pins(rig *r)
{
    asked t;
    uint64_t whole, part;
    sheaf_prompt *p = ask(r, &t, "abcd efgh ijkl mn");
    UNTIL(r, SHEAF_OK, sheaf_prefix_pin(r->cache, p, 1, 0, &whole, NULL));
    p = ask(r, &t, "abcd efgh");
    UNTIL(r, SHEAF_OK, sheaf_prefix_pin(r->cache, p, 2, 0, &part, NULL));
    assert_int_equal(sheaf_prefix_unpin(r->cache, whole), SHEAF_OK);
    assert_int_equal(sheaf_prefix_unpin(r->cache, part), SHEAF_OK);
}

static void door(rig *r)
{
    asked a, b, c;
    sheaf_step steps[] = {SHEAF_STEP_INIT, SHEAF_STEP_INIT, SHEAF_STEP_INIT};
    const sheaf_prompt *prompts[] = {ask(r, &a, "abcd efgh ijxx yyyy"), ask(r, &b, "qrst u"),
                                     ask(r, &c, "abcd efgh ijkl mnop")};
    for (uint32_t i = 0; i < 2; i++) steps[i].prompt = prompts[i], steps[i].n = 5;
    UNTIL(r, SHEAF_OK, sheaf_prefix_can_reserve(r->cache, steps, 2, NULL));
    UNTIL(r, SHEAF_OK, sheaf_prefix_reserve(r->cache, steps, 2, NULL));
    for (uint32_t i = 0; i < 2; i++)
        compute(r, steps[i].sequence, prompts[i], steps[i].reserved);
    steps[0].n = steps[1].n = 80; /* both outgrow their room in host memory, and slabs */
    steps[2].prompt = prompts[2], steps[2].n = 100;
    for (uint32_t i = 0; i < 2; i++) steps[i].prompt = NULL;
    UNTIL(r, SHEAF_OK, sheaf_prefix_reserve(r->cache, steps, 3, NULL));
    assert_int_equal(steps[1].reserved, 80);
    assert_int_equal(steps[2].match.length, 14);
    compute(r, steps[2].sequence, prompts[2], steps[2].reserved);
    assert_holds_its_tokens(&r->f, steps[2].sequence);
    for (uint32_t i = 0; i < 3; i++) sheaf_sequence_destroy(steps[i].sequence);
}

/* Runs a scenario with the nth allocation of a hook failing; true when it did. */
static bool run_with(void (*scenario)(rig *), uint32_t which, uint32_t nth, int all_after)
{
    rig r;
    rig_open(&r, 2, 64, NULL);
    keep_text(&r, "abcd efgh ijkl mn");
    host *h = which == 0 ? &r.f.host : &r.f.slabs;
    h->n_allocs = 0, h->fail_at = nth, h->fail_on = all_after;
    scenario(&r);
    bool failed = h->n_allocs >= nth && h->fail_at == 0;
    h->fail_at = 0;
    rig_close(&r);
    return failed;
}

static void fail_each(void (*scenario)(rig *), uint32_t at_least)
{
    for (int all_after = 0; all_after < 2; all_after++) {
        uint32_t n_failed = 0;
        for (uint32_t which = 0; which < 2; which++) {
            uint32_t nth = 1;
            for (; run_with(scenario, which, nth, all_after); nth++) assert_true(nth < 500);
            n_failed += nth - 1;
        }
        assert_true(n_failed >= at_least);
    }
}

static void every_allocation_of_claims_may_fail(void **state)
{
    (void)state;
    fail_each(claims, 3);
}

static void every_allocation_of_pins_may_fail(void **state)
{
    (void)state;
    fail_each(pins, 3);
}

static void every_allocation_of_the_door_may_fail(void **state)
{
    (void)state;
    fail_each(door, 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_of_claims_may_fail),
        cmocka_unit_test(every_allocation_of_pins_may_fail),
        cmocka_unit_test(every_allocation_of_the_door_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
