/* bench/bench_codec.c - how fast are K and V encoded and decoded?
 *
 * Segments of 32 positions, dimension 128, of f32 numbers beyond any cache, one thread: what one call of
 * sheaf_codec_encode and sheaf_codec_decode takes for a segment, against memcpy of the same f32 bytes
 * between the same buffers. Rates are those of the f32 side.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "sheaf/codec.h"

#define MIB          (1024ull * 1024)
#define BLOCK_TOKENS 32u
#define DIM          128u
#define PIECE_BYTES  ((uint64_t)BLOCK_TOKENS * DIM * 4) /* of f32, a segment */

typedef struct rig {
    float *numbers;       /* [bytes] */
    unsigned char *coded; /* as many bytes, segments from the start on */
    uint64_t bytes;
    uint64_t segment_bytes;
    uint32_t codec;
    bool failed;
} rig;

static void copy_out(void *arg)
{
    const rig *r = arg;
    const unsigned char *from = (const unsigned char *)r->numbers;
    for (uint64_t at = 0; at < r->bytes; at += PIECE_BYTES)
        memcpy(r->coded + at, from + at, PIECE_BYTES);
}

static void copy_back(void *arg)
{
    const rig *r = arg;
    unsigned char *to = (unsigned char *)r->numbers;
    for (uint64_t at = 0; at < r->bytes; at += PIECE_BYTES)
        memcpy(to + at, r->coded + at, PIECE_BYTES);
}

static void encode(void *arg)
{
    rig *r = arg;
    for (uint64_t i = 0; i < r->bytes / PIECE_BYTES; i++)
        if (sheaf_codec_encode(r->codec, r->coded + i * r->segment_bytes, BLOCK_TOKENS, DIM, 0,
                               BLOCK_TOKENS, SHEAF_DTYPE_F32,
                               r->numbers + i * PIECE_BYTES / sizeof *r->numbers,
                               DIM) != SHEAF_OK)
            r->failed = true;
}

static void decode(void *arg)
{
    rig *r = arg;
    for (uint64_t i = 0; i < r->bytes / PIECE_BYTES; i++)
        if (sheaf_codec_decode(r->codec, r->coded + i * r->segment_bytes, BLOCK_TOKENS, DIM, 0,
                               BLOCK_TOKENS,
                               r->numbers + i * PIECE_BYTES / sizeof *r->numbers) != SHEAF_OK)
            r->failed = true;
}

static void fill(const rig *r)
{
    uint32_t state = 1;
    for (uint64_t i = 0; i < r->bytes / sizeof *r->numbers; i++) {
        state = state * 1664525u + 1013904223u;
        r->numbers[i] = (float)(int32_t)state * 0x1p-30f;
    }
}

static void measure(bench *b, rig *r, const char *what, void (*fn)(void *),
                    void (*copy)(void *))
{
    char name[64];
    bench_best best;
    bench_compare(b, (double)r->bytes, fn, r, copy, r, &best);
    snprintf(name, sizeof name, "%s %s", what, sheaf_codec_name(r->codec));
    bench_row(b, name, best.rate * 1e-9, best.rate / 4e9, best.ratio, best.median,
              (double)r->segment_bytes / (double)PIECE_BYTES * 32);
}

int main(int argc, char **argv)
{
    bench b;
    if (!bench_begin(&b, "codec", "how fast are K and V encoded and decoded?", argc, argv))
        return 2;
    rig r = {.bytes = bench_size(&b, 256 * MIB, 64 * MIB, PIECE_BYTES)};
    static const bench_column columns[] = {{"f32 side", "GB/s"},
                                           {"", "G numbers/s"},
                                           {"of memcpy", "ratio"},
                                           {"median", "of memcpy"},
                                           {"a number", "bits"}};
    bench_table(&b, columns, 5);
    r.numbers = bench_map(r.bytes);
    r.coded = bench_map(r.bytes);
    if (r.numbers == NULL || r.coded == NULL) return 1;
    for (r.codec = 0; r.codec < SHEAF_CODEC_COUNT; r.codec++) {
        if (sheaf_codec_segment_bytes(r.codec, BLOCK_TOKENS, DIM, &r.segment_bytes) != SHEAF_OK)
            return 1;
        fill(&r);
        measure(&b, &r, "encode", encode, copy_out);
        measure(&b, &r, "decode", decode, copy_back);
    }
    bench_note(&b, "one thread; memcpy of the f32 bytes, a segment at a time, in turns");
    bench_unmap(r.numbers, r.bytes);
    bench_unmap(r.coded, r.bytes);
    int code = bench_end(&b);
    return r.failed ? 1 : code;
}
