/* attn/cuda/prefill_mma.cuh - prefill by mma.sync: every codec, dimension and option.
 *
 * Owns: one kernel. A warp holds 16 MT query rows; K and V tiles pass through one buffer each, V
 * being copied while scores are computed and the next K during softmax and the second product.
 *
 * Shared memory:
 *
 *     queries [rows], then what bf16 left of them if SPLIT      operands (prefill_tile.cuh)
 *     keys [KT], values [KT]                                    operands
 *     factor [rows], key scales [KT], value scales [KT] f32
 *     turbo4: [256] the two levels of a byte for values, then for keys
 *     at the end, over it all: [rows][D] f32 results
 */
#ifndef SHEAF_ATTN_CUDA_PREFILL_MMA_CUH
#define SHEAF_ATTN_CUDA_PREFILL_MMA_CUH

#include "attn/cuda/prefill_tile.cuh"

#define MMA_THREADS 128

/* Sizes of one instance. */
template <int D, bool SPLIT> struct mma_shape {
    static const int MT = D == 256 ? 1 : 2;
    static const int KT = D == 256 ? 32 : 64;
    static const int ROWS = MMA_THREADS / 32 * 16 * MT;
    static const uint32_t OPERANDS = ROWS * D * 2 * (SPLIT ? 2 : 1) + 2 * KT * D * 2;
    static const uint32_t RESULTS = ROWS * D * 4;
    static const uint32_t NUMBERS = OPERANDS > RESULTS ? OPERANDS : RESULTS;
    static const uint32_t BYTES = NUMBERS + ROWS * 4 + KT * 8 + 2048;
};

static __device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}

static __device__ __forceinline__ void copy_commit(void)
{
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}

static __device__ __forceinline__ void copy_wait(void)
{
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");
}

static __device__ __forceinline__ void matrix_load(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

static __device__ __forceinline__ void matrix_load_turned(uint32_t (&r)[4], uint32_t from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
}

template <bool F16>
static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4],
                                                uint32_t b0, uint32_t b1)
{
    if (F16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                     "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Where the segments of one head's K or V lie. */
typedef struct mma_source {
    const unsigned char *base;
    const uint32_t *rows; /* of the item, from its first block */
    uint64_t row_stride;
    uint32_t first_block;
    uint32_t end; /* positions from here on are not there */
    uint32_t shift;
    uint32_t mask;
} mma_source;

static __device__ __forceinline__ const unsigned char *segment_of(const mma_source &s,
                                                                  uint32_t pos, bool *there)
{
    uint32_t block = pos >> s.shift;
    *there = pos < s.end && block >= s.first_block;
    return *there ? s.base + s.rows[block - s.first_block] * s.row_stride : s.base;
}

/* Copies the key tile at `start`: numbers as they are. */
template <int D, int KT>
static __device__ __forceinline__ void copy_numbers(const mma_source &s, uint32_t start,
                                                    uint32_t to)
{
#pragma unroll
    for (int i = 0; i < KT * D / 8 / MMA_THREADS; i++) {
        uint32_t piece = threadIdx.x + i * MMA_THREADS;
        uint32_t key = piece / (D / 8), d = piece % (D / 8) * 8;
        bool there;
        const unsigned char *segment = segment_of(s, start + key, &there);
        uint64_t at = there ? ((uint64_t)((start + key) & s.mask) * D + d) * 2 : 0;
        copy_async(to + operand_at(KT, key, d), segment + at, there);
    }
    copy_commit();
}

template <bool F16>
static __device__ __forceinline__ uint32_t int8_pair(uint32_t word, int shift)
{
    return pack_pair<F16>((float)(signed char)(word >> shift),
                          (float)(signed char)(word >> (shift + 8)));
}

/* Levels of 16 encoded bytes of a key, from byte `first` of its row on. */
template <int CODEC, int KT, bool F16>
static __device__ __forceinline__ void
put_levels(unsigned char *to, uint32_t key, uint32_t first, uint4 codes, const uint32_t *pairs)
{
    uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
    if (CODEC == SHEAF_CODEC_INT8) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint32_t u = word[2 * i], v = word[2 * i + 1];
            *(uint4 *)(to + operand_at(KT, key, first + 8 * i)) =
                make_uint4(int8_pair<F16>(u, 0), int8_pair<F16>(u, 16), int8_pair<F16>(v, 0),
                           int8_pair<F16>(v, 16));
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t u = word[i];
            *(uint4 *)(to + operand_at(KT, key, first * 2 + 8 * i)) = make_uint4(
                pairs[u & 255], pairs[u >> 8 & 255], pairs[u >> 16 & 255], pairs[u >> 24]);
        }
    }
}

/* The key tile at `start` as levels, and its scales; what is not there is zero. */
template <int D, int KT, int CODEC, bool F16>
static __device__ __forceinline__ void copy_levels(const mma_source &s, uint32_t start,
                                                   unsigned char *to, float *scales,
                                                   const uint32_t *pairs)
{
    const int row_bytes = CODEC == SHEAF_CODEC_INT8 ? D : D / 2;
    const int vectors = KT * row_bytes / 16;
    uint4 codes[(vectors + MMA_THREADS - 1) / MMA_THREADS];
#pragma unroll
    for (int i = 0; i * MMA_THREADS < vectors; i++) {
        uint32_t at = threadIdx.x + i * MMA_THREADS;
        uint32_t key = at / (row_bytes / 16), first = at % (row_bytes / 16) * 16;
        bool there = false;
        const unsigned char *segment =
            at < vectors ? segment_of(s, start + key, &there) : s.base;
        codes[i] = make_uint4(0, 0, 0, 0);
        if (there)
            codes[i] = *(const uint4 *)(segment +
                                        (uint64_t)((start + key) & s.mask) * row_bytes + first);
    }
    if (threadIdx.x < KT) {
        bool there;
        const unsigned char *segment = segment_of(s, start + threadIdx.x, &there);
        uint64_t at = (uint64_t)(s.mask + 1) * row_bytes + ((start + threadIdx.x) & s.mask) * 4;
        scales[threadIdx.x] = there ? *(const float *)(segment + at) : 0;
    }
#pragma unroll
    for (int i = 0; i * MMA_THREADS < vectors; i++) {
        uint32_t at = threadIdx.x + i * MMA_THREADS;
        uint32_t key = at / (row_bytes / 16), first = at % (row_bytes / 16) * 16;
        if (at < vectors) put_levels<CODEC, KT, F16>(to, key, first, codes[i], pairs);
    }
}

template <int D, int KT, int CODEC, bool F16>
static __device__ __forceinline__ void copy_tile(const mma_source &s, uint32_t start,
                                                 unsigned char *to, float *scales,
                                                 const uint32_t *pairs)
{
    if constexpr (CODEC == SHEAF_CODEC_BF16 || CODEC == SHEAF_CODEC_F16)
        copy_numbers<D, KT>(s, start, (uint32_t)__cvta_generic_to_shared(to));
    else
        copy_levels<D, KT, CODEC, F16>(s, start, to, scales, pairs);
}

static __device__ __forceinline__ mma_source source_of(const sheaf__cuda_prefill &a,
                                                       const prefill_work &w, bool values)
{
    mma_source s;
    s.base = a.view.base + (values ? a.view.v_offset + w.kv_head * a.view.v_head_stride
                                   : a.view.k_offset + w.kv_head * a.view.k_head_stride);
    s.rows = a.rows + w.item.rows_at;
    s.row_stride = values ? a.view.row_stride_v : a.view.row_stride_k;
    s.first_block = w.item.first_block;
    s.end = w.item.n_tokens;
    s.shift = __ffs(a.view.block_tokens) - 1;
    s.mask = a.view.block_tokens - 1;
    return s;
}

/* s[16 MT x KT] = queries keys^T, of the warp's rows from `row` on. */
template <int D, int MT, int KT, int ROWS, bool F16, bool SPLIT>
static __device__ __forceinline__ void scores(float (&s)[MT][KT / 8][4], uint32_t queries,
                                              uint32_t keys, uint32_t row)
{
    uint32_t lane = threadIdx.x & 31;
    uint32_t key = (lane >> 4) * 8 + (lane & 7), kd = (lane >> 3 & 1) * 8;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < KT / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][j][e] = 0;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t q[SPLIT ? 2 : 1][MT][4];
#pragma unroll
        for (int i = 0; i < MT; i++) {
            uint32_t at = operand_at(ROWS, row + 16 * i + (lane & 15), d + (lane >> 4) * 8);
            matrix_load(q[0][i], queries + at);
            if (SPLIT) matrix_load(q[SPLIT][i], queries + ROWS * D * 2 + at);
        }
#pragma unroll
        for (int j = 0; j < KT / 16; j++) {
            uint32_t k[4];
            matrix_load(k, keys + operand_at(KT, 16 * j + key, d + kd));
#pragma unroll
            for (int i = 0; i < MT; i++) {
                multiply<F16>(s[i][2 * j], q[0][i], k[0], k[1]);
                multiply<F16>(s[i][2 * j + 1], q[0][i], k[2], k[3]);
                if (SPLIT) {
                    multiply<F16>(s[i][2 * j], q[SPLIT][i], k[0], k[1]);
                    multiply<F16>(s[i][2 * j + 1], q[SPLIT][i], k[2], k[3]);
                }
            }
        }
    }
}

/* o += p values. */
template <int D, int MT, int KT, bool F16, bool SPLIT>
static __device__ __forceinline__ void weigh(float (&o)[MT][D / 8][4],
                                             const float (&p)[MT][KT / 8][4], uint32_t values)
{
    uint32_t lane = threadIdx.x & 31;
    uint32_t key = (lane >> 3 & 1) * 8 + (lane & 7), vd = (lane >> 4) * 8;
#pragma unroll
    for (int j = 0; j < KT / 16; j++) {
        uint32_t high[MT][4], low[MT][4];
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float x = p[i][2 * j + e / 2][e % 2 * 2],
                      y = p[i][2 * j + e / 2][e % 2 * 2 + 1];
                high[i][e] = pack_pair<F16>(x, y);
                low[i][e] = SPLIT ? pack_rest(x, y, high[i][e]) : 0;
            }
#pragma unroll
        for (int d = 0; d < D; d += 16) {
            uint32_t v[4];
            matrix_load_turned(v, values + operand_at(KT, 16 * j + key, d + vd));
#pragma unroll
            for (int i = 0; i < MT; i++) {
                multiply<F16>(o[i][d / 8], high[i], v[0], v[1]);
                multiply<F16>(o[i][d / 8 + 1], high[i], v[2], v[3]);
                if (SPLIT) {
                    multiply<F16>(o[i][d / 8], low[i], v[0], v[1]);
                    multiply<F16>(o[i][d / 8 + 1], low[i], v[2], v[3]);
                }
            }
        }
    }
}

/* Per row of a thread: two of each 16. */
typedef struct mma_row {
    float m; /* maximum so far, times log2(e) */
    float l; /* this thread's share of the denominator */
    float factor;
    uint32_t lo; /* sees [lo, hi) */
    uint32_t hi;
} mma_row;

/* Scores of one row and tile to weights; returns what earlier sums are multiplied by. */
template <int KT, bool SCALED>
static __device__ __forceinline__ float
soften(const sheaf__cuda_prefill &a, mma_row &r, float (&s)[KT / 8][4], int half,
       uint32_t start, const float *key_scales, const float *value_scales)
{
    uint32_t column = threadIdx.x % 4 * 2;
    float cap = a.softcap * LOG2E, per_cap = a.softcap > 0 ? 2 / a.softcap : 0;
    bool whole = start >= r.lo && start + KT <= r.hi;
    float top = r.m;
#pragma unroll
    for (int j = 0; j < KT / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float &x = s[j][half * 2 + e];
            uint32_t c = 8 * j + column + e;
            x *= r.factor;
            if (SCALED) x *= key_scales[c];
            if (a.softcap > 0) x = soft_cap(x, cap, per_cap);
            if (!whole && (start + c < r.lo || start + c >= r.hi)) x = -CUDART_INF_F;
            top = fmaxf(top, x);
        }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    float base = top == -CUDART_INF_F ? 0 : top;
    float fade = exp2_fast(r.m - base);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < KT / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float &x = s[j][half * 2 + e];
            x = exp2_fast(x - base);
            sum += x;
            if (SCALED) x *= value_scales[8 * j + column + e];
        }
    r.m = top;
    r.l = r.l * fade + sum;
    return fade;
}

/* Results through shared memory: [rows][D] f32, groups of 8 permuted by the row, then rotated back
 * if need be and written a row a warp. */
template <int D, int MT, int ROWS, bool ROTATE>
static __device__ __forceinline__ void
write_results(const sheaf__cuda_prefill &a, const prefill_work &w, float *results,
              const float (&o)[MT][D / 8][4], const float (&by)[MT][2])
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t row = warp * 16 * MT + 16 * i + 8 * half + lane / 4;
#pragma unroll
            for (int j = 0; j < D / 8; j++)
                *(float2 *)(results + row * D + ((8 * j) ^ (row & 7) * 8) + lane % 4 * 2) =
                    make_float2(o[i][j][half * 2] * by[i][half],
                                o[i][j][half * 2 + 1] * by[i][half]);
        }
    __syncthreads();
    for (uint32_t row = warp; row < w.n_rows; row += MMA_THREADS / 32) {
        float x[D / 32];
#pragma unroll
        for (int i = 0; i < D / 32; i++)
            x[i] = results[row * D + ((lane + 32 * i) ^ (row & 7) * 8)];
        if (ROTATE) rotate_row<D, true>(x, lane);
        uint64_t at = row_index(a, w, row) * D;
#pragma unroll
        for (int i = 0; i < D / 32; i++)
            write_number(a.out, at + lane + 32 * i, a.io_dtype, x[i]);
    }
}

template <int D, int CODEC, bool SPLIT>
static __global__ void __launch_bounds__(MMA_THREADS)
    prefill_mma(const __grid_constant__ sheaf__cuda_prefill a)
{
    using shape = mma_shape<D, SPLIT>;
    const int MT = shape::MT, KT = shape::KT, ROWS = shape::ROWS;
    const bool F16 = CODEC == SHEAF_CODEC_F16;
    const bool SCALED = CODEC == SHEAF_CODEC_INT8 || CODEC == SHEAF_CODEC_TURBO4;
    const bool ROTATE = CODEC == SHEAF_CODEC_TURBO4;
    const bool KEYS_F16 =
        F16 || (SCALED && !SPLIT); /* f16 holds levels too, and queries better */
    extern __shared__ __align__(128) unsigned char shared[];
    unsigned char *queries = shared;
    unsigned char *keys = queries + ROWS * D * 2 * (SPLIT ? 2 : 1);
    unsigned char *values = keys + KT * D * 2;
    float *factor = (float *)(shared + shape::NUMBERS);
    float *key_scales = factor + ROWS, *value_scales = key_scales + KT;
    uint32_t *pairs = (uint32_t *)(value_scales + KT), *key_pairs = pairs + 256;
    const prefill_work w = work_of(a, blockIdx.x, ROWS);
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;

    if (ROTATE) {
        const uint64_t low = 0xfaeee1d4c6b5a081ull;  /* levels -127 .. -6 as bytes */
        const uint64_t high = 0x7f604b3a2c1f1206ull; /* 6 .. 127 */
        for (uint32_t b = threadIdx.x; b < 256; b += MMA_THREADS) {
            uint32_t u = b & 15, v = b >> 4;
            float x = (float)(signed char)((u < 8 ? low : high) >> (u & 7) * 8);
            float y = (float)(signed char)((v < 8 ? low : high) >> (v & 7) * 8);
            pairs[b] = pack_pair<false>(x, y);
            key_pairs[b] = pack_pair<KEYS_F16>(x, y);
        }
    }
    unsigned char *low = SPLIT ? queries + ROWS * D * 2 : NULL;
    if constexpr (ROTATE)
        load_rotated<D, KEYS_F16>(a, w, MMA_THREADS / 32, ROWS, queries, low, factor);
    else
        load_queries<D, KEYS_F16, ROWS, MMA_THREADS>(a, w, threadIdx.x, 0, queries, low,
                                                     factor);
    __syncthreads();

    mma_row rows[MT][2];
    float o[MT][D / 8][4];
#pragma unroll
    for (int i = 0; i < MT; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t row = warp * 16 * MT + 16 * i + 8 * half + lane / 4;
            uint2 seen = row_keys(a, w, row);
            rows[i][half] = {-CUDART_INF_F, 0, factor[row], seen.x, seen.y};
        }
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[i][j][e] = 0;
    }

    const mma_source from_k = source_of(a, w, false), from_v = source_of(a, w, true);
    const uint32_t shared_q = (uint32_t)__cvta_generic_to_shared(queries);
    const uint32_t shared_k = (uint32_t)__cvta_generic_to_shared(keys);
    const uint32_t shared_v = (uint32_t)__cvta_generic_to_shared(values);
    uint32_t start = w.first_key / KT * KT;
    if (start < w.end_key)
        copy_tile<D, KT, CODEC, KEYS_F16>(from_k, start, keys, key_scales, key_pairs);
    for (; start < w.end_key; start += KT) {
        float s[MT][KT / 8][4];
        copy_wait();
        __syncthreads(); /* keys are here; nobody reads the last values any more */
        copy_tile<D, KT, CODEC, F16>(from_v, start, values, value_scales, pairs);
        scores<D, MT, KT, ROWS, KEYS_F16, SPLIT>(s, shared_q, shared_k, warp * 16 * MT);
        copy_wait();
        __syncthreads(); /* values are here; nobody reads the keys any more */
        if (!SCALED && start + KT < w.end_key)
            copy_tile<D, KT, CODEC, KEYS_F16>(from_k, start + KT, keys, key_scales, key_pairs);
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float fade = soften<KT, SCALED>(a, rows[i][half], s[i], half, start, key_scales,
                                                value_scales);
#pragma unroll
                for (int j = 0; j < D / 8; j++) {
                    o[i][j][half * 2] *= fade;
                    o[i][j][half * 2 + 1] *= fade;
                }
            }
        if (SCALED) __syncthreads(); /* nobody reads the key scales any more */
        if (SCALED && start + KT < w.end_key)
            copy_tile<D, KT, CODEC, KEYS_F16>(from_k, start + KT, keys, key_scales, key_pairs);
        weigh<D, MT, KT, F16, SPLIT>(o, s, shared_v);
    }

    float by[MT][2];
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            mma_row &r = rows[i][half];
            r.l += __shfl_xor_sync(0xffffffffu, r.l, 1);
            r.l += __shfl_xor_sync(0xffffffffu, r.l, 2);
            by[i][half] =
                row_finish(a, w, warp * 16 * MT + 16 * i + 8 * half + lane / 4, r.m, r.l);
        }
    __syncthreads();
    write_results<D, MT, ROWS, ROTATE>(a, w, (float *)shared, o, by);
}

template <int D, int CODEC, bool SPLIT>
static sheaf_status launch_mma(const sheaf__cuda_prefill *a, cudaStream_t stream)
{
    const uint32_t bytes = mma_shape<D, SPLIT>::BYTES;
    if (cudaFuncSetAttribute(prefill_mma<D, CODEC, SPLIT>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)bytes) != cudaSuccess)
        return SHEAF_E_DEVICE;
    prefill_mma<D, CODEC, SPLIT>
        <<<a->n_tiles * a->view.n_kv_heads, MMA_THREADS, bytes, stream>>>(*a);
    return cudaGetLastError() == cudaSuccess ? SHEAF_OK : SHEAF_E_DEVICE;
}

/* What a file of instances of one codec defines. */
template <int CODEC>
static sheaf_status dispatch_mma(const sheaf__cuda_prefill *a, cudaStream_t stream)
{
    const bool f32 = a->io_dtype == SHEAF_DTYPE_F32 && CODEC != SHEAF_CODEC_F16;
    switch (a->view.key_dim) {
    case 64:
        return f32 ? launch_mma<64, CODEC, CODEC != SHEAF_CODEC_F16>(a, stream)
                   : launch_mma<64, CODEC, false>(a, stream);
    case 128:
        return f32 ? launch_mma<128, CODEC, CODEC != SHEAF_CODEC_F16>(a, stream)
                   : launch_mma<128, CODEC, false>(a, stream);
    case 256:
        return f32 ? launch_mma<256, CODEC, CODEC != SHEAF_CODEC_F16>(a, stream)
                   : launch_mma<256, CODEC, false>(a, stream);
    default: return SHEAF_E_UNSUPPORTED;
    }
}

#endif
