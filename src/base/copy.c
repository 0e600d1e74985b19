/* base/copy.c - copying what is not read again soon. */
#include "base/copy.h"

#include <string.h>

#if defined(__x86_64__)

#    include <emmintrin.h>

#    define LINE  64
#    define LARGE 4096 /* bytes: less is soon written whatever the way */

void sheaf__copy_past(void *to, const void *from, uint64_t size)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    if (size < LARGE) {
        memcpy(to, from, size);
        return;
    }
    uint64_t head = (uint64_t) - (uintptr_t)out & (LINE - 1);
    memcpy(out, in, head);
    out += head, in += head, size -= head;
    for (; size >= LINE; out += LINE, in += LINE, size -= LINE) {
        const __m128i *lane = (const __m128i *)(const void *)in;
        __m128i *place = (__m128i *)(void *)out;
        __m128i a = _mm_loadu_si128(lane), b = _mm_loadu_si128(lane + 1);
        __m128i c = _mm_loadu_si128(lane + 2), d = _mm_loadu_si128(lane + 3);
        _mm_stream_si128(place, a);
        _mm_stream_si128(place + 1, b);
        _mm_stream_si128(place + 2, c);
        _mm_stream_si128(place + 3, d);
    }
    _mm_sfence(); /* before whatever tells another thread of it */
    memcpy(out, in, size);
}

#else

void sheaf__copy_past(void *to, const void *from, uint64_t size)
{
    memcpy(to, from, size);
}

#endif
