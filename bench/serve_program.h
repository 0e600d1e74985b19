/* bench/serve_program.h - `sheaf serve` of the same build, as a process to be measured.
 *
 *     serve_program p;
 *     if (!serve_program_start(&p, (const char *[]){"-m", "models/sheaf-demo", NULL})) ...
 *     json_t *stats = serve_get(&p.target, "/v1/cache/stats");
 *     uint64_t peak = serve_program_peak(&p);
 *     serve_program_stop(&p);
 *
 * It ends with the bench at the latest, takes no flags from the environment, and logs to standard error.
 */
#ifndef SHEAF_BENCH_SERVE_PROGRAM_H
#define SHEAF_BENCH_SERVE_PROGRAM_H

#include <sys/types.h>

#include "serve_client.h"

typedef struct serve_program {
    serve_target target;
    pid_t pid;
} serve_program;

/* With these flags, up to a null, on a port of its own; returns when it can answer. False: it cannot. */
bool serve_program_start(serve_program *p, const char *const flags[]);

/* Memory that it had in use at most (VmHWM), mapped files included; 0: not known. */
uint64_t serve_program_peak(const serve_program *p);

/* SIGTERM; false: it ended otherwise than well. */
bool serve_program_stop(serve_program *p);

#endif
