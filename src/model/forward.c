/* model/forward.c - one step of the network over a ragged batch.
 *
 * The batch is m rows, item after item, each item's tokens in order. All that works on rows
 * alone (norms, products, rotation, gating) sees m rows and no items; only the caches and
 * attention know where one sequence ends. The workspace is one allocation for so many rows:
 *
 *     x        [m, hidden]                  the residual stream
 *     h        [m, hidden]                  x normed: what products read
 *     q        [m, n_heads, head_dim]
 *     k, v     [m, n_kv_heads, head_dim]
 *     a        [m, n_heads, head_dim]       what attention answers
 *     gate, up [m, intermediate]
 *     y        [m, hidden]                  what a block adds to x
 *
 * It grows when a run has more rows than any before, and so do the buffers of the matrix
 * products, the attention plans and the rope tables: before anything is written, so that
 * nothing can run out of memory half way.
 */
#include "model/forward.h"

#include <stdatomic.h>
#include <string.h>

#include "base/bits.h"
#include "base/fpenv.h"
#include "base/status.h"
#include "base/thread.h"
#include "model/matmul.h"
#include "model/ops.h"
#include "model/rope.h"

#define WORKSPACE_ALIGN 64
#define ROW_MULTIPLE    16   /* keeps each buffer of the workspace 64-byte aligned */
#define TASK_NUMBERS    8192 /* per task of row-wise work: some microseconds */

typedef struct workspace {
    uint32_t rows;        /* that the buffers have room for */
    float *numbers;       /* all of the following, one allocation */
    float *x, *h, *y;     /* [rows, hidden] */
    float *q, *a;         /* [rows, n_heads * head_dim] */
    float *k, *v;         /* [rows, n_kv_heads * head_dim] */
    float *gate, *up;     /* [rows, intermediate] */
    uint32_t *indices;    /* the following three, one allocation */
    uint32_t *token;      /* [rows] */
    uint32_t *pos;        /* [rows], absolute */
    uint32_t *wanted;     /* [rows]: the rows whose logits are wanted, in order */
    uint64_t n_views;     /* that the following have room for */
    sheaf_kv_view *views; /* [n_views] */
    uint64_t n_planned;
    sheaf_attn_item *planned; /* [n_planned] */
} workspace;

struct sheaf__forward {
    sheaf__config config;
    const sheaf__weights *weights;
    sheaf__forward_options options;
    const sheaf__ops *ops;
    sheaf__matmul *matmul;
    sheaf__rope *rope;
    sheaf__rope *local_rope; /* of layers with a window; null: as the others */
    uint32_t n_plans;        /* one a distinct window */
    sheaf_attn_plan *plans[SHEAF_MAX_GROUPS];
    uint8_t plan_of[SHEAF_MAX_LAYERS];
    uint32_t layer_of[SHEAF_MAX_GROUPS]; /* the first layer of each plan */
    workspace ws;
    sheaf_attn_report report;
};

/* One run: the batch's sizes, and where it stands. */
typedef struct step {
    sheaf__forward *fwd;
    const sheaf__forward_item *items;
    uint32_t n_items;
    uint32_t m;        /* rows */
    uint32_t n_logits; /* wanted rows */
    uint32_t end;      /* the longest sequence after the step */
    uint32_t layer;
    const sheaf__layer_weights *w;
    float *logits; /* [n_logits, vocab] */
    _Atomic bool nonfinite;
} step;

static uint32_t q_width(const sheaf__config *c)
{
    return c->n_heads * c->head_dim;
}

static uint32_t kv_width(const sheaf__config *c)
{
    return c->n_kv_heads * c->head_dim;
}

/* ---- life -------------------------------------------------------------------------------- */

void sheaf__forward_layout(const sheaf__config *config, uint32_t codec_k, uint32_t codec_v,
                           sheaf_layer *layers)
{
    for (uint32_t i = 0; i < config->n_layers; i++)
        layers[i] = (sheaf_layer){.n_kv_heads = config->n_kv_heads,
                                  .key_dim = config->head_dim,
                                  .value_dim = config->head_dim,
                                  .window = config->window[i],
                                  .codec_k = codec_k,
                                  .codec_v = codec_v};
}

/* One plan a distinct window, in the order in which they first appear. */
static sheaf_status create_plans(sheaf__forward *fwd)
{
    const sheaf__config *c = &fwd->config;
    uint32_t windows[SHEAF_MAX_GROUPS];
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        uint32_t p = 0;
        while (p < fwd->n_plans && windows[p] != c->window[layer]) p++;
        fwd->plan_of[layer] = (uint8_t)p;
        if (p < fwd->n_plans) continue;
        if (p == SHEAF_MAX_GROUPS) return SHEAF_E_LAYOUT;
        fwd->layer_of[p] = layer;
        sheaf_attn_options o = SHEAF_ATTN_OPTIONS_INIT;
        o.n_q_heads = c->n_heads;
        o.n_kv_heads = c->n_kv_heads;
        o.key_dim = o.value_dim = c->head_dim;
        o.window = windows[p] = c->window[layer];
        o.scale = c->attn_scale;
        o.softcap = c->attn_softcap;
        o.path = fwd->options.attn_path;
        o.isa = fwd->options.isa;
        SHEAF__TRY(sheaf_attn_plan_create(&o, fwd->options.threads, &fwd->plans[p]));
        fwd->n_plans++;
    }
    return SHEAF_OK;
}

static sheaf_status create_parts(sheaf__forward *fwd)
{
    const sheaf__forward_options *o = &fwd->options;
    fwd->ops = sheaf__ops_for(o->isa);
    SHEAF__TRY(sheaf__matmul_create(o->threads, o->isa, o->memory, &fwd->matmul));
    const sheaf__config *c = &fwd->config;
    SHEAF__TRY(sheaf__rope_create(&c->rope, c->head_dim, o->memory, &fwd->rope));
    if (c->local_rope.theta != 0)
        SHEAF__TRY(
            sheaf__rope_create(&c->local_rope, c->head_dim, o->memory, &fwd->local_rope));
    return create_plans(fwd);
}

sheaf_status sheaf__forward_create(const sheaf__config *config, const sheaf__weights *weights,
                                   const sheaf__forward_options *options, sheaf__forward **out)
{
    uint32_t isa;
    if (config->n_layers == 0 || config->n_layers > SHEAF_MAX_LAYERS) return SHEAF_E_INVALID;
    SHEAF__TRY(sheaf_isa_resolve(options->isa, &isa));
    sheaf__forward *fwd = sheaf__memory_alloc(options->memory, 1, sizeof *fwd);
    if (fwd == NULL) return SHEAF_E_NO_MEMORY;
    fwd->config = *config;
    fwd->weights = weights;
    fwd->options = *options;
    fwd->options.isa = isa;
    if (fwd->options.max_positions == 0) fwd->options.max_positions = config->max_positions;
    fwd->report.struct_size = sizeof fwd->report;
    sheaf_status st = create_parts(fwd);
    if (st != SHEAF_OK) {
        sheaf__forward_destroy(fwd);
        return st;
    }
    *out = fwd;
    return SHEAF_OK;
}

/* ---- the workspace ----------------------------------------------------------------------- */

/* Numbers of the workspace that belong to one row. */
static uint64_t numbers_per_row(const sheaf__config *c)
{
    return 3ull * c->hidden + 2ull * q_width(c) + 2ull * kv_width(c) + 2ull * c->intermediate;
}

static void workspace_free_rows(sheaf__forward *fwd)
{
    workspace *ws = &fwd->ws;
    sheaf__memory *memory = fwd->options.memory;
    uint64_t per_row = numbers_per_row(&fwd->config) * sizeof(float);
    sheaf__memory_free_aligned(memory, ws->numbers, ws->rows, per_row, WORKSPACE_ALIGN);
    sheaf__memory_free(memory, ws->indices, ws->rows, 3 * sizeof(uint32_t));
    ws->numbers = NULL;
    ws->indices = NULL;
    ws->rows = 0;
}

static float *carve(float **at, uint64_t rows, uint64_t width)
{
    float *buffer = *at;
    *at += rows * width;
    return buffer;
}

/* Makes room for m rows. The old buffers go first: two workspaces never stand side by side. */
static sheaf_status workspace_grow_rows(sheaf__forward *fwd, uint32_t m)
{
    const sheaf__config *c = &fwd->config;
    workspace *ws = &fwd->ws;
    if (m <= ws->rows) return SHEAF_OK;
    uint64_t rows = sheaf__max_u64(m, (uint64_t)ws->rows + ws->rows / 4);
    if (!sheaf__round_up_u64(rows, ROW_MULTIPLE, &rows) || rows > UINT32_MAX)
        return SHEAF_E_OVERFLOW;
    workspace_free_rows(fwd);
    ws->rows = (uint32_t)rows;
    ws->numbers = sheaf__memory_alloc_aligned(
        fwd->options.memory, rows, numbers_per_row(c) * sizeof(float), WORKSPACE_ALIGN);
    ws->indices = sheaf__memory_alloc(fwd->options.memory, rows, 3 * sizeof(uint32_t));
    if (ws->numbers == NULL || ws->indices == NULL) {
        workspace_free_rows(fwd);
        return SHEAF_E_NO_MEMORY;
    }
    float *at = ws->numbers;
    ws->x = carve(&at, rows, c->hidden);
    ws->h = carve(&at, rows, c->hidden);
    ws->y = carve(&at, rows, c->hidden);
    ws->q = carve(&at, rows, q_width(c));
    ws->a = carve(&at, rows, q_width(c));
    ws->k = carve(&at, rows, kv_width(c));
    ws->v = carve(&at, rows, kv_width(c));
    ws->gate = carve(&at, rows, c->intermediate);
    ws->up = carve(&at, rows, c->intermediate);
    ws->token = ws->indices;
    ws->pos = ws->token + rows;
    ws->wanted = ws->pos + rows;
    return SHEAF_OK;
}

static sheaf_status workspace_grow_items(sheaf__forward *fwd, uint32_t n_items)
{
    workspace *ws = &fwd->ws;
    void *views = ws->views, *planned = ws->planned;
    SHEAF__TRY(sheaf__memory_grow(fwd->options.memory, &views, &ws->n_views, n_items,
                                  sizeof *ws->views));
    ws->views = views;
    SHEAF__TRY(sheaf__memory_grow(fwd->options.memory, &planned, &ws->n_planned, n_items,
                                  sizeof *ws->planned));
    ws->planned = planned;
    return SHEAF_OK;
}

void sheaf__forward_destroy(sheaf__forward *fwd)
{
    if (fwd == NULL) return;
    sheaf__memory *memory = fwd->options.memory;
    workspace_free_rows(fwd);
    sheaf__memory_free(memory, fwd->ws.views, fwd->ws.n_views, sizeof *fwd->ws.views);
    sheaf__memory_free(memory, fwd->ws.planned, fwd->ws.n_planned, sizeof *fwd->ws.planned);
    for (uint32_t p = 0; p < fwd->n_plans; p++) sheaf_attn_plan_destroy(fwd->plans[p]);
    sheaf__rope_destroy(fwd->rope);
    if (fwd->local_rope != NULL) sheaf__rope_destroy(fwd->local_rope);
    sheaf__matmul_destroy(fwd->matmul);
    sheaf__memory_free(memory, fwd, 1, sizeof *fwd);
}

/* ---- before the first write -------------------------------------------------------------- */

/* Positions that the item adds to its cache. */
static uint32_t n_new(const sheaf__forward_item *item)
{
    return item->n_tokens - item->n_cached;
}

/* The position of the item's first token. */
static uint32_t first_pos(const sheaf__forward_item *item)
{
    return sheaf__kv_length(item->kv) - item->n_cached;
}

/* Whether the cache ends with the item's cached tokens, and has all that they see. */
static sheaf_status check_cached(const sheaf__forward_item *item)
{
    if (item->n_cached == 0) return SHEAF_OK;
    if (item->n_cached > sheaf__kv_length(item->kv)) return SHEAF_E_RANGE;
    const int32_t *there = sheaf__kv_tokens(item->kv) + first_pos(item);
    for (uint32_t t = 0; t < item->n_cached; t++)
        if (there[t] != SHEAF_TOKEN_NONE && there[t] != item->tokens[t]) return SHEAF_E_INVALID;
    if (n_new(item) == 0 && sheaf__kv_reserved(item->kv) != 0) return SHEAF_E_BUSY;
    return sheaf__kv_covers(item->kv, first_pos(item) + 1);
}

static sheaf_status check_item(const step *s, uint32_t i, uint64_t *end)
{
    const sheaf__forward_item *item = &s->items[i];
    const sheaf__forward *fwd = s->fwd;
    if (item->kv == NULL || item->tokens == NULL || item->n_tokens == 0 ||
        item->n_logits > item->n_tokens || item->n_cached > item->n_tokens)
        return SHEAF_E_INVALID;
    for (uint32_t other = 0; other < i; other++)
        if (sheaf__kv_same(item->kv, s->items[other].kv)) return SHEAF_E_INVALID;
    for (uint32_t t = 0; t < item->n_tokens; t++)
        if (item->tokens[t] < 0 || (uint32_t)item->tokens[t] >= fwd->config.vocab)
            return SHEAF_E_INVALID;
    SHEAF__TRY(check_cached(item));
    *end = (uint64_t)first_pos(item) + item->n_tokens;
    if (*end > fwd->options.max_positions) return SHEAF_E_CONTEXT;
    return sheaf__kv_reserved(item->kv) < n_new(item) ? SHEAF_E_RANGE : SHEAF_OK;
}

/* Counts the step's rows and refuses what cannot be run. */
static sheaf_status check_batch(step *s)
{
    uint64_t m = 0, n_logits = 0, end;
    if (s->n_items == 0) return SHEAF_E_INVALID;
    for (uint32_t i = 0; i < s->n_items; i++) {
        SHEAF__TRY(check_item(s, i, &end));
        m += s->items[i].n_tokens;
        n_logits += s->items[i].n_logits;
        if (end > s->end) s->end = (uint32_t)end;
    }
    if (m > UINT32_MAX) return SHEAF_E_OVERFLOW;
    if (n_logits != 0 && s->logits == NULL) return SHEAF_E_INVALID;
    s->m = (uint32_t)m;
    s->n_logits = (uint32_t)n_logits;
    return SHEAF_OK;
}

static sheaf_status reserve_products(const step *s)
{
    const sheaf__config *c = &s->fwd->config;
    sheaf__matmul *mm = s->fwd->matmul;
    SHEAF__TRY(sheaf__matmul_reserve(mm, s->m, q_width(c), c->hidden));
    SHEAF__TRY(sheaf__matmul_reserve(mm, s->m, kv_width(c), c->hidden));
    SHEAF__TRY(sheaf__matmul_reserve(mm, s->m, c->hidden, q_width(c)));
    SHEAF__TRY(sheaf__matmul_reserve(mm, s->m, c->intermediate, c->hidden));
    SHEAF__TRY(sheaf__matmul_reserve(mm, s->m, c->hidden, c->intermediate));
    if (s->n_logits == 0) return SHEAF_OK;
    return sheaf__matmul_reserve(mm, s->n_logits, c->vocab, c->hidden);
}

/* Plans attention, a prefix that items share being read once for all: they share it in every layer
 * of a plan if they do in one. */
static sheaf_status plan_attention(const step *s)
{
    sheaf__forward *fwd = s->fwd;
    workspace *ws = &fwd->ws;
    for (uint32_t i = 0; i < s->n_items; i++) {
        uint32_t first = first_pos(&s->items[i]), n = s->items[i].n_tokens;
        ws->planned[i] =
            (sheaf_attn_item){.n_queries = n, .first_pos = first, .n_tokens = first + n};
    }
    for (uint32_t p = 0; p < fwd->n_plans; p++) {
        for (uint32_t i = 0; i < s->n_items; i++)
            SHEAF__TRY(sheaf__kv_view(s->items[i].kv, fwd->layer_of[p], &ws->views[i]));
        SHEAF__TRY(sheaf_attn_plan_views(fwd->plans[p], ws->planned, ws->views, s->n_items));
    }
    return SHEAF_OK;
}

/* Everything that can run out of memory. */
static sheaf_status reserve_step(const step *s)
{
    sheaf__forward *fwd = s->fwd;
    SHEAF__TRY(workspace_grow_rows(fwd, s->m));
    SHEAF__TRY(workspace_grow_items(fwd, s->n_items));
    SHEAF__TRY(reserve_products(s));
    SHEAF__TRY(sheaf__rope_reserve(fwd->rope, s->end));
    if (fwd->local_rope != NULL) SHEAF__TRY(sheaf__rope_reserve(fwd->local_rope, s->end));
    return plan_attention(s);
}

/* Fills token, pos and wanted. */
static void lay_out_rows(const step *s)
{
    const workspace *ws = &s->fwd->ws;
    uint32_t row = 0, n_wanted = 0;
    for (uint32_t i = 0; i < s->n_items; i++) {
        const sheaf__forward_item *item = &s->items[i];
        uint32_t first = first_pos(item), quiet = item->n_tokens - item->n_logits;
        for (uint32_t t = 0; t < item->n_tokens; t++, row++) {
            ws->token[row] = (uint32_t)item->tokens[t];
            ws->pos[row] = first + t;
            if (t >= quiet) ws->wanted[n_wanted++] = row;
        }
    }
}

/* ---- row-wise work, dealt to the threads ------------------------------------------------- */

typedef void row_fn(step *s, uint32_t row);

typedef struct row_job {
    step *s;
    row_fn *fn;
    uint32_t n_rows;
    uint32_t per_task;
} row_job;

static void row_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const row_job *job = arg;
    uint32_t begin = task * job->per_task;
    uint32_t end = (uint32_t)sheaf__min_u64((uint64_t)begin + job->per_task, job->n_rows);
    for (uint32_t row = begin; row < end; row++) job->fn(job->s, row);
}

/* width: numbers that fn touches in one row. */
static void run_rows(step *s, row_fn *fn, uint32_t n_rows, uint32_t width)
{
    row_job job = {s, fn, n_rows, 1 + TASK_NUMBERS / width};
    uint32_t n_tasks = (uint32_t)sheaf__ceil_div_u64(n_rows, job.per_task);
    sheaf__threads_run(s->fwd->options.threads, row_task, &job, n_tasks);
}

/* x = the token's row of the embedding */
static void embed_row(step *s, uint32_t row)
{
    const sheaf__matrix *e = &s->fwd->weights->embedding;
    uint64_t hidden = s->fwd->config.hidden;
    uint64_t bytes = hidden * (e->dtype == SHEAF_DTYPE_F32 ? 4 : 2);
    const workspace *ws = &s->fwd->ws;
    const unsigned char *from = (const unsigned char *)e->data + ws->token[row] * bytes;
    float *x = ws->x + row * hidden;
    s->fwd->ops->widen(from, e->dtype, (uint32_t)hidden, x);
    float scale = s->fwd->config.embedding_scale;
    for (uint64_t i = 0; scale != 0 && i < hidden; i++) x[i] *= scale;
}

/* h = RMSNorm(x) before attention */
static void attn_norm_row(step *s, uint32_t row)
{
    const sheaf__config *c = &s->fwd->config;
    uint64_t at = (uint64_t)row * c->hidden;
    const workspace *ws = &s->fwd->ws;
    s->fwd->ops->rmsnorm(ws->x + at, s->w->attn_norm, c->rms_eps, c->hidden, ws->h + at);
}

/* heads: [n_heads, head_dim] of one row: each normed where the model does that, then rotated. */
static void rotate_heads(const step *s, float *heads, uint32_t n_heads, const float *norm,
                         uint32_t pos)
{
    const sheaf__forward *fwd = s->fwd;
    uint32_t dim = fwd->config.head_dim;
    bool local = fwd->local_rope != NULL && fwd->config.window[s->layer] != 0;
    const sheaf__rope *rope = local ? fwd->local_rope : fwd->rope;
    const float *cos = sheaf__rope_cos(rope, pos), *sin = sheaf__rope_sin(rope, pos);
    for (uint32_t i = 0; i < n_heads; i++, heads += dim) {
        if (norm != NULL) fwd->ops->rmsnorm(heads, norm, fwd->config.rms_eps, dim, heads);
        fwd->ops->rope(heads, cos, sin, dim);
    }
}

/* Biases where the model has them, then norms and rotation. */
static void rotate_row(step *s, uint32_t row)
{
    const sheaf__config *c = &s->fwd->config;
    const workspace *ws = &s->fwd->ws;
    const sheaf__layer_weights *w = s->w;
    float *q = ws->q + (uint64_t)row * q_width(c), *k = ws->k + (uint64_t)row * kv_width(c);
    if (w->q_bias != NULL) {
        s->fwd->ops->add(q, w->q_bias, q_width(c));
        s->fwd->ops->add(k, w->k_bias, kv_width(c));
        s->fwd->ops->add(ws->v + (uint64_t)row * kv_width(c), w->v_bias, kv_width(c));
    }
    rotate_heads(s, q, c->n_heads, w->q_norm, ws->pos[row]);
    rotate_heads(s, k, c->n_kv_heads, w->k_norm, ws->pos[row]);
}

/* x = x + y, or x + RMSNorm(y) where the model norms what a block adds */
static void add_block(step *s, uint32_t row, const float *post_norm)
{
    const sheaf__config *c = &s->fwd->config;
    uint64_t at = (uint64_t)row * c->hidden;
    const workspace *ws = &s->fwd->ws;
    float *y = ws->y + at;
    if (post_norm != NULL) s->fwd->ops->rmsnorm(y, post_norm, c->rms_eps, c->hidden, y);
    s->fwd->ops->add(ws->x + at, y, c->hidden);
}

/* adds attention's block; h = RMSNorm(x) before the gated one */
static void add_norm_row(step *s, uint32_t row)
{
    const sheaf__config *c = &s->fwd->config;
    uint64_t at = (uint64_t)row * c->hidden;
    const workspace *ws = &s->fwd->ws;
    add_block(s, row, s->w->attn_post_norm);
    s->fwd->ops->rmsnorm(ws->x + at, s->w->mlp_norm, c->rms_eps, c->hidden, ws->h + at);
}

/* gate = activation(gate) * up */
static void gate_row(step *s, uint32_t row)
{
    const sheaf__ops *ops = s->fwd->ops;
    uint64_t width = s->fwd->config.intermediate, at = row * width;
    const workspace *ws = &s->fwd->ws;
    bool gelu = s->fwd->config.activation == SHEAF__ACT_GELU_TANH;
    (gelu ? ops->gelu_mul : ops->silu_mul)(ws->gate + at, ws->up + at, (uint32_t)width);
}

/* adds the gated block */
static void add_row(step *s, uint32_t row)
{
    add_block(s, row, s->w->mlp_post_norm);
}

/* h, packed = RMSNorm of the i-th wanted row */
static void final_norm_row(step *s, uint32_t i)
{
    const sheaf__config *c = &s->fwd->config;
    const workspace *ws = &s->fwd->ws;
    s->fwd->ops->rmsnorm(ws->x + (uint64_t)ws->wanted[i] * c->hidden,
                         s->fwd->weights->final_norm, c->rms_eps, c->hidden,
                         ws->h + (uint64_t)i * c->hidden);
}

/* The soft cap, where the model has one; and are they finite? */
static void finish_logits_row(step *s, uint32_t i)
{
    uint64_t vocab = s->fwd->config.vocab;
    float *row = s->logits + i * vocab, cap = s->fwd->config.logit_softcap;
    if (cap != 0) s->fwd->ops->softcap(row, cap, (uint32_t)vocab);
    uint32_t largest = 0; /* of the magnitudes' bits, which order as the numbers do */
    for (uint64_t t = 0; t < vocab; t++) {
        uint32_t magnitude = sheaf__bits_of_f32(row[t]) & 0x7fffffffu;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest >= 0x7f800000u)
        atomic_store_explicit(&s->nonfinite, true, memory_order_relaxed);
}

/* ---- the network ------------------------------------------------------------------------- */

/* y[m, w->n] = x[m, w->k] times w transposed, rows close together. */
static sheaf_status product(const step *s, const sheaf__matrix *w, const float *x, uint32_t m,
                            float *y)
{
    return sheaf__matmul_run(s->fwd->matmul, w, x, w->k, m, y, w->n);
}

/* Writes this layer's k and v into each item's cache, then lets the step's q read them back:
 * a = attention(q). What is attended to is what is stored, also for the tokens just written. Of
 * cached tokens k and v are in the cache: what was computed here is left where it is. */
static sheaf_status attend(step *s)
{
    sheaf__forward *fwd = s->fwd;
    const sheaf__config *c = &fwd->config;
    const workspace *ws = &fwd->ws;
    sheaf_kv_source src = SHEAF_KV_SOURCE_INIT;
    src.dtype = SHEAF_DTYPE_F32;
    src.order = SHEAF_TOKEN_MAJOR;
    src.n_kv_heads = c->n_kv_heads;
    src.key_dim = src.value_dim = c->head_dim;
    uint64_t at = 0;
    for (uint32_t i = 0; i < s->n_items; i++) {
        const sheaf__forward_item *item = &s->items[i];
        sheaf__kv *kv = item->kv;
        uint64_t from = at + (uint64_t)item->n_cached * kv_width(c);
        src.k = ws->k + from;
        src.v = ws->v + from;
        SHEAF__TRY(sheaf__kv_write(kv, s->layer, sheaf__kv_length(kv), n_new(item), &src));
        SHEAF__TRY(sheaf__kv_view(kv, s->layer, &ws->views[i]));
        at += (uint64_t)item->n_tokens * kv_width(c);
    }
    sheaf_attn_plan *plan = fwd->plans[fwd->plan_of[s->layer]];
    return sheaf_attn_run(plan, ws->views, ws->q, ws->a, &fwd->report);
}

static sheaf_status run_layer(step *s)
{
    const sheaf__config *c = &s->fwd->config;
    const sheaf__layer_weights *w = s->w;
    const workspace *ws = &s->fwd->ws;
    uint32_t m = s->m;

    run_rows(s, attn_norm_row, m, c->hidden);             /* h: [m, hidden] */
    SHEAF__TRY(product(s, &w->q, ws->h, m, ws->q));       /* q: [m, n_heads, head_dim] */
    SHEAF__TRY(product(s, &w->k, ws->h, m, ws->k));       /* k: [m, n_kv_heads, head_dim] */
    SHEAF__TRY(product(s, &w->v, ws->h, m, ws->v));       /* v: as k */
    run_rows(s, rotate_row, m, q_width(c) + kv_width(c)); /* q, k */
    SHEAF__TRY(attend(s));                                /* a: [m, n_heads, head_dim] */
    SHEAF__TRY(product(s, &w->o, ws->a, m, ws->y));       /* y: [m, hidden] */
    run_rows(s, add_norm_row, m, 2 * c->hidden);          /* x, h */
    SHEAF__TRY(product(s, &w->gate, ws->h, m, ws->gate)); /* gate: [m, intermediate] */
    SHEAF__TRY(product(s, &w->up, ws->h, m, ws->up));     /* up: as gate */
    run_rows(s, gate_row, m, c->intermediate);            /* gate */
    SHEAF__TRY(product(s, &w->down, ws->gate, m, ws->y)); /* y: [m, hidden] */
    run_rows(s, add_row, m, c->hidden);                   /* x */
    return SHEAF_OK;
}

static sheaf_status run_network(step *s)
{
    const sheaf__forward *fwd = s->fwd;
    const sheaf__config *c = &fwd->config;
    run_rows(s, embed_row, s->m, c->hidden);
    for (s->layer = 0; s->layer < c->n_layers; s->layer++) {
        s->w = &fwd->weights->layers[s->layer];
        SHEAF__TRY(run_layer(s));
        if (fwd->options.on_layer != NULL)
            fwd->options.on_layer(fwd->options.on_layer_ctx, s->layer + 1, c->n_layers);
    }
    if (s->n_logits == 0) return SHEAF_OK;
    run_rows(s, final_norm_row, s->n_logits, c->hidden);
    SHEAF__TRY(product(s, &fwd->weights->head, fwd->ws.h, s->n_logits, s->logits));
    run_rows(s, finish_logits_row, s->n_logits, c->vocab);
    return atomic_load(&s->nonfinite) ? SHEAF_E_NONFINITE : SHEAF_OK;
}

sheaf_status sheaf__forward_run(sheaf__forward *fwd, const sheaf__forward_item *items,
                                uint32_t n_items, float *logits)
{
    step s = {.fwd = fwd, .items = items, .n_items = n_items, .logits = logits};
    SHEAF__TRY(check_batch(&s));
    uint64_t saved = sheaf__fpenv_enter();
    sheaf_status st = reserve_step(&s);
    if (st == SHEAF_OK) {
        lay_out_rows(&s);
        st = run_network(&s);
    }
    sheaf__fpenv_leave(saved);
    return st;
}

void sheaf__forward_report(const sheaf__forward *fwd, sheaf_attn_report *out)
{
    *out = fwd->report;
}
