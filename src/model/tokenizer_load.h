/* model/tokenizer_load.h - between the two files that read tokenizer.json. */
#ifndef SHEAF_MODEL_TOKENIZER_LOAD_H
#define SHEAF_MODEL_TOKENIZER_LOAD_H

#include "model/json.h"
#include "model/tokenizer_parts.h"

/* A file being read into a tokenizer. */
typedef struct sheaf__loading {
    const char *file; /* as sentences name it */
    sheaf__tokenizer *tok;
    sheaf_error *err;
} sheaf__loading;

/* The two tokens of a merge; borrowed. */
typedef struct sheaf__pair {
    const char *left, *right;
    uint64_t n_left, n_right;
} sheaf__pair;

/* Reads normalizer, pre_tokenizer, post_processor and decoder; the vocabulary stands.
 * SHEAF_E_ARCH: names the component not known. SHEAF_E_CONFIG, SHEAF_E_FORMAT: a field. */
sheaf_status sheaf__pipeline_load(sheaf__loading *load, const sheaf__json *top);

#endif
