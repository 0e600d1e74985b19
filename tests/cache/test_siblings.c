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

static uint32_t height_of(const sheaf__sibling *m)
{
    return 1 + (m->left_height > m->right_height ? m->left_height : m->right_height);
}

/* In order, linked both ways, as many as counted, and in balance. */
static void assert_ordered(const sheaf__siblings *s, uint32_t count)
{
    const sheaf__sibling *before = NULL;
    uint32_t n = 0;
    for (const sheaf__sibling *at = sheaf__siblings_first(s); at != NULL;
         before = at, at = sheaf__siblings_next(at), n++) {
        assert_true(at->up == NULL || at->up->left == at || at->up->right == at);
        assert_true(at->up != NULL || s->root == at);
        uint32_t left = at->left_height, right = at->right_height;
        assert_int_equal(left, at->left != NULL ? height_of(at->left) : 0);
        assert_int_equal(right, at->right != NULL ? height_of(at->right) : 0);
        assert_int_equal(at->first, at->tokens[0]);
        assert_true(left <= right + 1 && right <= left + 1);
        if (before == NULL) continue;
        uint32_t both = before->n < at->n ? before->n : at->n;
        uint32_t common = sheaf__tokens_common(before->tokens, at->tokens, both);
        assert_true(common < both && before->tokens[common] < at->tokens[common]);
    }
    assert_int_equal(n, count);
    assert_int_equal(s->count, count);
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

static void random_members_are_found_like_by_a_linear_search(void **state)
{
    (void)state;
    enum { MEMBERS = 60 };
    static member members[MEMBERS];
    memset(members, 0, sizeof members);
    uint64_t seed = seed_from_environment(1);
    sheaf__siblings s = {0};
    uint32_t count = 0;
    for (uint32_t step = 0; step < 20000; step++) {
        int32_t tokens[N_TOKENS];
        uint32_t n = 1 + random_below(&seed, N_TOKENS);
        for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)random_below(&seed, 3);
        member *m = &members[random_below(&seed, MEMBERS)];
        if (m->in) {
            sheaf__siblings_remove(&s, &m->sibling);
            m->in = false;
            count--;
        } else if (!clashes(members, MEMBERS, tokens, n)) {
            set(m, tokens, n);
            sheaf__siblings_insert(&s, &m->sibling);
            count++;
        }
        assert_nearest(&s, members, MEMBERS, tokens, n);
        assert_nearest(&s, members, MEMBERS, tokens, random_below(&seed, n + 1));
        if (step % 16 == 0) assert_ordered(&s, count);
    }
    assert_ordered(&s, count);
}

static void a_member_is_replaced_by_one_that_begins_alike(void **state)
{
    (void)state;
    static member members[3], by;
    int32_t tokens[3][2] = {{1, 1}, {1, 2}, {2, 1}}, longer[4] = {1, 2, 7, 7};
    sheaf__siblings s = {0};
    for (uint32_t i = 0; i < 3; i++) {
        set(&members[i], tokens[i], 2);
        sheaf__siblings_insert(&s, &members[i].sibling);
    }
    set(&by, longer, 4);
    sheaf__siblings_replace(&s, &members[1].sibling, &by.sibling);
    assert_ordered(&s, 3);
    uint32_t common;
    assert_ptr_equal(sheaf__siblings_nearest(&s, longer, 4, &common), &by.sibling);
    assert_int_equal(common, 4);
}

static void ten_thousand_siblings_are_nineteen_comparisons_deep(void **state)
{
    (void)state;
    enum { MANY = 10000 };
    static member members[MANY];
    sheaf__siblings s = {0};
    for (int32_t i = 0; i < MANY; i++) { /* in order: the worst for a tree without balance */
        int32_t tokens[3] = {7, i / 100, i % 100};
        set(&members[i], tokens, 3);
        sheaf__siblings_insert(&s, &members[i].sibling);
    }
    assert_ordered(&s, MANY);
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t depth = 0;
        for (const sheaf__sibling *at = &members[i].sibling; at != NULL; at = at->up) depth++;
        assert_true(depth <= 19);
    }
}

/* A treap whose weights were the numbers of xorshift32 was a list after this. */
static void no_order_of_coming_makes_them_deep(void **state)
{
    (void)state;
    enum { MANY = 3000 };
    static member members[MANY];
    for (uint32_t order = 0; order < 4; order++) {
        sheaf__siblings s = {0};
        uint32_t x = 0x9e3779b9u;
        for (int32_t i = 0; i < MANY; i++) {
            x ^= x << 13, x ^= x >> 17, x ^= x << 5;
            int32_t first[] = {(int32_t)(x >> 1), i, -i, i % 2 ? i : -i};
            int32_t tokens[2] = {first[order], i};
            set(&members[i], tokens, 2);
            sheaf__siblings_insert(&s, &members[i].sibling);
        }
        assert_ordered(&s, MANY);
        assert_true(height_of(s.root) <= 17);         /* 1.44 log2(3000) */
        for (int32_t i = 0; i < MANY; i += 1 + i % 2) /* two of three go */
            sheaf__siblings_remove(&s, &members[i].sibling);
        assert_ordered(&s, s.count);
    }
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
        cmocka_unit_test(ten_thousand_siblings_are_nineteen_comparisons_deep),
        cmocka_unit_test(no_order_of_coming_makes_them_deep),
        cmocka_unit_test(common_tokens_are_counted_at_every_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
