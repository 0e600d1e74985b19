/* base/copy.h - copying what is not read again soon. */
#ifndef SHEAF_BASE_COPY_H
#define SHEAF_BASE_COPY_H

#include <stdint.h>

/* As memcpy. A large piece is written past the processor's caches, where it has a way: it does not take
 * the place of what is used, and lines that are written whole are not read first. */
void sheaf__copy_past(void *to, const void *from, uint64_t size);

#endif
