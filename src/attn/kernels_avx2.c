/* attn/kernels_avx2.c - the defined order of attention in vectors of eight: many rows, and the table.
 *
 * Two forms give the same bits:
 *
 *   few rows    (decode, few_avx2.c) vectors lie along the head dimension and K and V are widened in
 *               registers as they are read, once for every four query rows. Scores: [row][position]
 *   many rows   (prefill, here) positions are widened to f32 a few at a time; scores have vectors
 *               along the query rows, the head dimension walked two lanes at a time (d = lane,
 *               lane + 8, lane + 16, ..) so that each of the 16 lanes is one chain, lanes meeting in
 *               tree order. Scores: [position][row]
 *
 * The order of both is the one of sheaf/attn.h; only who holds which number differs. Scores of
 * quantized keys come from levels_avx2.c in either form; their values are widened like raw ones.
 */
#if defined(__x86_64__)

#    include "attn/vector_avx2.h"

/* Widened at a time: whole tiles of 2 and of 3 keys, beside the queries in L1. */
#    define MANY_KEYS 24

/* The pairs of lanes (i, i + 8) in the order in which a tree walked depth first meets them; its own
 * inverse. */
static const uint8_t pair_order[8] = {0, 4, 2, 6, 1, 5, 3, 7};

/* --- many rows ---------------------------------------------------------------------------- */

static void widen_row(uint32_t codec, const unsigned char *src, uint32_t n, float *dst)
{
    uint32_t bytes = sheaf__attn_number_bytes(codec), i = 0;
    switch (codec) {
    case SHEAF_CODEC_F32:
        for (; i + W <= n; i += W)
            _mm256_storeu_ps(dst + i, widen8(SHEAF_CODEC_F32, src + (size_t)i * bytes));
        break;
    case SHEAF_CODEC_F16:
        for (; i + W <= n; i += W)
            _mm256_storeu_ps(dst + i, widen8(SHEAF_CODEC_F16, src + (size_t)i * bytes));
        break;
    default:
        for (; i + W <= n; i += W)
            _mm256_storeu_ps(dst + i, widen8(SHEAF_CODEC_BF16, src + (size_t)i * bytes));
        break;
    }
    if (i < n) {
        float rest[W];
        _mm256_storeu_ps(rest, widen_tail(codec, src + (size_t)i * bytes, n - i));
        memcpy(dst + i, rest, (n - i) * sizeof *dst);
    }
}

/* Levels, of which turbo4's come as bf16 first. */
static void widen_levels(uint32_t codec, const unsigned char *row, uint32_t dim, float *dst)
{
    uint16_t levels[SHEAF_ATTN_MAX_DIM] __attribute__((aligned(32)));
    if (codec == SHEAF_CODEC_TURBO4) {
        sheaf__levels_avx2_bf16(&row, 1, dim, levels);
        widen_row(SHEAF_CODEC_BF16, (const unsigned char *)levels, dim, dst);
        return;
    }
    uint32_t d = 0;
    for (; d + W <= dim; d += W) {
        __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)(row + d));
        _mm256_storeu_ps(dst + d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)));
    }
    for (; d < dim; d++) dst[d] = (float)(int8_t)row[d];
}

/* n rows from position a on to dst: [n, padded dim], zeros behind each row. */
static void widen_rows(uint32_t codec, const unsigned char *const *rows, uint32_t dim,
                       uint32_t n, float *dst)
{
    const uint32_t padded = sheaf__attn_padded(dim);
    const int quantized = sheaf__codec_is_quantized(codec);
    for (uint32_t i = 0; i < n; i++, dst += padded) {
        if (quantized)
            widen_levels(codec, rows[i], dim, dst);
        else
            widen_row(codec, rows[i], dim, dst);
        for (uint32_t d = dim; d < padded; d++) dst[d] = 0.0f;
    }
}

/* A value kept in a register: gcc would read it anew for each of its products. */
INLINE __m256 held(__m256 v)
{
    __asm__("" : "+x"(v));
    return v;
}

/* Vectors of the group of rows that begins at `row`: three, and the last four as two and two, since
 * one alone has too few sums to keep the multipliers busy. */
INLINE uint32_t group_vecs(uint32_t stride, uint32_t row)
{
    return stride - row == 3 * W || stride - row > 4 * W ? 3 : 2;
}

/* The running sums of a tile: of lane i and of lane i + 8. */
typedef struct chains {
    __m256 low[3][3];
    __m256 high[3][3];
} chains;

/* The same element of several keys. */
INLINE void broadcast_keys(const int keys, const float *key, uint32_t padded, __m256 y[3])
{
#    pragma GCC unroll 3
    for (int x = 0; x < keys; x++) y[x] = _mm256_broadcast_ss(key + (size_t)x * padded);
}

/* One step of a lane: rows against the element of the keys that `key` points to. */
INLINE void lane_step(const int keys, const int vecs, const float *q, const float *key,
                      uint32_t padded, __m256 sum[3][3])
{
    __m256 y[3];
    broadcast_keys(keys, key, padded, y);
#    pragma GCC unroll 3
    for (int j = 0; j < vecs; j++) {
        __m256 row = held(_mm256_load_ps(q + j * W));
#    pragma GCC unroll 3
        for (int x = 0; x < keys; x++) sum[x][j] = _mm256_fmadd_ps(row, y[x], sum[x][j]);
    }
}

/* One step of both lanes: elements d and d + 8 of a key, of which `key` is the first. */
INLINE void lanes_step(const int keys, const int vecs, const float *q, const float *key,
                       uint32_t padded, chains *sum)
{
    lane_step(keys, vecs, q, key, padded, sum->low);
    lane_step(keys, vecs, q + vecs * W, key + 8, padded, sum->high);
}

/* The first step of a pair of lanes. Between its products the pair before is added up and stored in
 * `done`, [keys, vecs, W]: a store costs the multipliers a cycle where several stand together. */
INLINE void lanes_begin(const int keys, const int vecs, const float *q, const float *key,
                        uint32_t padded, chains *sum, float *done)
{
    __m256 y[3];
    broadcast_keys(keys, key, padded, y);
#    pragma GCC unroll 3
    for (int j = 0; j < vecs; j++) {
        __m256 row = held(_mm256_load_ps(q + j * W));
#    pragma GCC unroll 3
        for (int x = 0; x < keys; x++) {
            sum->high[x][j] = _mm256_add_ps(sum->low[x][j], sum->high[x][j]);
            sum->low[x][j] = _mm256_fmadd_ps(row, y[x], _mm256_setzero_ps());
        }
    }
    broadcast_keys(keys, key + 8, padded, y);
#    pragma GCC unroll 3
    for (int j = 0; j < vecs; j++) {
        __m256 row = held(_mm256_load_ps(q + (vecs + j) * W));
#    pragma GCC unroll 3
        for (int x = 0; x < keys; x++) {
            _mm256_store_ps(done + (x * vecs + j) * W, sum->high[x][j]);
            sum->high[x][j] = _mm256_fmadd_ps(row, y[x], _mm256_setzero_ps());
        }
    }
}

/* Scores of `keys` positions for a group of rows.
 * q: [8 pairs of lanes][steps][2][vecs, W]; k: [keys, padded]; s: [keys, stride] */
INLINE void many_scores_tile(const int keys, const int vecs, const uint32_t steps,
                             const float *q, const float *k, float scale, uint32_t stride,
                             float *s)
{
    const uint32_t padded = steps * 16;
    /* pair i in i + 1; the last in registers */
    float pairs[8][9 * W] __attribute__((aligned(32)));
    chains sum;
#    pragma GCC unroll 3
    for (int x = 0; x < keys; x++)
#    pragma GCC unroll 3
        for (int j = 0; j < vecs; j++) sum.low[x][j] = sum.high[x][j] = _mm256_setzero_ps();
    for (uint32_t i = 0; i < 8; i++) {
        const float *key = k + pair_order[i];
        lanes_begin(keys, vecs, q, key, padded, &sum, pairs[i]);
        q += 2 * vecs * W;
#    pragma GCC unroll 7
        for (uint32_t d = 1; d < steps; d++, q += 2 * vecs * W)
            lanes_step(keys, vecs, q, key + (size_t)d * 16, padded, &sum);
    }
    const __m256 scales = _mm256_set1_ps(scale);
#    pragma GCC unroll 3
    for (int x = 0; x < keys; x++)
#    pragma GCC unroll 3
        for (int j = 0; j < vecs; j++) {
            const float *p = pairs[0] + (x * vecs + j) * W;
            __m256 v[8];
#    pragma GCC unroll 7
            for (int i = 0; i < 7; i++) v[i] = _mm256_load_ps(p + (i + 1) * 9 * W);
            v[7] = _mm256_add_ps(sum.low[x][j], sum.high[x][j]);
#    pragma GCC unroll 4
            for (int i = 0; i < 4; i++) v[i] = _mm256_add_ps(v[2 * i], v[2 * i + 1]);
            v[0] = _mm256_add_ps(_mm256_add_ps(v[0], v[1]), _mm256_add_ps(v[2], v[3]));
            _mm256_store_ps(s + (size_t)x * stride + (size_t)j * W,
                            _mm256_mul_ps(v[0], scales));
        }
}

/* The same of n positions. */
INLINE void many_scores_group(const int keys, const int vecs, const uint32_t steps,
                              const sheaf__attn_split *in, uint32_t row, const float *k,
                              uint32_t n, float *s)
{
    const uint32_t stride = many_stride(in->n_rows), padded = steps * 16;
    const float *q = in->scratch + sheaf__attn_scratch_queries() + (size_t)row * padded;
    uint32_t x = 0;
    for (s += row; x + (uint32_t)keys <= n; x += (uint32_t)keys)
        many_scores_tile(keys, vecs, steps, q, k + (size_t)x * padded, in->scale, stride,
                         s + (size_t)x * stride);
    for (; x < n; x++)
        many_scores_tile(1, vecs, steps, q, k + (size_t)x * padded, in->scale, stride,
                         s + (size_t)x * stride);
}

/* s: [SPLIT, stride], positions [first, end). */
INLINE void many_scores_steps(const uint32_t steps, const sheaf__attn_split *in, float *k,
                              float *s)
{
    const uint32_t stride = many_stride(in->n_rows);
    for (uint32_t a = in->first; a < in->end; a += MANY_KEYS) {
        uint32_t n = least(MANY_KEYS, in->end - a);
        float *to = s + (size_t)a * stride;
        widen_rows(in->codec_k, in->k + a, in->key_dim, n, k);
        for (uint32_t row = 0; row < stride; row += group_vecs(stride, row) * W) {
            if (group_vecs(stride, row) == 3)
                many_scores_group(2, 3, steps, in, row, k, n, to);
            else
                many_scores_group(3, 2, steps, in, row, k, n, to);
        }
    }
}

static NOINLINE void many_scores_128(const sheaf__attn_split *in, float *k, float *s)
{
    many_scores_steps(8, in, k, s);
}

static void many_scores(const sheaf__attn_split *in, float *k, float *s)
{
    const uint32_t steps = sheaf__attn_padded(in->key_dim) / 16;
    if (steps == 8)
        many_scores_128(in, k, s);
    else
        many_scores_steps(steps, in, k, s);
}

/* Queries to scratch, in the order in which tiles read them, zeros behind the last. */
static void many_pack(const sheaf__attn_split *in)
{
    const uint32_t stride = many_stride(in->n_rows),
                   steps = sheaf__attn_padded(in->key_dim) / 16;
    float *q = in->scratch + sheaf__attn_scratch_queries();
    memset(q, 0, (size_t)stride * steps * 16 * sizeof *q);
    for (uint32_t row = 0, rows; row < stride; row += rows, q += (size_t)rows * steps * 16) {
        rows = group_vecs(stride, row) * W;
        for (uint32_t d = 0; d < in->key_dim; d++) {
            uint32_t pair = pair_order[d % 8], step = d / 16, high = d / 8 % 2;
            float *to = q + (size_t)((pair * steps + step) * 2 + high) * rows;
            for (uint32_t r = row; r < least(row + rows, in->n_rows); r++) *to++ = in->q[r][d];
        }
    }
}

/* Scores of eight rows from `row` on to weights. s: [SPLIT, stride] from the first of them */
static void many_softmax8(const sheaf__attn_split *in, uint32_t row, uint32_t stride, float *s,
                          sheaf__attn_part out)
{
    int32_t lo_of[W] = {0}, hi_of[W] = {0};
    uint32_t n = least(W, in->n_rows - row), first = SPLIT, end = 0;
    for (uint32_t r = 0; r < n; r++) {
        if (in->lo[row + r] >= in->hi[row + r]) continue;
        lo_of[r] = (int32_t)in->lo[row + r], hi_of[r] = (int32_t)in->hi[row + r];
        first = least(first, in->lo[row + r]), end = greatest(end, in->hi[row + r]);
    }
    const __m256i lo = _mm256_loadu_si256((const __m256i *)(const void *)lo_of);
    const __m256i hi = _mm256_loadu_si256((const __m256i *)(const void *)hi_of);
    const __m256 none = _mm256_set1_ps(-INFINITY);
    const int scaled = sheaf__codec_is_quantized(in->codec_v);
    __m256 m = none, lanes[16];
    for (uint32_t p = first; p < end; p++) {
        __m256 x = _mm256_load_ps(s + (size_t)p * stride);
        if (in->softcap != 0.0f) x = cap8(x, in->softcap);
        x = _mm256_blendv_ps(none, x, inside8(_mm256_set1_epi32((int)p), lo, hi));
        _mm256_store_ps(s + (size_t)p * stride, x);
        m = _mm256_max_ps(m, x);
    }
    for (int i = 0; i < 16; i++) lanes[i] = _mm256_setzero_ps();
    for (uint32_t p = first; p < end; p++) {
        __m256 w = exp8(_mm256_sub_ps(_mm256_load_ps(s + (size_t)p * stride), m));
        lanes[p % 16] = _mm256_add_ps(lanes[p % 16], w);
        if (scaled) w = _mm256_mul_ps(w, _mm256_set1_ps(in->v_scale[p]));
        _mm256_store_ps(s + (size_t)p * stride, w);
    }
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] = _mm256_add_ps(lanes[i], lanes[i + half]);
    float ms[W], ls[W];
    _mm256_storeu_ps(ms, m), _mm256_storeu_ps(ls, lanes[0]);
    for (uint32_t r = 0; r < n; r++) {
        out.m[row + r] = ms[r];
        out.l[row + r] = lo_of[r] < hi_of[r] ? ls[r] : 0.0f;
    }
}

/* o += weights times values over n positions, for `rows` rows and `vecs` vectors of columns.
 * w: [n, stride]; v: [n, o_stride]; o: [rows, o_stride] */
INLINE void many_values_tile(const int rows, const int vecs, const float *w, uint32_t stride,
                             const float *v, uint32_t n, uint32_t o_stride, float *o)
{
    __m256 sum[6][2];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < vecs; j++)
            sum[r][j] = _mm256_load_ps(o + (size_t)r * o_stride + (size_t)j * W);
    for (uint32_t p = 0; p < n; p++, w += stride, v += o_stride) {
        __m256 value[2];
        for (int j = 0; j < vecs; j++) value[j] = _mm256_load_ps(v + (size_t)j * W);
        for (int r = 0; r < rows; r++) {
            __m256 weight = _mm256_broadcast_ss(w + r);
            for (int j = 0; j < vecs; j++)
                sum[r][j] = _mm256_fmadd_ps(weight, value[j], sum[r][j]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < vecs; j++)
            _mm256_store_ps(o + (size_t)r * o_stride + (size_t)j * W, sum[r][j]);
}

/* The same for all columns and the positions [a, b) of the split; v begins at position `from`. */
INLINE void many_values(const int rows, const sheaf__attn_split *in, const float *s,
                        const float *v, uint32_t from, uint32_t a, uint32_t b, float *o)
{
    if (a >= b) return;
    const uint32_t stride = many_stride(in->n_rows);
    const float *w = s + (size_t)a * stride;
    v += (size_t)(a - from) * in->o_stride;
    for (uint32_t c = 0; c < in->o_stride; c += 2 * W)
        many_values_tile(rows, 2, w, stride, v + c, b - a, in->o_stride, o + c);
}

/* `rows` query rows from `row` on over the positions [a, b): together where all of them see. */
INLINE void many_values_rows(const int rows, const sheaf__attn_split *in, uint32_t row,
                             const float *s, const float *v, uint32_t a, uint32_t b, float *o)
{
    uint32_t lo = a, hi = b;
    for (uint32_t r = row; r < row + (uint32_t)rows; r++) {
        lo = greatest(lo, in->lo[r]);
        hi = least(hi, in->hi[r]);
    }
    if (lo >= hi) lo = hi = b;
    s += row;
    o += (size_t)row * in->o_stride;
    for (uint32_t r = 0; r < (uint32_t)rows && lo > a; r++)
        many_values(1, in, s + r, v, a, greatest(a, in->lo[row + r]),
                    least(lo, in->hi[row + r]), o + (size_t)r * in->o_stride);
    many_values(rows, in, s, v, a, lo, hi, o);
    for (uint32_t r = 0; r < (uint32_t)rows && hi < b; r++)
        many_values(1, in, s + r, v, a, greatest(hi, in->lo[row + r]),
                    least(b, in->hi[row + r]), o + (size_t)r * in->o_stride);
}

static void many_outputs(const sheaf__attn_split *in, const float *s, float *v, float *o)
{
    memset(o, 0, (size_t)in->n_rows * in->o_stride * sizeof *o);
    for (uint32_t a = in->first; a < in->end; a += SHEAF__ATTN_KEYS) {
        uint32_t b = least(a + SHEAF__ATTN_KEYS, in->end), row = 0;
        widen_rows(in->codec_v, in->v + a, in->value_dim, b - a, v);
        for (; row + 6 <= in->n_rows; row += 6) many_values_rows(6, in, row, s, v, a, b, o);
        for (; row + 2 <= in->n_rows; row += 2) many_values_rows(2, in, row, s, v, a, b, o);
        if (row < in->n_rows) many_values_rows(1, in, row, s, v, a, b, o);
    }
}

static void many_split(const sheaf__attn_split *in, sheaf__attn_part out)
{
    float *s = in->scratch;
    float *widened = in->scratch + sheaf__attn_scratch_widened(in->key_dim);
    const uint32_t stride = many_stride(in->n_rows);
    if (sheaf__codec_is_quantized(in->codec_k))
        sheaf__levels_avx2_many(in, s);
    else
        many_scores(in, widened, s);
    for (uint32_t row = 0; row < in->n_rows; row += W)
        many_softmax8(in, row, stride, s + row, out);
    many_outputs(in, s, widened, out.o);
}

/* --- the table ---------------------------------------------------------------------------- */

static void pack(const sheaf__attn_split *in)
{
    if (sheaf__codec_is_quantized(in->codec_k))
        sheaf__levels_avx2_pack(in);
    else if (in->n_rows < FEW_ROWS)
        sheaf__few_avx2_pack(in);
    else
        many_pack(in);
}

static void split(const sheaf__attn_split *in, sheaf__attn_part out)
{
    if (in->n_rows < FEW_ROWS)
        sheaf__few_avx2_split(in, out);
    else
        many_split(in, out);
}

static void merge(uint32_t n_rows, uint32_t value_dim, uint32_t o_stride, sheaf__attn_part left,
                  sheaf__attn_part right)
{
    (void)value_dim; /* padding merges along: it is zero */
    for (uint32_t r = 0; r < n_rows; r++) {
        float *o1 = left.o + (size_t)r * o_stride;
        const float *o2 = right.o + (size_t)r * o_stride;
        if (right.l[r] == 0.0f) continue;
        if (left.l[r] == 0.0f) {
            left.m[r] = right.m[r];
            left.l[r] = right.l[r];
            memcpy(o1, o2, o_stride * sizeof *o1);
            continue;
        }
        __m256 m1 = _mm256_set1_ps(left.m[r]), m2 = _mm256_set1_ps(right.m[r]);
        __m256 m = _mm256_max_ps(m1, m2);
        __m256 a1 = exp8(_mm256_sub_ps(m1, m)), a2 = exp8(_mm256_sub_ps(m2, m));
        __m256 l = _mm256_fmadd_ps(_mm256_set1_ps(right.l[r]), a2,
                                   _mm256_mul_ps(_mm256_set1_ps(left.l[r]), a1));
        left.m[r] = _mm256_cvtss_f32(m);
        left.l[r] = _mm256_cvtss_f32(l);
        for (uint32_t d = 0; d < o_stride; d += W) {
            __m256 x = _mm256_mul_ps(_mm256_load_ps(o1 + d), a1);
            _mm256_store_ps(o1 + d, _mm256_fmadd_ps(_mm256_load_ps(o2 + d), a2, x));
        }
    }
}

static void finish(const sheaf__attn_rows *rows, sheaf__attn_part part)
{
    const uint32_t value_dim = rows->value_dim, o_stride = rows->o_stride;
    for (uint32_t r = 0; r < rows->n_rows; r++) {
        float *o = part.o + (size_t)r * o_stride;
        if (part.l[r] == 0.0f) {
            memset(rows->out[r], 0, value_dim * sizeof *o);
            continue;
        }
        __m256 l = _mm256_set1_ps(part.l[r]);
        if (rows->sinks != NULL) {
            __m256 m = _mm256_set1_ps(part.m[r]), sink = _mm256_set1_ps(rows->sinks[r]);
            __m256 joint = _mm256_max_ps(m, sink);
            __m256 a = exp8(_mm256_sub_ps(m, joint));
            l = _mm256_fmadd_ps(l, a, exp8(_mm256_sub_ps(sink, joint)));
            for (uint32_t d = 0; d < o_stride; d += W)
                _mm256_store_ps(o + d, _mm256_mul_ps(_mm256_load_ps(o + d), a));
        }
        for (uint32_t d = 0; d < o_stride; d += W)
            _mm256_store_ps(o + d, _mm256_div_ps(_mm256_load_ps(o + d), l));
        if (rows->codec_v == SHEAF_CODEC_TURBO4) sheaf__turbo4_unrotate(o, value_dim);
        memcpy(rows->out[r], o, value_dim * sizeof *o);
    }
}

const sheaf__attn_kernels sheaf__attn_avx2 = {
    SHEAF_ISA_AVX2, FEW_ROWS, pack, split, merge, finish, widen_row,
};

#endif
