/* model/chat.h - messages to the text a model was trained on.
 *
 * Owns: the families of chat template known here and how each renders; recognising the family
 * from tokenizer_config.json. Does not own: a template language; an unknown template is
 * refused.
 */
#ifndef SHEAF_MODEL_CHAT_H
#define SHEAF_MODEL_CHAT_H

#include "model/tokenizer.h"

enum {
    SHEAF__CHAT_NONE = 0,
    SHEAF__CHAT_CHATML = 1,
    SHEAF__CHAT_LLAMA3 = 2,
    SHEAF__CHAT_QWEN3 = 3,       /* ChatML that keeps the reasoning of the last answer only */
    SHEAF__CHAT_LLAMA31 = 4,     /* Llama 3 with a system block that always says two dates */
    SHEAF__CHAT_MISTRAL = 5,     /* [INST] q [/INST]a</s>; no system message */
    SHEAF__CHAT_MISTRAL_V01 = 6, /* the same with a blank after </s> */
    SHEAF__CHAT_MISTRAL_V1 = 7,  /* blanks around both; the first question says the system's */
    SHEAF__CHAT_MISTRAL_V3 = 8,  /* [INST] q[/INST] a</s>; the last one says the system's */
    SHEAF__CHAT_MISTRAL_V3_TEKKEN = 9, /* the same without any blank */
    SHEAF__CHAT_GEMMA = 10             /* turns of user and model, as Gemma 3 has them */
};

typedef struct sheaf__message {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
} sheaf__message;

/* The family of DIR's chat_template.jinja, or else of the chat_template in its
 * tokenizer_config.json (a text, or a list of named ones: "default"). SHEAF_MISS: no template.
 * SHEAF_E_ARCH: one not known here; the sentence names --chat-template. SHEAF_E_IO,
 * SHEAF_E_FORMAT. */
sheaf_status sheaf__chat_detect(const char *dir, uint32_t *family, sheaf_error *err);

/* The same for the text of a template. */
sheaf_status sheaf__chat_recognise(const char *template_text, uint32_t *family,
                                   sheaf_error *err);

/* A family by name: "chatml", "qwen3", "llama3", "llama3.1", "mistral", "mistral-v0.1",
 * "mistral-v1", "mistral-v3", "mistral-v3-tekken", "gemma". SHEAF_E_USAGE: the sentence lists the
 * names. */
sheaf_status sheaf__chat_from_name(const char *name, uint32_t *family, sheaf_error *err);
const char *sheaf__chat_name(uint32_t family);

/* Appends the rendered conversation; with `generate` also the opening of the assistant's
 * answer. SHEAF_E_CONFIG: a role that the family does not have or not in this place (Mistral's
 * and Gemma's turns alternate); nothing was appended. Special tokens
 * are written as text, the one that begins a text included, so encode with SHEAF__ENCODE_PLAIN:
 * what the post-processor adds would stand there twice. Llama 3.1's date of today is "26 Jul
 * 2024", which its template takes where it is told none: the same tokens every day. */
sheaf_status sheaf__chat_render(uint32_t family, const sheaf__message *messages, uint32_t n,
                                bool generate, sheaf__text *out, sheaf_error *err);

#endif
