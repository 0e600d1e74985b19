/* engine/scheduler.c - who has a share in a step, and what gives way where there is no room.
 *
 *     decode    a row for each that decodes. Where prompts wait for rows too, these have at least an
 *               eighth of the batch
 *     prefill   chunks of prompts, those first that have waited longest for a share: round robin
 *     enter     the oldest that wait, while fewer than `parallel` run and a whole prompt would
 *               find room beside what is left of the prompts that run (with windows: a chunk of
 *               each); nobody overtakes one that does not. Who needs blocks that another is
 *               computing holds a ticket instead, and costs nothing
 *     reserve   all of it or nothing; then something gives way, and again:
 *
 *               1 who would enter, the youngest first    4 alone: its chunk becomes one position
 *               2 chunks are halved, down to a block     5 the pool is compacted
 *               3 the youngest that runs is preempted    6 with windows: it begins again, once
 *                                                        7 it ends: the pool is too small for it
 *
 * Each of these takes something away, so it comes to an end; and nobody but the youngest is ever
 * preempted, so the oldest that runs gets on.
 */
#include "engine/scheduler.h"

#include <stdlib.h>

#include "base/status.h"
#include "sheaf/ledger.h"

#define PREFILL_SHARE 8 /* of the batch's rows, one in so many */
#define TOLD_ROWS     32 /* a step, of prompts whose log-probabilities are told: each has logits */

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- shares ------------------------------------------------------------------------------ */

static void add_share(sheaf__engine *engine, sheaf__choice *choice, uint32_t n, bool enters)
{
    SHEAF__ASSERT(engine->n_shares < engine->shares_capacity);
    engine->shares[engine->n_shares++] =
        (sheaf__share){.choice = choice, .n = n, .enters = enters};
}

/* Takes a share out. Who would have entered goes behind those that wait for rows. */
static void remove_share(sheaf__engine *engine, uint32_t index)
{
    sheaf__share share = engine->shares[index];
    engine->n_shares--;
    for (uint32_t i = index; i < engine->n_shares; i++)
        engine->shares[i] = engine->shares[i + 1];
    if (!share.enters) return;
    sheaf__engine_drop_ticket(engine, share.choice);
    share.choice->served = ++engine->turn;
}

static int compare_shares(const void *a, const void *b)
{
    const sheaf__choice *ca = ((const sheaf__share *)a)->choice;
    const sheaf__choice *cb = ((const sheaf__share *)b)->choice;
    if (ca->served != cb->served) return ca->served < cb->served ? -1 : 1;
    return sheaf__choice_order(ca, cb);
}

/* Shares from `first` on, who has waited longest first. */
static void sort_shares(sheaf__engine *engine, uint32_t first)
{
    uint32_t n = engine->n_shares - first;
    if (n > 1) qsort(engine->shares + first, n, sizeof *engine->shares, compare_shares);
}

/* All that run and have one token left to run, or all that have more. */
static void add_running(sheaf__engine *engine, bool decoding)
{
    SHEAF__FOR_REQUESTS(engine, at)
    {
        sheaf__request *request = sheaf__request_of(at);
        for (uint32_t i = 0; i < request->n_choices; i++) {
            sheaf__choice *choice = &request->choices[i];
            if (choice->state != SHEAF__CHOICE_RUNNING) continue;
            uint32_t left = sheaf__choice_left(choice);
            if ((left == 1) == decoding) add_share(engine, choice, left, false);
        }
    }
}

/* ---- entering ---------------------------------------------------------------------------- */

static bool runs(const sheaf__request *request)
{
    for (uint32_t i = 0; i < request->n_choices; i++)
        if (request->choices[i].state == SHEAF__CHOICE_RUNNING) return true;
    return false;
}

static uint32_t count_running(const sheaf__engine *engine, sheaf__choice **youngest)
{
    uint32_t n = 0;
    SHEAF__FOR_REQUESTS(engine, at)
    {
        sheaf__request *request = sheaf__request_of(at);
        for (uint32_t i = 0; i < request->n_choices; i++) {
            if (request->choices[i].state != SHEAF__CHOICE_RUNNING) continue;
            *youngest = &request->choices[i];
            n++;
        }
    }
    return n;
}

/* The waiting ones that can enter, the oldest first. Nor does a younger one get rows before an older
 * one that has been taken out of a step: it has at least the turn of that. */
static void add_entering(sheaf__engine *engine)
{
    uint64_t served = 0;
    uint32_t n_running = 0, n;
    SHEAF__FOR_REQUESTS(engine, at) n_running += runs(sheaf__request_of(at));
    SHEAF__FOR_REQUESTS(engine, at)
    {
        sheaf__request *request = sheaf__request_of(at);
        bool counted = runs(request);
        for (uint32_t i = 0; i < request->n_choices; i++) {
            sheaf__choice *choice = &request->choices[i];
            if (choice->state != SHEAF__CHOICE_WAITING) continue;
            if (!counted && n_running >= engine->options.parallel) break;
            int answer = engine->store->look(engine, choice, &n);
            if (answer == SHEAF__LOOK_NO_ROOM) return;
            if (answer == SHEAF__LOOK_WAITS) continue;
            add_share(engine, choice, n > 0 ? n : 1, true);
            if (choice->served < served) choice->served = served;
            served = choice->served;
            n_running += !counted;
            counted = true;
        }
    }
}

/* ---- rows -------------------------------------------------------------------------------- */

/* Gives the shares from `first` on as many of the rows as each may have, in their order; who gets
 * none has no share. */
static void deal_rows(sheaf__engine *engine, uint32_t first, uint32_t rows)
{
    uint32_t end = first, told = min_u32(rows, TOLD_ROWS);
    for (uint32_t i = first; i < engine->n_shares; i++) {
        sheaf__share share = engine->shares[i];
        bool tells = sheaf__choice_tells_prompt(share.choice);
        share.n = min_u32(share.n, min_u32(engine->options.prefill_chunk, tells ? told : rows));
        if (share.choice->careful)
            share.n = min_u32(share.n, engine->model->options.block_tokens);
        if (share.n == 0) {
            if (share.enters) sheaf__engine_drop_ticket(engine, share.choice);
            continue;
        }
        rows -= share.n;
        told = min_u32(rows, tells ? told - share.n : told);
        engine->shares[end++] = share;
    }
    engine->n_shares = end;
}

static void share_out(sheaf__engine *engine)
{
    uint32_t rows = engine->options.batch_tokens;
    add_running(engine, true);
    uint32_t n_decoding = engine->n_shares;
    add_running(engine, false);
    add_entering(engine);
    sort_shares(engine, n_decoding);
    uint32_t n_prefill = engine->n_shares - n_decoding;
    uint32_t kept = n_prefill == 0 ? 0 : rows / PREFILL_SHARE;
    if (n_prefill != 0 && kept == 0) kept = 1;
    if (n_decoding > rows - kept) {
        /* more than the batch takes: those that waited longest */
        qsort(engine->shares, n_decoding, sizeof *engine->shares, compare_shares);
        for (uint32_t i = n_decoding; i > rows - kept; i--) remove_share(engine, i - 1);
        n_decoding = rows - kept;
    }
    deal_rows(engine, n_decoding, rows - n_decoding);
}

/* ---- making way -------------------------------------------------------------------------- */

static void remove_share_of(sheaf__engine *engine, const sheaf__choice *choice)
{
    for (uint32_t i = engine->n_shares; i-- > 0;)
        if (engine->shares[i].choice == choice) remove_share(engine, i);
}

/* It goes back to those that wait; its whole blocks stay while nobody needs the room. */
static void preempt(sheaf__engine *engine, sheaf__choice *choice)
{
    remove_share_of(engine, choice);
    engine->store->publish(engine, choice);
    sheaf__engine_drop_ticket(engine, choice);
    sheaf__kv_destroy(&choice->kv);
    choice->state = SHEAF__CHOICE_WAITING;
    choice->served = ++engine->turn;
    engine->stats.preemptions++;
}

static bool remove_youngest_entering(sheaf__engine *engine, bool alone)
{
    uint32_t found = UINT32_MAX, n = 0;
    for (uint32_t i = 0; i < engine->n_shares; i++) {
        if (!engine->shares[i].enters) continue;
        n++;
        if (found == UINT32_MAX ||
            sheaf__choice_order(engine->shares[found].choice, engine->shares[i].choice) < 0)
            found = i;
    }
    if (n == 0 || (n == 1 && alone)) return false;
    remove_share(engine, found);
    return true;
}

/* Halves the chunks that are longer than `least`. */
static bool shrink_chunks(sheaf__engine *engine, uint32_t least)
{
    bool any = false;
    for (uint32_t i = 0; i < engine->n_shares; i++) {
        uint32_t n = engine->shares[i].n;
        if (n <= least) continue;
        engine->shares[i].n = n / 2 > least ? n / 2 : least;
        any = true;
    }
    return any;
}

/* Windows that slide over long chunks, or past blocks that the cache still has, may leave their blocks in
 * more slabs than these need, and blocks of a sequence do not move. So who is alone, and should have
 * room, begins again with care, once, where nothing but pins is left. False: that would not help. */
static bool begin_again(sheaf__engine *engine, sheaf__choice *alone)
{
    if (!engine->windows || alone->careful || alone->n_ids > engine->max_prompt) return false;
    alone->careful = true;
    if (alone->state == SHEAF__CHOICE_RUNNING) preempt(engine, alone);
    sheaf_status st = sheaf_prefix_evict(engine->prefix, UINT64_MAX, NULL);
    SHEAF__ASSERT(st == SHEAF_OK);
    (void)st;
    return true;
}

/* Something gives way to the rest, because of `why`. False: there is no rest. */
static bool make_way(sheaf__engine *engine, sheaf_status why)
{
    sheaf__choice *youngest = NULL;
    uint32_t n_running = count_running(engine, &youngest);
    if (remove_youngest_entering(engine, n_running == 0)) return engine->n_shares != 0;
    if (shrink_chunks(engine, engine->model->options.block_tokens)) return true;
    if (n_running > 1) {
        preempt(engine, youngest);
        return engine->n_shares != 0;
    }
    if (shrink_chunks(engine, 1)) return true;
    if (!engine->compacted) {
        engine->compacted = true;
        if (engine->store->tidy(engine)) return true;
    }
    sheaf__choice *alone = engine->shares[0].choice;
    if (why == SHEAF_FULL && begin_again(engine, alone)) return engine->n_shares != 0;
    remove_share(engine, 0);
    bool told_any = alone->n_ids != alone->request->n_prompt;
    if (why == SHEAF_FULL && told_any)
        sheaf__engine_end_choice(engine, alone, SHEAF__FINISH_LENGTH, SHEAF_OK);
    else
        sheaf__engine_end_choice(engine, alone, SHEAF__FINISH_ERROR, why);
    return false;
}

/* ---- reserving --------------------------------------------------------------------------- */

static void enter(sheaf__engine *engine, sheaf__choice *choice, const sheaf_step *step)
{
    sheaf__request *request = choice->request;
    choice->state = SHEAF__CHOICE_RUNNING;
    choice->published = step->match.shared;
    engine->stats.tokens_reused += step->match.cached_tokens;
    if (request->admitted) return;
    request->admitted = true;
    request->cached_tokens = step->match.cached_tokens;
    pthread_mutex_lock(&engine->mutex);
    engine->n_queued--;
    pthread_mutex_unlock(&engine->mutex);
    sheaf__engine_tell(engine, choice, (sheaf__engine_event){.kind = SHEAF__EVENT_ADMITTED});
}

void sheaf__engine_plan(sheaf__engine *engine)
{
    engine->n_shares = 0;
    engine->compacted = false;
    share_out(engine);
    if (engine->n_shares == 0) return;
    sheaf_status st = engine->store->reserve(engine);
    while (st != SHEAF_OK && make_way(engine, st)) st = engine->store->reserve(engine);
    if (st != SHEAF_OK) engine->n_shares = 0;
    for (uint32_t i = 0; i < engine->n_shares; i++) {
        sheaf__share *share = &engine->shares[i];
        share->n = engine->steps[i].reserved;
        if (share->enters) enter(engine, share->choice, &engine->steps[i]);
    }
}
