/* pool/device.c - slab memory of the processor: anonymous memory of the system.
 *
 * A reserved range is a mapping without access and without swap reserved for it. Committing gives
 * it access; the system puts pages behind it as they are first touched, huge ones where a slab has
 * room for one. Decommitting maps fresh, inaccessible memory over the slab, which is what gives
 * the pages back at once and makes a stray access fault instead of reading old numbers.
 */
#include "pool/device.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/memory.h"

#define POISON_BYTE 0xff /* 0xffffffff, 0xffff: NaN in f32, f16 and bf16 */

static void *map_nothing(void *addr, uint64_t bytes, int extra_flags)
{
    if (bytes > SIZE_MAX) return MAP_FAILED;
    return mmap(addr, bytes, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | extra_flags, -1, 0);
}

/* Huge pages are aligned, so the range starts at a multiple of one where it can hold one: map that
 * much more, and cut off both ends. */
static void *system_reserve(void *ctx, uint64_t bytes)
{
    (void)ctx;
    uint64_t extra = bytes >= SHEAF__HUGE_PAGE ? SHEAF__HUGE_PAGE : 0, total;
    if (!sheaf__add_u64(bytes, extra, &total)) return NULL;
    unsigned char *start = map_nothing(NULL, total, 0);
    if (start == MAP_FAILED) return NULL;
    if (extra == 0) return start;
    uint64_t head = (uint64_t) - (uintptr_t)start & (SHEAF__HUGE_PAGE - 1);
    if (head != 0) munmap(start, head);
    munmap(start + head + bytes, extra - head);
    return start + head;
}

static int system_commit(void *ctx, void *addr, uint64_t bytes)
{
    (void)ctx;
    if (mprotect(addr, bytes, PROT_READ | PROT_WRITE) != 0) return -1;
#ifdef MADV_HUGEPAGE
    if (bytes >= SHEAF__HUGE_PAGE)
        madvise(addr, bytes, MADV_HUGEPAGE); /* advice: may be refused */
#endif
    return 0;
}

static void system_decommit(void *ctx, void *addr, uint64_t bytes)
{
    (void)ctx;
    if (map_nothing(addr, bytes, MAP_FIXED) != MAP_FAILED) return;
    /* No mapping to spare (their number is limited): give the pages back in place. */
    madvise(addr, bytes, MADV_DONTNEED);
    mprotect(addr, bytes, PROT_NONE);
}

static void system_release(void *ctx, void *addr, uint64_t bytes)
{
    (void)ctx;
    munmap(addr, bytes);
}

static sheaf_status cpu_copy(void *ctx, void *to, const void *from, uint64_t bytes)
{
    (void)ctx;
    memcpy(to, from, bytes);
    return SHEAF_OK;
}

static void cpu_poison(void *ctx, void *addr, uint64_t bytes)
{
    (void)ctx;
    memset(addr, POISON_BYTE, bytes);
}

static bool cpu_fence_passed(void *ctx, sheaf_fence fence)
{
    (void)ctx, (void)fence;
    return true;
}

sheaf__device sheaf__device_cpu(const sheaf_slab_memory *memory)
{
    sheaf__device device = {.kind = "cpu",
                            .copy = cpu_copy,
                            .poison = cpu_poison,
                            .fence_passed = cpu_fence_passed};
    if (memory != NULL) {
        device.memory = *memory;
        return device;
    }
    long page = sysconf(_SC_PAGESIZE);
    device.memory = (sheaf_slab_memory){.granularity = page > 0 ? (uint64_t)page : 4096,
                                        .reserve = system_reserve,
                                        .commit = system_commit,
                                        .decommit = system_decommit,
                                        .release = system_release};
    return device;
}

uint64_t sheaf__device_machine_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

sheaf_status sheaf_device_close(sheaf_device *device)
{
    if (device == NULL) return SHEAF_OK;
    if (atomic_load_explicit(&device->n_pools, memory_order_acquire) != 0) return SHEAF_E_BUSY;
    device->close(device);
    return SHEAF_OK;
}
