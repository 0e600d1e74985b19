/* cli/tokenize.c - `sheaf tokenize`: standard input as token ids. */
#include <stdio.h>
#include <unistd.h>

#include "cli/cli.h"

static sheaf_status print_ids(const sheaf__ids *ids, bool json, sheaf_error *err)
{
    if (json) putchar('[');
    for (uint32_t i = 0; i < ids->n; i++) {
        if (i != 0) putchar(json ? ',' : ' ');
        printf("%d", ids->data[i]);
    }
    puts(json ? "]" : "");
    return sheaf__cli_flush(err);
}

static int tokenize_main(int argc, char **argv)
{
    const char *dir = NULL;
    bool json = false, done = false;
    sheaf__flags flags = {0};
    sheaf__flags_add(&flags, SHEAF__FLAG_TEXT, "model,m=DIR", &dir,
                     "directory with a tokenizer.json");
    sheaf__flags_add(&flags, SHEAF__FLAG_SWITCH, "json", &json, "print a JSON array");
    const sheaf__command *self = &sheaf__command_tokenize;
    sheaf_error err = {0};
    sheaf__text text = {0};
    sheaf__ids ids = {0};
    sheaf__tokenizer *tok = NULL;
    sheaf_status status = sheaf__flags_parse(self, &flags, argc, argv, &done, &err);
    if (status == SHEAF_OK && done) status = sheaf__cli_flush(&err);
    if (status != SHEAF_OK || done) goto out;
    if ((status = sheaf__cli_need_model(dir, &err)) != SHEAF_OK) goto out;
    if ((status = sheaf__tokenizer_open(dir, &tok, &err)) != SHEAF_OK) goto out;
    if ((status = sheaf__cli_read_all(STDIN_FILENO, "standard input", &text, &err)) != SHEAF_OK)
        goto out;
    status = sheaf__tokenizer_encode(tok, text.data, text.n, SHEAF__ENCODE_PLAIN, &ids);
    if (status == SHEAF_OK) status = print_ids(&ids, json, &err);
out:
    sheaf__tokenizer_close(tok);
    sheaf__ids_free(&ids);
    sheaf__text_free(&text);
    return status == SHEAF_OK ? 0 : sheaf__cli_fail(self->name, status, &err);
}

const sheaf__command sheaf__command_tokenize = {
    .name = "tokenize",
    .arguments = "-m DIR [--json] < TEXT",
    .summary = "print the token ids of standard input",
    .details = "The text is taken as it is: special tokens written in it are recognised, none "
               "is added.\n",
    .run = tokenize_main,
};
