/* server/map.c - GET /slots and /v1/cache/map: looked at between two steps, on the engine's thread.
 *
 * The handler posts a job and returns; the job looks, and replies. A step waits as long as that takes,
 * and pools may have a hundred thousand rows: the map is written digit by digit, not by way of a tree.
 */
#include "server/map.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"

#define JSON_TYPE "application/json"

/* ---- requests ---------------------------------------------------------------------------- */

static const char *state_name(const sheaf__request_info *info)
{
    if (!info->admitted) return "queued";
    if (info->n_over + info->n_waiting >= info->n_choices) return "waiting"; /* preempted */
    return info->n_run < info->n_prompt ? "prefill" : "decode";
}

static json_t *slot_of(const sheaf__request_info *info, uint64_t now_ns)
{
    static const char *const endpoints[] = {"chat", "completion", "preload", "other"};
    const sheaf__served *served = info->ctx;
    uint64_t age_ms = now_ns > served->asked_ns ? (now_ns - served->asked_ns) / 1000000 : 0;
    return json_pack("{s:I,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:i,s:I}", "id",
                     (json_int_t)info->id, "request_id", served->id, "endpoint",
                     endpoints[served->endpoint], "state", state_name(info), "n_prompt",
                     (json_int_t)info->n_prompt, "cached_tokens",
                     (json_int_t)info->cached_tokens, "n_run", (json_int_t)info->n_run,
                     "n_told", (json_int_t)info->n_told, "n_choices",
                     (json_int_t)info->n_choices, "n_over", (json_int_t)info->n_over,
                     "priority", (int)info->priority, "age_ms", (json_int_t)age_ms);
}

sheaf_status sheaf__slots_render(const sheaf__request_info *infos, uint32_t n, uint64_t now_ns,
                                 sheaf__text *out)
{
    sheaf_status st = SHEAF_E_NO_MEMORY;
    char *text = NULL;
    json_t *list = json_array();
    if (list == NULL) return st;
    for (uint32_t i = 0; i < n; i++)
        if (json_array_append_new(list, slot_of(&infos[i], now_ns)) != 0) goto out;
    text = json_dumps(list, JSON_COMPACT);
    if (text != NULL) st = sheaf__text_append(out, text, strlen(text));
out:
    free(text);
    json_decref(list);
    return st;
}

/* ---- blocks ------------------------------------------------------------------------------ */

static sheaf_status put_string(sheaf__text *out, const char *text)
{
    return sheaf__text_append(out, text, strlen(text));
}

/* Writes a number so that it ends before `end`; its first digit. */
static char *write_digits(char *end, uint64_t n)
{
    do *--end = (char)('0' + n % 10);
    while ((n /= 10) != 0);
    return end;
}

/* [first, count, owner] */
static sheaf_status put_run(sheaf__text *out, uint32_t first, uint32_t count, uint64_t owner)
{
    char text[48], *end = text + sizeof text, *at = end;
    *--at = ']';
    at = write_digits(at, owner);
    *--at = ',';
    at = write_digits(at, count);
    *--at = ',';
    at = write_digits(at, first);
    *--at = '[';
    return sheaf__text_append(out, at, (uint64_t)(end - at));
}

static sheaf_status put_owners(sheaf__text *out, const sheaf__map_group *group)
{
    bool some = false;
    for (uint32_t first = 0, end; first < group->n_rows; first = end) {
        uint64_t owner = group->owners[first];
        for (end = first + 1; end < group->n_rows && group->owners[end] == owner; end++)
            continue;
        if (owner == 0) continue;
        if (some) SHEAF__TRY(sheaf__text_append(out, ",", 1));
        SHEAF__TRY(put_run(out, first, end - first, owner));
        some = true;
    }
    return SHEAF_OK;
}

static sheaf_status put_states(sheaf__text *out, const sheaf__map_group *group)
{
    static const char letters[] = "-.rkcsihtp"; /* must match SHEAF_ROW_... */
    char part[4096];
    uint32_t n = 0;
    for (uint32_t i = 0; i < group->n_rows; i++) {
        part[n++] = letters[group->rows[i].state];
        if (n < sizeof part) continue;
        SHEAF__TRY(sheaf__text_append(out, part, n));
        n = 0;
    }
    return sheaf__text_append(out, part, n);
}

static sheaf_status put_group(sheaf__text *out, uint32_t index, const sheaf__map_group *group)
{
    char head[160];
    snprintf(
        head, sizeof head,
        "%s{\"group\":%u,\"slab_blocks\":%u,\"block_bytes\":%llu,\"rows\":%u,\"states\":\"",
        index != 0 ? "," : "", index, group->slab_blocks,
        (unsigned long long)group->block_bytes, group->n_rows);
    SHEAF__TRY(put_string(out, head));
    SHEAF__TRY(put_states(out, group));
    SHEAF__TRY(put_string(out, "\",\"owners\":["));
    SHEAF__TRY(put_owners(out, group));
    return put_string(out, "]}");
}

sheaf_status sheaf__map_render(uint32_t block_tokens, const sheaf__map_group *groups,
                               uint32_t n_groups, sheaf__text *out)
{
    char head[48];
    snprintf(head, sizeof head, "{\"block_tokens\":%u,\"groups\":[", block_tokens);
    SHEAF__TRY(put_string(out, head));
    for (uint32_t g = 0; g < n_groups; g++) SHEAF__TRY(put_group(out, g, &groups[g]));
    return put_string(out, "]}");
}

/* ---- looking ----------------------------------------------------------------------------- */

static void fail(sheaf__exchange *x, sheaf_status st)
{
    sheaf__api_error e;
    if (st == SHEAF_E_UNSUPPORTED)
        sheaf__api_error_set(&e, 404, "no_pool", NULL,
                             "the dense backend has no pool of blocks to draw");
    else
        sheaf__api_error_set(&e, 503, NULL, NULL, "this cannot be looked at now: %s",
                             sheaf_status_text(st));
    sheaf__exchange_fail(x, &e);
}

/* On the engine's thread. */
typedef sheaf_status look_fn(sheaf__server *server, sheaf__engine *engine, sheaf__text *out);

typedef struct look {
    sheaf__engine_job job;
    sheaf__server *server;
    sheaf__exchange *x;
    look_fn *fn;
} look;

static void run_look(sheaf__engine *engine, sheaf__engine_job *job)
{
    look *l = SHEAF__CONTAINER(job, look, job);
    sheaf__text text = {0};
    sheaf_status st = l->fn(l->server, engine, &text);
    if (st == SHEAF_OK)
        sheaf__exchange_reply(l->x, 200, JSON_TYPE, &text);
    else
        fail(l->x, st);
    sheaf__text_free(&text);
    free(l);
}

static void post_look(sheaf__server *server, sheaf__exchange *x, look_fn *fn)
{
    if (atomic_load_explicit(&server->state, memory_order_acquire) == SHEAF__SERVER_LOADING ||
        server->engine == NULL) {
        fail(x, SHEAF_E_CANCELLED);
        return;
    }
    look *l = malloc(sizeof *l);
    if (l == NULL) {
        fail(x, SHEAF_E_NO_MEMORY);
        return;
    }
    *l = (look){.job.fn = run_look, .server = server, .x = x, .fn = fn};
    sheaf__engine_post(server->engine, &l->job);
}

static sheaf_status look_at_requests(sheaf__server *server, sheaf__engine *engine,
                                     sheaf__text *out)
{
    (void)server;
    uint32_t n = sheaf__engine_requests(engine, NULL, 0);
    sheaf__request_info *infos = calloc(n + 1u, sizeof *infos);
    if (infos == NULL) return SHEAF_E_NO_MEMORY;
    sheaf__engine_requests(engine, infos, n);
    sheaf_status st = sheaf__slots_render(infos, n, sheaf__clock_ns(), out);
    free(infos);
    return st;
}

static sheaf_status look_at_group(const sheaf_pool *pool, sheaf__engine *engine, uint32_t g,
                                  sheaf__map_group *group)
{
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    SHEAF__TRY(sheaf_pool_group_info(pool, g, &info));
    group->slab_blocks = info.slab_blocks;
    group->block_bytes = info.block_bytes;
    group->n_rows = sheaf_pool_rows(pool, g);
    if (group->n_rows == 0) return SHEAF_OK;
    group->rows = malloc(group->n_rows * sizeof *group->rows);
    group->owners = malloc(group->n_rows * sizeof *group->owners);
    if (group->rows == NULL || group->owners == NULL) return SHEAF_E_NO_MEMORY;
    return sheaf__engine_map(engine, g, 0, group->n_rows, group->rows, group->owners);
}

static sheaf_status look_at_blocks(sheaf__server *server, sheaf__engine *engine,
                                   sheaf__text *out)
{
    const sheaf_pool *pool = server->model->pool;
    if (pool == NULL) return SHEAF_E_UNSUPPORTED;
    sheaf__map_group groups[SHEAF_MAX_GROUPS] = {{0}};
    uint32_t n = sheaf_pool_groups(pool);
    sheaf_status st = SHEAF_OK;
    for (uint32_t g = 0; st == SHEAF_OK && g < n; g++)
        st = look_at_group(pool, engine, g, &groups[g]);
    if (st == SHEAF_OK) st = sheaf__map_render(sheaf_pool_block_tokens(pool), groups, n, out);
    for (uint32_t g = 0; g < n; g++) {
        free(groups[g].rows);
        free(groups[g].owners);
    }
    return st;
}

void sheaf__serve_slots(void *ctx, sheaf__exchange *x)
{
    post_look(ctx, x, look_at_requests);
}

void sheaf__serve_map(void *ctx, sheaf__exchange *x)
{
    post_look(ctx, x, look_at_blocks);
}
