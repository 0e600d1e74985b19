/* tests/server/known.c - requests whose answers are known. */
#include "server/known.h"

#define CHAT        "/v1/chat/completions"
#define COMPLETIONS "/v1/completions"
#define BOOK_BYTES  1400

static struct {
    const char *path;
    char *body;
    char *told; /* the first time */
} known[N_KNOWN];

/* ---- what is told ------------------------------------------------------------------------ */

/* Texts of choices, numbers of their log-probabilities and reasons, in the order of choices. */
typedef struct telling {
    char *of[8];
} telling;

static void tell(telling *t, json_t *choice, const char *text)
{
    size_t index = (size_t)json_integer_value(json_object_get(choice, "index"));
    char *joined = NULL;
    if (text == NULL || index >= sizeof t->of / sizeof t->of[0]) return;
    if (asprintf(&joined, "%s%s", t->of[index] != NULL ? t->of[index] : "", text) < 0) return;
    free(t->of[index]);
    t->of[index] = joined;
}

/* Adds what a whole reply or a chunk says; false: an error. */
static bool tell_all(telling *t, const char *data, size_t n)
{
    static const char *const texts[] = {"text", "message", "delta"};
    json_t *said = json_loadb(data, n, 0, NULL), *choice;
    json_t *choices = json_object_get(said, "choices");
    bool good = json_is_array(choices);
    size_t i;
    json_array_foreach(choices, i, choice)
    {
        for (uint32_t j = 0; j < sizeof texts / sizeof texts[0]; j++) {
            json_t *text = json_object_get(choice, texts[j]);
            if (json_is_object(text)) text = json_object_get(text, "content");
            tell(t, choice, json_string_value(text));
        }
        json_t *scores = json_object_get(choice, "logprobs");
        if (json_is_object(scores)) { /* as they are printed: equal texts are equal bits */
            char *text = json_dumps(json_object_get(scores, "token_logprobs"), JSON_COMPACT);
            tell(t, choice, text);
            free(text);
        }
        const char *why = json_string_value(json_object_get(choice, "finish_reason"));
        tell(t, choice, why != NULL ? "\n" : NULL);
        tell(t, choice, why);
    }
    json_decref(said);
    return good;
}

/* All of a reply; null: it is not a whole one with status 200. */
static char *told(const http_reply *r)
{
    telling t = {{NULL}};
    bool whole = r->status == 200 && r->n > 0;
    if (whole && strcasestr(r->all, "content-type: text/event-stream") == NULL)
        whole = tell_all(&t, r->body, r->n);
    else if (whole) {
        const char *end = "data: [DONE]\n\n";
        whole = r->n > strlen(end) && strcmp(r->body + r->n - strlen(end), end) == 0;
        for (const char *at = strstr(r->body, "data: {"); whole && at != NULL;
             at = strstr(at, "data: {")) {
            at += strlen("data: ");
            whole = tell_all(&t, at, strcspn(at, "\n"));
        }
    }
    char *all = whole ? strdup("") : NULL;
    for (size_t i = 0; i < sizeof t.of / sizeof t.of[0]; i++) {
        char *joined = NULL;
        if (all != NULL && t.of[i] != NULL && asprintf(&joined, "%s%s\n", all, t.of[i]) >= 0) {
            free(all);
            all = joined;
        }
        free(t.of[i]);
    }
    return all;
}

static http_reply ask(uint16_t port, uint32_t i)
{
    int fd = http_send(port, "POST", known[i].path, known[i].body);
    return fd < 0 ? (http_reply){0} : http_receive(fd);
}

/* ---- what is asked ----------------------------------------------------------------------- */

static char *read_book(void)
{
    FILE *file = fopen(SERVERS_DEMO "/eval_recall.jsonl", "r");
    assert_non_null(file);
    json_t *row = json_loadf(file, JSON_DISABLE_EOF_CHECK, NULL);
    char *book = strdup(text_at(row, "messages.0.content"));
    json_decref(row);
    fclose(file);
    return book;
}

/* Chats and completions, streamed and whole, greedy and seeded, of one answer and of three, which begin
 * with more or less of one text. */
static void make(uint32_t i, const char *book)
{
    bool chat = i % 4 == 3;
    json_t *body =
        json_pack("{s:i, s:f, s:i, s:b, s:b, s:i}", "max_tokens", 6 + (int)(i % 5) * 6,
                  "temperature", i % 2 == 0 ? 0.0 : 0.9, "seed", (int)i, "stream",
                  (int)(i / 2 % 2), "ignore_eos", 1, "n", i % 6 == 5 ? 3 : 1);
    int n = (int)((i % 3) * BOOK_BYTES / 2 + 8 + i);
    if (chat)
        json_object_set_new(body, "messages",
                            json_pack("[{s:s, s:s#}, {s:s, s:s}]", "role", "system", "content",
                                      book, n, "role", "user", "content", "What can you do?"));
    else {
        json_object_set_new(body, "prompt", json_pack("s#", book, n));
        if (i % 4 == 2) json_object_set_new(body, "logprobs", json_integer(2));
    }
    assert_non_null(json_object_get(body, chat ? "messages" : "prompt"));
    known[i].path = chat ? CHAT : COMPLETIONS;
    known[i].body = json_dumps(body, JSON_COMPACT);
    json_decref(body);
}

void known_open(const program *p)
{
    char *book = read_book();
    for (uint32_t i = 0; i < N_KNOWN; i++) {
        make(i, book);
        http_reply r = ask(p->net.port, i);
        known[i].told = told(&r);
        if (known[i].told == NULL)
            fail_msg("%s: status %u: %s", known[i].body, r.status,
                     r.body != NULL ? r.body : "");
        assert_true(strlen(known[i].told) > strlen("\nlength\n"));
        http_reply_free(&r);
    }
    free(book);
}

void known_close(void)
{
    for (uint32_t i = 0; i < N_KNOWN; i++) {
        free(known[i].body);
        free(known[i].told);
    }
}

char *known_ask(uint16_t port, uint32_t i)
{
    http_reply r = ask(port, i);
    char *now = told(&r), *wrong = NULL;
    if ((now == NULL || strcmp(now, known[i].told) != 0) &&
        asprintf(&wrong, "%s\ntold:\n%s\nbefore:\n%s\nstatus %u: %.1000s", known[i].body,
                 now != NULL ? now : "nothing", known[i].told, r.status,
                 r.body != NULL ? r.body : "") < 0)
        wrong = NULL;
    free(now);
    http_reply_free(&r);
    return wrong;
}
