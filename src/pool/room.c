/* pool/room.c - would a request find room if certain blocks were released?
 *
 * The plan of grow.c is made for the slabs as they would then be: rows that may go count as free; a slab
 * that would fall empty is given back when it is short or one beyond the slack, as sheaf__group_put does,
 * and its bytes can serve any group. Rows that wait for a fence are not counted on.
 */
#include "pool/room.h"

#include "base/bits.h"

/* One group's slabs as they would be. */
typedef struct outlook {
    uint64_t partly;      /* free rows in slabs that are partly used */
    uint64_t new_empty;   /* whole slabs that fall empty and stay */
    uint64_t n_returned;  /* slabs that are given back */
    uint64_t bytes_freed; /* by them */
} outlook;

static uint32_t may_go_in(const sheaf__slab *slab, sheaf__may_go_fn *may_go, const void *ctx)
{
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < slab->n_rows; slot++) {
        const sheaf__record *record = &slab->records[slot];
        n += record->state == SHEAF__ROW_HELD && may_go(ctx, record);
    }
    return n;
}

static outlook look_at(const sheaf_pool *pool, const sheaf__group *group,
                       sheaf__may_go_fn *may_go, const void *ctx)
{
    outlook out = {0};
    for (uint32_t s = group->first_slab; s < group->n_slabs; s++) {
        const sheaf__slab *slab = &group->slabs[s];
        if (slab->n_free == slab->n_rows) continue; /* empty already, or given back */
        uint32_t n_free = slab->n_free + may_go_in(slab, may_go, ctx);
        bool is_short = slab->n_rows < group->layout->slab_blocks;
        if (n_free != slab->n_rows) {
            out.partly += n_free;
        } else if (!is_short && group->counts.slabs_empty + out.new_empty < pool->slack_slabs) {
            out.new_empty++;
        } else {
            out.n_returned++;
            out.bytes_freed += slab->bytes;
        }
    }
    return out;
}

/* Serves `missing` rows from empty slabs, those of now first, and returns how many are left. *spare
 * grows by the bytes of empty slabs that are not needed: without `keep`, of all. */
static uint64_t use_empty(const sheaf__group *group, uint64_t missing, bool keep,
                          const outlook *out, uint64_t *spare)
{
    uint32_t index = sheaf__group_first_empty(group);
    uint64_t n_empty = group->counts.slabs_empty;
    for (uint64_t i = 0; i < n_empty + out->new_empty; i++) {
        uint64_t bytes = group->layout->slab_bytes, rows = group->layout->slab_blocks;
        if (i < n_empty) {
            bytes = group->slabs[index].bytes;
            rows = group->slabs[index].n_free;
            index = group->slabs[index].next;
        }
        if (missing != 0 && keep) {
            missing -= sheaf__min_u64(missing, rows);
            continue;
        }
        *spare += bytes;
    }
    return missing;
}

/* Adds the bytes of the slabs that `missing` rows take. False: the range has no room for them. */
static bool add_slabs(const sheaf_pool *pool, uint32_t g, uint64_t missing, uint64_t n_returned,
                      uint64_t *bytes)
{
    const sheaf__group *group = &pool->groups[g];
    uint64_t n_full = missing >> group->layout->slab_shift;
    uint64_t rest = missing & (group->layout->slab_blocks - 1), full_bytes;
    uint64_t room = group->max_slabs - group->first_slab - group->counts.slabs + n_returned;
    if (n_full + (rest != 0) > room) return false;
    return sheaf__mul_u64(n_full, group->layout->slab_bytes, &full_bytes) &&
           sheaf__add_u64(*bytes, full_bytes, bytes) &&
           sheaf__add_u64(*bytes, sheaf__layout_slab_bytes(&pool->layout, g, rest), bytes);
}

static bool fits_after(const sheaf_pool *pool, const uint32_t *counts, const outlook *outlooks,
                       bool keep)
{
    uint64_t room = pool->usable_bytes, needed = 0;
    for (uint32_t g = 0; g < pool->layout.n_groups; g++)
        room -= pool->groups[g].counts.bytes_reserved;
    for (uint32_t g = 0; g < pool->layout.n_groups; g++) {
        const outlook *out = &outlooks[g];
        uint64_t missing = counts[g] > out->partly ? counts[g] - out->partly : 0;
        room += out->bytes_freed;
        missing = use_empty(&pool->groups[g], missing, keep, out, &room);
        if (!add_slabs(pool, g, missing, out->n_returned, &needed)) return false;
    }
    return needed <= room;
}

bool sheaf__room_after(const sheaf_pool *pool, const uint32_t *counts, sheaf__may_go_fn *may_go,
                       const void *ctx)
{
    outlook outlooks[SHEAF_MAX_GROUPS];
    for (uint32_t g = 0; g < pool->layout.n_groups; g++)
        outlooks[g] = look_at(pool, &pool->groups[g], may_go, ctx);
    return fits_after(pool, counts, outlooks, true) ||
           fits_after(pool, counts, outlooks, false);
}

/* A group is served by its own free rows, by those that are released (as rows, or as the bytes of slabs
 * given back, which then hold as many), and by what the budget has left: nothing of other groups is
 * counted on, so that it does not matter which of their slabs fall empty. */
bool sheaf__room_surely(const sheaf_pool *pool, const uint32_t *counts, const uint64_t *freed)
{
    uint64_t room = pool->usable_bytes, needed = 0;
    for (uint32_t g = 0; g < pool->layout.n_groups; g++) {
        const sheaf__counts *now = &pool->groups[g].counts;
        uint64_t own = now->free + freed[g];
        uint64_t missing = counts[g] > own ? counts[g] - own : 0;
        room -= now->bytes_reserved;
        if (missing != 0 && !add_slabs(pool, g, missing, 0, &needed)) return false;
    }
    return needed <= room;
}

uint64_t sheaf__room_count(const sheaf_pool *pool, uint32_t group, sheaf__may_go_fn *may_go,
                           const void *ctx)
{
    const sheaf__group *of = &pool->groups[group];
    uint64_t n = 0;
    for (uint32_t s = of->first_slab; s < of->n_slabs; s++)
        if (of->slabs[s].n_free != of->slabs[s].n_rows)
            n += may_go_in(&of->slabs[s], may_go, ctx);
    return n;
}
