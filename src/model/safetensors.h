/* model/safetensors.h - the tensors in a safetensors file.
 *
 * Owns: reading and checking the header, finding a tensor by name. Does not own: what the tensors
 * are for; conversions.
 *
 * The format (huggingface.co/docs/safetensors):
 *
 *     [u64 little-endian: N] [N bytes of JSON, spaces at the end allowed] [tensor bytes]
 *     {"NAME": {"dtype": "BF16", "shape": [4096, 256], "data_offsets": [begin, end]}, ...,
 *      "__metadata__": {...}}
 *
 * Offsets count from the end of the header. Every tensor must lie inside the file, hold exactly what
 * its shape and dtype say, and overlap no other; bytes that no tensor names are tolerated. Tensors
 * may be misaligned: the header's length decides where they fall.
 */
#ifndef SHEAF_MODEL_SAFETENSORS_H
#define SHEAF_MODEL_SAFETENSORS_H

#include "base/file.h"
#include "base/memory.h"

/* Element types beyond SHEAF_DTYPE_F32, F16 and BF16 may be in a file; none is used here. */
enum { SHEAF__DTYPE_OTHER = 255 };

#define SHEAF__MAX_DIMS 8

typedef struct sheaf__tensor {
    const char *name;
    const char *dtype_name; /* "BF16"; a constant */
    uint32_t dtype;         /* SHEAF_DTYPE_..., or SHEAF__DTYPE_OTHER */
    uint32_t n_dims;
    uint64_t dims[SHEAF__MAX_DIMS];
    const unsigned char *data; /* in the file's memory; any alignment */
    uint64_t bytes;
} sheaf__tensor;

typedef struct sheaf__safetensors {
    sheaf__file file;       /* zero when opened from memory */
    sheaf__tensor *tensors; /* [n_tensors], by name */
    char *names;            /* [names_bytes] */
    uint64_t n_tensors;
    uint64_t names_bytes;
    uint64_t header_bytes; /* of the file, before what offsets count from */
    sheaf__memory *memory;
} sheaf__safetensors;

/* Maps and checks a file. `memory` must outlive it. Nothing is allocated before the sizes that the
 * header claims have been compared with the file's.
 * SHEAF_E_IO, SHEAF_E_FORMAT (the sentence names file and tensor), SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__safetensors_open(const char *path, sheaf__memory *memory,
                                     sheaf__safetensors *out, sheaf_error *err);

/* The same over bytes that the caller keeps. `name` stands for the path in sentences. The fuzz
 * target's door. */
sheaf_status sheaf__safetensors_parse(const char *name, const unsigned char *data,
                                      uint64_t size, sheaf__memory *memory,
                                      sheaf__safetensors *out, sheaf_error *err);

/* Gives back everything, the mapping too; harmless on a zeroed struct. */
void sheaf__safetensors_close(sheaf__safetensors *file);

/* Gives back the list of tensors and keeps the mapping, for who has the pointers. */
void sheaf__safetensors_forget(sheaf__safetensors *file);

/* The tensor of that name, or null. O(log n). */
const sheaf__tensor *sheaf__safetensors_find(const sheaf__safetensors *file, const char *name);

/* A shape as a sentence shows it: "[4096, 256]". */
#define SHEAF__SHAPE_TEXT 64
const char *sheaf__shape_show(const uint64_t *dims, uint32_t n_dims,
                              char text[static SHEAF__SHAPE_TEXT]);

#endif
