/* tests/server/program.h - the real `sheaf serve`, as a process of its own.
 *
 *     program p;
 *     program_start(&p, (const char *[]){"-m", "models/sheaf-demo", "--parallel", "2", NULL});
 *     json_t *stats = serving_get(&p.net, "/v1/cache/stats", 200);
 *     program_stop(&p);                                  // it ends well
 *
 * It is the program of the same build, and ends with the test at the latest. All failures are failed
 * assertions of the running case.
 */
#ifndef SHEAF_TESTS_SERVER_PROGRAM_H
#define SHEAF_TESTS_SERVER_PROGRAM_H

#include <sys/types.h>

#include "server/servers.h"

typedef struct program {
    serving net; /* its port alone: for serving_get, serving_post and their like */
    pid_t pid;
    int log; /* a file without a name: what it wrote to standard error */
} program;

/* With these flags, up to a null, on a port of its own; returns when it listens. */
void program_start(program *p, const char *const flags[]);

/* SIGTERM; its exit code must be 0. */
void program_stop(program *p);

/* A number of its statistics: "a.b" in /v1/cache/stats. */
int64_t program_figure(const program *p, const char *path);

/* Waits until nothing runs or waits there, and every reply is whole or was left; at most 60 s. */
void program_idle(const program *p);

/* Bytes of a line of /proc/PID/status, like "VmRSS:". */
uint64_t program_memory(const program *p, const char *line);

/* Lets the most that was ever resident (VmHWM) begin anew. False: this system does not. */
bool program_forget_peak(const program *p);

/* Its log so far, zero-terminated. Free it. */
char *program_log(const program *p);

#endif
