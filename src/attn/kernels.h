/* attn/kernels.h - the arithmetic of attention as each instruction set provides it.
 *
 * Owns: the table of functions that plan and run dispatch through, and the structs they take. A
 * kernel sees addresses and numbers only: whether the keys lie in blocks, in one buffer or in the
 * workspace of a gather has been resolved by its caller into one address a position.
 *
 * The scalar form (kernels_scalar.c) is written from the text of sheaf/attn.h; each other form
 * must give the same bits and shares no arithmetic with it; only turbo4's rotation is the codec's.
 *
 * Words: a query row is one query of one query head; the rows of a tile share their KV head. Tiles
 * of few rows may come together, one for each of several neighbouring KV heads.
 */
#ifndef SHEAF_ATTN_KERNELS_H
#define SHEAF_ATTN_KERNELS_H

#include "sheaf/attn.h"

#define SHEAF__ATTN_SPLIT SHEAF_ATTN_SPLIT_TOKENS
#define SHEAF__ATTN_ROWS  96 /* of a tile at most: four by three vectors of eight */
#define SHEAF__ATTN_KEYS  64 /* positions widened at a time where a tile has many rows */
#define SHEAF__ATTN_PAD   16 /* rows of scratch are padded to a multiple, with zeros */
#define SHEAF__ATTN_ALIGN 64 /* bytes */

/* What a tile of query rows has seen so far. A row with l == 0 has seen nothing: then its m and o
 * mean nothing. (Otherwise l >= 1, the share of the maximum itself.) */
typedef struct sheaf__attn_part {
    float *m; /* [rows] */
    float *l; /* [rows] */
    float *o; /* [rows, o_stride] */
} sheaf__attn_part;

/* Where the finished rows of a tile go. */
typedef struct sheaf__attn_rows {
    uint32_t n_rows;
    uint32_t value_dim;
    uint32_t o_stride;
    uint32_t codec_v;
    const float *sinks; /* [n_rows], or null */
    float *const *out;  /* [n_rows] addresses of [value_dim] */
} sheaf__attn_rows;

/* One split against a tile of query rows: of one KV head, or of several with as many rows each. Then
 * the rows of a head follow those of the head before, and key p of head h lies at k[p] + h *
 * k_head_stride; so few rows each that there are SHEAF__ATTN_ROWS at most in all. */
typedef struct sheaf__attn_split {
    uint32_t n_rows;  /* 1 to SHEAF__ATTN_ROWS, of each head */
    uint32_t n_heads; /* 1 unless the kernels take more and neither codec is quantized */
    /* so many positions of a head are read, then those of the next head; a power of two from 16 to
     * SHEAF__ATTN_SPLIT */
    uint32_t piece;
    uint64_t k_head_stride; /* bytes, where there are several heads */
    uint64_t v_head_stride;
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t o_stride; /* value_dim rounded up to SHEAF__ATTN_PAD */
    uint32_t codec_k;
    uint32_t codec_v;
    float scale;
    float softcap;                 /* 0: none */
    const float *const *q;         /* [n_heads, n_rows] addresses of [key_dim] */
    const uint32_t *lo;            /* [n_rows] the row sees positions [lo, hi) of the split */
    const uint32_t *hi;            /* [n_rows] hi <= lo: none */
    uint32_t first;                /* least lo and greatest hi of rows that see something */
    uint32_t end;                  /* first < end <= SHEAF__ATTN_SPLIT */
    const unsigned char *const *k; /* [SHEAF__ATTN_SPLIT] addresses of [key_dim] encoded, */
    const unsigned char *const *v; /* and of [value_dim]; set in [first, end) */
    const float *k_scale; /* [SHEAF__ATTN_SPLIT] of the positions' rows; set in [first, end) */
    const float *v_scale; /* where the codec is quantized */
    const unsigned char *const *next_k; /* [n_next] keys of the next split, to be fetched */
    uint32_t n_next;                    /* 0: there is none */
    float *scratch;                     /* sheaf__attn_scratch_floats(), aligned */
} sheaf__attn_split;

typedef struct sheaf__attn_kernels {
    uint32_t isa;
    uint32_t together; /* tiles of fewer rows than this may come for several heads; 0: none */
    /* Readies the scratch for the query rows; before the first split() of a tile. Reads n_rows,
     * n_heads, key_dim, q and codec_k: for quantized keys the queries are rotated and rounded to
     * levels. */
    void (*pack)(const sheaf__attn_split *in);
    /* Computes the part of one split, of all rows of all heads. */
    void (*split)(const sheaf__attn_split *in, sheaf__attn_part out);
    /* left = left then right, row by row; a row that one side lacks passes unchanged. */
    void (*merge)(uint32_t n_rows, uint32_t value_dim, uint32_t o_stride, sheaf__attn_part left,
                  sheaf__attn_part right);
    /* Lets the sinks join (null: none; [n_rows]), divides, rotates back what turbo4 rotated, and
     * writes the rows. */
    void (*finish)(const sheaf__attn_rows *rows, sheaf__attn_part part);
    /* Widens n numbers of a raw codec exactly. */
    void (*widen)(uint32_t codec, const unsigned char *src, uint32_t n, float *dst);
} sheaf__attn_kernels;

/* The table of a resolved instruction set; null when this build has none. */
const sheaf__attn_kernels *sheaf__attn_kernels_of(uint32_t isa);

extern const sheaf__attn_kernels sheaf__attn_scalar;
#if defined(__x86_64__)
extern const sheaf__attn_kernels sheaf__attn_avx2;
extern const sheaf__attn_kernels sheaf__attn_avx512;
#elif defined(__aarch64__)
extern const sheaf__attn_kernels sheaf__attn_neon;
#endif

static inline uint32_t sheaf__attn_padded(uint32_t dim)
{
    return (dim + SHEAF__ATTN_PAD - 1) & ~(uint32_t)(SHEAF__ATTN_PAD - 1);
}

/* Scratch of one thread, in floats:
 *   scores   [SHEAF__ATTN_SPLIT, SHEAF__ATTN_ROWS] in either order
 *   queries  [SHEAF__ATTN_ROWS, padded key_dim] in either order; or their levels, rows of int16
 *            padded to at most twice as many
 *   units    [SHEAF__ATTN_ROWS] of the levels
 *   widened  [SHEAF__ATTN_KEYS, padded key_dim or value_dim] */
static inline uint64_t sheaf__attn_scratch_queries(void)
{
    return (uint64_t)SHEAF__ATTN_SPLIT * SHEAF__ATTN_ROWS;
}

static inline uint64_t sheaf__attn_scratch_units(uint32_t key_dim)
{
    return sheaf__attn_scratch_queries() +
           (uint64_t)SHEAF__ATTN_ROWS * sheaf__attn_padded(key_dim);
}

static inline uint64_t sheaf__attn_scratch_widened(uint32_t key_dim)
{
    return sheaf__attn_scratch_units(key_dim) + SHEAF__ATTN_ROWS;
}

static inline uint64_t sheaf__attn_scratch_floats(uint32_t key_dim, uint32_t value_dim)
{
    uint32_t dim = sheaf__attn_padded(key_dim > value_dim ? key_dim : value_dim);
    return sheaf__attn_scratch_widened(key_dim) + (uint64_t)SHEAF__ATTN_KEYS * dim;
}

/* Bytes of one number of a raw codec. */
static inline uint32_t sheaf__attn_number_bytes(uint32_t codec)
{
    return codec == SHEAF_CODEC_F32 ? 4 : 2;
}

#endif
