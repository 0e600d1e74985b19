/* tests/server/known.h - requests whose answers are known, for threads that ask them among others.
 *
 *     known_open(&p);                            // asks them all, alone, and keeps what is told
 *     char *wrong = known_ask(p.net.port, i);    // i in [0, N_KNOWN); null: the same as then
 *     known_close();
 */
#ifndef SHEAF_TESTS_SERVER_KNOWN_H
#define SHEAF_TESTS_SERVER_KNOWN_H

#include "server/program.h"

#define N_KNOWN 24

void known_open(const program *p);
void known_close(void);

/* Asks it again. Null: it is what it was the first time; else what was wrong, which is to be freed. Any
 * thread, asserts nothing. */
char *known_ask(uint16_t port, uint32_t i);

#endif
