/* attn/cuda/decode.h - attention of one query a sequence, laid out: tables, tilings, launches.
 *
 * Owns: how a context is cut for decoding, and what the kernels are told. Does not own: plans.
 *
 *     leaf    64 absolute positions: scores, exact maximum, exponentials, one sum over positions
 *     chunk   4 leaves merged in ascending order
 *     span    4 chunks (1024 positions) merged in ascending order
 *     result  its spans merged in ascending order, then the sink
 *     unit    the leaves of one item in one chunk or one span: what four warps (a team) compute for
 *             one KV head, a leaf or a chunk each warp
 *     part    a unit's sums, left in the workspace where an item has several; who leaves the last one
 *             merges them
 *     set     items whose first spans lie in the same rows: read once for all of them
 *
 * Every cut is at an absolute position and every merge has one order, so that a result does not
 * depend on what a unit is.
 */
#ifndef SHEAF_ATTN_CUDA_DECODE_H
#define SHEAF_ATTN_CUDA_DECODE_H

#include "attn/cuda/batch.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHEAF__CUDA_LEAF         64
#define SHEAF__CUDA_CHUNK_LEAVES 4
#define SHEAF__CUDA_SPAN_LEAVES  16
#define SHEAF__CUDA_SPAN         1024

#define SHEAF__CUDA_MAX_SHARED (227 * 1024) /* bytes of a block, of compute capability 9.0 */
#define SHEAF__CUDA_WARPS      4            /* of a team */
#define SHEAF__CUDA_NO_MERGE   UINT32_MAX

/* When a kernel waits for the one before it. At the end: that one reads what this one reads, too, and
 * has itself waited for what wrote it. */
enum { SHEAF__CUDA_WAITS_NEVER = 0, SHEAF__CUDA_WAITS_FIRST = 1, SHEAF__CUDA_WAITS_LAST = 2 };

/* 32 bytes, so that a warp learns all of it by one load. */
typedef struct sheaf__cuda_unit {
    uint32_t rows_at; /* the row of block b is rows[(uint32_t)(rows_at + b)] */
    uint32_t lo, hi;  /* positions that the item's query sees */
    uint32_t query;   /* of q and out */
    uint32_t first_leaf, end_leaf;
    uint32_t merge; /* of merges, or NO_MERGE: the unit leaves the result */
    uint32_t
        part_each; /* 8 * its part, counted from the merge's first, + leaves of a warp: 1, 4 */
} sheaf__cuda_unit;

/* One item's parts, in order: those of its prefix's spans, then its own. 32 bytes. */
typedef struct sheaf__cuda_merge {
    uint32_t part, n_parts; /* its own; with 0 one unit arrives that leaves none */
    uint32_t first;         /* absolute index of its first own chunk or span */
    uint32_t chunks;        /* 1: parts are of chunks, 0: of spans */
    uint32_t prefix_part, prefix_spans, prefix_stride;
    uint32_t reserved;
} sheaf__cuda_merge;

/* Some spans of a set, for some of its items. */
typedef struct sheaf__cuda_prefix_unit {
    uint32_t rows_at;
    uint32_t first_span, end_span;
    uint32_t members_at, n_members; /* queries: members[members_at ...) */
    uint32_t first_row;             /* of the set's n_members * group query rows */
    uint32_t part; /* of span 0 and member 0; the next span's are n_members on */
    uint32_t reserved;
} sheaf__cuda_prefix_unit;

/* Masks for turbo4: of four bits of each byte, of a code's place among its eight, of the bit that says
 * which eight; and the bytes of a word in order, a digit each. */
#define SHEAF__CUDA_MASKS                                                                      \
    {                                                                                          \
        0x0f0f0f0fu, 0x77777777u, 0x44444444u, 0x32103210u                                     \
    }

/* A launch. Pointers are the device's; passed by value into kernels. */
typedef struct sheaf__cuda_decode {
    const unsigned char *base;
    uint64_t row_stride_k, row_stride_v, k_offset, v_offset, k_head_stride, v_head_stride;
    const void *q;
    void *out;
    float *parts; /* [part][n_q_heads][dim + 4]: o, then m and l */
    const float *sinks;
    const uint32_t *rows;
    const sheaf__cuda_unit *units;
    const sheaf__cuda_merge *merges;
    const sheaf__cuda_prefix_unit *prefix_units;
    const uint32_t *members;
    uint32_t *arrived;  /* [n_merges][n_q_heads]: units that have left parts; at last 0 again */
    uint32_t *taken;    /* requests for one more unit, as many as units; at last 0 again */
    uint64_t signs[4];  /* of turbo4's rotation */
    uint32_t levels[4]; /* of turbo4's codes, a byte each */
    uint32_t masks[4];  /* SHEAF__CUDA_MASKS */
    float scale, softcap;
    uint32_t n_units, n_merges, n_prefix_units;
    uint32_t n_q_heads, n_kv_heads, group;
    uint32_t block_shift; /* log2 of block_tokens: 4 to 6 */
    uint32_t codec, dim, io_dtype;
    uint32_t n_blocks; /* at most: one a multiprocessor */
    uint32_t slots;    /* of a warp's ring */
    uint32_t overlap;  /* kernels are launched before those they wait for have ended */
    uint32_t waits;    /* when units wait for the kernel before: WAITS_... */
    uint32_t dealt;   /* 1: units are chunks, dealt in turn; 0: some are taken by the counter */
    uint32_t nothing; /* 0, which compilers cannot know */
    uint32_t settled; /* positions before a query's own were in place when it was planned */
} sheaf__cuda_decode;

/* Whether the kernels read this layer into that type. SHEAF_E_UNSUPPORTED: they do not. */
SHEAF_WARN sheaf_status sheaf__cuda_decode_check(const sheaf_kv_view *view, uint32_t io_dtype);

/* Host and kernels size the same memory: the kernels' own constants are compared with these while
 * they are compiled (decode_launch.cuh). */
#ifdef __cplusplus
#    define SHEAF__CUDA_INLINE static constexpr inline
#else
#    define SHEAF__CUDA_INLINE static inline
#endif

/* Teams of a multiprocessor. */
SHEAF__CUDA_INLINE uint32_t sheaf__cuda_teams(uint32_t codec, uint32_t dim)
{
    return dim == 256 && codec != SHEAF_CODEC_TURBO4 ? 1 : 2;
}

/* Bytes of shared memory of a team. */
SHEAF__CUDA_INLINE uint32_t sheaf__cuda_team_bytes(uint32_t codec, uint32_t dim)
{
    return SHEAF__CUDA_MAX_SHARED / sheaf__cuda_teams(codec, dim) / 1024 * 1024;
}

/* Query heads that a unit is computed for, at most. */
SHEAF__CUDA_INLINE uint32_t sheaf__cuda_columns(uint32_t group)
{
    return group < 8 ? group : 8;
}

/* Parts that there is room for, to be merged, beside a team's rings; less than none where there is no
 * room for the rings. */
SHEAF__CUDA_INLINE int32_t sheaf__cuda_merge_room(uint32_t codec, uint32_t dim, uint32_t group,
                                                  uint32_t slots)
{
    const uint32_t part = 4 * (dim + 4);
    const uint32_t scales = codec <= SHEAF_CODEC_BF16 ? 0 : 256; /* beside a slot */
    const uint32_t slot = codec == SHEAF_CODEC_TURBO4 ? 32 * dim : 64 * dim;
    const uint32_t parts = (2 * sheaf__cuda_columns(group) * part + 127) / 128 * 128;
    const uint32_t queries = codec <= SHEAF_CODEC_BF16
                                 ? 32 * dim
                                 : 4 * dim * sheaf__cuda_columns(group) + 16 * dim + 128;
    const uint32_t head = 896 + queries + parts + SHEAF__CUDA_WARPS * (128 + slots * scales);
    const uint32_t taken = head + SHEAF__CUDA_WARPS * slots * slot;
    return ((int32_t)sheaf__cuda_team_bytes(codec, dim) - (int32_t)taken) / (int32_t)part;
}

/* Query rows that a prefix unit takes at once. */
SHEAF__CUDA_INLINE uint32_t sheaf__cuda_prefix_rows(uint32_t dim)
{
    return dim == 256 ? 64 : 128;
}

/* Floats of one query head's part. */
SHEAF__CUDA_INLINE uint64_t sheaf__cuda_part_floats(uint32_t dim)
{
    return dim + 4u;
}

/* Queues prefix units and units of one layer. SHEAF_E_DEVICE. */
SHEAF_WARN sheaf_status sheaf__cuda_decode_run(const sheaf__cuda_decode *layer, void *stream);

#ifdef __cplusplus
}
#endif
#endif
