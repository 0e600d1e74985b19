/* engine/session.h - a sequence that outlives its process: kept in a file, continued by another.
 *
 * Owns: whose file it is (the FULL digest of the model, the layout of K and V), what of it a prompt
 * can use, and the way back where a window has let go. Does not own: the format (sheaf/wire.h).
 *
 *     st = sheaf__session_name("DIR", &options, &id, &err);         // before sheaf__model_open
 *     st = sheaf__session_space(model, "DIR", &id, &space, &err);
 *     st = sheaf__session_load(model, &space, "FILE", &kv, &err);   // for sheaf__model_new_kv
 *     st = sheaf__session_keep(&kv, ids, n, &kept);
 *     st = sheaf__session_fill(model, &kv, ids, n, logits, &err);   // for sheaf__model_prefill
 *     ... sheaf__model_decode ...
 *     st = sheaf__session_save(&kv, &space, "FILE", &err);
 *
 * A continued run has the tokens and the logits of one that began from nothing, to the bit. With the
 * paged backend alone.
 */
#ifndef SHEAF_ENGINE_SESSION_H
#define SHEAF_ENGINE_SESSION_H

#include "engine/generate.h"
#include "model/identity.h"
#include "sheaf/wire.h"

/* The FULL digest of the model that is to be opened as `path`; of the options, progress is used. Reads
 * all weights the first time. As sheaf__identity_read. */
sheaf_status sheaf__session_name(const char *path, const sheaf__model_options *options,
                                 sheaf__identity *out, sheaf_error *err);

/* The namespace of the opened model's sequences. SHEAF_E_IO: its files have changed since it was named,
 * so that nobody knows what was opened. SHEAF_E_UNSUPPORTED: the dense backend. */
sheaf_status sheaf__session_space(const sheaf__model *model, const char *path,
                                  const sheaf__identity *id, sheaf_key *out, sheaf_error *err);

/* A file's one sequence. Statuses as for sheaf_wire_load_file, SHEAF_E_FORMAT also for a token that the
 * model does not have; `err` names the file. */
sheaf_status sheaf__session_load(sheaf__model *model, const sheaf_key *space, const char *file,
                                 sheaf__kv *out, sheaf_error *err);

/* What a prompt has of a loaded sequence. */
typedef struct sheaf__kept {
    uint32_t n_common; /* tokens that both begin with */
    uint32_t n_kept;   /* that are not run again: at most one less than the prompt has */
    bool slid;         /* none is kept, because a window has let go of what n_common needs */
} sheaf__kept;

/* Cuts the sequence back to what it has in common with ids: [n]. */
sheaf_status sheaf__session_keep(sheaf__kv *kv, const int32_t *ids, uint32_t n,
                                 sheaf__kept *out);

/* Runs the tokens of ids: [n] that the sequence does not have yet; logits: [vocab] of the last, also
 * where it has all of them. As sheaf__model_prefill and sheaf__model_logits. */
sheaf_status sheaf__session_fill(sheaf__model *model, sheaf__kv *kv, const int32_t *ids,
                                 uint32_t n, float *logits, sheaf_error *err);

/* Writes the sequence into a file, in one step: another process sees the old file or the new one.
 * It goes on as before, also on failure. As sheaf_wire_save_file. */
sheaf_status sheaf__session_save(sheaf__kv *kv, const sheaf_key *space, const char *file,
                                 sheaf_error *err);

#endif
