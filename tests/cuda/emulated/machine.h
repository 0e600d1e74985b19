/* emulated/machine.h - blocks of a GPU's threads, run one after another on one thread of the host.
 *
 * Owns: threads as fibers that change places wherever one waits for others, in an order drawn
 * anew each time; what lanes of a warp exchange; barriers; copies that arrive late. Does not own: what
 * memory a kernel may not touch, the order in which real hardware lets others see what was written,
 * speed.
 */
#ifndef SHEAF_TESTS_EMULATED_MACHINE_H
#define SHEAF_TESTS_EMULATED_MACHINE_H

#include <cstdint>
#include <functional>

namespace emulated
{

constexpr uint32_t SHARED = 227 * 1024;

/* Of the running thread and its block. */
struct place {
    uint32_t x, y, z;
};
extern place thread, block, blocks;
extern unsigned char *shared; /* [SHARED], poisoned when a block begins */

/* Runs all blocks, in an order of its own. Ends the process with a sentence where all threads wait. */
void run(const std::function<void()> &kernel, uint32_t n_blocks, uint32_t n_threads);

/* What all 32 lanes bring, up to 64 bytes each: [32] addresses. All lanes come here, or all wait. */
const void *const *exchange(const void *bytes, uint32_t n);
uint32_t lane();

/* Waits until n threads have come to barrier `id` of the block; 0: all that have not ended. */
void meet(uint32_t id, uint32_t n);

/* Barriers in shared memory. */
void barrier_init(uint32_t at, uint32_t count);
void barrier_arrive(uint32_t at, int32_t bytes); /* and so many bytes more are awaited */
void barrier_wait(uint32_t at, uint32_t parity);
void copy_later(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier);
/* From shared memory, which has been read once the thread has waited; they are seen by other blocks
 * once its warp has published them, or the kernel has ended. */
void store_later(void *to, uint32_t from, uint32_t bytes);
void finish_stores();
void publish_stores();
/* Rows of `width` bytes, which lie `stride` apart, swizzled as attn/cuda/tensor_map.h says. */
void copy_rows_later(uint32_t to, const void *from, uint32_t n_rows, uint64_t stride,
                     uint32_t width, uint32_t barrier);

} // namespace emulated

#endif
