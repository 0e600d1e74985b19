/* attn/cuda/prefill_hopper.cu - prefill by Hopper's warpgroup products: bf16 and f16.
 *
 * Owns: one kernel. A thread block has three
 * warpgroups: one warp of the first keeps the copy engine busy, the other two hold 64 query rows
 * each. While a warpgroup softens the scores of a key tile, the tensor cores compute its product of
 * the tile before, and the other warpgroup's.
 *
 *     producer   wait until buffer i is empty, copy the blocks of a key tile into it, which fills it
 *     consumer   S(0); for t: start S(t+1) and O += P(t) V(t); soften S(t+1); O *= fade; ...
 *
 * A copy is 64 numbers of the tokens of one block, swizzled (tensor_map.h). A block that is not held lies
 * outside the map, and is zeros.
 *
 * Shared memory, from an address aligned to 1024 bytes:
 *
 *     queries [2] of [64 rows]                                      operands (prefill_tile.cuh)
 *     K [STAGES], V [STAGES] of [KT rows]                           operands
 *     factor [128] f32, barriers
 */
#include "attn/cuda/prefill_kernels.h"
#include "attn/cuda/prefill_tile.cuh"
#include "attn/cuda/prefill_wgmma.cuh"
#include "attn/cuda/tensor_map.h"

#define THREADS 384
#define STAGES  2
#define ROWS    SHEAF__CUDA_PREFILL_WGMMA_ROWS
/* Weights grow up to 2^LAZY before a row's sums are scaled down: most tiles then leave them alone. Each
 * row decides for itself, and multiplying by 1 changes nothing: no bits depend on its neighbours. */
#define LAZY 8.f

template <int D> struct hopper_shape {
    static const int KT = D == 256 ? 64 : 128;
    static const uint32_t OPERAND = KT * D * 2; /* bytes of one K or V tile */
    static const uint32_t QUERIES = 64 * D * 2; /* of one warpgroup */
    static const uint32_t BYTES = 1024 + 2 * QUERIES + 2 * STAGES * OPERAND + ROWS * 4 + 64;
};

/* Shared addresses. Barriers: full K, full V, empty K, empty V, [STAGES] each. */
typedef struct hopper_memory {
    unsigned char *queries, *keys, *values;
    float *factor;
    uint32_t barriers;
} hopper_memory;

static __device__ __forceinline__ uint32_t full_keys(const hopper_memory &m, uint32_t stage)
{
    return m.barriers + 8 * stage;
}

static __device__ __forceinline__ uint32_t full_values(const hopper_memory &m, uint32_t stage)
{
    return m.barriers + 8 * (STAGES + stage);
}

static __device__ __forceinline__ uint32_t empty_keys(const hopper_memory &m, uint32_t stage)
{
    return m.barriers + 8 * (2 * STAGES + stage);
}

static __device__ __forceinline__ uint32_t empty_values(const hopper_memory &m, uint32_t stage)
{
    return m.barriers + 8 * (3 * STAGES + stage);
}

/* A lane's copy of each tile: some 64 numbers of the tokens of one block. */
typedef struct hopper_copy {
    uint32_t tokens; /* of a block that are in one tile */
    uint32_t part;   /* first token, from the tile's first */
    uint32_t column;
    bool works; /* a tile has at most 32 copies: blocks of 8 at least */
} hopper_copy;

/* The row of the lane's block of the tile at `start`; -1, outside the map: zeros. */
static __device__ __forceinline__ int copied_row(const sheaf__cuda_prefill &a,
                                                 const prefill_work &w, const hopper_copy &c,
                                                 uint32_t start)
{
    uint32_t block = (start + c.part) / a.view.block_tokens;
    bool there = c.works && start < w.end_key && block >= w.item.first_block &&
                 block - w.item.first_block < w.item.n_rows;
    return there ? (int)a.rows[w.item.rows_at + block - w.item.first_block] : -1;
}

template <int D>
static __device__ __forceinline__ void
copy_tile(const sheaf__cuda_prefill &a, const prefill_work &w, const hopper_copy &c,
          const CUtensorMap *map, uint32_t start, int row, uint32_t to, uint32_t barrier)
{
    if ((threadIdx.x & 31) == 0) mbarrier_expect(barrier, hopper_shape<D>::OPERAND);
    __syncwarp();
    if (c.works)
        tensor_copy(to + c.column * hopper_shape<D>::KT * 128 + c.part * 128, map, barrier,
                    (int)c.column * 128, (int)((start + c.part) % a.view.block_tokens),
                    (int)w.kv_head, row);
}

/* The producing warp. Rows are read a tile ahead. */
template <int D>
static __device__ __forceinline__ void
produce(const sheaf__cuda_prefill &a, const prefill_work &w, const hopper_memory &m,
        const CUtensorMap *map_k, const CUtensorMap *map_v)
{
    const uint32_t KT = hopper_shape<D>::KT, OPERAND = hopper_shape<D>::OPERAND;
    const uint32_t keys = shared_address(m.keys), values = shared_address(m.values);
    uint32_t lane = threadIdx.x & 31, n = 0, start = w.first_key / KT * KT;
    hopper_copy c;
    c.tokens = min(a.view.block_tokens, KT);
    c.part = lane % (KT / c.tokens) * c.tokens;
    c.column = lane / (KT / c.tokens);
    c.works = c.column < D / 64;
    int row = copied_row(a, w, c, start);
    for (; start < w.end_key; start += KT, n++) {
        uint32_t stage = n % STAGES, parity = n / STAGES % 2;
        int next = copied_row(a, w, c, start + KT);
        mbarrier_wait(empty_keys(m, stage), parity ^ 1);
        copy_tile<D>(a, w, c, map_k, start, row, keys + stage * OPERAND, full_keys(m, stage));
        mbarrier_wait(empty_values(m, stage), parity ^ 1);
        copy_tile<D>(a, w, c, map_v, start, row, values + stage * OPERAND,
                     full_values(m, stage));
        row = next;
    }
}

/* What a consumer thread keeps of its two rows, 8 apart. */
typedef struct hopper_rows {
    float m[2]; /* what scores times log2(e) are less of: at most LAZY below their maximum */
    float l[2]; /* this thread's share of the denominator */
    float factor[2];
    uint2 seen[2];
} hopper_rows;

/* Scores of a tile to weights; fade: what earlier sums are multiplied by. */
template <int KT, bool CAP>
static __device__ __forceinline__ void soften(const sheaf__cuda_prefill &a, hopper_rows &r,
                                              float (&s)[KT / 2], uint32_t start,
                                              float (&fade)[2])
{
    uint32_t column = threadIdx.x % 4 * 2;
    float cap = a.softcap * LOG2E, per_cap = CAP ? 2 / a.softcap : 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float factor = r.factor[half];
        float top = -CUDART_INF_F;
        if (CAP)
#pragma unroll
            for (int i = 0; i < KT / 4; i++) {
                float &x = s[i / 2 * 4 + half * 2 + i % 2];
                x = soft_cap(x * factor, cap, per_cap);
            }
        if (start < r.seen[half].x || start + KT > r.seen[half].y) {
            uint32_t lo = max(r.seen[half].x, start) - start; /* both clamped to the tile */
            uint32_t hi = max(r.seen[half].y, start) - start;
#pragma unroll
            for (int i = 0; i < KT / 4; i++) {
                uint32_t c = i / 2 * 8 + column + i % 2;
                if (c < lo || c >= hi) s[i / 2 * 4 + half * 2 + i % 2] = -CUDART_INF_F;
            }
        }
#pragma unroll
        for (int i = 0; i < KT / 4; i++) top = fmaxf(top, s[i / 2 * 4 + half * 2 + i % 2]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        if (CAP) factor = 1;
        top *= factor;
        top = top > r.m[half] + LAZY ? top : r.m[half];
        float base = top == -CUDART_INF_F ? 0 : top;
        fade[half] = exp2_fast(r.m[half] - base);
        float sum = 0;
#pragma unroll
        for (int i = 0; i < KT / 4; i++) {
            float &x = s[i / 2 * 4 + half * 2 + i % 2];
            x = exp2_fast(fmaf(x, factor, -base));
            sum += x;
        }
        r.m[half] = top;
        r.l[half] = fmaf(r.l[half], fade[half], sum);
    }
}

/* Starts S = Q K^T of a tile. */
template <int D, bool F16>
static __device__ __forceinline__ void start_scores(float (&s)[hopper_shape<D>::KT / 2],
                                                    uint32_t queries, uint32_t keys)
{
    const int KT = hopper_shape<D>::KT;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t within = d % 64 * 2;
        wgmma_shared<KT / 2, F16>(s, wgmma_descriptor(queries + d / 64 * 64 * 128 + within, 16),
                                  wgmma_descriptor(keys + d / 64 * KT * 128 + within, 16),
                                  d > 0);
    }
    wgmma_commit();
}

/* Starts O += P V of a tile. */
template <int D, bool F16>
static __device__ __forceinline__ void
start_weigh(float (&o)[D / 2], const uint32_t (&p)[hopper_shape<D>::KT / 16][4],
            uint32_t values)
{
    const int KT = hopper_shape<D>::KT;
#pragma unroll
    for (int k = 0; k < KT / 16; k++)
        wgmma_registers<D / 2, F16>(o, p[k], wgmma_descriptor(values + k * 16 * 128, KT * 128),
                                    1);
    wgmma_commit();
}

template <int KT, bool F16>
static __device__ __forceinline__ void pack_weights(uint32_t (&p)[KT / 16][4],
                                                    const float (&s)[KT / 2])
{
#pragma unroll
    for (int k = 0; k < KT / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            p[k][i] = pack_pair<F16>(s[k * 8 + i * 2], s[k * 8 + i * 2 + 1]);
}

/* Values that are not there yet may be anything: zeros. Every warpgroup does this for itself, before
 * its own product; what the other one writes meanwhile is the same. */
template <int D>
static __device__ __forceinline__ void clear_values(const prefill_work &w, uint32_t start,
                                                    unsigned char *values, int barrier)
{
    const uint32_t KT = hopper_shape<D>::KT;
    if (start + KT <= w.item.n_tokens) return;
    for (uint32_t i = threadIdx.x % 128; i < KT * (D / 8); i += 128) {
        uint32_t row = i / (D / 8), d = i % (D / 8) * 8;
        if (start + row >= w.item.n_tokens)
            *(uint4 *)(values + operand_at(KT, row, d)) = make_uint4(0, 0, 0, 0);
    }
    fence_proxy();
    barrier_sync(barrier, 128);
}

static __device__ __forceinline__ void release(uint32_t barrier)
{
    if ((threadIdx.x & 31) == 0) mbarrier_arrive(barrier);
}

/* A consuming warpgroup's loop; which: 0 or 1. */
template <int D, bool F16, bool CAP, bool TURNS>
static __device__ __forceinline__ void
consume(const sheaf__cuda_prefill &a, const prefill_work &w, const hopper_memory &m,
        uint32_t which, hopper_rows &r, float (&o)[D / 2])
{
    const uint32_t KT = hopper_shape<D>::KT, OPERAND = hopper_shape<D>::OPERAND;
    const uint32_t queries = shared_address(m.queries + which * hopper_shape<D>::QUERIES);
    const uint32_t keys = shared_address(m.keys), values = shared_address(m.values);
    const int mine = 3 + (int)which, other = 4 - (int)which, own = 1 + (int)which;
    float s[KT / 2], fade[2];
    uint32_t p[KT / 16][4];
    uint32_t start = w.first_key / KT * KT, n = 0;
    if (start >= w.end_key) return;

    if (TURNS && which == 1) barrier_arrive(other, 256);
    mbarrier_wait(full_keys(m, 0), 0);
    wgmma_pin(s);
    wgmma_fence();
    start_scores<D, F16>(s, queries, keys);
    wgmma_wait<0>();
    wgmma_pin(s);
    release(empty_keys(m, 0));
    soften<KT, CAP>(a, r, s, start, fade);
    pack_weights<KT, F16>(p, s);
    for (start += KT, n = 1; start < w.end_key; start += KT, n++) {
        uint32_t stage = n % STAGES, parity = n / STAGES % 2;
        uint32_t before = (n - 1) % STAGES, parity_before = (n - 1) / STAGES % 2;
        mbarrier_wait(full_keys(m, stage), parity);
        if (TURNS) barrier_sync(mine, 256);
        wgmma_pin(s);
        wgmma_pin(o);
        wgmma_fence();
        start_scores<D, F16>(s, queries, keys + stage * OPERAND);
        mbarrier_wait(full_values(m, before), parity_before);
        start_weigh<D, F16>(o, p, values + before * OPERAND);
        if (TURNS) barrier_arrive(other, 256);
        wgmma_wait<1>();
        wgmma_pin(s);
        release(empty_keys(m, stage));
        soften<KT, CAP>(a, r, s, start, fade);
        wgmma_wait<0>();
        wgmma_pin(o);
        release(empty_values(m, before));
        if (__any_sync(0xffffffffu, fade[0] != 1 || fade[1] != 1))
#pragma unroll
            for (int i = 0; i < D / 2; i++) o[i] *= fade[i / 2 % 2];
        pack_weights<KT, F16>(p, s);
    }
    if (TURNS && which == 0) barrier_sync(mine, 256); /* takes the last arrival */
    uint32_t last = (n - 1) % STAGES;
    mbarrier_wait(full_values(m, last), (n - 1) / STAGES % 2);
    clear_values<D>(w, start - KT, m.values + last * OPERAND, own);
    wgmma_pin(o);
    wgmma_fence();
    start_weigh<D, F16>(o, p, values + last * OPERAND);
    wgmma_wait<0>();
    wgmma_pin(o);
}

/* All of a consuming warpgroup: queries in, loop, results out. */
template <int D, bool F16, bool CAP, bool TURNS>
static __device__ __forceinline__ void consumer(const sheaf__cuda_prefill &a,
                                                const prefill_work &w, const hopper_memory &m,
                                                uint32_t which)
{
    uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4;
    uint32_t row = which * 64 + warp * 16 + lane / 4;
    hopper_rows r;
    float o[D / 2];
    load_queries<D, F16, 64, 128>(a, w, threadIdx.x % 128, which * 64,
                                  m.queries + which * hopper_shape<D>::QUERIES, NULL,
                                  m.factor + which * 64);
    fence_proxy();
    barrier_sync(1 + (int)which, 128);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        r.m[half] = -CUDART_INF_F;
        r.l[half] = 0;
        r.factor[half] = m.factor[row + 8 * half];
        r.seen[half] = row_keys(a, w, row + 8 * half);
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++) o[i] = 0;
    consume<D, F16, CAP, TURNS>(a, w, m, which, r, o);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        r.l[half] += __shfl_xor_sync(0xffffffffu, r.l[half], 1);
        r.l[half] += __shfl_xor_sync(0xffffffffu, r.l[half], 2);
        float by = row_finish(a, w, row + 8 * half, r.m[half], r.l[half]);
        if (row + 8 * half >= w.n_rows) continue;
        uint64_t at = row_index(a, w, row + 8 * half) * D + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            write_pair(a.out, at + 8 * i, a.io_dtype, o[4 * i + 2 * half] * by,
                       o[4 * i + 2 * half + 1] * by);
    }
}

template <int D, bool F16, bool CAP, bool TURNS>
static __global__ void __launch_bounds__(THREADS, 1)
    prefill_wgmma(const __grid_constant__ sheaf__cuda_prefill a,
                  const __grid_constant__ CUtensorMap map_k,
                  const __grid_constant__ CUtensorMap map_v)
{
    using shape = hopper_shape<D>;
    extern __shared__ unsigned char raw[];
    hopper_memory m;
    m.queries = raw + ((1024 - (shared_address(raw) & 1023)) & 1023);
    m.keys = m.queries + 2 * shape::QUERIES;
    m.values = m.keys + STAGES * shape::OPERAND;
    m.factor = (float *)(m.values + STAGES * shape::OPERAND);
    m.barriers = shared_address(m.factor + ROWS);
    const prefill_work w = work_of(a, blockIdx.x, ROWS);
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < 2 * STAGES; i++) mbarrier_init(m.barriers + 8 * i, 1);
        for (uint32_t i = 2 * STAGES; i < 4 * STAGES; i++) mbarrier_init(m.barriers + 8 * i, 8);
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
        fence_proxy();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        registers_shrink<40>();
        if (threadIdx.x < 32) produce<D>(a, w, m, &map_k, &map_v);
    } else {
        registers_grow<232>();
        consumer<D, F16, CAP, TURNS>(a, w, m, threadIdx.x / 128 - 1);
    }
}

/* 64 numbers a copy, of the tokens of a block or of a key tile. */
static bool map_keys_or_values(CUtensorMap *map, const sheaf_kv_view *view, bool values,
                               uint32_t key_tile)
{
    sheaf__cuda_tiles tiles = {};
    tiles.base = (const unsigned char *)view->base + (values ? view->v_offset : view->k_offset);
    tiles.head_stride = values ? view->v_head_stride : view->k_head_stride;
    tiles.row_stride = values ? view->row_stride_v : view->row_stride_k;
    tiles.n_heads = view->n_kv_heads, tiles.block_tokens = view->block_tokens;
    tiles.token_bytes = view->key_dim * 2, tiles.width = 128;
    tiles.tokens = view->block_tokens < key_tile ? view->block_tokens : key_tile;
    return sheaf__cuda_map_tiles(map, &tiles);
}

template <int D, bool F16, bool CAP, bool TURNS>
static sheaf_status launch(const sheaf__cuda_prefill *a, cudaStream_t stream)
{
    using shape = hopper_shape<D>;
    CUtensorMap map_k, map_v;
    if (!map_keys_or_values(&map_k, &a->view, false, shape::KT) ||
        !map_keys_or_values(&map_v, &a->view, true, shape::KT))
        return SHEAF_E_UNSUPPORTED;
    if (cudaFuncSetAttribute(prefill_wgmma<D, F16, CAP, TURNS>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             (int)shape::BYTES) != cudaSuccess)
        return SHEAF_E_DEVICE;
    prefill_wgmma<D, F16, CAP, TURNS>
        <<<a->n_tiles * a->view.n_kv_heads, THREADS, shape::BYTES, stream>>>(*a, map_k, map_v);
    return cudaGetLastError() == cudaSuccess ? SHEAF_OK : SHEAF_E_DEVICE;
}

template <int D, bool F16>
static sheaf_status launch_options(const sheaf__cuda_prefill *a, cudaStream_t stream)
{
    bool turns = a->kernel == SHEAF__CUDA_PREFILL_PINGPONG;
    if (a->softcap > 0)
        return turns ? launch<D, F16, true, true>(a, stream)
                     : launch<D, F16, true, false>(a, stream);
    return turns ? launch<D, F16, false, true>(a, stream)
                 : launch<D, F16, false, false>(a, stream);
}

sheaf_status sheaf__cuda_prefill_wgmma(const sheaf__cuda_prefill *layer, cudaStream_t stream)
{
    bool f16 = layer->view.codec_k == SHEAF_CODEC_F16;
    switch (layer->view.key_dim) {
    case 64:
        return f16 ? launch_options<64, true>(layer, stream)
                   : launch_options<64, false>(layer, stream);
    case 128:
        return f16 ? launch_options<128, true>(layer, stream)
                   : launch_options<128, false>(layer, stream);
    case 256:
        return f16 ? launch_options<256, true>(layer, stream)
                   : launch_options<256, false>(layer, stream);
    default: return SHEAF_E_UNSUPPORTED;
    }
}
