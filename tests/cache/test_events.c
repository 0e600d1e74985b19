/* tests/cache/test_events.c - who listens knows what can be found.
 *
 * A mirror is kept from events alone: keys, each with its namespace. After every operation it
 * must agree with sheaf_prefix_find for every key that there could be.
 */
#include "door.h"

#define MAX_KEYS 4096

typedef struct mirrored {
    sheaf_key key, space;
} mirrored;

typedef struct mirror {
    mirrored held[MAX_KEYS];
    sheaf_key seen[MAX_KEYS]; /* ever stored */
    uint32_t n_held, n_seen;
    uint64_t last_number;
    uint32_t n_kinds[3];
    uint32_t n_causes[SHEAF_LEFT_KINDS];
    uint32_t n_wrong; /* events that make no sense */
    sheaf_key spaces[2];
} mirror;

static bool same(const sheaf_key *a, const sheaf_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static mirrored *held(mirror *m, const sheaf_key *key)
{
    for (uint32_t i = 0; i < m->n_held; i++)
        if (same(&m->held[i].key, key)) return &m->held[i];
    return NULL;
}

static void see(mirror *m, const sheaf_key *key)
{
    for (uint32_t i = 0; i < m->n_seen; i++)
        if (same(&m->seen[i], key)) return;
    if (m->n_seen < MAX_KEYS) m->seen[m->n_seen++] = *key;
}

static void on_stored(mirror *m, const sheaf_event *event)
{
    sheaf_key key = event->parent, space = event->parent;
    const mirrored *parent = held(m, &event->parent);
    bool root = same(&key, &m->spaces[0]) || same(&key, &m->spaces[1]);
    m->n_wrong += !root && parent == NULL;
    if (parent != NULL) space = parent->space;
    for (uint32_t i = 0; i < event->n_keys; i++) {
        sheaf_status st = sheaf_key_next(&key, event->tokens + 4 * i, 4, &key);
        m->n_wrong += st != SHEAF_OK || !same(&key, &event->keys[i]);
        m->n_wrong += held(m, &key) != NULL || m->n_held == MAX_KEYS;
        if (m->n_held < MAX_KEYS) m->held[m->n_held++] = (mirrored){key, space};
        see(m, &key);
    }
}

static void on_event(void *ctx, const sheaf_event *event)
{
    mirror *m = ctx;
    m->n_wrong += event->struct_size != sizeof *event || event->kind > SHEAF_EVENT_CLEARED;
    m->n_wrong += event->number != ++m->last_number;
    m->n_kinds[event->kind]++;
    if (event->kind == SHEAF_EVENT_STORED) {
        m->n_wrong += event->n_keys == 0;
        on_stored(m, event);
    } else if (event->kind == SHEAF_EVENT_REMOVED) {
        m->n_wrong += event->n_keys == 0 || event->cause >= SHEAF_LEFT_KINDS;
        m->n_causes[event->cause]++;
        for (uint32_t i = 0; i < event->n_keys; i++) {
            mirrored *gone = held(m, &event->keys[i]);
            m->n_wrong += gone == NULL;
            if (gone != NULL) *gone = m->held[--m->n_held];
        }
    } else {
        m->n_wrong += event->n_keys > 1;
        for (uint32_t i = m->n_held; i-- > 0;)
            if (event->n_keys == 0 || same(&m->held[i].space, event->keys))
                m->held[i] = m->held[--m->n_held];
    }
}

static void open_mirrored(rig *r, mirror *m, uint32_t n_groups, sheaf_prefix_options o)
{
    memset(m, 0, sizeof *m);
    o.on_event = on_event, o.on_event_ctx = m;
    rig_open(r, n_groups, 16, &o);
    m->spaces[0] = r->space, m->spaces[1] = r->other;
}

static void assert_mirrors(const rig *r, mirror *m)
{
    sheaf_block blocks[SHEAF_MAX_GROUPS];
    assert_int_equal(m->n_wrong, 0);
    assert_int_equal(rig_stats(r).events, m->last_number);
    for (uint32_t i = 0; i < m->n_seen; i++) {
        sheaf_status st = sheaf_prefix_find(r->cache, &m->seen[i], blocks);
        assert_int_equal(st, held(m, &m->seen[i]) != NULL ? SHEAF_OK : SHEAF_MISS);
    }
}

/* ---- cases ------------------------------------------------------------------------------- */

static mirror m;

static void whole_blocks_are_told_with_what_comes_before_them(void **state)
{
    (void)state;
    rig r;
    open_mirrored(&r, &m, 1, (sheaf_prefix_options)SHEAF_PREFIX_OPTIONS_INIT);
    keep_text(&r, "abc"); /* no whole block: nothing to tell */
    assert_int_equal(m.last_number, 0);
    keep_text(&r, "abcd efgh ij");
    assert_int_equal(m.n_kinds[SHEAF_EVENT_STORED], 1);
    assert_int_equal(m.n_held, 2);
    keep_text(&r, "abcd efgh ijkl mnop"); /* and goes on */
    keep_text(&r, "abcd xxxx");           /* and branches */
    assert_int_equal(m.n_kinds[SHEAF_EVENT_STORED], 3);
    assert_int_equal(m.n_held, 5);
    keep_text(&r, "abcd efgh"); /* nothing new */
    assert_int_equal(m.last_number, 3);
    assert_mirrors(&r, &m);
    rig_close(&r);
    assert_int_equal(m.n_wrong, 0);
}

static void the_cause_of_leaving_is_told(void **state)
{
    (void)state;
    rig r;
    sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
    o.ttl_ns = 10 * SECOND;
    o.max_entries = 2;
    o.capacity_bytes = 6 * BLOCK;
    open_mirrored(&r, &m, 1, o);
    keep_text(&r, "aaaa bbbb");
    assert_int_equal(sheaf_prefix_evict(r.cache, UINT64_MAX, NULL), SHEAF_OK);
    assert_int_equal(m.n_causes[SHEAF_LEFT_PRESSURE], 1);
    keep_text(&r, "aaaa bbbb");
    keep_text(&r, "cccc");
    keep_text(&r, "dddd");
    assert_int_equal(m.n_causes[SHEAF_LEFT_ENTRIES], 1);
    keep_text(&r, "dddd eeee ffff gggg hhhh iiii");
    assert_true(m.n_causes[SHEAF_LEFT_CAPACITY] > 0);
    assert_mirrors(&r, &m);
    r.now += 10 * SECOND;
    assert_int_equal(sheaf_prefix_expire(r.cache, NULL), SHEAF_OK);
    assert_true(m.n_causes[SHEAF_LEFT_TTL] > 0);
    assert_mirrors(&r, &m);
    assert_int_equal(m.n_held, 0);
    rig_close(&r);
}

static void events_are_counted_when_nobody_listens(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 16, NULL);
    keep_text(&r, "abcd");
    keep_text(&r, "efgh");
    assert_int_equal(rig_stats(&r).events, 2);
    assert_int_equal(sheaf_prefix_evict(r.cache, UINT64_MAX, NULL), SHEAF_OK);
    assert_int_equal(rig_stats(&r).events, 4);
    rig_close(&r);
}

static void random_words(rig *r, asked *t, uint64_t *random)
{
    char words[33];
    uint32_t n = 1 + random_below(random, 32);
    for (uint32_t i = 0; i < n; i++) words[i] = (char)('a' + random_below(random, 12) / 11);
    words[n] = 0;
    sheaf_prompt *p = ask(r, t, words);
    if (random_below(random, 3) == 0) p->space = &r->other;
    p->session = random_below(random, 3);
    p->priority = (int32_t)random_below(random, 3) - 1;
}

/* What random operations leave behind for later ones: null and 0 where there is none. */
typedef struct left {
    sheaf_sequence *running[3];
    uint64_t pins[3];
} left;

/* One random operation. */
static void operate(rig *r, uint64_t *random, left *l)
{
    asked t;
    random_words(r, &t, random);
    sheaf_sequence **running = &l->running[random_below(random, 3)];
    uint64_t *pin = &l->pins[random_below(random, 3)];
    uint32_t what = random_below(random, 40);
    sheaf_status st = SHEAF_OK;
    if (what < 26) {
        sheaf_step step = SHEAF_STEP_INIT;
        step.prompt = &t.prompt, step.n = 1 + random_below(random, 40);
        st = sheaf_prefix_reserve(r->cache, &step, 1, NULL);
        sheaf_sequence_destroy(*running);
        *running = step.sequence;
        if (st != SHEAF_OK) return;
        compute(r, step.sequence, &t.prompt, step.reserved);
        uint32_t flags = random_below(random, 2) ? SHEAF_PUBLISH_TAIL : 0;
        st = sheaf_prefix_publish(r->cache, &t.prompt, step.sequence, flags, NULL);
    } else if (what < 30) {
        st = sheaf_prefix_evict(r->cache, random_below(random, 1000), NULL);
    } else if (what < 32) {
        st = sheaf_prefix_expire(r->cache, NULL);
    } else if (what < 33) {
        st = sheaf_prefix_reset(r->cache, random_below(random, 3) ? &r->space : NULL, NULL);
    } else if (what < 35) {
        st = sheaf_prefix_release_session(r->cache, 1 + random_below(random, 2), NULL);
    } else if (what < 37) {
        st = sheaf_pool_compact(r->f.pool, 4, NULL);
    } else if (*pin != 0) {
        st = sheaf_prefix_unpin(r->cache, *pin);
        *pin = 0;
    } else {
        uint32_t flags = random_below(random, 2) ? SHEAF_PIN_REVOCABLE : 0;
        st = sheaf_prefix_pin(r->cache, &t.prompt, 1, flags, pin, NULL);
    }
    assert_true(st >= 0);
}

static void a_mirror_made_of_events_agrees_with_what_is_found(void **state)
{
    (void)state;
    uint64_t random = seed_from_environment(0xe7e27);
    for (uint32_t groups = 1; groups <= 2; groups++) {
        rig r;
        sheaf_prefix_options o = SHEAF_PREFIX_OPTIONS_INIT;
        o.capacity_bytes = 10 * BLOCK * groups;
        o.max_entries = 6;
        o.ttl_ns = 40 * SECOND;
        open_mirrored(&r, &m, groups, o);
        left l = {0};
        for (uint32_t i = 0; i < 1500; i++) {
            r.now += SECOND;
            operate(&r, &random, &l);
            assert_mirrors(&r, &m);
        }
        for (uint32_t i = 0; i < 3; i++) sheaf_sequence_destroy(l.running[i]);
        assert_cache_whole(&r);
        assert_true(m.n_seen > 100 && m.n_kinds[SHEAF_EVENT_REMOVED] > 100);
        rig_close(&r);
        assert_int_equal(m.n_wrong, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_blocks_are_told_with_what_comes_before_them),
        cmocka_unit_test(the_cause_of_leaving_is_told),
        cmocka_unit_test(events_are_counted_when_nobody_listens),
        cmocka_unit_test(a_mirror_made_of_events_agrees_with_what_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
