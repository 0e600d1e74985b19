/* tests/server/e2e_room.c - what many long prompts make a server compute, and the memory they take.
 *
 * SHEAF_NIGHTLY=1: the ledger on 16 layers, and the dense backend with all prompts, not two of them.
 */
#include "server/client.h"
#include "server/program.h"

#include <unistd.h>

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define N           8 /* clients */
#define N_DENSE     2 /* of them, but for the nightly form */
#define MIB         (1 << 20)

#define BLOCK_TOKENS 32

static bool is_nightly(void)
{
    return getenv("SHEAF_NIGHTLY") != NULL;
}

/* ---- one prompt -------------------------------------------------------------------------- */

typedef struct question {
    json_t *row; /* of the demo model's evaluation */
    json_t *ids; /* of its prompt */
} question;

/* The first N of those that have one system prompt and that the reference answers rightly. */
static void read_questions(const program *p, question *out)
{
    FILE *file = fopen(SERVERS_DEMO "/eval_recall.jsonl", "r");
    assert_non_null(file);
    for (uint32_t n = 0; n < N;) {
        json_t *row = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL);
        assert_non_null(row);
        if (strcmp(text_at(row, "group"), "shared") != 0 ||
            !json_is_true(json_object_get(row, "hf_bf16_ok"))) {
            json_decref(row);
            continue;
        }
        char *messages = json_dumps(json_object_get(row, "messages"), 0);
        char *body = NULL;
        assert_true(asprintf(&body, "{\"messages\": %s}", messages) > 0);
        http_reply reply = serving_ask(&p->net, "POST", "/tokenize", body);
        assert_int_equal(reply.status, 200);
        json_t *said = json_loadb(reply.body, reply.n, 0, NULL);
        out[n++] = (question){row, json_incref(json_at(said, "tokens"))};
        json_decref(said);
        http_reply_free(&reply);
        free(messages);
        free(body);
    }
    fclose(file);
}

static uint32_t common_prefix(const question *q)
{
    for (uint32_t at = 0;; at++)
        for (uint32_t i = 1; i < N; i++) {
            json_t *id = json_array_get(q[i].ids, at);
            if (id == NULL || !json_equal(id, json_array_get(q[0].ids, at))) return at;
        }
}

static void a_shared_prompt_is_computed_once_and_each_recalls_from_it(void **state)
{
    (void)state;
    question q[N];
    client clients[N];
    program p;
    program_start(&p, (const char *[]){"-m", SERVERS_DEMO, NULL});
    read_questions(&p, q);
    for (uint32_t i = 0; i < N; i++) {
        json_t *body =
            json_pack("{s:O, s:i, s:i}", "messages", json_object_get(q[i].row, "messages"),
                      "temperature", 0, "max_tokens", 120);
        clients[i] = (client){.path = CHAT, .body = json_dumps(body, JSON_COMPACT)};
        json_decref(body);
    }
    clients_run(p.net.port, clients, N);
    program_idle(&p);

    int64_t prefix = common_prefix(q), wanted = prefix;
    for (uint32_t i = 0; i < N; i++) {
        json_t *told = client_told(&clients[i]);
        assert_string_equal(text_at(told, "choices.0.text"), text_at(q[i].row, "expected"));
        assert_string_equal(text_at(told, "choices.0.finish_reason"), "stop");
        assert_int_equal(number_at(told, "usage.prompt_tokens"), json_array_size(q[i].ids));
        wanted += number_at(told, "usage.total_tokens") - prefix;
        json_decref(told);
        json_decref(q[i].row);
        json_decref(q[i].ids);
    }
    int64_t computed = program_figure(&p, "tokens_computed");
    print_message(
        "# a prefix of %lld tokens and %d suffixes: %lld, computed %lld, %.4f times\n",
        (long long)prefix, N, (long long)wanted, (long long)computed,
        (double)computed / (double)wanted);
    assert_true(prefix > 3600);
    assert_true((double)computed <= 1.05 * (double)wanted);
    clients_free(clients, N);
    program_stop(&p);
}

/* ---- distinct prompts -------------------------------------------------------------------- */

static json_t *make_ids(uint64_t *seed, uint32_t n, uint32_t vocab)
{
    json_t *ids = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(ids, json_integer((json_int_t)(testing_random(seed) % vocab)));
    return ids;
}

/* Greedy, and no token ends it. Takes ids. */
static client long_client(json_t *ids, uint32_t max_tokens)
{
    json_t *body = json_pack("{s:o, s:i, s:i, s:b}", "prompt", ids, "max_tokens", max_tokens,
                             "temperature", 0, "ignore_eos", 1);
    client c = {.path = COMPLETIONS, .body = json_dumps(body, JSON_COMPACT)};
    json_decref(body);
    return c;
}

static void ask_one(const program *p, json_t *ids, uint32_t max_tokens)
{
    client c = long_client(ids, max_tokens);
    clients_run(p->net.port, &c, 1);
    json_decref(client_told(&c));
    clients_free(&c, 1);
}

/* Memory above that of an idle server: of one that has answered, and holds nothing. */
typedef struct extent {
    uint64_t step; /* most that a step of all its rows takes, but for K and V */
    uint64_t peak; /* most that the prompts took at once */
    uint64_t kv;   /* bytes of all their positions that were run */
} extent;

static void reset(const program *p, bool paged)
{
    if (paged) json_decref(serving_post(&p->net, "/v1/cache/reset", 200, "{}"));
}

/* Nothing where the system does not let the peak of memory begin anew.
 * n prompts of 3,900 to 4,075 tokens at once. The prompt of 512 tokens before them is a step of all the
 * rows that a step may have; of what it takes, its own K and V are not the step's. */
static extent measure(const program *p, uint32_t n, uint64_t seed, bool paged)
{
    enum { SHORT = 512, ANSWER = 16, VOCAB = 4000 };
    const uint64_t position = 4096; /* 8 layers, K and V, 2 heads of 64 dimensions of 2 bytes */
    extent e = {0};
    client clients[N];
    ask_one(p, make_ids(&seed, 1, VOCAB), 1);
    reset(p, paged);
    uint64_t idle = program_memory(p, "VmRSS:");
    if (!program_forget_peak(p)) return e;
    ask_one(p, make_ids(&seed, SHORT, VOCAB), 1);
    e.step = program_memory(p, "VmHWM:") - idle;
    e.step = e.step > SHORT * position ? e.step - SHORT * position : 0;
    reset(p, paged);
    (void)program_forget_peak(p);
    for (uint32_t i = 0; i < n; i++) {
        clients[i] = long_client(make_ids(&seed, 3900 + 25 * i, VOCAB), ANSWER);
        e.kv += (3900 + 25 * i + ANSWER - 1) * position;
    }
    clients_run(p->net.port, clients, n);
    for (uint32_t i = 0; i < n; i++) json_decref(client_told(&clients[i]));
    clients_free(clients, n);
    e.peak = program_memory(p, "VmHWM:") - idle;
    return e;
}

static void tell(const char *name, uint32_t n, const extent *e)
{
    print_message("# %s, %u prompts: K and V %.1f MiB, a step %.1f, peak above idle %.1f: %.3f "
                  "times K and V\n",
                  name, n, (double)e->kv / MIB, (double)e->step / MIB, (double)e->peak / MIB,
                  (double)e->peak / (double)e->kv);
}

static void distinct_prompts_take_their_own_bytes_and_no_more(void **state)
{
    (void)state;
    const uint32_t n_dense = is_nightly() ? N : N_DENSE;
    uint64_t seed = testing_seed(20261202);
    program p;
    program_start(&p, (const char *[]){"-m", SERVERS_DEMO, NULL});
    extent paged = measure(&p, N, seed, true);
    if (paged.peak == 0) {
        program_stop(&p);
        TESTING_SKIP("/proc/PID/clear_refs cannot be written here");
    }
    uint64_t live = (uint64_t)program_figure(&p, "paged_bytes_in_use");
    uint64_t slab = (uint64_t)program_figure(&p, "paged_bytes_reserved") /
                    (uint64_t)program_figure(&p, "slabs");
    program_stop(&p);
    program_start(&p, (const char *[]){"-m", SERVERS_DEMO, "--kv-backend", "dense", NULL});
    extent dense = measure(&p, n_dense, seed, false);
    program_stop(&p);
    tell("paged", N, &paged);
    tell("dense", n_dense, &dense);
    uint64_t block = (uint64_t)BLOCK_TOKENS * 4096;
    assert_true(live >= paged.kv &&
                live < paged.kv + N * block); /* all of it, in whole blocks */
    assert_true((double)paged.peak <= 1.05 * (double)live + (double)slab + (double)paged.step);
    assert_true(paged.peak >= live); /* it was measured */
}

/* ---- the ledger -------------------------------------------------------------------------- */

/* Both models have 8 K and V heads, of 2 bytes a dimension. */
static void the_ledger_goes_121_242_242_blocks_and_the_oldest_leaves(void **state)
{
    (void)state;
    enum { PROMPT = 3860, BLOCKS = 121 };
    const int64_t wanted[3] = {BLOCKS, 2 * BLOCKS, 2 * BLOCKS};
    const int64_t dims = is_nightly() ? 16 * 64 : 128; /* of a head, in all layers */
    const int64_t block = BLOCK_TOKENS * 2 * 8 * dims * 2;
    const char *model = is_nightly() ? "random:llama-3.2-1b" : "random:qwen3-0.6b:layers=1";
    uint64_t seed = testing_seed(20261203);
    char capacity[32];
    program p;
    snprintf(capacity, sizeof capacity, "%lld", 300000000ll * block / MIB);
    program_start(
        &p, (const char *[]){"-m", model, "--prompt-cache-capacity-bytes", capacity, NULL});
    for (uint32_t i = 0; i < 3; i++) {
        ask_one(&p, make_ids(&seed, PROMPT, 100000), 1);
        program_idle(&p);
        int64_t in_use = program_figure(&p, "paged_bytes_in_use");
        print_message("# paged_bytes_in_use %.3f MiB\n", (double)in_use / MIB);
        assert_int_equal(in_use, wanted[i] * block);
        assert_int_equal(program_figure(&p, "bytes"), wanted[i] * block);
        assert_int_equal(program_figure(&p, "evictions_lru"), i == 2);
    }
    assert_int_equal(program_figure(&p, "entries"), 2);
    program_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shared_prompt_is_computed_once_and_each_recalls_from_it),
        cmocka_unit_test(distinct_prompts_take_their_own_bytes_and_no_more),
        cmocka_unit_test(the_ledger_goes_121_242_242_blocks_and_the_oldest_leaves),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
