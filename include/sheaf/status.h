/* sheaf/status.h - what every call answers, and the conventions all headers share.
 *
 * Owns: the status codes of all floors, their texts, the error sentence, the element types and
 * the version. Does not own: anything that allocates or has state.
 *
 *     sheaf_error err;
 *     sheaf_pool *pool = NULL;
 *     sheaf_status st = sheaf_pool_open(&options, &pool, &err);
 *     if (st < 0) fprintf(stderr, "%s\n", err.text);          // a fault: nothing was made
 *     st = sheaf_sequence_extend(seq, 32);
 *     if (st == SHEAF_FULL) make_room();                      // an answer: nothing has changed
 *
 * Conventions of the whole library:
 *  - 0 is success, positive values are answers, negative values are faults. Functions are all or
 *    nothing unless they say otherwise: after an answer or a fault the state is as before.
 *  - Outputs come last and are untouched on failure; the one exception is `sheaf_error *err`.
 *  - A null pointer is SHEAF_E_INVALID unless it is allowed. Functions that return no status are
 *    accessors: their object must be there (destroy and close take null).
 *  - Structs that carry `struct_size` are set by their initialiser macro before the call, outputs
 *    too; fields left zero mean the default; fields are only ever appended.
 *  - The library never prints, exits, aborts or waits for anything but its own computing.
 *  - A pool and everything opened on it belong to one thread at a time, as does a plan; different
 *    pools and plans to different threads at once. Functions that any thread may call say so.
 *  - Calls take the time of what they say they do; where it is not constant, it is said.
 */
#ifndef SHEAF_STATUS_H
#define SHEAF_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHEAF_VERSION_MAJOR 0
#define SHEAF_VERSION_MINOR 1
#define SHEAF_VERSION_PATCH 0

#if defined(__GNUC__)
#    define SHEAF_API  __attribute__((visibility("default")))
#    define SHEAF_WARN __attribute__((warn_unused_result))
#else
#    define SHEAF_API
#    define SHEAF_WARN
#endif

/* What the initialiser macros of structs with `struct_size` stand for: every other field zero, in C
 * and in C++ from C++11 on. */
#ifdef __cplusplus
#    define SHEAF_STRUCT_INIT(type)                                                            \
        ([] {                                                                                  \
            type zero_ = type();                                                               \
            zero_.struct_size = static_cast<uint32_t>(sizeof(type));                           \
            return zero_;                                                                      \
        }())
#else
#    define SHEAF_STRUCT_INIT(type)                                                            \
        {                                                                                      \
            .struct_size = sizeof(type)                                                        \
        }
#endif

/* Status of a call. Never renumbered; texts from sheaf_status_text(). */
typedef int32_t sheaf_status;

enum {
    /* answers */
    SHEAF_OK = 0,
    SHEAF_FULL = 1,    /* no room within the budget, or the system gave no memory for slabs */
    SHEAF_PENDING = 2, /* not finished yet */
    SHEAF_MISS = 3,    /* nothing found */
    SHEAF_REFUSED = 4, /* not taken: a limit forbids it, and the ledger says which */

    /* base: -1 to -9 */
    SHEAF_E_INVALID = -1,     /* an argument no call accepts: null, zero, out of range */
    SHEAF_E_NO_MEMORY = -2,   /* the allocator returned null, or no address range */
    SHEAF_E_OVERFLOW = -3,    /* a size does not fit 64 bits (or the address space) */
    SHEAF_E_IO = -4,          /* the system refused a file or thread operation */
    SHEAF_E_UNSUPPORTED = -5, /* this build, processor or combination cannot do it */
    SHEAF_E_BUSY = -6,        /* the object is in use: blocks held, positions reserved */

    /* codec: -10 to -19 */
    SHEAF_E_CODEC = -10, /* unknown codec, or one that cannot encode this shape */

    /* pool: -20 to -29 */
    SHEAF_E_LAYOUT = -20,    /* the layout is incomplete or contradictory */
    SHEAF_E_STALE = -21,     /* the handle's block was freed since, or never existed */
    SHEAF_E_NOT_OWNED = -22, /* the block has no owner of that kind to release */
    SHEAF_E_CORRUPT = -23,   /* a check function found a broken invariant: a bug */
    SHEAF_E_DEVICE = -24,    /* the device failed: do not trust what it computed or copied */

    /* cache: -30 to -39 */
    SHEAF_E_RANGE = -30,     /* positions outside what is reserved or committed */
    SHEAF_E_UNWRITTEN = -31, /* commit of positions that some layer has not written */
    SHEAF_E_SLID = -32,      /* the window has let go of positions this needs */
    SHEAF_E_SHAPE = -33,     /* heads, dimensions or element type differ from the layout's */
    SHEAF_E_FOREIGN = -34,   /* of another layout, namespace or version */
    SHEAF_E_DAMAGED = -35,   /* a checksum does not match */

    /* attn: -40 to -49 */
    SHEAF_E_PLAN = -40,      /* views do not fit the batch that was planned */
    SHEAF_E_NONFINITE = -41, /* a result is not finite */

    /* model: -50 to -59 */
    SHEAF_E_FORMAT = -50,  /* a file breaks its format */
    SHEAF_E_CONFIG = -51,  /* a model or tokenizer setting is missing or impossible */
    SHEAF_E_ARCH = -52,    /* an architecture, tokenizer or template not known here */
    SHEAF_E_CONTEXT = -53, /* more positions than the model or the context size allows */

    /* engine: -60 to -69, server: -70 to -79, command line: -80 to -89 */
    SHEAF_E_CANCELLED = -60, /* asked to stop */
    SHEAF_E_USAGE = -80      /* a flag or environment value is impossible */
};

/* The sentence behind a fault: names the file or field. `text` ends with a zero byte. Written on
 * failure alone; where a function takes one, null is allowed. */
typedef struct sheaf_error {
    sheaf_status status;
    char text[256];
} sheaf_error;

/* A constant text for any status, known or not. Any thread. */
SHEAF_API const char *sheaf_status_text(sheaf_status status);

/* The library's version, "0.1.0". Any thread. */
SHEAF_API const char *sheaf_version(void);

/* Types of the numbers that a caller hands in or takes out. */
enum { SHEAF_DTYPE_F32 = 0, SHEAF_DTYPE_F16 = 1, SHEAF_DTYPE_BF16 = 2 };
#define SHEAF_DTYPE_COUNT 3

/* Instruction sets of the kernels. SHEAF_ISA_AUTO picks the best that the processor has; naming
 * one that it lacks is SHEAF_E_UNSUPPORTED. All give the same bits. */
enum {
    SHEAF_ISA_AUTO = 0,
    SHEAF_ISA_SCALAR = 1,
    SHEAF_ISA_AVX2 = 2,
    SHEAF_ISA_AVX512 = 3,
    SHEAF_ISA_NEON = 4
};

/* The instruction set that SHEAF_ISA_AUTO stands for here. Any thread. */
SHEAF_API uint32_t sheaf_isa_best(void);

/* Sets *resolved to `isa`, or to the best one for SHEAF_ISA_AUTO.
 * SHEAF_E_UNSUPPORTED: the processor or this build lacks it. SHEAF_E_INVALID: no such number. */
SHEAF_API SHEAF_WARN sheaf_status sheaf_isa_resolve(uint32_t isa, uint32_t *resolved);

/* "auto", "scalar", "avx2", "avx512", "neon", or "unknown". Any thread. */
SHEAF_API const char *sheaf_isa_name(uint32_t isa);

/* Host memory. `alloc` returns `size` bytes (never 0) of any content, aligned to `align` (a power
 * of two), or null, which the caller of the library sees as SHEAF_E_NO_MEMORY; `free` gets back
 * the same size and alignment, and never null. Called only from the thread that calls the library,
 * and must not call it. `ctx` outlives what was opened with it. */
typedef struct sheaf_allocator {
    void *ctx;
    void *(*alloc)(void *ctx, uint64_t size, uint64_t align);
    void (*free)(void *ctx, void *ptr, uint64_t size, uint64_t align);
} sheaf_allocator;

/* Worker threads for the calls that compute: the calling thread plus n_threads - 1 others, which
 * sleep between calls. One group serves any number of plans, one call at a time; it is destroyed
 * after them. Memory from the C library.
 * n_threads: 1 to 256; 0 means one per online processor.
 * SHEAF_E_IO: the system started no thread. SHEAF_E_NO_MEMORY. */
typedef struct sheaf_threads sheaf_threads;
SHEAF_API SHEAF_WARN sheaf_status sheaf_threads_create(uint32_t n_threads, sheaf_threads **out);
SHEAF_API void sheaf_threads_destroy(sheaf_threads *threads);         /* null is allowed */
SHEAF_API uint32_t sheaf_threads_count(const sheaf_threads *threads); /* null counts as 1 */

#ifdef __cplusplus
}
#endif
#endif
