/* model/weights_private.h - what opening files and making random weights share.
 *
 * Owns: the list of tensors that a network of a config's geometry has, one slot each, in a fixed
 * order; the memory behind sheaf__weights; filling one arena chunk by chunk on all threads.
 *
 *     st = sheaf__weights_begin(config, options, &w, err);
 *     ... give each slot its matrix or write its vector ...
 *     st = sheaf__weights_fill(w, &fill, options, err);     // matrices move into the arena
 *     sheaf__weights_finish(w);
 */
#ifndef SHEAF_MODEL_WEIGHTS_PRIVATE_H
#define SHEAF_MODEL_WEIGHTS_PRIVATE_H

#include "model/safetensors.h"
#include "model/weights.h"

enum {
    SHEAF__SLOT_EMBEDDING = 0,
    SHEAF__SLOT_NORM = 1,
    SHEAF__SLOT_MATRIX = 2,
    SHEAF__SLOT_BIAS = 3
};

typedef struct sheaf__slot {
    char name[64]; /* "layers.3.mlp.up_proj.weight": without a leading "model." */
    uint32_t kind;
    uint32_t rows;         /* 1 for a vector: a norm or a bias */
    uint32_t cols;         /* [rows, cols] */
    sheaf__matrix *matrix; /* where it goes; null for a vector */
    float *vector;         /* [cols] where a vector's numbers go; null for a matrix */
    uint64_t offset;       /* in the arena */
    uint64_t first_task;   /* of its chunks */
} sheaf__slot;

struct sheaf__weights_private {
    sheaf__memory memory;
    sheaf__layer_weights *layers; /* [n_layers] */
    uint64_t n_layers;
    float *vectors;     /* [vectors_room] */
    sheaf__slot *slots; /* [slots_room], until finish */
    uint64_t vectors_room, n_vectors;
    uint64_t slots_room, n_slots;
    sheaf__safetensors *files; /* [n_files] */
    uint64_t n_files;
    unsigned char *arena; /* [arena_bytes] */
    uint64_t arena_bytes;
    uint64_t arena_align;
};

/* Allocates the struct, the layers and the vectors, and lists the slots. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__weights_begin(const sheaf__config *config,
                                  const sheaf__weights_options *options, sheaf__weights **out,
                                  sheaf_error *err);

/* Writes bytes [begin, begin + n) of the slot's matrix to `to`. `index` is the slot's. */
typedef void sheaf__fill_fn(const void *ctx, const sheaf__slot *slot, uint32_t index,
                            uint64_t begin, uint64_t n, unsigned char *to);

typedef struct sheaf__fill {
    sheaf__fill_fn *fn;
    const void *ctx;
    const char *what; /* for progress */
} sheaf__fill;

/* Gives each matrix its place in one arena, and its chunks their numbers. Their dtype must be set.
 * SHEAF_E_OVERFLOW. */
sheaf_status sheaf__weights_lay_out(struct sheaf__weights_private *p, uint64_t *arena_bytes,
                                    uint64_t *n_tasks);

/* Takes one arena for all matrices, in huge pages where the system has them, and fills it chunk by
 * chunk on all threads; then points the matrices into it. Their dtype, n and k must be set.
 * SHEAF_E_NO_MEMORY: nothing has changed. */
sheaf_status sheaf__weights_fill(sheaf__weights *weights, const sheaf__fill *fill,
                                 const sheaf__weights_options *options, sheaf_error *err);

/* Drops what only opening needs, and completes the counts. */
void sheaf__weights_finish(sheaf__weights *weights);

/* Bytes of a number of `dtype` (SHEAF_DTYPE_...). */
static inline uint64_t sheaf__dtype_bytes(uint32_t dtype)
{
    return dtype == SHEAF_DTYPE_F32 ? 4 : 2;
}

#endif
