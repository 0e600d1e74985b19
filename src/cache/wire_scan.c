/* cache/wire_scan.c - a stream checked without a pool; and the sequences in it as counts and lists. */
#include "base/bits.h"
#include "cache/progress.h"
#include "cache/wire.h"

/* ---- sequences ----------------------------------------------------------------------------- */

/* Whether a group's part can be that of so many tokens. */
static bool held_fits(const sheaf__wire_head *head, const sheaf__wire_sequence *sequence,
                      uint32_t g)
{
    uint32_t blocks = sheaf__blocks_of(sequence->n_tokens, head->block_tokens);
    uint32_t begin = sheaf__visible_begin(sequence->n_tokens, head->groups[g].window);
    uint64_t end = (uint64_t)sequence->held[g].first + sequence->held[g].n;
    return end == blocks && sequence->held[g].first <= begin / head->block_tokens &&
           sequence->held[g].n <= head->groups[g].n_blocks;
}

sheaf_status sheaf__wire_in_open_sequence(sheaf__wire_in *in, const sheaf__wire_head *head,
                                          sheaf__wire_sequence *sequence, uint64_t *n_tokens)
{
    SHEAF__TRY(sheaf__wire_in_open(in, SHEAF__WIRE_SEQN));
    uint64_t counts = (2 + 2ull * head->n_groups) * sizeof(uint32_t);
    SHEAF__TRY(sheaf__wire_in_get(in, sequence, counts));
    if (sequence->n_tokens > INT32_MAX || sequence->reserved != 0)
        return sheaf__wire_in_wrong(in, "a sequence of more tokens than can be");
    uint64_t words = sequence->n_tokens;
    for (uint32_t g = 0; g < head->n_groups; g++) {
        if (!held_fits(head, sequence, g))
            return sheaf__wire_in_wrong(in,
                                        "a sequence holds other blocks than its tokens take");
        words += sequence->held[g].n;
    }
    if (in->left != words * sizeof(uint32_t))
        return sheaf__wire_in_wrong(in, "a sequence's frame does not have its size");
    *n_tokens += sequence->n_tokens;
    return SHEAF_OK;
}

sheaf_status sheaf__wire_in_name(const sheaf__wire_in *in, const sheaf__wire_head *head,
                                 uint32_t group, uint32_t number, uint64_t *n_named)
{
    if (number > *n_named || number >= head->groups[group].n_blocks)
        return sheaf__wire_in_wrong(in, "a block is named out of its order");
    *n_named += number == *n_named;
    return SHEAF_OK;
}

sheaf_status sheaf__wire_in_named_all(const sheaf__wire_in *in, const sheaf__wire_head *head,
                                      uint64_t n_tokens, const uint64_t *n_named)
{
    if (n_tokens != head->n_tokens)
        return sheaf__wire_in_wrong(in, "the sequences have other tokens than the head counts");
    for (uint32_t g = 0; g < head->n_groups; g++)
        if (n_named[g] != head->groups[g].n_blocks)
            return sheaf__wire_in_wrong(in,
                                        "the sequences name other blocks than the head counts");
    return SHEAF_OK;
}

/* ---- scanning ------------------------------------------------------------------------------ */

#define PIECE 1024 /* ids, or numbers of blocks, looked at together */

/* One scan. */
typedef struct scan {
    sheaf__wire_in in;
    sheaf__wire_head head;
    const sheaf__wire_hooks *hooks;
} scan;

static sheaf_status scan_tokens(scan *s, uint64_t left)
{
    int32_t tokens[PIECE];
    while (left != 0) {
        uint64_t n = sheaf__min_u64(left, PIECE);
        SHEAF__TRY(sheaf__wire_in_get(&s->in, tokens, n * sizeof tokens[0]));
        if (s->hooks->on_tokens != NULL)
            s->hooks->on_tokens(s->hooks->ctx, tokens, (uint32_t)n);
        left -= n;
    }
    return SHEAF_OK;
}

static sheaf_status scan_sequence(scan *s, uint64_t *n_tokens, uint64_t *n_named)
{
    sheaf__wire_sequence sequence = {0};
    uint32_t numbers[PIECE];
    SHEAF__TRY(sheaf__wire_in_open_sequence(&s->in, &s->head, &sequence, n_tokens));
    if (s->hooks->on_sequence != NULL) s->hooks->on_sequence(s->hooks->ctx, &sequence);
    SHEAF__TRY(scan_tokens(s, sequence.n_tokens));
    for (uint32_t g = 0; g < s->head.n_groups; g++)
        for (uint64_t left = sequence.held[g].n; left != 0;) {
            uint64_t n = sheaf__min_u64(left, PIECE);
            SHEAF__TRY(sheaf__wire_in_get(&s->in, numbers, n * sizeof numbers[0]));
            for (uint64_t i = 0; i < n; i++)
                SHEAF__TRY(sheaf__wire_in_name(&s->in, &s->head, g, numbers[i], &n_named[g]));
            left -= n;
        }
    return sheaf__wire_in_close(&s->in);
}

static sheaf_status scan_name(scan *s)
{
    int32_t tokens[SHEAF__WIRE_MAX_TOKENS];
    sheaf_key key;
    SHEAF__TRY(sheaf__wire_in_names(&s->in, &s->head, &key, tokens));
    if (s->hooks->on_key != NULL) s->hooks->on_key(s->hooks->ctx, &key);
    if (s->hooks->on_tokens != NULL)
        s->hooks->on_tokens(s->hooks->ctx, tokens, s->head.block_tokens);
    return SHEAF_OK;
}

static sheaf_status scan_sequences(scan *s)
{
    uint64_t n_tokens = 0, n_named[SHEAF_MAX_GROUPS] = {0};
    for (uint32_t i = 0; i < s->head.n_sequences; i++)
        SHEAF__TRY(scan_sequence(s, &n_tokens, n_named));
    return sheaf__wire_in_named_all(&s->in, &s->head, n_tokens, n_named);
}

/* The layout that a head's layers make; nothing of a pool's is known. */
static sheaf_status layout_of(const sheaf__wire_head *head, sheaf__memory *memory,
                              sheaf__layout *out, sheaf_error *err)
{
    for (uint32_t i = 0; i < head->n_layers; i++)
        if (head->layers[i].value_dim == 0 && head->layers[i].codec_v != 0)
            return sheaf__error_set(err, SHEAF_E_FORMAT,
                                    "layer %u has no values, but a codec for them", i);
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = head->layers;
    options.n_layers = head->n_layers;
    options.block_tokens = head->block_tokens;
    options.slab_blocks = 1;
    sheaf_status st = sheaf__layout_create(&options, SHEAF__TILE_ALIGN, memory, out, err);
    if (st == SHEAF_OK || st == SHEAF_E_NO_MEMORY) return st;
    st = st == SHEAF_E_CODEC ? SHEAF_E_FOREIGN : SHEAF_E_FORMAT;
    if (err != NULL) err->status = st;
    return st;
}

static sheaf_status check_layout(const sheaf__wire_head *head, sheaf__memory *memory,
                                 sheaf_error *err)
{
    sheaf__layout layout;
    SHEAF__TRY(layout_of(head, memory, &layout, err));
    sheaf_status st = sheaf__wire_head_agrees(head, &layout, err);
    sheaf__layout_destroy(&layout, memory);
    return st;
}

static sheaf_status scan_all(scan *s)
{
    sheaf__wire_in *in = &s->in;
    sheaf__wire_head *head = &s->head;
    SHEAF__TRY(sheaf__wire_head_get(head, in));
    SHEAF__TRY(check_layout(head, in->memory, in->err));
    SHEAF__TRY(head->carries == SHEAF__WIRE_SEQUENCES ? scan_sequences(s) : scan_name(s));
    for (uint32_t g = 0; g < head->n_groups; g++)
        for (uint64_t number = 0; number < head->groups[g].n_blocks; number++) {
            SHEAF__TRY(sheaf__wire_in_open_block(in, head, g, number));
            SHEAF__TRY(sheaf__wire_in_get(in, NULL, head->groups[g].block_bytes));
            SHEAF__TRY(sheaf__wire_in_close(in));
        }
    return sheaf__wire_in_finish(in);
}

static sheaf_wire_info info_of(const sheaf__wire_head *head, uint32_t n_frames)
{
    sheaf_wire_info info = {.version = SHEAF__WIRE_VERSION,
                            .kind = head->carries,
                            .n_layers = head->n_layers,
                            .n_groups = head->n_groups,
                            .block_tokens = head->block_tokens,
                            .n_sequences = head->n_sequences,
                            .n_frames = n_frames,
                            .n_tokens = head->n_tokens,
                            .n_bytes = head->n_bytes,
                            .layout_fingerprint = head->fingerprint,
                            .space = head->space};
    for (uint32_t g = 0; g < head->n_groups; g++) {
        info.blocks[g] = head->groups[g].n_blocks;
        info.block_bytes[g] = head->groups[g].block_bytes;
        info.windows[g] = head->groups[g].window;
    }
    return info;
}

sheaf_status sheaf__wire_scan(const sheaf_source *source, const sheaf__wire_hooks *hooks,
                              sheaf_wire_info *out, sheaf_error *err)
{
    if (source == NULL || source->read == NULL || out == NULL ||
        out->struct_size < sizeof out->struct_size)
        return sheaf__error_set(err, SHEAF_E_INVALID, "nothing to scan, or nowhere to");
    sheaf__memory memory;
    sheaf__memory_init(&memory, NULL);
    scan s = {.hooks = hooks};
    sheaf_status st = sheaf__wire_in_begin(&s.in, source, &memory, err);
    s.in.on_frame = hooks->on_frame;
    s.in.on_frame_ctx = hooks->ctx;
    if (st == SHEAF_OK) st = scan_all(&s);
    if (st == SHEAF_OK) {
        sheaf_wire_info info = info_of(&s.head, s.in.n_frames);
        st = sheaf__struct_give(out, &info, sizeof info);
    }
    sheaf__wire_head_free(&s.head, &memory);
    sheaf__wire_in_end(&s.in);
    return st;
}

sheaf_status sheaf_wire_scan(const sheaf_source *source, sheaf_frame_fn *on_frame, void *ctx,
                             sheaf_wire_info *out, sheaf_error *err)
{
    const sheaf__wire_hooks hooks = {.ctx = ctx, .on_frame = on_frame};
    return sheaf__wire_scan(source, &hooks, out, err);
}
