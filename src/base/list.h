/* base/list.h - an intrusive, circular, doubly linked list. A list is a node; an empty one points
 * to itself. */
#ifndef SHEAF_BASE_LIST_H
#define SHEAF_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct sheaf__list {
    struct sheaf__list *prev, *next;
} sheaf__list;

#define SHEAF__CONTAINER(node, type, member)                                                   \
    ((type *)(void *)((char *)(node)-offsetof(type, member)))

static inline void sheaf__list_init(sheaf__list *list)
{
    list->prev = list->next = list;
}

static inline bool sheaf__list_empty(const sheaf__list *list)
{
    return list->next == list;
}

/* Puts `node` before `at`: at the end of the list when `at` is the list itself. */
static inline void sheaf__list_insert(sheaf__list *at, sheaf__list *node)
{
    node->prev = at->prev;
    node->next = at;
    at->prev->next = node;
    at->prev = node;
}

/* Takes `node` out and leaves it empty; harmless when it is in no list but initialised. */
static inline void sheaf__list_remove(sheaf__list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    sheaf__list_init(node);
}

#endif
