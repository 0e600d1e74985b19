/* cache/wire.h - the stream of docs/format.md as the files that write and read it see it.
 *
 * Owns: frames: buffers, checksums, counts. Does not own: sinks and sources, pools.
 *
 *   wire_out.c   frames out        wire_save.c   parked sequences    wire_fd.c    descriptors
 *   wire_in.c    frames in         wire_load.c   and back            wire_file.c  files
 *   wire_head.c  what is to come   wire_block.c  single blocks       wire_scan.c  without a pool
 *
 * Every byte passes once, in pieces that stay in the processor's cache meanwhile: handed on straight
 * from the pool's memory and hashed, or received into a buffer, hashed and copied past the cache to
 * the pool's memory; small pieces are gathered. Must match docs/format.md.
 */
#ifndef SHEAF_CACHE_WIRE_H
#define SHEAF_CACHE_WIRE_H

#include "base/hash.h"
#include "base/memory.h"
#include "base/status.h"
#include "pool/pool.h"
#include "sheaf/wire.h"

#define SHEAF__WIRE_VERSION 1

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are written as they lie");

/* Kinds of frames: four letters, the first one lowest. */
#define SHEAF__WIRE_KIND(a, b, c, d)                                                           \
    ((uint32_t)(a) | (uint32_t)(b) << 8 | (uint32_t)(c) << 16 | (uint32_t)(d) << 24)
#define SHEAF__WIRE_HEAD SHEAF__WIRE_KIND('H', 'E', 'A', 'D')
#define SHEAF__WIRE_SEQN SHEAF__WIRE_KIND('S', 'E', 'Q', 'N')
#define SHEAF__WIRE_NAME SHEAF__WIRE_KIND('N', 'A', 'M', 'E')
#define SHEAF__WIRE_BLCK SHEAF__WIRE_KIND('B', 'L', 'C', 'K')
#define SHEAF__WIRE_DONE SHEAF__WIRE_KIND('D', 'O', 'N', 'E')

enum { SHEAF__WIRE_SEQUENCES = 0, SHEAF__WIRE_BLOCK = 1 }; /* what a stream carries */

#define SHEAF__WIRE_PROLOGUE   16
#define SHEAF__WIRE_FRAME      24 /* header and checksum of a frame */
#define SHEAF__WIRE_BLOCK_HEAD 8  /* group and number before a block's tiles */
#define SHEAF__WIRE_DONE_BYTES 24

#define SHEAF__WIRE_BUFFER (64u << 10) /* small pieces are gathered in */
#define SHEAF__WIRE_LARGE  (16u << 10) /* pieces from here on are not gathered */
#define SHEAF__WIRE_OUT    (256u << 10) /* is handed on at once, and hashed while it is in cache */
#define SHEAF__WIRE_IN     (128u << 10) /* is received at once; what reading a stream takes */

extern const unsigned char sheaf__wire_magic[8];

/* ---- wire_head.c ------------------------------------------------------------------------- */

typedef struct sheaf__wire_group {
    uint32_t window;
    uint32_t reserved; /* 0 */
    uint64_t n_blocks;
    uint64_t block_bytes; /* of tiles, without padding */
} sheaf__wire_group;

/* The payload of HEAD, then what follows it. */
typedef struct sheaf__wire_head {
    uint32_t carries;
    uint32_t block_tokens;
    uint32_t n_layers;
    uint32_t n_groups;
    uint32_t n_sequences;
    uint32_t reserved; /* 0 */
    uint64_t fingerprint;
    sheaf_key space;
    uint64_t n_tokens;
    uint64_t n_bytes;
    sheaf__wire_group groups[SHEAF_MAX_GROUPS];
    sheaf_layer *layers; /* [n_layers], of a head that was read */
} sheaf__wire_head;
#define SHEAF__WIRE_HEAD_FIXED offsetof(sheaf__wire_head, groups)

typedef struct sheaf__wire_out sheaf__wire_out;
typedef struct sheaf__wire_in sheaf__wire_in;

/* Fills in all that follows from the layout; the counts are the caller's. */
void sheaf__wire_head_init(sheaf__wire_head *head, const sheaf__layout *layout);

/* Bytes of prologue, HEAD, all BLCK and DONE. False: they do not fit 64 bits. */
bool sheaf__wire_head_stream_bytes(const sheaf__wire_head *head, uint64_t *out);

/* Writes the frame. */
SHEAF_WARN sheaf_status sheaf__wire_head_put(const sheaf__wire_head *head,
                                             const sheaf__layout *layout, sheaf__wire_out *out);

/* Reads the frame and checks what it says by itself; from here on the reader knows the stream's end.
 * SHEAF_E_FORMAT, SHEAF_E_DAMAGED, SHEAF_E_NO_MEMORY, SHEAF_E_IO. Free it also after a failure. */
SHEAF_WARN sheaf_status sheaf__wire_head_get(sheaf__wire_head *head, sheaf__wire_in *in);
void sheaf__wire_head_free(sheaf__wire_head *head, sheaf__memory *memory);

/* Whether all that a head says twice agrees, `layout` being the one that it describes. */
SHEAF_WARN sheaf_status sheaf__wire_head_agrees(const sheaf__wire_head *head,
                                                const sheaf__layout *layout, sheaf_error *err);

/* Whether the stream carries this and is of this layout and namespace (null: any).
 * SHEAF_E_FOREIGN, SHEAF_E_FORMAT. */
SHEAF_WARN sheaf_status sheaf__wire_head_suits(const sheaf__wire_head *head, uint32_t carries,
                                               const sheaf__layout *layout,
                                               const sheaf_key *space, sheaf_error *err);

/* The next run of a group's tiles that lie together in a block, K before V, layer after layer. Begin
 * with *next = 0. False: there is none. */
bool sheaf__wire_next_run(const sheaf__layout *layout, uint32_t group, uint32_t *next,
                          uint64_t *offset, uint64_t *bytes);

/* ---- wire_out.c -------------------------------------------------------------------------- */

/* A failure stays in `status`, and nothing is written after it; so only the end of a frame is asked. */
struct sheaf__wire_out {
    const sheaf_sink *sink;
    sheaf__memory *memory;
    sheaf_error *err;
    sheaf_status status;
    sheaf__hash_state *hash;
    unsigned char *buffer; /* [SHEAF__WIRE_BUFFER] */
    uint32_t n_buffered;
    uint32_t n_frames;
    uint64_t total;
    uint64_t n_bytes; /* so far */
};

/* Begins a stream. End it also after a failure: that only frees. SHEAF_E_NO_MEMORY. */
SHEAF_WARN sheaf_status sheaf__wire_out_begin(sheaf__wire_out *out, const sheaf_sink *sink,
                                              sheaf__memory *memory, sheaf_error *err);
void sheaf__wire_out_end(sheaf__wire_out *out);

void sheaf__wire_out_open(sheaf__wire_out *out, uint32_t kind, uint64_t payload_bytes);
void sheaf__wire_out_put(sheaf__wire_out *out, const void *data, uint64_t size);
SHEAF_WARN sheaf_status sheaf__wire_out_close(sheaf__wire_out *out);

/* DONE, and the sink's flush. */
SHEAF_WARN sheaf_status sheaf__wire_out_finish(sheaf__wire_out *out);

/* The BLCK of a block in memory; its slots from n_slots on are written as zeros.
 * scratch: [sheaf__wire_scratch_bytes of the layout], for blocks that are not full. */
SHEAF_WARN sheaf_status sheaf__wire_out_block(sheaf__wire_out *out, const sheaf_pool *pool,
                                              sheaf_block block, uint32_t number,
                                              uint32_t n_slots, unsigned char *scratch);
uint64_t sheaf__wire_scratch_bytes(const sheaf__layout *layout);

/* ---- wire_in.c --------------------------------------------------------------------------- */

struct sheaf__wire_in {
    const sheaf_source *source;
    sheaf__memory *memory;
    sheaf_error *err;
    sheaf__hash_state *hash;
    unsigned char *buffer; /* [SHEAF__WIRE_IN], of which [begin, end) is not consumed yet */
    uint32_t begin, end;
    uint64_t offset;  /* of the next byte in the stream */
    uint64_t certain; /* bytes that the stream has for certain: none beyond is asked for */
    uint64_t ahead;   /* as far as this may be asked for before it is needed */
    uint64_t n_bytes; /* of the whole stream, once HEAD has been read */
    uint64_t total;
    uint32_t n_frames;
    uint32_t kind; /* of the frame at work */
    uint64_t frame_offset;
    uint64_t frame_bytes; /* of its payload */
    uint64_t left;        /* of that, not consumed */
    sheaf_frame_fn *on_frame;
    void *on_frame_ctx;
};

/* Begins a stream: the prologue. End it also after a failure. SHEAF_E_FORMAT, SHEAF_E_FOREIGN (the
 * version), SHEAF_E_IO or what the source said, SHEAF_E_NO_MEMORY. */
SHEAF_WARN sheaf_status sheaf__wire_in_begin(sheaf__wire_in *in, const sheaf_source *source,
                                             sheaf__memory *memory, sheaf_error *err);
void sheaf__wire_in_end(sheaf__wire_in *in);

/* Reads a frame's header. SHEAF_E_FORMAT: it is of another kind, or does not fit in the stream. */
SHEAF_WARN sheaf_status sheaf__wire_in_open(sheaf__wire_in *in, uint32_t kind);

/* Reads part of the payload; `data` null: only hashes it. SHEAF_E_FORMAT: the frame ends before. */
SHEAF_WARN sheaf_status sheaf__wire_in_get(sheaf__wire_in *in, void *data, uint64_t size);

/* The payload must have been consumed. SHEAF_E_DAMAGED: the checksum. */
SHEAF_WARN sheaf_status sheaf__wire_in_close(sheaf__wire_in *in);

/* DONE. */
SHEAF_WARN sheaf_status sheaf__wire_in_finish(sheaf__wire_in *in);

/* The BLCK of this number, up to its tiles. */
SHEAF_WARN sheaf_status sheaf__wire_in_open_block(sheaf__wire_in *in,
                                                  const sheaf__wire_head *head, uint32_t group,
                                                  uint64_t number);

/* The whole BLCK into a block of the pool. */
SHEAF_WARN sheaf_status sheaf__wire_in_block(sheaf__wire_in *in, const sheaf__wire_head *head,
                                             const sheaf_pool *pool, sheaf_block block,
                                             uint64_t number);

/* A sentence about what was read: says where in the stream. Returns SHEAF_E_FORMAT. */
sheaf_status sheaf__wire_in_wrong(const sheaf__wire_in *in, const char *what);

/* ---- sequences as they are read: wire_scan.c --------------------------------------------- */

/* The counts at the front of a SEQN. */
typedef struct sheaf__wire_sequence {
    uint32_t n_tokens;
    uint32_t reserved; /* 0 */
    struct {
        uint32_t first;
        uint32_t n;
    } held[SHEAF_MAX_GROUPS];
} sheaf__wire_sequence;

/* Opens a SEQN and checks its counts; tokens and lists come next. Adds to *n_tokens. */
SHEAF_WARN sheaf_status sheaf__wire_in_open_sequence(sheaf__wire_in *in,
                                                     const sheaf__wire_head *head,
                                                     sheaf__wire_sequence *sequence,
                                                     uint64_t *n_tokens);

/* Takes numbers of blocks as a list names them: known ones, or the next new one. */
SHEAF_WARN sheaf_status sheaf__wire_in_name(const sheaf__wire_in *in,
                                            const sheaf__wire_head *head, uint32_t group,
                                            uint32_t number, uint64_t *n_named);

/* Whether the sequences were as many tokens, and named as many blocks, as HEAD says. */
SHEAF_WARN sheaf_status sheaf__wire_in_named_all(const sheaf__wire_in *in,
                                                 const sheaf__wire_head *head,
                                                 uint64_t n_tokens, const uint64_t *n_named);

/* ---- wire_block.c ------------------------------------------------------------------------ */

#define SHEAF__WIRE_MAX_TOKENS 1024 /* of a block: the largest that a layout may have */

/* NAME; computes the key again. Either output may be null.
 * tokens: [SHEAF__WIRE_MAX_TOKENS]. */
SHEAF_WARN sheaf_status sheaf__wire_in_names(sheaf__wire_in *in, const sheaf__wire_head *head,
                                             sheaf_key *key, int32_t *tokens);

/* ---- wire_load.c ------------------------------------------------------------------------- */

/* Where loaded sequences go. */
typedef struct sheaf__wire_places {
    sheaf_parked **parked; /* [capacity] */
    uint32_t capacity;
    uint32_t *n;
} sheaf__wire_places;

/* As sheaf_wire_load; n_bytes: what the stream must have, 0: any number. */
SHEAF_WARN sheaf_status sheaf__wire_load(sheaf_pool *pool, const sheaf_key *space,
                                         const sheaf_source *source, uint64_t n_bytes,
                                         const sheaf__wire_places *places, sheaf_error *err);

/* What a scan tells as it reads; any may be null. */
typedef struct sheaf__wire_hooks {
    void *ctx;
    sheaf_frame_fn *on_frame;
    void (*on_sequence)(void *ctx, const sheaf__wire_sequence *sequence);
    void (*on_key)(void *ctx, const sheaf_key *key); /* of a single block */
    /* of a sequence or a block, from the first */
    void (*on_tokens)(void *ctx, const int32_t *tokens, uint32_t n);
} sheaf__wire_hooks;

/* sheaf_wire_scan that tells more. */
SHEAF_WARN sheaf_status sheaf__wire_scan(const sheaf_source *source,
                                         const sheaf__wire_hooks *hooks, sheaf_wire_info *out,
                                         sheaf_error *err);

/* ---- wire_fd.c --------------------------------------------------------------------------- */

/* A descriptor and what the system said of it last. */
typedef struct sheaf__wire_fd {
    int fd;
    int error; /* errno; 0: nothing */
} sheaf__wire_fd;

sheaf_sink sheaf__wire_fd_sink(sheaf__wire_fd *file);
sheaf_source sheaf__wire_fd_source(sheaf__wire_fd *file);

#endif
