/* tests/cache/test_entries.c - the cache as it is drawn: entries as they leave, and rows. */
#include "door.h"

#define MAX_LISTED 16

typedef struct listed {
    sheaf_entry entries[MAX_LISTED];
    uint32_t n;
} listed;

static void list(const rig *r, listed *l)
{
    memset(l, 0, sizeof *l);
    assert_int_equal(sheaf_prefix_entries(r->cache, l->entries, MAX_LISTED, &l->n), SHEAF_OK);
    assert_int_equal(l->n, rig_stats(r).entries);
}

/* The key of a text's first n tokens, n being whole blocks. */
static sheaf_key key_of(const rig *r, const char *words, uint32_t n)
{
    asked t;
    sheaf_key key = *ask(r, &t, words)->space;
    for (uint32_t i = 0; i < n; i += 4)
        assert_int_equal(sheaf_key_next(&key, t.tokens + i, 4, &key), SHEAF_OK);
    return key;
}

static void assert_key(const sheaf_key *key, const rig *r, const char *words, uint32_t n)
{
    sheaf_key expected = key_of(r, words, n);
    assert_memory_equal(key, &expected, sizeof expected);
}

static void entries_are_in_the_order_of_leaving(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    asked t;
    keep_text(&r, "aaaa");
    ask(&r, &t, "bbbb")->priority = 2;
    keep(&r, &t.prompt);
    ask(&r, &t, "cccc")->priority = -1;
    keep(&r, &t.prompt);
    keep_text(&r, "dddd eeee");
    keep_text(&r, "dddd ffff");
    keep_text(&r, "aaaa"); /* used again */
    listed l;
    list(&r, &l);
    const char *order[] = {"cccc", "dddd eeee", "dddd ffff", "aaaa", "bbbb"};
    uint32_t lengths[] = {4, 8, 8, 4, 4};
    assert_int_equal(l.n, 5);
    for (uint32_t i = 0; i < 5; i++) assert_key(&l.entries[i].key, &r, order[i], lengths[i]);
    for (uint32_t i = 0; i < 5; i++) { /* and so they leave */
        assert_int_equal(matches(&r, order[i]), lengths[i]);
        assert_int_equal(sheaf_prefix_evict(r.cache, 1, NULL), SHEAF_OK);
        assert_true(matches(&r, order[i]) < lengths[i]);
    }
    rig_close(&r);
}

static void an_entry_tells_what_only_it_keeps(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    asked t;
    ask(&r, &t, "abcd efgh ijkl mn")->session = 77;
    keep(&r, &t.prompt);
    listed l;
    r.now += 5 * SECOND;
    list(&r, &l);
    assert_int_equal(l.n, 1);
    assert_int_equal(l.entries[0].age_ns, 5 * SECOND);
    sheaf_prompt *p = ask(&r, &t, "abcd xxxx yy");
    p->session = 78, p->priority = 1;
    sheaf_sequence *seq = run_prompt(&r, p);
    assert_int_equal(sheaf_prefix_publish(r.cache, p, seq, SHEAF_PUBLISH_TAIL, NULL), SHEAF_OK);
    r.now += 2 * SECOND;
    list(&r, &l);
    assert_int_equal(l.n, 2);
    const sheaf_entry *first = &l.entries[0], *second = &l.entries[1];
    assert_int_equal(first->start, 4);
    assert_int_equal(first->n_tokens, 10);
    assert_int_equal(first->session, 77);
    assert_int_equal(first->priority, 0);
    assert_int_equal(first->bytes, 3 * BLOCK);
    assert_int_equal(first->bytes_exclusive, first->bytes);
    assert_int_equal(first->age_ns, 2 * SECOND); /* its first block was used */
    assert_key(&first->key, &r, "abcd efgh ijkl mn", 12);
    assert_memory_equal(&first->space, &r.space, sizeof r.space);
    assert_int_equal(second->start, 4);
    assert_int_equal(second->n_tokens, 6);
    assert_int_equal(second->session, 78);
    assert_int_equal(second->priority, 1);
    assert_int_equal(second->bytes, 2 * BLOCK);
    assert_int_equal(second->bytes_exclusive, 0); /* still running */
    assert_int_equal(second->age_ns, 2 * SECOND);
    sheaf_sequence_destroy(seq);
    list(&r, &l);
    assert_int_equal(l.entries[1].bytes_exclusive, l.entries[1].bytes);
    rig_close(&r);
}

static void a_run_without_a_whole_block_has_the_key_before_it(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    keep_text(&r, "ab");
    keep_text(&r, "mnop");
    keep_text(&r, "mnop xxxx");
    keep_text(&r, "mnop q");
    listed l;
    list(&r, &l);
    assert_int_equal(l.n, 3);
    assert_key(&l.entries[0].key, &r, "ab", 0);
    assert_key(&l.entries[1].key, &r, "mnop xxxx", 8);
    assert_key(&l.entries[2].key, &r, "mnop q", 4);
    assert_int_equal(l.entries[2].n_tokens, 1);
    rig_close(&r);
}

static void pinned_entries_come_last_and_once(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    keep_text(&r, "aaaa");
    keep_text(&r, "bbbb cccc");
    keep_text(&r, "dddd");
    asked t;
    uint64_t ids[4];
    const char *pinned[] = {"dddd", "aaaa", "dddd", "bbbb"};
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(sheaf_prefix_pin(r.cache, ask(&r, &t, pinned[i]), 1, 0, &ids[i], NULL),
                         SHEAF_OK);
    listed l;
    list(&r, &l);
    assert_int_equal(l.n, 3);
    assert_key(&l.entries[0].key, &r, "bbbb cccc", 8);
    assert_int_equal(l.entries[0].pinned, 0); /* all that is left of it may go */
    assert_int_equal(l.entries[0].start, 4);
    assert_key(&l.entries[1].key, &r, "dddd", 4);
    assert_key(&l.entries[2].key, &r, "aaaa", 4);
    assert_true(l.entries[1].pinned && l.entries[2].pinned);
    rig_close(&r);
}

static void what_has_no_room_is_counted(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 1, 32, NULL);
    sheaf_entry entries[2];
    uint32_t n = 9;
    assert_int_equal(sheaf_prefix_entries(r.cache, NULL, 0, &n), SHEAF_OK);
    assert_int_equal(n, 0);
    keep_text(&r, "aaaa");
    keep_text(&r, "bbbb");
    keep_text(&r, "cccc");
    memset(&entries[1], 0x5a, sizeof entries[1]);
    sheaf_entry untouched = entries[1];
    assert_int_equal(sheaf_prefix_entries(r.cache, entries, 1, &n), SHEAF_OK);
    assert_int_equal(n, 3);
    assert_key(&entries[0].key, &r, "aaaa", 4);
    assert_memory_equal(&entries[1], &untouched, sizeof untouched);
    assert_int_equal(sheaf_prefix_entries(r.cache, NULL, 0, &n), SHEAF_OK);
    assert_int_equal(n, 3);
    assert_int_equal(sheaf_prefix_entries(r.cache, NULL, 1, &n), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_entries(NULL, entries, 1, &n), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_entries(r.cache, entries, 1, NULL), SHEAF_E_INVALID);
    rig_close(&r);
}

/* Rows of a state, by a map taken in two parts. */
static uint32_t rows_of(const rig *r, uint32_t group, uint32_t state)
{
    sheaf_row rows[64];
    uint32_t n = 0;
    assert_int_equal(sheaf_prefix_map(r->cache, group, 0, 5, rows), SHEAF_OK);
    assert_int_equal(sheaf_prefix_map(r->cache, group, 5, 59, rows + 5), SHEAF_OK);
    for (uint32_t i = 0; i < 64; i++) n += rows[i].state == state;
    return n;
}

static void the_map_says_which_rows_are_pinned(void **state)
{
    (void)state;
    rig r;
    rig_open(&r, 2, 16, NULL);
    keep_text(&r, "abcd efgh ijkl");
    keep_text(&r, "abcd xxxx");
    asked t;
    sheaf_prompt *p = ask(&r, &t, "mnop");
    sheaf_sequence *seq = run_prompt(&r, p);
    for (uint32_t g = 0; g < 2; g++) {
        assert_int_equal(rows_of(&r, g, SHEAF_ROW_CACHED), 4);
        assert_int_equal(rows_of(&r, g, SHEAF_ROW_RUNNING), 1);
        assert_int_equal(rows_of(&r, g, SHEAF_ROW_PINNED), 0);
    }
    assert_int_equal(sheaf_prefix_publish(r.cache, p, seq, 0, NULL), SHEAF_OK);
    assert_int_equal(rows_of(&r, 1, SHEAF_ROW_SHARED), 1);
    uint64_t id;
    assert_int_equal(sheaf_prefix_pin(r.cache, ask(&r, &t, "abcd efgh"), 1, 0, &id, NULL),
                     SHEAF_OK);
    assert_int_equal(sheaf_prefix_pin(r.cache, ask(&r, &t, "mnop"), 1, 0, &id, NULL), SHEAF_OK);
    for (uint32_t g = 0; g < 2; g++) {
        assert_int_equal(rows_of(&r, g, SHEAF_ROW_CACHED), 2);
        assert_int_equal(rows_of(&r, g, SHEAF_ROW_SHARED), 0);
        assert_int_equal(rows_of(&r, g, SHEAF_ROW_PINNED), 3);
    }
    sheaf_row row;
    assert_int_equal(sheaf_prefix_map(r.cache, 2, 0, 1, &row), SHEAF_E_INVALID);
    assert_int_equal(sheaf_prefix_map(NULL, 0, 0, 1, &row), SHEAF_E_INVALID);
    sheaf_sequence_destroy(seq);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_in_the_order_of_leaving),
        cmocka_unit_test(an_entry_tells_what_only_it_keeps),
        cmocka_unit_test(a_run_without_a_whole_block_has_the_key_before_it),
        cmocka_unit_test(pinned_entries_come_last_and_once),
        cmocka_unit_test(what_has_no_room_is_counted),
        cmocka_unit_test(the_map_says_which_rows_are_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
