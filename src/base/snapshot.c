/* base/snapshot.c - an array of atomic words under a sequence count that is odd while the writer is
 * at work. Every word is stored with release and loaded with acquire, instead of fences: a reader
 * that sees one word of a newer store also sees its odd count, and tries again. */
#include "base/snapshot.h"

#include <string.h>

void sheaf__snapshot_store(sheaf__snapshot *snapshot, _Atomic uint64_t *words, const void *from,
                           size_t n_words)
{
    uint64_t sequence = atomic_load_explicit(&snapshot->sequence, memory_order_relaxed);
    atomic_store_explicit(&snapshot->sequence, sequence + 1, memory_order_relaxed);
    for (size_t i = 0; i < n_words; i++) {
        uint64_t word;
        memcpy(&word, (const char *)from + i * sizeof word, sizeof word);
        atomic_store_explicit(&words[i], word, memory_order_release);
    }
    atomic_store_explicit(&snapshot->sequence, sequence + 2, memory_order_release);
}

void sheaf__snapshot_load(const sheaf__snapshot *snapshot, const _Atomic uint64_t *words,
                          void *to, size_t n_words)
{
    uint64_t before, after;
    do {
        before = atomic_load_explicit(&snapshot->sequence, memory_order_acquire);
        for (size_t i = 0; i < n_words; i++) {
            uint64_t word = atomic_load_explicit(&words[i], memory_order_acquire);
            memcpy((char *)to + i * sizeof word, &word, sizeof word);
        }
        after = atomic_load_explicit(&snapshot->sequence, memory_order_relaxed);
    } while (before != after || (before & 1) != 0);
}
