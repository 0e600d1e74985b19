/* server/figures.c - the table of all that is told, and what is made of other figures.
 *
 * A line here is a field of /v1/cache/stats, a metric of /metrics and a line of docs/statistics.md
 * (checklist: SHEAF_WRITE_STATISTICS=1 with test_stats prints the document's tables anew).
 */
#include "server/figures.h"

#include <stddef.h>

/* ---- what arrays go by ------------------------------------------------------------------- */

#define DIMENSION(name, text, ...)                                                             \
    static const char *const name##_values[] = {__VA_ARGS__};                                  \
    static const sheaf__dimension name = {                                                     \
        text, name##_values, (uint32_t)(sizeof name##_values / sizeof name##_values[0])}

DIMENSION(by_cause, "cause", "capacity", "entries", "ttl", "pressure", "reset");
DIMENSION(by_reason, "reason", "too_large", "slid", "pins", "room");
DIMENSION(by_owner, "owner", "running", "parked", "cached", "io", "host");
DIMENSION(by_outcome, "outcome", "finished", "cancelled", "failed");
DIMENSION(by_endpoint, "endpoint", "chat", "completion", "preload", "other");
DIMENSION(by_status, "status", "left", "1xx", "2xx", "3xx", "4xx", "5xx");
DIMENSION(by_finish, "finish", "stop", "length", "cancelled", "error");

#define SIZE_OF(name) (sizeof name##_values / sizeof name##_values[0])
_Static_assert(SIZE_OF(by_cause) == SHEAF_LEFT_KINDS, "each cause has a name");
_Static_assert(SIZE_OF(by_reason) == SHEAF_REFUSED_KINDS - 1, "each reason has a name");
_Static_assert(SIZE_OF(by_owner) == SHEAF_OWNER_KINDS, "each kind of owner has a name");
_Static_assert(SIZE_OF(by_endpoint) == SHEAF__ENDPOINT_KINDS, "each endpoint has a name");
_Static_assert(SIZE_OF(by_finish) == SHEAF__FINISH_ERROR, "each end has a name");
_Static_assert(offsetof(sheaf__engine_stats, failed) ==
                   offsetof(sheaf__engine_stats, finished) + 2 * sizeof(uint64_t),
               "outcomes are an array");

/* ---- how a line is written --------------------------------------------------------------- */

#define VALUE(type_, kind_, unit_, needs_, member)                                             \
    .type = SHEAF__FIGURE_##type_, .kind = SHEAF__VALUE_##kind_, .unit = unit_,                \
    .needs = needs_, .offset = offsetof(sheaf__figures, member)
#define CACHE_GAUGE(unit, member)  VALUE(GAUGE, U64, unit, SHEAF__HAS_POOL, cache.member)
#define CACHE_COUNT(unit, member)  VALUE(COUNTER, U64, unit, SHEAF__HAS_POOL, cache.member)
#define POOL_GAUGE(unit, member)   VALUE(GAUGE, U64, unit, SHEAF__HAS_POOL, pool.member)
#define POOL_COUNT(unit, member)   VALUE(COUNTER, U64, unit, SHEAF__HAS_POOL, pool.member)
#define ENGINE_GAUGE(unit, member) VALUE(GAUGE, U64, unit, SHEAF__HAS_ENGINE, engine.member)
#define ENGINE_COUNT(unit, member) VALUE(COUNTER, U64, unit, SHEAF__HAS_ENGINE, engine.member)
#define TIMES(kind_)                                                                           \
    VALUE(HISTOGRAM, NS, "seconds", 0, times[kind_]), .bounds = sheaf__metrics_time_bounds,    \
                                                      .bounds_kind = kind_
#define SIZES(kind_)                                                                           \
    VALUE(HISTOGRAM, U64, "tokens", 0, sizes[kind_]), .bounds = sheaf__metrics_size_bounds,    \
                                                      .bounds_kind = kind_

static const sheaf__figure server_figures[] = {
    {"version", "sheaf_info", VALUE(INFO, TEXT, "", 0, version),
     .help = "The program's version."},
    {"model", "sheaf_info", VALUE(INFO, TEXT, "", 0, model),
     .help = "The name that the model is served as."},
    {"backend", "sheaf_info", VALUE(INFO, TEXT, "", SHEAF__HAS_MODEL, backend),
     .help = "Where K and V are kept: paged or dense."},
    {"uptime_seconds", "sheaf_uptime_seconds",
     VALUE(GAUGE, NS, "seconds", SHEAF__HAS_START, uptime_ns),
     .help = "Time since the server began to listen."},
    {"model_parameters", "sheaf_model_parameters",
     VALUE(GAUGE, U64, "", SHEAF__HAS_MODEL, n_parameters),
     .help = "Numbers in the model's weights."},
    {"weights_bytes_mapped", "sheaf_weights_mapped_bytes",
     VALUE(GAUGE, U64, "bytes", SHEAF__HAS_MODEL, weights_bytes_mapped),
     .help = "Weights used in place in their files, shared with the page cache."},
    {"weights_bytes_resident", "sheaf_weights_resident_bytes",
     VALUE(GAUGE, U64, "bytes", SHEAF__HAS_MODEL, weights_bytes_resident),
     .help = "Weights in memory of the process's own: widened norms, copies, random weights."},
    {"resident_bytes", "sheaf_process_resident_bytes",
     VALUE(GAUGE, U64, "bytes", SHEAF__HAS_PROCESS, resident_bytes),
     .help = "Memory that the process has in use, mapped files included (VmRSS)."},
    {"resident_peak_bytes", "sheaf_process_resident_peak_bytes",
     VALUE(GAUGE, U64, "bytes", SHEAF__HAS_PROCESS, resident_peak_bytes),
     .help = "The most of it that there ever was (VmHWM)."},
};

static const sheaf__figure cache_figures[] = {
    {"enabled", "sheaf_cache_enabled", VALUE(GAUGE, FLAG, "", 0, enabled),
     .help = "Whether prompts are kept and found again. Never with the dense backend."},
    {"block_size", "sheaf_block_tokens",
     VALUE(GAUGE, U64, "tokens", SHEAF__HAS_POOL, block_tokens),
     .help = "Positions in a block: what is shared, counted and evicted."},
    {"block_bytes", "sheaf_block_bytes",
     VALUE(GAUGE, U64, "bytes", SHEAF__HAS_POOL, block_bytes),
     .help = "Bytes of one block; of one of each group where layers have different windows."},
    {"capacity_bytes", "sheaf_cache_capacity_bytes", CACHE_GAUGE("bytes", capacity_bytes),
     .help = "The most that bytes_exclusive may be."},
    {"max_entries", "sheaf_cache_max_entries", CACHE_GAUGE("entries", max_entries),
     .help = "The most that entries may be; 0: any number."},
    {"ttl_seconds", "sheaf_cache_ttl_seconds",
     VALUE(GAUGE, NS, "seconds", SHEAF__HAS_POOL, cache.ttl_ns),
     .help = "An entry goes so long after its last use; 0: never."},
    {"entries", "sheaf_cache_entries", CACHE_GAUGE("entries", entries),
     .help =
         "Entries now: runs of a leaf up to the last branch above it. They leave as a whole."},
    {"nodes", "sheaf_cache_nodes", CACHE_GAUGE("nodes", nodes),
     .help = "Nodes of the tree of prompts."},
    {"namespaces", "sheaf_cache_namespaces", CACHE_GAUGE("namespaces", spaces),
     .help = "Namespaces that have entries: one a salt."},
    {"tokens", "sheaf_cache_tokens", CACHE_GAUGE("tokens", tokens),
     .help = "Positions that can be found."},
    {"blocks", "sheaf_cache_blocks", CACHE_GAUGE("blocks", blocks_held),
     .help = "Blocks that the cache names."},
    {"bytes", "sheaf_cache_bytes", CACHE_GAUGE("bytes", bytes_held),
     .help = "Bytes of these. Grows when requests publish, shrinks when entries leave."},
    {"bytes_exclusive", "sheaf_cache_exclusive_bytes", CACHE_GAUGE("bytes", bytes_exclusive),
     .help = "Bytes of those that nobody else holds. Grows also when a request ends."},
    {"bytes_pinned", "sheaf_cache_pinned_bytes", CACHE_GAUGE("bytes", bytes_pinned),
     .help = "Bytes that pins keep from leaving."},
    {"index_bytes", "sheaf_cache_index_bytes", CACHE_GAUGE("bytes", host_bytes),
     .help = "Memory of the tree and its index; no part of any budget."},
    {"lookups", "sheaf_cache_lookups_total", CACHE_COUNT("lookups", lookups),
     .help = "Prompts that were looked up: at admission, and again after a preemption."},
    {"hits", "sheaf_cache_hits_total", CACHE_COUNT("lookups", hits),
     .help = "Lookups that found at least one position."},
    {"hit_rate", "sheaf_cache_hit_ratio",
     VALUE(GAUGE, REAL, "ratio", SHEAF__HAS_POOL, hit_rate),
     .help = "hits / lookups; 0 before the first lookup."},
    {"lookup_tokens", "sheaf_cache_lookup_tokens_total", CACHE_COUNT("tokens", lookup_tokens),
     .help = "Positions of the prompts that were looked up."},
    {"hit_tokens", "sheaf_cache_hit_tokens_total", CACHE_COUNT("tokens", hit_tokens),
     .help = "Of these, positions that were found."},
    {"token_hit_rate", "sheaf_cache_token_hit_ratio",
     VALUE(GAUGE, REAL, "ratio", SHEAF__HAS_POOL, token_hit_rate),
     .help = "hit_tokens / lookup_tokens; 0 before the first lookup."},
    {"copied_tokens", "sheaf_cache_copied_tokens_total", CACHE_COUNT("tokens", copied_tokens),
     .help =
         "Of hit_tokens, those in a block that only begins alike: it was copied, not shared."},
    {"inserts", "sheaf_cache_inserts_total", CACHE_COUNT("publications", inserts),
     .help = "Publications that added something: prompts and answers, chunk by chunk."},
    {"inserted_blocks", "sheaf_cache_inserted_blocks_total",
     CACHE_COUNT("blocks", inserted_blocks), .help = "Blocks that they added."},
    {"inserted_tokens", "sheaf_cache_inserted_tokens_total",
     CACHE_COUNT("tokens", inserted_tokens), .help = "Positions that they added."},
    {"duplicate_blocks", "sheaf_cache_duplicate_blocks_total",
     CACHE_COUNT("blocks", duplicate_blocks),
     .help = "Blocks that were offered and there already."},
    {"replaced_blocks", "sheaf_cache_replaced_blocks_total",
     CACHE_COUNT("blocks", replaced_blocks),
     .help = "Partial blocks whose place a longer one has taken."},
    {"evictions_lru", NULL, VALUE(COUNTER, U64, "entries", SHEAF__HAS_POOL, evictions_lru),
     .help = "Entries that made room, the longest unused first: evictions by capacity, entries "
             "and pressure."},
    {"evictions_ttl", NULL, CACHE_COUNT("entries", evictions[SHEAF_LEFT_TTL]),
     .help = "Entries whose time to live was over."},
    {"evictions", "sheaf_cache_evictions_total", CACHE_COUNT("entries", evictions),
     .by = {&by_cause},
     .help = "Entries that left: by capacity_bytes, by max_entries, by time to live, because a "
             "step needed room "
             "in the pool (pressure), by a reset."},
    {"evicted_blocks", "sheaf_cache_evicted_blocks_total",
     CACHE_COUNT("blocks", evicted_blocks), .by = {&by_cause},
     .help = "Blocks that the cache let go of, by the same causes."},
    {"window_blocks_dropped", "sheaf_cache_window_blocks_dropped_total",
     CACHE_COUNT("blocks", window_blocks_dropped),
     .help = "Blocks of layers with a window that went before their entry, since no match "
             "needs them."},
    {"refusals", "sheaf_cache_refusals_total", CACHE_COUNT("refusals", refusals[1]),
     .by = {&by_reason},
     .help = "What was not taken: an entry larger than the capacity, one whose window had "
             "slid, pins beyond the "
             "capacity, a step without room in the pool."},
    {"last_refusal.reason", NULL, VALUE(INFO, TEXT, "", SHEAF__HAS_REFUSAL, last_refusal),
     .help = "Why something was refused the last time; absent before."},
    {"last_refusal.needed_bytes", NULL,
     VALUE(GAUGE, U64, "bytes", SHEAF__HAS_REFUSAL, cache.last_refusal_needed),
     .help = "What it would have taken."},
    {"last_refusal.possible_bytes", NULL,
     VALUE(GAUGE, U64, "bytes", SHEAF__HAS_REFUSAL, cache.last_refusal_possible),
     .help = "What there could have been."},
    {"last_refusal.tokens", NULL,
     VALUE(GAUGE, U64, "tokens", SHEAF__HAS_REFUSAL, cache.last_refusal_tokens),
     .help = "Positions of what was refused."},
    {"pins", "sheaf_cache_pins", CACHE_GAUGE("pins", pins),
     .help = "Pins that are kept now, by /v1/cache/preload."},
    {"pins_revoked", "sheaf_cache_pins_revoked_total", CACHE_COUNT("pins", pins_revoked),
     .help = "Revocable pins that were given up for room, or reset."},
    {"claims", "sheaf_cache_claims", CACHE_GAUGE("claims", claims),
     .help = "Prompts that are being computed, for those that wait for them too."},
    {"waiters", "sheaf_cache_waiters", CACHE_GAUGE("requests", waiters),
     .help = "Requests that wait for blocks which another one computes."},
    {"waits", "sheaf_cache_waits_total", CACHE_COUNT("requests", waits),
     .help = "Times that a request began to wait like that."},
    {"takeovers", "sheaf_cache_takeovers_total", CACHE_COUNT("claims", takeovers),
     .help = "Claims that passed to a waiter, because their owner was cancelled, preempted or "
             "stalled."},
    {"events", "sheaf_cache_events_total", CACHE_COUNT("events", events),
     .help = "Changes of what can be found: the number of the last one."},
};

static const sheaf__figure pool_figures[] = {
    {"budget_bytes", "sheaf_pool_budget_bytes", POOL_GAUGE("bytes", budget_bytes),
     .help = "The most that paged_bytes_reserved may be."},
    {"paged_bytes_reserved", "sheaf_pool_reserved_bytes", POOL_GAUGE("bytes", bytes_reserved),
     .help = "Memory committed to slabs. Grows and shrinks by whole slabs."},
    {"paged_bytes_in_use", "sheaf_pool_in_use_bytes", POOL_GAUGE("bytes", bytes_in_use),
     .help = "Blocks held, times their bytes: by running requests and by the prompt cache."},
    {"paged_bytes_shared", "sheaf_pool_shared_bytes", POOL_GAUGE("bytes", bytes_shared),
     .help = "Of these, bytes of blocks that more than one holds, once each."},
    {"paged_bytes_address", "sheaf_pool_address_bytes", POOL_GAUGE("bytes", bytes_address),
     .help = "Address range set apart when the pool was opened; no memory by itself."},
    {"pool_host_bytes", "sheaf_pool_host_bytes", POOL_GAUGE("bytes", host_bytes),
     .help = "Memory of records, tables, the tree: all but the blocks themselves."},
    {"paged_blocks_allocated", "sheaf_pool_blocks_allocated",
     POOL_GAUGE("blocks", blocks_capacity),
     .help = "Blocks in committed slabs: live, free and retiring."},
    {"paged_blocks_live", "sheaf_pool_blocks_live", POOL_GAUGE("blocks", blocks_held),
     .help = "Blocks that are held."},
    {"paged_blocks_free", "sheaf_pool_blocks_free", POOL_GAUGE("blocks", blocks_free),
     .help = "Blocks in committed slabs that are nobody's."},
    {"paged_blocks_retiring", "sheaf_pool_blocks_retiring",
     POOL_GAUGE("blocks", blocks_retiring),
     .help = "Blocks that wait for a device to be done with them; always 0 on a CPU."},
    {"paged_blocks_shared", "sheaf_pool_blocks_shared", POOL_GAUGE("blocks", blocks_shared),
     .help = "Blocks that more than one holds."},
    {"blocks_by_owner", "sheaf_pool_references", POOL_GAUGE("references", owners),
     .by = {&by_owner},
     .help = "References to blocks, by who holds them; a shared block counts once for each."},
    {"slabs", "sheaf_pool_slabs", POOL_GAUGE("slabs", slabs), .help = "Slabs committed now."},
    {"slabs_empty", "sheaf_pool_slabs_empty", POOL_GAUGE("slabs", slabs_empty),
     .help = "Of these, slabs without a live block."},
    {"slabs_least", "sheaf_pool_slabs_least", POOL_GAUGE("slabs", slabs_least),
     .help = "Slabs that would hold what is live."},
    {"fragmentation", "sheaf_pool_fragmentation_ratio",
     VALUE(GAUGE, REAL, "ratio", SHEAF__HAS_POOL, fragmentation),
     .help =
         "(slabs - slabs_least) / slabs: what compaction could give back; 0 without slabs."},
    {"slab_occupancy", "sheaf_pool_slab_occupancy_ratio",
     VALUE(GAUGE, REAL, "ratio", SHEAF__HAS_POOL, slab_occupancy),
     .help = "paged_blocks_live / paged_blocks_allocated; 0 without slabs."},
    {"slab_appends", "sheaf_pool_slab_appends_total", POOL_COUNT("slabs", slab_appends),
     .help = "Slabs committed ever."},
    {"slab_releases", "sheaf_pool_slab_releases_total", POOL_COUNT("slabs", slab_releases),
     .help = "Slabs given back ever."},
    {"slab_failures", "sheaf_pool_slab_failures_total", POOL_COUNT("slabs", slab_failures),
     .help = "Slabs that the system had no memory for."},
    {"bytes_copied_by_growth", "sheaf_pool_copied_by_growth_bytes_total",
     POOL_COUNT("bytes", bytes_copied_by_growth),
     .help = "Always 0: a pool that grows moves nothing."},
    {"blocks_acquired", "sheaf_pool_blocks_acquired_total",
     POOL_COUNT("blocks", blocks_acquired), .help = "Blocks taken ever."},
    {"blocks_released", "sheaf_pool_blocks_released_total",
     POOL_COUNT("blocks", blocks_released), .help = "Blocks that became free again."},
    {"blocks_copied", "sheaf_pool_blocks_copied_total", POOL_COUNT("blocks", blocks_copied),
     .help =
         "Blocks copied: on writing into a shared one, for a partial match, by compaction."},
    {"bytes_copied", "sheaf_pool_copied_bytes_total", POOL_COUNT("bytes", bytes_copied),
     .help = "Bytes of these."},
    {"full_answers", "sheaf_pool_full_answers_total", POOL_COUNT("requests", full_answers),
     .help = "Times that the pool had no room; then entries are evicted, or a request is "
             "preempted."},
};

static const sheaf__figure engine_figures[] = {
    {"requests_running", "sheaf_requests_running", ENGINE_GAUGE("requests", running),
     .help = "Requests that hold blocks, as of the last step."},
    {"requests_waiting", "sheaf_requests_waiting", ENGINE_GAUGE("requests", waiting),
     .help = "Requests that do not: queued, or preempted."},
    {"dense_bytes", "sheaf_dense_bytes",
     VALUE(GAUGE, U64, "bytes", SHEAF__HAS_DENSE, engine.dense_bytes),
     .help = "With the dense backend: buffers of the requests that run, whole, as of the last "
             "step."},
    {"requests", "sheaf_requests_total", ENGINE_COUNT("requests", finished),
     .by = {&by_outcome},
     .help = "Requests that ended: by themselves, cancelled (the client left, or a stop), with "
             "an error."},
    {"steps", "sheaf_engine_steps_total", ENGINE_COUNT("steps", steps),
     .help = "Batches that were run."},
    {"rows", "sheaf_engine_rows_total", ENGINE_COUNT("rows", rows),
     .help = "Rows of all batches: a position each."},
    {"tokens_computed", "sheaf_tokens_computed_total", ENGINE_COUNT("tokens", tokens_computed),
     .help = "Positions whose K and V were computed, of prompts and answers, also again after "
             "a preemption."},
    {"tokens_reused", "sheaf_tokens_reused_total", ENGINE_COUNT("tokens", tokens_reused),
     .help = "Positions that were found in the prompt cache instead."},
    {"tokens_told", "sheaf_tokens_told_total", ENGINE_COUNT("tokens", tokens_told),
     .help = "Tokens of answers that were sampled and told."},
    {"preemptions", "sheaf_preemptions_total", ENGINE_COUNT("requests", preemptions),
     .help = "Times that an answer gave its blocks back, to go on later."},
};

static const sheaf__figure request_figures[] = {
    {"replies", "sheaf_replies_total", VALUE(COUNTER, U64, "replies", 0, replies),
     .by = {&by_endpoint, &by_status},
     .help = "Replies, by endpoint and by the hundreds of their status; left: the client went "
             "before its end."},
    {"choices", "sheaf_choices_total", VALUE(COUNTER, U64, "choices", 0, finishes[1]),
     .by = {&by_finish}, .help = "Answers that ended, by what ended them."},
    {"refused_queue", "sheaf_queue_refusals_total",
     VALUE(COUNTER, U64, "requests", 0, refused_queue),
     .help = "Requests that got a 429, because the queue was full."},
    {"prompt_tokens", "sheaf_prompt_tokens_total",
     VALUE(COUNTER, U64, "tokens", 0, prompt_tokens),
     .help = "Tokens of prompts, of requests that ended well."},
    {"cached_tokens", "sheaf_cached_tokens_total",
     VALUE(COUNTER, U64, "tokens", 0, cached_tokens),
     .help = "Of these, tokens that usage told as cached."},
    {"answer_tokens", "sheaf_answer_tokens_total",
     VALUE(COUNTER, U64, "tokens", 0, answer_tokens), .help = "Tokens of the answers to them."},
    {"queue_time", "sheaf_queue_seconds", TIMES(SHEAF__TIME_QUEUE),
     .help = "From a request's submission to its admission."},
    {"time_to_first_token", "sheaf_time_to_first_token_seconds", TIMES(SHEAF__TIME_FIRST_TOKEN),
     .help = "From a request's submission to its first token."},
    {"time_between_tokens", "sheaf_time_between_tokens_seconds", TIMES(SHEAF__TIME_NEXT_TOKEN),
     .help = "Between two tokens of one answer."},
    {"request_time", "sheaf_request_seconds", TIMES(SHEAF__TIME_REQUEST),
     .help = "From a request's submission to the end of its last answer."},
    {"prompt_size", "sheaf_prompt_size_tokens", SIZES(SHEAF__SIZE_PROMPT),
     .help = "Tokens of a prompt."},
    {"answer_size", "sheaf_answer_size_tokens", SIZES(SHEAF__SIZE_ANSWER),
     .help = "Tokens of all answers to a request."},
};

static const sheaf__figure http_figures[] = {
    {"connections", "sheaf_http_connections",
     VALUE(GAUGE, U64, "connections", SHEAF__HAS_HTTP, http.connections),
     .help = "Connections that are open."},
    {"exchanges", "sheaf_http_exchanges",
     VALUE(GAUGE, U64, "requests", SHEAF__HAS_HTTP, http.exchanges),
     .help = "Requests whose reply is not whole."},
    {"queued_bytes", "sheaf_http_queued_bytes",
     VALUE(GAUGE, U64, "bytes", SHEAF__HAS_HTTP, http.queued_bytes),
     .help = "Bytes of streams that clients have not taken yet."},
};

#define SECTION(title, figures)                                                                \
    {                                                                                          \
        title, figures, (uint32_t)(sizeof figures / sizeof figures[0])                         \
    }

const sheaf__figure_section sheaf__figure_sections[] = {
    SECTION("The server", server_figures), SECTION("The prompt cache", cache_figures),
    SECTION("The pool", pool_figures),     SECTION("The engine", engine_figures),
    SECTION("Requests", request_figures),  SECTION("Connections", http_figures),
};
const uint32_t sheaf__n_figure_sections =
    (uint32_t)(sizeof sheaf__figure_sections / sizeof sheaf__figure_sections[0]);

bool sheaf__figure_there(const sheaf__figure *figure, const sheaf__figures *f)
{
    return (f->has & figure->needs) == figure->needs;
}

const void *sheaf__figure_at(const sheaf__figure *figure, const sheaf__figures *f)
{
    return (const char *)f + figure->offset;
}

static double ratio(uint64_t part, uint64_t whole)
{
    return whole == 0 ? 0 : (double)part / (double)whole;
}

void sheaf__figures_derive(sheaf__figures *f)
{
    const sheaf_prefix_stats *cache = &f->cache;
    const sheaf_pool_stats *pool = &f->pool;
    f->evictions_lru = cache->evictions[SHEAF_LEFT_CAPACITY] +
                       cache->evictions[SHEAF_LEFT_ENTRIES] +
                       cache->evictions[SHEAF_LEFT_PRESSURE];
    f->hit_rate = ratio(cache->hits, cache->lookups);
    f->token_hit_rate = ratio(cache->hit_tokens, cache->lookup_tokens);
    f->fragmentation = ratio(pool->slabs - pool->slabs_least, pool->slabs);
    f->slab_occupancy = ratio(pool->blocks_held, pool->blocks_capacity);
    f->has &= ~(uint32_t)SHEAF__HAS_REFUSAL;
    if (cache->last_refusal == SHEAF_REFUSED_NONE || cache->last_refusal >= SHEAF_REFUSED_KINDS)
        return;
    f->has |= SHEAF__HAS_REFUSAL;
    f->last_refusal = by_reason_values[cache->last_refusal - 1];
}
