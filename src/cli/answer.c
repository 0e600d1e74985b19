/* cli/answer.c - what the commands that answer share. */
#include "cli/answer.h"

#include "cli/cli.h"

void sheaf__sampling_flags_add(sheaf__sampler_options *values, sheaf__flags *flags)
{
    const uint32_t whole = SHEAF__FLAG_U32, number = SHEAF__FLAG_F32;
    sheaf__flag_range(sheaf__flags_add(flags, number, "temp=T", &values->temperature,
                                       "temperature; 0 is greedy (default 0)"),
                      0, 100);
    sheaf__flag_range(
        sheaf__flags_add(
            flags, number, "top-p=P", &values->top_p,
            "smallest set of tokens with this probability; 0 or 1 is off (default 1)"),
        0, 1);
    sheaf__flag_range(sheaf__flags_add(flags, whole, "top-k=K", &values->top_k,
                                       "the K likeliest tokens (default 0: off)"),
                      0, 1 << 24);
    sheaf__flag_range(
        sheaf__flags_add(flags, number, "min-p=P", &values->min_p,
                         "tokens at least P times as likely as the likeliest (default 0: off)"),
        0, 1);
    sheaf__flags_add(flags, SHEAF__FLAG_U64, "seed,s=N", &values->seed,
                     "seed of the sampling (default 0)");
}

sheaf_status sheaf__cli_chat_family(const char *dir, const char *name, uint32_t *family,
                                    sheaf_error *err)
{
    if (name != NULL) return sheaf__chat_from_name(name, family, err);
    sheaf_status status = sheaf__chat_detect(dir, family, err);
    if (status != SHEAF_MISS) return status;
    return sheaf__error_set(err, SHEAF_E_ARCH,
                            "%s: has no chat template; name one with --chat-template", dir);
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

void sheaf__cli_print_kv(FILE *out, const sheaf__model *model, const sheaf__kv *kv)
{
    const sheaf__kv_name name =
        sheaf__cli_kv_name(model->options.codec_k, model->options.codec_v);
    if (kv->backend == SHEAF__KV_DENSE) {
        fprintf(out, "KV %s in a dense buffer: %.1f MiB held, %.1f MiB copied by growth\n",
                name.text, mib(sheaf__dense_bytes(kv->dense)),
                mib(sheaf__dense_bytes_copied(kv->dense)));
        return;
    }
    sheaf_pool_stats stats = SHEAF_POOL_STATS_INIT;
    if (sheaf_pool_stats_read(model->pool, &stats) != SHEAF_OK) return;
    fprintf(out, "KV %s in blocks: %llu held, %.1f MiB in use, %.1f MiB reserved\n", name.text,
            (unsigned long long)stats.blocks_held, mib(stats.bytes_in_use),
            mib(stats.bytes_reserved));
}

void sheaf__stream_begin(sheaf__stream *stream, const sheaf__tokenizer *tok, const char *stop)
{
    sheaf__reply_text_free(&stream->reply);
    stream->stop = stop;
    sheaf__reply_text_init(&stream->reply, tok, &stream->stop, stop != NULL);
    stream->text.n = 0;
    if (stream->text.data != NULL) stream->text.data[0] = 0;
}

/* Writes the text from byte `begin` on. */
static void write_from(const sheaf__stream *stream, uint64_t begin)
{
    const sheaf__text *text = &stream->text;
    if (text->n > begin) fwrite(text->data + begin, 1, text->n - begin, stdout);
}

sheaf_status sheaf__stream_token(sheaf__stream *stream, int32_t token)
{
    uint64_t begin = stream->text.n;
    bool stopped;
    SHEAF__TRY(sheaf__reply_text_push(&stream->reply, token, &stream->text, &stopped));
    write_from(stream, begin);
    return sheaf__cli_flush(NULL);
}

sheaf_status sheaf__stream_end(sheaf__stream *stream, bool whole, sheaf_error *err)
{
    uint64_t begin = stream->text.n;
    sheaf_status status = SHEAF_OK;
    if (whole) status = sheaf__reply_text_finish(&stream->reply, &stream->text);
    write_from(stream, begin);
    putchar('\n');
    return status == SHEAF_OK ? sheaf__cli_flush(err) : status;
}

void sheaf__stream_free(sheaf__stream *stream)
{
    sheaf__reply_text_free(&stream->reply);
    sheaf__text_free(&stream->text);
}
