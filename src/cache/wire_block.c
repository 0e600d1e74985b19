/* cache/wire_block.c - single blocks, named by their content keys. */
#include <string.h>

#include "cache/wire.h"

typedef struct block_name {
    sheaf_key parent;
    sheaf_key key;
} block_name;

/* ---- out ----------------------------------------------------------------------------------- */

/* Counts the blocks that are given; each is live and of its group. */
static sheaf_status check_blocks(const sheaf_pool *pool, const sheaf_block *blocks,
                                 sheaf__wire_head *head, sheaf_error *err)
{
    for (uint32_t g = 0; g < head->n_groups; g++) {
        if (blocks[g].row == SHEAF_ROW_NONE) {
            if (head->groups[g].window == 0)
                return sheaf__error_set(err, SHEAF_E_INVALID,
                                        "group %u has no window, and no block", g);
            continue;
        }
        if (blocks[g].group != g)
            return sheaf__error_set(err, SHEAF_E_INVALID, "block %u is of group %u", g,
                                    blocks[g].group);
        if (sheaf__pool_live(pool, blocks[g]) == NULL)
            return sheaf__error_set(err, SHEAF_E_STALE, "the block of group %u was freed", g);
        head->groups[g].n_blocks = 1;
    }
    return SHEAF_OK;
}

static uint64_t name_bytes(const sheaf__wire_head *head)
{
    return sizeof(block_name) + head->block_tokens * sizeof(int32_t);
}

static sheaf_status put_all(sheaf__wire_out *out, const sheaf_pool *pool,
                            const sheaf__wire_head *head, const sheaf_block *blocks,
                            const block_name *name, const int32_t *tokens)
{
    SHEAF__TRY(sheaf__wire_head_put(head, sheaf__pool_layout(pool), out));
    sheaf__wire_out_open(out, SHEAF__WIRE_NAME, name_bytes(head));
    sheaf__wire_out_put(out, name, sizeof *name);
    sheaf__wire_out_put(out, tokens, head->block_tokens * sizeof *tokens);
    SHEAF__TRY(sheaf__wire_out_close(out));
    for (uint32_t g = 0; g < head->n_groups; g++)
        if (head->groups[g].n_blocks != 0)
            SHEAF__TRY(
                sheaf__wire_out_block(out, pool, blocks[g], 0, head->block_tokens, NULL));
    return sheaf__wire_out_finish(out);
}

sheaf_status sheaf_wire_save_block(sheaf_pool *pool, const sheaf_block *blocks,
                                   const sheaf_key *parent, const int32_t *tokens,
                                   const sheaf_sink *sink, sheaf_error *err)
{
    if (pool == NULL || blocks == NULL || parent == NULL || tokens == NULL || sink == NULL ||
        sink->write == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "no block to save, or nowhere to");
    sheaf__wire_head head;
    sheaf__wire_head_init(&head, sheaf__pool_layout(pool));
    head.carries = SHEAF__WIRE_BLOCK;
    head.n_tokens = head.block_tokens;
    SHEAF__TRY(check_blocks(pool, blocks, &head, err));
    block_name name = {.parent = *parent};
    sheaf_status st = sheaf_key_next(parent, tokens, head.block_tokens, &name.key);
    if (st == SHEAF_OK && !sheaf__wire_head_stream_bytes(&head, &head.n_bytes))
        st = SHEAF_E_OVERFLOW;
    if (st != SHEAF_OK)
        return sheaf__error_set(err, st, "the block has no name: %s", sheaf_status_text(st));
    head.n_bytes += SHEAF__WIRE_FRAME + name_bytes(&head);
    sheaf__wire_out out;
    st = sheaf__wire_out_begin(&out, sink, sheaf__pool_memory(pool), err);
    if (st == SHEAF_OK) st = put_all(&out, pool, &head, blocks, &name, tokens);
    sheaf__wire_out_end(&out);
    return st;
}

/* ---- in ------------------------------------------------------------------------------------ */

sheaf_status sheaf__wire_in_names(sheaf__wire_in *in, const sheaf__wire_head *head,
                                  sheaf_key *key, int32_t *tokens)
{
    int32_t own[SHEAF__WIRE_MAX_TOKENS];
    block_name name;
    sheaf_key computed;
    SHEAF__TRY(sheaf__wire_in_open(in, SHEAF__WIRE_NAME));
    if (head->block_tokens > SHEAF__WIRE_MAX_TOKENS || in->frame_bytes != name_bytes(head))
        return sheaf__wire_in_wrong(in, "a block's name does not have its size");
    SHEAF__TRY(sheaf__wire_in_get(in, &name, sizeof name));
    SHEAF__TRY(sheaf__wire_in_get(in, own, head->block_tokens * sizeof own[0]));
    SHEAF__TRY(sheaf__wire_in_close(in));
    sheaf_status st = sheaf_key_next(&name.parent, own, head->block_tokens, &computed);
    if (st != SHEAF_OK)
        return sheaf__error_set(in->err, st, "the key cannot be computed: %s",
                                sheaf_status_text(st));
    if (memcmp(&computed, &name.key, sizeof computed) != 0)
        return sheaf__wire_in_wrong(in, "the key is not that of the tokens");
    if (key != NULL) *key = computed;
    if (tokens != NULL) memcpy(tokens, own, head->block_tokens * sizeof own[0]);
    return SHEAF_OK;
}

typedef struct load {
    sheaf_pool *pool;
    sheaf__wire_in in;
    sheaf__wire_head head;
    sheaf_block taken[SHEAF_MAX_GROUPS]; /* [n_taken], in the order of groups */
    uint32_t n_taken;
    int32_t tokens[SHEAF__WIRE_MAX_TOKENS];
} load;

static sheaf_status take_blocks(load *l)
{
    uint32_t counts[SHEAF_MAX_GROUPS] = {0}, n = 0;
    for (uint32_t g = 0; g < l->head.n_groups; g++)
        n += counts[g] = (uint32_t)l->head.groups[g].n_blocks;
    sheaf_status st = sheaf_pool_acquire(l->pool, counts, SHEAF_OWNER_HOST, l->taken);
    if (st != SHEAF_OK)
        return sheaf__error_set(l->in.err, st, "the pool has no room for the block");
    l->n_taken = n;
    return SHEAF_OK;
}

static sheaf_status get_all(load *l, const sheaf_key *key)
{
    const sheaf__layout *layout = sheaf__pool_layout(l->pool);
    sheaf_key named;
    SHEAF__TRY(sheaf__wire_head_get(&l->head, &l->in));
    SHEAF__TRY(sheaf__wire_head_suits(&l->head, SHEAF__WIRE_BLOCK, layout, NULL, l->in.err));
    SHEAF__TRY(sheaf__wire_in_names(&l->in, &l->head, &named, l->tokens));
    if (key != NULL && memcmp(key, &named, sizeof named) != 0)
        return sheaf__error_set(l->in.err, SHEAF_E_FOREIGN,
                                "the block is not the one of the key that was asked for");
    SHEAF__TRY(take_blocks(l));
    for (uint32_t i = 0; i < l->n_taken; i++)
        SHEAF__TRY(sheaf__wire_in_block(&l->in, &l->head, l->pool, l->taken[i], 0));
    return sheaf__wire_in_finish(&l->in);
}

static void hand_out(const load *l, sheaf_block *blocks, int32_t *tokens)
{
    uint32_t next = 0;
    for (uint32_t g = 0; g < l->head.n_groups; g++) {
        bool there = l->head.groups[g].n_blocks != 0;
        blocks[g] = there ? l->taken[next++] : (sheaf_block){g, SHEAF_ROW_NONE, 0};
    }
    memcpy(tokens, l->tokens, l->head.block_tokens * sizeof *tokens);
}

sheaf_status sheaf_wire_load_block(sheaf_pool *pool, const sheaf_key *key,
                                   const sheaf_source *source, sheaf_block *blocks,
                                   int32_t *tokens, sheaf_error *err)
{
    if (pool == NULL || source == NULL || source->read == NULL || blocks == NULL ||
        tokens == NULL)
        return sheaf__error_set(err, SHEAF_E_INVALID, "no block to load, or nowhere to");
    load l = {.pool = pool};
    sheaf_status st = sheaf__wire_in_begin(&l.in, source, sheaf__pool_memory(pool), err);
    if (st == SHEAF_OK) st = get_all(&l, key);
    if (st == SHEAF_OK) hand_out(&l, blocks, tokens);
    for (uint32_t i = 0; st != SHEAF_OK && i < l.n_taken; i++) {
        sheaf_status released = sheaf__block_release(pool, l.taken[i], SHEAF_OWNER_HOST);
        SHEAF__ASSERT(released == SHEAF_OK);
        (void)released;
    }
    sheaf__wire_head_free(&l.head, sheaf__pool_memory(pool));
    sheaf__wire_in_end(&l.in);
    sheaf__pool_publish(pool);
    return st;
}
