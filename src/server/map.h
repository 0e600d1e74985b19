/* server/map.h - requests and blocks as they stand, as JSON.
 *
 * Owns: the texts of /slots and /v1/cache/map. Does not own: looking, which is a job between two steps
 * (engine/engine.h); docs/api.md has both formats.
 */
#ifndef SHEAF_SERVER_MAP_H
#define SHEAF_SERVER_MAP_H

#include "server/server.h"

/* One group's rows, as sheaf__engine_map gives them. */
typedef struct sheaf__map_group {
    uint32_t slab_blocks;
    uint32_t n_rows;
    uint64_t block_bytes;
    sheaf_row *rows;  /* [n_rows] */
    uint64_t *owners; /* [n_rows] */
} sheaf__map_group;

/* {"block_tokens":32,"groups":[{"group":0,"slab_blocks":32,"block_bytes":B,"rows":R,"states":"rrc.--",
 * "owners":[[first_row, count, request], ...]}, ...]}: appended. A character a row: '-' absent, '.' free,
 * 'r' running, 'k' parked, 'c' cached, 's' shared, 'i' io, 'h' host, 't' retiring, 'p' pinned. O(rows),
 * some nanoseconds each. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__map_render(uint32_t block_tokens, const sheaf__map_group *groups,
                               uint32_t n_groups, sheaf__text *out);

/* A list of objects, one a request: appended. The ctx of each is a sheaf__served. now_ns: of
 * base/clock.h. SHEAF_E_NO_MEMORY. */
sheaf_status sheaf__slots_render(const sheaf__request_info *infos, uint32_t n, uint64_t now_ns,
                                 sheaf__text *out);

#endif
