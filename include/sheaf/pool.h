/* sheaf/pool.h - which blocks exist, where they lie, and who holds them.
 *
 * Owns: the layout (what a block is made of), the reserved address ranges, slabs, block handles
 * and reference counts, the byte budget and the statistics of all these. Does not own: tokens,
 * sequences, models; it never looks into a block.
 *
 *     sheaf_layer layers[28] = {{.n_kv_heads = 8, .key_dim = 128, .value_dim = 128,
 *                                .codec_k = SHEAF_CODEC_BF16, .codec_v = SHEAF_CODEC_BF16}, ...};
 *     sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
 *     o.layers = layers, o.n_layers = 28, o.budget_bytes = 4ull << 30;
 *     sheaf_pool *pool = NULL;
 *     sheaf_status st = sheaf_pool_open(&o, &pool, &err);
 *     ... sequences (sheaf/cache.h) ...
 *     st = sheaf_pool_close(pool);
 *
 * Words. A block is `block_tokens` consecutive positions, K and V of all layers of one group. A
 * group is the layers that share one window, numbered in the order in which their windows first
 * appear. A slab is `slab_blocks` blocks of one group, committed to memory at once. A row is a
 * block's index in its group. In memory:
 *
 *     base(group) -> | row 0 | row 1 | ... | row slab_blocks-1 | row slab_blocks | ...
 *                    |<------------- slab 0 ------------------>|<---- slab 1 ...
 *     row            -> | layer a: K tile, V tile | layer b: K tile, V tile | ... | padding |
 *     tile           -> | head 0: block_tokens positions | head 1 | ...
 *
 * A row's address never changes while the block lives; growth moves nothing and copies nothing.
 * Padding rounds tiles to 64 bytes, and rows so that a slab is a whole number of pages; it is
 * counted, since it is memory.
 */
#ifndef SHEAF_POOL_H
#define SHEAF_POOL_H

#include "sheaf/codec.h"
#include "sheaf/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SHEAF_MAX_GROUPS 8
#define SHEAF_MAX_LAYERS 1024

typedef struct sheaf_pool sheaf_pool;

/* One layer of the layout. value_dim may be 0 (then there is no V tile and codec_v is ignored).
 * window: 0, or the number of positions a query sees, its own included. */
typedef struct sheaf_layer {
    uint32_t n_kv_heads;
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t window;
    uint32_t codec_k;
    uint32_t codec_v;
} sheaf_layer;

/* Slab memory. All sizes and addresses are multiples of `granularity` (a power of two from 64).
 *   reserve   an address range without memory behind it, or null. Once a group, at open, for
 *             budget_bytes / slab_bytes + 1 slabs, with several groups twice as many
 *   commit    puts readable and writable memory behind part of it, a slab at a time; non-zero when
 *             there is none: the caller's request is answered with SHEAF_FULL
 *   decommit  gives that memory back; the range stays reserved. Exactly a range once committed
 *   release   gives the whole range back, at close; nothing in it is committed any more
 * Fresh memory need not be zero. Called by the pool's thread within its calls, and must not call
 * them; `ctx` outlives the pool.
 *
 * The system's own commits by giving access: pages come when they are first touched, and a system
 * that promises more than it has may then end the process, where limits on addresses and data
 * (RLIMIT_AS, RLIMIT_DATA) or strict accounting give an answer. A host that must be certain sets a
 * budget that the machine has, or brings memory that is filled when it is committed. */
typedef struct sheaf_slab_memory {
    void *ctx;
    uint64_t granularity;
    void *(*reserve)(void *ctx, uint64_t bytes);
    int (*commit)(void *ctx, void *addr, uint64_t bytes);
    void (*decommit)(void *ctx, void *addr, uint64_t bytes);
    void (*release)(void *ctx, void *addr, uint64_t bytes);
} sheaf_slab_memory;

/* Where slabs lie if not in the machine's own memory: a GPU (sheaf/cuda.h). Outlives its pools. */
typedef struct sheaf_device sheaf_device;

/* Options of a pool. Copied by sheaf_pool_open; nothing in it need outlive the call. */
typedef struct sheaf_pool_options {
    uint32_t struct_size;
    uint32_t n_layers;
    const sheaf_layer *layers; /* [n_layers] */
    uint64_t budget_bytes; /* all slabs of all groups; 0: the machine's (or device's) memory */
    uint32_t block_tokens; /* a power of two, 1 to 1024; 0: 32 */
    uint32_t slab_blocks;  /* a power of two up to 65536; 0: 32, halved while a slab
                                      would pass 64 MiB */
    uint32_t slack_slabs;  /* empty slabs kept committed, per group; see no_slack */
    uint32_t no_slack;     /* non-zero: slack_slabs is meant as given, also 0; else
                                      slack_slabs 0 stands for 1 */
    const sheaf_allocator *allocator;     /* null: the C library's */
    const sheaf_slab_memory *slab_memory; /* null: the system's anonymous memory */
    sheaf_device *device;                 /* null: the processor; else slab_memory is null */
} sheaf_pool_options;
#define SHEAF_POOL_OPTIONS_INIT SHEAF_STRUCT_INIT(sheaf_pool_options)

/* What follows from a layout, per group. */
typedef struct sheaf_group_info {
    uint32_t struct_size;
    uint32_t n_layers;
    uint32_t window;
    uint32_t slab_blocks;
    uint64_t block_bytes; /* bytes from one row to the next, padding included */
    uint64_t tile_bytes;  /* of these, bytes of tiles */
    uint64_t slab_bytes;
    uint64_t max_rows; /* rows the reserved range has room for */
} sheaf_group_info;
#define SHEAF_GROUP_INFO_INIT SHEAF_STRUCT_INIT(sheaf_group_info)

/* Where a layer lies inside the blocks of its group. */
typedef struct sheaf_layer_info {
    uint32_t struct_size;
    uint32_t group;
    uint64_t k_offset;        /* bytes from the block's start to the K tile */
    uint64_t v_offset;        /* to the V tile; equal to the tile's end when value_dim is 0 */
    uint64_t k_segment_bytes; /* one head's part of the K tile */
    uint64_t v_segment_bytes;
} sheaf_layer_info;
#define SHEAF_LAYER_INFO_INIT SHEAF_STRUCT_INIT(sheaf_layer_info)

/* A block: its group, its row, and the generation that tells this use of the row from others. */
typedef struct sheaf_block {
    uint32_t group;
    uint32_t row;
    uint32_t generation;
} sheaf_block;
#define SHEAF_ROW_NONE UINT32_MAX

/* Kinds of owner. Each owner holds one reference. Who takes blocks through this header does so as
 * HOST or IO: sheaf_pool_check compares the other kinds with what sequences and trees name. */
enum {
    SHEAF_OWNER_TABLE = 0,  /* a running sequence's table */
    SHEAF_OWNER_PARKED = 1, /* a parked sequence */
    SHEAF_OWNER_TREE = 2,   /* a node of a prefix cache */
    SHEAF_OWNER_IO = 3,     /* a copy, save or load in flight */
    SHEAF_OWNER_HOST = 4    /* the embedder itself */
};
#define SHEAF_OWNER_KINDS 5

/* A point in a device's work: blocks freed at a fence are reused only once it has passed. The
 * CPU has none: its fences are empty (0), and have always passed. */
typedef struct sheaf_fence {
    uint64_t value;
} sheaf_fence;

/* Opens a pool: checks the layout, reserves the ranges, commits nothing.
 * SHEAF_E_LAYOUT, SHEAF_E_OVERFLOW, SHEAF_E_CODEC, SHEAF_E_INVALID: `err` names the field.
 * SHEAF_E_NO_MEMORY: no host memory, or no address range (a smaller budget takes a smaller one).
 * SHEAF_E_LAYOUT also when the budget holds not one block of each group. SHEAF_E_DEVICE. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_open(const sheaf_pool_options *options,
                                                  sheaf_pool **out, sheaf_error *err);

/* Gives everything back; pointers and handles from it are void. SHEAF_E_BUSY: blocks are still
 * held or retiring, or sequences, parked ones too, open; the pool stays open. Null is allowed. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_close(sheaf_pool *pool);

/* SHEAF_E_BUSY: a pool is open on the device, which stays open. Null is allowed. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_device_close(sheaf_device *device);

/* ---- layout ------------------------------------------------------------------------------ */

/* Numbers of layers and groups, and positions a block. */
SHEAF_API uint32_t sheaf_pool_layers(const sheaf_pool *pool);
SHEAF_API uint32_t sheaf_pool_groups(const sheaf_pool *pool);
SHEAF_API uint32_t sheaf_pool_block_tokens(const sheaf_pool *pool);

/* A digest of all that makes two pools' blocks interchangeable: block_tokens and every layer's
 * fields. Equal in every process and on every machine. */
SHEAF_API uint64_t sheaf_pool_fingerprint(const sheaf_pool *pool);

/* Fill *out. Head h's K of a row lies at row + k_offset + h * k_segment_bytes; sheaf_codec_encode
 * and _decode work on it. SHEAF_E_INVALID: no such layer or group, or struct_size is not set. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_layer(const sheaf_pool *pool, uint32_t layer,
                                                   sheaf_layer *out);
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_layer_info(const sheaf_pool *pool, uint32_t layer,
                                                        sheaf_layer_info *out);
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_group_info(const sheaf_pool *pool, uint32_t group,
                                                        sheaf_group_info *out);

/* ---- blocks ------------------------------------------------------------------------------ */

/* Takes counts[g] blocks of each group g, from the fullest slabs that have room; commits slabs as
 * needed, taking back other groups' empty slabs first. All or nothing.
 *   counts: [n_groups]; blocks: [sum of counts], group 0's first. One reference each, of `owner`.
 * SHEAF_FULL: the budget, the range or the system has no room; no block has changed hands, but
 * empty slabs taken back before the system refused stay given back. SHEAF_E_NO_MEMORY: no host
 * memory for the records of new slabs. (After either, host_bytes may be more: what was prepared
 * is kept.) SHEAF_E_DEVICE: the device has failed, now or before, and nothing is taken any more.
 * The blocks' content is undefined. O(blocks), plus the new slabs. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_acquire(sheaf_pool *pool, const uint32_t *counts,
                                                     uint32_t owner, sheaf_block *blocks);

/* SHEAF_OK or SHEAF_FULL as sheaf_pool_acquire would answer now, the system's memory aside. Advice
 * only. Like acquire it looks, before it says SHEAF_FULL, whether retiring blocks have become free. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_can_acquire(const sheaf_pool *pool,
                                                         const uint32_t *counts);

/* Commits, in one step, the slabs that taking counts[g] blocks of each group will need.
 * Presized slabs stay until they have been used, or another group needs their bytes.
 * SHEAF_FULL, SHEAF_E_NO_MEMORY: nothing was committed. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_presize(sheaf_pool *pool, const uint32_t *counts);

/* Adds a reference. SHEAF_E_STALE: the handle names no live block. SHEAF_E_OVERFLOW: too many.
 * SHEAF_E_INVALID, here and below: no such kind of owner. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_retain(sheaf_pool *pool, sheaf_block block,
                                                    uint32_t owner);

/* Drops a reference; with the last one the block is free, and empty slabs beyond the slack go back
 * to the system. SHEAF_E_STALE; SHEAF_E_NOT_OWNED: no reference of that kind. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_release(sheaf_pool *pool, sheaf_block block,
                                                     uint32_t owner);

/* As sheaf_pool_release, but the row is reused only when `fence` has passed; until then the block
 * counts as retiring. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_release_after(sheaf_pool *pool, sheaf_block block,
                                                           uint32_t owner, sheaf_fence fence);

/* Turns one reference of kind `from` into one of kind `to`. SHEAF_E_STALE, SHEAF_E_NOT_OWNED. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_transfer(sheaf_pool *pool, sheaf_block block,
                                                      uint32_t from, uint32_t to);

/* Takes back the references of copies that are done (sheaf/cuda.h), and frees retiring blocks
 * whose fences have passed; returns how many of both are left. */
SHEAF_API uint64_t sheaf_pool_poll(sheaf_pool *pool);

/* Copies a whole block: one memcpy of block_bytes, which a device only queues. SHEAF_E_STALE;
 * SHEAF_E_INVALID: of two groups; SHEAF_E_DEVICE. Who else holds `to` sees the change. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_copy(sheaf_pool *pool, sheaf_block from,
                                                  sheaf_block to);

/* The block's first byte, valid while it is held; an address of the device where the pool has
 * one, not for the host to follow. SHEAF_E_STALE. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_address(sheaf_pool *pool, sheaf_block block,
                                                     void **out);

/* The number of references to the block, and of each kind. `by_kind` may be null, else
 * [SHEAF_OWNER_KINDS]. SHEAF_E_STALE. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_references(const sheaf_pool *pool,
                                                        sheaf_block block, uint32_t *total,
                                                        uint32_t *by_kind);

/* Address of row 0 of a group: row r lies at base + r * block_bytes. Null: no such group. Valid
 * until close; rows of slabs that are not committed must not be touched. */
SHEAF_API const void *sheaf_pool_base(const sheaf_pool *pool, uint32_t group);

/* ---- inspection -------------------------------------------------------------------------- */

/* All bytes are real: a committed slab counts whole, padding and unused rows included. */
typedef struct sheaf_pool_stats {
    uint32_t struct_size;
    uint32_t n_groups;
    uint64_t budget_bytes;
    uint64_t bytes_reserved; /* memory committed to slabs; never above budget_bytes */
    uint64_t bytes_in_use;   /* blocks held, times their block_bytes */
    uint64_t bytes_retiring;
    uint64_t bytes_shared;    /* blocks with more than one reference, once each */
    uint64_t bytes_address;   /* address range reserved; no memory by itself */
    uint64_t host_bytes;      /* taken from the allocator by the pool and all opened on it */
    uint64_t blocks_capacity; /* free + held + retiring */
    uint64_t blocks_free;
    uint64_t blocks_held;
    uint64_t blocks_retiring;
    uint64_t blocks_shared;
    uint64_t owners[SHEAF_OWNER_KINDS]; /* references by kind */
    uint64_t slabs;                     /* committed now */
    uint64_t slabs_empty;
    uint64_t slab_appends;  /* committed ever */
    uint64_t slab_releases; /* given back ever */
    uint64_t slab_failures; /* commits that the system refused */
    uint64_t blocks_acquired;
    uint64_t blocks_released;
    uint64_t full_answers;  /* requests answered with SHEAF_FULL */
    uint64_t blocks_copied; /* by sheaf_pool_copy and sheaf_pool_compact */
    uint64_t bytes_copied;
    uint64_t bytes_copied_by_growth; /* always 0 */
    uint64_t
        slabs_least; /* that would hold what is in use: the rest of `slabs` is fragmentation */
} sheaf_pool_stats;
#define SHEAF_POOL_STATS_INIT SHEAF_STRUCT_INIT(sheaf_pool_stats)

/* A consistent snapshot, as it stood after the last call that changed the pool. Any thread, without
 * a lock; a reader may spin while the writer publishes. SHEAF_E_INVALID: struct_size is zero. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_stats_read(const sheaf_pool *pool,
                                                        sheaf_pool_stats *out);

/* The same counts for one group: blocks_*, slabs*, bytes_* fields; the others are 0. Owner thread. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_group_stats(const sheaf_pool *pool, uint32_t group,
                                                         sheaf_pool_stats *out);

/* Verifies the numbered invariants at the top of src/pool/pool.c. SHEAF_E_CORRUPT: `err` names the
 * first that is broken. O(rows). */
SHEAF_API SHEAF_WARN sheaf_status sheaf_pool_check(const sheaf_pool *pool, sheaf_error *err);

#ifdef __cplusplus
}
#endif
#endif
