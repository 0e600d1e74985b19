/* tests/model/cross_forward.c - whole models give the same bits on every instruction set.
 *
 * Scalar, AVX2, AVX-512 and NEON, as far as the processor has them: logits of every position by
 * memcmp, prefill and decode, all codecs, paged and dense, fused and gathered.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/matmul.h"
#include "model/rig.h"

#define DEMO        "models/sheaf-demo"
#define DEMO_PROMPT 9 /* 256 tokens */
#if defined(SHEAF_EMULATED)
#    define DEMO_TOKENS  40
#    define SMALL_TOKENS 40
#else
#    define DEMO_TOKENS  200 /* the scalar form takes its time */
#    define SMALL_TOKENS UINT32_MAX
#endif
#define N_DECODED 6 /* at the end of the text, one by one */

/* Prefills all but the last tokens, decodes those; logits: [n, vocab]. */
static void run_text(const rig_options *o, rig_ids text, float **logits, uint64_t *bytes)
{
    uint32_t n_prefill = text.n - N_DECODED;
    sheaf_attn_report report;
    rig r;
    rig_open(&r, o);
    *bytes = (uint64_t)text.n * r.config.vocab * sizeof **logits;
    *logits = malloc(*bytes);
    assert_non_null(*logits);
    sheaf__kv kv = rig_kv(&r);
    rig_feed(&r, &kv, text.data, n_prefill, 0, *logits);
    rig_feed(&r, &kv, text.data + n_prefill, N_DECODED, 1,
             *logits + (uint64_t)n_prefill * r.config.vocab);
    sheaf__forward_report(r.forward, &report);
    assert_int_equal(report.isa, o->isa);
    assert_int_equal(report.path, o->attn_path);
    sheaf__kv_destroy(&kv);
    rig_close(&r);
}

static void compare(const rig_options *plain, rig_ids text, uint32_t isa)
{
    float *wanted, *got;
    uint64_t bytes;
    run_text(plain, text, &wanted, &bytes);
    rig_options o = *plain;
    o.isa = isa;
    run_text(&o, text, &got, &bytes);
    assert_memory_equal(got, wanted, bytes);
    free(wanted);
    free(got);
}

static void compare_all(uint32_t isa)
{
    static const char *const small[] = {
        "tests/data/fixtures/llama3-tied", "tests/data/fixtures/qwen3-headdim",
        "tests/data/fixtures/qwen3-untied-gqa1", "tests/data/fixtures/mistral-swa",
        "tests/data/fixtures/gemma3-mixed-softcap"};
    uint32_t resolved;
    if (sheaf_isa_resolve(isa, &resolved) != SHEAF_OK) {
        fprintf(stderr, "SKIPPED: this processor or build lacks %s\n", sheaf_isa_name(isa));
        skip();
    }
    for (uint32_t m = 0; m < sizeof small / sizeof small[0]; m++) {
        rig_ids text = rig_prompt(small[m], 4, SMALL_TOKENS);
        for (uint32_t codec = 0; codec < (m == 0 ? SHEAF_CODEC_COUNT : SHEAF_DTYPE_COUNT);
             codec++)
            for (uint32_t way = 0; way < 4; way++) {
                rig_options o = {.dir = small[m],
                                 .isa = SHEAF_ISA_SCALAR,
                                 .codec_k = codec,
                                 .codec_v = codec};
                o.backend = way & 1 ? SHEAF__KV_DENSE : SHEAF__KV_PAGED;
                o.attn_path = way & 2 ? SHEAF_ATTN_GATHER : SHEAF_ATTN_FUSED;
                compare(&o, text, isa);
            }
        free(text.data);
    }
    rig_ids text = rig_prompt(DEMO, DEMO_PROMPT, DEMO_TOKENS);
    rig_options o = {.dir = DEMO,
                     .isa = SHEAF_ISA_SCALAR,
                     .codec_k = SHEAF_CODEC_BF16,
                     .codec_v = SHEAF_CODEC_BF16,
                     .n_threads = 2};
    compare(&o, text, isa);
    free(text.data);
}

static void avx2_equals_scalar(void **state)
{
    (void)state;
    compare_all(SHEAF_ISA_AVX2);
}

static void avx512_equals_scalar(void **state)
{
    (void)state;
    compare_all(SHEAF_ISA_AVX512);
}

static void neon_equals_scalar(void **state)
{
    (void)state;
    compare_all(SHEAF_ISA_NEON);
}

static void an_instruction_set_that_is_lacking_is_refused(void **state)
{
    (void)state;
    uint32_t resolved;
    for (uint32_t isa = SHEAF_ISA_SCALAR; isa <= SHEAF_ISA_NEON; isa++) {
        if (sheaf_isa_resolve(isa, &resolved) == SHEAF_OK) continue;
        const rig_options o = {.dir = "tests/data/fixtures/llama3-tied"};
        rig r;
        rig_open(&r, &o);
        const sheaf__forward_options f = {.isa = isa, .memory = &r.memory};
        sheaf__forward *forward = NULL;
        assert_int_equal(sheaf__forward_create(&r.config, r.weights, &f, &forward),
                         SHEAF_E_UNSUPPORTED);
        assert_null(forward);
        rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(avx2_equals_scalar),
        cmocka_unit_test(avx512_equals_scalar),
        cmocka_unit_test(neon_equals_scalar),
        cmocka_unit_test(an_instruction_set_that_is_lacking_is_refused),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
