/* Matrix products: every instruction set, batch, thread count and alignment gives the bits that
 * the order in model/matmul.h defines. */
#include "base/fpenv.h"
#include "base/half.h"
#include "model/matmul.h"
#include "model/numbers.h"
#include "odd_fpenv.h"

#define CANARY   0x1.5p+77f
#define MAX_ROWS 100u

static const uint32_t isas[] = {SHEAF_ISA_SCALAR, SHEAF_ISA_AVX2, SHEAF_ISA_AVX512,
                                SHEAF_ISA_NEON};
#define N_ISAS (sizeof isas / sizeof isas[0])
static const uint32_t dtypes[] = {SHEAF_DTYPE_F32, SHEAF_DTYPE_F16, SHEAF_DTYPE_BF16};

typedef struct problem {
    sheaf__matrix w; /* `data` one byte off any alignment */
    unsigned char *w_memory;
    float *widened;  /* [n, k] */
    float *x;        /* [MAX_ROWS, x_stride] */
    float *expected; /* [MAX_ROWS, n] */
    uint64_t x_stride;
} problem;

/* The order, from its text: the tests' own reading of it. */
static float defined_dot(const float *x, const float *w, uint32_t k)
{
    float sum = 0.0f;
    for (uint32_t block = 0; block * 1024 < k; block++) {
        float lanes[16] = {0};
        for (uint32_t i = block * 1024; i < (block + 1) * 1024 && (i < k || i % 16 != 0); i++)
            lanes[i % 16] = fmaf(i < k ? x[i] : 0.0f, i < k ? w[i] : 0.0f, lanes[i % 16]);
        float eight[8], four[4], two[2];
        for (int i = 0; i < 8; i++) eight[i] = lanes[i] + lanes[i + 8];
        for (int i = 0; i < 4; i++) four[i] = eight[i] + eight[i + 4];
        for (int i = 0; i < 2; i++) two[i] = four[i] + four[i + 2];
        float total = two[0] + two[1];
        sum = block == 0 ? total : sum + total;
    }
    return sum;
}

static float store_number(unsigned char *at, uint32_t dtype, float x)
{
    if (dtype == SHEAF_DTYPE_F32) {
        memcpy(at, &x, 4);
        return x;
    }
    uint16_t half = dtype == SHEAF_DTYPE_F16 ? sheaf__f16_of_f32(x) : sheaf__bf16_of_f32(x);
    memcpy(at, &half, 2);
    return dtype == SHEAF_DTYPE_F16 ? sheaf__f32_of_f16(half) : sheaf__f32_of_bf16(half);
}

static problem make_problem(uint32_t n, uint32_t k, uint32_t dtype, bool odd)
{
    uint64_t seed = n * 7919u + k * 31u + dtype, bytes = dtype == SHEAF_DTYPE_F32 ? 4 : 2;
    problem p = {.w = {.dtype = dtype, .n = n, .k = k}, .x_stride = k + 3};
    p.w_memory = malloc(n * k * bytes + 1);
    p.widened = malloc(sizeof(float) * n * k);
    p.x = malloc(sizeof(float) * MAX_ROWS * p.x_stride);
    p.expected = malloc(sizeof(float) * MAX_ROWS * n);
    p.w.data = p.w_memory + 1;
    for (uint64_t i = 0; i < (uint64_t)n * k; i++) {
        float x = odd ? random_odd_number(&seed) : random_number(&seed);
        if (dtype == SHEAF_DTYPE_F16 && fabsf(x) > 60000.0f) x = 60000.0f;
        p.widened[i] = store_number(p.w_memory + 1 + i * bytes, dtype, x);
    }
    for (uint64_t i = 0; i < MAX_ROWS * p.x_stride; i++)
        p.x[i] = odd ? random_odd_number(&seed) : random_number(&seed);
    for (uint32_t r = 0; r < MAX_ROWS; r++)
        for (uint32_t c = 0; c < n; c++)
            p.expected[r * n + c] =
                defined_dot(p.x + r * p.x_stride, p.widened + (uint64_t)c * k, k);
    return p;
}

static void free_problem(problem *p)
{
    free(p->w_memory);
    free(p->widened);
    free(p->x);
    free(p->expected);
}

/* Runs m rows from `first` on, and compares with what is expected; nothing else is written. */
static void check_rows(sheaf__matmul *mm, const problem *p, uint32_t first, uint32_t m)
{
    uint64_t y_stride = p->w.n + 2;
    float *y = malloc(sizeof(float) * m * y_stride);
    for (uint64_t i = 0; i < m * y_stride; i++) y[i] = CANARY;
    assert_int_equal(
        sheaf__matmul_run(mm, &p->w, p->x + first * p->x_stride, p->x_stride, m, y, y_stride),
        SHEAF_OK);
    for (uint32_t r = 0; r < m; r++) {
        const float *expected = p->expected + (uint64_t)(first + r) * p->w.n;
        if (memcmp(y + r * y_stride, expected, p->w.n * sizeof(float)) != 0)
            fail_msg("isa %s, n %u, k %u, dtype %u, row %u of %u differs",
                     sheaf_isa_name(sheaf__matmul_isa(mm)), p->w.n, p->w.k, p->w.dtype, r, m);
        assert_true(y[r * y_stride + p->w.n] == CANARY);
        assert_true(y[r * y_stride + p->w.n + 1] == CANARY);
    }
    free(y);
}

typedef struct machine {
    sheaf__memory memory;
    sheaf_threads *threads;
    sheaf__matmul *mm;
} machine;

static void open_machine(machine *b, uint32_t isa, uint32_t n_threads)
{
    sheaf__memory_init(&b->memory, NULL);
    assert_int_equal(sheaf_threads_create(n_threads, &b->threads), SHEAF_OK);
    assert_int_equal(sheaf__matmul_create(b->threads, isa, &b->memory, &b->mm), SHEAF_OK);
    assert_int_equal(sheaf__matmul_isa(b->mm), isa);
}

static void close_machine(machine *b)
{
    sheaf__matmul_destroy(b->mm);
    sheaf_threads_destroy(b->threads);
    assert_int_equal(b->memory.live_bytes, 0);
}

/* Every row count up to 40, and 100, on 1, 2 and 3 threads; fewer where each takes long. */
#if defined(SHEAF_EMULATED) || defined(__SANITIZE_THREAD__)
enum { FIRST_THREADS = 2, LAST_THREADS = 2, ROW_STEP = 4 };
#else
enum { FIRST_THREADS = 1, LAST_THREADS = 3, ROW_STEP = 1 };
#endif

static void check_shape(uint32_t isa, uint32_t n, uint32_t k, uint32_t dtype, bool odd)
{
    problem p = make_problem(n, k, dtype, odd);
    for (uint32_t n_threads = FIRST_THREADS; n_threads <= LAST_THREADS; n_threads++) {
        machine b;
        open_machine(&b, isa, n_threads);
        assert_int_equal(sheaf__matmul_reserve(b.mm, MAX_ROWS, n, k), SHEAF_OK);
        uint64_t reserved = b.memory.live_bytes;
        uint32_t step = isa == SHEAF_ISA_SCALAR ? 13 : ROW_STEP;
        for (uint32_t m = 1; m <= 40; m += step) check_rows(b.mm, &p, m % 3, m);
        if (n_threads == 2 || isa != SHEAF_ISA_SCALAR) check_rows(b.mm, &p, 0, MAX_ROWS);
        assert_int_equal(b.memory.live_bytes, reserved);
        close_machine(&b);
    }
    free_problem(&p);
}

static void check_isa(uint32_t isa)
{
    static const uint32_t ks[] = {1,   2,   15,   16,   17,   31,   64,   80,
                                  255, 256, 1023, 1024, 1025, 1040, 2053, 3072};
    static const uint32_t ns[] = {1, 3, 8, 17, 37};
    if (!isa_runs_here(isa)) skip();
    for (uint32_t d = 0; d < 3; d++)
        for (uint32_t i = 0; i < sizeof ks / sizeof ks[0]; i++) {
            check_shape(isa, ns[(i + d) % 5], ks[i], dtypes[d], false);
            check_shape(isa, ns[(i + d + 2) % 5], ks[i], dtypes[d], true);
        }
    check_shape(isa, 131, 70, SHEAF_DTYPE_BF16, false);
    check_shape(isa, 64, 48, SHEAF_DTYPE_BF16, true);
}

static void scalar_products_follow_the_text(void **state)
{
    (void)state;
    check_isa(SHEAF_ISA_SCALAR);
}

static void avx2_products_have_the_defined_bits(void **state)
{
    (void)state;
    check_isa(SHEAF_ISA_AVX2);
}

static void avx512_products_have_the_defined_bits(void **state)
{
    (void)state;
    check_isa(SHEAF_ISA_AVX512);
}

static void neon_products_have_the_defined_bits(void **state)
{
    (void)state;
    check_isa(SHEAF_ISA_NEON);
}

static void a_row_alone_equals_itself_in_a_batch(void **state)
{
    (void)state;
    problem p = make_problem(75, 1100, SHEAF_DTYPE_BF16, false);
    machine b;
    open_machine(&b, sheaf_isa_best(), 2);
    assert_int_equal(sheaf__matmul_reserve(b.mm, MAX_ROWS, 75, 1100), SHEAF_OK);
    float alone[75], batch[MAX_ROWS * 75];
    assert_int_equal(sheaf__matmul_run(b.mm, &p.w, p.x, p.x_stride, MAX_ROWS, batch, 75),
                     SHEAF_OK);
    for (uint32_t r = 0; r < MAX_ROWS; r++) {
        assert_int_equal(
            sheaf__matmul_run(b.mm, &p.w, p.x + r * p.x_stride, p.x_stride, 1, alone, 75),
            SHEAF_OK);
        assert_memory_equal(alone, batch + r * 75, sizeof alone);
    }
    close_machine(&b);
    free_problem(&p);
}

static void more_rows_than_a_chunk_keep_their_bits(void **state)
{
    (void)state;
    enum { ROWS = 1100, N = 19, K = 33 };
    problem p = make_problem(N, K, SHEAF_DTYPE_BF16, false);
    float *x = malloc(sizeof(float) * ROWS * K), *y = malloc(sizeof(float) * ROWS * N);
    for (uint32_t r = 0; r < ROWS; r++)
        memcpy(x + r * K, p.x + r % MAX_ROWS * p.x_stride, K * sizeof(float));
    machine b;
    open_machine(&b, sheaf_isa_best(), 2);
    assert_int_equal(sheaf__matmul_reserve(b.mm, ROWS, N, K), SHEAF_OK);
    assert_int_equal(sheaf__matmul_run(b.mm, &p.w, x, K, ROWS, y, N), SHEAF_OK);
    for (uint32_t r = 0; r < ROWS; r++)
        assert_memory_equal(y + r * N, p.expected + r % MAX_ROWS * N, N * sizeof(float));
    close_machine(&b);
    free_problem(&p);
    free(x);
    free(y);
}

static void the_callers_rounding_mode_does_not_matter(void **state)
{
    (void)state;
    problem p = make_problem(21, 300, SHEAF_DTYPE_F32, true);
    for (uint32_t i = 0; i < N_ISAS; i++) {
        if (!isa_runs_here(isas[i])) continue;
        machine b;
        open_machine(&b, isas[i], 2);
        assert_int_equal(sheaf__matmul_reserve(b.mm, MAX_ROWS, 21, 300), SHEAF_OK);
        fpenv_set(ODD_FPENV);
        check_rows(b.mm, &p, 0, 3);
        check_rows(b.mm, &p, 0, 50);
        uint32_t after = fpenv_now();
        fpenv_set(DEFAULT_FPENV);
        assert_int_equal(after, ODD_FPENV);
        close_machine(&b);
    }
    free_problem(&p);
}

static void a_fused_product_is_not_rounded_twice(void **state)
{
    (void)state;
    /* (1 + 2^-12)^2 + 2^-80 lies just above the middle of two floats; rounded to double first,
     * it would lie in the middle and then go down, to the even one. */
    float w[32] = {0}, x[20 * 32] = {0}, y[20];
    w[0] = 1.0f;
    w[16] = 1.0f + 0x1p-12f;
    for (uint32_t r = 0; r < 20; r++) {
        x[r * 32] = 0x1p-80f;
        x[r * 32 + 16] = 1.0f + 0x1p-12f;
    }
    const sheaf__matrix matrix = {w, SHEAF_DTYPE_F32, 1, 32};
    for (uint32_t i = 0; i < N_ISAS; i++) {
        if (!isa_runs_here(isas[i])) continue;
        machine b;
        open_machine(&b, isas[i], 1);
        assert_int_equal(sheaf__matmul_reserve(b.mm, 20, 1, 32), SHEAF_OK);
        for (uint32_t m = 1; m <= 20; m += 19) {
            assert_int_equal(sheaf__matmul_run(b.mm, &matrix, x, 32, m, y, 1), SHEAF_OK);
            for (uint32_t r = 0; r < m; r++) assert_true(y[r] == 1.0f + 0x1p-11f + 0x1p-23f);
        }
        close_machine(&b);
    }
}

static void products_are_close_to_double_precision(void **state)
{
    (void)state;
    enum { N = 31, K = 4000 };
    problem p = make_problem(N, K, SHEAF_DTYPE_BF16, false);
    for (uint32_t r = 0; r < MAX_ROWS; r++)
        for (uint32_t c = 0; c < N; c++) {
            double exact = 0, magnitude = 0;
            for (uint32_t i = 0; i < K; i++) {
                double product = (double)p.x[r * p.x_stride + i] * p.widened[c * K + i];
                exact += product;
                magnitude += fabs(product);
            }
            /* 64 steps a lane, 4 joins, 4 blocks: at most 72 roundings on any path */
            double bound = 72 * 0x1p-24 * magnitude;
            assert_true(fabs(p.expected[r * N + c] - exact) <= bound);
        }
    free_problem(&p);
}

static void products_larger_than_reserved_are_refused(void **state)
{
    (void)state;
    problem p = make_problem(4, 32, SHEAF_DTYPE_F32, false);
    machine b;
    float y[16];
    open_machine(&b, sheaf_isa_best(), 1);
    const sheaf__matrix none = {p.w.data, SHEAF_DTYPE_F32, 4, 0}, odd = {p.w.data, 9, 4, 32};
    assert_int_equal(sheaf__matmul_run(b.mm, &p.w, p.x, 35, 1, y, 4), SHEAF_E_INVALID);
    assert_int_equal(sheaf__matmul_reserve(b.mm, 2, 4, 31), SHEAF_OK);
    assert_int_equal(sheaf__matmul_run(b.mm, &p.w, p.x, 35, 1, y, 4), SHEAF_E_INVALID);
    assert_int_equal(sheaf__matmul_reserve(b.mm, 2, 3, 32), SHEAF_OK);
    assert_int_equal(sheaf__matmul_run(b.mm, &p.w, p.x, 35, 2, y, 4), SHEAF_OK);
    assert_int_equal(sheaf__matmul_run(b.mm, &p.w, p.x, 35, 3, y, 4), SHEAF_E_INVALID);
    assert_int_equal(sheaf__matmul_run(b.mm, &none, p.x, 35, 1, y, 4), SHEAF_E_INVALID);
    assert_int_equal(sheaf__matmul_run(b.mm, &odd, p.x, 35, 1, y, 4), SHEAF_E_INVALID);
    assert_int_equal(sheaf__matmul_run(b.mm, &p.w, p.x, 35, 0, y, 4), SHEAF_OK);
    close_machine(&b);
    free_problem(&p);
}

static int n_until_failure;

static void *failing_alloc(void *ctx, uint64_t size, uint64_t align)
{
    (void)ctx;
    if (n_until_failure-- == 0) return NULL;
    return aligned_alloc(align, (size + align - 1) / align * align);
}

static void plain_free(void *ctx, void *ptr, uint64_t size, uint64_t align)
{
    (void)ctx;
    (void)size;
    (void)align;
    free(ptr);
}

static void a_failed_reserve_leaves_the_former_room(void **state)
{
    (void)state;
    const sheaf_allocator failing = {NULL, failing_alloc, plain_free};
    problem p = make_problem(20, 40, SHEAF_DTYPE_F32, false);
    int n_failures = 0;
    for (int fail_at = 0;; fail_at++) {
        sheaf__memory memory;
        sheaf__matmul *mm = NULL;
        sheaf__memory_init(&memory, &failing);
        n_until_failure = fail_at;
        if (sheaf__matmul_create(NULL, SHEAF_ISA_AUTO, &memory, &mm) != SHEAF_OK) {
            n_failures++;
            assert_null(mm);
            continue;
        }
        bool small = sheaf__matmul_reserve(mm, 3, 20, 40) == SHEAF_OK;
        bool large = small && sheaf__matmul_reserve(mm, MAX_ROWS, 20, 40) == SHEAF_OK;
        n_until_failure = -1;
        if (small) check_rows(mm, &p, 0, 3);
        if (large) check_rows(mm, &p, 0, MAX_ROWS);
        sheaf__matmul_destroy(mm);
        assert_int_equal(memory.live_bytes, 0);
        if (large) break;
        n_failures++;
    }
    assert_int_equal(n_failures, sheaf_isa_best() == SHEAF_ISA_SCALAR ? 2 : 5);
    free_problem(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalar_products_follow_the_text),
        cmocka_unit_test(avx2_products_have_the_defined_bits),
        cmocka_unit_test(avx512_products_have_the_defined_bits),
        cmocka_unit_test(neon_products_have_the_defined_bits),
        cmocka_unit_test(a_row_alone_equals_itself_in_a_batch),
        cmocka_unit_test(more_rows_than_a_chunk_keep_their_bits),
        cmocka_unit_test(the_callers_rounding_mode_does_not_matter),
        cmocka_unit_test(a_fused_product_is_not_rounded_twice),
        cmocka_unit_test(products_are_close_to_double_precision),
        cmocka_unit_test(products_larger_than_reserved_are_refused),
        cmocka_unit_test(a_failed_reserve_leaves_the_former_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
