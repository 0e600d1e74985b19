/* Slabs: committing, giving back, the budget over groups, and that growth moves nothing. */
#include "pool/fixture.h"
#include "testing.h"

#include <stdio.h>
#include <unistd.h>

static watched_memory watched;
static sheaf_slab_memory memory;

static sheaf_pool *open_watched(uint32_t n_groups, uint64_t budget, uint32_t slack)
{
    sheaf_layer layers[SHEAF_MAX_GROUPS];
    sheaf_pool_options options = tiny_options(layers, n_groups, budget);
    memory = watch_memory(&watched);
    options.slab_memory = &memory;
    options.slack_slabs = slack;
    options.no_slack = 1;
    return open_pool(&options);
}

static void close_watched(sheaf_pool *pool)
{
    close_pool(pool);
    assert_int_equal(watched.misuse, 0);
    assert_int_equal(watched.n_committed + watched.n_reserved, 0);
}

static void opening_commits_nothing(void **state)
{
    (void)state;
    sheaf_pool *pool = open_watched(2, 64 * PAGE, 1);
    sheaf_pool_stats stats = stats_of(pool);
    assert_int_equal(watched.commits, 0);
    assert_int_equal(stats.bytes_reserved + stats.blocks_capacity + stats.slabs, 0);
    assert_true(stats.bytes_address >= 64 * PAGE);
    close_watched(pool);
}

static void growth_copies_no_byte_and_moves_no_address(void **state)
{
    (void)state;
    enum { N = 400 };
    sheaf_pool *pool = open_watched(1, 100 * PAGE, 1);
    static sheaf_block blocks[N];
    static void *addr[N];
    for (uint32_t i = 0; i < N; i++) {
        take(pool, 0, 1, &blocks[i]);
        assert_int_equal(sheaf_pool_address(pool, blocks[i], &addr[i]), SHEAF_OK);
        memcpy(addr[i], &i, sizeof i);
        assert_int_equal(stats_of(pool).slabs, i / 4 + 1);
    }
    for (uint32_t i = 0; i < N; i++) {
        void *now;
        assert_int_equal(sheaf_pool_address(pool, blocks[i], &now), SHEAF_OK);
        assert_ptr_equal(now, addr[i]);
        assert_memory_equal(now, &i, sizeof i);
    }
    sheaf_pool_stats stats = stats_of(pool);
    assert_int_equal(stats.slab_appends, 100);
    assert_int_equal(stats.slab_releases, 0);
    assert_int_equal(stats.bytes_copied, 0);
    assert_int_equal(stats.bytes_copied_by_growth, 0);
    assert_int_equal(watched.reserves, 1);
    give(pool, N, blocks);
    close_watched(pool);
}

static void full_is_an_answer_and_changes_nothing(void **state)
{
    (void)state;
    sheaf_pool *pool = open_watched(1, 3 * PAGE, 1);
    sheaf_block blocks[12], more[12], untouched[12];
    memset(more, 0x5a, sizeof more);
    memcpy(untouched, more, sizeof more);
    take(pool, 0, 10, blocks);
    sheaf_pool_stats before = stats_of(pool);
    uint32_t three = 3, two = 2;
    assert_int_equal(sheaf_pool_can_acquire(pool, &three), SHEAF_FULL);
    assert_int_equal(sheaf_pool_acquire(pool, &three, SHEAF_OWNER_HOST, more), SHEAF_FULL);
    assert_int_equal(sheaf_pool_presize(pool, &three), SHEAF_FULL);
    assert_memory_equal(more, untouched, sizeof more);
    assert_unchanged(pool, before);
    assert_int_equal(stats_of(pool).full_answers, before.full_answers + 2);
    assert_int_equal(sheaf_pool_can_acquire(pool, &two), SHEAF_OK);
    take(pool, 0, 2, blocks + 10);
    uint32_t most = UINT32_MAX;
    assert_int_equal(sheaf_pool_acquire(pool, &most, SHEAF_OWNER_HOST, more), SHEAF_FULL);
    give(pool, 12, blocks);
    close_watched(pool);
}

static void a_request_over_two_groups_is_all_or_nothing(void **state)
{
    (void)state;
    sheaf_pool *pool = open_watched(2, 4 * PAGE, 1);
    sheaf_block blocks[20];
    uint32_t counts[2] = {4, 4}, too_many[2] = {4, 5};
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
    sheaf_pool_stats before = stats_of(pool);
    assert_int_equal(sheaf_pool_acquire(pool, too_many, SHEAF_OWNER_HOST, blocks + 8),
                     SHEAF_FULL);
    assert_unchanged(pool, before);
    assert_int_equal(watched.commits, 2);
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks + 8), SHEAF_OK);
    assert_int_equal(stats_of(pool).bytes_reserved, 4 * PAGE);
    give(pool, 16, blocks);
    close_watched(pool);
}

static void a_commit_that_the_system_refuses_is_undone(void **state)
{
    (void)state;
    for (uint64_t fail = 3; fail <= 6; fail++) {
        sheaf_pool *pool = open_watched(2, 64 * PAGE, 1);
        sheaf_block blocks[32];
        uint32_t counts[2] = {3, 2}, more[2] = {8, 9};
        assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
        sheaf_pool_stats before = stats_of(pool);
        watched.fail_commit = fail;
        assert_int_equal(sheaf_pool_can_acquire(pool, more), SHEAF_OK);
        assert_int_equal(sheaf_pool_acquire(pool, more, SHEAF_OWNER_HOST, blocks + 5),
                         SHEAF_FULL);
        assert_unchanged(pool, before);
        assert_int_equal(stats_of(pool).slab_failures, 1);
        assert_int_equal(watched.n_committed, 2);
        assert_int_equal(sheaf_pool_acquire(pool, more, SHEAF_OWNER_HOST, blocks + 5),
                         SHEAF_OK);
        give(pool, 22, blocks);
        close_watched(pool);
    }
}

static void another_groups_slack_is_taken_back(void **state)
{
    (void)state;
    sheaf_pool *pool = open_watched(2, 4 * PAGE, 2);
    sheaf_block a[8], b[16];
    take(pool, 0, 8, a);
    give(pool, 8, a);
    assert_int_equal(stats_of(pool).slabs_empty, 2); /* both within the slack */
    take(pool, 1, 8, b);
    assert_int_equal(stats_of(pool).slab_releases, 0); /* there was room */
    uint32_t counts[2] = {0, 8};
    assert_int_equal(sheaf_pool_can_acquire(pool, counts), SHEAF_OK);
    take(pool, 1, 4, b + 8);
    assert_int_equal(stats_of(pool).slab_releases, 1); /* no more than was needed */
    take(pool, 1, 4, b + 12);
    assert_int_equal(stats_of(pool).slab_releases, 2);
    assert_int_equal(watched.most_committed_bytes, 4 * PAGE);
    give(pool, 16, b);
    close_watched(pool);
}

static void an_empty_slab_that_the_request_needs_is_not_taken_back(void **state)
{
    (void)state;
    sheaf_pool *pool = open_watched(2, 4 * PAGE, 2);
    sheaf_block a[8], b[16];
    take(pool, 0, 8, a);
    give(pool, 8, a);
    take(pool, 1, 8, b);
    uint32_t counts[2] = {5, 1}, fits[2] = {4, 4};
    assert_int_equal(sheaf_pool_can_acquire(pool, counts), SHEAF_FULL);
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, b + 8), SHEAF_FULL);
    assert_int_equal(stats_of(pool).slabs, 4);
    assert_int_equal(sheaf_pool_acquire(pool, fits, SHEAF_OWNER_HOST, b + 8), SHEAF_OK);
    give(pool, 16, b);
    close_watched(pool);
}

static void the_last_slab_under_a_budget_may_be_short(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 0);
    memory = watch_memory(&watched);
    options.slab_memory = &memory;
    options.slab_blocks = 16; /* a slab of four pages, four blocks each */
    options.budget_bytes = 7 * PAGE + 100;
    sheaf_pool *pool = open_pool(&options);
    sheaf_block blocks[29];
    take(pool, 0, 17, blocks);
    sheaf_pool_stats stats = stats_of(pool);
    assert_int_equal(stats.blocks_capacity, 28);
    assert_int_equal(stats.bytes_reserved, 7 * PAGE);
    take(pool, 0, 11, blocks + 17);
    uint32_t one = 1;
    assert_int_equal(sheaf_pool_acquire(pool, &one, SHEAF_OWNER_HOST, blocks + 28), SHEAF_FULL);
    assert_int_equal(watched.most_committed_bytes, 7 * PAGE);
    for (uint32_t i = 0; i < 28; i++) {
        void *addr;
        assert_int_equal(sheaf_pool_address(pool, blocks[i], &addr), SHEAF_OK);
        memset(addr, 1, 1024);
    }
    give(pool, 28, blocks);
    close_watched(pool);
}

static void a_short_slab_never_stays_empty(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 0);
    memory = watch_memory(&watched);
    options.slab_memory = &memory;
    options.slab_blocks = 16;
    options.budget_bytes = 5 * PAGE;
    sheaf_pool *pool = open_pool(&options);
    sheaf_block blocks[20];
    take(pool, 0, 20, blocks);
    give(pool, 4, blocks + 16); /* the short one */
    assert_int_equal(stats_of(pool).slabs, 1);
    give(pool, 16, blocks);
    assert_int_equal(stats_of(pool).slabs, 1); /* the slack */
    take(pool, 0, 20, blocks);
    give(pool, 20, blocks);
    close_watched(pool);
}

/* At the budget's edge a group gets what it asks for and no more: whichever asks next, each row of the
 * budget serves somebody. */
static void groups_share_what_is_left_in_short_slabs(void **state)
{
    (void)state;
    for (uint32_t pages = 3; pages <= 8; pages++)
        for (uint32_t turn = 1; turn <= 4; turn++) { /* group 1 asks each so many-th time */
            sheaf_layer layers[2];
            sheaf_pool_options options = tiny_options(layers, 2, pages * PAGE);
            memory = watch_memory(&watched);
            options.slab_memory = &memory;
            options.slab_blocks = 16; /* a slab of four pages, four blocks each */
            sheaf_pool *pool = open_pool(&options);
            uint32_t counts[2] = {5, 3}, n = 8, n_full = 0;
            sheaf_block blocks[32];
            assert_int_equal(sheaf_pool_can_acquire(pool, counts), SHEAF_OK);
            assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks),
                             SHEAF_OK);
            assert_int_equal(stats_of(pool).bytes_reserved, 3 * PAGE);
            for (uint32_t i = 0; n_full < 8; i++) {
                uint32_t one[2] = {i % turn != 0, i % turn == 0};
                if (turn == 1) one[0] = n_full >= 4, one[1] = n_full < 4;
                sheaf_status st = sheaf_pool_acquire(pool, one, SHEAF_OWNER_HOST, blocks + n);
                n += st == SHEAF_OK;
                n_full = st == SHEAF_OK ? 0 : n_full + 1;
            }
            assert_int_equal(n, pages * 4);
            give(pool, n, blocks);
            close_watched(pool);
        }
}

/* What a request can have at once it can have when nothing is in use, whatever lies there empty. */
static void a_whole_empty_slab_is_not_kept_for_one_row(void **state)
{
    (void)state;
    sheaf_layer layers[2];
    sheaf_pool_options options = tiny_options(layers, 2, 5 * PAGE);
    memory = watch_memory(&watched);
    options.slab_memory = &memory;
    options.slab_blocks = 16;
    sheaf_pool *pool = open_pool(&options);
    sheaf_block blocks[20];
    uint32_t counts[2] = {1, 16};
    take(pool, 0, 16, blocks);
    give(pool, 16, blocks);
    assert_int_equal(stats_of(pool).slabs_empty, 1); /* four pages, the slack */
    assert_int_equal(sheaf_pool_can_acquire(pool, counts), SHEAF_OK);
    assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks), SHEAF_OK);
    give(pool, 17, blocks);
    close_watched(pool);
}

static void presize_commits_in_one_step_what_acquire_needs(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 40; n++) {
        sheaf_pool *pool = open_watched(2, 64 * PAGE, 0);
        sheaf_block first[3], blocks[80];
        take(pool, 0, 3, first);
        uint32_t counts[2] = {n, 2 * n};
        uint64_t slabs = (n + 3 + 3) / 4 + (2 * n + 3) / 4;
        assert_int_equal(sheaf_pool_presize(pool, counts), SHEAF_OK);
        assert_int_equal(stats_of(pool).slabs, slabs);
        uint64_t commits = watched.commits;
        assert_int_equal(sheaf_pool_presize(pool, counts), SHEAF_OK);
        if (3 * n <= 80)
            assert_int_equal(sheaf_pool_acquire(pool, counts, SHEAF_OWNER_HOST, blocks),
                             SHEAF_OK);
        assert_int_equal(watched.commits, commits);
        if (3 * n <= 80) give(pool, 3 * n, blocks);
        give(pool, 3, first);
        close_watched(pool);
    }
}

static void presize_that_does_not_fit_commits_nothing(void **state)
{
    (void)state;
    sheaf_pool *pool = open_watched(2, 4 * PAGE, 1);
    uint32_t counts[2] = {9, 8};
    sheaf_pool_stats before = stats_of(pool);
    assert_int_equal(sheaf_pool_presize(pool, counts), SHEAF_FULL);
    assert_int_equal(watched.commits, 0);
    assert_unchanged(pool, before);
    close_watched(pool);
}

static void the_fullest_slab_with_room_is_used_first(void **state)
{
    (void)state;
    sheaf_pool *pool = open_watched(1, 64 * PAGE, 1);
    sheaf_block blocks[16], taken[7];
    take(pool, 0, 16, blocks);
    give(pool, 3, blocks);      /* slab 0: three free */
    give(pool, 1, blocks + 4);  /* slab 1: one */
    give(pool, 4, blocks + 8);  /* slab 2: all */
    give(pool, 2, blocks + 12); /* slab 3: two */
    take(pool, 0, 7, taken);
    static const uint32_t rows[7] = {4, 12, 13, 0, 1, 2, 8};
    for (int i = 0; i < 7; i++) assert_int_equal(taken[i].row, rows[i]);
    give(pool, 7, taken);
    give(pool, 1, blocks + 3);
    give(pool, 3, blocks + 5);
    give(pool, 2, blocks + 14);
    close_watched(pool);
}

static void empty_slabs_beyond_the_slack_go_back_at_once(void **state)
{
    (void)state;
    for (uint32_t slack = 0; slack < 4; slack++) {
        sheaf_pool *pool = open_watched(1, 64 * PAGE, slack);
        sheaf_block blocks[40];
        take(pool, 0, 40, blocks);
        for (uint32_t i = 0; i < 40; i++) {
            give(pool, 1, &blocks[i]);
            uint32_t emptied = (i + 1) / 4, kept = emptied < slack ? emptied : slack;
            assert_int_equal(stats_of(pool).slabs, 10 - emptied + kept);
            assert_int_equal(stats_of(pool).slabs_empty, kept);
            assert_int_equal(watched.committed_bytes, stats_of(pool).bytes_reserved);
        }
        close_watched(pool);
    }
}

static void one_block_keeps_its_slab(void **state)
{
    (void)state;
    sheaf_pool *pool = open_watched(1, 64 * PAGE, 0);
    sheaf_block blocks[16];
    take(pool, 0, 16, blocks);
    for (uint32_t i = 0; i < 16; i++)
        if (i % 4 != 2) give(pool, 1, &blocks[i]);
    assert_int_equal(stats_of(pool).slabs, 4);
    for (uint32_t i = 2; i < 16; i += 4) give(pool, 1, &blocks[i]);
    assert_int_equal(stats_of(pool).slabs, 0);
    close_watched(pool);
}

static void slack_is_one_slab_unless_said_otherwise(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    sheaf_block blocks[16];
    take(pool, 0, 16, blocks);
    give(pool, 16, blocks);
    assert_int_equal(stats_of(pool).slabs, 1);
    close_pool(pool);
}

static uint64_t resident_bytes(void)
{
    unsigned long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL) return 0;
    int fields = fscanf(file, "%lu %lu", &pages, &resident);
    fclose(file);
    return fields == 2 ? resident * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static void empty_slabs_really_leave_memory(void **state)
{
    (void)state;
    enum { N = 64 };
    sheaf_layer layers[28];
    for (int i = 0; i < 28; i++)
        layers[i] = (sheaf_layer){.n_kv_heads = 2,
                                  .key_dim = 128,
                                  .value_dim = 128,
                                  .codec_k = SHEAF_CODEC_BF16,
                                  .codec_v = SHEAF_CODEC_BF16};
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = layers;
    options.n_layers = 28;
    options.slab_blocks = 8;
    options.budget_bytes = 256ull << 20;
    options.no_slack = 1;
    uint64_t before = resident_bytes();
    if (before == 0) TESTING_SKIP("this system does not tell the resident memory");
    sheaf_pool *pool = open_pool(&options);
    sheaf_block blocks[N];
    take(pool, 0, N, blocks);
    uint64_t bytes = stats_of(pool).bytes_in_use;
    for (int i = 0; i < N; i++) {
        void *addr;
        assert_int_equal(sheaf_pool_address(pool, blocks[i], &addr), SHEAF_OK);
        memset(addr, 1, bytes / N);
    }
    uint64_t used = resident_bytes();
    assert_true(used >= before + bytes * 9 / 10);
    give(pool, N / 2, blocks);
    assert_true(resident_bytes() <= used - bytes / 2 + bytes / 10);
    give(pool, N / 2, blocks + N / 2);
    assert_true(resident_bytes() <= used - bytes + bytes / 10);
    close_pool(pool);
}

/* Blocks of 1.5 GiB, of which a page or two is touched: rows beyond 4 GiB keep their own bytes. */
static void offsets_go_beyond_32_bits(void **state)
{
    (void)state;
    sheaf_layer layer = {.n_kv_heads = 3 << 14, .key_dim = 128, .codec_k = SHEAF_CODEC_F32};
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = &layer;
    options.n_layers = 1;
    options.block_tokens = 64;
    options.slab_blocks = 4;
    options.budget_bytes = 64ull << 30;
    slow_device slow;
    sheaf__device device = slow_device_of(&slow, NULL); /* poisons nothing */
    sheaf_pool *pool = NULL;
    assert_int_equal(sheaf__pool_open_on(&options, &device, 0, &pool, NULL), SHEAF_OK);
    uint64_t bytes = sheaf__pool_layout(pool)->groups[0].block_bytes;
    assert_int_equal(bytes, 3ull << 29);
    sheaf_block blocks[9];
    unsigned char *addr[9];
    take(pool, 0, 9, blocks);
    for (int i = 0; i < 9; i++) {
        void *p;
        assert_int_equal(sheaf_pool_address(pool, blocks[i], &p), SHEAF_OK);
        addr[i] = p;
        addr[i][0] = addr[i][bytes - 1] = (unsigned char)(i + 1);
        assert_int_equal(addr[i] - addr[0], (int64_t)bytes * i);
    }
    for (int i = 0; i < 9; i++) {
        assert_int_equal(addr[i][0], i + 1);
        assert_int_equal(addr[i][bytes - 1], i + 1);
    }
    assert_int_equal(stats_of(pool).bytes_in_use, 9 * bytes);
    give(pool, 9, blocks);
    close_pool(pool);
}

static void rows_go_beyond_31_bits(void **state)
{
    (void)state;
    sheaf_layer layer = {.n_kv_heads = 1, .key_dim = 32, .codec_k = SHEAF_CODEC_BF16};
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = &layer;
    options.n_layers = 1;
    options.block_tokens = 1;
    options.slab_blocks = 65536;
    options.budget_bytes = 1ull << 42; /* blocks of 64 bytes: more than 2^32 of them */
    sheaf__device device = sheaf__device_cpu(NULL);
    sheaf_pool *pool = NULL;
    const uint32_t first_slab = 0xfffd;
    assert_int_equal(sheaf__pool_open_on(&options, &device, first_slab, &pool, NULL), SHEAF_OK);
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    assert_int_equal(sheaf_pool_group_info(pool, 0, &info), SHEAF_OK);
    assert_int_equal(info.max_rows, 0xffff0000ull); /* SHEAF_ROW_NONE is never a row */
    sheaf_block *blocks = malloc(131073 * sizeof *blocks);
    assert_non_null(blocks);
    take(pool, 0, 131072, blocks);
    for (uint32_t i = 0; i < 131072; i += 4099) {
        void *addr;
        assert_int_equal(blocks[i].row, 0xfffd0000u + i);
        assert_int_equal(sheaf_pool_address(pool, blocks[i], &addr), SHEAF_OK);
        assert_int_equal((const char *)addr - (const char *)sheaf_pool_base(pool, 0),
                         (0xfffd0000ll + i) * 64);
        memset(addr, 1, 64);
    }
    uint32_t one = 1;
    assert_int_equal(sheaf_pool_acquire(pool, &one, SHEAF_OWNER_HOST, blocks + 131072),
                     SHEAF_FULL);
    for (uint32_t i = 0; i < 131072; i++)
        assert_int_equal(sheaf__block_release(pool, blocks[i], SHEAF_OWNER_HOST), SHEAF_OK);
    sheaf__pool_publish(pool);
    free(blocks);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_commits_nothing),
        cmocka_unit_test(growth_copies_no_byte_and_moves_no_address),
        cmocka_unit_test(full_is_an_answer_and_changes_nothing),
        cmocka_unit_test(a_request_over_two_groups_is_all_or_nothing),
        cmocka_unit_test(a_commit_that_the_system_refuses_is_undone),
        cmocka_unit_test(another_groups_slack_is_taken_back),
        cmocka_unit_test(an_empty_slab_that_the_request_needs_is_not_taken_back),
        cmocka_unit_test(the_last_slab_under_a_budget_may_be_short),
        cmocka_unit_test(a_short_slab_never_stays_empty),
        cmocka_unit_test(groups_share_what_is_left_in_short_slabs),
        cmocka_unit_test(a_whole_empty_slab_is_not_kept_for_one_row),
        cmocka_unit_test(presize_commits_in_one_step_what_acquire_needs),
        cmocka_unit_test(presize_that_does_not_fit_commits_nothing),
        cmocka_unit_test(the_fullest_slab_with_room_is_used_first),
        cmocka_unit_test(empty_slabs_beyond_the_slack_go_back_at_once),
        cmocka_unit_test(one_block_keeps_its_slab),
        cmocka_unit_test(slack_is_one_slab_unless_said_otherwise),
        cmocka_unit_test(empty_slabs_really_leave_memory),
        cmocka_unit_test(offsets_go_beyond_32_bits),
        cmocka_unit_test(rows_go_beyond_31_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
