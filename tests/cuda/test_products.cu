/* cuda/test_products.cu - the two matrix products of decoding give the same bits.
 *
 * A prefix that is shared is read by wgmma, a sequence's own positions by mma.sync, and results must not
 * show which (decode_wide.cuh). Both add 16 products to a sum; that they round alike is the hardware's,
 * so it is compared here, on numbers chosen to tell: of all sizes, cancelling, denormal, without end, no
 * numbers.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "attn/cuda/instructions.cuh"
#include "attn/cuda/wgmma.cuh"

#include "rig_ok.cuh"

namespace
{

using namespace sheaf_cuda;

constexpr int KINDS = 6;
constexpr int ROWS = 64, COLUMNS = 64, DEPTH = 16;

/* What one block compares: sum [ROWS][COLUMNS] + A [ROWS][DEPTH] B [DEPTH][COLUMNS]. */
struct problem {
    uint16_t a[ROWS * DEPTH];    /* rows of A */
    uint16_t b[COLUMNS * DEPTH]; /* columns of B */
    float sum[ROWS * COLUMNS];
};

struct results {
    float by_mma[ROWS * COLUMNS], by_wgmma[ROWS * COLUMNS];
    float by_wgmma_turned[ROWS * COLUMNS];
};

/* The same without a sum, which mma.sync adds to zeros and wgmma to nothing. */
struct both_results {
    results added, alone;
};

/* Numbers of a row or column r, k and k + 1, as an operand has them. */
__device__ uint32_t pair_of(const uint16_t *from, int r, int k)
{
    return from[r * DEPTH + k] | (uint32_t)from[r * DEPTH + k + 1] << 16;
}

/* As the units of decode do: the sum's columns are rows of the product. Warp w has 16 of them. */
template <bool HALF> __device__ void multiply_mma(const problem &p, bool adds, float *to)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, w = threadIdx.x >> 5;
    uint32_t a[4];
    for (int i = 0; i < 4; i++)
        a[i] = pair_of(p.b, 16 * w + g + 8 * (i & 1), 2 * t + i / 2 * 8);
    for (int n = 0; n < ROWS / 8; n++) {
        float d[4];
        for (int i = 0; i < 4; i++)
            d[i] = adds ? p.sum[(8 * n + 2 * t + (i & 1)) * COLUMNS + 16 * w + g + i / 2 * 8]
                        : 0.0f;
        mma<HALF>(d, a, pair_of(p.a, 8 * n + g, 2 * t), pair_of(p.a, 8 * n + g, 2 * t + 8));
        for (int i = 0; i < 4; i++)
            to[(8 * n + 2 * t + (i & 1)) * COLUMNS + 16 * w + g + i / 2 * 8] = d[i];
    }
}

/* Where number k of row r lies in a swizzled tile; turned: number r of row k, along N. */
__device__ int place(int r, int k, bool turned)
{
    const int row = turned ? k : r, byte = 2 * (turned ? r : k);
    return row * 128 + (byte ^ ((row & 7) << 4));
}

/* As the shared prefixes do: scores have both operands in shared memory; values have A in registers and
 * B turned. */
template <bool HALF>
__device__ void multiply_wgmma(const problem &p, unsigned char *a, unsigned char *b,
                               bool turned, bool adds, float *to)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, w = threadIdx.x >> 5;
    for (int i = threadIdx.x; i < ROWS * DEPTH; i += blockDim.x) {
        const int r = i / DEPTH, k = i % DEPTH;
        *reinterpret_cast<uint16_t *>(a + place(r, k, false)) = p.a[i];
        *reinterpret_cast<uint16_t *>(b + place(r, k, turned)) = p.b[i];
    }
    fence_async();
    __syncthreads();
    float d[COLUMNS / 2];
    uint32_t from[4];
    const int row = 16 * w + g;
    for (int i = 0; i < 4; i++) from[i] = pair_of(p.a, row + 8 * (i & 1), 2 * t + i / 2 * 8);
    for (int i = 0; i < COLUMNS / 2; i++)
        d[i] = p.sum[(row + i / 2 % 2 * 8) * COLUMNS + i / 4 * 8 + 2 * t + i % 2];
    const uint64_t at_b = wgmma_descriptor(shared_address(b), turned ? 64 * 128 : 16);
    wgmma_pin(d);
    wgmma_fence();
    if (turned)
        wgmma_registers<COLUMNS / 2, HALF>(d, from, at_b, adds);
    else
        wgmma_shared<COLUMNS / 2, HALF>(d, wgmma_descriptor(shared_address(a), 16), at_b, adds);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_pin(d);
    for (int i = 0; i < COLUMNS / 2; i++)
        to[(row + i / 2 % 2 * 8) * COLUMNS + i / 4 * 8 + 2 * t + i % 2] = d[i];
    __syncthreads();
}

template <bool HALF>
__global__ void __launch_bounds__(128) multiply(const problem *problems, both_results *to)
{
    __shared__ __align__(1024) unsigned char a[ROWS * 128];
    __shared__ __align__(1024) unsigned char b[COLUMNS * 128];
    const problem &p = problems[blockIdx.x];
    for (int adds = 0; adds < 2; adds++) {
        results &r = adds ? to[blockIdx.x].added : to[blockIdx.x].alone;
        multiply_mma<HALF>(p, adds, r.by_mma);
        multiply_wgmma<HALF>(p, a, b, false, adds, r.by_wgmma);
        multiply_wgmma<HALF>(p, a, b, true, adds, r.by_wgmma_turned);
    }
}

uint64_t state;

uint32_t draw()
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 16);
}

/* Bits of a number whose kind all numbers of a problem share: 0 any bits, 1 of like size, 2 within many
 * powers of two, 3 nearly the opposite of the one before, 4 small ones, 5 so small that products vanish,
 * or zeros. */
uint16_t number(int kind, bool half, uint16_t before)
{
    const uint32_t mantissa = half ? 10 : 7, most = half ? 31 : 255, middle = most / 2;
    uint32_t exponent = middle;
    if (kind == 0) return (uint16_t)draw();
    if (kind == 3 && draw() % 2 != 0) return (uint16_t)(before ^ 0x8000u ^ (draw() & 1));
    if (kind == 2 || kind == 3) exponent = middle - most / 6 + draw() % (most / 3);
    if (kind == 4) exponent = draw() % 4;
    if (kind == 5) return (uint16_t)((draw() & 0x8000u) | (draw() % 2 != 0 ? 1 : 0));
    if (draw() % 16 == 0) return (uint16_t)(draw() & 0x8000u); /* a zero, of either sign */
    return (uint16_t)((draw() & 0x8000u) | exponent << mantissa |
                      (draw() & ((1u << mantissa) - 1)));
}

float sum_of(int kind)
{
    const uint32_t any = draw() ^ draw() << 16;
    float x;
    memcpy(&x, &any, 4);
    if (kind == 0) return x;
    if (draw() % 8 == 0) return draw() % 2 != 0 ? 0.0f : -0.0f;
    const float unit = (float)(any % 65537) / 32768 - 1;
    return kind == 1   ? 4 * unit
           : kind == 4 ? unit * 1e-38f
                       : unit * (float)(1u << any % 20) / 1024;
}

bool differ(float x, float y)
{
    return memcmp(&x, &y, 4) != 0;
}

template <bool HALF> uint64_t compare(int n)
{
    std::vector<problem> problems((size_t)n);
    std::vector<both_results> out((size_t)n);
    for (int i = 0; i < n; i++) {
        problem &p = problems[(size_t)i];
        uint16_t before = 0;
        for (uint16_t &x : p.a) x = before = number(i % KINDS, HALF, before);
        for (uint16_t &x : p.b) x = number(i % KINDS == 3 ? 1 : i % KINDS, HALF, 0);
        for (float &x : p.sum) x = sum_of(i % KINDS);
    }
    problem *from;
    both_results *to;
    RIG_OK(cudaMalloc(&from, problems.size() * sizeof *from));
    RIG_OK(cudaMalloc(&to, out.size() * sizeof *to));
    RIG_OK(cudaMemcpy(from, problems.data(), problems.size() * sizeof *from,
                      cudaMemcpyHostToDevice));
    multiply<HALF><<<n, 128>>>(from, to);
    RIG_OK(cudaMemcpy(out.data(), to, out.size() * sizeof *to, cudaMemcpyDeviceToHost));
    RIG_OK(cudaFree(from));
    RIG_OK(cudaFree(to));
    uint64_t wrong = 0, finite = 0, zeros = 0;
    for (int i = 0; i < 2 * n; i++)
        for (int e = 0; e < ROWS * COLUMNS; e++) {
            const both_results &both = out[(size_t)(i / 2)];
            const results &r = i % 2 ? both.added : both.alone;
            const float x = r.by_mma[e], y = r.by_wgmma[e], z = r.by_wgmma_turned[e];
            finite += x - x == 0, zeros += x == 0;
            if ((differ(x, y) || differ(x, z)) && wrong++ < 5)
                printf("%s kind %d number %d, %s a sum: mma %a wgmma %a turned %a\n",
                       HALF ? "f16" : "bf16", i / 2 % KINDS, e, i % 2 ? "with" : "without", x,
                       y, z);
        }
    const double all = 2.0 * n * ROWS * COLUMNS;
    printf("%s: %.0f numbers, %.1f%% of them finite, %.1f%% zero, %llu differ\n",
           HALF ? "f16" : "bf16", all, 100 * (double)finite / all, 100 * (double)zeros / all,
           (unsigned long long)wrong);
    return wrong;
}

} // namespace

int main(int argc, char **argv)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("SKIPPED: no GPU\n");
        return 77;
    }
    const char *given = argc > 1 ? argv[1] : getenv("SHEAF_TEST_SEED");
    state = given != NULL ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
    if (state == 0) state = 1;
    printf("seed %llu\n", (unsigned long long)state);
    const int n = getenv("SHEAF_GPU_SHORT") != NULL ? 20 : 2000;
    const uint64_t wrong = compare<false>(n) + compare<true>(n);
    printf(wrong == 0 ? "PASSED\n" : "FAILED: %llu\n", (unsigned long long)wrong);
    return wrong != 0;
}
