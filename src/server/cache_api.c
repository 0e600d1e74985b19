/* server/cache_api.c - the prompt cache from outside: filled beforehand, emptied.
 *
 * A preload is a request of the engine without an answer (answer.h). A reset is a job between two of the
 * engine's steps, where the prefix cache may be used; it replies from there.
 */
#include <stdlib.h>
#include <string.h>

#include "cache/prefix.h"
#include "server/answer.h"
#include "sheaf/ledger.h"

static bool has_cache(const sheaf__server *server, sheaf__api_error *error)
{
    if (sheaf__engine_prefix(server->engine) == NULL)
        return sheaf__api_error_set(error, 400, "no_prompt_cache", NULL,
                                    "there is no prompt cache with the dense backend");
    if (server->options.engine.no_prompt_cache)
        return sheaf__api_error_set(error, 400, "no_prompt_cache", NULL,
                                    "this server keeps no prompt cache");
    return true;
}

void sheaf__serve_preload(void *ctx, sheaf__exchange *x)
{
    sheaf__server *server = ctx;
    uint64_t n;
    const char *body = sheaf__exchange_body(x, &n);
    const sheaf__api_limits limits = sheaf__server_limits(server);
    sheaf__completion c = {0};
    sheaf__api_error error = {0};
    if (has_cache(server, &error) && sheaf__api_read_preload(body, n, &limits, &c, &error))
        sheaf__reply_start(server, x, &c, SHEAF__ENDPOINT_PRELOAD);
    else
        sheaf__exchange_fail(x, &error);
}

/* ---- reset ------------------------------------------------------------------------------- */

typedef struct reset_job {
    sheaf__engine_job job; /* the first */
    sheaf__exchange *exchange;
    bool by_space, unpin;
    sheaf_key space;
    uint64_t session; /* 0: by space, or all */
} reset_job;

/* Between two steps. */
static void reset(sheaf__engine *engine, sheaf__engine_job *job)
{
    reset_job *r = (reset_job *)job;
    sheaf_prefix *cache = sheaf__engine_prefix(engine);
    const sheaf_key *space = r->by_space ? &r->space : NULL;
    uint32_t n_entries = 0, n_pins = 0;
    if (r->unpin) n_pins = sheaf__pins_forget(cache, space);
    sheaf_status st = r->session != 0
                          ? sheaf_prefix_release_session(cache, r->session, &n_entries)
                          : sheaf_prefix_reset(cache, space, &n_entries);
    if (st == SHEAF_OK) {
        sheaf__exchange_reply_json(
            r->exchange, json_pack("{s:s,s:I,s:I}", "object", "cache.reset", "entries",
                                   (json_int_t)n_entries, "unpinned", (json_int_t)n_pins));
    } else {
        sheaf__api_error error;
        sheaf__api_error_set(&error, 500, NULL, NULL, "the prompt cache was not reset: %s",
                             sheaf_status_text(st));
        sheaf__exchange_fail(r->exchange, &error);
    }
    free(r);
}

static bool make_job(const sheaf__server *server, sheaf__exchange *x,
                     const sheaf__cache_reset *asked, reset_job **out, sheaf__api_error *error)
{
    reset_job *r = calloc(1, sizeof *r);
    if (r == NULL)
        return sheaf__api_error_set(error, 500, "out_of_memory", NULL,
                                    "no memory for the request");
    *r = (reset_job){.job.fn = reset,
                     .exchange = x,
                     .by_space = asked->cache_salt != NULL,
                     .unpin = asked->unpin,
                     .session = asked->session};
    sheaf_status st = SHEAF_OK;
    if (r->by_space)
        st = sheaf__identity_space(server->model->pool, &server->options.identity,
                                   asked->cache_salt, strlen(asked->cache_salt), &r->space);
    if (st == SHEAF_OK) {
        *out = r;
        return true;
    }
    free(r);
    return sheaf__api_error_set(error, 500, NULL, "cache_salt",
                                "the salt's namespace cannot be named: %s",
                                sheaf_status_text(st));
}

void sheaf__serve_reset(void *ctx, sheaf__exchange *x)
{
    sheaf__server *server = ctx;
    uint64_t n;
    const char *body = sheaf__exchange_body(x, &n);
    sheaf__cache_reset asked = {0};
    sheaf__api_error error = {0};
    reset_job *r = NULL;
    bool good = has_cache(server, &error) && sheaf__api_read_reset(body, n, &asked, &error) &&
                make_job(server, x, &asked, &r, &error);
    sheaf__cache_reset_free(&asked);
    if (good)
        sheaf__engine_post(server->engine, &r->job);
    else
        sheaf__exchange_fail(x, &error);
}
