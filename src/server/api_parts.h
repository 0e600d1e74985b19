/* server/api_parts.h - what bodies have in common, read by one reader each.
 *
 * Owns: messages, prompts, what is said of sampling, of the prompt cache. Each reader returns false with
 * the error filled in; what it has allocated by then is in its output, for the caller to free.
 */
#ifndef SHEAF_SERVER_API_PARTS_H
#define SHEAF_SERVER_API_PARTS_H

#include "server/api.h"
#include "server/api_fields.h"

/* Opens a body: parses it into *root and refuses what the table does not know. */
bool sheaf__api_begin(const char *body, uint64_t n, const sheaf__known *known, uint32_t n_known,
                      json_t **root, sheaf__fields *f, sheaf__api_error *error);

/* `model`: none, or the served one; else a 404. */
bool sheaf__api_read_model(const sheaf__fields *f, const sheaf__api_limits *limits);

/* `messages`, which must be there. Their contents, joined where they are lists of parts, belong to the
 * body. */
bool sheaf__api_read_messages(const sheaf__fields *f, sheaf__message **messages, uint32_t *n);

/* `prompt`, which must be there: at most max_prompts. */
bool sheaf__api_read_prompts(const sheaf__fields *f, uint32_t vocab, uint32_t max_prompts,
                             sheaf__api_prompt **prompts, uint32_t *n);

/* A list of tokens. name: as sentences call it. */
bool sheaf__api_read_tokens(const sheaf__fields *f, const char *name, const json_t *list,
                            uint32_t vocab, sheaf__api_prompt *out);

/* temperature, top_p, top_k, min_p, seed, presence_penalty, frequency_penalty, logit_bias, stop,
 * ignore_eos, stream, stream_options, n. */
bool sheaf__api_read_sampling(const sheaf__fields *f, const sheaf__api_limits *limits,
                              sheaf__completion *out);

/* cache_salt, prompt_cache_key, priority. */
bool sheaf__api_read_cache(const sheaf__fields *f, sheaf__completion *out);

/* The limit of `n` times the prompts. */
uint32_t sheaf__api_max_choices(const sheaf__api_limits *limits);

#define SHEAF__API_MAX_NAME 256 /* bytes of a salt, a key, a stop text */

#endif
