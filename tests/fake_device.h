/* tests/fake_device.h - a device whose memory the host cannot touch, without any hardware.
 *
 * What it hands out as addresses are pages without access: who follows one without going through
 * the door crashes. The bytes lie in a second mapping that only the hooks know. Copies and poison
 * are queued, as on a GPU, and done when a read, a write or a fence asks for what came before;
 * fences pass when the test says so.
 */
#ifndef SHEAF_TESTS_FAKE_DEVICE_H
#define SHEAF_TESTS_FAKE_DEVICE_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "pool/device.h"
#include "testing.h"

#define FAKE_RANGES 16
#define FAKE_QUEUE  256

typedef struct fake_range {
    unsigned char *addr;   /* without access */
    unsigned char *shadow; /* the bytes */
    uint64_t bytes;
} fake_range;

typedef struct fake_work {
    unsigned char *to;
    const unsigned char *from; /* null: poison */
    uint64_t bytes;
} fake_work;

typedef struct fake_device {
    sheaf_device base;
    fake_range ranges[FAKE_RANGES];
    fake_work queue[FAKE_QUEUE];
    uint32_t n_queued;
    uint64_t committed_bytes;
    uint64_t passed; /* fences up to this value have */
    uint64_t reads, writes, copies;
    uint64_t
        fail_at; /* the read, write or copy of this number, counted together, and all after; 0: none */
    bool closed;
} fake_device;

static inline unsigned char *fake_shadow(const fake_device *f, const void *addr, uint64_t bytes)
{
    const unsigned char *a = addr;
    for (uint32_t i = 0; i < FAKE_RANGES; i++) {
        const fake_range *r = &f->ranges[i];
        if (r->addr != NULL && a >= r->addr && a + bytes <= r->addr + r->bytes)
            return r->shadow + (a - r->addr);
    }
    fail_msg("an address that is not the device's");
    return NULL;
}

static inline void *fake_reserve(void *ctx, uint64_t bytes)
{
    fake_device *f = ctx;
    uint32_t i = 0;
    while (i < FAKE_RANGES && f->ranges[i].addr != NULL) i++;
    assert_true(i < FAKE_RANGES);
    fake_range r = {.bytes = bytes};
    r.addr = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    r.shadow = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r.addr == MAP_FAILED || r.shadow == MAP_FAILED) return NULL;
    f->ranges[i] = r;
    return r.addr;
}

static inline int fake_commit(void *ctx, void *addr, uint64_t bytes)
{
    fake_device *f = ctx;
    memset(fake_shadow(f, addr, bytes), 0xff, bytes);
    f->committed_bytes += bytes;
    return 0;
}

static inline void fake_decommit(void *ctx, void *addr, uint64_t bytes)
{
    fake_device *f = ctx;
    (void)addr;
    f->committed_bytes -= bytes;
}

static inline void fake_release(void *ctx, void *addr, uint64_t bytes)
{
    fake_device *f = ctx;
    f->n_queued = 0;
    for (uint32_t i = 0; i < FAKE_RANGES; i++)
        if (f->ranges[i].addr == addr) {
            munmap(addr, bytes);
            munmap(f->ranges[i].shadow, bytes);
            f->ranges[i] = (fake_range){0};
        }
}

static inline void fake_settle(fake_device *f)
{
    for (uint32_t i = 0; i < f->n_queued; i++) {
        const fake_work *w = &f->queue[i];
        if (w->from != NULL)
            memmove(w->to, w->from, w->bytes);
        else
            memset(w->to, 0xff, w->bytes);
    }
    f->n_queued = 0;
}

static inline void fake_push(fake_device *f, unsigned char *to, const unsigned char *from,
                             uint64_t bytes)
{
    if (f->n_queued == FAKE_QUEUE) fake_settle(f);
    f->queue[f->n_queued++] = (fake_work){to, from, bytes};
}

static inline bool fake_fails(const fake_device *f)
{
    return f->fail_at != 0 && f->reads + f->writes + f->copies >= f->fail_at;
}

static inline sheaf_status fake_copy(void *ctx, void *to, const void *from, uint64_t bytes)
{
    fake_device *f = ctx;
    f->copies++;
    if (fake_fails(f)) return SHEAF_E_DEVICE;
    fake_push(f, fake_shadow(f, to, bytes), fake_shadow(f, from, bytes), bytes);
    return SHEAF_OK;
}

static inline sheaf_status fake_read(void *ctx, void *to, const void *from, uint64_t bytes)
{
    fake_device *f = ctx;
    f->reads++;
    if (fake_fails(f)) return SHEAF_E_DEVICE;
    fake_settle(f);
    memcpy(to, fake_shadow(f, from, bytes), bytes);
    return SHEAF_OK;
}

static inline sheaf_status fake_write(void *ctx, void *to, const void *from, uint64_t bytes)
{
    fake_device *f = ctx;
    f->writes++;
    if (fake_fails(f)) return SHEAF_E_DEVICE;
    fake_settle(f);
    memcpy(fake_shadow(f, to, bytes), from, bytes);
    return SHEAF_OK;
}

static inline void fake_poison(void *ctx, void *addr, uint64_t bytes)
{
    fake_push(ctx, fake_shadow(ctx, addr, bytes), NULL, bytes);
}

static inline bool fake_fence_passed(void *ctx, sheaf_fence fence)
{
    return fence.value <= ((fake_device *)ctx)->passed;
}

static inline void fake_close(sheaf_device *device)
{
    ((fake_device *)device)->closed = true;
}

/* granularity: a power of two from the system's page on. */
static inline sheaf_device *fake_open(fake_device *f, uint64_t granularity)
{
    memset(f, 0, sizeof *f);
    f->base.close = fake_close;
    f->base.door = (sheaf__device){
        .kind = "cuda",
        .memory = {f, granularity, fake_reserve, fake_commit, fake_decommit, fake_release},
        .memory_bytes = 1ull << 30,
        .ctx = f,
        .copy = fake_copy,
        .read = fake_read,
        .write = fake_write,
        .poison = fake_poison,
        .fence_passed = fake_fence_passed};
    return &f->base;
}

#endif
