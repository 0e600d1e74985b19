/* engine/session.c - a sequence that outlives its process: kept in a file, continued by another. */
#include "engine/session.h"

#include "base/file.h"
#include "base/status.h"

sheaf_status sheaf__session_name(const char *path, const sheaf__model_options *options,
                                 sheaf__identity *out, sheaf_error *err)
{
    const sheaf__identity_options o = {.kind = SHEAF__IDENTITY_FULL,
                                       .progress = options->progress,
                                       .progress_ctx = options->progress_ctx};
    return sheaf__identity_read(path, &o, out, err);
}

sheaf_status sheaf__session_space(const sheaf__model *model, const char *path,
                                  const sheaf__identity *id, sheaf_key *out, sheaf_error *err)
{
    if (model->pool == NULL)
        return sheaf__error_set(err, SHEAF_E_UNSUPPORTED,
                                "the dense backend has no blocks to keep");
    SHEAF__TRY(sheaf__identity_unchanged(path, id, err));
    sheaf_status status = sheaf__identity_space(model->pool, id, NULL, 0, out);
    if (status == SHEAF_OK) return SHEAF_OK;
    return sheaf__error_set(err, status, "the model's namespace cannot be made: %s",
                            sheaf_status_text(status));
}

/* What a prompt is compared with, and what is run again, must be tokens of the model. */
static sheaf_status check_tokens(const sheaf__model *model, const sheaf_parked *parked,
                                 const char *file, sheaf_error *err)
{
    const int32_t *tokens = sheaf_parked_tokens(parked);
    char shown[SHEAF__BRIEF];
    for (uint32_t i = 0; i < sheaf_parked_length(parked); i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= model->config.vocab)
            return sheaf__error_set(err, SHEAF_E_FORMAT,
                                    "%s: token %d at position %u is outside the vocabulary",
                                    sheaf__path_show(file, shown), tokens[i], i);
    return SHEAF_OK;
}

sheaf_status sheaf__session_load(sheaf__model *model, const sheaf_key *space, const char *file,
                                 sheaf__kv *out, sheaf_error *err)
{
    sheaf_parked *parked = NULL;
    uint32_t n = 0;
    sheaf__kv kv = {.backend = SHEAF__KV_PAGED};
    SHEAF__TRY(sheaf_wire_load_file(model->pool, space, file, &parked, 1, &n, err));
    char shown[SHEAF__BRIEF];
    if (n == 0)
        return sheaf__error_set(err, SHEAF_E_FORMAT, "%s: holds no sequence",
                                sheaf__path_show(file, shown));
    sheaf_status status = check_tokens(model, parked, file, err);
    if (status == SHEAF_OK) status = sheaf_parked_adopt(parked, &kv.sequence);
    if (status != SHEAF_OK) {
        sheaf_parked_destroy(parked);
        return status;
    }
    *out = kv;
    return SHEAF_OK;
}

sheaf_status sheaf__session_keep(sheaf__kv *kv, const int32_t *ids, uint32_t n,
                                 sheaf__kept *out)
{
    sheaf__kept kept = {.n_common = sheaf__kv_common(kv, ids, n)};
    sheaf_status status = sheaf__kv_truncate(kv, kept.n_common);
    kept.slid = status == SHEAF_E_SLID;
    if (kept.slid) status = sheaf__kv_truncate(kv, 0);
    if (status != SHEAF_OK) return status;
    if (!kept.slid) kept.n_kept = kept.n_common < n ? kept.n_common : n - 1;
    *out = kept;
    return SHEAF_OK;
}

sheaf_status sheaf__session_fill(sheaf__model *model, sheaf__kv *kv, const int32_t *ids,
                                 uint32_t n, float *logits, sheaf_error *err)
{
    uint32_t held = sheaf__kv_length(kv);
    SHEAF__ASSERT(held <= n);
    if (held == n) return sheaf__model_logits(model, kv, logits, err);
    return sheaf__model_prefill(model, kv, ids + held, n - held, logits, err);
}

sheaf_status sheaf__session_save(sheaf__kv *kv, const sheaf_key *space, const char *file,
                                 sheaf_error *err)
{
    sheaf_parked *parked = NULL;
    sheaf_status status = sheaf_sequence_park(kv->sequence, &parked);
    if (status != SHEAF_OK)
        return sheaf__error_set(err, status, "the sequence cannot be parked: %s",
                                sheaf_status_text(status));
    kv->sequence = NULL;
    status = sheaf_wire_save_file(&parked, 1, space, file, err);
    sheaf_status adopted = sheaf_parked_adopt(parked, &kv->sequence);
    SHEAF__ASSERT(adopted == SHEAF_OK);
    return status == SHEAF_OK ? adopted : status;
}
