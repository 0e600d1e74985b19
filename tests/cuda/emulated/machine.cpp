/* emulated/machine.cpp - the fibers and their scheduler. */
#include "machine.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <vector>

namespace sheaf_cuda
{

/* What kernels call their block's memory. */
alignas(1024) unsigned char all[emulated::SHARED];

} // namespace sheaf_cuda

namespace emulated
{

using sheaf_cuda::all;

place thread, block, blocks;

namespace
{

constexpr size_t STACK = 256 * 1024;

/* In eight bytes of shared memory, where a kernel has its barrier. */
struct barrier {
    int16_t count, pending;
    int32_t bytes : 31;
    uint32_t phase : 1;
};
static_assert(sizeof(barrier) == 8, "as large as the hardware's");

struct warp {
    uint64_t bytes[2][32][8];
    const void *all[2][32];
    uint32_t generation, arrived;
};

struct fiber {
    jmp_buf at;
    bool begun;
    std::unique_ptr<unsigned char[]> stack;
    uint32_t index;
    bool ended;
    const void *word; /* what it waits for: `word` other than `value`, of a barrier the phase */
    uint32_t value;
    bool of_barrier;
};

struct copy {
    uint32_t to, bytes, barrier;
    const unsigned char *from;
    uint64_t stride; /* of rows of `width` bytes; width 0: there are none */
    uint32_t width;
};

struct store {
    uint32_t thread, from, bytes;
    void *to;
};

/* A store whose bytes have been read, but which nobody else sees yet. */
struct late_store {
    uint32_t block, thread;
    void *to;
    std::vector<unsigned char> bytes;
};

struct meeting {
    uint32_t generation, arrived;
};

std::vector<fiber> fibers; /* of the running block */
std::vector<warp> warps;
std::vector<copy> copies;
std::vector<store> stores;
std::vector<late_store> late; /* of all blocks */
meeting meetings[16];
jmp_buf scheduler;
fiber *current;
uint32_t n_alive;
const std::function<void()> *body;
uint64_t drawn = 88172645463325252u;

uint32_t draw(uint32_t n)
{
    drawn ^= drawn << 13, drawn ^= drawn >> 7, drawn ^= drawn << 17;
    return (uint32_t)((drawn >> 11) % n);
}

barrier *barrier_at(uint32_t at)
{
    return reinterpret_cast<barrier *>(all + at);
}

bool is_waiting(const fiber &f)
{
    if (f.word == nullptr) return false;
    if (f.of_barrier) return static_cast<const barrier *>(f.word)->phase == f.value;
    return *static_cast<const uint32_t *>(f.word) == f.value;
}

/* Contexts begin a fiber; afterwards jumps are enough, and ask nothing of the kernel. */
void leave()
{
    if (_setjmp(current->at) == 0) _longjmp(scheduler, 1);
}

void start()
{
    (*body)();
    current->ended = true;
    n_alive--;
    _longjmp(scheduler, 1);
}

void enter(fiber &f)
{
    current = &f, thread.x = f.index;
    if (_setjmp(scheduler) != 0) return;
    if (f.begun) _longjmp(f.at, 1);
    f.begun = true;
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = f.stack.get();
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, start, 0);
    setcontext(&context);
}

/* Lets others run until the word is another. */
void wait_for_change(const void *word, uint32_t value, bool of_barrier)
{
    current->word = word, current->value = value, current->of_barrier = of_barrier;
    while (is_waiting(*current)) leave();
    current->word = nullptr;
}

void check_phase(barrier *b)
{
    if (b->pending == 0 && b->bytes == 0) b->phase ^= 1, b->pending = b->count;
}

void move(const copy &c)
{
    if (c.width == 0) {
        memcpy(all + c.to, c.from, c.bytes);
        return;
    }
    for (uint32_t i = 0; i < c.bytes; i += 16) {
        const uint32_t row = i / c.width, turn = i / 128 % (c.width / 16);
        const uint32_t chunk = i % c.width / 16;
        memcpy(all + c.to + row * c.width + 16 * (chunk ^ turn),
               c.from + row * c.stride + 16 * chunk, 16);
    }
}

void finish_copy(uint32_t n)
{
    const copy c = copies[n];
    copies[n] = copies.back();
    copies.pop_back();
    move(c);
    barrier *b = barrier_at(c.barrier);
    b->bytes -= (int32_t)c.bytes;
    check_phase(b);
}

[[noreturn]] void give_up()
{
    fprintf(stderr, "block %u: all %u threads wait, no copy is on its way:\n", block.x,
            n_alive);
    for (const fiber &f : fibers)
        if (!f.ended && f.index % 32 == 0)
            fprintf(stderr, "  thread %u waits for %s %td\n", f.index,
                    f.of_barrier ? "the barrier at" : "others, at",
                    f.of_barrier ? static_cast<const unsigned char *>(f.word) - all
                                 : static_cast<const unsigned char *>(f.word) -
                                       reinterpret_cast<unsigned char *>(warps.data()));
    abort();
}

void run_block(uint32_t n_threads)
{
    memset(all, 0xff, sizeof all);
    memset(meetings, 0, sizeof meetings);
    if (fibers.size() < n_threads) fibers.resize(n_threads);
    warps.assign((n_threads + 31) / 32, warp{});
    n_alive = n_threads;
    for (uint32_t i = 0; i < n_threads; i++) {
        fiber &f = fibers[i];
        if (!f.stack) f.stack = std::make_unique<unsigned char[]>(STACK);
        f.index = i, f.ended = f.begun = false, f.word = nullptr;
    }
    while (n_alive != 0) {
        bool moved = false;
        const uint32_t n_warps = (uint32_t)warps.size(), from = draw(n_warps);
        for (uint32_t w = 0; w < n_warps; w++) {
            const uint32_t first = (from + w) % n_warps * 32;
            if (draw(4) == 0 && n_alive > 32) continue; /* it is slow today */
            for (uint32_t i = first; i < first + 32 && i < n_threads; i++) {
                fiber &f = fibers[i];
                if (f.ended || is_waiting(f)) continue;
                moved = true;
                enter(f);
            }
        }
        bool came = false;
        for (uint32_t n = (uint32_t)copies.size(); n > 0; n--)
            if (draw(4) == 0) finish_copy(draw((uint32_t)copies.size())), came = true;
        if (moved || came) continue;
        if (!copies.empty()) {
            finish_copy(draw((uint32_t)copies.size()));
            continue;
        }
        bool stuck = true;
        for (uint32_t i = 0; i < n_threads; i++)
            stuck = stuck && (fibers[i].ended || is_waiting(fibers[i]));
        if (stuck) give_up();
    }
    while (!copies.empty()) finish_copy(0);
    if (!stores.empty()) {
        fprintf(stderr, "block %u: nobody has waited for a store\n", block.x);
        abort();
    }
}

} // namespace

unsigned char *shared = all;

void run(const std::function<void()> &kernel, uint32_t n_blocks, uint32_t n_threads)
{
    std::vector<uint32_t> order(n_blocks);
    for (uint32_t i = 0; i < n_blocks; i++) order[i] = i;
    for (uint32_t i = n_blocks; i > 1; i--) std::swap(order[i - 1], order[draw(i)]);
    body = &kernel;
    blocks = {n_blocks, 1, 1};
    for (uint32_t b : order) {
        block = {b, 0, 0};
        run_block(n_threads);
    }
    for (const late_store &l : late) memcpy(l.to, l.bytes.data(), l.bytes.size());
    late.clear();
}

uint32_t lane()
{
    return thread.x % 32;
}

const void *const *exchange(const void *bytes, uint32_t n)
{
    warp &w = warps[thread.x / 32];
    const uint32_t generation = w.generation, turn = generation % 2;
    memcpy(w.bytes[turn][lane()], bytes, n);
    w.all[turn][lane()] = w.bytes[turn][lane()];
    if (++w.arrived == 32)
        w.arrived = 0, w.generation++;
    else
        wait_for_change(&w.generation, generation, false);
    return w.all[turn];
}

void meet(uint32_t id, uint32_t n)
{
    meeting &m = meetings[id];
    const uint32_t generation = m.generation;
    if (++m.arrived == (n != 0 ? n : n_alive))
        m.arrived = 0, m.generation++;
    else
        wait_for_change(&m.generation, generation, false);
}

void barrier_init(uint32_t at, uint32_t count)
{
    *barrier_at(at) = {(int16_t)count, (int16_t)count, 0, 0};
}

void barrier_arrive(uint32_t at, int32_t bytes)
{
    barrier *b = barrier_at(at);
    b->bytes += bytes;
    if (--b->pending < 0) {
        fprintf(stderr, "the barrier at %u is arrived at too often\n", at);
        abort();
    }
    check_phase(b);
}

void barrier_wait(uint32_t at, uint32_t parity)
{
    wait_for_change(barrier_at(at), parity, true);
}

void copy_later(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    if (to % 16 != 0 || (uintptr_t)from % 16 != 0 || bytes % 16 != 0 || to + bytes > SHARED) {
        fprintf(stderr, "a copy of %u bytes from %p to %u\n", bytes, from, to);
        abort();
    }
    copies.push_back({to, bytes, barrier, static_cast<const unsigned char *>(from), 0, 0});
}

void store_later(void *to, uint32_t from, uint32_t bytes)
{
    if (from % 16 != 0 || (uintptr_t)to % 16 != 0 || bytes % 16 != 0 || from + bytes > SHARED) {
        fprintf(stderr, "a store of %u bytes from %u to %p\n", bytes, from, to);
        abort();
    }
    stores.push_back({thread.x, from, bytes, to});
}

void finish_stores()
{
    for (size_t i = stores.size(); i-- > 0;) {
        if (stores[i].thread != thread.x) continue;
        const unsigned char *from = all + stores[i].from;
        late.push_back({block.x, thread.x, stores[i].to, {from, from + stores[i].bytes}});
        stores.erase(stores.begin() + (ptrdiff_t)i);
    }
}

void publish_stores()
{
    for (size_t i = late.size(); i-- > 0;) {
        if (late[i].thread / 32 != thread.x / 32 || late[i].block != block.x) continue;
        memcpy(late[i].to, late[i].bytes.data(), late[i].bytes.size());
        late.erase(late.begin() + (ptrdiff_t)i);
    }
}

void copy_rows_later(uint32_t to, const void *from, uint32_t n_rows, uint64_t stride,
                     uint32_t width, uint32_t barrier)
{
    const uint32_t bytes = n_rows * width;
    if (to % (8 * width) != 0 || to + bytes > SHARED) {
        fprintf(stderr, "a copy of %u rows of %u bytes to %u\n", n_rows, width, to);
        abort();
    }
    copies.push_back(
        {to, bytes, barrier, static_cast<const unsigned char *>(from), stride, width});
}

} // namespace emulated
