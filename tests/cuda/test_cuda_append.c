/* cuda/test_cuda_append.c - append and gather on a GPU against the processor, byte for byte: every
 * codec, every source, odd and even sizes, numbers of every kind, and no byte beside. */
#include "gpu.h"

#include <cuda_runtime_api.h>
#include <time.h>

#include "attn/cuda/append.h"
#include "base/half.h"
#include "cache/sequence.h"
#include "cache/wire_fixture.h"

#define ITEMS 6
#define ROOM  (1u << 20) /* bytes of a source, or of an item's tiles */

/* ---- two pools with the same sequences ------------------------------------------------------ */

typedef struct rig {
    sheaf_device *device;
    sheaf_layer layer;
    uint32_t block_tokens;
    sheaf_pool *pools[2]; /* of the machine, of the GPU */
    sheaf_sequence *seqs[ITEMS][2];
    sheaf__cuda_batch batch;
    sheaf__cuda_item items[ITEMS];
    uint32_t rows[4096], n_rows;
    void *items_there, *rows_there, *k_there, *v_there, *out_there;
    uint64_t random;
} rig;

static void *there(uint64_t size)
{
    void *memory = NULL;
    assert_int_equal(cudaMalloc(&memory, size), cudaSuccess);
    return memory;
}

static void rig_open(rig *r, sheaf_device *device, const sheaf_layer *layer,
                     uint32_t block_tokens, uint64_t seed)
{
    *r = (rig){.device = device, .layer = *layer, .block_tokens = block_tokens, .random = seed};
    for (int i = 0; i < 2; i++) {
        sheaf_pool_options o = SHEAF_POOL_OPTIONS_INIT;
        sheaf_error err = {0};
        o.layers = layer, o.n_layers = 1;
        o.block_tokens = block_tokens, o.slab_blocks = 4;
        o.budget_bytes = 1ull << 30;
        o.device = i == 0 ? NULL : device;
        if (sheaf_pool_open(&o, &r->pools[i], &err) != SHEAF_OK) fail_msg("%s", err.text);
        for (int n = 0; n < ITEMS; n++)
            assert_int_equal(sheaf_sequence_create(r->pools[i], &r->seqs[n][i]), SHEAF_OK);
    }
    r->items_there = there(sizeof r->items);
    r->rows_there = there(sizeof r->rows);
    r->k_there = there(ROOM);
    r->v_there = there(ROOM);
    r->out_there = there(2ull * ITEMS * ROOM);
}

static void rig_close(rig *r)
{
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < ITEMS; n++) sheaf_sequence_destroy(r->seqs[n][i]);
        assert_int_equal(sheaf_pool_close(r->pools[i]), SHEAF_OK);
    }
    void *all[] = {r->items_there, r->rows_there, r->k_there, r->v_there, r->out_there};
    for (int i = 0; i < 5; i++) assert_int_equal(cudaFree(all[i]), cudaSuccess);
}

/* Fills the blocks that a sequence has from `first` on with one byte, in both pools. */
static void paint(rig *r, uint32_t n, uint32_t first)
{
    sheaf_group_info info = SHEAF_GROUP_INFO_INIT;
    for (int i = 0; i < 2; i++) {
        const sheaf__table *table = &r->seqs[n][i]->room.tables[0];
        for (uint32_t b = first; b < table->n_blocks; b++) {
            unsigned char *row = sheaf__pool_row(r->pools[i], 0, table->rows[b]);
            assert_int_equal(sheaf_pool_group_info(r->pools[i], 0, &info), SHEAF_OK);
            if (i == 0)
                memset(row, 0xa7, info.block_bytes);
            else
                assert_int_equal(cudaMemset(row, 0xa7, info.block_bytes), cudaSuccess);
        }
    }
}

/* Extends every sequence by random counts, and lays the step out in the batch. decode: by one. */
static void rig_step(rig *r, bool decode)
{
    r->n_rows = 0;
    r->batch = (sheaf__cuda_batch){.n_items = ITEMS, .window = r->layer.window, .causal = 1};
    for (uint32_t n = 0; n < ITEMS; n++) {
        uint32_t count = decode ? 1 : 1 + random_below(&r->random, 2 * r->block_tokens + 3);
        uint32_t pos = sheaf_sequence_length(r->seqs[n][0]);
        uint32_t held = r->seqs[n][1]->room.tables[0].n_blocks;
        for (int i = 0; i < 2; i++)
            assert_int_equal(sheaf_sequence_extend(r->seqs[n][i], count), SHEAF_OK);
        paint(r, n, held);
        const sheaf__table *table = &r->seqs[n][1]->room.tables[0];
        assert_true(r->n_rows + table->n_blocks <= 4096);
        r->items[n] = (sheaf__cuda_item){
            .rows_at = r->n_rows,
            .first_block = table->first_block,
            .n_rows = table->n_blocks,
            .n_tokens = pos + count,
            .n_queries = count,
            .first_pos = pos,
            .query_at = r->batch.n_queries,
            .first_row = table->rows[pos / r->block_tokens - table->first_block]};
        memcpy(r->rows + r->n_rows, table->rows, table->n_blocks * sizeof r->rows[0]);
        r->n_rows += table->n_blocks;
        r->batch.n_queries += count;
    }
    assert_int_equal(
        cudaMemcpy(r->items_there, r->items, sizeof r->items, cudaMemcpyHostToDevice),
        cudaSuccess);
    assert_int_equal(cudaMemcpy(r->rows_there, r->rows, sizeof r->rows, cudaMemcpyHostToDevice),
                     cudaSuccess);
    r->batch.items = r->items_there;
    r->batch.rows = r->rows_there;
    r->batch.host = r->items;
}

/* ---- numbers ------------------------------------------------------------------------------- */

/* Mostly in [-4, 4); rows of zeros, of denormals, of huge ones, and with NaN or infinity. */
static uint32_t bits_of(uint64_t *random, uint32_t kind)
{
    uint32_t u = (uint32_t)random_next(random);
    switch (kind) {
    case 0: return 0;
    case 1: return u & 0x807fffffu;                 /* denormal, or zero */
    case 2: return (u & 0x80ffffffu) | 0x7e000000u; /* near the largest */
    case 3: return u % 40 == 0 ? 0x7f800000u | (u & 0x80400001u) : u & 0xbfffffffu;
    case 4: return (u & 0x80ffffffu) | 0x00800000u; /* near the least normal ones */
    case 5: return u;                               /* anything */
    default: return sheaf__bits_of_f32((float)((int32_t)u >> 8) / (float)(1 << 21));
    }
}

static void fill_rows(uint64_t *random, void *to, uint32_t n_rows, uint32_t dim, uint32_t dtype)
{
    for (uint32_t row = 0; row < n_rows; row++) {
        uint32_t kind = random_below(random, 12);
        for (uint32_t d = 0; d < dim; d++)
            put_number(to, (uint64_t)row * dim + d, dtype,
                       sheaf__f32_of_bits(bits_of(random, kind)));
    }
}

/* ---- one step, compared -------------------------------------------------------------------- */

/* The same numbers, each sequence's part by itself, to the processor. numbers: as the batch has them.
 * */
static void write_there_and_here(rig *r, uint32_t dtype, bool head_major, const void *k,
                                 const void *v)
{
    static unsigned char part[2][ROOM];
    uint64_t size = dtype == SHEAF_DTYPE_F32 ? 4 : 2;
    const sheaf_layer *layer = &r->layer;
    for (uint32_t n = 0; n < ITEMS; n++) {
        const sheaf__cuda_item *item = &r->items[n];
        sheaf_kv_source src = SHEAF_KV_SOURCE_INIT;
        src.dtype = dtype, src.order = head_major ? SHEAF_HEAD_MAJOR : SHEAF_TOKEN_MAJOR;
        src.n_kv_heads = layer->n_kv_heads;
        src.key_dim = layer->key_dim, src.value_dim = layer->value_dim;
        src.k = part[0], src.v = layer->value_dim != 0 ? part[1] : NULL;
        for (int side = 0; side < 2; side++) {
            uint64_t row = (side == 0 ? layer->key_dim : layer->value_dim) * size;
            const unsigned char *from = side == 0 ? k : v;
            for (uint32_t h = 0; h < (head_major ? layer->n_kv_heads : 1); h++) {
                uint64_t rows = item->n_queries * (head_major ? 1 : layer->n_kv_heads);
                uint64_t at = head_major ? (uint64_t)h * r->batch.n_queries + item->query_at
                                         : (uint64_t)item->query_at * layer->n_kv_heads;
                memcpy(part[side] + h * rows * row, from + at * row, rows * row);
            }
        }
        assert_int_equal(
            sheaf_sequence_write(r->seqs[n][0], 0, item->first_pos, item->n_queries, &src),
            SHEAF_OK);
        assert_int_equal(
            sheaf_sequence_wrote(r->seqs[n][1], 0, item->first_pos, item->n_queries), SHEAF_OK);
    }
}

/* The raw tiles of both pools, and what the gather kernel makes of the GPU's. */
static void compare(rig *r, const sheaf_kv_view *view)
{
    static unsigned char raw[2][2][ROOM], out[2][ROOM];
    void *to[2][ITEMS];
    unsigned char *begin = r->out_there;
    for (uint32_t n = 0; n < ITEMS; n++) {
        to[0][n] = begin + n * ROOM;
        to[1][n] = n == 2 ? NULL : begin + (ITEMS + n) * ROOM; /* one is left out */
        for (int i = 0; i < 2; i++)
            assert_int_equal(sheaf_sequence_commit(r->seqs[n][i], r->items[n].n_queries, NULL),
                             SHEAF_OK);
    }
    assert_int_equal(cudaMemset(r->out_there, 0x33, 2ull * ITEMS * ROOM), cudaSuccess);
    assert_int_equal(sheaf__cuda_gather_batch(&r->batch, view, to[0], to[1], NULL), SHEAF_OK);
    for (uint32_t n = 0; n < ITEMS; n++) {
        sheaf_gather_info info[2] = {SHEAF_GATHER_INFO_INIT, SHEAF_GATHER_INFO_INIT};
        for (int i = 0; i < 2; i++)
            assert_int_equal(sheaf_sequence_gather_raw(r->seqs[n][i], 0, raw[i][0], ROOM,
                                                       raw[i][1], ROOM, &info[i]),
                             SHEAF_OK);
        for (int side = 0; side < 2; side++) {
            uint64_t size = side == 0 ? info[0].k_bytes : info[0].v_bytes;
            assert_memory_equal(raw[0][side], raw[1][side], size);
            if (to[side][n] == NULL) continue;
            assert_int_equal(
                cudaMemcpy(out[side], to[side][n], size + 16, cudaMemcpyDeviceToHost),
                cudaSuccess);
            assert_memory_equal(out[side], raw[1][side], size);
            for (int i = 0; i < 16; i++) assert_int_equal(out[side][size + i], 0x33);
        }
    }
}

static void append_and_compare(rig *r, bool decode)
{
    static unsigned char k[ROOM], v[ROOM];
    uint32_t dtype = random_below(&r->random, 3);
    bool head_major = random_below(&r->random, 2);
    rig_step(r, decode);
    uint32_t rows = r->batch.n_queries * r->layer.n_kv_heads;
    assert_true((uint64_t)rows * (r->layer.key_dim + r->layer.value_dim) * 4 <= ROOM);
    fill_rows(&r->random, k, rows, r->layer.key_dim, dtype);
    fill_rows(&r->random, v, rows, r->layer.value_dim, dtype);
    assert_int_equal(cudaMemcpy(r->k_there, k, ROOM, cudaMemcpyHostToDevice), cudaSuccess);
    assert_int_equal(cudaMemcpy(r->v_there, v, ROOM, cudaMemcpyHostToDevice), cudaSuccess);
    write_there_and_here(r, dtype, head_major, k, v);
    sheaf_kv_view view;
    sheaf_cuda_source from = SHEAF_CUDA_SOURCE_INIT;
    from.dtype = dtype, from.head_major = head_major;
    from.k = r->k_there, from.v = r->v_there;
    assert_int_equal(sheaf_sequence_view(r->seqs[0][1], 0, &view), SHEAF_OK);
    assert_int_equal(sheaf__cuda_append_batch(&r->batch, &view, &from, NULL), SHEAF_OK);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    compare(r, &view);
}

/* ---- cases --------------------------------------------------------------------------------- */

static void appended_numbers_are_the_processors_to_the_byte(void **state)
{
    (void)state;
    static rig r;
    static const uint32_t dims[] = {128, 64, 1, 3, 33, 80, 96, 256, 2, 16};
    sheaf_device *device = gpu_open(0);
    bool brief = gpu_is_watched();
    uint64_t seed = seed_from_environment((uint64_t)time(NULL));
    for (uint32_t codec = 0; codec < SHEAF_CODEC_COUNT; codec++)
        for (uint32_t i = 0; i < (brief ? 3 : 10); i++) {
            sheaf_layer layer = {.n_kv_heads = 1 + i % 3, .key_dim = dims[i]};
            layer.value_dim = i == 4 ? 0 : dims[(i + (i > 6)) % 10];
            layer.codec_k = codec;
            layer.codec_v = i % 2 == 0 ? codec : (codec + i) % SHEAF_CODEC_COUNT;
            layer.window = i == 5 ? 20 : 0;
            rig_open(&r, device, &layer, i % 2 == 0 ? 16 : 4, seed++);
            append_and_compare(&r, false);
            append_and_compare(&r, true);
            append_and_compare(&r, false);
            if (!brief)
                for (int more = 0; more < 6; more++) append_and_compare(&r, more % 2 == 0);
            rig_close(&r);
        }
    gpu_close(device);
}

/* By way of a plan, and captured: the same bytes, and the same again when the graph is replayed. */
static void a_plan_appends_and_gathers_what_its_batch_names(void **state)
{
    (void)state;
    static rig r;
    static unsigned char k[ROOM], v[ROOM];
    const sheaf_layer layer = {4, 128, 128, 0, SHEAF_CODEC_BF16, SHEAF_CODEC_BF16};
    sheaf_device *device = gpu_open(0);
    sheaf_attn_options options = SHEAF_ATTN_OPTIONS_INIT;
    sheaf_cuda_plan *plan = NULL;
    sheaf_error err = {0};
    sheaf_cuda_source from = SHEAF_CUDA_SOURCE_INIT;
    cudaStream_t stream;
    options.n_q_heads = 8, options.n_kv_heads = 4;
    options.key_dim = options.value_dim = 128;
    sheaf_status st = sheaf_cuda_plan_create(&options, NULL, &plan, &err);
    if (st != SHEAF_OK) fail_msg("%s", err.text);
    assert_int_equal(cudaStreamCreate(&stream), cudaSuccess);
    rig_open(&r, device, &layer, 16, seed_from_environment((uint64_t)time(NULL)));
    append_and_compare(&r, false);
    for (int step = 0; step < 3; step++) {
        sheaf_attn_item items[ITEMS];
        sheaf_kv_view views[ITEMS];
        cudaGraph_t graph;
        cudaGraphExec_t replay;
        rig_step(&r, true);
        fill_rows(&r.random, k, ITEMS * 4, 128, SHEAF_DTYPE_BF16);
        fill_rows(&r.random, v, ITEMS * 4, 128, SHEAF_DTYPE_BF16);
        write_there_and_here(&r, SHEAF_DTYPE_BF16, false, k, v);
        for (uint32_t n = 0; n < ITEMS; n++) {
            items[n] = (sheaf_attn_item){.n_queries = 1,
                                         .first_pos = r.items[n].first_pos,
                                         .n_tokens = r.items[n].n_tokens};
            assert_int_equal(sheaf_sequence_view(r.seqs[n][1], 0, &views[n]), SHEAF_OK);
        }
        assert_int_equal(sheaf_cuda_append(plan, &views[0], &from, stream), SHEAF_E_INVALID);
        from.dtype = SHEAF_DTYPE_BF16, from.k = r.k_there, from.v = r.v_there;
        from.head_major = 2;
        assert_int_equal(sheaf_cuda_append(plan, &views[0], &from, stream), SHEAF_E_INVALID);
        from.head_major = 0, from.v = (const unsigned char *)r.v_there + 1;
        assert_int_equal(sheaf_cuda_append(plan, &views[0], &from, stream), SHEAF_E_INVALID);
        from.v = r.v_there;
        if (step == 0) /* nothing is planned */
            assert_int_equal(sheaf_cuda_append(plan, &views[0], &from, stream), SHEAF_E_PLAN);
        assert_int_equal(sheaf_cuda_plan_batch(plan, items, views, ITEMS, stream), SHEAF_OK);
        assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                         cudaSuccess);
        assert_int_equal(sheaf_cuda_append(plan, &views[0], &from, stream), SHEAF_OK);
        assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        assert_int_equal(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
        assert_int_equal(cudaMemcpy(r.k_there, k, ITEMS * 1024, cudaMemcpyHostToDevice),
                         cudaSuccess);
        assert_int_equal(cudaMemcpy(r.v_there, v, ITEMS * 1024, cudaMemcpyHostToDevice),
                         cudaSuccess);
        for (int i = 0; i < 2; i++)
            assert_int_equal(cudaGraphLaunch(replay, stream), cudaSuccess);
        assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
        compare(&r, &views[0]);
        assert_int_equal(cudaGraphExecDestroy(replay), cudaSuccess);
        assert_int_equal(cudaGraphDestroy(graph), cudaSuccess);
        from = (sheaf_cuda_source)SHEAF_CUDA_SOURCE_INIT;
    }
    rig_close(&r);
    sheaf_cuda_plan_destroy(plan);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    gpu_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appended_numbers_are_the_processors_to_the_byte),
        cmocka_unit_test(a_plan_appends_and_gathers_what_its_batch_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
