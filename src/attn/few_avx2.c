/* attn/few_avx2.c - fewer than FEW_ROWS query rows (decode): vectors along the head dimension.
 *
 * K and V are widened in registers as they are read, once for every four query rows, sixteen numbers
 * (a chunk) at a time; lines of what comes are fetched between (attn/fetch.h). A chunk goes as two
 * vectors, one after the other so that twelve sums fit the registers:
 *
 *     f32, f16, int8   its first half, its second half
 *     bf16             its even numbers, its odd ones: one is a shift, the other a mask of the same 32
 *                      bytes. Queries are packed alike; outputs are put in order at the end
 *
 * Either way lane i of the 16 lanes is number i of every chunk. Rows of turbo4 values are looked up
 * into bf16 a few at a time; its keys and those of int8 are in levels_avx2.c.
 */
#if defined(__x86_64__)

#    include "attn/vector_avx2.h"

#    define CHUNK 16 /* numbers */
#    define STEP  16 /* positions of V between changes of the output columns */
#    define STEPS 2  /* at a time where values are looked up first, and so lie in L1 */

/* Half of the chunk at p. */
INLINE __m256 widen_half(const uint32_t codec, const int half, const unsigned char *p)
{
    if (codec == SHEAF_CODEC_BF16) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
        return _mm256_castsi256_ps(half == 0 ? _mm256_slli_epi32(x, 16)
                                             : _mm256_and_si256(x, _mm256_set1_epi32(-65536)));
    }
    if (codec == SHEAF_CODEC_INT8) {
        __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)(p + half * W));
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x));
    }
    return widen8(codec, p + (size_t)half * W * sheaf__attn_number_bytes(codec));
}

INLINE size_t chunk_bytes(const uint32_t codec)
{
    return codec == SHEAF_CODEC_INT8 ? CHUNK : (size_t)CHUNK * sheaf__attn_number_bytes(codec);
}

/* --- scores ------------------------------------------------------------------------------- */

/* Some positions: [n] addresses of their rows, of their last, partial chunks, padded, and of the rows
 * to fetch meanwhile. */
typedef struct positions {
    const unsigned char *const *rows;
    const unsigned char *const *ends;
    const unsigned char *const *next;
} positions;

/* What `keys` positions give in the lanes of `half`, for `rows` rows. Four chunks in each half are two
 * in all of a row's bytes: so many lines of each that follows are fetched beside them.
 * q: [rows, padded key_dim] */
INLINE void few_lanes(const uint32_t codec, const int rows, const int keys, const int half,
                      uint32_t dim, const float *q, const positions *k, __m256 sum[4][3])
{
    const size_t padded = sheaf__attn_padded(dim), fours = 2 * chunk_bytes(codec);
    const uint32_t chunks = dim / CHUNK;
    size_t line = half * ((chunks + 3) / 4) * fours;
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < keys; i++) sum[r][i] = _mm256_setzero_ps();
    q += half * W;
    for (uint32_t c = 0; c < chunks; c++, q += CHUNK) {
        __m256 key[3];
        if (c % 4 == 0)
            for (size_t end = line + fours; line < end; line += SHEAF__ATTN_LINE)
                for (int i = 0; i < keys; i++) __builtin_prefetch(k->next[i] + line, 0, 3);
        for (int i = 0; i < keys; i++)
            key[i] = widen_half(codec, half, k->rows[i] + c * chunk_bytes(codec));
        for (int r = 0; r < rows; r++) {
            __m256 x = _mm256_load_ps(q + (size_t)r * padded);
            for (int i = 0; i < keys; i++) sum[r][i] = _mm256_fmadd_ps(x, key[i], sum[r][i]);
        }
    }
    if (dim % CHUNK == 0) return;
    for (int i = 0; i < keys; i++) { /* the padded step: what lies behind the end is +0 */
        __m256 key = widen_half(codec, half, k->ends[i]);
        for (int r = 0; r < rows; r++)
            sum[r][i] = _mm256_fmadd_ps(_mm256_load_ps(q + (size_t)r * padded), key, sum[r][i]);
    }
}

/* Lanes i and i+8 added: 0 1 .. 7 in order; of bf16 0 2 4 6, then 1 3 5 7. */
INLINE __m256 pair(const uint32_t codec, __m256 a, __m256 b)
{
    if (codec != SHEAF_CODEC_BF16) return _mm256_add_ps(a, b);
    return halves8(a, b);
}

/* The pairs of `keys` positions from `at` on. */
INLINE void few_pairs(const uint32_t codec, const int rows, const int keys, const int at,
                      uint32_t dim, const float *q, const positions *k, __m256 pairs[4][8])
{
    const positions here = {k->rows + at, k->ends + at, k->next + at};
    __m256 a[4][3], b[4][3];
    few_lanes(codec, rows, keys, 0, dim, q, &here, a);
    few_lanes(codec, rows, keys, 1, dim, q, &here, b);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < keys; i++) pairs[r][at + i] = pair(codec, a[r][i], b[r][i]);
}

/* The rest of the trees of eight positions, sums in order. */
INLINE __m256 trees(const uint32_t codec, const __m256 v[8])
{
    if (codec != SHEAF_CODEC_BF16) return trees8(v);
    __m256 a[4], b[2];
    for (int i = 0; i < 4; i++) a[i] = quarters8(v[2 * i], v[2 * i + 1]);
    for (int i = 0; i < 2; i++)
        b[i] = _mm256_add_ps(_mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0x88),
                             _mm256_shuffle_ps(a[2 * i], a[2 * i + 1], 0xdd));
    return halves8(b[0], b[1]);
}

/* Scores of eight positions for `rows` query rows. s: [rows, SPLIT] from the first position */
INLINE void few_scores8(const uint32_t codec, const int rows, const sheaf__attn_split *in,
                        const float *q, const positions *k, float *s)
{
    __m256 pairs[4][8];
    few_pairs(codec, rows, 3, 0, in->key_dim, q, k, pairs);
    few_pairs(codec, rows, 3, 3, in->key_dim, q, k, pairs);
    few_pairs(codec, rows, 2, 6, in->key_dim, q, k, pairs);
    __m256 scale = _mm256_set1_ps(in->scale);
    for (int r = 0; r < rows; r++)
        _mm256_store_ps(s + (size_t)r * SPLIT, _mm256_mul_ps(trees(codec, pairs[r]), scale));
}

/* What the keys of one head give. */
typedef struct keys {
    uint32_t head;
    uint32_t whole, rest; /* bytes of a row in whole chunks, and after them */
    const float *q;       /* [n_rows, padded] of the head */
    float *s;             /* [n_rows, SPLIT] */
} keys;

/* Scores of the eight positions from `at` on; some of them lie in [first, end). */
INLINE void few_group(const uint32_t codec, const sheaf__attn_split *in, const keys *x,
                      uint32_t at)
{
    unsigned char end[8][CHUNK * 4];
    const unsigned char *k[8], *ends[8], *ahead[8];
    const positions eight = {k, ends, ahead};
    const size_t padded = sheaf__attn_padded(in->key_dim);
    const uint64_t offset = x->head * in->k_head_stride;
    const int inside = at >= in->first && at + 8 <= in->end;
    sheaf__attn_next next = {NULL, 0};
    if (inside) next = sheaf__attn_next_keys(in, x->head, at, 8);
    if (x->rest > 0) memset(end, 0, sizeof end);
    for (uint32_t i = 0; i < 8; i++) {
        k[i] = in->k[least(greatest(at + i, in->first), in->end - 1)] + offset;
        ends[i] = end[i];
        ahead[i] = inside ? next.rows[i] + next.offset : k[i];
        if (x->rest > 0) memcpy(end[i], k[i] + x->whole, x->rest);
    }
    uint32_t r = 0;
    float *s = x->s + at;
    for (; r + 4 <= in->n_rows; r += 4)
        few_scores8(codec, 4, in, x->q + r * padded, &eight, s + (size_t)r * SPLIT);
    for (; r + 2 <= in->n_rows; r += 2)
        few_scores8(codec, 2, in, x->q + r * padded, &eight, s + (size_t)r * SPLIT);
    if (r < in->n_rows)
        few_scores8(codec, 1, in, x->q + r * padded, &eight, s + (size_t)r * SPLIT);
}

/* s: [n_heads, n_rows, SPLIT], whole groups of eight around [first, end). */
INLINE void few_scores(const uint32_t codec, const sheaf__attn_split *in, float *s)
{
    const float *q = in->scratch + sheaf__attn_scratch_queries();
    const uint32_t number = sheaf__attn_number_bytes(codec);
    for (uint32_t a = in->first & ~(in->piece - 1); a < in->end; a += in->piece) {
        const uint32_t from = greatest(a, in->first & ~7u), to = least(a + in->piece, in->end);
        keys x = {0, in->key_dim / CHUNK * CHUNK * number, in->key_dim % CHUNK * number, q, s};
        for (; x.head < in->n_heads; x.head++) {
            for (uint32_t at = from; at < to; at += 8) few_group(codec, in, &x, at);
            x.q += in->n_rows * sheaf__attn_padded(in->key_dim);
            x.s += in->n_rows * SPLIT;
        }
    }
}

/* --- weights ------------------------------------------------------------------------------ */

/* What a row does not see of the group of eight at `at` becomes -inf. s: [SPLIT] */
static void few_blind(uint32_t at, uint32_t lo, uint32_t hi, float *s)
{
    const __m256i iota = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i position = _mm256_add_epi32(iota, _mm256_set1_epi32((int)at));
    __m256 seen = inside8(position, _mm256_set1_epi32((int)lo), _mm256_set1_epi32((int)hi));
    __m256 x = _mm256_load_ps(s + at);
    _mm256_store_ps(s + at, _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), x, seen));
}

/* Weights of a group, which its lanes add up; scaled by those of the values unless null. */
INLINE __m256 few_weights(float *s, __m256 m, const float *scales, __m256 lanes)
{
    __m256 p = exp8(_mm256_sub_ps(_mm256_load_ps(s), m));
    lanes = _mm256_add_ps(lanes, p);
    if (scales != NULL) p = _mm256_mul_ps(p, _mm256_loadu_ps(scales));
    _mm256_store_ps(s, p);
    return lanes;
}

/* Scores of one row to weights, with their maximum and denominator.
 * row: of those of its head; s: [SPLIT] */
static void few_softmax(const sheaf__attn_split *in, uint32_t row, float *s, float *m_out,
                        float *l_out)
{
    const uint32_t lo = in->lo[row], hi = in->hi[row], first = lo & ~7u;
    const int scaled = sheaf__codec_is_quantized(in->codec_v);
    for (uint32_t at = first; at < hi && in->softcap != 0.0f; at += 8)
        _mm256_store_ps(s + at, cap8(_mm256_load_ps(s + at), in->softcap));
    if (lo < hi) {
        few_blind(first, lo, hi, s);
        few_blind((hi - 1) & ~7u, lo, hi, s);
    }
    __m256 top = _mm256_set1_ps(-INFINITY);
    for (uint32_t at = first; at < hi; at += 8)
        top = _mm256_max_ps(top, _mm256_load_ps(s + at));
    const float m = max8(top);
    __m256 ms = _mm256_set1_ps(m), even = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
    uint32_t at = first;
    if (at < hi && at % 16 != 0) {
        odd = few_weights(s + at, ms, scaled ? in->v_scale + at : NULL, odd);
        at += 8;
    }
    for (; at + 8 < hi; at += 16) {
        even = few_weights(s + at, ms, scaled ? in->v_scale + at : NULL, even);
        odd = few_weights(s + at + 8, ms, scaled ? in->v_scale + at + 8 : NULL, odd);
    }
    if (at < hi) even = few_weights(s + at, ms, scaled ? in->v_scale + at : NULL, even);
    *m_out = m;
    *l_out = lo < hi ? tree16(even, odd) : 0.0f;
}

/* --- outputs ------------------------------------------------------------------------------ */

/* Lines to fetch: bytes [from, to) of the rows that begin at [row, end), or of every step-th of them,
 * where short ones lie side by side. */
typedef struct lines {
    const unsigned char *const *row;
    const unsigned char *const *end;
    uint64_t from, to;
    uint64_t at; /* where the next line begins */
    uint32_t step;
} lines;

/* The next n of a row. */
INLINE void fetch_lines(const int n, lines *x)
{
    const unsigned char *p = *x->row + x->at;
    for (int i = 0; i < n; i++) __builtin_prefetch(p + i * SHEAF__ATTN_LINE, 0, 3);
    x->at += (uint64_t)n * SHEAF__ATTN_LINE;
    if (x->at < x->to) return;
    x->at = x->from;
    x->row += x->step;
}

/* A few values: positions [a, b) of the split, [b - a] addresses of their rows, and of their last,
 * partial chunks, padded; weights [rows, SPLIT] from position 0. */
typedef struct values {
    const unsigned char *const *rows;
    const unsigned char *const *ends;
    uint32_t whole; /* chunks before the partial one */
    uint32_t o_stride;
    uint32_t a, b;
    const float *s;
    lines *ahead; /* to fetch meanwhile */
} values;

/* One value. s: [rows, SPLIT] from its position */
INLINE void few_value(const uint32_t codec, const int rows, const int chunks, const int half,
                      const unsigned char *v, const float *s, __m256 sum[4][8])
{
    __m256 value[8];
    for (int j = 0; j < chunks; j++)
        value[j] = widen_half(codec, half, v + (size_t)j * chunk_bytes(codec));
    for (int r = 0; r < rows; r++) {
        __m256 w = _mm256_broadcast_ss(s + (size_t)r * SPLIT);
        for (int j = 0; j < chunks; j++) sum[r][j] = _mm256_fmadd_ps(w, value[j], sum[r][j]);
    }
}

/* o += weights times `half` of `chunks` chunks, at `v` + offset. o: [rows, o_stride] from theirs.
 * A pass takes a row's line a position, so that all passes over STEP values take as many rows: f32 has
 * twice as many lines, and one query row half as many passes. */
INLINE void few_half(const uint32_t codec, const int rows, const int chunks, const int half,
                     const values *x, const unsigned char *const *v, size_t offset, float *o)
{
    const int burst = codec == SHEAF_CODEC_F32 ? 8 : 4;
    const uint32_t n = x->b - x->a, every = rows == 1 ? 2 : 4;
    const float *s = x->s + x->a;
    lines ahead = *x->ahead;
    __m256 sum[4][8];
    uint32_t p = 0;
    o += half * W;
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < chunks; j++)
            sum[r][j] = _mm256_load_ps(o + (size_t)r * x->o_stride + (size_t)j * CHUNK);
    for (; p + every <= n && ahead.row < ahead.end; p += every) {
        fetch_lines(burst, &ahead);
        for (uint32_t i = 0; i < every; i++)
            few_value(codec, rows, chunks, half, v[p + i] + offset, s + p + i, sum);
    }
    *x->ahead = ahead;
    for (; p < n; p++) few_value(codec, rows, chunks, half, v[p] + offset, s + p, sum);
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < chunks; j++)
            _mm256_store_ps(o + (size_t)r * x->o_stride + (size_t)j * CHUNK, sum[r][j]);
}

INLINE void few_chunks(const uint32_t codec, const int rows, const int chunks, const values *x,
                       const unsigned char *const *v, uint32_t c, float *o)
{
    few_half(codec, rows, chunks, 0, x, v, c * chunk_bytes(codec), o + (size_t)c * CHUNK);
    few_half(codec, rows, chunks, 1, x, v, c * chunk_bytes(codec), o + (size_t)c * CHUNK);
}

/* o += weights times values, all columns. */
INLINE void few_values(const uint32_t codec, const int rows, const values *x, float *o)
{
    if (x->a >= x->b) return;
    uint32_t c = 0;
    if (rows == 1)
        for (; c + 8 <= x->whole; c += 8) few_chunks(codec, rows, 8, x, x->rows, c, o);
    if (rows == 2)
        for (; c + 4 <= x->whole; c += 4) few_chunks(codec, rows, 4, x, x->rows, c, o);
    if (rows == 4)
        for (; x->whole - c >= 3 && x->whole - c != 4; c += 3)
            few_chunks(codec, rows, 3, x, x->rows, c, o);
    for (; c + 2 <= x->whole; c += 2) few_chunks(codec, rows, 2, x, x->rows, c, o);
    if (c < x->whole) few_chunks(codec, rows, 1, x, x->rows, c, o);
    o += (size_t)x->whole * CHUNK;
    if (x->whole * CHUNK < x->o_stride) few_chunks(codec, rows, 1, x, x->ends, 0, o);
}

#    define FEW_VALUES(name, codec)                                                            \
        static NOINLINE void name##_one(const values *x, float *o)                             \
        {                                                                                      \
            few_values(codec, 1, x, o);                                                        \
        }                                                                                      \
        static NOINLINE void name##_two(const values *x, float *o)                             \
        {                                                                                      \
            few_values(codec, 2, x, o);                                                        \
        }                                                                                      \
        static NOINLINE void name##_four(const values *x, float *o)                            \
        {                                                                                      \
            few_values(codec, 4, x, o);                                                        \
        }

FEW_VALUES(f32, SHEAF_CODEC_F32)
FEW_VALUES(f16, SHEAF_CODEC_F16)
FEW_VALUES(bf16, SHEAF_CODEC_BF16)
FEW_VALUES(int8, SHEAF_CODEC_INT8)

typedef void few_values_fn(const values *x, float *o);

/* For one, two and four rows; turbo4 comes as bf16. */
static few_values_fn *const few_values_of[][3] = {
    [SHEAF_CODEC_F32] = {f32_one, f32_two, f32_four},
    [SHEAF_CODEC_F16] = {f16_one, f16_two, f16_four},
    [SHEAF_CODEC_BF16] = {bf16_one, bf16_two, bf16_four},
    [SHEAF_CODEC_INT8] = {int8_one, int8_two, int8_four},
};

/* The positions [a, b) of x's. */
static values part_of(const values *x, uint32_t row, uint32_t a, uint32_t b)
{
    values part = *x;
    part.a = a;
    part.b = greatest(a, b);
    part.rows += a - x->a;
    part.ends += a - x->a;
    part.s += (size_t)row * SPLIT;
    return part;
}

/* `rows` query rows from `row` on: together where all of them see. */
static void few_values_rows(few_values_fn *const fn[3], uint32_t rows, uint32_t row,
                            const sheaf__attn_split *in, const values *x, float *o)
{
    uint32_t lo = x->a, hi = x->b;
    for (uint32_t r = row; r < row + rows; r++) {
        lo = greatest(lo, in->lo[r]);
        hi = least(hi, in->hi[r]);
    }
    if (lo >= hi) lo = hi = x->b;
    for (uint32_t r = row; r < row + rows && lo > x->a; r++) {
        values part =
            part_of(x, r, greatest(x->a, least(in->lo[r], x->b)), least(lo, in->hi[r]));
        fn[0](&part, o + (size_t)r * in->o_stride);
    }
    values part = part_of(x, row, lo, hi);
    fn[rows / 2](&part, o + (size_t)row * in->o_stride);
    for (uint32_t r = row; r < row + rows && hi < x->b; r++) {
        part = part_of(x, r, greatest(hi, least(in->lo[r], x->b)), least(x->b, in->hi[r]));
        fn[0](&part, o + (size_t)r * in->o_stride);
    }
}

/* Columns of bf16, even and odd apart within a chunk, put in order. */
static void order_columns(float *o, size_t n)
{
    for (float *end = o + n; o < end; o += CHUNK) {
        __m256 even = _mm256_load_ps(o), odd = _mm256_load_ps(o + W);
        __m256 a = _mm256_unpacklo_ps(even, odd), b = _mm256_unpackhi_ps(even, odd);
        _mm256_store_ps(o, _mm256_permute2f128_ps(a, b, 0x20));
        _mm256_store_ps(o + W, _mm256_permute2f128_ps(a, b, 0x31));
    }
}

/* What to fetch while the values [a, b) of a head are read. */
static lines lines_after(const sheaf__attn_split *in, uint32_t head, uint32_t a, uint32_t b)
{
    const sheaf__attn_next next = sheaf__attn_next_values(in, head, a, b - a);
    const uint64_t bytes = sheaf__codec_row_bytes(in->codec_v, in->value_dim);
    const uint64_t step = 4 * SHEAF__ATTN_LINE / bytes;
    return (lines){
        .row = next.rows,
        .end = next.rows + (b - a),
        .from = next.offset,
        .to = next.offset + bytes,
        .at = next.offset,
        .step = step > 1 ? (uint32_t)step : 1,
    };
}

/* Adds what the values of a head give over positions [a, b), STEPS times STEP at most.
 * s: [n_rows, SPLIT] and o: [n_rows, o_stride] of the head */
static void few_step(const sheaf__attn_split *in, uint32_t head, uint32_t a, uint32_t b,
                     const float *s, float *o)
{
    uint16_t levels[STEPS * STEP][SHEAF_ATTN_MAX_DIM] __attribute__((aligned(32)));
    unsigned char end[STEPS * STEP][CHUNK * 4] __attribute__((aligned(32)));
    const unsigned char *rows[STEPS * STEP], *ends[STEPS * STEP];
    const int turbo4 = in->codec_v == SHEAF_CODEC_TURBO4;
    const uint32_t codec = turbo4 ? SHEAF_CODEC_BF16 : in->codec_v, dim = in->value_dim;
    const uint32_t bytes = (uint32_t)sheaf__codec_row_bytes(codec, dim);
    const uint32_t whole = (uint32_t)sheaf__codec_row_bytes(codec, dim / CHUNK * CHUNK);
    const int mixed = turbo4 && dim % 64 == 0;
    const uint64_t offset = head * in->v_head_stride;
    uint32_t row = 0;
    if (mixed) sheaf__levels_avx2_mixed(in->v + a, b - a, dim, levels[0]);
    if (turbo4 && !mixed) sheaf__levels_avx2_bf16(in->v + a, b - a, dim, levels[0]);
    if (bytes > whole) memset(end, 0, sizeof end);
    for (uint32_t i = 0; i < b - a; i++) {
        rows[i] = turbo4 ? (const unsigned char *)(levels[0] + i * ((dim + 63u) & ~63u))
                         : in->v[a + i] + offset;
        ends[i] = end[i];
        if (bytes > whole) memcpy(end[i], rows[i] + whole, bytes - whole);
    }
    lines ahead = lines_after(in, head, a, b);
    values x = {rows, ends, dim / CHUNK, in->o_stride, a, b, s, &ahead};
    for (; row + 4 <= in->n_rows; row += 4)
        few_values_rows(few_values_of[codec], 4, row, in, &x, o);
    if (in->n_rows - row >= 2) {
        few_values_rows(few_values_of[codec], 2, row, in, &x, o);
        row += 2;
    }
    if (row < in->n_rows) few_values_rows(few_values_of[codec], 1, row, in, &x, o);
}

/* s: [n_heads, n_rows, SPLIT]; o: [n_heads, n_rows, o_stride] */
static void few_outputs(const sheaf__attn_split *in, const float *s, float *o)
{
    const size_t numbers = (size_t)in->n_rows * in->o_stride;
    const uint32_t step = in->codec_v == SHEAF_CODEC_TURBO4 ? STEPS * STEP : STEP;
    memset(o, 0, in->n_heads * numbers * sizeof *o);
    for (uint32_t p = in->first & ~(in->piece - 1); p < in->end; p += in->piece) {
        const uint32_t from = greatest(p, in->first), to = least(p + in->piece, in->end);
        for (uint32_t head = 0; head < in->n_heads; head++)
            for (uint32_t a = from; a < to; a += step)
                few_step(in, head, a, least(a + step, to),
                         s + (size_t)head * in->n_rows * SPLIT, o + head * numbers);
    }
    if (in->codec_v == SHEAF_CODEC_TURBO4 && in->value_dim % 64 == 0)
        sheaf__levels_avx2_order(o, in->n_heads * numbers);
    else if (in->codec_v == SHEAF_CODEC_BF16 || in->codec_v == SHEAF_CODEC_TURBO4)
        order_columns(o, in->n_heads * numbers);
}

/* --- both --------------------------------------------------------------------------------- */

void sheaf__few_avx2_pack(const sheaf__attn_split *in)
{
    const uint32_t padded = sheaf__attn_padded(in->key_dim), dim = in->key_dim;
    float *q = in->scratch + sheaf__attn_scratch_queries();
    const uint32_t n_rows = in->n_heads * in->n_rows;
    memset(q, 0, (size_t)n_rows * padded * sizeof *q);
    for (uint32_t r = 0; r < n_rows; r++, q += padded) {
        if (in->codec_k != SHEAF_CODEC_BF16) {
            memcpy(q, in->q[r], dim * sizeof *q);
            continue;
        }
        for (uint32_t d = 0; d < dim; d++)
            q[d / CHUNK * CHUNK + d % 2 * W + d % CHUNK / 2] = in->q[r][d];
    }
}

void sheaf__few_avx2_split(const sheaf__attn_split *in, sheaf__attn_part out)
{
    float *s = in->scratch;
    switch (in->codec_k) {
    case SHEAF_CODEC_F32: few_scores(SHEAF_CODEC_F32, in, s); break;
    case SHEAF_CODEC_F16: few_scores(SHEAF_CODEC_F16, in, s); break;
    case SHEAF_CODEC_BF16: few_scores(SHEAF_CODEC_BF16, in, s); break;
    default: sheaf__levels_avx2_few(in, s); break;
    }
    for (uint32_t r = 0; r < in->n_heads * in->n_rows; r++)
        few_softmax(in, r % in->n_rows, s + (size_t)r * SPLIT, &out.m[r], &out.l[r]);
    few_outputs(in, s, out.o);
}

#endif
