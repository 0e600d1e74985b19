/* tests/cache/test_siblings.c - the children of a node in the order of their tokens, against a linear
 * search. */
#include "fixture.h"

#include "base/list.h"
#include "cache/siblings.h"

#define N_TOKENS 8

typedef struct member {
    sheaf__sibling sibling;
    int32_t tokens[N_TOKENS];
    bool in;
} member;

static void set(member *m, const int32_t *tokens, uint32_t n)
{
    *m = (member){.in = true};
    memcpy(m->tokens, tokens, n * sizeof *tokens);
    m->sibling.tokens = m->tokens;
    m->sibling.n = n;
}

static uint32_t common_of(const member *m, const int32_t *tokens, uint32_t n)
{
    uint32_t i = 0;
    while (i < n && i < m->sibling.n && m->tokens[i] == tokens[i]) i++;
    return i;
}

/* The most tokens in common with any member that is in. */
static uint32_t most_common(const member *members, uint32_t n_members, const int32_t *tokens,
                            uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n_members; i++) {
        uint32_t common = members[i].in ? common_of(&members[i], tokens, n) : 0;
        if (common > most) most = common;
    }
    return most;
}

static void assert_nearest(const sheaf__siblings *s, const member *members, uint32_t n_members,
                           const int32_t *tokens, uint32_t n)
{
    uint32_t common = UINT32_MAX;
    const sheaf__sibling *near = sheaf__siblings_nearest(s, tokens, n, &common);
    assert_int_equal(common, most_common(members, n_members, tokens, n));
    assert_int_equal(near != NULL, common != 0);
    if (near == NULL) return;
    const member *m = SHEAF__CONTAINER(near, const member, sibling);
    assert_true(m->in);
    assert_int_equal(common_of(m, tokens, n), common);
}

/* In order, as many as counted, and named by twigs as they should be. */
static void assert_ordered(const sheaf__siblings *s, uint32_t count)
{
    const sheaf__sibling *before = NULL;
    uint32_t n = 0;
    for (const sheaf__sibling *at = sheaf__siblings_first(s); at != NULL;
         before = at, at = sheaf__siblings_next(at), n++) {
        if (before == NULL) continue;
        uint32_t both = before->n < at->n ? before->n : at->n;
        uint32_t common = sheaf__tokens_common(before->tokens, at->tokens, both);
        assert_true(common < both && before->tokens[common] < at->tokens[common]);
    }
    assert_int_equal(n, count);
    assert_int_equal(s->count, count);
    assert_true(sheaf__siblings_check(s));
}

/* ---- twigs ------------------------------------------------------------------------------- */

typedef struct grove {
    sheaf__memory memory;
    uint64_t host_bytes;
    sheaf__twigs twigs;
} grove;

static void grove_open(grove *g)
{
    *g = (grove){0};
    sheaf__memory_init(&g->memory, NULL);
    g->twigs.memory = &g->memory;
    g->twigs.host_bytes = &g->host_bytes;
}

/* Every twig that was taken has come back. */
static void grove_close(grove *g)
{
    assert_int_equal(g->twigs.n_used, 0);
    sheaf__twigs_close(&g->twigs);
    assert_int_equal(g->host_bytes, 0);
    assert_int_equal(g->memory.live_bytes, 0);
}

static void insert(sheaf__siblings *s, grove *g, member *m)
{
    assert_int_equal(sheaf__twigs_reserve(&g->twigs, sheaf__siblings_need(s)), SHEAF_OK);
    sheaf__siblings_insert(s, &g->twigs, &m->sibling);
    assert_int_equal(g->memory.live_bytes, g->host_bytes);
}

static void take_out(sheaf__siblings *s, grove *g, member *m)
{
    sheaf__siblings_remove(s, &g->twigs, &m->sibling);
    m->in = false;
}

/* Whether one is a prefix of the other, which members never are. */
static bool clashes(const member *members, uint32_t n_members, const int32_t *tokens,
                    uint32_t n)
{
    for (uint32_t i = 0; i < n_members; i++) {
        uint32_t both = members[i].sibling.n < n ? members[i].sibling.n : n;
        if (members[i].in && common_of(&members[i], tokens, n) == both) return true;
    }
    return false;
}

/* Few tokens: most first ones are alike. Many: most are not. */
static void compare_with_linear_search(uint32_t n_tokens, uint32_t n_kinds, uint32_t n_steps)
{
    enum { MEMBERS = 400 };
    static member members[MEMBERS];
    memset(members, 0, sizeof members);
    uint64_t seed = seed_from_environment(1);
    grove g;
    grove_open(&g);
    sheaf__siblings s = {0};
    uint32_t count = 0;
    for (uint32_t step = 0; step < n_steps; step++) {
        int32_t tokens[N_TOKENS];
        uint32_t n = 1 + random_below(&seed, n_tokens);
        for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)random_below(&seed, n_kinds);
        if (random_below(&seed, 50) == 0) tokens[0] = INT32_MAX;
        member *m = &members[random_below(&seed, step / 2000 % 2 ? MEMBERS : MEMBERS / 8)];
        if (m->in) {
            take_out(&s, &g, m);
            count--;
        } else if (!clashes(members, MEMBERS, tokens, n)) {
            set(m, tokens, n);
            insert(&s, &g, m);
            count++;
        }
        assert_nearest(&s, members, MEMBERS, tokens, n);
        assert_nearest(&s, members, MEMBERS, tokens, random_below(&seed, n + 1));
        if (step % 16 == 0) assert_ordered(&s, count);
    }
    for (uint32_t i = 0; i < MEMBERS; i++)
        if (members[i].in) take_out(&s, &g, &members[i]);
    assert_ordered(&s, 0);
    grove_close(&g);
}

static void random_members_are_found_like_by_a_linear_search(void **state)
{
    (void)state;
    compare_with_linear_search(N_TOKENS, 3, 12000);
    compare_with_linear_search(N_TOKENS, 6, 12000);
    compare_with_linear_search(2, 1000, 12000);
}

static void a_member_is_replaced_by_one_that_begins_alike(void **state)
{
    (void)state;
    enum { MANY = 100 };
    static member members[MANY], by[MANY];
    for (uint32_t many = 1; many <= MANY; many += many == 1 ? 1 : 7) {
        grove g;
        grove_open(&g);
        sheaf__siblings s = {0};
        for (uint32_t i = 0; i < many; i++) {
            const int32_t tokens[2] = {(int32_t)i / 10, (int32_t)i % 10};
            set(&members[i], tokens, 2);
            insert(&s, &g, &members[i]);
        }
        for (uint32_t i = 0; i < many; i++) {
            const int32_t longer[4] = {(int32_t)i / 10, (int32_t)i % 10, 7, 7};
            set(&by[i], longer, 4);
            sheaf__siblings_replace(&s, &members[i].sibling, &by[i].sibling);
            assert_ordered(&s, many);
            assert_null(members[i].sibling.in);
            uint32_t common;
            assert_ptr_equal(sheaf__siblings_nearest(&s, longer, 4, &common), &by[i].sibling);
            assert_int_equal(common, 4);
        }
        for (uint32_t i = 0; i < many; i++) take_out(&s, &g, &by[i]);
        grove_close(&g);
    }
}

/* What an insertion may take is one twig for each height, and a new root. */
static uint32_t height_of(const sheaf__siblings *s)
{
    return s->count < 2 ? 0 : sheaf__siblings_need(s) - 2;
}

static void ten_thousand_siblings_are_four_twigs_deep(void **state)
{
    (void)state;
    enum { MANY = 10000 };
    static member members[MANY];
    grove g;
    grove_open(&g);
    sheaf__siblings s = {0};
    for (int32_t i = 0; i < MANY; i++) { /* in order: leaves every twig half full */
        int32_t tokens[3] = {7, i / 100, i % 100};
        set(&members[i], tokens, 3);
        insert(&s, &g, &members[i]);
    }
    assert_ordered(&s, MANY);
    assert_true(height_of(&s) <= 3);
    for (uint32_t i = 0; i < MANY; i++) take_out(&s, &g, &members[i]);
    grove_close(&g);
}

/* A treap whose weights were the numbers of xorshift32 was a list after this. */
static void no_order_of_coming_makes_them_deep(void **state)
{
    (void)state;
    enum { MANY = 3000 };
    static member members[MANY];
    for (uint32_t order = 0; order < 4; order++) {
        grove g;
        grove_open(&g);
        sheaf__siblings s = {0};
        uint32_t x = 0x9e3779b9u;
        for (int32_t i = 0; i < MANY; i++) {
            x ^= x << 13, x ^= x >> 17, x ^= x << 5;
            int32_t first[] = {(int32_t)(x >> 1), i, -i, i % 2 ? i : -i};
            int32_t tokens[2] = {first[order], i};
            set(&members[i], tokens, 2);
            insert(&s, &g, &members[i]);
        }
        assert_ordered(&s, MANY);
        assert_true(height_of(&s) <= 3);              /* 2 * 10^4 > 3000 */
        for (int32_t i = 0; i < MANY; i += 1 + i % 2) /* two of three go */
            take_out(&s, &g, &members[i]);
        assert_ordered(&s, s.count);
        for (int32_t i = 0; i < MANY; i++)
            if (members[i].in) take_out(&s, &g, &members[i]);
        grove_close(&g);
    }
}

/* Fills a twig until it is split, and leaves one member in each, again and again. */
static void nor_does_thinning_them_out_between(void **state)
{
    (void)state;
    enum { ROUNDS = 4000, EACH = 24 };
    static member members[ROUNDS][EACH];
    grove g;
    grove_open(&g);
    sheaf__siblings s = {0};
    for (int32_t round = 0; round < ROUNDS; round++) {
        for (int32_t i = 0; i < EACH; i++) {
            const int32_t tokens[2] = {round, i};
            set(&members[round][i], tokens, 2);
            insert(&s, &g, &members[round][i]);
        }
        for (int32_t i = 1; i < EACH; i++) take_out(&s, &g, &members[round][i]);
    }
    assert_ordered(&s, ROUNDS);
    assert_true(height_of(&s) <= 4);
    for (uint32_t round = 0; round < ROUNDS; round++) take_out(&s, &g, members[round]);
    grove_close(&g);
}

static void *refuse(void *ctx, uint64_t size, uint64_t align)
{
    (void)ctx, (void)size, (void)align;
    return NULL;
}

static void a_refused_twig_changes_nothing(void **state)
{
    (void)state;
    sheaf_allocator none = {NULL, refuse, NULL};
    grove g;
    grove_open(&g);
    sheaf__memory_init(&g.memory, &none);
    assert_int_equal(sheaf__twigs_reserve(&g.twigs, 0), SHEAF_OK);
    assert_int_equal(sheaf__twigs_reserve(&g.twigs, 1), SHEAF_E_NO_MEMORY);
    grove_close(&g);
}

static void common_tokens_are_counted_at_every_length(void **state)
{
    (void)state;
    static int32_t a[200], b[200];
    for (uint32_t n = 0; n <= 200; n++) {
        for (uint32_t differs = 0; differs <= n; differs++) {
            memcpy(b, a, sizeof b);
            if (differs < n) b[differs] = 1;
            assert_int_equal(sheaf__tokens_common(a, b, n), differs);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_members_are_found_like_by_a_linear_search),
        cmocka_unit_test(a_member_is_replaced_by_one_that_begins_alike),
        cmocka_unit_test(ten_thousand_siblings_are_four_twigs_deep),
        cmocka_unit_test(no_order_of_coming_makes_them_deep),
        cmocka_unit_test(nor_does_thinning_them_out_between),
        cmocka_unit_test(a_refused_twig_changes_nothing),
        cmocka_unit_test(common_tokens_are_counted_at_every_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
