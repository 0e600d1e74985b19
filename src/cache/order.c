/* cache/order.c - who leaves first: levels, and lists by last use.
 *
 * Touching a node puts it at the end of its list, then its parent, then its parent's parent, each with
 * the next number of use; so a list is in the order of these numbers, and a parent comes after its
 * children where they share one. Only splitting gives a number twice: to the upper part, which comes
 * right after the lower.
 *
 * Where a node comes when its level falls is looked for, from both ends. Who takes many out at once lets
 * all that fall wait, and sorts them in with one pass over each list.
 */
#include "cache/tree.h"

static uint32_t level_of(const sheaf__node *node)
{
    uint32_t own = sheaf__level_of_priority(node->priority);
    for (uint32_t level = SHEAF__LEVELS - 1; level > own; level--)
        if (node->child_levels[level] != 0) return level;
    return own;
}

static sheaf__node *of_use(sheaf__list *use)
{
    return SHEAF__CONTAINER(use, sheaf__node, use);
}

/* Looks from both ends at once: what was used lately and what was not for long are found fast. */
void sheaf__order_place(sheaf_prefix *cache, sheaf__node *node)
{
    sheaf__list_remove(&node->use);
    node->ahead = 0;
    if (node->pinned_below != 0 || node->parent == NULL) return;
    sheaf__list *list = &cache->levels[node->level], *front = list->next, *back = list->prev;
    for (;;) {
        if (back == list || of_use(back)->use_order <= node->use_order) {
            sheaf__list_insert(back->next, &node->use);
            return;
        }
        if (of_use(front)->use_order > node->use_order) {
            sheaf__list_insert(front, &node->use);
            return;
        }
        front = front->next;
        back = back->prev;
    }
}

/* ---- falling together -------------------------------------------------------------------- */

static void let_wait(sheaf_prefix *cache, sheaf__node *node)
{
    sheaf__list_remove(&node->use);
    node->ahead = 0;
    if (node->pinned_below == 0 && node->parent != NULL)
        sheaf__list_insert(&cache->fallen[node->level], &node->use);
}

/* Moves all of `from` into `into`, both in order: after those of the same number. */
static void merge(sheaf__list *into, sheaf__list *from)
{
    sheaf__list *at = into->next;
    while (!sheaf__list_empty(from)) {
        sheaf__list *first = from->next;
        while (at != into && of_use(at)->use_order <= of_use(first)->use_order) at = at->next;
        sheaf__list_remove(first);
        sheaf__list_insert(at, first);
    }
}

/* Merge sort: runs[i] is empty or has 2^i nodes, which came before those of the runs below it. */
static void sort(sheaf__list *list)
{
    sheaf__list runs[64], run;
    uint32_t n = 0;
    sheaf__list_init(&run);
    while (!sheaf__list_empty(list)) {
        sheaf__list *first = list->next;
        sheaf__list_remove(first);
        sheaf__list_insert(&run, first);
        uint32_t i = 0;
        for (; i < n && !sheaf__list_empty(&runs[i]); i++) {
            merge(&runs[i], &run);
            merge(&run, &runs[i]);
        }
        if (i == n) sheaf__list_init(&runs[n++]);
        merge(&runs[i], &run);
    }
    for (uint32_t i = 0; i < n; i++) {
        merge(&runs[i], list);
        merge(list, &runs[i]);
    }
}

void sheaf__order_fall_begin(sheaf_prefix *cache)
{
    for (uint32_t i = 0; i < SHEAF__LEVELS; i++) sheaf__list_init(&cache->fallen[i]);
    cache->falling = true;
}

void sheaf__order_fall_end(sheaf_prefix *cache)
{
    cache->falling = false;
    for (uint32_t i = 0; i < SHEAF__LEVELS; i++) {
        if (sheaf__list_empty(&cache->fallen[i])) continue;
        sort(&cache->fallen[i]);
        merge(&cache->levels[i], &cache->fallen[i]);
    }
}

/* ---- levels ------------------------------------------------------------------------------ */

void sheaf__order_relevel(sheaf_prefix *cache, sheaf__node *node)
{
    for (; node != NULL; node = node->parent) {
        uint32_t before = node->level;
        node->level = (uint16_t)level_of(node);
        if (node->level == before) return;
        if (cache->falling)
            let_wait(cache, node);
        else
            sheaf__order_place(cache, node);
        if (node->parent == NULL) return;
        node->parent->child_levels[before]--;
        node->parent->child_levels[node->level]++;
    }
}

void sheaf__order_gain(sheaf_prefix *cache, sheaf__node *parent, const sheaf__node *child)
{
    if (parent->child_levels[child->level]++ == 0) sheaf__order_relevel(cache, parent);
}

void sheaf__order_lose(sheaf_prefix *cache, sheaf__node *parent, const sheaf__node *child)
{
    if (--parent->child_levels[child->level] == 0) sheaf__order_relevel(cache, parent);
}

sheaf__node *sheaf__order_first(const sheaf_prefix *cache)
{
    for (uint32_t level = 0; level < SHEAF__LEVELS; level++)
        if (!sheaf__list_empty(&cache->levels[level])) {
            sheaf__node *first = of_use(cache->levels[level].next);
            SHEAF__ASSERT(sheaf__node_is_leaf(first));
            return first;
        }
    return NULL;
}

/* Tells the node that comes SHEAF__AHEAD before the last one of it: who goes through the list wants that
 * one soon, and would learn of it late, since each line of memory names only the next. */
static void leave_hint(const sheaf__list *list)
{
    sheaf__list *use = list->prev;
    for (uint32_t i = 0; i < SHEAF__AHEAD; i++) {
        use = use->prev;
        if (use == list) return;
    }
    of_use(use)->ahead = (uintptr_t)of_use(list->prev);
}

void sheaf__ledger_touch(sheaf_prefix *cache, sheaf__node *node)
{
    uint64_t now = sheaf__prefix_now(cache);
    for (; node != NULL && node->parent != NULL; node = node->parent) {
        node->last_use_ns = now;
        node->use_order = ++cache->n_uses;
        node->ahead = 0;
        sheaf__list_remove(&node->use);
        if (node->pinned_below != 0) continue;
        sheaf__list_insert(&cache->levels[node->level], &node->use);
        leave_hint(&cache->levels[node->level]);
    }
}
