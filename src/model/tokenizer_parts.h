/* model/tokenizer_parts.h - what a tokenizer is made of; for the tokenizer's own files.
 *
 * Owns: the tables and steps that tokenizer.json fills, and the work space of one encoding.
 *
 *     text -> added tokens cut out -> normalizer -> added tokens cut out -> pre-tokenizer
 *          -> merges -> ids -> post-processor
 */
#ifndef SHEAF_MODEL_TOKENIZER_PARTS_H
#define SHEAF_MODEL_TOKENIZER_PARTS_H

#include "base/memory.h"
#include "model/regex.h"
#include "model/tokenizer.h"

#define SHEAF__NO_ID         (-1)
#define SHEAF__MOST_STEPS    16u /* of a normalizer or pre-tokenizer, flattened */
#define SHEAF__MOST_TEMPLATE 64u /* ids that a post-processor adds before, or after */

/* ---- vocabulary: tokens by id and by text ----------------------------------------------- */

enum {
    SHEAF__TOKEN_PRESENT = 1,
    SHEAF__TOKEN_ADDED = 2,
    SHEAF__TOKEN_SPECIAL = 4,
    SHEAF__TOKEN_LSTRIP = 8,
    SHEAF__TOKEN_RSTRIP = 16,
    SHEAF__TOKEN_SINGLE_WORD = 32,
    SHEAF__TOKEN_NORMALIZED = 64,
    SHEAF__TOKEN_BYTE = 128 /* decodes to one byte of a run (byte fallback) */
};

/* A run of bytes in an arena. */
typedef struct sheaf__span {
    uint32_t offset, size;
} sheaf__span;

typedef struct sheaf__vocab_slot {
    uint32_t hash;
    int32_t id; /* SHEAF__NO_ID: free */
} sheaf__vocab_slot;

typedef struct sheaf__vocab {
    char *bytes; /* [bytes_capacity] texts of all tokens */
    uint64_t n_bytes, bytes_capacity;
    sheaf__span *texts;       /* [n_ids] */
    unsigned char *flags;     /* [n_ids] */
    sheaf__vocab_slot *slots; /* [n_slots], a power of two, at most half full */
    uint64_t n_ids, n_slots;
} sheaf__vocab;

/* Room for ids below `n_ids`, `n_tokens` tokens and `n_bytes` bytes of text; nothing grows
 * after. */
sheaf_status sheaf__vocab_init(sheaf__vocab *vocab, sheaf__memory *memory, uint64_t n_ids,
                               uint64_t n_tokens, uint64_t n_bytes);
void sheaf__vocab_free(sheaf__vocab *vocab, sheaf__memory *memory);
int32_t sheaf__vocab_find(const sheaf__vocab *vocab, const char *text, uint64_t size);

/* False: the id or the text is taken. */
bool sheaf__vocab_insert(sheaf__vocab *vocab, int32_t id, const char *text, uint64_t size);

static inline bool sheaf__vocab_has(const sheaf__vocab *vocab, int32_t id)
{
    return id >= 0 && (uint64_t)id < vocab->n_ids &&
           (vocab->flags[id] & SHEAF__TOKEN_PRESENT) != 0;
}

static inline const char *sheaf__vocab_text(const sheaf__vocab *vocab, int32_t id)
{
    return vocab->bytes + vocab->texts[id].offset;
}

/* ---- merges: which two tokens become one, and in what order ----------------------------- */

typedef struct sheaf__merge {
    int32_t left, right; /* left SHEAF__NO_ID: free */
    uint32_t rank;
    int32_t id;
} sheaf__merge;

/* A junction is where two characters meet inside a merge: the last of the left token and the
 * first of the right one. Where characters meet whose junction no merge has, no merge ever
 * crosses, and a piece falls apart into stretches that do not know of each other. */
#define SHEAF__JUNCTION_WORDS 1024u

typedef struct sheaf__merges {
    sheaf__merge *slots; /* [n_slots], a power of two, at most half full */
    uint64_t n_slots;
    uint64_t junctions[SHEAF__JUNCTION_WORDS]; /* bits by hash of two ids; more may be set */
} sheaf__merges;

static inline uint32_t sheaf__junction(int32_t left, int32_t right)
{
    return ((uint32_t)left * 0x9e3779b1u ^ (uint32_t)right * 0x85ebca77u) >> 16;
}

/* False: surely no merge crosses between these two initial symbols. */
static inline bool sheaf__merges_may_cross(const sheaf__merges *merges, int32_t left,
                                           int32_t right)
{
    uint32_t bit = sheaf__junction(left, right);
    return (merges->junctions[bit / 64] >> bit % 64 & 1u) != 0;
}

sheaf_status sheaf__merges_init(sheaf__merges *merges, sheaf__memory *memory, uint64_t n);
void sheaf__merges_free(sheaf__merges *merges, sheaf__memory *memory);
void sheaf__merges_set(sheaf__merges *merges, sheaf__merge merge); /* a later one replaces */
const sheaf__merge *sheaf__merges_find(const sheaf__merges *merges, int32_t left,
                                       int32_t right);

/* ---- added tokens: texts that are one token wherever they stand ------------------------- */

typedef struct sheaf__added {
    sheaf__span text; /* in sheaf__added_set.bytes */
    int32_t id;
} sheaf__added;

/* Sorted by text, so that the longest that starts at a place is found by narrowing a range. */
typedef struct sheaf__added_set {
    sheaf__text bytes;
    sheaf__added *items; /* [capacity] */
    uint64_t n, capacity;
    uint32_t first_bytes[8]; /* bit b: some text starts with byte b */
} sheaf__added_set;

sheaf_status sheaf__added_push(sheaf__added_set *set, sheaf__memory *memory, const char *text,
                               uint64_t size, int32_t id);
void sheaf__added_sort(sheaf__added_set *set);
void sheaf__added_free(sheaf__added_set *set, sheaf__memory *memory);

/* A piece of text between added tokens, or an added token. */
typedef struct sheaf__added_match {
    uint64_t start, end;
    int32_t id;
} sheaf__added_match;

/* The first match that starts at or after `from`; *resume is where to look for the next. False:
 * none. `emitted` is the end of what was handed out before: lstrip goes no further back. */
bool sheaf__added_next(const sheaf__tokenizer *tok, const sheaf__added_set *set,
                       uint32_t encode_flags, const char *text, uint64_t size, uint64_t emitted,
                       uint64_t *resume, sheaf__added_match *match);

/* ---- steps ------------------------------------------------------------------------------ */

enum {
    SHEAF__NORMALIZE_FORM = 1, /* a Unicode normalisation form */
    SHEAF__NORMALIZE_PREPEND = 2,
    SHEAF__NORMALIZE_REPLACE = 3
};

enum { SHEAF__FORM_NFC = 0, SHEAF__FORM_NFD = 1, SHEAF__FORM_NFKC = 2, SHEAF__FORM_NFKD = 3 };

typedef struct sheaf__normalize_step {
    uint32_t kind;
    uint32_t form;
    sheaf__regex *regex; /* REPLACE: or null */
    sheaf__text literal; /* REPLACE: what to look for when regex is null */
    sheaf__text content; /* REPLACE, PREPEND: what to write */
} sheaf__normalize_step;

enum {
    SHEAF__PRETOKENIZE_SPLIT = 1,
    SHEAF__PRETOKENIZE_PREFIX = 2 /* optionally spaces to `mark`, then `mark` in front */
};

enum {
    SHEAF__SPLIT_ISOLATED = 0,
    SHEAF__SPLIT_REMOVED = 1,
    SHEAF__SPLIT_CONTIGUOUS = 2,
    SHEAF__SPLIT_WITH_PREVIOUS = 3,
    SHEAF__SPLIT_WITH_NEXT = 4
};

enum { SHEAF__PREFIX_NEVER = 0, SHEAF__PREFIX_FIRST = 1, SHEAF__PREFIX_ALWAYS = 2 };

typedef struct sheaf__pretokenize_step {
    uint32_t kind;
    uint32_t behavior; /* SPLIT */
    bool invert;
    bool replace_spaces; /* PREFIX */
    uint32_t scheme;
    sheaf__regex *regex; /* SPLIT: or null */
    sheaf__text literal; /* SPLIT: the delimiter when regex is null. PREFIX: the mark */
} sheaf__pretokenize_step;

enum {
    SHEAF__DECODE_JOIN = 0,       /* no decoder: tokens with a space between */
    SHEAF__DECODE_BYTE_LEVEL = 1, /* tokens are bytes of one text */
    SHEAF__DECODE_PIECES = 2      /* tokens are texts, some of them bytes of a run */
};

typedef struct sheaf__decode_table {
    uint32_t kind;
    bool
        drop_mark_of_first; /* Metaspace: in the first token the mark is nothing, not a space */
    sheaf__text mark;
    uint32_t strip;         /* characters to take off the start of the whole */
    sheaf__text strip_char; /* what they must be */
    char *bytes;            /* [bytes_capacity] */
    uint64_t n_bytes, bytes_capacity;
    sheaf__span *texts; /* [vocab.n_ids]; null: nothing decodes */
} sheaf__decode_table;

struct sheaf__tokenizer {
    sheaf__memory memory; /* of what lives as long as the tokenizer */
    sheaf__vocab vocab;
    sheaf__merges merges;
    sheaf__added_set added;            /* looked for before normalisation */
    sheaf__added_set added_normalized; /* and after it */
    int32_t byte_ids[256];             /* byte level: the token of a byte */
    int32_t fallback_ids[256];         /* <0x00> to <0xFF> */
    int32_t unk_id;
    bool fuse_unk, byte_fallback, ignore_merges;
    bool byte_level; /* pieces are bytes, each written as a printable character */
    bool bytes_only; /* sheaf__tokenizer_open_bytes: no tables at all */
    uint32_t n_vocab;
    sheaf__normalize_step normalize[SHEAF__MOST_STEPS];
    uint32_t n_normalize;
    sheaf__pretokenize_step pretokenize[SHEAF__MOST_STEPS];
    uint32_t n_pretokenize;
    int32_t before[SHEAF__MOST_TEMPLATE], after[SHEAF__MOST_TEMPLATE];
    uint32_t n_before, n_after;
    sheaf__decode_table decode;
};

/* ---- the work space of one encoding ----------------------------------------------------- */

typedef struct sheaf__symbol {
    int32_t id;         /* SHEAF__NO_ID: merged into the one before */
    int32_t prev, next; /* -1: none */
} sheaf__symbol;

typedef struct sheaf__candidate {
    uint64_t order; /* rank << 32 | position: the least goes first */
    int32_t id;     /* what the merge makes */
} sheaf__candidate;

typedef struct sheaf__encoding {
    const sheaf__tokenizer *tok;
    uint32_t flags;
    sheaf__ids *ids;
    sheaf__memory memory; /* of the arrays below */
    sheaf__text text[2];  /* normalised, in turn */
    sheaf__text whole;    /* a piece as the vocabulary writes it */
    sheaf__text piece_text[2];
    sheaf__span *pieces[2]; /* [pieces_capacity[i]] */
    uint64_t n_pieces[2], pieces_capacity[2];
    sheaf__symbol *symbols; /* [symbols_capacity] */
    uint64_t n_symbols, symbols_capacity;
    sheaf__candidate *heap; /* [heap_capacity] */
    uint64_t n_heap, heap_capacity;
    int32_t *code_points; /* [code_points_capacity] */
    uint64_t code_points_capacity;
    int32_t *reordered; /* [reordered_capacity] */
    uint64_t reordered_capacity;
    sheaf__regex_scratch scratch;
} sheaf__encoding;

void sheaf__encoding_open(sheaf__encoding *enc, const sheaf__tokenizer *tok, uint32_t flags,
                          sheaf__ids *ids);
void sheaf__encoding_close(sheaf__encoding *enc);

/* Runs the normalizer. *text and *size are replaced; they may point to the text given or into
 * enc->text until the next call. */
sheaf_status sheaf__normalize(sheaf__encoding *enc, const char **text, uint64_t *size);

/* Cuts the text into enc->pieces[0], which lie in *text. `at_start`: it is the very start of
 * what is encoded. */
sheaf_status sheaf__pretokenize(sheaf__encoding *enc, bool at_start, const char **text,
                                uint64_t size);

/* Appends the ids of one piece. */
sheaf_status sheaf__bpe_encode(sheaf__encoding *enc, const char *piece, uint64_t size);

/* The character that stands for a byte in byte-level texts, and back (-1: none). */
uint32_t sheaf__byte_level_char(unsigned char byte);
int sheaf__byte_level_byte(uint32_t code);

/* A pattern's next match, by regex or literal text. Returns as sheaf__regex_scan_next. */
typedef struct sheaf__pattern_scan {
    sheaf__regex_scan regex;
    const sheaf__text *literal;
} sheaf__pattern_scan;
sheaf_status sheaf__pattern_begin(sheaf__pattern_scan *scan, sheaf__encoding *enc,
                                  const sheaf__regex *regex, const sheaf__text *literal,
                                  const char *text, uint64_t size);
sheaf_status sheaf__pattern_next(sheaf__pattern_scan *scan, uint64_t *start, uint64_t *end);

/* Fills decode.texts once the vocabulary stands, with the replacements of the decoder
 * applied. */
typedef struct sheaf__replacement {
    sheaf__text from, to;
} sheaf__replacement;
sheaf_status sheaf__decode_table_fill(sheaf__tokenizer *tok, bool byte_fallback,
                                      const sheaf__replacement *replacements,
                                      uint32_t n_replacements);

#endif
