/* model/rope.h - cosines and sines of every position, in the rounding of the models' reference.
 *
 * Owns: the inverse frequencies (plain, linear, Llama 3 scaling) and the tables made from them.
 * Does not own: the rotation itself (model/ops.h).
 *
 *     st = sheaf__rope_create(&config.rope, config.head_dim, memory, &rope);
 *     st = sheaf__rope_reserve(rope, n_positions);                         // before the step
 *     ops->rope(head, sheaf__rope_cos(rope, pos), sheaf__rope_sin(rope, pos), head_dim);
 *
 * Rounding, as in the transformers library: the exponent 2i / head_dim, the inverse frequency
 * and its scaling are f32, and so is the angle position * frequency; its cosine and sine are
 * ours (base/dmath.h), in double, rounded to f32. The same bits on every machine.
 */
#ifndef SHEAF_MODEL_ROPE_H
#define SHEAF_MODEL_ROPE_H

#include "base/memory.h"
#include "model/config.h"

typedef struct sheaf__rope sheaf__rope;

/* head_dim: even, 2 or more. No rows yet. `memory` must outlive it. SHEAF_E_INVALID: an odd or
 * zero head_dim, an unknown kind, a theta or factor that is not positive and finite, or Llama
 * 3's factors out of order. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__rope_create(const sheaf__rope_config *config, uint32_t head_dim,
                                sheaf__memory *memory, sheaf__rope **out);
void sheaf__rope_destroy(sheaf__rope *rope); /* null is allowed */

/* Makes rows [0, n_positions) ready; costs time only for those that are not. Rows are made by
 * the 1024, so most calls do nothing; they never move. SHEAF_E_NO_MEMORY: what was ready still
 * is. SHEAF_E_INVALID: over 2^24 positions, which f32 cannot count. */
sheaf_status sheaf__rope_reserve(sheaf__rope *rope, uint32_t n_positions);

/* [head_dim / 2] of a position below what is reserved; valid as long as `rope`. */
const float *sheaf__rope_cos(const sheaf__rope *rope, uint32_t pos);
const float *sheaf__rope_sin(const sheaf__rope *rope, uint32_t pos);

#endif
