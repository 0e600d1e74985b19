/* model/kv.c - where one sequence's K and V live: in the pool's blocks, or in a dense buffer. */
#include "model/kv.h"

#include "base/status.h"
#include "cache/sequence.h"

static bool is_dense(const sheaf__kv *kv)
{
    return kv->backend == SHEAF__KV_DENSE;
}

sheaf_status sheaf__kv_extend(sheaf__kv *kv, uint32_t n)
{
    return is_dense(kv) ? sheaf__dense_extend(kv->dense, n)
                        : sheaf_sequence_extend(kv->sequence, n);
}

sheaf_status sheaf__kv_write(sheaf__kv *kv, uint32_t layer, uint32_t pos, uint32_t n,
                             const sheaf_kv_source *src)
{
    return is_dense(kv) ? sheaf__dense_write(kv->dense, layer, pos, n, src)
                        : sheaf_sequence_write(kv->sequence, layer, pos, n, src);
}

sheaf_status sheaf__kv_commit(sheaf__kv *kv, uint32_t n, const int32_t *tokens)
{
    return is_dense(kv) ? sheaf__dense_commit(kv->dense, n, tokens)
                        : sheaf_sequence_commit(kv->sequence, n, tokens);
}

sheaf_status sheaf__kv_truncate(sheaf__kv *kv, uint32_t length)
{
    return is_dense(kv) ? sheaf__dense_truncate(kv->dense, length)
                        : sheaf_sequence_truncate(kv->sequence, length);
}

sheaf_status sheaf__kv_slide(sheaf__kv *kv, uint32_t max_draft)
{
    return is_dense(kv) ? SHEAF_OK : sheaf_sequence_slide(kv->sequence, max_draft);
}

sheaf_status sheaf__kv_view(const sheaf__kv *kv, uint32_t layer, sheaf_kv_view *out)
{
    return is_dense(kv) ? sheaf__dense_view(kv->dense, layer, out)
                        : sheaf_sequence_view(kv->sequence, layer, out);
}

sheaf_status sheaf__kv_fork(sheaf__kv *kv, sheaf__kv *out)
{
    sheaf__kv twin = {.backend = kv->backend};
    if (is_dense(kv))
        SHEAF__TRY(sheaf__dense_fork(kv->dense, &twin.dense));
    else
        SHEAF__TRY(sheaf_sequence_fork(kv->sequence, &twin.sequence));
    *out = twin;
    return SHEAF_OK;
}

uint32_t sheaf__kv_length(const sheaf__kv *kv)
{
    return is_dense(kv) ? sheaf__dense_length(kv->dense) : sheaf_sequence_length(kv->sequence);
}

uint32_t sheaf__kv_reserved(const sheaf__kv *kv)
{
    return is_dense(kv) ? sheaf__dense_reserved(kv->dense)
                        : sheaf_sequence_reserved(kv->sequence);
}

const int32_t *sheaf__kv_tokens(const sheaf__kv *kv)
{
    return is_dense(kv) ? sheaf__dense_tokens(kv->dense) : sheaf_sequence_tokens(kv->sequence);
}

sheaf_status sheaf__kv_covers(const sheaf__kv *kv, uint32_t length)
{
    if (!is_dense(kv)) return sheaf__sequence_covers(kv->sequence, length);
    return length > sheaf__dense_length(kv->dense) ? SHEAF_E_RANGE : SHEAF_OK;
}

uint32_t sheaf__kv_common(const sheaf__kv *kv, const int32_t *tokens, uint32_t n)
{
    const int32_t *held = sheaf__kv_tokens(kv);
    uint32_t most = sheaf__kv_length(kv), i = 0;
    if (most > n) most = n;
    while (i < most && held[i] == tokens[i]) i++;
    return i;
}

bool sheaf__kv_same(const sheaf__kv *a, const sheaf__kv *b)
{
    return a == b || (a->sequence == b->sequence && a->dense == b->dense);
}

void sheaf__kv_destroy(sheaf__kv *kv)
{
    sheaf_sequence_destroy(kv->sequence);
    sheaf__dense_destroy(kv->dense);
    kv->sequence = NULL;
    kv->dense = NULL;
}
