/* bench/bench_gather.c - what does it cost to read blocks in place, and to gather them first? Figures for
 * docs/adr/0001.
 *
 * Decoding in bf16, 32 query heads, 8 KV heads, dimension 128, layers visited in turn over a store of a
 * gigabyte (kv_store.h):
 *
 *   contiguous   one buffer a sequence and layer, as engines without pages have it
 *   fused        blocks read in place
 *   gathered     blocks decoded into one buffer first, then attended to
 *   token-major  as fused, tokens outermost in a tile (seen as blocks of one token)
 *
 * and rows in order, shuffled over the whole store, or interleaved by eight sequences that grow together.
 * What is compared runs in turns.
 *
 * Options: --block-tokens N (16, 32, 64), --mb N (bytes of a store).
 */
#include <math.h>
#include <stdio.h>

#include "kv_store.h"

#define MIB ((uint64_t)1024 * 1024)

static const char *const order_names[] = {"in order", "shuffled", "interleaved", "token-major"};

static const bench_column columns[] = {{"a layer", "us"},
                                       {"K and V", "GB/s"},
                                       {"of read bandwidth", "ratio"},
                                       {"of contiguous", "ratio"},
                                       {"as fast as gathered", "times"}};

/* One geometry: the same sequences in blocks and contiguous. */
typedef struct rig {
    bench *b;
    kv_store paged, dense;
    kv_work contiguous;
    char label[32];
} rig;

static bool rig_open(rig *r, bench *b, const kv_shape *shape)
{
    *r = (rig){.b = b};
    snprintf(r->label, sizeof r->label, "b%u c%u bt%u", shape->n_items, shape->n_tokens,
             shape->block_tokens);
    return kv_store_open(&r->paged, shape, KV_IN_ORDER) &&
           kv_store_open(&r->dense, shape, KV_DENSE) &&
           kv_work_open(&r->contiguous, b, &r->dense, 1, SHEAF_ATTN_FUSED);
}

static void rig_close(rig *r)
{
    kv_work_close(&r->contiguous);
    kv_store_close(&r->dense);
    kv_store_close(&r->paged);
}

/* Of one kv_work against reading memory. */
static void row(const rig *r, const char *name, kv_work *w, double of_contiguous,
                double as_gathered)
{
    bench_best best;
    bench_measure(r->b, BENCH_MEMORY_READ, (double)w->store->bytes, kv_work_run, w, &best);
    if (kv_work_done(w))
        bench_row(r->b, name, best.seconds / w->store->shape.n_layers * 1e6, best.rate / 1e9,
                  best.ratio, of_contiguous, as_gathered);
    else
        bench_note(r->b, "%s: not what was asked for", name);
}

static void order_rows(rig *r, int order)
{
    kv_work fused, gathered;
    char name[64];
    kv_store_deal(&r->paged, order);
    bool ok = kv_work_open(&fused, r->b, &r->paged, 1, SHEAF_ATTN_FUSED);
    ok = kv_work_open(&gathered, r->b, &r->paged, 1, SHEAF_ATTN_GATHER) && ok;
    if (ok) {
        bench_best dense, gather;
        double work = (double)r->paged.bytes;
        bench_compare(r->b, work, kv_work_run, &fused, kv_work_run, &r->contiguous, &dense);
        bench_compare(r->b, work, kv_work_run, &fused, kv_work_run, &gathered, &gather);
        const bool ours = order != KV_TOKEN_MAJOR;
        snprintf(name, sizeof name, "%s%s %s", ours ? "fused " : "", order_names[order],
                 r->label);
        row(r, name, &fused, dense.ratio, gather.ratio);
        snprintf(name, sizeof name, "gathered %s %s", order_names[order], r->label);
        if (ours)
            bench_row(r->b, name, 1e6 * work / gather.ceiling / r->paged.shape.n_layers,
                      gather.ceiling / 1e9, (double)NAN, gather.ceiling / dense.ceiling,
                      (double)NAN);
    } else {
        bench_note(r->b, "%s: no memory", r->label);
    }
    kv_work_close(&gathered);
    kv_work_close(&fused);
}

static void geometry(bench *b, uint32_t block_tokens, uint32_t n_items, uint32_t n_tokens,
                     uint64_t bytes)
{
    rig r;
    char name[64];
    kv_shape shape = {.q_heads = 32,
                      .kv_heads = 8,
                      .dim = 128,
                      .codec_k = SHEAF_CODEC_BF16,
                      .codec_v = SHEAF_CODEC_BF16,
                      .block_tokens = block_tokens,
                      .n_items = n_items,
                      .n_tokens = n_tokens};
    shape.n_layers = kv_layers(&shape, bytes);
    if (rig_open(&r, b, &shape)) {
        snprintf(name, sizeof name, "contiguous %s", r.label);
        row(&r, name, &r.contiguous, 1, (double)NAN);
        if (n_items > 1) order_rows(&r, KV_IN_ORDER);
        order_rows(&r, KV_SHUFFLED);
        if (n_items > 1) order_rows(&r, KV_INTERLEAVED);
        if (n_items > 1 && block_tokens == 32) order_rows(&r, KV_TOKEN_MAJOR);
    } else {
        bench_note(b, "%s: no memory", r.label);
    }
    rig_close(&r);
}

int main(int argc, char **argv)
{
    bench b;
    if (!bench_begin(&b, "gather", "blocks read in place, or gathered first?", argc, argv))
        return 2;
    uint32_t only = bench_option_u32(&b, "--block-tokens", 0);
    uint64_t mb = bench_option_u32(&b, "--mb", (uint32_t)bench_size(&b, 1024, 128, 1));
    uint32_t divide = (uint32_t)bench_size(&b, 1, 1, 16);
    bench_table(&b, columns, 5);
    for (uint32_t bt = 16; bt <= 64; bt *= 2) {
        if (only != 0 && only != bt) continue;
        geometry(&b, bt, 8, 4096 / divide, mb * MIB);
        if (bt == 32) geometry(&b, bt, 1, 32768 / divide, mb * MIB);
    }
    bench_note(
        &b, "bN: sequences; cT: tokens of each; btN: tokens a block; of contiguous: in turns");
    return bench_end(&b);
}
