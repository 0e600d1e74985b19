/* cache/wire_out.c - frames on their way out. */
#include <string.h>

#include "base/bits.h"
#include "cache/wire.h"
#include "codec/codec.h"

const unsigned char sheaf__wire_magic[8] = {0x89, 'S', 'H', 'E', 'A', 'F', '\r', '\n'};

/* ---- bytes --------------------------------------------------------------------------------- */

static void hand_over(sheaf__wire_out *out, const void *data, uint64_t size)
{
    if (out->status != SHEAF_OK || size == 0) return;
    sheaf_status st = out->sink->write(out->sink->ctx, data, size);
    if (st != SHEAF_OK)
        out->status =
            sheaf__error_set(out->err, st, "writing failed before byte %llu of the stream: %s",
                             (unsigned long long)out->n_bytes, sheaf_status_text(st));
}

static void flush_buffer(sheaf__wire_out *out)
{
    hand_over(out, out->buffer, out->n_buffered);
    out->n_buffered = 0;
}

static void emit(sheaf__wire_out *out, const void *data, uint64_t size)
{
    out->n_bytes += size;
    if (size > SHEAF__WIRE_BUFFER - out->n_buffered || size >= SHEAF__WIRE_LARGE)
        flush_buffer(out);
    if (size >= SHEAF__WIRE_LARGE) {
        hand_over(out, data, size);
        return;
    }
    memcpy(out->buffer + out->n_buffered, data, size);
    out->n_buffered += (uint32_t)size;
}

void sheaf__wire_out_put(sheaf__wire_out *out, const void *data, uint64_t size)
{
    const unsigned char *from = data;
    while (size != 0 && out->status == SHEAF_OK) {
        uint64_t piece = sheaf__min_u64(size, SHEAF__WIRE_OUT);
        emit(out, from, piece);
        sheaf__hash_add(out->hash, from, piece);
        from += piece;
        size -= piece;
    }
}

/* ---- frames -------------------------------------------------------------------------------- */

sheaf_status sheaf__wire_out_begin(sheaf__wire_out *out, const sheaf_sink *sink,
                                   sheaf__memory *memory, sheaf_error *err)
{
    *out = (sheaf__wire_out){.sink = sink, .memory = memory, .err = err};
    out->buffer = sheaf__memory_alloc_aligned(memory, SHEAF__WIRE_BUFFER, 1, 64);
    out->hash = sheaf__hash_create();
    if (out->buffer == NULL || out->hash == NULL)
        return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no host memory to write a stream");
    const uint32_t version[2] = {SHEAF__WIRE_VERSION, 0};
    emit(out, sheaf__wire_magic, sizeof sheaf__wire_magic);
    emit(out, version, sizeof version);
    return SHEAF_OK;
}

void sheaf__wire_out_end(sheaf__wire_out *out)
{
    sheaf__memory_free_aligned(out->memory, out->buffer, SHEAF__WIRE_BUFFER, 1, 64);
    sheaf__hash_destroy(out->hash);
    out->buffer = NULL;
    out->hash = NULL;
}

void sheaf__wire_out_open(sheaf__wire_out *out, uint32_t kind, uint64_t payload_bytes)
{
    const uint32_t front[2] = {kind, out->n_frames++};
    sheaf__hash_begin(out->hash);
    sheaf__wire_out_put(out, front, sizeof front);
    sheaf__wire_out_put(out, &payload_bytes, sizeof payload_bytes);
}

sheaf_status sheaf__wire_out_close(sheaf__wire_out *out)
{
    uint64_t checksum = sheaf__hash_value(out->hash);
    emit(out, &checksum, sizeof checksum);
    out->total = sheaf__hash64(&checksum, sizeof checksum, out->total);
    return out->status;
}

sheaf_status sheaf__wire_out_finish(sheaf__wire_out *out)
{
    const uint32_t counts[2] = {out->n_frames + 1, 0};
    const uint64_t sums[2] = {out->n_bytes + SHEAF__WIRE_FRAME + SHEAF__WIRE_DONE_BYTES,
                              out->total};
    sheaf__wire_out_open(out, SHEAF__WIRE_DONE, SHEAF__WIRE_DONE_BYTES);
    sheaf__wire_out_put(out, counts, sizeof counts);
    sheaf__wire_out_put(out, sums, sizeof sums);
    SHEAF__TRY(sheaf__wire_out_close(out));
    flush_buffer(out);
    SHEAF__TRY(out->status);
    if (out->sink->flush == NULL) return SHEAF_OK;
    sheaf_status st = out->sink->flush(out->sink->ctx);
    if (st != SHEAF_OK)
        return sheaf__error_set(out->err, st, "the end of the stream was not taken: %s",
                                sheaf_status_text(st));
    return SHEAF_OK;
}

/* ---- blocks -------------------------------------------------------------------------------- */

uint64_t sheaf__wire_scratch_bytes(const sheaf__layout *layout)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        most = sheaf__max_u64(most, layout->layers[i].k_segment_bytes);
        most = sheaf__max_u64(most, layout->layers[i].v_segment_bytes);
    }
    return most;
}

/* Copies bytes of a row to the host's memory. A failure stays in out->status. */
static void fetch_bytes(sheaf__wire_out *out, const sheaf_pool *pool, unsigned char *to,
                        const unsigned char *from, uint64_t bytes)
{
    sheaf_status st = sheaf__pool_read(pool, to, from, bytes);
    if (st != SHEAF_OK && out->status == SHEAF_OK)
        out->status = sheaf__error_set(
            out->err, st, "a block cannot be read from its device: %s", sheaf_status_text(st));
}

/* Bytes of a row as they are; from another device by way of the pool's staging. */
static void put_bytes(sheaf__wire_out *out, const sheaf_pool *pool, const unsigned char *from,
                      uint64_t bytes)
{
    if (sheaf__pool_is_host(pool)) {
        sheaf__wire_out_put(out, from, bytes);
        return;
    }
    while (bytes != 0 && out->status == SHEAF_OK) {
        uint64_t piece = sheaf__min_u64(bytes, pool->staging_bytes);
        fetch_bytes(out, pool, pool->staging, from, piece);
        sheaf__wire_out_put(out, pool->staging, piece);
        from += piece;
        bytes -= piece;
    }
}

/* One tile of a block that is not full: a head's segment at a time, its unused slots cleared. */
static void put_part_of_tile(sheaf__wire_out *out, const sheaf_pool *pool,
                             const sheaf__layer_layout *place, bool v, const unsigned char *row,
                             uint32_t n_slots, unsigned char *scratch)
{
    uint32_t block_tokens = sheaf__pool_layout(pool)->block_tokens;
    uint64_t bytes = v ? place->v_segment_bytes : place->k_segment_bytes;
    uint32_t dim = v ? place->layer.value_dim : place->layer.key_dim;
    uint32_t codec = v ? place->layer.codec_v : place->layer.codec_k;
    const unsigned char *from = row + (v ? place->v_offset : place->k_offset);
    for (uint32_t head = 0; bytes != 0 && head < place->layer.n_kv_heads; head++) {
        fetch_bytes(out, pool, scratch, from + head * bytes, bytes);
        sheaf_status st = sheaf__codec_clear(codec, scratch, block_tokens, dim, n_slots,
                                             block_tokens - n_slots);
        SHEAF__ASSERT(st == SHEAF_OK);
        (void)st;
        sheaf__wire_out_put(out, scratch, bytes);
    }
}

sheaf_status sheaf__wire_out_block(sheaf__wire_out *out, const sheaf_pool *pool,
                                   sheaf_block block, uint32_t number, uint32_t n_slots,
                                   unsigned char *scratch)
{
    const sheaf__layout *layout = sheaf__pool_layout(pool);
    const unsigned char *row = sheaf__pool_row(pool, block.group, block.row);
    const uint32_t front[2] = {block.group, number};
    sheaf__wire_out_open(out, SHEAF__WIRE_BLCK,
                         sizeof front + layout->groups[block.group].tile_bytes);
    sheaf__wire_out_put(out, front, sizeof front);
    uint32_t next = 0;
    uint64_t offset, bytes;
    while (n_slots == layout->block_tokens &&
           sheaf__wire_next_run(layout, block.group, &next, &offset, &bytes))
        put_bytes(out, pool, row + offset, bytes);
    for (uint32_t i = 0; n_slots < layout->block_tokens && i < layout->n_layers; i++) {
        const sheaf__layer_layout *place = &layout->layers[i];
        if (place->group != block.group) continue;
        put_part_of_tile(out, pool, place, false, row, n_slots, scratch);
        put_part_of_tile(out, pool, place, true, row, n_slots, scratch);
    }
    return sheaf__wire_out_close(out);
}
