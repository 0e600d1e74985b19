/* model/utf8.h - characters in and out of UTF-8.
 *
 * Owns: reading one character with the rule for ill-formed text that Unicode recommends (table
 * 3-7, "maximal subparts"), writing one, and counting what a lead byte promises.
 */
#ifndef SHEAF_MODEL_UTF8_H
#define SHEAF_MODEL_UTF8_H

#include <stdbool.h>
#include <stdint.h>

#define SHEAF__UTF8_ILL         UINT32_MAX     /* not a character */
#define SHEAF__REPLACEMENT      "\xef\xbf\xbd" /* U+FFFD */
#define SHEAF__REPLACEMENT_SIZE 3u

typedef struct sheaf__utf8_char {
    uint32_t code; /* SHEAF__UTF8_ILL: the bytes are a maximal ill-formed part */
    uint32_t size; /* bytes read, 1 to 4 */
    bool cut;      /* ill-formed only because the text ends here */
} sheaf__utf8_char;

/* The first character of `n` > 0 bytes. */
static inline sheaf__utf8_char sheaf__utf8_read(const char *text, uint64_t n)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) return (sheaf__utf8_char){s[0], 1, false};
    uint32_t more = s[0] >= 0xf0 ? 3 : s[0] >= 0xe0 ? 2 : 1;
    if (s[0] < 0xc2 || s[0] > 0xf4) return (sheaf__utf8_char){SHEAF__UTF8_ILL, 1, false};
    uint32_t low = 0x80, high = 0xbf; /* of the second byte */
    if (s[0] == 0xe0) low = 0xa0;
    if (s[0] == 0xed) high = 0x9f;
    if (s[0] == 0xf0) low = 0x90;
    if (s[0] == 0xf4) high = 0x8f;
    uint32_t code = s[0] & (0x3fu >> more);
    for (uint32_t i = 1; i <= more; i++) {
        if (i >= n) return (sheaf__utf8_char){SHEAF__UTF8_ILL, i, true};
        if (s[i] < low || s[i] > high) return (sheaf__utf8_char){SHEAF__UTF8_ILL, i, false};
        code = code << 6 | (s[i] & 0x3fu);
        low = 0x80, high = 0xbf;
    }
    return (sheaf__utf8_char){code, more + 1, false};
}

/* Writes a code point (not a surrogate, at most U+10FFFF); the bytes written, 1 to 4. */
static inline uint32_t sheaf__utf8_write(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    uint32_t more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    for (uint32_t i = more; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(lead[more] | code);
    return more + 1;
}

/* Bytes of the character that a lead byte of well-formed text opens. */
static inline uint32_t sheaf__utf8_size(char lead)
{
    unsigned char c = (unsigned char)lead;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* Bytes of the prefix that is well-formed. */
static inline uint64_t sheaf__utf8_valid_prefix(const char *text, uint64_t n)
{
    uint64_t at = 0;
    while (at < n) {
        sheaf__utf8_char c = sheaf__utf8_read(text + at, n - at);
        if (c.code == SHEAF__UTF8_ILL) break;
        at += c.size;
    }
    return at;
}

#endif
