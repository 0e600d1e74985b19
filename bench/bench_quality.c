/* bench/bench_quality.c - what do codecs of K and V cost in recall and perplexity?
 *
 * The demo model (models/sheaf-demo, trained for exact recall) on its evaluation chats, 563 to 7,423
 * tokens: the prompt and the expected answer are run through the network in chunks, each reading K
 * and V back out of the cache. Attention's bits do not depend on chunks, so this is what decoding
 * would do.
 *
 *   recall       chats whose every answer token, and the end of the answer, has the highest logit
 *                where it is due: what greedy decoding would say, word for word
 *   perplexity   of all tokens of the chats but the first ones
 *
 * Chats that the reference itself gets wrong are left out. Chats of the group `shared` begin with
 * one catalogue of 3,700 tokens, which is run once and forked. The others are taken by length, every
 * Nth, and counted in bins of their length. Changes are against f32 on the same chats.
 *
 * Options: --stride N (1: all chats; 20), --codecs LIST (names, or K/V pairs: "f32,int8,int8/turbo4").
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_rig.h"

#define DEMO         "models/sheaf-demo"
#define MAX_CHATS    180u
#define MAX_MESSAGES 16u
#define CHUNK        512u
#define N_BINS       5u /* lengths below 2,048, 4,096, 6,144, 8,192; the last: the shared prompt */
#define SHARED_BIN   (N_BINS - 1)
#define MAX_CODECS   32u

static const char *const bin_names[N_BINS] = {"to 2k", "2k to 4k", "4k to 6k", "6k to 8k",
                                              "shared prompt"};

typedef struct chat {
    sheaf__ids ids; /* the prompt, then the answer and what ends it */
    uint32_t n_prompt;
    uint32_t bin;
} chat;

/* What came of some chats. */
typedef struct score {
    uint32_t n_chats, n_right;
    uint64_t n_tokens;
    double loss; /* nats, of n_tokens */
} score;

typedef struct rig {
    bench *b;
    json_t *rows;
    chat chats[MAX_CHATS]; /* those of the shared prompt last */
    uint32_t n_chats, n_shared;
    float *logits; /* [CHUNK, vocab] */
} rig;

/* ---- the chats ---------------------------------------------------------------------------- */

/* Whether the reference gives this answer itself. */
static bool reference_right(const json_t *row)
{
    const json_t *ok = json_object_get(row, "hf_bf16_ok");
    if (json_is_null(ok) || ok == NULL) ok = json_object_get(row, "torch_fp32_ok");
    return json_is_true(ok);
}

static void append_text(const rig *r, const sheaf__model *model, const char *text, size_t n,
                        sheaf__ids *ids)
{
    sheaf__ids more = {0};
    model_must(r->b,
               sheaf__tokenizer_encode(model->tokenizer, text, n, SHEAF__ENCODE_PLAIN, &more),
               "encode a chat");
    int32_t *data = realloc(ids->data, (ids->n + more.n) * sizeof *data);
    if (data == NULL) model_must(r->b, SHEAF_E_NO_MEMORY, "a chat");
    memcpy(data + ids->n, more.data, more.n * sizeof *data);
    ids->data = data;
    ids->n += more.n;
    sheaf__ids_free(&more);
}

static void read_chat(rig *r, const sheaf__model *model, const json_t *row)
{
    chat *c = &r->chats[r->n_chats];
    sheaf__message messages[MAX_MESSAGES];
    sheaf__text text = {0};
    const json_t *list = json_object_get(row, "messages");
    uint32_t n = (uint32_t)json_array_size(list);
    if (r->n_chats == MAX_CHATS || n > MAX_MESSAGES)
        model_must(r->b, SHEAF_E_FORMAT, DEMO "/eval_recall.jsonl");
    for (uint32_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(list, i);
        messages[i].role = json_string_value(json_object_get(message, "role"));
        messages[i].content = json_string_value(json_object_get(message, "content"));
    }
    model_must(r->b, sheaf__chat_render(SHEAF__CHAT_CHATML, messages, n, true, &text, NULL),
               "render a chat");
    *c = (chat){.bin = SHARED_BIN};
    append_text(r, model, text.data, text.n, &c->ids);
    c->n_prompt = c->ids.n;
    sheaf__text_free(&text);
    const char *expected = json_string_value(json_object_get(row, "expected"));
    append_text(r, model, expected, strlen(expected), &c->ids);
    append_text(r, model, "<|im_end|>", 10, &c->ids);
    r->n_chats++;
}

static int by_length(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    json_int_t n = json_integer_value(json_object_get(x, "prompt_tokens"));
    json_int_t m = json_integer_value(json_object_get(y, "prompt_tokens"));
    return (n > m) - (n < m);
}

/* Reads the evaluation's rows of a group into out, by length. */
static uint32_t choose(const rig *r, const char *group, json_t **out)
{
    uint32_t n = 0;
    size_t index;
    json_t *row;
    json_array_foreach(r->rows, index, row)
    {
        const char *of = json_string_value(json_object_get(row, "group"));
        if (n < MAX_CHATS && of != NULL && strcmp(of, group) == 0 && reference_right(row))
            out[n++] = row;
    }
    qsort(out, n, sizeof *out, by_length);
    return n;
}

static void read_chats(rig *r, const sheaf__model *model, uint32_t stride)
{
    json_t *rows[MAX_CHATS], *row;
    FILE *file = fopen(DEMO "/eval_recall.jsonl", "r");
    if (file == NULL) model_must(r->b, SHEAF_E_IO, DEMO "/eval_recall.jsonl");
    r->rows = json_array();
    while ((row = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL)) != NULL)
        json_array_append_new(r->rows, row);
    fclose(file);
    uint32_t n = choose(r, "own", rows);
    for (uint32_t i = stride / 2; i < n; i += stride) {
        read_chat(r, model, rows[r->b->tiny ? 0 : i]);
        chat *c = &r->chats[r->n_chats - 1];
        c->bin = c->n_prompt / 2048;
        if (r->b->tiny) break;
    }
    n = r->b->quick ? 0 : choose(r, "shared", rows);
    for (uint32_t i = 0; i < n; i++) read_chat(r, model, rows[i]);
    r->n_shared = n;
    json_decref(r->rows);
}

/* ---- running ------------------------------------------------------------------------------ */

/* The loss of `next` at these logits; *top: whether it is the highest. */
static double loss_of(const float *logits, uint32_t vocab, int32_t next, bool *top)
{
    float most = logits[0];
    double sum = 0;
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++)
        if (logits[i] > most) most = logits[i], best = i;
    for (uint32_t i = 0; i < vocab; i++) sum += exp((double)logits[i] - (double)most);
    *top = best == (uint32_t)next;
    return log(sum) - ((double)logits[next] - (double)most);
}

/* Runs tokens [sequence's length, end) of a chat; the tokens after `counted` are scored. */
static void run_chat(rig *r, sheaf__model *model, sheaf__kv *kv, const chat *c, uint32_t end,
                     score *s)
{
    const uint32_t vocab = model->config.vocab;
    bool right = true;
    for (uint32_t at = sheaf__kv_length(kv), n; at < end; at += n) {
        n = end - at < CHUNK ? end - at : CHUNK;
        sheaf__forward_item item = {
            .kv = kv, .tokens = c->ids.data + at, .n_tokens = n, .n_logits = s ? n : 0};
        model_must(r->b, sheaf__kv_extend(kv, n), "reserve");
        model_must(r->b, sheaf__forward_run(model->forward, &item, 1, s ? r->logits : NULL),
                   "step");
        model_must(r->b, sheaf__kv_commit(kv, n, item.tokens), "commit");
        for (uint32_t i = 0; s != NULL && i < n && at + i + 1 < c->ids.n; i++) {
            bool top;
            s->loss +=
                loss_of(r->logits + (size_t)i * vocab, vocab, c->ids.data[at + i + 1], &top);
            s->n_tokens++;
            if (at + i + 1 >= c->n_prompt) right = right && top;
        }
    }
    if (s == NULL) return;
    s->n_chats++;
    s->n_right += right;
}

/* What all chats of the shared prompt begin with. */
static uint32_t common(const chat *chats, uint32_t n)
{
    uint32_t same = chats[0].n_prompt - 1;
    for (uint32_t i = 1; i < n; i++) {
        uint32_t at = 0;
        while (at < same && chats[i].ids.data[at] == chats[0].ids.data[at]) at++;
        same = at;
    }
    return same;
}

static void run_all(rig *r, sheaf__model *model, score *scores)
{
    const uint32_t own = r->n_chats - r->n_shared;
    sheaf__kv kv, prefix;
    for (uint32_t i = 0; i < own; i++) {
        const chat *c = &r->chats[i];
        model_must(r->b, sheaf__model_new_kv(model, &kv), "a sequence");
        run_chat(r, model, &kv, c, r->b->tiny ? 64 : c->ids.n - 1, &scores[c->bin]);
        sheaf__kv_destroy(&kv);
    }
    if (r->n_shared == 0) return;
    const chat *shared = r->chats + own;
    model_must(r->b, sheaf__model_new_kv(model, &prefix), "a sequence");
    run_chat(r, model, &prefix, &shared[0], common(shared, r->n_shared), NULL);
    for (uint32_t i = 0; i < r->n_shared; i++) {
        model_must(r->b, sheaf__kv_fork(&prefix, &kv), "fork");
        run_chat(r, model, &kv, &shared[i], shared[i].ids.n - 1, &scores[SHARED_BIN]);
        sheaf__kv_destroy(&kv);
    }
    sheaf__kv_destroy(&prefix);
}

static double recall_of(const score *s)
{
    return 100.0 * s->n_right / s->n_chats;
}

static double perplexity_of(const score *s)
{
    return exp(s->loss / (double)s->n_tokens);
}

static void print_score(rig *r, const char *codec, const char *bin, const score *s,
                        const score *f32)
{
    char name[64];
    if (s->n_chats == 0) return;
    snprintf(name, sizeof name, "%s, %s", codec, bin);
    bench_row(r->b, name, (double)s->n_chats, recall_of(s), recall_of(f32) - recall_of(s),
              perplexity_of(s), (perplexity_of(s) / perplexity_of(f32) - 1) * 100);
}

/* `spec`: "int8", or "int8/turbo4". base: [N_BINS + 1], f32's; filled by the first. */
static void measure(rig *r, const char *spec, score *base, uint32_t stride)
{
    char k[32];
    score scores[N_BINS + 1] = {{0}};
    sheaf__model_options o = {.n_threads = sheaf_threads_count(r->b->threads)};
    const char *slash = strchr(spec, '/');
    snprintf(k, sizeof k, "%.*s", (int)(slash ? slash - spec : (long)strlen(spec)), spec);
    model_must(r->b, sheaf_codec_from_name(k, &o.codec_k), spec);
    model_must(r->b, sheaf_codec_from_name(slash ? slash + 1 : k, &o.codec_v), spec);
    sheaf__model *model = model_open(r->b, DEMO, &o);
    if (r->logits == NULL) {
        r->logits = malloc(sizeof *r->logits * CHUNK * model->config.vocab);
        if (r->logits == NULL) model_must(r->b, SHEAF_E_NO_MEMORY, "logits");
        read_chats(r, model, stride);
    }
    run_all(r, model, scores);
    sheaf__model_close(model);
    for (uint32_t i = 0; i < N_BINS; i++) {
        scores[N_BINS].n_chats += scores[i].n_chats;
        scores[N_BINS].n_right += scores[i].n_right;
        scores[N_BINS].n_tokens += scores[i].n_tokens;
        scores[N_BINS].loss += scores[i].loss;
    }
    if (base[N_BINS].n_chats == 0) memcpy(base, scores, sizeof scores);
    for (uint32_t i = 0; i < N_BINS; i++)
        print_score(r, spec, bin_names[i], &scores[i], &base[i]);
    print_score(r, spec, "all", &scores[N_BINS], &base[N_BINS]);
}

/* The codecs to measure, f32 first: those asked for, or all and some mixtures. */
static uint32_t list_codecs(char *asked, const char **out)
{
    static const char *const mixtures[] = {"int8/turbo4", "turbo4/int8", "bf16/turbo4"};
    uint32_t n = 0;
    out[n++] = "f32";
    for (char *word = strtok(asked, ","); word != NULL; word = strtok(NULL, ","))
        if (strcmp(word, "f32") != 0 && n < MAX_CODECS) out[n++] = word;
    if (n > 1) return n;
    for (uint32_t codec = SHEAF_CODEC_F32 + 1; codec < SHEAF_CODEC_COUNT; codec++)
        out[n++] = sheaf_codec_name(codec);
    for (uint32_t i = 0; i < sizeof mixtures / sizeof mixtures[0]; i++) out[n++] = mixtures[i];
    return n;
}

int main(int argc, char **argv)
{
    static const bench_column columns[] = {{"chats", ""},
                                           {"recall", "%"},
                                           {"lost to f32", "points"},
                                           {"perplexity", ""},
                                           {"perplexity over f32", "%"}};
    static rig r;
    score base[N_BINS + 1] = {{0}};
    const char *codecs[MAX_CODECS];
    char asked[256];
    bench b;
    if (!bench_begin(&b, "quality", "what do codecs cost in recall and perplexity?", argc,
                     argv))
        return 2;
    r.b = &b;
    uint32_t stride = bench_option_u32(&b, "--stride", (uint32_t)bench_size(&b, 20, 60, 1));
    const char *usual = b.quick ? "bf16,int8,turbo4" : "";
    snprintf(asked, sizeof asked, "%s", bench_option_text(&b, "--codecs", usual));
    bench_table(&b, columns, 5);
    uint32_t n = list_codecs(asked, codecs);
    for (uint32_t i = 0; i < n; i++) measure(&r, codecs[i], base, stride ? stride : 1);
    bench_note(&b, "%u chats, %u of them with one shared prompt; --stride 1 takes all",
               r.n_chats, r.n_shared);
    for (uint32_t i = 0; i < r.n_chats; i++) sheaf__ids_free(&r.chats[i].ids);
    free(r.logits);
    return bench_end(&b);
}
