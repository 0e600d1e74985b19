/* codec/quantized_neon.c - int8 and turbo4 for NEON: codec/quantized_lanes.h in vectors of 4. */
#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define LANES     4
#define TABLE     sheaf__quantized_neon
#define ISA       SHEAF_ISA_NEON
#define SWAP_1(v) __builtin_shufflevector(v, v, 1, 0, 3, 2)
#define SWAP_2(v) __builtin_shufflevector(v, v, 2, 3, 0, 1)

static void widen_f16(const unsigned char *from, uint32_t n, float *x)
{
    for (uint32_t i = 0; i < n; i += 4) {
        uint32_t some = n - i < 4 ? n - i : 4;
        uint16_t halves[4] = {0};
        float wide[4];
        memcpy(halves, from + 2 * i, 2ull * some);
        vst1q_f32(wide, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves))));
        memcpy(x + i, wide, 4ull * some);
    }
}

#include "codec/quantized_lanes.h"
