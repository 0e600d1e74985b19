/* bench/model_rig.h - a whole model, and sequences whose depth costs no computing.
 *
 * What a step costs depends on how much K and V lies behind it, not on what the numbers are: so depth
 * is made by writing random bf16 numbers through sheaf__kv_write, as the forward pass does, and
 * committing random tokens. Whatever fails ends the program with a sentence.
 */
#ifndef SHEAF_BENCH_MODEL_RIG_H
#define SHEAF_BENCH_MODEL_RIG_H

#include "bench.h"
#include "engine/generate.h"

/* Ends the program unless the status is SHEAF_OK. */
void model_must(const bench *b, sheaf_status status, const char *what);

/* path: "random:qwen3-0.6b" or a directory. The forward pass has threads of its own, as many as the
 * bench; those sleep while the others work. */
sheaf__model *model_open(const bench *b, const char *path, const sheaf__model_options *options);

/* Numbers for model_fill; free() them. */
void *model_numbers(const bench *b, const sheaf__model *model);

/* Appends n positions of random K and V. */
void model_fill(const bench *b, const sheaf__model *model, const void *numbers, sheaf__kv *kv,
                uint32_t n);

/* A token id that is not special. */
int32_t model_token(const sheaf__model *model, uint32_t i);

/* Bytes of K and V a token, and of the matrices that a step reads. */
uint64_t model_token_bytes(const sheaf__model *model);
uint64_t model_weight_bytes(const sheaf__model *model);

#endif
