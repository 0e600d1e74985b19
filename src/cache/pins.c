/* cache/pins.c - what must not leave, and for whom.
 *
 * A pin names the node where what it keeps ends, and so keeps all above it too. Where that is
 * inside a node, the node is split there first: what is pinned is exact. After one owner pinned
 * "abcd efgh" and another "abcd efgh ijkl mn", of an entry "abcd efgh ijkl mn":
 *
 *     root --- [abcd efgh] --- [ijkl mn]         n_pins         1            1
 *                                                pinned_below   2            1
 *
 * A pinned node is in no list of the ledger, so nothing looks at it to evict it. With the last
 * pin below it, it comes back as used just now.
 *
 * A pin that was revoked names no node, and stays until its owner has given it up: the id
 * answers for it until then.
 */
#include <string.h>

#include "cache/prefix.h"

typedef struct pin {
    sheaf__list link; /* in cache->pins, by id */
    uint64_t id;
    uint64_t owner;
    sheaf__node *node; /* null: revoked */
    uint32_t flags;
} pin;

static pin *pin_of(sheaf__list *link)
{
    return SHEAF__CONTAINER(link, pin, link);
}

static pin *find(const sheaf_prefix *cache, uint64_t id)
{
    for (sheaf__list *link = cache->pins.next; link != &cache->pins; link = link->next)
        if (pin_of(link)->id == id) return pin_of(link);
    return NULL;
}

/* ---- what a pin keeps -------------------------------------------------------------------- */

/* All above a node, and of it blocks [0, n_blocks). */
typedef struct target {
    sheaf__node *node;
    uint32_t n_blocks;
    uint32_t length; /* positions up to there */
} target;

/* Whether the tail of a walk is all of the partial block that an entry ends with. */
static bool ends_entry(const sheaf_prefix *cache, const sheaf__walk *walk)
{
    if (walk->tail == 0) return false;
    return walk->tail_node->n_tokens - walk->tail_block * cache->block_tokens == walk->tail;
}

/* SHEAF_MISS: nothing matches. */
static sheaf_status find_target(const sheaf_prefix *cache, const sheaf_prompt *prompt,
                                target *out)
{
    uint32_t limit = prompt->n_tokens;
    if (prompt->max_match != 0 && prompt->max_match < limit) limit = prompt->max_match;
    sheaf__walk walk;
    sheaf__walk_prompt(cache, prompt->space, prompt->tokens, limit, &walk);
    if (ends_entry(cache, &walk)) {
        *out = (target){walk.tail_node, walk.tail_node->n_blocks, walk.length + walk.tail};
        return SHEAF_OK;
    }
    if (walk.length == 0) return SHEAF_MISS;
    /* The window rule may have made it shorter than the tokens in common. */
    sheaf__node *node = walk.node;
    while (node->start >= walk.length) node = node->parent;
    *out = (target){node, (walk.length - node->start) / cache->block_tokens, walk.length};
    return SHEAF_OK;
}

/* Adds the resident blocks among the first n of a node. */
static void add_resident(const sheaf_prefix *cache, const sheaf__node *node, uint32_t n,
                         uint64_t *blocks)
{
    for (uint32_t g = 0; g < cache->n_groups; g++)
        for (uint32_t b = 0; b < n; b++)
            blocks[g] += sheaf__node_place(node, g, b)->state == SHEAF__BLOCK_RESIDENT;
}

/* Bytes that are pinned once the target is too. */
static uint64_t bytes_with(const sheaf_prefix *cache, const target *t)
{
    uint64_t blocks[SHEAF_MAX_GROUPS], bytes = 0;
    memcpy(blocks, cache->pinned_blocks, sizeof blocks);
    for (const sheaf__node *node = t->node; node != NULL; node = node->parent)
        if (node->pinned_below == 0)
            add_resident(cache, node, node == t->node ? t->n_blocks : node->n_blocks, blocks);
    for (uint32_t g = 0; g < cache->n_groups; g++)
        bytes += blocks[g] * sheaf__pool_layout(cache->pool)->groups[g].block_bytes;
    return bytes;
}

/* ---- holding and letting go -------------------------------------------------------------- */

static bool firm(const pin *p)
{
    return (p->flags & SHEAF_PIN_REVOCABLE) == 0;
}

/* The pin names nothing any more. */
static void let_go(sheaf_prefix *cache, pin *p)
{
    sheaf__node *node = p->node;
    p->node = NULL;
    cache->stats.pins--;
    sheaf__ledger_unpin(cache, node, firm(p));
}

static void revoke(sheaf_prefix *cache, pin *p)
{
    let_go(cache, p);
    cache->stats.pins_revoked++;
}

static void forget(sheaf_prefix *cache, pin *p)
{
    if (p->node != NULL) let_go(cache, p);
    sheaf__list_remove(&p->link);
    sheaf__memory_free(sheaf__pool_memory(cache->pool), p, 1, sizeof *p);
}

static bool revocable(const pin *p)
{
    return p->node != NULL && !firm(p);
}

bool sheaf__pins_revoke_oldest(sheaf_prefix *cache)
{
    for (sheaf__list *link = cache->pins.next; link != &cache->pins; link = link->next) {
        if (!revocable(pin_of(link))) continue;
        revoke(cache, pin_of(link));
        return true;
    }
    return false;
}

/* Whether a node is in a namespace; null: any. */
static bool in_space(const sheaf__node *node, const sheaf_key *space)
{
    if (space == NULL) return true;
    while (node->parent != NULL) node = node->parent;
    return memcmp(&node->before, space, sizeof *space) == 0;
}

void sheaf__pins_revoke_space(sheaf_prefix *cache, const sheaf_key *space)
{
    for (sheaf__list *link = cache->pins.next; link != &cache->pins; link = link->next)
        if (revocable(pin_of(link)) && in_space(pin_of(link)->node, space))
            revoke(cache, pin_of(link));
}

/* Whether a pin before this one names the same node. */
static bool named_before(const sheaf_prefix *cache, const pin *p)
{
    if (p->node->n_pins == 1) return false;
    for (sheaf__list *link = cache->pins.next; link != &p->link; link = link->next)
        if (pin_of(link)->node == p->node) return true;
    return false;
}

void sheaf__pins_visit(const sheaf_prefix *cache,
                       void (*fn)(void *ctx, const sheaf__node *node), void *ctx)
{
    for (sheaf__list *link = cache->pins.next; link != &cache->pins; link = link->next) {
        const pin *p = pin_of(link);
        if (p->node != NULL && !named_before(cache, p)) fn(ctx, p->node);
    }
}

void sheaf__pins_close(sheaf_prefix *cache)
{
    while (!sheaf__list_empty(&cache->pins)) forget(cache, pin_of(cache->pins.next));
}

/* ---- calls ------------------------------------------------------------------------------- */

/* Makes the target end where a node does. SHEAF_E_NO_MEMORY: nothing has changed. */
static sheaf_status cut_out(sheaf_prefix *cache, target *t)
{
    if (t->n_blocks == t->node->n_blocks) return SHEAF_OK;
    return sheaf__tree_split(cache, t->node, t->n_blocks, &t->node);
}

static sheaf_status make_pin(sheaf_prefix *cache, target *t, uint64_t owner, uint32_t flags,
                             uint64_t *id)
{
    uint64_t bytes = bytes_with(cache, t), capacity = cache->limits.capacity_bytes;
    if (bytes > capacity)
        return sheaf__ledger_refuse(cache, SHEAF_REFUSED_PINS, bytes, capacity, t->length);
    sheaf__memory *memory = sheaf__pool_memory(cache->pool);
    pin *p = sheaf__memory_alloc(memory, 1, sizeof *p);
    if (p == NULL) return SHEAF_E_NO_MEMORY;
    sheaf_status st = cut_out(cache, t);
    if (st != SHEAF_OK) {
        sheaf__memory_free(memory, p, 1, sizeof *p);
        return st;
    }
    p->id = cache->next_id++;
    p->owner = owner;
    p->node = t->node;
    p->flags = flags;
    sheaf__list_insert(&cache->pins, &p->link);
    cache->stats.pins++;
    sheaf__ledger_pin(cache, p->node, firm(p));
    *id = p->id;
    return SHEAF_OK;
}

sheaf_status sheaf_prefix_pin(sheaf_prefix *cache, const sheaf_prompt *prompt, uint64_t owner,
                              uint32_t flags, uint64_t *pin_out, uint32_t *length)
{
    if (cache == NULL || prompt == NULL || pin_out == NULL) return SHEAF_E_INVALID;
    if ((flags & ~(uint32_t)SHEAF_PIN_REVOCABLE) != 0) return SHEAF_E_INVALID;
    SHEAF__TRY(sheaf__prompt_check(prompt));
    sheaf__prefix_enter(cache);
    target t;
    sheaf_status st = find_target(cache, prompt, &t);
    if (st == SHEAF_OK) st = make_pin(cache, &t, owner, flags, pin_out);
    if (st == SHEAF_OK && length != NULL) *length = t.length;
    sheaf__prefix_leave(cache);
    return st;
}

sheaf_status sheaf_prefix_pinned(const sheaf_prefix *cache, uint64_t id)
{
    if (cache == NULL) return SHEAF_E_INVALID;
    const pin *p = find(cache, id);
    if (p == NULL) return SHEAF_E_STALE;
    return p->node != NULL ? SHEAF_OK : SHEAF_MISS;
}

sheaf_status sheaf_prefix_unpin(sheaf_prefix *cache, uint64_t id)
{
    if (cache == NULL) return SHEAF_E_INVALID;
    pin *p = find(cache, id);
    if (p == NULL) return SHEAF_E_STALE;
    sheaf__prefix_enter(cache);
    forget(cache, p);
    sheaf__prefix_leave(cache);
    return SHEAF_OK;
}

sheaf_status sheaf_prefix_unpin_owner(sheaf_prefix *cache, uint64_t owner, uint32_t *n)
{
    if (cache == NULL || n == NULL) return SHEAF_E_INVALID;
    sheaf__prefix_enter(cache);
    uint32_t gone = 0;
    for (sheaf__list *link = cache->pins.next, *next; link != &cache->pins; link = next) {
        next = link->next;
        if (pin_of(link)->owner != owner) continue;
        forget(cache, pin_of(link));
        gone++;
    }
    sheaf__prefix_leave(cache);
    *n = gone;
    return SHEAF_OK;
}

uint32_t sheaf__pins_forget(sheaf_prefix *cache, const sheaf_key *space)
{
    uint32_t gone = 0;
    sheaf__prefix_enter(cache);
    for (sheaf__list *link = cache->pins.next, *next; link != &cache->pins; link = next) {
        next = link->next;
        const pin *p = pin_of(link);
        if (p->node != NULL && !in_space(p->node, space)) continue;
        forget(cache, pin_of(link));
        gone++;
    }
    sheaf__prefix_leave(cache);
    return gone;
}

/* ---- invariant 7, as far as pins know ---------------------------------------------------- */

static uint32_t pins_of(const sheaf_prefix *cache, const sheaf__node *node)
{
    uint32_t n = 0;
    for (sheaf__list *link = cache->pins.next; link != &cache->pins; link = link->next)
        n += pin_of(link)->node == node;
    return n;
}

sheaf_status sheaf__pins_check(const sheaf_prefix *cache, sheaf_error *err)
{
    uint64_t standing = 0;
    for (sheaf__list *link = cache->pins.next; link != &cache->pins; link = link->next) {
        const pin *p = pin_of(link);
        if (p->node == NULL) continue;
        standing++;
        if (pins_of(cache, p->node) != p->node->n_pins)
            return sheaf__error_set(
                err, SHEAF_E_CORRUPT,
                "prefix invariant 7: a node's pins are miscounted, pin %llu",
                (unsigned long long)p->id);
    }
    if (standing != cache->stats.pins)
        return sheaf__error_set(err, SHEAF_E_CORRUPT,
                                "prefix invariant 7: %llu pins stand, not as counted",
                                (unsigned long long)standing);
    return SHEAF_OK;
}
