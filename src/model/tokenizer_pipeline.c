/* model/tokenizer_pipeline.c - tokenizer.json: normalizer, pre-tokenizer, post-processor,
 * decoder.
 *
 * Each is a component or a tree of Sequences, flattened here into a few steps. A component, or
 * an order of components, that is not known is refused by name: guessing would give other ids.
 */
#include <string.h>

#include "base/status.h"
#include "model/tokenizer_load.h"
#include "model/utf8.h"

#define MOST_DEPTH        8u /* of Sequences inside Sequences */
#define MOST_REPLACEMENTS 8u /* of a decoder */

/* GPT-2's pattern, which the ByteLevel pre-tokenizer holds without saying so. */
#define GPT2_PATTERN                                                                           \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static sheaf_status refuse(const sheaf__json *at, const char *type)
{
    return sheaf__error_set(at->err, SHEAF_E_ARCH, "%s: %s%.64s is not known", at->file,
                            at->within, type);
}

static sheaf_status read_type(const sheaf__json *at, const char **type)
{
    SHEAF__TRY(sheaf__json_require(at, "type"));
    return sheaf__json_string(at, "type", type);
}

/* A bool that may be absent. */
static sheaf_status read_bool(const sheaf__json *at, const char *field, bool *value)
{
    sheaf_status status = sheaf__json_bool(at, field, value);
    return status < 0 ? status : SHEAF_OK;
}

static sheaf_status set_text(sheaf__text *text, const char *value)
{
    text->n = 0;
    return sheaf__text_append(text, value, strlen(value));
}

static sheaf_status require_text(const sheaf__json *at, const char *field, sheaf__text *text)
{
    const char *value = NULL;
    SHEAF__TRY(sheaf__json_require(at, field));
    SHEAF__TRY(sheaf__json_string(at, field, &value));
    return set_text(text, value);
}

/* {"String": "..."} or {"Regex": "..."}. */
static sheaf_status load_pattern(const sheaf__json *at, sheaf__regex **regex,
                                 sheaf__text *literal)
{
    sheaf__json pattern;
    const char *text = NULL;
    SHEAF__TRY(sheaf__json_require(at, "pattern"));
    SHEAF__TRY(sheaf__json_object(at, "pattern", "pattern.", &pattern));
    sheaf_status status = sheaf__json_string(&pattern, "Regex", &text);
    if (status == SHEAF_OK)
        return sheaf__regex_compile(at->file, text, strlen(text), regex, at->err);
    if (status != SHEAF_MISS) return status;
    SHEAF__TRY(require_text(&pattern, "String", literal));
    if (literal->n == 0) return refuse(&pattern, "an empty String");
    return SHEAF_OK;
}

typedef struct reading reading;
typedef sheaf_status component_fn(reading *r, const sheaf__json *at, const char *type);

/* One of the four parts while it is read. */
struct reading {
    sheaf__loading *load;
    component_fn *fn;
    const char *field;  /* of the file */
    const char *within; /* the field and a dot */
    const char *list;   /* where a Sequence of this part holds its components */
    uint32_t stage;     /* how far the known order of components has come */
    bool byte_fallback; /* decoder */
    sheaf__replacement replacements[MOST_REPLACEMENTS];
    uint32_t n_replacements;
};

/* Calls `fn` for a component, or in order for each that a Sequence holds. */
static sheaf_status for_each(reading *r, const sheaf__json *at, uint32_t depth)
{
    const char *type = NULL;
    SHEAF__TRY(read_type(at, &type));
    if (strcmp(type, "Sequence") != 0) return r->fn(r, at, type);
    const json_t *items = sheaf__json_get(at, r->list);
    if (!json_is_array(items) || depth == MOST_DEPTH)
        return sheaf__error_set(at->err, SHEAF_E_FORMAT,
                                "%s: %sSequence has no list of %s, or is too deep", at->file,
                                at->within, r->list);
    size_t i;
    json_t *item;
    json_array_foreach(items, i, item)
    {
        sheaf__json inner = {at->file, at->within, item, at->err};
        if (!json_is_object(item))
            return sheaf__error_set(at->err, SHEAF_E_FORMAT, "%s: %s%s[%zu] is no object",
                                    at->file, at->within, r->list, i);
        SHEAF__TRY(for_each(r, &inner, depth + 1));
    }
    return SHEAF_OK;
}

/* The component of the file, or nothing where it is null (*found then stays false). */
static sheaf_status read_part(reading *r, const sheaf__json *top, bool *found)
{
    sheaf__json at;
    sheaf_status status = sheaf__json_object(top, r->field, r->within, &at);
    if (status == SHEAF_MISS) return SHEAF_OK;
    if (status != SHEAF_OK) return status;
    *found = true;
    return for_each(r, &at, 0);
}

/* ---- normalizer ------------------------------------------------------------------------- */

static sheaf_status normalizer(reading *r, const sheaf__json *at, const char *type)
{
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    sheaf__tokenizer *tok = r->load->tok;
    if (tok->n_normalize == SHEAF__MOST_STEPS) return refuse(at, "a list this long");
    sheaf__normalize_step *step = &tok->normalize[tok->n_normalize++];
    for (uint32_t form = 0; form < 4; form++) {
        if (strcmp(type, forms[form]) != 0) continue;
        step->kind = SHEAF__NORMALIZE_FORM;
        step->form = form;
        return SHEAF_OK;
    }
    if (strcmp(type, "Prepend") == 0) {
        step->kind = SHEAF__NORMALIZE_PREPEND;
        return require_text(at, "prepend", &step->content);
    }
    if (strcmp(type, "Replace") != 0) return refuse(at, type);
    step->kind = SHEAF__NORMALIZE_REPLACE;
    SHEAF__TRY(load_pattern(at, &step->regex, &step->literal));
    return require_text(at, "content", &step->content);
}

/* ---- pre-tokenizer ---------------------------------------------------------------------- */

static sheaf_status new_step(reading *r, const sheaf__json *at, uint32_t kind,
                             sheaf__pretokenize_step **step)
{
    sheaf__tokenizer *tok = r->load->tok;
    if (tok->n_pretokenize == SHEAF__MOST_STEPS) return refuse(at, "a list this long");
    *step = &tok->pretokenize[tok->n_pretokenize++];
    (*step)->kind = kind;
    return SHEAF_OK;
}

static sheaf_status split_by(reading *r, const sheaf__json *at, const char *pattern,
                             uint32_t behavior)
{
    sheaf__pretokenize_step *step = NULL;
    SHEAF__TRY(new_step(r, at, SHEAF__PRETOKENIZE_SPLIT, &step));
    step->behavior = behavior;
    return sheaf__regex_compile(at->file, pattern, strlen(pattern), &step->regex, at->err);
}

static sheaf_status load_split(reading *r, const sheaf__json *at)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous",
                                        "MergedWithPrevious", "MergedWithNext"};
    const char *name = NULL;
    sheaf__pretokenize_step *step = NULL;
    SHEAF__TRY(new_step(r, at, SHEAF__PRETOKENIZE_SPLIT, &step));
    SHEAF__TRY(load_pattern(at, &step->regex, &step->literal));
    SHEAF__TRY(read_bool(at, "invert", &step->invert));
    SHEAF__TRY(sheaf__json_require(at, "behavior"));
    SHEAF__TRY(sheaf__json_string(at, "behavior", &name));
    for (uint32_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        step->behavior = i;
        return SHEAF_OK;
    }
    return refuse(at, name);
}

static sheaf_status load_byte_level(reading *r, const sheaf__json *at)
{
    bool use_regex = true, add_prefix_space = true;
    SHEAF__TRY(read_bool(at, "use_regex", &use_regex));
    SHEAF__TRY(read_bool(at, "add_prefix_space", &add_prefix_space));
    r->load->tok->byte_level = true;
    if (add_prefix_space) {
        sheaf__pretokenize_step *step = NULL;
        SHEAF__TRY(new_step(r, at, SHEAF__PRETOKENIZE_PREFIX, &step));
        step->scheme = SHEAF__PREFIX_ALWAYS;
        SHEAF__TRY(set_text(&step->literal, " "));
    }
    return use_regex ? split_by(r, at, GPT2_PATTERN, SHEAF__SPLIT_ISOLATED) : SHEAF_OK;
}

/* prepend_scheme, or add_prefix_space in files from before it. */
static sheaf_status read_scheme(const sheaf__json *at, uint32_t *scheme)
{
    static const char *const names[] = {"never", "first", "always"};
    const char *name = "always";
    bool add_prefix_space = true;
    SHEAF__TRY(read_bool(at, "add_prefix_space", &add_prefix_space));
    sheaf_status status = sheaf__json_string(at, "prepend_scheme", &name);
    if (status < 0) return status;
    if (status == SHEAF_MISS && !add_prefix_space) name = "never";
    for (uint32_t i = 0; i < 3; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *scheme = i;
        return SHEAF_OK;
    }
    return refuse(at, name);
}

static sheaf_status read_mark(const sheaf__json *at, sheaf__text *mark)
{
    SHEAF__TRY(require_text(at, "replacement", mark));
    if (mark->n == 0 || sheaf__utf8_size(mark->data[0]) != mark->n)
        return refuse(at, "a replacement of other than one character");
    return SHEAF_OK;
}

static sheaf_status load_metaspace(reading *r, const sheaf__json *at)
{
    bool split = true;
    sheaf__pretokenize_step *step = NULL, *cut = NULL;
    SHEAF__TRY(new_step(r, at, SHEAF__PRETOKENIZE_PREFIX, &step));
    step->replace_spaces = true;
    SHEAF__TRY(read_scheme(at, &step->scheme));
    SHEAF__TRY(read_mark(at, &step->literal));
    SHEAF__TRY(read_bool(at, "split", &split));
    if (!split) return SHEAF_OK;
    SHEAF__TRY(new_step(r, at, SHEAF__PRETOKENIZE_SPLIT, &cut));
    cut->behavior = SHEAF__SPLIT_WITH_NEXT;
    return set_text(&cut->literal, step->literal.data);
}

static sheaf_status pretokenizer(reading *r, const sheaf__json *at, const char *type)
{
    if (r->load->tok->byte_level) return refuse(at, "anything after ByteLevel");
    if (strcmp(type, "Split") == 0) return load_split(r, at);
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(r, at);
    if (strcmp(type, "Metaspace") == 0) return load_metaspace(r, at);
    if (strcmp(type, "Digits") != 0) return refuse(at, type);
    bool one_by_one = false;
    SHEAF__TRY(read_bool(at, "individual_digits", &one_by_one));
    return split_by(r, at, "\\p{N}",
                    one_by_one ? SHEAF__SPLIT_ISOLATED : SHEAF__SPLIT_CONTIGUOUS);
}

/* ---- post-processor --------------------------------------------------------------------- */

/* The ids that a template adds around the text. */
typedef struct template_ids {
    int32_t before[SHEAF__MOST_TEMPLATE], after[SHEAF__MOST_TEMPLATE];
    uint32_t n_before, n_after;
    bool seen_text;
} template_ids;

static sheaf_status template_token(reading *r, const sheaf__json *at, const char *name,
                                   template_ids *ids)
{
    const json_t *tokens = sheaf__json_get(at, "special_tokens");
    const json_t *list = json_object_get(json_object_get(tokens, name), "ids");
    int32_t *out = ids->seen_text ? ids->after : ids->before;
    uint32_t *n = ids->seen_text ? &ids->n_after : &ids->n_before;
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id >= (json_int_t)r->load->tok->n_vocab || *n == SHEAF__MOST_TEMPLATE)
            return sheaf__error_set(at->err, SHEAF_E_FORMAT,
                                    "%s: %s%.64s has an id outside the vocabulary, or too many",
                                    at->file, at->within, name);
        out[(*n)++] = (int32_t)id;
    }
    if (i == 0)
        return sheaf__error_set(at->err, SHEAF_E_FORMAT, "%s: %s%.64s is not explained",
                                at->file, at->within, name);
    return SHEAF_OK;
}

static sheaf_status load_template(reading *r, const sheaf__json *at, template_ids *ids)
{
    const json_t *single = sheaf__json_get(at, "single");
    size_t i;
    json_t *item;
    json_array_foreach(single, i, item)
    {
        const char *name =
            json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        const char *text =
            json_string_value(json_object_get(json_object_get(item, "Sequence"), "id"));
        if (name != NULL) {
            SHEAF__TRY(template_token(r, at, name, ids));
        } else {
            if (text == NULL || strcmp(text, "A") != 0 || ids->seen_text)
                return refuse(at, "a template like this one");
            ids->seen_text = true;
        }
    }
    return ids->seen_text ? SHEAF_OK : refuse(at, "a template without the text");
}

/* Processors work one after the other, so each puts its ids around those of the ones before. */
static sheaf_status post_processor(reading *r, const sheaf__json *at, const char *type)
{
    if (strcmp(type, "ByteLevel") == 0) return SHEAF_OK; /* moves offsets only */
    if (strcmp(type, "TemplateProcessing") != 0) return refuse(at, type);
    sheaf__tokenizer *tok = r->load->tok;
    template_ids ids = {.n_before = 0};
    SHEAF__TRY(load_template(r, at, &ids));
    if (tok->n_before + ids.n_before > SHEAF__MOST_TEMPLATE ||
        tok->n_after + ids.n_after > SHEAF__MOST_TEMPLATE)
        return refuse(at, "a list this long");
    memmove(tok->before + ids.n_before, tok->before, tok->n_before * sizeof tok->before[0]);
    memcpy(tok->before, ids.before, ids.n_before * sizeof tok->before[0]);
    memcpy(tok->after + tok->n_after, ids.after, ids.n_after * sizeof tok->after[0]);
    tok->n_before += ids.n_before;
    tok->n_after += ids.n_after;
    return SHEAF_OK;
}

/* ---- decoder ---------------------------------------------------------------------------- */

/* The order of decoders that is known: ByteLevel alone, or
 * Metaspace?, Replace*, ByteFallback?, Fuse?, Strip? (after Fuse, at the start only). */
enum { STAGE_FIRST, STAGE_REPLACE, STAGE_FALLBACK, STAGE_FUSE, STAGE_END };

static sheaf_status add_replacement(reading *r, const sheaf__json *at,
                                    sheaf__replacement **added)
{
    if (r->n_replacements == MOST_REPLACEMENTS) return refuse(at, "a list this long");
    *added = &r->replacements[r->n_replacements++];
    return SHEAF_OK;
}

static sheaf_status decode_replace(reading *r, const sheaf__json *at)
{
    sheaf__replacement *added = NULL;
    sheaf__regex *regex = NULL;
    SHEAF__TRY(add_replacement(r, at, &added));
    SHEAF__TRY(load_pattern(at, &regex, &added->from));
    if (regex != NULL) {
        sheaf__regex_free(regex);
        return refuse(at, "Replace by Regex");
    }
    return require_text(at, "content", &added->to);
}

static sheaf_status decode_metaspace(reading *r, const sheaf__json *at)
{
    sheaf__replacement *added = NULL;
    uint32_t scheme = SHEAF__PREFIX_ALWAYS;
    sheaf__decode_table *table = &r->load->tok->decode;
    SHEAF__TRY(add_replacement(r, at, &added));
    SHEAF__TRY(read_mark(at, &added->from));
    SHEAF__TRY(set_text(&added->to, " "));
    SHEAF__TRY(read_scheme(at, &scheme));
    table->drop_mark_of_first = scheme != SHEAF__PREFIX_NEVER;
    return set_text(&table->mark, added->from.data);
}

static sheaf_status decode_strip(reading *r, const sheaf__json *at)
{
    sheaf__decode_table *table = &r->load->tok->decode;
    uint32_t stop = 0;
    sheaf_status status = sheaf__json_u32(at, "start", 0, UINT16_MAX, &table->strip);
    if (status < 0) return status;
    status = sheaf__json_u32(at, "stop", 0, UINT16_MAX, &stop);
    if (status < 0) return status;
    if (stop != 0) return refuse(at, "Strip at the end");
    SHEAF__TRY(require_text(at, "content", &table->strip_char));
    if (table->strip_char.n == 0 ||
        sheaf__utf8_size(table->strip_char.data[0]) != table->strip_char.n)
        return refuse(at, "Strip of other than one character");
    return SHEAF_OK;
}

static sheaf_status decoder(reading *r, const sheaf__json *at, const char *type)
{
    uint32_t was = r->stage;
    if (strcmp(type, "ByteLevel") == 0 && was == STAGE_FIRST) {
        r->load->tok->decode.kind = SHEAF__DECODE_BYTE_LEVEL;
        r->stage = STAGE_END;
        return SHEAF_OK;
    }
    if (strcmp(type, "Metaspace") == 0 && was == STAGE_FIRST) {
        r->stage = STAGE_REPLACE;
        return decode_metaspace(r, at);
    }
    if (strcmp(type, "Replace") == 0 && was <= STAGE_REPLACE) {
        r->stage = STAGE_REPLACE;
        if (r->load->tok->decode.drop_mark_of_first)
            return refuse(at, "Replace after Metaspace");
        return decode_replace(r, at);
    }
    if (strcmp(type, "ByteFallback") == 0 && was < STAGE_FALLBACK) {
        r->stage = STAGE_FALLBACK;
        r->byte_fallback = true;
        return SHEAF_OK;
    }
    if (strcmp(type, "Fuse") == 0 && was < STAGE_FUSE) {
        r->stage = STAGE_FUSE;
        return SHEAF_OK;
    }
    if (strcmp(type, "Strip") == 0 && was == STAGE_FUSE) {
        r->stage = STAGE_END;
        return decode_strip(r, at);
    }
    return was == STAGE_FIRST ? refuse(at, type)
                              : sheaf__error_set(at->err, SHEAF_E_ARCH,
                                                 "%s: %s%.64s is not known in this place",
                                                 at->file, at->within, type);
}

static sheaf_status load_decoder(sheaf__loading *load, const sheaf__json *top)
{
    reading r = {.load = load,
                 .fn = decoder,
                 .field = "decoder",
                 .within = "decoder.",
                 .list = "decoders",
                 .stage = STAGE_FIRST};
    bool found = false;
    load->tok->decode.kind = SHEAF__DECODE_PIECES;
    sheaf_status status = read_part(&r, top, &found);
    if (!found) load->tok->decode.kind = SHEAF__DECODE_JOIN;
    if (status == SHEAF_OK)
        status = sheaf__decode_table_fill(load->tok, r.byte_fallback, r.replacements,
                                          r.n_replacements);
    for (uint32_t i = 0; i < r.n_replacements; i++) {
        sheaf__text_free(&r.replacements[i].from);
        sheaf__text_free(&r.replacements[i].to);
    }
    return status;
}

sheaf_status sheaf__pipeline_load(sheaf__loading *load, const sheaf__json *top)
{
    reading parts[] = {
        {.fn = normalizer,
         .field = "normalizer",
         .within = "normalizer.",
         .list = "normalizers"},
        {.fn = pretokenizer,
         .field = "pre_tokenizer",
         .within = "pre_tokenizer.",
         .list = "pretokenizers"},
        {.fn = post_processor,
         .field = "post_processor",
         .within = "post_processor.",
         .list = "processors"},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        bool found = false;
        parts[i].load = load;
        SHEAF__TRY(read_part(&parts[i], top, &found));
    }
    return load_decoder(load, top);
}
