/* Compaction: which slabs fall empty, where their blocks go, and that nothing else changes. A fake
 * tree stands in for the prefix cache: it names blocks, and is told when they move. */
#include "testing.h"

#include "pool/fixture.h"
#include "pool/holder.h"
#include "sheaf/rows.h"

#define BLOCK 1024

/* ---- a tree that only names blocks --------------------------------------------------------- */

#define MOST_NAMED 4096

typedef struct fake_tree {
    sheaf__owner owner;
    sheaf__keeper keeper;
    sheaf_pool *pool;
    sheaf_block blocks[MOST_NAMED]; /* row SHEAF_ROW_NONE: this place names nothing */
    uint32_t stamps[MOST_NAMED];    /* what the block's memory holds, in every word */
    uint32_t n;                     /* places in use, from 0 */
    uint64_t moves, settled, wrong;
} fake_tree;

static fake_tree tree;

static void name_all(const sheaf__owner *owner, sheaf__named_fn *fn, void *ctx)
{
    const fake_tree *t = SHEAF__CONTAINER(owner, const fake_tree, owner);
    for (uint32_t i = 0; i < t->n; i++)
        if (t->blocks[i].row != SHEAF_ROW_NONE) fn(ctx, t->blocks[i]);
}

static void tree_moved(sheaf__keeper *keeper, void *holder, uint32_t index, sheaf_block to)
{
    fake_tree *t = SHEAF__CONTAINER(keeper, fake_tree, keeper);
    sheaf_block was = t->blocks[index];
    t->wrong += holder != t || was.group != to.group || was.row == to.row;
    t->wrong += sheaf__pool_live(t->pool, was) != NULL || sheaf__pool_live(t->pool, to) == NULL;
    t->blocks[index] = to;
    t->moves++;
}

static void tree_settle(sheaf__keeper *keeper)
{
    SHEAF__CONTAINER(keeper, fake_tree, keeper)->settled++;
}

static fake_tree *tree_open(sheaf_pool *pool)
{
    memset(&tree, 0, sizeof tree);
    tree.pool = pool;
    tree.owner = (sheaf__owner){.kind = SHEAF_OWNER_TREE, .visit = name_all};
    tree.keeper = (sheaf__keeper){tree_moved, tree_settle};
    sheaf__pool_register(pool, &tree.owner);
    assert_int_equal(sheaf__pool_set_keeper(pool, &tree.keeper), SHEAF_OK);
    return &tree;
}

static uint32_t *memory_of(const sheaf_pool *pool, sheaf_block block)
{
    void *addr = NULL;
    assert_int_equal(sheaf_pool_address((sheaf_pool *)pool, block, &addr), SHEAF_OK);
    return addr;
}

static void stamp(const sheaf_pool *pool, sheaf_block block, uint32_t value)
{
    uint32_t *words = memory_of(pool, block);
    for (uint32_t i = 0; i < BLOCK / 4; i++) words[i] = value + i * 3;
}

static bool stamped(const sheaf_pool *pool, sheaf_block block, uint32_t value)
{
    uint32_t expected[BLOCK / 4];
    for (uint32_t i = 0; i < BLOCK / 4; i++) expected[i] = value + i * 3;
    return memcmp(memory_of(pool, block), expected, BLOCK) == 0;
}

/* Takes blocks of group g for the tree and stamps them; the index of the first. */
static uint32_t tree_take(fake_tree *t, uint32_t g, uint32_t n)
{
    static uint32_t last_stamp;
    uint32_t counts[SHEAF_MAX_GROUPS] = {0}, first = t->n;
    counts[g] = n;
    assert_true(t->n + n <= MOST_NAMED);
    assert_int_equal(sheaf_pool_acquire(t->pool, counts, SHEAF_OWNER_TREE, t->blocks + first),
                     SHEAF_OK);
    for (; t->n < first + n; t->n++) {
        t->stamps[t->n] = ++last_stamp * 1000003u;
        stamp(t->pool, t->blocks[t->n], t->stamps[t->n]);
        sheaf__block_set_holder(t->pool, t->blocks[t->n], t, t->n);
    }
    return first;
}

static void tree_give(fake_tree *t, uint32_t i)
{
    sheaf_block block = t->blocks[i];
    t->blocks[i].row = SHEAF_ROW_NONE;
    assert_int_equal(sheaf_pool_release(t->pool, block, SHEAF_OWNER_TREE), SHEAF_OK);
}

/* All that the tree names is there, byte for byte, under its holder. */
static void tree_verify(fake_tree *t)
{
    assert_int_equal(t->wrong, 0);
    for (uint32_t i = 0; i < t->n; i++) {
        uint32_t index = UINT32_MAX;
        if (t->blocks[i].row == SHEAF_ROW_NONE) continue;
        assert_true(stamped(t->pool, t->blocks[i], t->stamps[i]));
        assert_ptr_equal(sheaf__block_holder(t->pool, t->blocks[i], &index), t);
        assert_int_equal(index, i);
    }
    check_pool(t->pool);
}

static void tree_close(fake_tree *t)
{
    tree_verify(t);
    for (uint32_t i = 0; i < t->n; i++)
        if (t->blocks[i].row != SHEAF_ROW_NONE) tree_give(t, i);
    sheaf__pool_clear_keeper(t->pool);
    sheaf__pool_unregister(t->pool, &t->owner);
    close_pool(t->pool);
}

/* Compacts, and checks what every compaction must leave as it was. */
static sheaf_compaction compact(sheaf_pool *pool, uint32_t max_blocks, sheaf_status expected)
{
    sheaf_compaction done = SHEAF_COMPACTION_INIT;
    sheaf_pool_stats before = stats_of(pool);
    uint64_t moves = tree.moves;
    assert_int_equal(sheaf_pool_compact(pool, max_blocks, &done), expected);
    sheaf_pool_stats after = stats_of(pool);
    assert_true(done.blocks_moved <= max_blocks);
    assert_int_equal(tree.moves - moves, done.blocks_moved);
    assert_int_equal(after.blocks_copied - before.blocks_copied, done.blocks_moved);
    assert_int_equal(after.bytes_copied - before.bytes_copied, done.bytes_moved);
    assert_int_equal(before.bytes_reserved - after.bytes_reserved, done.bytes_returned);
    assert_int_equal(after.blocks_held, before.blocks_held);
    assert_int_equal(after.blocks_shared, before.blocks_shared);
    assert_int_equal(after.blocks_acquired, before.blocks_acquired);
    assert_int_equal(after.blocks_released, before.blocks_released);
    assert_int_equal(after.slab_appends, before.slab_appends);
    assert_int_equal(after.host_bytes, before.host_bytes);
    assert_int_equal(after.slabs_empty, 0);
    assert_memory_equal(after.owners, before.owners, sizeof after.owners);
    check_pool(pool);
    return done;
}

/* How many rows of each slab of group 0 are held, as decimal digits, slab 0 first; 'x' when the slab
 * has no memory. */
static const char *shape(const sheaf_pool *pool)
{
    static char text[64];
    uint32_t n = sheaf_pool_rows(pool, 0) / 4;
    sheaf_row rows[4];
    for (uint32_t s = 0; s < n; s++) {
        assert_int_equal(sheaf_pool_map(pool, 0, s * 4, 4, rows), SHEAF_OK);
        text[s] = rows[0].state == SHEAF_ROW_ABSENT ? 'x' : '0';
        for (int i = 0; i < 4 && text[s] != 'x'; i++)
            text[s] = (char)(text[s] + (rows[i].references != 0));
    }
    text[n] = 0;
    return text;
}

/* A tree in slabs of four, of which slab i keeps as many blocks as digit i says. */
static fake_tree *tree_shaped(sheaf_pool *pool, const char *digits)
{
    fake_tree *t = tree_open(pool);
    uint32_t n = (uint32_t)strlen(digits);
    tree_take(t, 0, n * 4);
    for (uint32_t i = 0; i < n * 4; i++)
        if (t->blocks[i].row % 4 >= (uint32_t)(digits[t->blocks[i].row / 4] - '0'))
            tree_give(t, i);
    assert_string_equal(shape(pool), digits);
    return t;
}

/* ---- cases --------------------------------------------------------------------------------- */

static void the_emptiest_slabs_go_into_the_fullest(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    fake_tree *t = tree_shaped(pool, "312342"); /* room: 9 rows, so two slabs */
    assert_int_equal(stats_of(pool).slabs, 6);
    assert_int_equal(stats_of(pool).slabs_least, 4);
    sheaf_compaction done = compact(pool, 100, SHEAF_OK);
    assert_int_equal(done.blocks_moved, 3); /* of slab 1, and of 2 */
    assert_int_equal(done.slabs_emptied, 2);
    assert_int_equal(done.bytes_moved, 3 * BLOCK);
    assert_int_equal(done.bytes_returned, 2 * PAGE);
    assert_string_equal(shape(pool), "4xx443");
    done = compact(pool, 100, SHEAF_OK);
    assert_int_equal(done.blocks_moved + done.slabs_emptied + done.bytes_returned, 0);
    tree_close(t);
}

static void a_moved_block_is_the_same_under_a_new_handle(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    fake_tree *t = tree_shaped(pool, "31");
    uint32_t i = 4, total = 0, by_kind[SHEAF_OWNER_KINDS];
    sheaf_block was = t->blocks[i];
    assert_int_equal(was.row, 4);
    compact(pool, 1, SHEAF_OK);
    sheaf_block is = t->blocks[i];
    assert_int_equal(is.row, 3);
    assert_int_equal(sheaf_pool_retain(pool, was, SHEAF_OWNER_HOST), SHEAF_E_STALE);
    assert_int_equal(sheaf_pool_references(pool, is, &total, by_kind), SHEAF_OK);
    assert_int_equal(total, 1);
    assert_int_equal(by_kind[SHEAF_OWNER_TREE], 1);
    assert_int_equal(sheaf__pool_tree_only(pool, 0), 4);
    /* the row's handle from before the move names nobody's block when the slab comes again */
    uint32_t first = tree_take(t, 0, 1);
    assert_int_equal(t->blocks[first].row, 4);
    assert_int_not_equal(t->blocks[first].generation, was.generation);
    assert_int_equal(sheaf_pool_release(pool, was, SHEAF_OWNER_TREE), SHEAF_E_STALE);
    tree_close(t);
}

/* One slab after the other is made unmovable by one block; the other always could be emptied. */
static void slabs_with_a_block_that_cannot_move_stay(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 64 * PAGE);
    slow_device slow;
    sheaf__device device = slow_device_of(&slow, NULL);
    sheaf_pool *pool = NULL;
    assert_int_equal(sheaf__pool_open_on(&options, &device, 0, &pool, NULL), SHEAF_OK);
    fake_tree *t = tree_shaped(pool, "12");
    sheaf_block lone = t->blocks[0];
    static const uint32_t kinds[] = {SHEAF_OWNER_TABLE, SHEAF_OWNER_PARKED, SHEAF_OWNER_IO,
                                     SHEAF_OWNER_HOST, SHEAF_OWNER_TREE};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        /* shared by both slabs, so that neither can be emptied */
        for (int i = 0; i < 2; i++)
            assert_int_equal(sheaf_pool_retain(pool, t->blocks[i * 4], kinds[k]), SHEAF_OK);
        sheaf_compaction done = SHEAF_COMPACTION_INIT;
        assert_int_equal(sheaf_pool_compact(pool, 100, &done), SHEAF_OK);
        assert_int_equal(done.blocks_moved, 0);
        for (int i = 0; i < 2; i++)
            assert_int_equal(sheaf_pool_release(pool, t->blocks[i * 4], kinds[k]), SHEAF_OK);
    }
    for (int i = 0; i < 2; i++) sheaf__block_set_holder(pool, t->blocks[i * 4], NULL, 0);
    assert_int_equal(compact(pool, 100, SHEAF_OK).blocks_moved, 0);
    sheaf__block_set_holder(pool, lone, t, 0);
    sheaf__block_set_holder(pool, t->blocks[4], t, 4);
    sheaf__pool_clear_keeper(pool);
    assert_int_equal(compact(pool, 100, SHEAF_OK).blocks_moved, 0);
    assert_int_equal(sheaf__pool_set_keeper(pool, &t->keeper), SHEAF_OK);
    sheaf_block other[4]; /* one row of slab 1 waits for a fence, and three of slab 0 */
    tree_take(t, 0, 1);
    take(pool, 0, 4, other);
    for (int i = 0; i < 4; i++)
        assert_int_equal(
            sheaf_pool_release_after(pool, other[i], SHEAF_OWNER_HOST, (sheaf_fence){5}),
            SHEAF_OK);
    assert_int_equal(compact(pool, 100, SHEAF_OK).blocks_moved, 0);
    slow.passed = 5;
    assert_int_equal(compact(pool, 100, SHEAF_OK).blocks_moved, 1);
    assert_string_equal(shape(pool), "x4");
    tree_close(t);
}

static void max_blocks_bounds_a_call_and_the_next_goes_on(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    fake_tree *t = tree_shaped(pool, "3221332"); /* room: 12 rows, three slabs, five moves */
    assert_int_equal(compact(pool, 0, SHEAF_PENDING).blocks_moved, 0);
    assert_string_equal(shape(pool), "3221332");
    sheaf_compaction done = compact(pool, 2, SHEAF_PENDING);
    assert_int_equal(done.blocks_moved, 2);
    assert_int_equal(done.slabs_emptied, 1);
    assert_string_equal(shape(pool), "422x431"); /* slab 3, and half of slab 6 */
    done = compact(pool, 1, SHEAF_PENDING);
    assert_int_equal(done.slabs_emptied, 1);
    assert_string_equal(shape(pool), "422x44x");
    done = compact(pool, 2, SHEAF_OK);
    assert_int_equal(done.blocks_moved, 2);
    assert_int_equal(done.slabs_emptied, 1);
    assert_int_equal(compact(pool, 0, SHEAF_OK).slabs_emptied, 0);
    assert_int_equal(stats_of(pool).slabs, 4);
    tree_close(t);
}

static void no_slab_is_begun_whose_blocks_do_not_fit(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    fake_tree *t = tree_shaped(pool, "3433"); /* room: three rows, and those in three slabs */
    assert_int_equal(compact(pool, 100, SHEAF_OK).blocks_moved, 0);
    for (uint32_t i = 0; i < 4; i++)
        if (t->blocks[i].row != SHEAF_ROW_NONE) {
            tree_give(t, i);
            break;
        }
    assert_int_equal(compact(pool, 100, SHEAF_OK).blocks_moved, 2);
    assert_string_equal(shape(pool), "x444");
    tree_close(t);
}

/* Slabs 0 and 1 belong to the embedder and have room for a slab; 2 is the tree's, and full. */
static void a_full_slab_fills_the_holes_of_those_that_stay(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    fake_tree *t = tree_open(pool);
    sheaf_block host[8];
    take(pool, 0, 8, host);
    tree_take(t, 0, 4);
    give(pool, 2, host);
    give(pool, 1, host + 4);
    assert_int_equal(compact(pool, 100, SHEAF_OK).blocks_moved, 0); /* one row short */
    give(pool, 1, host + 5);
    assert_int_equal(compact(pool, 3, SHEAF_PENDING).blocks_moved, 3);
    assert_int_equal(compact(pool, 3, SHEAF_OK).slabs_emptied, 1);
    assert_string_equal(shape(pool), "44x");
    give(pool, 2, host + 2), give(pool, 2, host + 6);
    tree_close(t);
}

static void slack_and_presized_slabs_go_back(void **state)
{
    (void)state;
    sheaf_layer layers[2];
    sheaf_pool_options options = tiny_options(layers, 2, 64 * PAGE);
    options.slack_slabs = 3;
    sheaf_pool *pool = open_pool(&options);
    tree_open(pool);
    uint32_t counts[2] = {9, 5};
    assert_int_equal(sheaf_pool_presize(pool, counts), SHEAF_OK);
    sheaf_compaction done = compact(pool, 0, SHEAF_OK);
    assert_int_equal(done.bytes_returned, 5 * PAGE);
    assert_int_equal(done.slabs_emptied, 0); /* by moving */
    assert_int_equal(stats_of(pool).bytes_reserved, 0);
    tree_close(&tree);
}

/* A budget of ten pages in slabs of four: two whole ones and a short one of 8 rows. */
static void short_slabs_are_emptied_last_and_filled_to_their_end(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 10 * PAGE);
    options.slab_blocks = 16;
    sheaf_pool *pool = open_pool(&options);
    fake_tree *t = tree_open(pool);
    tree_take(t, 0, 40);
    assert_int_equal(stats_of(pool).blocks_capacity, 40);
    /* 9 of 16, 9 of 16, 2 of 8: 20 rows of room are a whole slab, and not the short one too */
    for (uint32_t i = 0; i < 40; i++)
        if ((i < 32 && i % 16 >= 9) || i >= 34) tree_give(t, i);
    sheaf_compaction done = compact(pool, 100, SHEAF_OK);
    assert_int_equal(done.blocks_moved, 9);
    assert_int_equal(done.bytes_returned, 4 * PAGE);
    assert_int_equal(stats_of(pool).blocks_capacity, 24);
    /* now 24 rows, 20 held; six must go before the short one can, and ten before the whole one */
    uint32_t given = 0;
    for (uint32_t i = 0; i < 40 && given < 4; i++)
        if (t->blocks[i].row != SHEAF_ROW_NONE) tree_give(t, i), given++;
    done = compact(pool, 100, SHEAF_OK);
    assert_int_equal(done.bytes_returned, 2 * PAGE);
    assert_int_equal(stats_of(pool).blocks_capacity, 16);
    assert_int_equal(stats_of(pool).blocks_free, 0);
    tree_close(t);
}

static void every_group_is_compacted_within_one_bound(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(3, 64 * PAGE);
    fake_tree *t = tree_open(pool);
    for (uint32_t g = 0; g < 3; g++) {
        uint32_t first = tree_take(t, g, 8);
        for (uint32_t i = 0; i < 8; i++)
            if (i % 4 >= 2) tree_give(t, first + i);
    }
    sheaf_compaction done = compact(pool, 3, SHEAF_PENDING);
    assert_int_equal(done.blocks_moved, 3);
    assert_int_equal(done.slabs_emptied, 1);
    done = compact(pool, 3, SHEAF_OK);
    assert_int_equal(done.blocks_moved, 3);
    assert_int_equal(done.slabs_emptied, 2);
    for (uint32_t g = 0; g < 3; g++) {
        sheaf_pool_stats one = SHEAF_POOL_STATS_INIT;
        assert_int_equal(sheaf_pool_group_stats(pool, g, &one), SHEAF_OK);
        assert_int_equal(one.slabs, 1);
        assert_int_equal(one.blocks_copied, 2);
    }
    tree_close(t);
}

static void compaction_takes_no_memory(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 64 * PAGE);
    watched_heap heap;
    static watched_memory watched;
    sheaf_allocator allocator = watch_heap(&heap);
    sheaf_slab_memory memory = watch_memory(&watched);
    options.allocator = &allocator;
    options.slab_memory = &memory;
    sheaf_pool *pool = open_pool(&options);
    fake_tree *t = tree_shaped(pool, "3221332");
    heap.fail_from = heap.allocs + 1;
    watched.fail_commits_from = watched.commits + 1;
    uint64_t commits = watched.commits;
    assert_int_equal(compact(pool, 100, SHEAF_OK).slabs_emptied, 3);
    assert_int_equal(heap.allocs, heap.fail_from - 1);
    assert_int_equal(watched.commits, commits);
    assert_int_equal(watched.committed_bytes, 4 * PAGE);
    tree_close(t);
    assert_int_equal(watched.misuse, 0);
}

static void arguments_are_checked_before_anything_moves(void **state)
{
    (void)state;
    sheaf_pool *pool = open_tiny(1, 64 * PAGE);
    fake_tree *t = tree_shaped(pool, "211");
    sheaf_compaction done = {.blocks_moved = 77};
    assert_int_equal(sheaf_pool_compact(NULL, 1, NULL), SHEAF_E_INVALID);
    assert_int_equal(sheaf_pool_compact(pool, 1, &done), SHEAF_E_INVALID);
    assert_int_equal(done.blocks_moved, 77);
    assert_string_equal(shape(pool), "211");
    uint64_t settled = t->settled;
    assert_int_equal(sheaf_pool_compact(pool, 1, NULL), SHEAF_PENDING);
    assert_int_equal(t->settled, settled + 1);
    struct {
        uint32_t struct_size, slabs_emptied;
        uint64_t not_asked_for;
    } shorter = {8, 9, 9};
    assert_int_equal(sheaf_pool_compact(pool, 5, (sheaf_compaction *)(void *)&shorter),
                     SHEAF_OK);
    assert_int_equal(shorter.slabs_emptied, 1);
    assert_int_equal(shorter.not_asked_for, 9);
    tree_close(t);
}

/* Rows above 2^31, in slabs of many words of bits. */
static void rows_beyond_31_bits_move_too(void **state)
{
    (void)state;
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 1ull << 42);
    options.slab_blocks = 65536;
    slow_device slow;
    sheaf__device device = slow_device_of(&slow, NULL);
    sheaf_pool *pool = NULL;
    assert_int_equal(sheaf__pool_open_on(&options, &device, 0xfffd, &pool, NULL), SHEAF_OK);
    fake_tree *t = tree_open(pool);
    sheaf_block *host = malloc(65536 * sizeof *host);
    assert_non_null(host);
    take(pool, 0, 65536, host);
    tree_take(t, 0, 100);
    assert_int_equal(t->blocks[0].row, 0xfffe0000u);
    for (uint32_t i = 5; i < 65536; i++)
        assert_int_equal(sheaf__block_release(pool, host[i], SHEAF_OWNER_HOST), SHEAF_OK);
    sheaf__pool_publish(pool);
    assert_int_equal(compact(pool, 60, SHEAF_PENDING).blocks_moved, 60);
    assert_int_equal(compact(pool, 60, SHEAF_OK).slabs_emptied, 1);
    assert_int_equal(t->blocks[0].row, 0xfffd0005u);
    assert_int_equal(t->blocks[99].row, 0xfffd0005u + 99);
    give(pool, 5, host);
    free(host);
    tree_close(t);
}

/* ---- churn --------------------------------------------------------------------------------- */

#define SLAB      32
#define INTERLEAF 8 /* requests that run at once */
#define CACHED    1945
#define KEPT      512

/* The simulation of the design: eight requests run at once, a block each in turn or nearly so, and
 * what they computed stays with the tree, of which all but a quarter is then evicted by the age of
 * the request. Slabs hardly drain by themselves; compacted, they are as few as can be. */
static void churn_leaves_no_more_than_the_mark(void **state)
{
    (void)state;
    static uint32_t request[CACHED];
    uint64_t random = testing_seed(8);
    sheaf_layer layer;
    sheaf_pool_options options = tiny_options(&layer, 1, 100 * SLAB * BLOCK);
    options.slab_blocks = SLAB;
    sheaf_pool *pool = open_pool(&options);
    fake_tree *t = tree_open(pool);
    for (uint32_t i = 0; i < CACHED; i++)
        request[tree_take(t, 0, 1)] = (uint32_t)(testing_random(&random) % INTERLEAF);
    uint32_t held = CACHED;
    for (uint32_t oldest = 0; held > KEPT; oldest++)
        for (uint32_t i = 0; i < CACHED && held > KEPT; i++)
            if (request[i] == oldest) tree_give(t, i), held--;
    uint64_t slack = SLAB * BLOCK, in_use = KEPT * BLOCK;
    sheaf_pool_stats before = stats_of(pool);
    assert_int_equal(before.bytes_in_use, in_use);
    assert_true(before.bytes_reserved > 2 * in_use); /* or there is nothing to show */
    uint32_t calls = 0;
    sheaf_compaction done = SHEAF_COMPACTION_INIT;
    while (sheaf_pool_compact(pool, 64, &done) == SHEAF_PENDING) {
        assert_int_equal(done.blocks_moved, 64);
        tree_verify(t);
        calls++;
    }
    uint64_t reserved = stats_of(pool).bytes_reserved;
    fprintf(stderr,
            "churn: %llu slabs before, %llu after, for %u blocks; %u calls, %llu moves\n",
            (unsigned long long)before.slabs, (unsigned long long)(reserved / slack), KEPT,
            calls + 1, (unsigned long long)t->moves);
    assert_true(4 * reserved <= 5 * in_use + 4 * slack);
    assert_int_equal(reserved, in_use); /* here a whole number of slabs suffices */
    tree_close(t);
}

/* ---- random pools -------------------------------------------------------------------------- */

/* What counting says of a group: rows of room in slabs in use, and the fewest rows of a slab that
 * could be emptied. Only blocks that the tree alone holds can move. */
static void count_slabs(fake_tree *t, uint32_t g, uint32_t slab_blocks, uint32_t *room,
                        uint32_t *least)
{
    static sheaf_row rows[MOST_NAMED];
    uint32_t n = sheaf_pool_rows(t->pool, g);
    assert_int_equal(sheaf_pool_map(t->pool, g, 0, n, rows), SHEAF_OK);
    *room = 0;
    *least = UINT32_MAX;
    for (uint32_t s = 0; s < n; s += slab_blocks) {
        uint32_t free = 0, cached = 0, present = 0;
        for (uint32_t i = s; i < s + slab_blocks; i++) {
            free += rows[i].state == SHEAF_ROW_FREE;
            cached += rows[i].state == SHEAF_ROW_CACHED;
            present += rows[i].state != SHEAF_ROW_ABSENT;
        }
        if (present == 0 || free == present) continue;
        *room += free;
        if (free + cached == present && present < *least) *least = present;
    }
}

/* A place that names a block; SHEAF_ROW_NONE when there is none. */
static uint32_t draw_place(const fake_tree *t, uint64_t *random)
{
    uint32_t from = t->n == 0 ? 0 : (uint32_t)(testing_random(random) % t->n);
    for (uint32_t i = 0; i < t->n; i++)
        if (t->blocks[(from + i) % t->n].row != SHEAF_ROW_NONE) return (from + i) % t->n;
    return SHEAF_ROW_NONE;
}

/* What the embedder holds: blocks of its own, and some that it shares with the tree. */
typedef struct host {
    sheaf_block blocks[8];
    uint32_t n;
} host;

/* A random take or give, by the tree or the embedder. */
static void change_pool(fake_tree *t, host *h, uint32_t g, uint32_t slab_blocks,
                        uint64_t *random)
{
    uint32_t counts[SHEAF_MAX_GROUPS] = {0}, place = draw_place(t, random);
    uint32_t what = (uint32_t)(testing_random(random) % 4);
    counts[g] = what == 0 ? 1 + (uint32_t)(testing_random(random) % (2 * slab_blocks)) : 1;
    bool fits = sheaf_pool_can_acquire(t->pool, counts) == SHEAF_OK;
    if (what == 0 && fits && t->n + counts[g] <= MOST_NAMED) tree_take(t, g, counts[g]);
    if (what == 1 && h->n < 8 && fits) take(t->pool, g, 1, &h->blocks[h->n++]);
    if (what == 2 && h->n < 8 && place != SHEAF_ROW_NONE) {
        h->blocks[h->n] = t->blocks[place];
        assert_int_equal(sheaf_pool_retain(t->pool, h->blocks[h->n++], SHEAF_OWNER_HOST),
                         SHEAF_OK);
    }
    if (what != 0 && h->n > 2) give(t->pool, 1, &h->blocks[--h->n]);
    for (uint32_t i = 0; what == 3 && i < slab_blocks; i++)
        if ((place = draw_place(t, random)) != SHEAF_ROW_NONE) tree_give(t, place);
}

/* Compacts with a small bound until nothing is left, at which no slab may be left that the room could
 * take in. Returns how many slabs fell empty. */
static uint32_t compact_wholly(fake_tree *t, uint32_t n_groups, uint32_t slab_blocks,
                               uint32_t most)
{
    uint32_t emptied = 0, room, least;
    for (bool pending = true; pending;) {
        sheaf_compaction done = SHEAF_COMPACTION_INIT;
        pending = sheaf_pool_compact(t->pool, most, &done) == SHEAF_PENDING;
        assert_true(pending ? done.blocks_moved == most : done.blocks_moved <= most);
        emptied += done.slabs_emptied;
        tree_verify(t);
    }
    for (uint32_t g = 0; g < n_groups; g++) {
        count_slabs(t, g, slab_blocks, &room, &least);
        assert_true(least > room);
    }
    return emptied;
}

static void run_random(uint32_t n_groups, uint32_t slab_blocks, uint32_t pages, uint32_t steps,
                       uint64_t *random)
{
    sheaf_layer layers[SHEAF_MAX_GROUPS];
    sheaf_pool_options options = tiny_options(layers, n_groups, (uint64_t)pages * PAGE);
    options.slab_blocks = slab_blocks;
    sheaf_pool *pool = open_pool(&options);
    fake_tree *t = tree_open(pool);
    host h = {.n = 0};
    uint32_t emptied = 0;
    for (uint32_t step = 0; step < steps; step++) {
        change_pool(t, &h, step % n_groups, slab_blocks, random);
        if (testing_random(random) % 8 != 0) continue;
        uint32_t most = 1 + (uint32_t)(testing_random(random) % (2 * slab_blocks));
        emptied += compact_wholly(t, n_groups, slab_blocks, most);
    }
    assert_true(slab_blocks == 1 ? emptied == 0 : emptied > steps / 100);
    give(pool, h.n, h.blocks);
    tree_close(t);
}

static void no_slab_is_left_that_the_room_could_take_in(void **state)
{
    (void)state;
    uint64_t random = testing_seed(4711);
    run_random(1, 4, 40, 3000, &random);
    run_random(2, 4, 60, 3000, &random);
    run_random(1, 16, 43, 1000, &random);
    run_random(3, 16, 70, 1000, &random);
    run_random(2, 128, 150, 200, &random); /* several words of bits, and of lists */
    run_random(1, 1, 40, 1000, &random);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_emptiest_slabs_go_into_the_fullest),
        cmocka_unit_test(a_moved_block_is_the_same_under_a_new_handle),
        cmocka_unit_test(slabs_with_a_block_that_cannot_move_stay),
        cmocka_unit_test(max_blocks_bounds_a_call_and_the_next_goes_on),
        cmocka_unit_test(no_slab_is_begun_whose_blocks_do_not_fit),
        cmocka_unit_test(a_full_slab_fills_the_holes_of_those_that_stay),
        cmocka_unit_test(slack_and_presized_slabs_go_back),
        cmocka_unit_test(short_slabs_are_emptied_last_and_filled_to_their_end),
        cmocka_unit_test(every_group_is_compacted_within_one_bound),
        cmocka_unit_test(compaction_takes_no_memory),
        cmocka_unit_test(arguments_are_checked_before_anything_moves),
        cmocka_unit_test(rows_beyond_31_bits_move_too),
        cmocka_unit_test(churn_leaves_no_more_than_the_mark),
        cmocka_unit_test(no_slab_is_left_that_the_room_could_take_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
