/* engine/store_dense.c - requests' K and V in dense buffers: a baseline, with nothing kept or shared. */
#include "base/status.h"
#include "engine/scheduler.h"

static sheaf_status open_dense(sheaf__engine *engine, sheaf_error *err)
{
    (void)err;
    engine->max_prompt = engine->model->options.ctx_size;
    return SHEAF_OK;
}

static void expire(sheaf__engine *engine)
{
    (void)engine;
}

static int look(sheaf__engine *engine, sheaf__choice *choice, uint32_t *n)
{
    (void)engine;
    *n = choice->n_ids;
    return SHEAF__LOOK_ENTERS;
}

/* Takes back what the first n shares have reserved, and the buffers of those that would enter. */
static void undo(sheaf__engine *engine, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        sheaf__kv *kv = &engine->shares[i].choice->kv;
        sheaf_status st = sheaf__kv_commit(kv, 0, NULL);
        SHEAF__ASSERT(st == SHEAF_OK);
        (void)st;
        if (engine->shares[i].enters) sheaf__kv_destroy(kv);
    }
}

static sheaf_status reserve_one(sheaf__engine *engine, const sheaf__share *share)
{
    sheaf__kv *kv = &share->choice->kv;
    if (share->enters) SHEAF__TRY(sheaf__model_new_kv(engine->model, kv));
    sheaf_status st = sheaf__kv_extend(kv, share->n);
    if (st != SHEAF_OK && share->enters) sheaf__kv_destroy(kv);
    return st;
}

static sheaf_status reserve(sheaf__engine *engine)
{
    for (uint32_t i = 0; i < engine->n_shares; i++) {
        sheaf_status st = reserve_one(engine, &engine->shares[i]);
        if (st != SHEAF_OK) {
            undo(engine, i);
            return st;
        }
        engine->steps[i] = (sheaf_step)SHEAF_STEP_INIT;
        engine->steps[i].reserved = engine->shares[i].n;
    }
    return SHEAF_OK;
}

static bool tidy(sheaf__engine *engine)
{
    (void)engine;
    return false;
}

static void keep(sheaf__engine *engine, sheaf__choice *choice)
{
    (void)engine, (void)choice;
}

const sheaf__store sheaf__store_dense = {.open = open_dense,
                                         .expire = expire,
                                         .look = look,
                                         .reserve = reserve,
                                         .tidy = tidy,
                                         .publish = keep,
                                         .keep = keep};
