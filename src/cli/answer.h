/* cli/answer.h - what the commands that answer share: flags of sampling, the chat template, and the
 * stream of an answer's text to standard output.
 */
#ifndef SHEAF_CLI_ANSWER_H
#define SHEAF_CLI_ANSWER_H

#include "cli/flags.h"
#include "engine/generate.h"
#include "engine/reply_text.h"

#include <stdio.h>

/* Adds --temp, --top-p, --top-k, --min-p and --seed. All zero is their default. */
void sheaf__sampling_flags_add(sheaf__sampler_options *values, sheaf__flags *flags);

/* The chat template called `name`, or DIR's own where name is null. SHEAF_E_USAGE, SHEAF_E_ARCH;
 * else as sheaf__chat_detect. */
sheaf_status sheaf__cli_chat_family(const char *dir, const char *name, uint32_t *family,
                                    sheaf_error *err);

/* Prints one line: how K and V are stored, what is held, the bytes in use and taken. */
void sheaf__cli_print_kv(FILE *out, const sheaf__model *model, const sheaf__kv *kv);

/* An answer's text on its way to standard output, whole characters at a time. */
typedef struct sheaf__stream {
    sheaf__reply_text reply;
    const char *stop; /* null: none */
    sheaf__text text; /* all that was written */
} sheaf__stream;

/* Starts a text that ends before `stop` (null: none; else good until it has ended); the memory of the
 * one before is used again. From zero at first. */
void sheaf__stream_begin(sheaf__stream *stream, const sheaf__tokenizer *tok, const char *stop);

/* Writes what the token makes certain. reply.stopped: the text has come to its `stop`, and takes no
 * more. SHEAF_E_IO: standard output is closed or full. */
sheaf_status sheaf__stream_token(sheaf__stream *stream, int32_t token);

/* Ends the line; before, where the text is `whole`, writes what was held back. A text that was
 * stopped ends with its last whole character. */
sheaf_status sheaf__stream_end(sheaf__stream *stream, bool whole, sheaf_error *err);
void sheaf__stream_free(sheaf__stream *stream);

#endif
