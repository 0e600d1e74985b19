/* model/chat_form.h - a chat template in one spelling, so that its parts can be looked for.
 *
 * Owns: Jinja's tags, quotes and blanks. Does not own: what the tags mean.
 *
 *     {{- "[INST] " + message["content"] }}   becomes   {{'[INST] '+message['content']}}
 */
#ifndef SHEAF_MODEL_CHAT_FORM_H
#define SHEAF_MODEL_CHAT_FORM_H

#include "model/tokenizer.h"

/* Appends the tags of a template without comments, without whitespace control, without blanks
 * outside quotes; every quote is ', a line break inside quotes is \n. `speaks`: text between the
 * tags would be rendered too, blanks included (as read with trim_blocks and lstrip_blocks, which
 * all that render chat templates set). */
sheaf_status sheaf__chat_form(const char *template_text, sheaf__text *form, bool *speaks);

#endif
