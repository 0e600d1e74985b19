/* tests/cuda/test_prefill.cu - the prefill kernels against attention in double, and against
 * themselves: alone and in a batch, rows in order and scattered over gigabytes, whole and in chunks.
 *
 * A program of its own: prints its seed (argument 1 sets it), one line a kernel and codec with the
 * largest error, and what failed. Without a GPU it says so and exits with 77.
 */
#include "prefill_rig.cuh"

static const uint64_t POOL_BYTES = 6ull << 30;
static unsigned char *pool;
static int failures;
static bool is_short;

static void fail(const rig_case &c, uint32_t kernel, const char *what)
{
    failures++;
    printf(
        "FAILED kernel %u dim %u codec %u io %u bt %u heads %u x %u window %u cap %g sinks %d "
        "causal %d: %s\n",
        kernel, c.dim, c.codec, c.io, c.block_tokens, c.kv_heads, c.group, c.window, c.softcap,
        c.sinks, !c.not_causal, what);
}

/* What of a sequence is asked: queries [first, first + n) of its own, with n_tokens written. */
struct asked {
    const rig_sequence *sequence;
    uint32_t first, n, n_tokens;
};

/* Lays the blocks of the sequences into the poisoned pool, in order from row 0 on or scattered, runs
 * one kernel, and returns the bytes of out. Empty: the kernel does not do this shape. */
static std::vector<unsigned char> attend(const rig_case &c, const std::vector<asked> &batch,
                                         const std::vector<float> &sinks, bool scattered,
                                         uint32_t kernel, rig_random &random)
{
    uint32_t heads = c.kv_heads * c.group, number = c.io == SHEAF_DTYPE_F32 ? 4 : 2;
    uint64_t stride = rig_row_stride(c), capacity = POOL_BYTES / stride;
    sheaf__cuda_prefill a;
    memset(&a, 0, sizeof a);
    a.view = rig_view(c, pool);
    uint32_t tile_rows = sheaf__cuda_prefill_rows(&a.view, c.io, kernel);
    if (tile_rows == 0) return {};
    RIG_OK(cudaMemset(pool, 0xff, POOL_BYTES));

    std::vector<sheaf__cuda_prefill_item> items;
    std::vector<uint32_t> rows;
    std::vector<unsigned char> q;
    std::vector<bool> taken(capacity);
    uint64_t n_queries = 0;
    for (const asked &one : batch) {
        const rig_sequence &s = *one.sequence;
        sheaf__cuda_prefill_item item;
        memset(&item, 0, sizeof item);
        item.first_query = n_queries;
        item.rows_at = rows.size();
        item.n_queries = one.n;
        item.first_pos = s.first_pos + one.first;
        item.n_tokens = one.n_tokens;
        uint32_t lo =
            c.window && item.first_pos + 1 > c.window ? item.first_pos + 1 - c.window : 0;
        item.first_block = lo / c.block_tokens;
        item.n_rows = (one.n_tokens + c.block_tokens - 1) / c.block_tokens - item.first_block;
        for (uint32_t b = 0; b < item.n_rows; b++) {
            uint64_t row = rows.size();
            while (scattered && taken[row = random.next() % capacity]) {
            }
            taken[row] = true;
            rows.push_back((uint32_t)row);
            RIG_OK(cudaMemcpy(pool + row * stride, &s.blocks[(item.first_block + b) * stride],
                              stride, cudaMemcpyHostToDevice));
        }
        uint64_t from = (uint64_t)one.first * heads * c.dim,
                 n = (uint64_t)one.n * heads * c.dim;
        q.resize(q.size() + n * number);
        for (uint64_t i = 0; i < n; i++)
            rig_put(c.io, &q[(n_queries * heads * c.dim + i) * number], s.q[from + i]);
        items.push_back(item);
        n_queries += one.n;
    }
    std::vector<uint32_t> tile_item(sheaf__cuda_prefill_tiles(
        items.data(), (uint32_t)items.size(), c.group, tile_rows, NULL));
    a.n_tiles = sheaf__cuda_prefill_tiles(items.data(), (uint32_t)items.size(), c.group,
                                          tile_rows, tile_item.data());
    unsigned char *device_q = rig_upload(q), *out = rig_upload(q);
    RIG_OK(cudaMemset(out, 0xff, q.size()));
    sheaf__cuda_prefill_item *device_items = rig_upload(items);
    uint32_t *device_tiles = rig_upload(tile_item), *device_rows = rig_upload(rows);
    float *device_sinks = rig_upload(sinks);
    a.q = device_q, a.out = out;
    a.items = device_items, a.tile_item = device_tiles, a.rows = device_rows;
    a.sinks = c.sinks ? device_sinks : NULL;
    a.n_q_heads = heads, a.io_dtype = c.io;
    a.window = c.window, a.not_causal = c.not_causal;
    a.scale = 1 / sqrtf((float)c.dim), a.softcap = c.softcap, a.kernel = kernel;
    if (sheaf__cuda_prefill_run(&a, NULL) != SHEAF_OK) fail(c, kernel, "not launched");
    RIG_OK(cudaDeviceSynchronize());
    std::vector<unsigned char> result(q.size());
    RIG_OK(cudaMemcpy(result.data(), out, result.size(), cudaMemcpyDeviceToHost));
    cudaFree(device_q), cudaFree(out), cudaFree(device_items), cudaFree(device_tiles);
    cudaFree(device_rows), cudaFree(device_sinks);
    return result;
}

static double relative_error(const rig_case &c, const std::vector<unsigned char> &out,
                             const std::vector<double> &reference)
{
    uint32_t number = c.io == SHEAF_DTYPE_F32 ? 4 : 2;
    double error = 0, norm = 0;
    for (uint64_t i = 0; i < reference.size(); i++) {
        double x = rig_get(c.io, &out[i * number]);
        error += (x - reference[i]) * (x - reference[i]);
        norm += reference[i] * reference[i];
    }
    return sqrt(error / norm);
}

/* A ragged batch under one kernel; returns its error, below 0 where the kernel does not do it. */
static double check(const rig_case &c, const std::vector<rig_sequence> &sequences,
                    const std::vector<float> &sinks, const std::vector<double> &reference,
                    uint32_t kernel, rig_random &random)
{
    std::vector<asked> batch;
    for (const rig_sequence &s : sequences) batch.push_back({&s, 0, s.n_queries, s.n_tokens});
    std::vector<unsigned char> out = attend(c, batch, sinks, true, kernel, random), alone,
                               chunks;
    if (out.empty()) return -1;
    for (const asked &one : batch) {
        std::vector<unsigned char> part = attend(c, {one}, sinks, false, kernel, random);
        alone.insert(alone.end(), part.begin(), part.end());
        uint32_t cut = 1 + random.below(one.n - 1);
        uint32_t there = c.not_causal ? one.n_tokens : one.sequence->first_pos + cut;
        part = attend(c, {{one.sequence, 0, cut, there}}, sinks, true, kernel, random);
        chunks.insert(chunks.end(), part.begin(), part.end());
        part = attend(c, {{one.sequence, cut, one.n - cut, one.n_tokens}}, sinks, false, kernel,
                      random);
        chunks.insert(chunks.end(), part.begin(), part.end());
    }
    if (out != alone) fail(c, kernel, "alone and in order differs from scattered in a batch");
    if (out != chunks) fail(c, kernel, "cut in two chunks differs from whole");
    double error = relative_error(c, out, reference);
    double most = c.io == SHEAF_DTYPE_F32 ? 5e-4 : 3e-3;
    if (!(error <= most)) {
        char text[80];
        snprintf(text, sizeof text, "error %.2e, not %.0e", error, most);
        fail(c, kernel, text);
    }
    return error;
}

/* Random options and lengths; below 0 where the kernel does not do the shape. */
static double check_random(uint32_t dim, uint32_t codec, uint32_t io, uint32_t kernel,
                           rig_random &random)
{
    rig_case c;
    memset(&c, 0, sizeof c);
    c.dim = dim, c.codec = codec, c.io = io;
    c.block_tokens = 16u << random.below(3);
    c.kv_heads = 1 + random.below(3);
    c.group = 1 + random.below(8);
    if (random.below(3) == 0) c.window = 1 + random.below(700);
    if (random.below(5) == 0) c.not_causal = 1;
    if (random.below(3) == 0) c.softcap = 2 + 30 * random.uniform();
    c.sinks = random.below(3) == 0;
    std::vector<float> sinks;
    for (uint32_t h = 0; h < c.kv_heads * c.group; h++) sinks.push_back(3 * random.normal());
    std::vector<rig_sequence> sequences;
    std::vector<double> reference;
    for (uint32_t i = 0, n = 1 + random.below(3); i < n; i++) {
        uint32_t longest = i == 0 && random.below(6) == 0 ? 1000 : 150;
        if (is_short) longest = 60;
        uint32_t n_queries = 2 + random.below(longest - 1);
        uint32_t before = random.below(3) == 0 ? 0 : random.below(is_short ? 200 : 900);
        sequences.push_back(rig_make(c, random, before + n_queries, n_queries));
        std::vector<double> part = rig_reference(c, sequences.back(), sinks);
        reference.insert(reference.end(), part.begin(), part.end());
    }
    return check(c, sequences, sinks, reference, kernel, random);
}

/* Every shape under one kernel; a short run (SHEAF_GPU_SHORT) has one case a codec. */
static void check_kernel(uint32_t kernel, rig_random random)
{
    static const char *const kernels[] = {"", "mma", "wgmma", "pingpong"};
    static const char *const names[] = {"f32", "f16", "bf16", "int8", "turbo4"};
    for (uint32_t codec = SHEAF_CODEC_F16; codec <= SHEAF_CODEC_TURBO4; codec++)
        for (uint32_t io = 0; io < 3; io++) {
            double worst = -1;
            if (is_short && io != SHEAF_DTYPE_BF16) continue;
            for (uint32_t dim = is_short ? 128 : 64; dim <= (is_short ? 128 : 256); dim *= 2)
                for (int i = 0; i < (is_short ? 1 : 3); i++) {
                    double error = check_random(dim, codec, io, kernel, random);
                    if (!(error <= worst)) worst = error;
                }
            if (worst >= 0 || worst != worst)
                printf("%-8s codec %-6s io %-4s error %8.1e\n", kernels[kernel], names[codec],
                       names[io], worst);
            fflush(stdout);
        }
}

int main(int argc, char **argv)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("SKIPPED: no GPU\n");
        return 77;
    }
    is_short = getenv("SHEAF_GPU_SHORT") != NULL;
    rig_random random = {argc > 1 ? strtoull(argv[1], NULL, 0) : 20261130};
    printf("seed %llu\n", (unsigned long long)random.state);
    RIG_OK(cudaMalloc((void **)&pool, POOL_BYTES));
    for (uint32_t kernel = 1; kernel <= 3; kernel++) check_kernel(kernel, random);
    printf(failures == 0 ? "PASSED\n" : "FAILED: %d\n", failures);
    return failures != 0;
}
