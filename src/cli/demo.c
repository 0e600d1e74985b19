/* cli/demo.c - `sheaf demo`: many questions about one long prompt, out of shared blocks.
 *
 * The catalogue is prefilled once, forked for each question, and all answers are decoded in one
 * ragged batch; then the same from the dense cache, and every logit that a token was picked from is
 * compared with memcmp.
 *
 *     catalogue  [block][block][block] ... [tail]
 *     question 1  same   same   same   ... [copy of the tail + question + answer]
 *     question 2  same   same   same   ... [copy of the tail + question + answer]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "cli/cli.h"
#include "cli/demo_data.h"

#define DEFAULT_QUESTIONS 8
#define MAX_QUESTIONS     60
#define MAX_ANSWER_TOKENS 64
#define MODEL_DIR         "models/sheaf-demo"
#define EVAL_FILE         "eval_recall.jsonl"
#define PATH_BYTES        4096

/* One question's answer out of one backend. */
typedef struct demo_answer {
    sheaf__kv kv;
    bool has_kv;
    sheaf__sampler *sampler;
    sheaf__answer engine;
    float *rows; /* [MAX_ANSWER_TOKENS, vocab]: what each token was picked from */
    sheaf__text text;
    sheaf_usage usage; /* paged only */
} demo_answer;

/* All answers out of one backend, and what they cost. */
typedef struct demo_side {
    sheaf__model *model;
    demo_answer answers[MAX_QUESTIONS];
    uint64_t prefix_ns, suffix_ns, decode_ns;
    uint64_t bytes; /* of K and V while all answers are held */
    uint64_t blocks_held;
    uint64_t blocks_apart; /* if nothing were shared */
} demo_side;

typedef struct demo_state {
    sheaf__model_flags model_flags;
    const char *eval_path;
    uint32_t n_questions;
    char model_path[PATH_BYTES], eval_buffer[PATH_BYTES];
    sheaf__progress progress;
    sheaf__demo_chat chats[MAX_QUESTIONS];
    uint32_t n_chats; /* read so far */
    sheaf__ids prompts[MAX_QUESTIONS];
    uint32_t n_prefix; /* tokens that all prompts begin with */
    demo_side paged, dense;
} demo_state;

/* Finds the model that comes with the program: in the working directory, or installed beside it. */
static void find_model(demo_state *demo)
{
    char exe[PATH_BYTES / 2];
    snprintf(demo->model_path, sizeof demo->model_path, "%s", MODEL_DIR);
    if (sheaf__file_exists(MODEL_DIR)) return;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0) return;
    exe[n] = 0;
    char *slash = strrchr(exe, '/');
    if (slash == NULL) return;
    *slash = 0;
    snprintf(demo->model_path, sizeof demo->model_path, "%s/../share/sheaf/%s", exe, MODEL_DIR);
}

static sheaf_status parse(int argc, char **argv, demo_state *demo, bool *done, sheaf_error *err)
{
    sheaf__flags flags = {0};
    sheaf__model_flags_add(&demo->model_flags, &flags);
    sheaf__kv_budget_flag_add(&demo->model_flags.kv_budget_bytes, &flags);
    sheaf__flag_range(sheaf__flags_add(&flags, SHEAF__FLAG_U32, "questions,q=N",
                                       &demo->n_questions, "questions to ask (default 8)"),
                      1, MAX_QUESTIONS);
    sheaf__flags_add(&flags, SHEAF__FLAG_TEXT, "eval=FILE", &demo->eval_path,
                     "chats to ask (default: the model's)");
    SHEAF__TRY(sheaf__flags_parse(&sheaf__command_demo, &flags, argc, argv, done, err));
    if (*done) return sheaf__cli_flush(err);
    if (demo->model_flags.kv_backend != SHEAF__KV_PAGED)
        return sheaf__error_set(err, SHEAF_E_USAGE,
                                "--kv-backend: the demo runs both; leave it out");
    if (demo->model_flags.path == NULL) {
        find_model(demo);
        demo->model_flags.path = demo->model_path;
    }
    if (demo->eval_path == NULL) {
        int n_wanted =
            snprintf(demo->eval_buffer, PATH_BYTES, "%s/%s", demo->model_flags.path, EVAL_FILE);
        if (n_wanted >= PATH_BYTES)
            return sheaf__error_set(err, SHEAF_E_USAGE, "--model: the path is too long");
        demo->eval_path = demo->eval_buffer;
    }
    return SHEAF_OK;
}

static sheaf_status open_side(demo_state *demo, demo_side *side, uint32_t backend,
                              sheaf_error *err)
{
    sheaf__model_options options =
        sheaf__model_flags_options(&demo->model_flags, &demo->progress);
    options.kv_backend = backend;
    if (backend == SHEAF__KV_DENSE) options.kv_budget_bytes = 0; /* it has none */
    return sheaf__model_open(demo->model_flags.path, &options, &side->model, err);
}

/* Every question's whole prompt as ids, and how many of them all share. */
static sheaf_status make_prompts(demo_state *demo, sheaf_error *err)
{
    uint32_t family;
    sheaf_status status = sheaf__chat_detect(demo->model_flags.path, &family, err);
    if (status == SHEAF_MISS)
        return sheaf__error_set(err, SHEAF_E_ARCH, "%s: has no chat template",
                                demo->model_flags.path);
    if (status != SHEAF_OK) return status;
    for (uint32_t i = 0; i < demo->n_questions; i++) {
        const sheaf__demo_chat *chat = &demo->chats[i];
        sheaf__text text = {0};
        status = sheaf__chat_render(family, chat->messages, chat->n_messages, true, &text, err);
        if (status == SHEAF_OK)
            status = sheaf__tokenizer_encode(demo->paged.model->tokenizer, text.data, text.n,
                                             SHEAF__ENCODE_PLAIN, &demo->prompts[i]);
        sheaf__text_free(&text);
        if (status != SHEAF_OK) return status;
    }
    const sheaf__ids *first = &demo->prompts[0];
    demo->n_prefix = first->n - 1; /* one token at least is each question's own */
    for (uint32_t i = 1; i < demo->n_questions; i++) {
        uint32_t n = 0, most = demo->prompts[i].n - 1;
        while (n < demo->n_prefix && n < most && demo->prompts[i].data[n] == first->data[n])
            n++;
        demo->n_prefix = n;
    }
    return SHEAF_OK;
}

/* Forks the prefix for one question and prefills what is its own. */
static sheaf_status start_answer(demo_state *demo, demo_side *side, sheaf__kv *prefix,
                                 uint32_t i, sheaf_error *err)
{
    demo_answer *a = &side->answers[i];
    uint32_t vocab = side->model->config.vocab;
    const sheaf__ids *prompt = &demo->prompts[i];
    SHEAF__TRY(sheaf__kv_fork(prefix, &a->kv));
    a->has_kv = true;
    SHEAF__TRY(sheaf__sampler_create(&(sheaf__sampler_options){0}, vocab, &side->model->memory,
                                     &a->sampler));
    a->rows = malloc((uint64_t)MAX_ANSWER_TOKENS * vocab * sizeof *a->rows);
    a->engine.logits = malloc(vocab * sizeof *a->engine.logits);
    if (a->rows == NULL || a->engine.logits == NULL) return SHEAF_E_NO_MEMORY;
    a->engine.kv = &a->kv;
    a->engine.sampler = a->sampler;
    a->engine.max_tokens = MAX_ANSWER_TOKENS;
    a->engine.all_logits = a->rows;
    return sheaf__model_prefill(side->model, &a->kv, prompt->data + demo->n_prefix,
                                prompt->n - demo->n_prefix, a->engine.logits, err);
}

static sheaf_status measure_side(demo_state *demo, demo_side *side)
{
    for (uint32_t i = 0; i < demo->n_questions; i++) {
        demo_answer *a = &side->answers[i];
        if (side->model->pool == NULL) {
            side->bytes += sheaf__dense_bytes(a->kv.dense);
            continue;
        }
        a->usage = (sheaf_usage)SHEAF_USAGE_INIT;
        SHEAF__TRY(sheaf_sequence_usage(a->kv.sequence, &a->usage));
        side->blocks_apart += a->usage.blocks;
    }
    if (side->model->pool == NULL) return SHEAF_OK;
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    SHEAF__TRY(sheaf_pool_stats_read(side->model->pool, &stats));
    side->blocks_held = stats.blocks_held;
    side->bytes = stats.bytes_in_use;
    return SHEAF_OK;
}

typedef struct decode_progress {
    sheaf__progress *progress;
    uint64_t done, total; /* tokens, of as many as there may be */
} decode_progress;

static int on_token(void *ctx, uint32_t answer, int32_t token)
{
    (void)answer, (void)token;
    decode_progress *p = ctx;
    sheaf__progress_report(p->progress, "answering", ++p->done, p->total);
    return 0;
}

/* All questions out of one backend. */
static sheaf_status answer_all(demo_state *demo, demo_side *side, sheaf_error *err)
{
    sheaf__kv prefix;
    sheaf__answer batch[MAX_QUESTIONS];
    SHEAF__TRY(sheaf__model_new_kv(side->model, &prefix));
    uint64_t start = sheaf__clock_ns();
    sheaf_status status = sheaf__model_prefill(side->model, &prefix, demo->prompts[0].data,
                                               demo->n_prefix, NULL, err);
    uint64_t filled = sheaf__clock_ns();
    for (uint32_t i = 0; i < demo->n_questions && status == SHEAF_OK; i++)
        status = start_answer(demo, side, &prefix, i, err);
    sheaf__kv_destroy(&prefix);
    if (status != SHEAF_OK) return status;
    uint64_t ready = sheaf__clock_ns();
    decode_progress telling = {&demo->progress, 0, demo->n_questions * MAX_ANSWER_TOKENS};
    for (uint32_t i = 0; i < demo->n_questions; i++) batch[i] = side->answers[i].engine;
    status =
        sheaf__model_decode(side->model, batch, demo->n_questions, on_token, &telling, err);
    for (uint32_t i = 0; i < demo->n_questions; i++) side->answers[i].engine = batch[i];
    uint64_t end = sheaf__clock_ns();
    side->prefix_ns = filled - start;
    side->suffix_ns = ready - filled;
    side->decode_ns = end - ready;
    for (uint32_t i = 0; i < demo->n_questions && status == SHEAF_OK; i++) {
        const sheaf__ids *ids = &side->answers[i].engine.tokens;
        status = sheaf__tokenizer_decode(side->model->tokenizer, ids->data, ids->n, true,
                                         &side->answers[i].text);
    }
    return status == SHEAF_OK ? measure_side(demo, side) : status;
}

static const char *text_of(const demo_answer *a)
{
    return a->text.data != NULL ? a->text.data : "";
}

/* Rows of logits that an answer's tokens, and its end, were picked from. */
static uint32_t rows_of(const demo_answer *a)
{
    return a->engine.tokens.n + (a->engine.finish == SHEAF__FINISH_STOP);
}

static uint64_t count_tokens(const demo_state *demo, const demo_side *side)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < demo->n_questions; i++) n += rows_of(&side->answers[i]);
    return n;
}

/* Whether both sides picked the same tokens from the same bits; counts the numbers compared. */
static bool sides_equal(const demo_state *demo, uint64_t *n_logits)
{
    uint32_t vocab = demo->paged.model->config.vocab;
    bool equal = true;
    *n_logits = 0;
    for (uint32_t i = 0; i < demo->n_questions; i++) {
        const demo_answer *a = &demo->paged.answers[i], *b = &demo->dense.answers[i];
        uint64_t n = (uint64_t)rows_of(a) * vocab;
        equal = equal && rows_of(a) == rows_of(b) &&
                memcmp(a->rows, b->rows, n * sizeof(float)) == 0;
        *n_logits += n;
    }
    return equal;
}

static uint32_t print_table(const demo_state *demo)
{
    uint32_t n_right = 0;
    uint32_t block_tokens = sheaf_pool_block_tokens(demo->paged.model->pool);
    printf("\n%-44s %-48s %-5s %13s %6s\n", "question", "answer", "", "tokens shared",
           "blocks");
    for (uint32_t i = 0; i < demo->n_questions; i++) {
        const demo_answer *a = &demo->paged.answers[i];
        const sheaf__demo_chat *chat = &demo->chats[i];
        bool right = strcmp(text_of(a), chat->expected) == 0;
        uint64_t own = a->usage.bytes_exclusive / (a->usage.bytes / a->usage.blocks);
        printf("%-44.44s %-48.48s %-5s %6llu of %4u %6llu\n",
               chat->messages[chat->n_messages - 1].content, text_of(a),
               right ? "right" : "WRONG",
               (unsigned long long)(a->usage.blocks - own) * block_tokens, a->usage.n_tokens,
               (unsigned long long)a->usage.blocks);
        n_right += right;
    }
    return n_right;
}

static void print_side(const demo_state *demo, const char *name, const demo_side *side)
{
    uint64_t n_suffix = 0;
    for (uint32_t i = 0; i < demo->n_questions; i++)
        n_suffix += demo->prompts[i].n - demo->n_prefix;
    printf("%-6s catalogue %5.0f tokens/s, questions %5.0f tokens/s, answers %5.0f tokens/s, K "
           "and V %.1f MiB\n",
           name, demo->n_prefix / ((double)side->prefix_ns * 1e-9),
           (double)n_suffix / ((double)side->suffix_ns * 1e-9),
           (double)count_tokens(demo, side) / ((double)side->decode_ns * 1e-9),
           (double)side->bytes / (1 << 20));
}

static void close_side(demo_state *demo, demo_side *side)
{
    for (uint32_t i = 0; i < demo->n_questions; i++) {
        demo_answer *a = &side->answers[i];
        if (a->has_kv) sheaf__kv_destroy(&a->kv);
        sheaf__sampler_destroy(a->sampler);
        sheaf__ids_free(&a->engine.tokens);
        sheaf__text_free(&a->text);
        free(a->engine.logits);
        free(a->rows);
    }
    sheaf__model_close(side->model);
}

static sheaf_status run_demo(demo_state *demo, bool *equal, sheaf_error *err)
{
    SHEAF__TRY(sheaf__demo_read(demo->eval_path, demo->n_questions, demo->chats, err));
    demo->n_chats = demo->n_questions;
    SHEAF__TRY(open_side(demo, &demo->paged, SHEAF__KV_PAGED, err));
    SHEAF__TRY(open_side(demo, &demo->dense, SHEAF__KV_DENSE, err));
    SHEAF__TRY(make_prompts(demo, err));
    printf("%s: %.1f million parameters, %u threads, %s, KV %s; one catalogue of %u tokens, %u "
           "questions\n",
           demo->model_flags.path, (double)demo->paged.model->weights->n_parameters * 1e-6,
           sheaf_threads_count(demo->paged.model->threads),
           sheaf_isa_name(demo->paged.model->options.isa),
           sheaf__cli_kv_name(demo->paged.model->options.codec_k,
                              demo->paged.model->options.codec_v)
               .text,
           demo->n_prefix, demo->n_questions);
    SHEAF__TRY(sheaf__cli_flush(err));
    SHEAF__TRY(answer_all(demo, &demo->paged, err));
    SHEAF__TRY(answer_all(demo, &demo->dense, err));
    sheaf__progress_end(&demo->progress);
    uint32_t n_right = print_table(demo);
    uint64_t n_logits = 0;
    *equal = sides_equal(demo, &n_logits);
    printf("\n");
    print_side(demo, "paged:", &demo->paged);
    print_side(demo, "dense:", &demo->dense);
    printf("%llu logits compared bit by bit\n", (unsigned long long)n_logits);
    printf("demo: %u of %u right, paged equals dense: %s, %llu blocks held instead of %llu\n",
           n_right, demo->n_questions, *equal ? "yes" : "no",
           (unsigned long long)demo->paged.blocks_held,
           (unsigned long long)demo->paged.blocks_apart);
    return sheaf__cli_flush(err);
}

static int demo_main(int argc, char **argv)
{
    demo_state *demo = calloc(1, sizeof *demo);
    if (demo == NULL) return sheaf__cli_fail("demo", SHEAF_E_NO_MEMORY, NULL);
    demo->model_flags = (sheaf__model_flags)SHEAF__MODEL_FLAGS_INIT;
    demo->n_questions = DEFAULT_QUESTIONS;
    sheaf_error err = {0};
    bool done = false, equal = true;
    sheaf_status status = parse(argc, argv, demo, &done, &err);
    if (status == SHEAF_OK && !done) status = run_demo(demo, &equal, &err);
    sheaf__progress_end(&demo->progress);
    close_side(demo, &demo->paged);
    close_side(demo, &demo->dense);
    for (uint32_t i = 0; i < demo->n_questions; i++) sheaf__ids_free(&demo->prompts[i]);
    for (uint32_t i = 0; i < demo->n_chats; i++) sheaf__demo_chat_close(&demo->chats[i]);
    free(demo);
    if (status != SHEAF_OK) return sheaf__cli_fail("demo", status, &err);
    return equal ? 0 : SHEAF__EXIT_FAILED;
}

const sheaf__command sheaf__command_demo = {
    .name = "demo",
    .arguments = "[flags]",
    .summary = "ask the embedded model many questions about one shared prompt",
    .details =
        "The catalogue is prefilled once and forked for every question; the answers are "
        "decoded\n"
        "together, then again from the dense cache, and all logits are compared bit by bit.\n"
        "Exit code 1 when they differ.\n",
    .run = demo_main,
};
