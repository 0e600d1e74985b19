/* base/snapshot.h - numbers that one thread writes and any thread reads, without a lock.
 *
 *     sheaf__snapshot snapshot;                        // zeroed: a snapshot of zeros
 *     _Atomic uint64_t words[N];                       // beside it, zeroed too
 *     sheaf__snapshot_store(&snapshot, words, &stats, N);   // the writer
 *     sheaf__snapshot_load(&snapshot, words, &stats, N);    // anybody
 */
#ifndef SHEAF_BASE_SNAPSHOT_H
#define SHEAF_BASE_SNAPSHOT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

/* Odd while the writer is at work; half of it is the number of stores. */
typedef struct sheaf__snapshot {
    _Atomic uint64_t sequence;
} sheaf__snapshot;

/* Makes n_words words at `from` (any alignment) what is loaded from now on. One thread at a time. */
void sheaf__snapshot_store(sheaf__snapshot *snapshot, _Atomic uint64_t *words, const void *from,
                           size_t n_words);

/* Fills n_words words at `to` (any alignment) with what one store put there. Any thread; spins
 * while a store is under way. */
void sheaf__snapshot_load(const sheaf__snapshot *snapshot, const _Atomic uint64_t *words,
                          void *to, size_t n_words);

#endif
