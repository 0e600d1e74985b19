/* model/matmul_scalar.c - the matrix product, word for word as model/matmul.h defines it. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/half.h"
#include "model/matmul_kernels.h"

static float weight_at(const unsigned char *row, uint32_t dtype, uint32_t i)
{
    uint16_t half;
    float full;
    if (dtype == SHEAF_DTYPE_F32) {
        memcpy(&full, row + 4 * (uint64_t)i, sizeof full);
        return full;
    }
    memcpy(&half, row + 2 * (uint64_t)i, sizeof half);
    return dtype == SHEAF_DTYPE_F16 ? sheaf__f32_of_f16(half) : sheaf__f32_of_bf16(half);
}

/* One block: x[begin .. end) with the weights of the same columns. */
static float block_sum(const float *x, const unsigned char *row, uint32_t dtype, uint32_t begin,
                       uint32_t end)
{
    float lane[16];
    for (uint32_t i = 0; i < 16; i++) lane[i] = 0.0f;
    for (uint32_t step = begin; step < end; step += 16)
        for (uint32_t i = 0; i < 16; i++) {
            bool inside = i < end - step;
            float a = inside ? x[step + i] : 0.0f;
            float b = inside ? weight_at(row, dtype, step + i) : 0.0f;
            lane[i] = fmaf(a, b, lane[i]); /* in a tail too: it makes +0 of -0 */
        }
    for (uint32_t half = 8; half != 0; half /= 2)
        for (uint32_t i = 0; i < half; i++) lane[i] = lane[i] + lane[i + half];
    return lane[0];
}

static float dot(const float *x, const unsigned char *row, uint32_t dtype, uint32_t k)
{
    float sum = 0.0f;
    for (uint32_t begin = 0; begin < k;) {
        uint32_t end = k - begin > 1024 ? begin + 1024 : k;
        float block = block_sum(x, row, dtype, begin, end);
        sum = begin == 0 ? block : sum + block;
        begin = end;
    }
    return sum;
}

static void stream(const sheaf__matmul_rows *job, uint32_t begin, uint32_t end)
{
    const sheaf__matrix *w = job->w;
    uint64_t row_bytes = w->k * sheaf__dtype_bytes(w->dtype);
    for (uint32_t col = begin; col < end; col++) {
        const unsigned char *row = (const unsigned char *)w->data + col * row_bytes;
        for (uint32_t r = 0; r < job->m; r++)
            job->y[r * job->y_stride + col] =
                dot(job->x + r * job->x_stride, row, w->dtype, w->k);
    }
}

const sheaf__matmul_kernels sheaf__matmul_scalar = {
    .isa = SHEAF_ISA_SCALAR,
    .stream_rows = UINT32_MAX,
    .stream = stream,
};
