/* cache/wire_in.c - frames on their way in.
 *
 * Invariants: nothing beyond `certain` is asked of the source; buffer[begin, end) are the bytes of the
 * stream from `offset` on; in a frame the payload's `left` bytes come next, then its checksum.
 */
#include <string.h>

#include "base/bits.h"
#include "base/copy.h"
#include "cache/wire.h"

sheaf_status sheaf__wire_in_wrong(const sheaf__wire_in *in, const char *what)
{
    return sheaf__error_set(in->err, SHEAF_E_FORMAT, "byte %llu of the stream: %s",
                            (unsigned long long)in->offset, what);
}

/* ---- bytes --------------------------------------------------------------------------------- */

/* Reads 1 to n bytes. */
static sheaf_status receive(sheaf__wire_in *in, void *data, uint64_t n, uint64_t *n_read)
{
    uint64_t got = 0;
    sheaf_status st = in->source->read(in->source->ctx, data, n, &got);
    if (st == SHEAF_OK && got > n) st = SHEAF_E_IO;
    if (st != SHEAF_OK)
        return sheaf__error_set(in->err, st, "reading failed after byte %llu of the stream: %s",
                                (unsigned long long)in->offset, sheaf_status_text(st));
    if (got == 0) return sheaf__wire_in_wrong(in, "the stream ends here, before its end");
    *n_read = got;
    return SHEAF_OK;
}

/* Makes at least `need` bytes lie in the buffer, which has room for them. */
static sheaf_status fetch(sheaf__wire_in *in, uint32_t need)
{
    if (in->end - in->begin >= need) return SHEAF_OK;
    memmove(in->buffer, in->buffer + in->begin, in->end - in->begin);
    in->end -= in->begin;
    in->begin = 0;
    uint64_t wanted = sheaf__min_u64(need + in->ahead, SHEAF__WIRE_BUFFER);
    uint64_t certain = in->certain > in->offset ? in->certain - in->offset : 0;
    wanted = sheaf__max_u64(need, sheaf__min_u64(wanted, certain));
    while (in->end < need) {
        uint64_t got = 0;
        SHEAF__TRY(receive(in, in->buffer + in->end, wanted - in->end, &got));
        in->end += (uint32_t)got;
    }
    return SHEAF_OK;
}

/* Consumes `size` <= SHEAF__WIRE_BUFFER bytes by way of the buffer. */
static sheaf_status take(sheaf__wire_in *in, void *data, uint32_t size)
{
    SHEAF__TRY(fetch(in, size));
    if (data != NULL) memcpy(data, in->buffer + in->begin, size);
    in->begin += size;
    in->offset += size;
    return SHEAF_OK;
}

/* Consumes what comes at once of `*size` bytes; the buffer is empty, and stays so. */
static sheaf_status get_large(sheaf__wire_in *in, unsigned char *data, uint64_t *size)
{
    SHEAF__TRY(receive(in, in->buffer, sheaf__min_u64(*size, SHEAF__WIRE_IN), size));
    sheaf__hash_add(in->hash, in->buffer, *size);
    sheaf__copy_past(data, in->buffer, *size);
    in->offset += *size;
    return SHEAF_OK;
}

/* One piece of a payload: large and at once, or what the buffer has, or gathered there. */
static sheaf_status get_piece(sheaf__wire_in *in, unsigned char *data, uint64_t *size)
{
    uint64_t buffered = in->end - in->begin, n = *size;
    if (data != NULL && buffered == 0 && n >= SHEAF__WIRE_LARGE)
        return get_large(in, data, size);
    n = sheaf__min_u64(n, SHEAF__WIRE_BUFFER);
    if (buffered != 0 && n >= SHEAF__WIRE_LARGE) n = sheaf__min_u64(n, buffered);
    SHEAF__TRY(fetch(in, (uint32_t)n));
    sheaf__hash_add(in->hash, in->buffer + in->begin, n);
    SHEAF__TRY(take(in, data, (uint32_t)n));
    *size = n;
    return SHEAF_OK;
}

/* ---- frames -------------------------------------------------------------------------------- */

sheaf_status sheaf__wire_in_begin(sheaf__wire_in *in, const sheaf_source *source,
                                  sheaf__memory *memory, sheaf_error *err)
{
    *in = (sheaf__wire_in){.source = source, .memory = memory, .err = err};
    in->certain = SHEAF__WIRE_PROLOGUE;
    in->buffer = sheaf__memory_alloc_aligned(memory, SHEAF__WIRE_IN, 1, 64);
    in->hash = sheaf__hash_create();
    if (in->buffer == NULL || in->hash == NULL)
        return sheaf__error_set(err, SHEAF_E_NO_MEMORY, "no host memory to read a stream");
    unsigned char magic[sizeof sheaf__wire_magic];
    uint32_t version[2];
    SHEAF__TRY(take(in, magic, sizeof magic));
    if (memcmp(magic, sheaf__wire_magic, sizeof magic) != 0)
        return sheaf__error_set(err, SHEAF_E_FORMAT, "not a stream of saved keys and values");
    SHEAF__TRY(take(in, version, sizeof version));
    if (version[0] != SHEAF__WIRE_VERSION)
        return sheaf__error_set(err, SHEAF_E_FOREIGN,
                                "the stream has version %u; this library knows %u", version[0],
                                SHEAF__WIRE_VERSION);
    if (version[1] != 0) return sheaf__wire_in_wrong(in, "the prologue is not one of ours");
    return SHEAF_OK;
}

void sheaf__wire_in_end(sheaf__wire_in *in)
{
    sheaf__memory_free_aligned(in->memory, in->buffer, SHEAF__WIRE_IN, 1, 64);
    sheaf__hash_destroy(in->hash);
    in->buffer = NULL;
    in->hash = NULL;
}

sheaf_status sheaf__wire_in_open(sheaf__wire_in *in, uint32_t kind)
{
    struct {
        uint32_t kind, index;
        uint64_t bytes;
    } front;
    uint64_t offset = in->offset;
    SHEAF__TRY(take(in, &front, sizeof front));
    if (front.kind != kind)
        return sheaf__wire_in_wrong(in, "a frame of a kind that cannot be here");
    if (front.index != in->n_frames)
        return sheaf__wire_in_wrong(in, "a frame out of its order");
    uint64_t rest = in->n_bytes - in->offset;
    bool known = in->n_bytes != 0;
    if (known && (in->offset > in->n_bytes || rest < sizeof(uint64_t) ||
                  front.bytes > rest - sizeof(uint64_t)))
        return sheaf__wire_in_wrong(in, "a frame reaches beyond the end of the stream");
    in->kind = kind;
    in->frame_offset = offset;
    in->frame_bytes = in->left = front.bytes;
    sheaf__hash_begin(in->hash);
    sheaf__hash_add(in->hash, &front, sizeof front);
    return SHEAF_OK;
}

sheaf_status sheaf__wire_in_get(sheaf__wire_in *in, void *data, uint64_t size)
{
    if (size > in->left) return sheaf__wire_in_wrong(in, "the frame is too short");
    unsigned char *to = data;
    while (size != 0) {
        uint64_t piece = size;
        SHEAF__TRY(get_piece(in, to, &piece));
        if (to != NULL) to += piece;
        size -= piece;
        in->left -= piece;
    }
    return SHEAF_OK;
}

static const char *name_of(uint32_t kind)
{
    switch (kind) {
    case SHEAF__WIRE_HEAD: return "head";
    case SHEAF__WIRE_SEQN: return "sequence";
    case SHEAF__WIRE_NAME: return "name";
    case SHEAF__WIRE_BLCK: return "block";
    default: return "done";
    }
}

sheaf_status sheaf__wire_in_close(sheaf__wire_in *in)
{
    if (in->left != 0) return sheaf__wire_in_wrong(in, "the frame is too long");
    uint64_t computed = sheaf__hash_value(in->hash), stored;
    SHEAF__TRY(take(in, &stored, sizeof stored));
    if (stored != computed)
        return sheaf__error_set(in->err, SHEAF_E_DAMAGED,
                                "the %s frame at byte %llu is damaged: its checksum differs",
                                name_of(in->kind), (unsigned long long)in->frame_offset);
    in->total = sheaf__hash64(&stored, sizeof stored, in->total);
    in->n_frames++;
    if (in->on_frame != NULL)
        in->on_frame(in->on_frame_ctx, in->frame_offset, name_of(in->kind),
                     in->frame_bytes + SHEAF__WIRE_FRAME);
    return SHEAF_OK;
}

sheaf_status sheaf__wire_in_finish(sheaf__wire_in *in)
{
    struct {
        uint32_t n_frames, reserved;
        uint64_t n_bytes, total;
    } done;
    _Static_assert(sizeof done == SHEAF__WIRE_DONE_BYTES, "as docs/format.md has it");
    uint64_t total = in->total;
    SHEAF__TRY(sheaf__wire_in_open(in, SHEAF__WIRE_DONE));
    SHEAF__TRY(sheaf__wire_in_get(in, &done, sizeof done));
    SHEAF__TRY(sheaf__wire_in_close(in));
    if (done.n_frames != in->n_frames || done.reserved != 0)
        return sheaf__wire_in_wrong(in, "the last frame counts other frames");
    if (done.n_bytes != in->offset || done.n_bytes != in->n_bytes)
        return sheaf__wire_in_wrong(in, "the stream has other bytes than it says");
    if (done.total != total)
        return sheaf__error_set(in->err, SHEAF_E_DAMAGED,
                                "the stream is damaged: the checksum over all frames differs");
    return SHEAF_OK;
}

/* ---- blocks -------------------------------------------------------------------------------- */

sheaf_status sheaf__wire_in_open_block(sheaf__wire_in *in, const sheaf__wire_head *head,
                                       uint32_t group, uint64_t number)
{
    uint32_t front[2];
    SHEAF__TRY(sheaf__wire_in_open(in, SHEAF__WIRE_BLCK));
    if (in->frame_bytes != SHEAF__WIRE_BLOCK_HEAD + head->groups[group].block_bytes)
        return sheaf__wire_in_wrong(in, "a block of another size than its group's");
    SHEAF__TRY(sheaf__wire_in_get(in, front, sizeof front));
    if (front[0] != group || front[1] != number)
        return sheaf__wire_in_wrong(in, "a block out of its order");
    return SHEAF_OK;
}

/* Bytes of a row; to another device by way of the pool's staging. */
static sheaf_status get_bytes(sheaf__wire_in *in, const sheaf_pool *pool, unsigned char *to,
                              uint64_t bytes)
{
    if (sheaf__pool_is_host(pool)) return sheaf__wire_in_get(in, to, bytes);
    while (bytes != 0) {
        uint64_t piece = sheaf__min_u64(bytes, pool->staging_bytes);
        SHEAF__TRY(sheaf__wire_in_get(in, pool->staging, piece));
        sheaf_status st = sheaf__pool_write(pool, to, pool->staging, piece);
        if (st != SHEAF_OK)
            return sheaf__error_set(in->err, st, "a block cannot be written to its device: %s",
                                    sheaf_status_text(st));
        to += piece;
        bytes -= piece;
    }
    return SHEAF_OK;
}

sheaf_status sheaf__wire_in_block(sheaf__wire_in *in, const sheaf__wire_head *head,
                                  const sheaf_pool *pool, sheaf_block block, uint64_t number)
{
    SHEAF__TRY(sheaf__wire_in_open_block(in, head, block.group, number));
    unsigned char *row = sheaf__pool_row(pool, block.group, block.row);
    const sheaf__layout *layout = sheaf__pool_layout(pool);
    uint32_t next = 0;
    uint64_t offset, bytes;
    while (sheaf__wire_next_run(layout, block.group, &next, &offset, &bytes))
        SHEAF__TRY(get_bytes(in, pool, row + offset, bytes));
    return sheaf__wire_in_close(in);
}
