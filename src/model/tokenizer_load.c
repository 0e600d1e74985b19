/* model/tokenizer_load.c - tokenizer.json: the model, its vocabulary and merges, added tokens.
 *
 * Everything in the file is held to be hostile: ids are bounded by the number of tokens before
 * a table is made, and every merge must name tokens that exist. The pipeline's components are
 * read by model/tokenizer_pipeline.c.
 */
#include "model/tokenizer_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"
#include "base/file.h"
#include "base/status.h"
#include "model/utf8.h"

#define MOST_MERGES ((uint64_t)1 << 30)
#define SPARE_IDS   65536u /* ids may leave gaps: at most the number of tokens and this */

/* ---- vocabulary ------------------------------------------------------------------------- */

/* What the tables must hold. */
typedef struct census {
    uint64_t n_tokens, n_bytes, n_ids;
} census;

static bool count_token(census *all, const json_t *id, uint64_t size)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0) return false;
    uint64_t value = (uint64_t)json_integer_value(id);
    if (value >= INT32_MAX) return false;
    all->n_tokens++;
    all->n_bytes += size;
    all->n_ids = sheaf__max_u64(all->n_ids, value + 1);
    return true;
}

static sheaf_status take_census(const sheaf__loading *load, json_t *vocab, json_t *added,
                                census *all)
{
    const char *key;
    json_t *value;
    char shown[SHEAF__BRIEF];
    json_object_foreach(vocab, key, value)
    {
        if (!count_token(all, value, strlen(key)))
            return sheaf__error_set(load->err, SHEAF_E_FORMAT,
                                    "%s: model.vocab: %.64s has id %s", load->file, key,
                                    sheaf__json_show(value, shown));
    }
    size_t i;
    json_array_foreach(added, i, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        json_t *id = json_object_get(value, "id");
        if (content == NULL || !count_token(all, id, strlen(content)))
            return sheaf__error_set(load->err, SHEAF_E_FORMAT,
                                    "%s: added_tokens[%zu] has no content, or no id",
                                    load->file, i);
    }
    if (all->n_ids > 2 * all->n_tokens + SPARE_IDS)
        return sheaf__error_set(load->err, SHEAF_E_FORMAT, "%s: id %llu among only %llu tokens",
                                load->file, (unsigned long long)all->n_ids - 1,
                                (unsigned long long)all->n_tokens);
    return SHEAF_OK;
}

static sheaf_status load_vocab(sheaf__loading *load, json_t *vocab, json_t *added)
{
    census all = {0, 0, 0};
    SHEAF__TRY(take_census(load, vocab, added, &all));
    SHEAF__TRY(sheaf__vocab_init(&load->tok->vocab, &load->tok->memory, all.n_ids, all.n_tokens,
                                 all.n_bytes));
    load->tok->n_vocab = (uint32_t)all.n_ids;
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value)
    {
        int32_t id = (int32_t)json_integer_value(value);
        if (!sheaf__vocab_insert(&load->tok->vocab, id, key, strlen(key)))
            return sheaf__error_set(load->err, SHEAF_E_FORMAT,
                                    "%s: model.vocab: id %d stands for two tokens", load->file,
                                    id);
    }
    return SHEAF_OK;
}

/* ---- added tokens ----------------------------------------------------------------------- */

static sheaf_status load_added_flags(const sheaf__json *at, unsigned char *flags)
{
    static const struct {
        const char *field;
        unsigned char flag;
    } fields[] = {{"special", SHEAF__TOKEN_SPECIAL},
                  {"lstrip", SHEAF__TOKEN_LSTRIP},
                  {"rstrip", SHEAF__TOKEN_RSTRIP},
                  {"single_word", SHEAF__TOKEN_SINGLE_WORD},
                  {"normalized", SHEAF__TOKEN_NORMALIZED}};
    *flags = SHEAF__TOKEN_PRESENT | SHEAF__TOKEN_ADDED;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        bool set = false;
        sheaf_status status = sheaf__json_bool(at, fields[i].field, &set);
        if (status < 0) return status;
        if (set) *flags |= fields[i].flag;
    }
    return SHEAF_OK;
}

/* An added token that the vocabulary holds too keeps the vocabulary's id. */
static sheaf_status load_added(sheaf__loading *load, json_t *added)
{
    sheaf__vocab *vocab = &load->tok->vocab;
    size_t i;
    json_t *value;
    json_array_foreach(added, i, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        int32_t given = (int32_t)json_integer_value(json_object_get(value, "id"));
        sheaf__json at = {load->file, "added_tokens.", value, load->err};
        unsigned char flags = 0;
        SHEAF__TRY(load_added_flags(&at, &flags));
        int32_t id = sheaf__vocab_find(vocab, content, strlen(content));
        if (id == SHEAF__NO_ID) {
            id = given;
            if (!sheaf__vocab_insert(vocab, id, content, strlen(content)))
                return sheaf__error_set(load->err, SHEAF_E_FORMAT,
                                        "%s: added token %.64s has id %d, which is taken",
                                        load->file, content, id);
        }
        if (content[0] != 0) vocab->flags[id] = flags;
    }
    return SHEAF_OK;
}

/* The two sets to look for in text. Those of normalised text are normalised themselves. */
static sheaf_status build_added_sets(sheaf__tokenizer *tok)
{
    for (uint64_t id = 0; id < tok->vocab.n_ids; id++) {
        unsigned char flags = tok->vocab.flags[id];
        if ((flags & SHEAF__TOKEN_ADDED) == 0) continue;
        const char *text = sheaf__vocab_text(&tok->vocab, (int32_t)id);
        uint64_t size = tok->vocab.texts[id].size;
        if ((flags & SHEAF__TOKEN_NORMALIZED) == 0) {
            SHEAF__TRY(sheaf__added_push(&tok->added, &tok->memory, text, size, (int32_t)id));
            continue;
        }
        sheaf__encoding enc;
        sheaf__encoding_open(&enc, tok, 0, NULL);
        sheaf_status status = sheaf__normalize(&enc, &text, &size);
        if (status == SHEAF_OK)
            status = sheaf__added_push(&tok->added_normalized, &tok->memory, text, size,
                                       (int32_t)id);
        sheaf__encoding_close(&enc);
        SHEAF__TRY(status);
    }
    sheaf__added_sort(&tok->added);
    sheaf__added_sort(&tok->added_normalized);
    return SHEAF_OK;
}

/* ---- merges ----------------------------------------------------------------------------- */

/* "left right" or ["left", "right"]. */
static bool read_pair(const json_t *entry, sheaf__pair *pair)
{
    if (json_is_array(entry) && json_array_size(entry) == 2) {
        pair->left = json_string_value(json_array_get(entry, 0));
        pair->right = json_string_value(json_array_get(entry, 1));
        if (pair->left == NULL || pair->right == NULL) return false;
        pair->n_left = strlen(pair->left);
        pair->n_right = strlen(pair->right);
        return true;
    }
    const char *text = json_string_value(entry);
    const char *space = text == NULL ? NULL : strchr(text, ' ');
    if (space == NULL || strchr(space + 1, ' ') != NULL) return false;
    pair->left = text;
    pair->n_left = (uint64_t)(space - text);
    pair->right = space + 1;
    pair->n_right = strlen(space + 1);
    return true;
}

static bool is_fallback_token(const sheaf__tokenizer *tok, int32_t id)
{
    return tok->vocab.texts[id].size == 6 &&
           memcmp(sheaf__vocab_text(&tok->vocab, id), "<0x", 3) == 0;
}

/* Notes the junction of a merge. A character that is no token never stands in a symbol that
 * merges. */
static void mark_junction(sheaf__tokenizer *tok, const sheaf__pair *pair)
{
    if (pair->n_left == 0 || pair->n_right == 0) return;
    uint64_t last = pair->n_left - 1;
    while (last > 0 && ((unsigned char)pair->left[last] & 0xc0u) == 0x80) last--;
    int32_t left = sheaf__vocab_find(&tok->vocab, pair->left + last, pair->n_left - last);
    int32_t right =
        sheaf__vocab_find(&tok->vocab, pair->right, sheaf__utf8_size(pair->right[0]));
    if (left == SHEAF__NO_ID || right == SHEAF__NO_ID) return;
    uint32_t bit = sheaf__junction(left, right);
    tok->merges.junctions[bit / 64] |= (uint64_t)1 << bit % 64;
}

/* Junctions are told by the characters of a token, which must then be the symbols it is made
 * from. A byte token or the unknown token is a symbol of its own: where one merges, nothing is
 * cut. */
static void check_junctions(sheaf__tokenizer *tok)
{
    bool told = true;
    for (uint64_t i = 0; i < tok->merges.n_slots && told; i++) {
        const sheaf__merge *m = &tok->merges.slots[i];
        if (m->left == SHEAF__NO_ID) continue;
        told = m->left != tok->unk_id && m->right != tok->unk_id &&
               !is_fallback_token(tok, m->left) && !is_fallback_token(tok, m->right);
    }
    if (!told) memset(tok->merges.junctions, 0xff, sizeof tok->merges.junctions);
}

static sheaf_status load_merge(sheaf__loading *load, const json_t *entry, size_t rank,
                               sheaf__text *joined)
{
    const sheaf__vocab *vocab = &load->tok->vocab;
    sheaf__pair pair;
    if (!read_pair(entry, &pair))
        return sheaf__error_set(load->err, SHEAF_E_FORMAT,
                                "%s: model.merges[%zu] is not two tokens", load->file, rank);
    joined->n = 0;
    SHEAF__TRY(sheaf__text_append(joined, pair.left, pair.n_left));
    SHEAF__TRY(sheaf__text_append(joined, pair.right, pair.n_right));
    sheaf__merge merge = {sheaf__vocab_find(vocab, pair.left, pair.n_left),
                          sheaf__vocab_find(vocab, pair.right, pair.n_right), (uint32_t)rank,
                          sheaf__vocab_find(vocab, joined->data, joined->n)};
    if (merge.left == SHEAF__NO_ID || merge.right == SHEAF__NO_ID || merge.id == SHEAF__NO_ID)
        return sheaf__error_set(load->err, SHEAF_E_FORMAT,
                                "%s: model.merges[%zu] names or makes a token that is not in "
                                "the vocabulary: %.64s",
                                load->file, rank, joined->data);
    sheaf__merges_set(&load->tok->merges, merge);
    mark_junction(load->tok, &pair);
    return SHEAF_OK;
}

static sheaf_status load_merges(sheaf__loading *load, json_t *merges)
{
    size_t n = json_array_size(merges);
    if (n > MOST_MERGES) return SHEAF_E_OVERFLOW;
    SHEAF__TRY(sheaf__merges_init(&load->tok->merges, &load->tok->memory, n));
    sheaf__text joined = {NULL, 0, 0};
    sheaf_status status = SHEAF_OK;
    size_t rank;
    json_t *entry;
    json_array_foreach(merges, rank, entry)
    {
        status = load_merge(load, entry, rank, &joined);
        if (status != SHEAF_OK) break;
    }
    sheaf__text_free(&joined);
    return status;
}

/* ---- model ------------------------------------------------------------------------------ */

static void find_byte_tokens(sheaf__tokenizer *tok)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        char text[8];
        uint32_t n = sheaf__utf8_write(sheaf__byte_level_char((unsigned char)byte), text);
        tok->byte_ids[byte] = sheaf__vocab_find(&tok->vocab, text, n);
        (void)snprintf(text, sizeof text, "<0x%02X>", byte);
        tok->fallback_ids[byte] = sheaf__vocab_find(&tok->vocab, text, 6);
    }
}

/* What merges would do otherwise if it were left out is refused by name. */
static sheaf_status check_model(const sheaf__loading *load, const sheaf__json *model)
{
    const char *type = "BPE", *text = "";
    sheaf_status status = sheaf__json_string(model, "type", &type);
    if (status < 0) return status;
    if (strcmp(type, "BPE") != 0)
        return sheaf__error_set(load->err, SHEAF_E_ARCH, "%s: model type %.64s is not known",
                                load->file, type);
    static const char *const refused[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < 2; i++) {
        text = "";
        status = sheaf__json_string(model, refused[i], &text);
        if (status < 0) return status;
        if (text[0] != 0)
            return sheaf__error_set(load->err, SHEAF_E_ARCH, "%s: model.%s is not known",
                                    load->file, refused[i]);
    }
    double dropout = 0;
    status = sheaf__json_number(model, "dropout", 0, 1, &dropout);
    if (status < 0) return status;
    if (dropout > 0)
        return sheaf__error_set(load->err, SHEAF_E_ARCH,
                                "%s: model.dropout: merges left to chance are not done",
                                load->file);
    return SHEAF_OK;
}

static sheaf_status load_flags(const sheaf__json *model, sheaf__tokenizer *tok)
{
    struct {
        const char *field;
        bool *out;
    } fields[] = {{"fuse_unk", &tok->fuse_unk},
                  {"byte_fallback", &tok->byte_fallback},
                  {"ignore_merges", &tok->ignore_merges}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        sheaf_status status = sheaf__json_bool(model, fields[i].field, fields[i].out);
        if (status < 0) return status;
    }
    return SHEAF_OK;
}

static sheaf_status find_unknown(sheaf__loading *load, const sheaf__json *model)
{
    const char *text = NULL;
    sheaf_status status = sheaf__json_string(model, "unk_token", &text);
    load->tok->unk_id = SHEAF__NO_ID;
    if (status == SHEAF_MISS) return SHEAF_OK;
    if (status != SHEAF_OK) return status;
    load->tok->unk_id = sheaf__vocab_find(&load->tok->vocab, text, strlen(text));
    if (load->tok->unk_id != SHEAF__NO_ID) return SHEAF_OK;
    return sheaf__error_set(load->err, SHEAF_E_FORMAT,
                            "%s: model.unk_token %.64s is not in the vocabulary", load->file,
                            text);
}

static sheaf_status load_all(sheaf__loading *load, const json_t *root)
{
    sheaf__json top = {load->file, "", root, load->err}, model;
    SHEAF__TRY(sheaf__json_require(&top, "model"));
    SHEAF__TRY(sheaf__json_object(&top, "model", "model.", &model));
    SHEAF__TRY(check_model(load, &model));
    json_t *vocab = sheaf__json_get(&model, "vocab"),
           *merges = sheaf__json_get(&model, "merges");
    json_t *added = sheaf__json_get(&top, "added_tokens");
    if (!json_is_object(vocab) || !json_is_array(merges))
        return sheaf__error_set(load->err, SHEAF_E_FORMAT,
                                "%s: model.vocab is no object, or model.merges no list",
                                load->file);
    if (added != NULL && !json_is_array(added))
        return sheaf__error_set(load->err, SHEAF_E_FORMAT, "%s: added_tokens is no list",
                                load->file);
    SHEAF__TRY(load_vocab(load, vocab, added));
    SHEAF__TRY(load_merges(load, merges));
    SHEAF__TRY(load_flags(&model, load->tok));
    find_byte_tokens(load->tok);
    SHEAF__TRY(load_added(load, added));
    SHEAF__TRY(find_unknown(load, &model));
    check_junctions(load->tok);
    SHEAF__TRY(sheaf__pipeline_load(load, &top));
    return build_added_sets(load->tok);
}

sheaf_status sheaf__tokenizer_parse(const char *name, const char *json, uint64_t size,
                                    sheaf__tokenizer **out, sheaf_error *err)
{
    char shown[SHEAF__BRIEF];
    json_t *root = NULL;
    sheaf__loading load = {.file = sheaf__path_show(name, shown), .err = err};
    SHEAF__TRY(sheaf__json_parse(name, json, size, &root, err));
    load.tok = calloc(1, sizeof *load.tok);
    sheaf_status status = SHEAF_E_NO_MEMORY;
    if (load.tok != NULL) {
        sheaf__memory_init(&load.tok->memory, NULL);
        status = load_all(&load, root);
    }
    json_decref(root);
    if (status == SHEAF_OK) {
        *out = load.tok;
        return SHEAF_OK;
    }
    sheaf__tokenizer_close(load.tok);
    if (status == SHEAF_E_NO_MEMORY || status == SHEAF_E_OVERFLOW)
        return sheaf__error_set(err, status, "%s: %s", load.file, sheaf_status_text(status));
    return status;
}

sheaf_status sheaf__tokenizer_open(const char *dir, sheaf__tokenizer **out, sheaf_error *err)
{
    sheaf__text path = {NULL, 0, 0};
    sheaf__file file = {NULL, 0};
    sheaf_status status = sheaf__text_append(&path, dir, strlen(dir));
    if (status == SHEAF_OK) status = sheaf__text_append(&path, "/tokenizer.json", 15);
    if (status == SHEAF_OK) status = sheaf__file_map(path.data, &file, err);
    if (status == SHEAF_OK)
        status = sheaf__tokenizer_parse(
            path.data, file.size != 0 ? (const char *)file.data : "", file.size, out, err);
    sheaf__file_unmap(&file);
    sheaf__text_free(&path);
    return status;
}
