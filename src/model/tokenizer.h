/* model/tokenizer.h - text to token ids and back, as tokenizer.json says.
 *
 * Owns: normalisation, splitting, byte-pair merges, added tokens, the post-processor, decoding,
 * and streaming decoding that never emits half a character. Does not own: chat templates
 * (model/chat.h). Read-only once open: any thread may encode and decode.
 */
#ifndef SHEAF_MODEL_TOKENIZER_H
#define SHEAF_MODEL_TOKENIZER_H

#include <stdbool.h>

#include "sheaf/status.h"

typedef struct sheaf__tokenizer sheaf__tokenizer;

/* Reads DIR/tokenizer.json. SHEAF_E_IO; SHEAF_E_FORMAT, SHEAF_E_CONFIG: the file or a field of
 * it is broken; SHEAF_E_ARCH: names the component not known; SHEAF_E_NO_MEMORY and
 * SHEAF_E_OVERFLOW. */
sheaf_status sheaf__tokenizer_open(const char *dir, sheaf__tokenizer **out, sheaf_error *err);

/* The same from memory; `name` stands for the path in sentences. The fuzz target's door. */
sheaf_status sheaf__tokenizer_parse(const char *name, const char *json, uint64_t size,
                                    sheaf__tokenizer **out, sheaf_error *err);

/* Ids 0 to 255 are the bytes; others decode to nothing. For models that have no tokenizer. */
sheaf_status sheaf__tokenizer_open_bytes(uint32_t vocab, sheaf__tokenizer **out,
                                         sheaf_error *err);
void sheaf__tokenizer_close(sheaf__tokenizer *tok);

/* Ids in a growing array; start from zero, free with sheaf__ids_free. */
typedef struct sheaf__ids {
    int32_t *data;
    uint32_t n;
    uint32_t capacity;
} sheaf__ids;
sheaf_status sheaf__ids_push(sheaf__ids *ids, int32_t id);
void sheaf__ids_free(sheaf__ids *ids);

/* Bytes in a growing array, always followed by a zero byte once data is not null. */
typedef struct sheaf__text {
    char *data;
    uint64_t n;
    uint64_t capacity;
} sheaf__text;
sheaf_status sheaf__text_append(sheaf__text *text, const char *data, uint64_t n);
void sheaf__text_free(sheaf__text *text);

enum {
    SHEAF__ENCODE_PLAIN = 0,
    SHEAF__ENCODE_POST_PROCESS = 1, /* add what the post-processor adds (BOS ...) */
    SHEAF__ENCODE_NO_SPECIAL = 2 /* special tokens written in the text are text, not tokens */
};

/* Appends the ids of `size` bytes of text. Bytes that are not UTF-8 are replaced by U+FFFD, one
 * for each maximal ill-formed part. SHEAF_E_NO_MEMORY; SHEAF_E_OVERFLOW: over 2^31 - 1 ids or
 * bytes; SHEAF_E_UNSUPPORTED: a pattern of the tokenizer needs more work on this text than the
 * limits allow. Nothing is appended then. */
sheaf_status sheaf__tokenizer_encode(const sheaf__tokenizer *tok, const char *text,
                                     uint64_t size, uint32_t flags, sheaf__ids *ids);

/* Appends the text of n ids, as the decoder of tokenizer.json joins them; special tokens are
 * kept unless skip_special. Unknown ids decode to nothing. */
sheaf_status sheaf__tokenizer_decode(const sheaf__tokenizer *tok, const int32_t *ids,
                                     uint32_t n, bool skip_special, sheaf__text *text);

/* Appends the bytes that a token stands for inside a text: part of a character, perhaps; none for
 * an unknown id. SHEAF_E_NO_MEMORY, SHEAF_E_OVERFLOW: nothing was appended. */
sheaf_status sheaf__tokenizer_bytes(const sheaf__tokenizer *tok, int32_t id, sheaf__text *text);

uint32_t sheaf__tokenizer_vocab(const sheaf__tokenizer *tok); /* largest id + 1 */
int32_t sheaf__tokenizer_find(const sheaf__tokenizer *tok, const char *token); /* -1: none */
bool sheaf__tokenizer_is_special(const sheaf__tokenizer *tok, int32_t id);

/* Streaming decoding: pieces pushed one id at a time concatenate to sheaf__tokenizer_decode of
 * all, and each push appends whole UTF-8 characters only. Held back is what later ids may still
 * change: up to 3 bytes of a character not complete yet; with byte fallback, a whole run of
 * byte tokens, since one ill-formed byte turns all of its run into U+FFFD (a run known to be
 * ill-formed is held no longer). `finish` appends what is left (U+FFFD for an incomplete
 * character) and frees; `free` is for those who stop without it, and harmless after. A push
 * that fails leaves the stream fit for `free` only. */
typedef struct sheaf__detokenizer {
    const sheaf__tokenizer *tok;
    bool skip_special;
    bool started;        /* a token has been decoded */
    bool ill_formed_run; /* each further byte of this run is U+FFFD */
    uint32_t strip;      /* characters that the start of the text may still lose */
    uint64_t n_checked;  /* bytes at the start of `held` that are whole characters */
    sheaf__text held;
} sheaf__detokenizer;
void sheaf__detokenizer_init(sheaf__detokenizer *d, const sheaf__tokenizer *tok,
                             bool skip_special);
sheaf_status sheaf__detokenizer_push(sheaf__detokenizer *d, int32_t id, sheaf__text *text);
sheaf_status sheaf__detokenizer_finish(sheaf__detokenizer *d, sheaf__text *text);
void sheaf__detokenizer_free(sheaf__detokenizer *d);

#endif
