/* model/ops_tables.h - the tables behind sheaf__ops_for, one an instruction set. */
#ifndef SHEAF_MODEL_OPS_TABLES_H
#define SHEAF_MODEL_OPS_TABLES_H

#include "model/ops.h"

extern const sheaf__ops sheaf__ops_scalar;
#if defined(__x86_64__)
extern const sheaf__ops sheaf__ops_avx2;
extern const sheaf__ops sheaf__ops_avx512;
#elif defined(__aarch64__)
extern const sheaf__ops sheaf__ops_neon;
#endif

#endif
