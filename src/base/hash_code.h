/* base/hash_code.h - the forms that hashing of pieces has; hash.c chooses one for the process. */
#ifndef SHEAF_BASE_HASH_CODE_H
#define SHEAF_BASE_HASH_CODE_H

#include <stdint.h>

/* As the functions of base/hash.h; a state is of one form. */
typedef struct sheaf__hash_code {
    void *(*create)(void);
    void (*destroy)(void *state);
    void (*begin)(void *state);
    void (*add)(void *state, const void *data, uint64_t size);
    uint64_t (*value)(const void *state);
} sheaf__hash_code;

extern const sheaf__hash_code sheaf__hash_avx2;

#endif
