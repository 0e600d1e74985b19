/* base/clock.h - time that only goes forward. */
#ifndef SHEAF_BASE_CLOCK_H
#define SHEAF_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds since an arbitrary start. Any thread. */
uint64_t sheaf__clock_ns(void);

#endif
