/* attn/levels_vnni_avx512.c - scores of quantized keys for few rows, where the processor multiplies
 * bytes and adds four products at once (VNNI).
 *
 * A query's level is 256 (high - 128) + low, both bytes without a sign; so the sum over a key is
 *
 *     256 sum(high * k) + sum(low * k) - 32768 sum(k)
 *
 * modulo 2^32, and itself fits in an int32. A vector holds four query rows, sixteen elements each,
 * against sixteen levels of a key for all four:
 *
 *     queries   [n_rows / 4][padded / 16][high, low][4 rows][16] bytes; level 0 behind the end
 *     keys      int8: where they lie, or padded to whole chunks. turbo4: unpacked, 64 at a time, low
 *               halves of 32 bytes first
 */
#if defined(__x86_64__)

#    include "attn/fetch.h"
#    include "attn/levels.h"
#    include "attn/vector_avx512.h"

#    define VNNI  __attribute__((target("avx512vnni")))
#    define CHUNK 16              /* elements of each row in a vector */
#    define PAIR  (2 * 4 * CHUNK) /* bytes of high and low */
#    define STEP  64              /* levels unpacked at a time */
#    define ROOM  SHEAF_ATTN_MAX_DIM

int sheaf__levels_vnni_is_here(void)
{
    return __builtin_cpu_supports("avx512vnni");
}

/* Elements of a row with what is behind its end. */
static uint32_t padded_of(uint32_t codec, uint32_t dim)
{
    const uint32_t step = codec == SHEAF_CODEC_TURBO4 ? STEP : CHUNK;
    return (dim + step - 1) / step * step;
}

/* Where element d lies among the unpacked levels. */
static uint32_t place_of(uint32_t codec, uint32_t d)
{
    if (codec != SHEAF_CODEC_TURBO4) return d;
    return d / STEP * STEP + d % 2 * (STEP / 2) + d % STEP / 2;
}

void sheaf__levels_vnni_pack(const sheaf__attn_split *in)
{
    const uint32_t padded = padded_of(in->codec_k, in->key_dim);
    unsigned char *q = (unsigned char *)sheaf__levels_queries(in);
    float *units = sheaf__levels_units(in);
    memset(units, 0, SHEAF__ATTN_ROWS * sizeof *units);
    for (uint32_t at = 0; at < (in->n_rows + 3) / 4 * 4 * padded * 2; at += 4 * CHUNK)
        memset(q + at, at % PAIR == 0 ? 128 : 0, 4 * CHUNK);
    for (uint32_t r = 0; r < in->n_rows; r++) {
        int16_t row[ROOM];
        units[r] = sheaf__levels_of(in->codec_k, in->q[r], in->key_dim, row);
        unsigned char *to = q + (size_t)(r / 4) * 4 * padded * 2 + (size_t)(r % 4) * CHUNK;
        for (uint32_t d = 0; d < in->key_dim; d++) {
            uint32_t at = place_of(in->codec_k, d);
            uint32_t level = (uint32_t)(row[sheaf__levels_place(in->codec_k, d)] + 32768);
            unsigned char *pair = to + (size_t)(at / CHUNK) * PAIR + at % CHUNK;
            pair[0] = (unsigned char)(level >> 8);
            pair[4 * CHUNK] = (unsigned char)level;
        }
    }
}

/* sum plus four products a number, x without signs. In assembly: gcc 12 copies every sum twice a turn
 * around the builtin. */
VNNI INLINE __m512i multiply_add(__m512i sum, __m512i x, __m512i y)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
    return sum;
}

/* The 64 levels of 32 bytes' low halves, then of their high halves. */
INLINE __m512i unpack64(__m256i codes)
{
    const __m512i shift = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1);
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_loadu_si128((const __m128i *)(const void *)sheaf__turbo4_levels));
    __m512i x = _mm512_srlv_epi16(_mm512_broadcast_i64x4(codes), shift);
    return _mm512_shuffle_epi8(table, _mm512_and_si512(x, _mm512_set1_epi8(15)));
}

/* A key as bytes up to whole chunks; reads no byte beyond it. */
INLINE void unpack_key(const uint32_t codec, const unsigned char *key, uint32_t dim,
                       unsigned char *levels)
{
    uint32_t d = 0;
    if (codec == SHEAF_CODEC_INT8) {
        _mm_store_si128((__m128i *)(void *)(levels + dim / CHUNK * CHUNK), _mm_setzero_si128());
        memcpy(levels, key, dim);
        return;
    }
    for (; d + STEP <= dim; d += STEP)
        _mm512_store_si512(levels + d, unpack64(_mm256_loadu_si256(
                                           (const __m256i *)(const void *)(key + d / 2))));
    if (d < dim) {
        uint64_t bytes = (dim - d + 1) / 2;
        _mm512_store_si512(levels + d, unpack64(_mm256_maskz_loadu_epi8(
                                           (__mmask32)((1ull << bytes) - 1), key + d / 2)));
    }
}

/* 256 sum(high * k) + sum(low * k) of eight keys of `chunks` chunks for four rows, four partial sums
 * each. */
VNNI INLINE void row_sums(uint32_t chunks, const unsigned char *q,
                          const unsigned char *const k[8], __m512i sums[8])
{
    __m512i high[8], low[8];
    for (int i = 0; i < 8; i++) high[i] = low[i] = _mm512_setzero_si512();
    size_t d = 0;
    do {
        const __m512i h = _mm512_load_si512(q + d * 8), l = _mm512_load_si512(q + d * 8 + 64);
        for (int i = 0; i < 8; i++) {
            __m512i key = _mm512_broadcast_i32x4(
                _mm_loadu_si128((const __m128i *)(const void *)(k[i] + d)));
            high[i] = multiply_add(high[i], h, key);
            low[i] = multiply_add(low[i], l, key);
        }
        d += CHUNK;
    } while (d < (size_t)chunks * CHUNK);
    for (int i = 0; i < 8; i++)
        sums[i] = _mm512_add_epi32(_mm512_slli_epi32(high[i], 8), low[i]);
}

/* The sums of sixteen keys' levels, times 32768. */
VNNI INLINE __m512i key_sums(uint32_t chunks, const unsigned char *const k[16])
{
    const uint32_t dim = chunks * CHUNK, whole = dim / 64 * 64;
    const __mmask64 rest = (1ull << (dim - whole)) - 1;
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i sum[16];
    for (int i = 0; i < 16; i++) {
        __m512i part = _mm512_maskz_loadu_epi8(rest, k[i] + whole);
        part = multiply_add(_mm512_setzero_si512(), ones, part);
        for (uint32_t d = 0; d < whole; d += 64)
            part = multiply_add(part, ones, _mm512_loadu_si512(k[i] + d));
        sum[i] = part;
    }
    return _mm512_slli_epi32(sums16(sum), 15);
}

/* Four vectors, of a position each, with four partial sums of four rows: the sums, [row][position]. */
INLINE __m512i add_partial(const __m512i v[4])
{
    __m512i a =
        _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    __m512i b =
        _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* Scores of sixteen positions for rows `row` to row + 3, as far as there are rows.
 * s: [n_rows, SPLIT] from the first position */
VNNI INLINE void scores16(const sheaf__attn_split *in, uint32_t row, uint32_t chunks,
                          const unsigned char *q, const unsigned char *const k[16],
                          __m512i correction, __m512 scales, float *s)
{
    __m512i sums[16], quarter[4], half[4], of_row[4];
    row_sums(chunks, q, k, sums);
    row_sums(chunks, q, k + 8, sums + 8);
    for (int i = 0; i < 4; i++) quarter[i] = add_partial(sums + 4 * i);
    for (int i = 0; i < 2; i++) {
        half[i] = _mm512_shuffle_i32x4(quarter[2 * i], quarter[2 * i + 1], 0x88);
        half[2 + i] = _mm512_shuffle_i32x4(quarter[2 * i], quarter[2 * i + 1], 0xdd);
    }
    of_row[0] = _mm512_shuffle_i32x4(half[0], half[1], 0x88);
    of_row[1] = _mm512_shuffle_i32x4(half[2], half[3], 0x88);
    of_row[2] = _mm512_shuffle_i32x4(half[0], half[1], 0xdd);
    of_row[3] = _mm512_shuffle_i32x4(half[2], half[3], 0xdd);
    for (uint32_t r = 0; r < 4 && row + r < in->n_rows; r++) {
        __m512i sum = _mm512_sub_epi32(of_row[r], correction);
        __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scales);
        const float unit = sheaf__levels_units(in)[row + r] * in->scale;
        _mm512_store_ps(s + (size_t)(row + r) * SPLIT, _mm512_mul_ps(x, _mm512_set1_ps(unit)));
    }
}

/* Whole groups of sixteen around [first, end). */
VNNI INLINE void few_scores(const uint32_t codec, const sheaf__attn_split *in, float *s)
{
    const size_t k_bytes = (size_t)sheaf__codec_row_bytes(codec, in->key_dim);
    const uint32_t padded = padded_of(codec, in->key_dim);
    const int is_ready = codec == SHEAF_CODEC_INT8 && in->key_dim % CHUNK == 0;
    const __m512i first = _mm512_set1_epi32((int)in->first);
    const __m512i end = _mm512_set1_epi32((int)in->end);
    unsigned char unpacked[16][ROOM] __attribute__((aligned(64)));
    for (uint32_t at = in->first & ~15u; at < in->end; at += 16) {
        const unsigned char *k[16];
        for (uint32_t i = 0; i < 16; i++) {
            k[i] = in->k[least(greatest(at + i, in->first), in->end - 1)];
            if (at + i < in->end)
                sheaf__attn_fetch_after_key(in, greatest(at + i, in->first), 0, k_bytes);
            if (is_ready) continue;
            unpack_key(codec, k[i], in->key_dim, unpacked[i]);
            k[i] = unpacked[i];
        }
        __m512 scales =
            _mm512_maskz_loadu_ps(inside16(positions16(at), first, end), in->k_scale + at);
        __m512i correction = key_sums(padded / CHUNK, k);
        const unsigned char *q = (const unsigned char *)sheaf__levels_queries(in);
        for (uint32_t row = 0; row < in->n_rows; row += 4, q += (size_t)4 * padded * 2)
            scores16(in, row, padded / CHUNK, q, k, correction, scales, s + at);
    }
}

VNNI void sheaf__levels_vnni_few(const sheaf__attn_split *in, float *s)
{
    if (in->codec_k == SHEAF_CODEC_INT8)
        few_scores(SHEAF_CODEC_INT8, in, s);
    else
        few_scores(SHEAF_CODEC_TURBO4, in, s);
}

#endif
