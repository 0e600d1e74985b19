/* sheaf/wire.h - blocks that leave the process and come back: files, sockets, other machines.
 *
 * Owns: the framed format of docs/format.md, written and read as a stream with bounded memory. Does
 * not own: sockets, names of files, who may send what.
 *
 *     st = sheaf_wire_save_fd(parked, 1, &space, fd, &err);              // in one process
 *     st = sheaf_wire_load_fd(pool, &space, fd, loaded, 1, &n, &err);    // in another
 *
 * A stream carries parked sequences: tokens, groups, raw tiles with all that belongs to them (scales,
 * norms), the layout in full, the namespace, and a checksum on every frame and over all. Blocks that
 * several of them share are written once. What lies in a block beyond the last token is written as
 * zeros: nothing of others leaves with it. Loading is all or nothing: whatever is wrong (truncated,
 * flipped, foreign, hostile, larger than the pool), the pool is as before. Sizes are checked before
 * memory is taken.
 */
#ifndef SHEAF_WIRE_H
#define SHEAF_WIRE_H

#include "sheaf/cache.h"
#include "sheaf/key.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where bytes go. write takes all n bytes or fails (its status is handed on). flush may be null; it
 * is called once, after the last byte. */
typedef struct sheaf_sink {
    void *ctx;
    sheaf_status (*write)(void *ctx, const void *data, uint64_t n);
    sheaf_status (*flush)(void *ctx);
} sheaf_sink;

/* Where bytes come from. read puts 1 to n bytes into data, or none at the end of the stream, and says
 * how many. */
typedef struct sheaf_source {
    void *ctx;
    sheaf_status (*read)(void *ctx, void *data, uint64_t n, uint64_t *n_read);
} sheaf_source;

/* A sink and a source on a file descriptor of any kind, which stays the caller's. *fd must outlive
 * them. Interrupted and short operations are continued; a descriptor that does not block is waited
 * for. A socket whose peer has gone is SHEAF_E_IO; a pipe raises SIGPIPE first, as write() does. */
SHEAF_API sheaf_sink sheaf_sink_of_fd(const int *fd);
SHEAF_API sheaf_source sheaf_source_of_fd(const int *fd);

/* ---- parked sequences -------------------------------------------------------------------- */

/* Writes n >= 1 parked sequences of one pool, of one namespace. They stay. SHEAF_E_INVALID: of two
 * pools. SHEAF_E_NO_MEMORY. SHEAF_E_IO, or what the sink said: part of the stream may have been
 * written. `err` may be null. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_wire_save(sheaf_parked *const *parked, uint32_t n,
                                                  const sheaf_key *space,
                                                  const sheaf_sink *sink, sheaf_error *err);

/* Reads a stream to its end frame, no byte further: parked[0, *n), the caller's. capacity: how many
 * there is room for. `space` null: any namespace, which is for tools; who continues a sequence says
 * which.
 * SHEAF_E_FORMAT: not the format, truncated, contradictory, or more sequences than `capacity`.
 * SHEAF_E_DAMAGED: a checksum. SHEAF_E_FOREIGN: another layout or namespace, or a version not known
 * here. SHEAF_FULL: no room in the pool, from which nothing is evicted: make room (sheaf_prefix_evict)
 * and ask again. SHEAF_E_IO, SHEAF_E_NO_MEMORY. After any of them the pool's blocks are as before;
 * slabs committed meanwhile may stay as its slack, and bytes of the stream have been consumed. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_wire_load(sheaf_pool *pool, const sheaf_key *space,
                                                  const sheaf_source *source,
                                                  sheaf_parked **parked, uint32_t capacity,
                                                  uint32_t *n, sheaf_error *err);

/* The same on a descriptor. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_wire_save_fd(sheaf_parked *const *parked, uint32_t n,
                                                     const sheaf_key *space, int fd,
                                                     sheaf_error *err);
SHEAF_API SHEAF_WARN sheaf_status sheaf_wire_load_fd(sheaf_pool *pool, const sheaf_key *space,
                                                     int fd, sheaf_parked **parked,
                                                     uint32_t capacity, uint32_t *n,
                                                     sheaf_error *err);

/* Into a regular file: written beside it under another name, synchronised, and renamed into place, so
 * that there is the old file or the new one and never a part. Readable by its owner alone. Remains of
 * earlier attempts that were killed are swept, where the file system has locks (flock). What is there
 * and is no regular file, a symbolic link too, stays as it is: SHEAF_E_IO. A file has nothing after
 * its stream: else, and when it is no whole stream, SHEAF_E_FORMAT. SHEAF_E_IO. `err` names the
 * file. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_wire_save_file(sheaf_parked *const *parked, uint32_t n,
                                                       const sheaf_key *space, const char *path,
                                                       sheaf_error *err);
SHEAF_API SHEAF_WARN sheaf_status sheaf_wire_load_file(sheaf_pool *pool, const sheaf_key *space,
                                                       const char *path, sheaf_parked **parked,
                                                       uint32_t capacity, uint32_t *n,
                                                       sheaf_error *err);

/* ---- single blocks ----------------------------------------------------------------------- */

/* One whole block of every group that has it, with the key that names its content: what a tier stores
 * and a hand-off sends. blocks: [n_groups], row SHEAF_ROW_NONE where a window group has none;
 * tokens: [block_tokens]; parent and key as sheaf_key_next has them. SHEAF_E_STALE; SHEAF_E_INVALID: of
 * another group, or none where there is no window; SHEAF_E_UNSUPPORTED (no SHA-256); as for
 * sheaf_wire_save. */
SHEAF_API SHEAF_WARN sheaf_status
sheaf_wire_save_block(sheaf_pool *pool, const sheaf_block *blocks, const sheaf_key *parent,
                      const int32_t *tokens, const sheaf_sink *sink, sheaf_error *err);

/* Reads one: blocks: [n_groups], new ones, one reference each of SHEAF_OWNER_HOST; tokens:
 * [block_tokens]. The key is computed again from parent and tokens; `key` (may be null) is what the
 * caller asked for: SHEAF_E_FOREIGN when it is another. Statuses as for sheaf_wire_load. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_wire_load_block(sheaf_pool *pool, const sheaf_key *key,
                                                        const sheaf_source *source,
                                                        sheaf_block *blocks, int32_t *tokens,
                                                        sheaf_error *err);

/* ---- looking ----------------------------------------------------------------------------- */

/* What a stream says of itself. */
typedef struct sheaf_wire_info {
    uint32_t struct_size;
    uint32_t version;
    uint32_t kind; /* 0: parked sequences, 1: a single block */
    uint32_t n_layers;
    uint32_t n_groups;
    uint32_t block_tokens;
    uint32_t n_sequences;
    uint32_t n_frames;
    uint64_t n_tokens; /* of all sequences */
    uint64_t n_bytes;  /* of the stream */
    uint64_t layout_fingerprint;
    uint64_t blocks[SHEAF_MAX_GROUPS];      /* in the stream, each once */
    uint64_t block_bytes[SHEAF_MAX_GROUPS]; /* of one in the stream */
    uint32_t windows[SHEAF_MAX_GROUPS];
    sheaf_key space;
} sheaf_wire_info;
#define SHEAF_WIRE_INFO_INIT SHEAF_STRUCT_INIT(sheaf_wire_info)

/* Called for each frame while a stream is scanned: its offset, its kind's name, its bytes. */
typedef void sheaf_frame_fn(void *ctx, uint64_t offset, const char *kind, uint64_t n_bytes);

/* Reads and checks a stream without a pool, in constant memory: every checksum, every count.
 * on_frame may be null. Statuses as for sheaf_wire_load; `err` says where. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_wire_scan(const sheaf_source *source,
                                                  sheaf_frame_fn *on_frame, void *ctx,
                                                  sheaf_wire_info *out, sheaf_error *err);

#ifdef __cplusplus
}
#endif
#endif
