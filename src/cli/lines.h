/* cli/lines.h - the lines that a conversation is typed in.
 *
 * Owns: standard input. On a terminal lines are edited (libedit, with the bindings of ~/.editrc) and
 * remembered in ${XDG_STATE_HOME:-$HOME/.local/state}/sheaf/history, which only its owner can read;
 * elsewhere they are taken as they come.
 */
#ifndef SHEAF_CLI_LINES_H
#define SHEAF_CLI_LINES_H

#include <stdbool.h>

#include "base/status.h"

typedef struct sheaf__lines sheaf__lines;

/* A history that cannot be read or written is one sentence on standard error, and there is none.
 * SHEAF_E_NO_MEMORY; SHEAF_E_USAGE: the variable that places it holds no absolute path. */
sheaf_status sheaf__lines_open(sheaf__lines **out, sheaf_error *err);

/* Restores the terminal. Null is allowed. */
void sheaf__lines_close(sheaf__lines *lines);

/* Whether somebody sits at the other end. */
bool sheaf__lines_are_typed(const sheaf__lines *lines);

/* The next line, without its end; valid until the next call. SHEAF_MISS: no more.
 * SHEAF_E_CANCELLED: Ctrl-C, or another signal, ended the line that was edited. SHEAF_E_IO;
 * SHEAF_E_FORMAT: the line holds a zero byte, and was skipped. */
sheaf_status sheaf__lines_next(sheaf__lines *lines, const char **line, sheaf_error *err);

#endif
