/* engine/store_paged.c - requests' K and V in the pool's blocks, shared through the prefix cache. */
#include "base/status.h"
#include "engine/scheduler.h"
#include "sheaf/ledger.h"

/* A namespace in which nothing is ever published: no digest is zero. */
static const sheaf_key nowhere;

/* ---- opening ----------------------------------------------------------------------------- */

/* Whether there are the blocks that n positions need when they are run one by one: of a window those of
 * what it sees and of the next position, where that begins a block, in whole slabs: a short one is
 * committed only where the budget ends, and these come first. */
static bool fits(const sheaf_pool *pool, uint32_t n)
{
    uint32_t counts[SHEAF_MAX_GROUPS] = {0}, block = sheaf_pool_block_tokens(pool);
    for (uint32_t g = 0; g < sheaf_pool_groups(pool); g++) {
        sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
        if (sheaf_pool_group_info(pool, g, &info) != SHEAF_OK) return false;
        uint64_t all = ((uint64_t)n + block - 1) / block;
        uint64_t seen = ((uint64_t)info.window + block - 1) / block + 1;
        uint64_t n_blocks = info.window != 0 && seen < all ? seen : all;
        if (info.window != 0) n_blocks += (0 - n_blocks) % info.slab_blocks;
        counts[g] = (uint32_t)n_blocks;
    }
    return sheaf_pool_can_acquire(pool, counts) == SHEAF_OK;
}

/* The longest prompt that an empty pool has room for, at most `limit`. */
static uint32_t longest_prompt(const sheaf_pool *pool, uint32_t limit)
{
    uint32_t low = 0, high = limit;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (fits(pool, middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static sheaf_status open_paged(sheaf__engine *engine, sheaf_error *err)
{
    const sheaf__model *model = engine->model;
    const sheaf_prefix_options defaults = SHEAF_PREFIX_OPTIONS_INIT;
    const sheaf_prefix_options *o = engine->options.prefix;
    engine->max_prompt = longest_prompt(model->pool, model->options.ctx_size);
    for (uint32_t i = 0; i < model->config.n_layers; i++)
        engine->windows |= model->config.window[i] != 0;
    return sheaf_prefix_open(model->pool, o != NULL ? o : &defaults, &engine->prefix, err);
}

static void expire(sheaf__engine *engine)
{
    sheaf_status st = sheaf_prefix_expire(engine->prefix, NULL);
    SHEAF__ASSERT(st == SHEAF_OK);
    (void)st;
}

static bool tidy(sheaf__engine *engine)
{
    return sheaf_pool_compact(engine->model->pool, UINT32_MAX, NULL) >= SHEAF_OK;
}

/* ---- entering ---------------------------------------------------------------------------- */

void sheaf__engine_drop_ticket(sheaf__engine *engine, sheaf__choice *choice)
{
    if (choice->ticket == 0) return;
    sheaf_status st = sheaf_prefix_drop(engine->prefix, choice->ticket);
    SHEAF__ASSERT(st == SHEAF_OK);
    (void)st;
    choice->ticket = 0;
}

/* What a waiting choice is matched by. While its prompt is to be told, the rows for that are run, so
 * nothing of them may be found. */
static sheaf_prompt entry_prompt(const sheaf__choice *choice)
{
    sheaf_prompt prompt = sheaf__choice_prompt(choice);
    if (!sheaf__choice_tells_prompt(choice)) return prompt;
    prompt.max_match = choice->request->told_prompt - 1;
    if (prompt.max_match == 0) prompt.space = &nowhere;
    return prompt;
}

/* The step of one that would run n positions, entry `i` of the step's arrays. */
static void set_step(sheaf__engine *engine, uint32_t i, const sheaf__choice *choice, uint32_t n)
{
    bool enters = choice->state == SHEAF__CHOICE_WAITING;
    engine->prompts[i] = enters ? entry_prompt(choice) : sheaf__choice_prompt(choice);
    engine->steps[i] = (sheaf_step)SHEAF_STEP_INIT;
    engine->steps[i].n = n;
    engine->steps[i].prompt = &engine->prompts[i];
    engine->steps[i].sequence = choice->kv.sequence;
}

/* Whether all its tokens would find room now, beside all that those before it still have to run: their
 * shares have not been cut yet. Where windows let go of blocks while a prompt is run it never holds
 * all, so there a chunk of each is asked for. */
static bool has_room(sheaf__engine *engine, const sheaf__choice *choice)
{
    uint32_t n = engine->n_shares;
    if (n == 0) return true; /* nobody runs */
    for (uint32_t i = 0; i < n; i++)
        set_step(engine, i, engine->shares[i].choice, engine->shares[i].n);
    set_step(engine, n, choice, choice->n_ids);
    for (uint32_t i = 0; engine->windows && i <= n; i++)
        if (engine->steps[i].n > engine->options.prefill_chunk)
            engine->steps[i].n = engine->options.prefill_chunk;
    return sheaf_prefix_can_reserve(engine->prefix, engine->steps, n + 1, NULL) == SHEAF_OK;
}

/* Claims what the choice would compute, beyond `have` positions. True: it has to wait instead. */
static bool must_wait(sheaf__engine *engine, sheaf__choice *choice, const sheaf_prompt *prompt,
                      uint32_t have)
{
    uint32_t block = engine->model->options.block_tokens;
    if (engine->options.no_prompt_cache || sheaf__choice_tells_prompt(choice)) return false;
    if (choice->careful) return false; /* it publishes at its end alone */
    if (have / block >= prompt->n_tokens / block) return false;
    sheaf_status st = sheaf_prefix_claim(engine->prefix, prompt, have, &choice->ticket);
    return st == SHEAF_PENDING; /* without a claim it computes all the same */
}

/* Whether a waiting choice can enter, and how many positions it will have to run. */
static int look(sheaf__engine *engine, sheaf__choice *choice, uint32_t *n)
{
    sheaf_match match = SHEAF_MATCH_INIT;
    if (choice->ticket != 0) {
        if (sheaf_prefix_poll(engine->prefix, choice->ticket) == SHEAF_PENDING)
            return SHEAF__LOOK_WAITS;
        choice->ticket = 0; /* void by what the poll said */
    }
    sheaf_prompt prompt = entry_prompt(choice);
    sheaf_status st = sheaf_prefix_peek(engine->prefix, &prompt, &match);
    SHEAF__ASSERT(st == SHEAF_OK); /* the ask was checked */
    (void)st;
    if (must_wait(engine, choice, &prompt, match.shared)) return SHEAF__LOOK_WAITS;
    if (!has_room(engine, choice)) {
        sheaf__engine_drop_ticket(engine, choice);
        return SHEAF__LOOK_NO_ROOM;
    }
    *n = prompt.n_tokens - match.length;
    return SHEAF__LOOK_ENTERS;
}

/* ---- reserving --------------------------------------------------------------------------- */

static sheaf_status reserve(sheaf__engine *engine)
{
    for (uint32_t i = 0; i < engine->n_shares; i++)
        set_step(engine, i, engine->shares[i].choice, engine->shares[i].n);
    SHEAF__TRY(sheaf_prefix_reserve(engine->prefix, engine->steps, engine->n_shares, NULL));
    for (uint32_t i = 0; i < engine->n_shares; i++)
        engine->shares[i].choice->kv.sequence = engine->steps[i].sequence;
    return SHEAF_OK;
}

/* ---- publishing -------------------------------------------------------------------------- */

/* Offers whole blocks, or all with SHEAF_PUBLISH_TAIL, to the prefix cache. What it does not take is
 * computed again when it is wanted. */
static void offer(sheaf__engine *engine, sheaf__choice *choice, uint32_t flags)
{
    uint32_t block = engine->model->options.block_tokens;
    uint32_t length = sheaf__kv_length(&choice->kv);
    if (engine->options.no_prompt_cache) return;
    if (flags == 0 && (choice->careful || length / block == choice->published / block)) return;
    sheaf_prompt prompt = sheaf__choice_prompt(choice);
    if (flags == SHEAF_PUBLISH_TAIL) prompt.n_tokens = length; /* nothing comes after it */
    sheaf_status st =
        sheaf_prefix_publish(engine->prefix, &prompt, choice->kv.sequence, flags, NULL);
    SHEAF__ASSERT(st != SHEAF_E_FOREIGN && st != SHEAF_E_INVALID);
    (void)st; /* the prefix cache counts what it refuses */
    choice->published = length;
}

/* Pins what is in the prefix cache of a prompt that was published, if that can be. */
static void pin_prompt(sheaf__engine *engine, sheaf__choice *choice)
{
    sheaf__request *request = choice->request;
    sheaf_prompt prompt = sheaf__choice_prompt(choice);
    sheaf_status st =
        sheaf_prefix_pin(engine->prefix, &prompt, request->pin_owner, request->pin_flags,
                         &request->pin, &request->pinned_tokens);
    SHEAF__ASSERT(st != SHEAF_E_INVALID);
    (void)st; /* who waits for it is told by the lack of a pin */
}

static void publish(sheaf__engine *engine, sheaf__choice *choice)
{
    offer(engine, choice, 0);
}

static void keep(sheaf__engine *engine, sheaf__choice *choice)
{
    offer(engine, choice, SHEAF_PUBLISH_TAIL);
    if (choice->request->wants_pin) pin_prompt(engine, choice);
}

const sheaf__store sheaf__store_paged = {.open = open_paged,
                                         .expire = expire,
                                         .look = look,
                                         .reserve = reserve,
                                         .tidy = tidy,
                                         .publish = publish,
                                         .keep = keep};
