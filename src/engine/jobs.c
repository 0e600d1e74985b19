/* engine/jobs.c - between steps: jobs are run, and what runs is looked at. */
#include <string.h>

#include "base/status.h"
#include "cache/sequence.h"
#include "engine/scheduler.h"
#include "sheaf/ledger.h"

/* ---- jobs -------------------------------------------------------------------------------- */

void sheaf__engine_post(sheaf__engine *engine, sheaf__engine_job *job)
{
    pthread_mutex_lock(&engine->mutex);
    sheaf__list_insert(&engine->jobs, &job->link);
    pthread_cond_signal(&engine->wake);
    pthread_mutex_unlock(&engine->mutex);
}

/* Takes the oldest of a list out; null: it is empty. */
static sheaf__engine_job *take_job(sheaf__list *list)
{
    if (sheaf__list_empty(list)) return NULL;
    sheaf__engine_job *job = SHEAF__CONTAINER(list->next, sheaf__engine_job, link);
    sheaf__list_remove(&job->link);
    return job;
}

bool sheaf__engine_run_jobs(sheaf__engine *engine)
{
    sheaf__list there; /* what these post comes after the next step, so that steps go on */
    sheaf__list_init(&there);
    pthread_mutex_lock(&engine->mutex);
    for (sheaf__engine_job *job; (job = take_job(&engine->jobs)) != NULL;)
        sheaf__list_insert(&there, &job->link);
    pthread_mutex_unlock(&engine->mutex);
    bool any = !sheaf__list_empty(&there);
    for (sheaf__engine_job *job; (job = take_job(&there)) != NULL;) job->fn(engine, job);
    return any;
}

/* ---- looking ----------------------------------------------------------------------------- */

static sheaf__request_info info_of(const sheaf__request *request)
{
    sheaf__request_info info = {.id = request->id,
                                .ctx = request->ctx,
                                .n_prompt = request->n_prompt,
                                .cached_tokens = request->cached_tokens,
                                .n_choices = request->n_choices,
                                .n_over = request->n_over,
                                .n_waiting = request->n_choices - request->n_over,
                                .priority = request->priority,
                                .admitted = request->admitted};
    for (uint32_t i = 0; i < request->n_choices; i++) {
        const sheaf__choice *choice = &request->choices[i];
        info.n_told += choice->n_ids - request->n_prompt;
        if (choice->state != SHEAF__CHOICE_RUNNING) continue;
        info.n_waiting--;
        if (info.n_run == 0) info.n_run = sheaf__kv_length(&choice->kv);
    }
    return info;
}

uint32_t sheaf__engine_requests(sheaf__engine *engine, sheaf__request_info *out,
                                uint32_t capacity)
{
    uint32_t n = 0;
    SHEAF__FOR_REQUESTS(engine, at)
    {
        if (n < capacity) out[n] = info_of(sheaf__request_of(at));
        n++;
    }
    return n;
}

/* Names the request as owner of the choice's rows among [first_row, first_row + n). */
static void mark_rows(const sheaf__choice *choice, uint32_t group, uint32_t first_row,
                      uint32_t n, uint64_t *owners)
{
    const sheaf__table *table = sheaf__sequence_table(choice->kv.sequence, group);
    uint64_t id = choice->request->id;
    for (uint32_t i = 0; i < table->n_blocks; i++) {
        uint32_t row = table->rows[i];
        if (row < first_row || row - first_row >= n) continue;
        uint64_t *owner = &owners[row - first_row];
        if (*owner == 0 || *owner > id) *owner = id;
    }
}

sheaf_status sheaf__engine_map(sheaf__engine *engine, uint32_t group, uint32_t first_row,
                               uint32_t n, sheaf_row *rows, uint64_t *owners)
{
    if (engine->prefix == NULL) return SHEAF_E_UNSUPPORTED;
    SHEAF__TRY(sheaf_prefix_map(engine->prefix, group, first_row, n, rows));
    if (n != 0) memset(owners, 0, n * sizeof *owners);
    SHEAF__FOR_REQUESTS(engine, at)
    {
        const sheaf__request *request = sheaf__request_of(at);
        for (uint32_t i = 0; i < request->n_choices; i++)
            if (request->choices[i].state == SHEAF__CHOICE_RUNNING)
                mark_rows(&request->choices[i], group, first_row, n, owners);
    }
    return SHEAF_OK;
}
