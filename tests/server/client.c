/* tests/server/client.c - clients that ask at the same time, and what each of them was told. */
#include "server/client.h"

#include <unistd.h>

/* ---- asking ------------------------------------------------------------------------------ */

static void leave(const client *c, int fd)
{
    for (uint32_t i = 0; i < c->leaves_events; i++)
        if (!http_await(fd, "data: ")) break;
    usleep(c->leaves_us);
    close(fd);
}

static void *run(void *arg)
{
    client *c = arg;
    int fd = http_send(c->port, "POST", c->path, c->body);
    if (fd < 0) return NULL;
    if (c->leaves)
        leave(c, fd);
    else
        c->reply = http_receive(fd);
    return NULL;
}

void client_begin(uint16_t port, client *c)
{
    c->port = port;
    assert_int_equal(pthread_create(&c->thread, NULL, run, c), 0);
}

void clients_join(client *clients, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) pthread_join(clients[i].thread, NULL);
}

void clients_run(uint16_t port, client *clients, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) client_begin(port, &clients[i]);
    clients_join(clients, n);
}

void clients_free(client *clients, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        http_reply_free(&clients[i].reply);
        free(clients[i].body);
    }
}

/* ---- what was told ----------------------------------------------------------------------- */

/* The choice of this index of what is put together. */
static json_t *choice_of(json_t *choices, size_t index)
{
    while (json_array_size(choices) <= index)
        json_array_append_new(choices, json_pack("{s:s, s:s, s:{}}", "text", "",
                                                 "finish_reason", "", "logprobs"));
    return json_array_get(choices, index);
}

static void add_text(json_t *to, const char *text)
{
    char *joined = NULL;
    if (text == NULL) return;
    assert_true(asprintf(&joined, "%s%s", text_at(to, "text"), text) >= 0);
    json_object_set_new(to, "text", json_string(joined));
    free(joined);
}

static void add_lists(json_t *to, json_t *from)
{
    const char *name;
    json_t *list;
    json_object_foreach(from, name, list)
    {
        if (!json_is_array(list)) continue;
        if (json_object_get(to, name) == NULL) json_object_set_new(to, name, json_array());
        json_array_extend(json_object_get(to, name), list);
    }
}

/* Adds what a whole reply or a chunk says. */
static void add(json_t *told, json_t *said)
{
    static const char *const texts[] = {"text", "message.content", "delta.content"};
    json_t *choice, *usage = json_object_get(said, "usage");
    size_t i;
    if (json_object_get(said, "error") != NULL) fail_msg("%s", json_dumps(said, 0));
    json_array_foreach(json_object_get(said, "choices"), i, choice)
    {
        json_t *to =
            choice_of(json_object_get(told, "choices"), (size_t)number_at(choice, "index"));
        assert_string_equal(text_at(to, "finish_reason"), ""); /* nothing comes after it */
        for (uint32_t j = 0; j < sizeof texts / sizeof texts[0]; j++)
            add_text(to, json_string_value(json_at(choice, texts[j])));
        add_lists(json_object_get(to, "logprobs"), json_object_get(choice, "logprobs"));
        if (json_is_string(json_object_get(choice, "finish_reason")))
            json_object_set(to, "finish_reason", json_object_get(choice, "finish_reason"));
    }
    if (json_is_object(usage)) json_object_set(told, "usage", usage);
}

json_t *client_told(const client *c)
{
    json_t *told = json_pack("{s:[], s:{}}", "choices", "usage"), *said;
    size_t i;
    if (c->reply.status != 200)
        fail_msg("status %u: %s", c->reply.status, c->reply.body != NULL ? c->reply.body : "");
    if (strcasestr(c->reply.all, "content-type: text/event-stream") == NULL) {
        said = json_loadb(c->reply.body, c->reply.n, 0, NULL);
        assert_non_null(said);
        add(told, said);
        json_decref(said);
        return told;
    }
    json_t *events = http_events(&c->reply);
    size_t n = json_array_size(events);
    assert_true(n > 0);
    assert_string_equal(json_string_value(json_array_get(events, n - 1)), "[DONE]");
    json_array_foreach(events, i, said) if (i + 1 < n) add(told, said);
    json_decref(events);
    return told;
}
