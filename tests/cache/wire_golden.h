/* cache/wire_golden.h - the layouts of the streams in tests/data/wire/. */
#ifndef SHEAF_TESTS_WIRE_GOLDEN_H
#define SHEAF_TESTS_WIRE_GOLDEN_H

#include "sheaf/pool.h"

#define GOLDEN_ONE    "tests/data/wire/one_group.kv"
#define GOLDEN_TWO    "tests/data/wire/two_groups.kv"
#define GOLDEN_QUANT  "tests/data/wire/quantized.kv"
#define GOLDEN_BLOCK  "tests/data/wire/block.kv"
#define GOLDEN_TOKENS 4 /* a block */

/* Two tiles a layer, of 24 and 32 bytes a head: there is padding inside a block. */
static const sheaf_layer golden_one[] = {{1, 3, 4, 0, SHEAF_CODEC_BF16, SHEAF_CODEC_F16},
                                         {1, 2, 4, 0, SHEAF_CODEC_F32, SHEAF_CODEC_F16}};
/* The second group has a window of 6 and no values. */
static const sheaf_layer golden_two[] = {{1, 4, 3, 0, SHEAF_CODEC_BF16, SHEAF_CODEC_F32},
                                         {2, 2, 0, 6, SHEAF_CODEC_F16, 0}};
static const sheaf_layer golden_quant[] = {{1, 3, 5, 0, SHEAF_CODEC_INT8, SHEAF_CODEC_TURBO4},
                                           {2, 4, 2, 0, SHEAF_CODEC_TURBO4, SHEAF_CODEC_INT8}};
#define N_GOLDEN 2

#endif
