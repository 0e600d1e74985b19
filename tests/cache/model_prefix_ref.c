/* tests/cache/model_prefix_ref.c - the naive prefix cache of model_prefix.c; see its header. */
#include "model_prefix_ref.h"

#include <stdlib.h>
#include <string.h>

/* ---- items ------------------------------------------------------------------------------- */

static bool begins_with(const ref_item *item, uint32_t space, const int32_t *tokens, uint32_t n)
{
    return item->space == space && item->n >= n &&
           memcmp(item->tokens, tokens, n * sizeof *tokens) == 0;
}

ref_item *ref_find(ref *r, uint32_t space, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < r->n_items; i++)
        if (r->items[i].n == n && begins_with(&r->items[i], space, tokens, n))
            return &r->items[i];
    return NULL;
}

void ref_drop(ref *r, uint32_t at)
{
    r->items[at] = r->items[--r->n_items];
}

/* Pins that end with a tail keep what continues it. */
static void continue_pins(ref *r, const ref_item *old, uint32_t n, const int32_t *tokens)
{
    for (uint32_t i = 0; i < REF_PINS; i++) {
        ref_pin *pin = &r->pins[i];
        if (pin->end != old->n || !begins_with(old, pin->space, pin->tokens, pin->end))
            continue;
        pin->end = n;
        memcpy(pin->tokens, tokens, n * sizeof *tokens);
    }
}

ref_item *ref_add(ref *r, uint32_t space, const int32_t *tokens, uint32_t n)
{
    uint32_t start = (n - 1) / REF_BLOCK * REF_BLOCK;
    for (uint32_t i = r->n_items; i-- > 0;) {
        const ref_item *old = &r->items[i];
        if (old->space == space && old->n < n && ref_start(old) == start &&
            memcmp(old->tokens, tokens, old->n * sizeof *tokens) == 0) {
            continue_pins(r, old, n, tokens);
            ref_drop(r, i);
        }
    }
    if (r->n_items == REF_ITEMS) abort();
    ref_item *item = &r->items[r->n_items++];
    memset(item, 0, sizeof *item);
    item->space = space, item->n = n, item->order = REF_NO_ORDER;
    memcpy(item->tokens, tokens, n * sizeof *tokens);
    return item;
}

bool ref_is_below(const ref_item *item, const ref_item *above)
{
    return ref_whole(above) && item->n > above->n &&
           begins_with(item, above->space, above->tokens, above->n);
}

bool ref_is_leaf(const ref *r, const ref_item *item)
{
    for (uint32_t i = 0; i < r->n_items; i++)
        if (ref_is_below(&r->items[i], item)) return false;
    return true;
}

static bool resident_everywhere(const ref *r, const ref_item *item)
{
    for (uint32_t g = 0; g < r->n_groups; g++)
        if (item->blocks[g].row == SHEAF_ROW_NONE) return false;
    return true;
}

bool ref_has(const ref_item *item, uint32_t space, const int32_t *tokens, uint32_t n)
{
    return ref_start(item) == n / REF_BLOCK * REF_BLOCK && begins_with(item, space, tokens, n);
}

const ref_item *ref_holds(const ref *r, uint32_t space, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < r->n_items; i++)
        if (ref_has(&r->items[i], space, tokens, n)) return &r->items[i];
    return NULL;
}

const ref_item *ref_tail(const ref *r, uint32_t space, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < r->n_items; i++)
        if (ref_has(&r->items[i], space, tokens, n) && resident_everywhere(r, &r->items[i]))
            return &r->items[i];
    return NULL;
}

/* ---- rules ------------------------------------------------------------------------------- */

bool ref_covers(ref *r, uint32_t space, const int32_t *tokens, uint32_t length)
{
    uint32_t whole = length - length % REF_BLOCK;
    for (uint32_t end = REF_BLOCK; end <= length; end += REF_BLOCK) {
        const ref_item *item = ref_find(r, space, tokens, end);
        if (item == NULL) return false;
        for (uint32_t g = 0; g < r->n_groups; g++) {
            bool seen = r->window[g] == 0 || end + r->window[g] > whole;
            if (seen && item->blocks[g].row == SHEAF_ROW_NONE) return false;
        }
    }
    return length % REF_BLOCK == 0 || ref_tail(r, space, tokens, length) != NULL;
}

uint32_t ref_match(ref *r, uint32_t space, const int32_t *tokens, uint32_t limit, bool whole)
{
    for (uint32_t length = limit; length > 0; length--)
        if ((!whole || length % REF_BLOCK == 0) && ref_covers(r, space, tokens, length))
            return length;
    return 0;
}

uint32_t ref_match_surely(ref *r, uint32_t space, const int32_t *tokens, uint32_t limit)
{
    uint32_t path = 0, near = 0;
    while (path + REF_BLOCK <= limit && ref_find(r, space, tokens, path + REF_BLOCK) != NULL)
        path += REF_BLOCK;
    if (!ref_covers(r, space, tokens, path)) return ref_match(r, space, tokens, path, true);
    for (uint32_t n = path + 1; n <= limit && n < path + REF_BLOCK; n++)
        if (ref_holds(r, space, tokens, n) != NULL) near = n;
    for (uint32_t i = 0; i < r->n_items; i++) /* any of the best may be the one */
        if (near != 0 && ref_has(&r->items[i], space, tokens, near) &&
            !resident_everywhere(r, &r->items[i]))
            return path;
    return near != 0 ? near : path;
}

void ref_use(ref *r, uint32_t space, const int32_t *tokens, uint32_t n, uint64_t now_ns)
{
    for (uint32_t i = 0; i < r->n_items; i++) {
        ref_item *item = &r->items[i];
        if (n == 0 || !begins_with(item, space, tokens, 1)) continue;
        item->maybe_used_ns = now_ns;
        if (item->n <= n && begins_with(item, space, tokens, item->n)) item->used_ns = now_ns;
    }
}

static bool pin_keeps(const ref_pin *pin, const ref_item *item)
{
    if (!pin->given || !pin->stands || ref_start(item) >= pin->end) return false;
    if (item->n < pin->end && !ref_whole(item)) return false;
    return begins_with(item, pin->space, pin->tokens, pin->end < item->n ? pin->end : item->n);
}

bool ref_pinned(const ref *r, const ref_item *item, bool revocable_too)
{
    for (uint32_t i = 0; i < REF_PINS; i++)
        if ((revocable_too || !r->pins[i].revocable) && pin_keeps(&r->pins[i], item))
            return true;
    return false;
}

uint64_t ref_pinned_bytes(const ref *r)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->n_items; i++)
        for (uint32_t g = 0; g < r->n_groups; g++)
            if (r->items[i].blocks[g].row != SHEAF_ROW_NONE &&
                ref_pinned(r, &r->items[i], true))
                bytes += r->block_bytes[g];
    return bytes;
}

static bool may_go(const ref *r, uint32_t group, uint32_t at, const bool *spare)
{
    const ref_item *item = &r->items[at];
    if (item->blocks[group].row == SHEAF_ROW_NONE || !item->alone[group]) return false;
    if (spare[at] || item->kept) return false;
    for (uint32_t i = 0; i < r->n_items; i++)
        if (ref_is_below(&r->items[i], item) && r->items[i].kept) return false;
    return true;
}

uint32_t ref_may_go(const ref *r, uint32_t group, const bool *spare)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_items; i++) n += may_go(r, group, i, spare);
    return n;
}

/* ---- claims ------------------------------------------------------------------------------ */

uint32_t ref_common(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b)
{
    uint32_t n = 0;
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    return n / REF_BLOCK * REF_BLOCK;
}

ref_ticket *ref_covering(ref *r, uint32_t space, const int32_t *tokens, uint32_t n,
                         uint32_t from)
{
    ref_ticket *best = NULL;
    uint32_t longest = from;
    for (uint32_t i = 0; i < REF_TICKETS; i++) {
        ref_ticket *claim = &r->tickets[i];
        if (!claim->given || claim->waits_for != 0 || claim->lost || claim->space != space)
            continue;
        if (claim->from > from || claim->done > from) continue;
        uint32_t common = ref_common(claim->tokens, claim->n, tokens, n);
        if (common == from || common < longest) continue;
        if (common > longest || best == NULL || claim->id < best->id)
            best = claim, longest = common;
    }
    return best;
}

ref_ticket *ref_ticket_of(ref *r, uint64_t id)
{
    for (uint32_t i = 0; i < REF_TICKETS; i++)
        if (r->tickets[i].given && r->tickets[i].id == id) return &r->tickets[i];
    return NULL;
}
