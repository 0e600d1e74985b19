/* cache/claims.c - nobody computes what another is computing.
 *
 * A claim says that the holder of its ticket is computing these whole blocks. It stands beside
 * the tree, not in it, so nothing unfilled can ever be found; all it does is make others wait
 * who would compute the same. Who waits has a ticket too, naming the claim and where what is
 * common ends:
 *
 *     claim 7       [abcd efgh ijkl mnop]    published up to 4, now computing "efgh"
 *     ticket 9      [abcd efgh ijkl stuv]    waits for 7 up to 12
 *
 *     a claim       STANDS --stalled, reset, refused--> LOST --poll, drop--> gone
 *                      +--------drop----------------------------------------> gone
 *     who waits     WAITS --published up to the end, or the claim is lost or gone--> READY
 *                      +--drop--> gone               READY --poll, drop--> gone
 *
 * A claim whose blocks are all published stands until it is dropped, and nobody waits for it.
 * One that has stalled is found out when somebody asks: by a poll of it or of who waits for it,
 * or by who would have to wait.
 */
#include <string.h>

#include "cache/prefix.h"

enum { STANDS, LOST, WAITS, READY };

typedef struct ticket ticket;
struct ticket {
    sheaf__list link;     /* in cache->claims, by id */
    sheaf__sibling by_id; /* in cache->tickets */
    int32_t name[2];      /* the id, as what is found by it there */
    uint64_t id;
    uint32_t state;
    uint32_t end;       /* of WAITS: a position */
    ticket *for_claim;  /* of WAITS */
    sheaf_key space;    /* of a claim, as what follows */
    int32_t *tokens;    /* [n_tokens]; null when n_tokens is 0, or it is lost */
    uint32_t n_tokens;  /* of whole blocks */
    uint32_t published; /* a position; from where the claim began */
    uint64_t progress_ns;
};

#define FOR_TICKETS(cache, t)                                                                  \
    for (sheaf__list *t = (cache)->claims.next; t != &(cache)->claims; t = t->next)

static ticket *ticket_of(sheaf__list *link)
{
    return SHEAF__CONTAINER(link, ticket, link);
}

static uint32_t whole_blocks(const sheaf_prefix *cache, uint32_t n_tokens)
{
    return n_tokens / cache->block_tokens * cache->block_tokens;
}

/* ---- tickets ----------------------------------------------------------------------------- */

static ticket *find(const sheaf_prefix *cache, uint64_t id)
{
    int32_t name[2];
    uint32_t common;
    memcpy(name, &id, sizeof name);
    sheaf__sibling *nearest = sheaf__siblings_nearest(&cache->tickets, name, 2, &common);
    return common == 2 ? SHEAF__CONTAINER(nearest, ticket, by_id) : NULL;
}

static void free_tokens(sheaf_prefix *cache, ticket *claim)
{
    sheaf__memory_free(sheaf__pool_memory(cache->pool), claim->tokens, claim->n_tokens,
                       sizeof *claim->tokens);
    claim->tokens = NULL;
    claim->n_tokens = 0;
}

/* Enters a new ticket, last in the list. Null: no memory. */
static ticket *enlist(sheaf_prefix *cache, uint32_t state)
{
    uint32_t n_twigs = sheaf__siblings_need(&cache->tickets);
    if (sheaf__twigs_reserve(&cache->twigs, n_twigs) != SHEAF_OK) return NULL;
    ticket *t = sheaf__memory_alloc(sheaf__pool_memory(cache->pool), 1, sizeof *t);
    if (t == NULL) return NULL;
    t->id = cache->next_id++;
    t->state = state;
    sheaf__list_insert(&cache->claims, &t->link);
    memcpy(t->name, &t->id, sizeof t->name);
    t->by_id.tokens = t->name, t->by_id.n = 2;
    sheaf__siblings_insert(&cache->tickets, &cache->twigs, &t->by_id);
    cache->stats.claims += state == STANDS;
    cache->stats.waiters += state == WAITS;
    return t;
}

/* Takes a ticket off the list; nobody waits for it. */
static void forget(sheaf_prefix *cache, ticket *t)
{
    cache->stats.claims -= t->state == STANDS;
    cache->stats.waiters -= t->state == WAITS;
    sheaf__list_remove(&t->link);
    sheaf__siblings_remove(&cache->tickets, &cache->twigs, &t->by_id);
    free_tokens(cache, t);
    sheaf__memory_free(sheaf__pool_memory(cache->pool), t, 1, sizeof *t);
}

/* Who waits for this claim up to at most `end` waits no longer. True: somebody did. */
static bool wake(sheaf_prefix *cache, const ticket *claim, uint32_t end)
{
    bool any = false;
    if (cache->stats.waiters == 0) return false;
    FOR_TICKETS(cache, link)
    {
        ticket *t = ticket_of(link);
        if (t->state != WAITS || t->for_claim != claim || t->end > end) continue;
        t->state = READY;
        t->for_claim = NULL;
        cache->stats.waiters--;
        any = true;
    }
    return any;
}

/* The claim counts no longer; its holder is told when it asks. True: somebody waited. */
static bool lose(sheaf_prefix *cache, ticket *claim)
{
    bool waited = wake(cache, claim, UINT32_MAX);
    claim->state = LOST;
    free_tokens(cache, claim);
    cache->stats.claims--;
    return waited;
}

static bool stalled(const sheaf_prefix *cache, const ticket *claim)
{
    if (claim->published >= claim->n_tokens) return false;
    return sheaf__prefix_now(cache) - claim->progress_ns >= cache->claim_timeout_ns;
}

/* ---- claiming ---------------------------------------------------------------------------- */

/* Positions in whole blocks that the prompt has in common with a claim. */
static uint32_t common(const sheaf_prefix *cache, const ticket *claim,
                       const sheaf_prompt *prompt)
{
    uint32_t n = claim->n_tokens < prompt->n_tokens ? claim->n_tokens : prompt->n_tokens;
    return whole_blocks(cache, sheaf__tokens_common(claim->tokens, prompt->tokens, n));
}

/* The claim that covers the block at `have` for longest, and to where; null: none does. Stalled
 * ones that would are lost. */
static ticket *covering(sheaf_prefix *cache, const sheaf_prompt *prompt, uint32_t have,
                        uint32_t *end)
{
    ticket *best = NULL;
    *end = have;
    FOR_TICKETS(cache, link)
    {
        ticket *claim = ticket_of(link);
        if (claim->state != STANDS || claim->published > have || claim->n_tokens <= have)
            continue;
        if (memcmp(&claim->space, prompt->space, sizeof claim->space) != 0) continue;
        uint32_t shared = common(cache, claim, prompt);
        if (shared <= *end) continue;
        if (stalled(cache, claim)) {
            lose(cache, claim);
            cache->stats.takeovers++;
            continue;
        }
        best = claim;
        *end = shared;
    }
    return best;
}

static sheaf_status wait_for(sheaf_prefix *cache, ticket *claim, uint32_t end, uint64_t *id)
{
    ticket *t = enlist(cache, WAITS);
    if (t == NULL) return SHEAF_E_NO_MEMORY;
    t->for_claim = claim;
    t->end = end;
    cache->stats.waits++;
    *id = t->id;
    return SHEAF_PENDING;
}

static sheaf_status stake(sheaf_prefix *cache, const sheaf_prompt *prompt, uint32_t have,
                          uint64_t *id)
{
    ticket *claim = enlist(cache, STANDS);
    if (claim == NULL) return SHEAF_E_NO_MEMORY;
    uint32_t n = whole_blocks(cache, prompt->n_tokens);
    if (n != 0) {
        sheaf__memory *memory = sheaf__pool_memory(cache->pool);
        claim->tokens = sheaf__memory_alloc(memory, n, sizeof *claim->tokens);
        if (claim->tokens == NULL) {
            forget(cache, claim);
            return SHEAF_E_NO_MEMORY;
        }
        memcpy(claim->tokens, prompt->tokens, n * sizeof *claim->tokens);
    }
    claim->n_tokens = n;
    claim->space = *prompt->space;
    claim->published = whole_blocks(cache, have);
    claim->progress_ns = sheaf__prefix_now(cache);
    *id = claim->id;
    return SHEAF_OK;
}

sheaf_status sheaf_prefix_claim(sheaf_prefix *cache, const sheaf_prompt *prompt, uint32_t have,
                                uint64_t *ticket_out)
{
    if (cache == NULL || prompt == NULL || ticket_out == NULL) return SHEAF_E_INVALID;
    SHEAF__TRY(sheaf__prompt_check(prompt));
    if (have > prompt->n_tokens) return SHEAF_E_INVALID;
    sheaf__prefix_enter(cache);
    uint32_t end;
    ticket *other = covering(cache, prompt, have, &end);
    sheaf_status st = other != NULL ? wait_for(cache, other, end, ticket_out)
                                    : stake(cache, prompt, have, ticket_out);
    sheaf__prefix_leave(cache);
    return st;
}

void sheaf__claims_progress(sheaf_prefix *cache, uint64_t id, uint32_t end)
{
    ticket *claim = id != 0 ? find(cache, id) : NULL;
    if (claim == NULL || claim->state != STANDS || end <= claim->published) return;
    end = whole_blocks(cache, end);
    if (end <= claim->published) return;
    claim->published = end;
    claim->progress_ns = sheaf__prefix_now(cache);
    wake(cache, claim, end);
}

void sheaf__claims_refused(sheaf_prefix *cache, uint64_t id)
{
    ticket *claim = id != 0 ? find(cache, id) : NULL;
    if (claim != NULL && claim->state == STANDS) cache->stats.takeovers += lose(cache, claim);
}

/* ---- asking and leaving ------------------------------------------------------------------ */

/* What the ticket has come to, and whether it is void with that. */
static sheaf_status answer(sheaf_prefix *cache, ticket *t, bool *is_void)
{
    ticket *claim = t->state == WAITS ? t->for_claim : t;
    if (claim->state == STANDS && stalled(cache, claim))
        cache->stats.takeovers += lose(cache, claim);
    *is_void = t->state == READY || t->state == LOST;
    if (t->state == WAITS) return SHEAF_PENDING;
    return t->state == LOST ? SHEAF_MISS : SHEAF_OK;
}

sheaf_status sheaf_prefix_poll(sheaf_prefix *cache, uint64_t id)
{
    if (cache == NULL) return SHEAF_E_INVALID;
    ticket *t = find(cache, id);
    if (t == NULL) return SHEAF_E_STALE;
    sheaf__prefix_enter(cache);
    bool is_void;
    sheaf_status st = answer(cache, t, &is_void);
    if (is_void) forget(cache, t);
    sheaf__prefix_leave(cache);
    return st;
}

sheaf_status sheaf_prefix_drop(sheaf_prefix *cache, uint64_t id)
{
    if (cache == NULL) return SHEAF_E_INVALID;
    ticket *t = find(cache, id);
    if (t == NULL) return SHEAF_E_STALE;
    sheaf__prefix_enter(cache);
    if (t->state == STANDS) cache->stats.takeovers += lose(cache, t);
    forget(cache, t);
    sheaf__prefix_leave(cache);
    return SHEAF_OK;
}

void sheaf__claims_reset(sheaf_prefix *cache, const sheaf_key *space)
{
    FOR_TICKETS(cache, link)
    {
        ticket *claim = ticket_of(link);
        if (claim->state != STANDS) continue;
        if (space == NULL || memcmp(&claim->space, space, sizeof *space) == 0)
            lose(cache, claim);
    }
}

void sheaf__claims_close(sheaf_prefix *cache)
{
    while (!sheaf__list_empty(&cache->claims)) forget(cache, ticket_of(cache->claims.next));
}

/* ---- invariant 9 ------------------------------------------------------------------------- */

static sheaf_status broken(sheaf_error *err, const char *what, uint64_t id)
{
    return sheaf__error_set(err, SHEAF_E_CORRUPT, "prefix invariant 9: %s %llu", what,
                            (unsigned long long)id);
}

sheaf_status sheaf__claims_check(const sheaf_prefix *cache, sheaf_error *err)
{
    uint64_t claims = 0, waiters = 0, before = 0, n = 0;
    FOR_TICKETS(cache, link)
    {
        const ticket *t = ticket_of(link);
        if (t->id <= before || t->id >= cache->next_id)
            return broken(err, "ids are not in order at ticket", t->id);
        before = t->id;
        n++;
        if (find(cache, t->id) != t)
            return broken(err, "is not found by its id: ticket", t->id);
        claims += t->state == STANDS;
        waiters += t->state == WAITS;
        if (t->state != WAITS) continue;
        if (t->for_claim->state != STANDS || t->for_claim->published >= t->end)
            return broken(err, "waits for nothing: ticket", t->id);
    }
    if (n != cache->tickets.count) return broken(err, "ids of what has gone; tickets", n);
    if (claims != cache->stats.claims || waiters != cache->stats.waiters)
        return broken(err, "tickets are miscounted; claims", claims);
    return SHEAF_OK;
}
