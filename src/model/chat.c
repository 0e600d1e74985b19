/* model/chat.c - the known chat templates, written out, and how each is recognised.
 *
 * A template is a program in Jinja. Those below are told apart by what only they contain, and
 * one that contains something which none of them does (a system message of its own, trimming,
 * other reasoning) is not taken for its nearest relative: a model answers worse to a prompt
 * that is nearly right, and nobody would notice.
 */
#include "model/chat.h"

#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/file.h"
#include "base/status.h"
#include "model/chat_form.h"
#include "model/json.h"
#include "model/utf8.h"

#define IM_START     "<|im_start|>"
#define IM_END       "<|im_end|>"
#define START_HEADER "<|start_header_id|>"
#define END_HEADER   "<|end_header_id|>\n\n"
#define TURN         "<start_of_turn>"

static const char *const family_names[] = {
    "none",    "chatml",       "llama3",     "qwen3",      "llama3.1",
    "mistral", "mistral-v0.1", "mistral-v1", "mistral-v3", "mistral-v3-tekken",
    "gemma"};

#define N_FAMILIES ((uint32_t)(sizeof family_names / sizeof family_names[0]))

sheaf_status sheaf__chat_from_name(const char *name, uint32_t *family, sheaf_error *err)
{
    for (uint32_t i = 1; i < N_FAMILIES; i++) {
        if (strcmp(name, family_names[i]) != 0) continue;
        *family = i;
        return SHEAF_OK;
    }
    return sheaf__error_set(
        err, SHEAF_E_USAGE,
        "chat template '%.64s' is not one of chatml, gemma, llama3, llama3.1, mistral, "
        "mistral-v0.1, mistral-v1, mistral-v3, mistral-v3-tekken, qwen3",
        name);
}

const char *sheaf__chat_name(uint32_t family)
{
    return family < N_FAMILIES ? family_names[family] : family_names[0];
}

/* ---- Mistral's forms ------------------------------------------------------------------- */

/* Which question the system message opens: none (there may be no such message), the first, or
 * the one that is the last message. */
enum { NO_SYSTEM, SYSTEM_FIRST, SYSTEM_LAST };

/* As parts stand in a template's form (chat_form.h). */
#define QUESTION(open, close) "{{'" open "'+message['content']+'" close "'}}"
#define QUESTION_TOLD(open, close)                                                             \
    "{{'" open "'+system_message+'\\n\\n'+message['content']+'" close "'}}"

/* [INST] with blanks here and there, in which Mistral's models differ. */
typedef struct mistral {
    uint32_t family;
    uint32_t system;
    const char *open, *close;   /* around a question */
    const char *before, *after; /* around an answer and its </s> */
    bool trims;                 /* the answer */
    uint32_t n_prints;          /* tags that print; 0: not counted, tools have some */
    const char *parts[3];       /* what its template prints */
} mistral;

static const mistral mistrals[] = {
    {.family = SHEAF__CHAT_MISTRAL,
     .open = "[INST] ",
     .close = " [/INST]",
     .before = "",
     .after = "",
     .n_prints = 3,
     .parts = {QUESTION("[INST] ", " [/INST]"), "{{message['content']+eos_token}}"}},
    {.family = SHEAF__CHAT_MISTRAL_V01,
     .open = "[INST] ",
     .close = " [/INST]",
     .before = "",
     .after = " ",
     .n_prints = 3,
     .parts = {QUESTION("[INST] ", " [/INST]"), "{{message['content']+eos_token+' '}}"}},
    {.family = SHEAF__CHAT_MISTRAL_V1,
     .system = SYSTEM_FIRST,
     .open = " [INST] ",
     .close = " [/INST]",
     .before = " ",
     .after = "",
     .n_prints = 4,
     .parts = {QUESTION(" [INST] ", " [/INST]"), QUESTION_TOLD(" [INST] ", " [/INST]"),
               "{{' '+message['content']+eos_token}}"}},
    {.family = SHEAF__CHAT_MISTRAL_V3,
     .system = SYSTEM_LAST,
     .open = "[INST] ",
     .close = "[/INST]",
     .before = " ",
     .after = "",
     .trims = true,
     .parts = {QUESTION("[INST] ", "[/INST]"), QUESTION_TOLD("[INST] ", "[/INST]"),
               "{{' '+message['content']|trim+eos_token}}"}},
    {.family = SHEAF__CHAT_MISTRAL_V3_TEKKEN,
     .system = SYSTEM_LAST,
     .open = "[INST]",
     .close = "[/INST]",
     .before = "",
     .after = "",
     .parts = {QUESTION("[INST]", "[/INST]"), QUESTION_TOLD("[INST]", "[/INST]"),
               "{{message['content']+eos_token}}"}},
};

#define N_MISTRALS (sizeof mistrals / sizeof mistrals[0])

/* ---- recognising ------------------------------------------------------------------------ */

static bool has(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

/* Whether the template writes a system message of its own: text right after the role's line
 * break, which stands in the template as such or as an escape. */
static bool has_own_system(const char *text)
{
    static const char opening[] = IM_START "system";
    for (const char *at = text; (at = strstr(at, opening)) != NULL;) {
        at += sizeof opening - 1;
        if (*at == '\n')
            at++;
        else if (at[0] == '\\' && at[1] == 'n')
            at += 2;
        else
            continue;
        if (*at != 0 && strchr("'\"{", *at) == NULL) return true;
    }
    return false;
}

static sheaf_status unknown(sheaf_error *err, const char *why)
{
    return sheaf__error_set(
        err, SHEAF_E_ARCH,
        "the chat template %s, which is not known here; name a known one with --chat-template",
        why);
}

static sheaf_status recognise_chatml(const char *text, uint32_t *family, sheaf_error *err)
{
    if (has_own_system(text)) return unknown(err, "has a system message of its own");
    if (has(text, "assistant\\n<think>") || has(text, "assistant\n<think>"))
        return unknown(err, "opens the answer with <think>");
    bool thinks = has(text, "</think>");
    if (thinks && !has(text, "last_query_index"))
        return unknown(err, "handles <think> its own way");
    if (!thinks && (has(text, "trim") || has(text, "strip(")))
        return unknown(err, "trims messages");
    *family = thinks ? SHEAF__CHAT_QWEN3 : SHEAF__CHAT_CHATML;
    return SHEAF_OK;
}

static sheaf_status recognise_llama(const char *text, uint32_t *family, sheaf_error *err)
{
    if (!has(text, "trim")) return unknown(err, "does not trim messages");
    bool dates = has(text, "Cutting Knowledge Date");
    *family = dates ? SHEAF__CHAT_LLAMA31 : SHEAF__CHAT_LLAMA3;
    return SHEAF_OK;
}

static uint32_t count(const char *text, const char *part)
{
    uint32_t n = 0;
    for (; (text = strstr(text, part)) != NULL; text += strlen(part)) n++;
    return n;
}

static bool is_mistral(const mistral *m, const char *form)
{
    for (size_t i = 0; i < sizeof m->parts / sizeof m->parts[0]; i++)
        if (m->parts[i] != NULL && !has(form, m->parts[i])) return false;
    uint32_t n_prints = count(form, "{{") - count(form, "{{raise_exception(");
    if (!has(form, "{{bos_token}}") || (m->n_prints != 0 && n_prints != m->n_prints))
        return false;
    if (m->system == NO_SYSTEM) return !has(form, "system");
    return has(form, m->system == SYSTEM_FIRST ? "{%ifloop.firstandsystem_messageisdefined%}"
                                               : "{%ifloop.lastandsystem_messageisdefined%}") &&
           has(form, "{%setsystem_message=messages[0]['content']%}") &&
           count(form, "setsystem_message=") == 1;
}

static sheaf_status recognise_mistral(const char *form, uint32_t *family, sheaf_error *err)
{
    for (size_t i = 0; i < N_MISTRALS; i++) {
        if (!is_mistral(&mistrals[i], form)) continue;
        *family = mistrals[i].family;
        return SHEAF_OK;
    }
    return unknown(err, "writes [INST] in a way of its own");
}

static sheaf_status recognise_gemma(const char *form, uint32_t *family, sheaf_error *err)
{
    static const char *const parts[] = {
        "{{bos_token}}",
        "{%setfirst_user_prefix=messages[0]['content']+'\\n\\n'%}",
        "{%setfirst_user_prefix=''%}",
        "{%setrole='model'%}",
        "{{'" TURN "'+role+'\\n'+(first_user_prefixifloop.firstelse'')}}",
        "{{message['content']|trim}}",
        "{{'<end_of_turn>\\n'}}",
        "{{'" TURN "model\\n'}}",
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (!has(form, parts[i])) return unknown(err, "writes " TURN " in a way of its own");
    *family = SHEAF__CHAT_GEMMA;
    return SHEAF_OK;
}

/* The families whose templates are looked at part by part. */
static sheaf_status recognise_form(const char *text, uint32_t *family, sheaf_error *err)
{
    sheaf__text form = {NULL, 0, 0};
    bool speaks = false;
    sheaf_status status = sheaf__chat_form(text, &form, &speaks);
    if (status == SHEAF_OK && speaks)
        status = unknown(err, "has text outside its tags");
    else if (status == SHEAF_OK)
        status = has(text, TURN) ? recognise_gemma(form.data, family, err)
                                 : recognise_mistral(form.data, family, err);
    sheaf__text_free(&form);
    return status;
}

sheaf_status sheaf__chat_recognise(const char *template_text, uint32_t *family,
                                   sheaf_error *err)
{
    const char *text = template_text;
    if (has(text, IM_START)) return recognise_chatml(text, family, err);
    if (has(text, START_HEADER)) return recognise_llama(text, family, err);
    if (has(text, TURN) || has(text, "[INST]")) return recognise_form(text, family, err);
    return unknown(err, "has none of <|im_start|>, <|start_header_id|>, " TURN " and [INST]");
}

/* The template in a parsed tokenizer_config.json. SHEAF_MISS: it has none. */
static sheaf_status template_of(const json_t *config, const char *path, const char **out,
                                sheaf_error *err)
{
    const json_t *value = json_object_get(config, "chat_template"), *found = value;
    char shown[SHEAF__BRIEF];
    size_t i;
    json_t *item;
    if (!json_is_object(config))
        return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: must hold an object",
                                sheaf__path_show(path, shown));
    if (json_is_array(value)) found = NULL;
    json_array_foreach(value, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (found == NULL && name != NULL && strcmp(name, "default") == 0)
            found = json_object_get(item, "template");
    }
    if (found == NULL || json_is_null(found)) return SHEAF_MISS;
    *out = json_string_value(found);
    if (*out != NULL) return SHEAF_OK;
    return sheaf__error_set(err, SHEAF_E_FORMAT,
                            "%s: chat_template must be a text or a list of named texts",
                            sheaf__path_show(path, shown));
}

/* The same, its sentence with the file before it. */
static sheaf_status recognise_in(const char *path, const char *text, uint32_t *family,
                                 sheaf_error *err)
{
    sheaf_error why = {0};
    sheaf_status status = sheaf__chat_recognise(text, family, &why);
    char shown[SHEAF__BRIEF];
    if (status == SHEAF_OK) return SHEAF_OK;
    return sheaf__error_set(err, status, "%s: %s", sheaf__path_show(path, shown),
                            why.text[0] != 0 ? why.text : sheaf_status_text(status));
}

/* Read apart from json.h: published files hold integers of 31 digits (model_max_length). */
static sheaf_status recognise_config(const char *path, const sheaf__file *file,
                                     uint32_t *family, sheaf_error *err)
{
    json_error_t why;
    char shown[SHEAF__BRIEF];
    json_t *config = json_loadb(file->size != 0 ? (const char *)file->data : "",
                                (size_t)file->size, JSON_DECODE_INT_AS_REAL, &why);
    if (config == NULL)
        return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: line %d is not JSON",
                                sheaf__path_show(path, shown), why.line);
    const char *text = NULL;
    sheaf_status status = template_of(config, path, &text, err);
    if (status == SHEAF_OK) status = recognise_in(path, text, family, err);
    json_decref(config);
    return status;
}

static sheaf_status recognise_jinja(const char *path, const sheaf__file *file, uint32_t *family,
                                    sheaf_error *err)
{
    sheaf__text text = {NULL, 0, 0}; /* with a zero byte at its end */
    sheaf_status status = sheaf__text_append(&text, (const char *)file->data, file->size);
    if (status == SHEAF_OK) status = recognise_in(path, text.data, family, err);
    sheaf__text_free(&text);
    return status;
}

/* SHEAF_MISS: there is no such file. */
static sheaf_status map_in(const char *dir, const char *name, sheaf__text *path,
                           sheaf__file *file, sheaf_error *err)
{
    path->n = 0;
    SHEAF__TRY(sheaf__text_append(path, dir, strlen(dir)));
    SHEAF__TRY(sheaf__text_append(path, "/", 1));
    SHEAF__TRY(sheaf__text_append(path, name, strlen(name)));
    if (!sheaf__file_exists(path->data)) return SHEAF_MISS;
    return sheaf__file_map(path->data, file, err);
}

sheaf_status sheaf__chat_detect(const char *dir, uint32_t *family, sheaf_error *err)
{
    sheaf__text path = {NULL, 0, 0};
    sheaf__file file = {NULL, 0};
    sheaf_status status = map_in(dir, "chat_template.jinja", &path, &file, err);
    if (status == SHEAF_OK) {
        status = recognise_jinja(path.data, &file, family, err);
    } else if (status == SHEAF_MISS) {
        status = map_in(dir, "tokenizer_config.json", &path, &file, err);
        if (status == SHEAF_OK) status = recognise_config(path.data, &file, family, err);
    }
    sheaf__file_unmap(&file);
    sheaf__text_free(&path);
    return status;
}

/* ---- rendering -------------------------------------------------------------------------- */

/* A stretch of a message. */
typedef struct part {
    const char *text;
    uint64_t n;
} part;

static part whole(const char *text)
{
    return (part){text, strlen(text)};
}

static sheaf_status put(sheaf__text *out, part p)
{
    return sheaf__text_append(out, p.text, p.n);
}

/* The texts one after the other, up to a null. */
static sheaf_status put_all(sheaf__text *out, const char *const *texts)
{
    for (; *texts != NULL; texts++) SHEAF__TRY(put(out, whole(*texts)));
    return SHEAF_OK;
}

/* Python's str.isspace, which Jinja's trim goes by. */
static bool is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
           code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
           code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
           code == 0x3000;
}

static part trim(part p)
{
    while (p.n != 0) {
        sheaf__utf8_char c = sheaf__utf8_read(p.text, p.n);
        if (!is_space(c.code)) break;
        p.text += c.size;
        p.n -= c.size;
    }
    while (p.n != 0) {
        uint64_t last = p.n - 1;
        while (last > 0 && p.n - last < 4 && ((unsigned char)p.text[last] & 0xc0u) == 0x80)
            last--;
        sheaf__utf8_char c = sheaf__utf8_read(p.text + last, p.n - last);
        if (c.size != p.n - last || !is_space(c.code)) break;
        p.n = last;
    }
    return p;
}

static part strip_lines(part p, bool left, bool right)
{
    for (; left && p.n != 0 && p.text[0] == '\n'; p.n--) p.text++;
    while (right && p.n != 0 && p.text[p.n - 1] == '\n') p.n--;
    return p;
}

/* What follows the last `mark` in p, or p. */
static part after_last(part p, const char *mark)
{
    uint64_t n = strlen(mark);
    for (uint64_t at = p.n; at >= n; at--)
        if (memcmp(p.text + at - n, mark, n) == 0) return (part){p.text + at, p.n - at};
    return p;
}

static sheaf_status render_chatml(const sheaf__message *m, sheaf__text *out)
{
    return put_all(
        out, (const char *const[]){IM_START, m->role, "\n", m->content, IM_END, "\n", NULL});
}

static bool is_role(const sheaf__message *m, const char *role)
{
    return strcmp(m->role, role) == 0;
}

static bool is_tool_response(const char *content)
{
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    size_t n = strlen(content), n_close = sizeof close - 1;
    return strncmp(content, open, sizeof open - 1) == 0 && n >= n_close &&
           strcmp(content + n - n_close, close) == 0;
}

/* The last question: answers after it keep their reasoning. */
static uint32_t last_query(const sheaf__message *messages, uint32_t n)
{
    for (uint32_t i = n; i-- > 0;)
        if (is_role(&messages[i], "user") && !is_tool_response(messages[i].content)) return i;
    return n - 1;
}

static sheaf_status render_qwen3_answer(const sheaf__message *m, bool after_query, bool last,
                                        sheaf__text *out)
{
    static const char think[] = "<think>", think_end[] = "</think>";
    part content = whole(m->content), reasoning = {"", 0};
    const char *end = strstr(m->content, think_end);
    if (end != NULL) {
        reasoning = (part){m->content, (uint64_t)(end - m->content)};
        reasoning = after_last(strip_lines(reasoning, false, true), think);
        reasoning = strip_lines(reasoning, true, false);
        content = strip_lines(after_last(content, think_end), true, false);
    }
    SHEAF__TRY(put(out, whole(IM_START "assistant\n")));
    if (after_query && (last || reasoning.n != 0)) {
        SHEAF__TRY(put(out, whole("<think>\n")));
        SHEAF__TRY(put(out, strip_lines(reasoning, true, true)));
        SHEAF__TRY(put(out, whole("\n</think>\n\n")));
        content = strip_lines(content, true, false);
    }
    SHEAF__TRY(put(out, content));
    return put(out, whole(IM_END "\n"));
}

static sheaf_status render_llama3(const char *role, part content, sheaf__text *out)
{
    SHEAF__TRY(put_all(out, (const char *const[]){START_HEADER, role, END_HEADER, NULL}));
    SHEAF__TRY(put(out, trim(content)));
    return put(out, whole("<|eot_id|>"));
}

/* The block that opens every conversation of Llama 3.1; the first message's text when that is
 * the system's. */
static sheaf_status render_dates(const sheaf__message *system, sheaf__text *out)
{
    SHEAF__TRY(put(out, whole(START_HEADER "system" END_HEADER
                                           "Cutting Knowledge Date: December 2023\n"
                                           "Today Date: 26 Jul 2024\n\n")));
    if (system != NULL) SHEAF__TRY(put(out, trim(whole(system->content))));
    return put(out, whole("<|eot_id|>"));
}

static sheaf_status render_llama(uint32_t family, const sheaf__message *messages, uint32_t n,
                                 sheaf__text *out)
{
    uint32_t i = 0;
    if (n != 0 || family == SHEAF__CHAT_LLAMA31)
        SHEAF__TRY(put(out, whole("<|begin_of_text|>")));
    if (family == SHEAF__CHAT_LLAMA31) {
        bool system = n != 0 && is_role(&messages[0], "system");
        SHEAF__TRY(render_dates(system ? &messages[i++] : NULL, out));
    }
    for (; i < n; i++)
        SHEAF__TRY(render_llama3(messages[i].role, whole(messages[i].content), out));
    return SHEAF_OK;
}

static sheaf_status render_im(uint32_t family, const sheaf__message *messages, uint32_t n,
                              sheaf__text *out)
{
    uint32_t query = last_query(messages, n);
    for (uint32_t i = 0; i < n; i++) {
        if (family == SHEAF__CHAT_QWEN3 && is_role(&messages[i], "assistant"))
            SHEAF__TRY(render_qwen3_answer(&messages[i], i > query, i + 1 == n, out));
        else
            SHEAF__TRY(render_chatml(&messages[i], out));
    }
    return SHEAF_OK;
}

/* Mistral's and Gemma's templates raise an exception. */
static sheaf_status refuse_turn(uint32_t family, const sheaf__message *messages, uint32_t i,
                                sheaf_error *err)
{
    return sheaf__error_set(err, SHEAF_E_CONFIG,
                            "message %u: the chat template %s wants the user and the assistant "
                            "in turn, the user first; this one is of role %.64s",
                            i, family_names[family], messages[i].role);
}

static sheaf_status refuse_empty(uint32_t family, sheaf_error *err)
{
    return sheaf__error_set(err, SHEAF_E_CONFIG, "the chat template %s wants a message",
                            family_names[family]);
}

static sheaf_status render_mistral(const mistral *m, const sheaf__message *messages, uint32_t n,
                                   sheaf__text *out, sheaf_error *err)
{
    if (n == 0 && m->system != NO_SYSTEM) return refuse_empty(m->family, err);
    bool has_system = n != 0 && is_role(&messages[0], "system");
    if (has_system && m->system == NO_SYSTEM)
        return sheaf__error_set(err, SHEAF_E_CONFIG,
                                "message 0: the chat template %s takes no system message",
                                family_names[m->family]);
    uint32_t first = has_system ? 1 : 0;
    SHEAF__TRY(put(out, whole("<s>")));
    for (uint32_t i = first; i < n; i++) {
        bool asks = (i - first) % 2 == 0;
        part content = whole(messages[i].content);
        if (!is_role(&messages[i], asks ? "user" : "assistant"))
            return refuse_turn(m->family, messages, i, err);
        SHEAF__TRY(put(out, whole(asks ? m->open : m->before)));
        if (asks && has_system && i == (m->system == SYSTEM_FIRST ? first : n - 1))
            SHEAF__TRY(put_all(out, (const char *const[]){messages[0].content, "\n\n", NULL}));
        SHEAF__TRY(put(out, !asks && m->trims ? trim(content) : content));
        if (!asks) SHEAF__TRY(put(out, whole("</s>")));
        SHEAF__TRY(put(out, whole(asks ? m->close : m->after)));
    }
    return SHEAF_OK;
}

/* A system message that stands where an answer does passes, under its own name. */
static sheaf_status render_gemma(const sheaf__message *messages, uint32_t n, sheaf__text *out,
                                 sheaf_error *err)
{
    if (n == 0) return refuse_empty(SHEAF__CHAT_GEMMA, err);
    uint32_t first = is_role(&messages[0], "system") ? 1 : 0;
    SHEAF__TRY(put(out, whole("<bos>")));
    for (uint32_t i = first; i < n; i++) {
        const sheaf__message *m = &messages[i];
        if (is_role(m, "user") != ((i - first) % 2 == 0))
            return refuse_turn(SHEAF__CHAT_GEMMA, messages, i, err);
        const char *role = is_role(m, "assistant") ? "model" : m->role;
        SHEAF__TRY(put_all(out, (const char *const[]){TURN, role, "\n", NULL}));
        if (first == 1 && i == 1)
            SHEAF__TRY(put_all(out, (const char *const[]){messages[0].content, "\n\n", NULL}));
        SHEAF__TRY(put(out, trim(whole(m->content))));
        SHEAF__TRY(put(out, whole("<end_of_turn>\n")));
    }
    return SHEAF_OK;
}

static sheaf_status render(uint32_t family, const sheaf__message *messages, uint32_t n,
                           sheaf__text *out, sheaf_error *err)
{
    for (size_t i = 0; i < N_MISTRALS; i++)
        if (mistrals[i].family == family)
            return render_mistral(&mistrals[i], messages, n, out, err);
    if (family == SHEAF__CHAT_GEMMA) return render_gemma(messages, n, out, err);
    if (family == SHEAF__CHAT_LLAMA3 || family == SHEAF__CHAT_LLAMA31)
        return render_llama(family, messages, n, out);
    return render_im(family, messages, n, out);
}

/* What opens an answer. Mistral's follows the question's mark as it stands. */
static const char *opening_of(uint32_t family)
{
    switch (family) {
    case SHEAF__CHAT_CHATML:
    case SHEAF__CHAT_QWEN3: return IM_START "assistant\n";
    case SHEAF__CHAT_LLAMA3:
    case SHEAF__CHAT_LLAMA31: return START_HEADER "assistant" END_HEADER;
    case SHEAF__CHAT_GEMMA: return TURN "model\n";
    default: return "";
    }
}

sheaf_status sheaf__chat_render(uint32_t family, const sheaf__message *messages, uint32_t n,
                                bool generate, sheaf__text *out, sheaf_error *err)
{
    if (family == SHEAF__CHAT_NONE || family >= N_FAMILIES)
        return sheaf__error_set(err, SHEAF_E_INVALID, "no chat template was chosen");
    for (uint32_t i = 0; i < n; i++) {
        const sheaf__message *m = &messages[i];
        if (!is_role(m, "system") && !is_role(m, "user") && !is_role(m, "assistant"))
            return sheaf__error_set(err, SHEAF_E_CONFIG,
                                    "message %u: the chat template %s has no role %.64s", i,
                                    family_names[family], m->role);
    }
    uint64_t n_before = out->n;
    sheaf_status status = render(family, messages, n, out, err);
    if (status == SHEAF_OK && generate) status = put(out, whole(opening_of(family)));
    if (status != SHEAF_OK) {
        out->n = n_before;
        if (out->data != NULL) out->data[n_before] = 0;
    }
    return status;
}
