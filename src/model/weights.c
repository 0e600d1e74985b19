/* model/weights.c - a network's numbers: the list of its tensors, and their memory. */
#include "model/weights_private.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/bits.h"
#include "base/clock.h"
#include "base/status.h"

#define HUGE_PAGE        (2u << 20)
#define TENSOR_ALIGN     64u
#define CHUNK_BYTES      (1u << 20) /* a task: long beside dealing it, short beside 100 ms */
#define PROGRESS_NS      100000000u
#define SLOTS_PER_LAYER  16u /* at most: 7 matrices, 6 norms, 3 biases */
#define SLOTS_PER_MODEL  3u  /* embedding, head, final norm */
#define NO_MEMORY_FORMAT "no memory for the weights (%llu bytes)"

typedef struct holder {
    sheaf__weights weights;
    struct sheaf__weights_private private_;
} holder;

static sheaf_status no_memory(sheaf_error *err, uint64_t bytes)
{
    return sheaf__error_set(err, SHEAF_E_NO_MEMORY, NO_MEMORY_FORMAT,
                            (unsigned long long)bytes);
}

static sheaf__slot *add_slot(struct sheaf__weights_private *p, uint32_t kind, uint32_t rows,
                             uint32_t cols)
{
    sheaf__slot *slot = &p->slots[p->n_slots++];
    slot->kind = kind;
    slot->rows = rows;
    slot->cols = cols;
    return slot;
}

/* A vector of `cols` numbers named `name`; takes the next of p->vectors. */
static const float *add_vector(struct sheaf__weights_private *p, uint32_t kind,
                               const char *name, int layer, uint32_t cols)
{
    sheaf__slot *slot = add_slot(p, kind, 1, cols);
    const char *what = kind == SHEAF__SLOT_BIAS ? "bias" : "weight";
    if (layer < 0)
        snprintf(slot->name, sizeof slot->name, "%s.%s", name, what);
    else
        snprintf(slot->name, sizeof slot->name, "layers.%d.%s.%s", layer, name, what);
    slot->vector = p->vectors + p->n_vectors;
    p->n_vectors += cols;
    return slot->vector;
}

/* The norms and biases of a layer. Gemma calls the norm before the gated block by another name, since
 * it has one after attention too. */
static void list_vectors(struct sheaf__weights_private *p, const sheaf__config *c, int layer)
{
    sheaf__layer_weights *l = &p->layers[layer];
    const uint32_t norm = SHEAF__SLOT_NORM, bias = SHEAF__SLOT_BIAS;
    uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    l->attn_norm = add_vector(p, norm, "input_layernorm", layer, c->hidden);
    if (c->qk_norm) {
        l->q_norm = add_vector(p, norm, "self_attn.q_norm", layer, c->head_dim);
        l->k_norm = add_vector(p, norm, "self_attn.k_norm", layer, c->head_dim);
    }
    if (c->qkv_bias) {
        l->q_bias = add_vector(p, bias, "self_attn.q_proj", layer, q);
        l->k_bias = add_vector(p, bias, "self_attn.k_proj", layer, kv);
        l->v_bias = add_vector(p, bias, "self_attn.v_proj", layer, kv);
    }
    const float *after_attention =
        add_vector(p, norm, "post_attention_layernorm", layer, c->hidden);
    if (!c->block_norms) {
        l->mlp_norm = after_attention;
        return;
    }
    l->attn_post_norm = after_attention;
    l->mlp_norm = add_vector(p, norm, "pre_feedforward_layernorm", layer, c->hidden);
    l->mlp_post_norm = add_vector(p, norm, "post_feedforward_layernorm", layer, c->hidden);
}

static uint64_t vector_numbers(const sheaf__config *c)
{
    uint64_t layer = 2ull * c->hidden;
    if (c->qk_norm) layer += 2ull * c->head_dim;
    if (c->qkv_bias) layer += (c->n_heads + 2ull * c->n_kv_heads) * c->head_dim;
    if (c->block_norms) layer += 2ull * c->hidden;
    return c->n_layers * layer + c->hidden;
}

static void list_layer(struct sheaf__weights_private *p, const sheaf__config *c, int layer)
{
    sheaf__layer_weights *l = &p->layers[layer];
    uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    list_vectors(p, c, layer);
    const struct {
        const char *name;
        uint32_t rows, cols;
        sheaf__matrix *matrix;
    } matrices[] = {
        {"self_attn.q_proj", q, c->hidden, &l->q},
        {"self_attn.k_proj", kv, c->hidden, &l->k},
        {"self_attn.v_proj", kv, c->hidden, &l->v},
        {"self_attn.o_proj", c->hidden, q, &l->o},
        {"mlp.gate_proj", c->intermediate, c->hidden, &l->gate},
        {"mlp.up_proj", c->intermediate, c->hidden, &l->up},
        {"mlp.down_proj", c->hidden, c->intermediate, &l->down},
    };
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
        sheaf__slot *slot = add_slot(p, SHEAF__SLOT_MATRIX, matrices[i].rows, matrices[i].cols);
        snprintf(slot->name, sizeof slot->name, "layers.%d.%s.weight", layer, matrices[i].name);
        slot->matrix = matrices[i].matrix;
    }
}

static void list_slots(sheaf__weights *w, const sheaf__config *c)
{
    struct sheaf__weights_private *p = w->private_;
    sheaf__slot *embedding = add_slot(p, SHEAF__SLOT_EMBEDDING, c->vocab, c->hidden);
    strcpy(embedding->name, "embed_tokens.weight");
    embedding->matrix = &w->embedding;
    for (uint32_t i = 0; i < c->n_layers; i++) list_layer(p, c, (int)i);
    w->final_norm = add_vector(p, SHEAF__SLOT_NORM, "norm", -1, c->hidden);
    if (!c->tied_head) {
        sheaf__slot *head = add_slot(p, SHEAF__SLOT_MATRIX, c->vocab, c->hidden);
        strcpy(head->name, "lm_head.weight");
        head->matrix = &w->head;
    }
    for (uint64_t i = 0; i < p->n_slots; i++)
        w->n_parameters += (uint64_t)p->slots[i].rows * p->slots[i].cols;
}

sheaf_status sheaf__weights_begin(const sheaf__config *config,
                                  const sheaf__weights_options *options, sheaf__weights **out,
                                  sheaf_error *err)
{
    sheaf__memory memory;
    sheaf__memory_init(&memory, options->allocator);
    holder *h = sheaf__memory_alloc(&memory, 1, sizeof *h);
    if (h == NULL) return no_memory(err, sizeof *h);
    sheaf__weights *w = &h->weights;
    struct sheaf__weights_private *p = w->private_ = &h->private_;
    p->memory = memory;

    p->n_layers = config->n_layers;
    p->vectors_room = vector_numbers(config);
    p->slots_room = (uint64_t)config->n_layers * SLOTS_PER_LAYER + SLOTS_PER_MODEL;
    p->layers = sheaf__memory_alloc(&p->memory, p->n_layers, sizeof *p->layers);
    p->vectors = sheaf__memory_alloc(&p->memory, p->vectors_room, sizeof *p->vectors);
    p->slots = sheaf__memory_alloc(&p->memory, p->slots_room, sizeof *p->slots);
    w->layers = p->layers;
    if (p->layers == NULL || p->vectors == NULL || p->slots == NULL) {
        no_memory(err, p->vectors_room * sizeof *p->vectors);
        sheaf__weights_close(w);
        return SHEAF_E_NO_MEMORY;
    }
    list_slots(w, config);
    SHEAF__ASSERT(p->n_vectors == p->vectors_room && p->n_slots <= p->slots_room);
    *out = w;
    return SHEAF_OK;
}

/* What the tasks of one fill share. */
typedef struct fill_job {
    const struct sheaf__weights_private *p;
    const sheaf__fill *fill;
    const sheaf__weights_options *options;
    uint64_t total;
    uint64_t last_ns;
    bool reported;
    _Atomic uint64_t done;
} fill_job;

static uint64_t slot_bytes(const sheaf__slot *slot)
{
    if (slot->matrix == NULL) return 0;
    return (uint64_t)slot->rows * slot->cols * sheaf__dtype_bytes(slot->matrix->dtype);
}

/* The slot that owns a chunk: the last one whose first task is not after it. A vector owns none: its
 * first task is that of the matrix that follows. */
static uint32_t slot_of_task(const struct sheaf__weights_private *p, uint64_t task)
{
    uint64_t low = 0, high = p->n_slots;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (p->slots[middle].first_task <= task)
            low = middle;
        else
            high = middle;
    }
    return (uint32_t)low;
}

static void fill_task(void *arg, uint32_t task, uint32_t thread)
{
    fill_job *job = arg;
    uint32_t index = slot_of_task(job->p, task);
    const sheaf__slot *slot = &job->p->slots[index];
    uint64_t begin = (task - slot->first_task) * CHUNK_BYTES;
    uint64_t n = sheaf__min_u64(CHUNK_BYTES, slot_bytes(slot) - begin);
    job->fill->fn(job->fill->ctx, slot, index, begin, n, job->p->arena + slot->offset + begin);
    uint64_t done = atomic_fetch_add_explicit(&job->done, n, memory_order_relaxed) + n;
    if (thread != 0 || job->options->progress == NULL) return;
    uint64_t now = sheaf__clock_ns();
    if (now - job->last_ns < PROGRESS_NS) return;
    job->last_ns = now;
    job->reported = true;
    job->options->progress(job->options->progress_ctx, job->fill->what, done, job->total);
}

static void advise_huge_pages(unsigned char *data, uint64_t bytes)
{
#ifdef MADV_HUGEPAGE
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    /* advice only: without huge pages all is the same but slower */
    (void)madvise(data, bytes & ~(page - 1), MADV_HUGEPAGE);
#else
    (void)data, (void)bytes;
#endif
}

sheaf_status sheaf__weights_lay_out(struct sheaf__weights_private *p, uint64_t *arena_bytes,
                                    uint64_t *n_tasks)
{
    uint64_t bytes = 0, tasks = 0;
    for (uint64_t i = 0; i < p->n_slots; i++) {
        uint64_t size = slot_bytes(&p->slots[i]);
        if (!sheaf__round_up_u64(bytes, TENSOR_ALIGN, &bytes)) return SHEAF_E_OVERFLOW;
        p->slots[i].offset = bytes;
        p->slots[i].first_task = tasks;
        tasks += sheaf__ceil_div_u64(size, CHUNK_BYTES);
        bytes += size;
    }
    *arena_bytes = bytes;
    *n_tasks = tasks;
    return SHEAF_OK;
}

sheaf_status sheaf__weights_fill(sheaf__weights *w, const sheaf__fill *fill,
                                 const sheaf__weights_options *options, sheaf_error *err)
{
    struct sheaf__weights_private *p = w->private_;
    fill_job job = {.p = p, .fill = fill, .options = options};
    uint64_t bytes = 0, n_tasks = 0;
    SHEAF__TRY(sheaf__weights_lay_out(p, &bytes, &n_tasks));
    for (uint64_t i = 0; i < p->n_slots; i++) job.total += slot_bytes(&p->slots[i]);
    if (n_tasks > UINT32_MAX) return no_memory(err, bytes);
    uint64_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : TENSOR_ALIGN;
    p->arena = sheaf__memory_alloc_aligned(&p->memory, bytes, 1, align);
    if (p->arena == NULL) return no_memory(err, bytes);
    p->arena_bytes = bytes;
    p->arena_align = align;
    if (align == HUGE_PAGE) advise_huge_pages(p->arena, bytes);

    job.last_ns = sheaf__clock_ns();
    sheaf__threads_run(options->threads, fill_task, &job, (uint32_t)n_tasks);
    if (job.reported)
        options->progress(options->progress_ctx, fill->what, job.total, job.total);
    for (uint64_t i = 0; i < p->n_slots; i++)
        if (p->slots[i].matrix != NULL)
            p->slots[i].matrix->data = p->arena + p->slots[i].offset;
    return SHEAF_OK;
}

void sheaf__weights_finish(sheaf__weights *w)
{
    struct sheaf__weights_private *p = w->private_;
    sheaf__memory_free(&p->memory, p->slots, p->slots_room, sizeof *p->slots);
    p->slots = NULL;
    if (w->head.data == NULL) w->head = w->embedding;
    w->bytes_mapped = 0;
    for (uint64_t i = 0; i < p->n_files; i++) {
        sheaf__safetensors_forget(&p->files[i]);
        w->bytes_mapped += p->files[i].file.size;
    }
    w->bytes_resident = p->memory.live_bytes;
}

void sheaf__weights_close(sheaf__weights *w)
{
    if (w == NULL) return;
    struct sheaf__weights_private *p = w->private_;
    sheaf__memory *memory = &p->memory;
    for (uint64_t i = 0; i < p->n_files; i++) sheaf__safetensors_close(&p->files[i]);
    sheaf__memory_free(memory, p->files, p->n_files, sizeof *p->files);
    sheaf__memory_free_aligned(memory, p->arena, p->arena_bytes, 1, p->arena_align);
    sheaf__memory_free(memory, p->slots, p->slots_room, sizeof *p->slots);
    sheaf__memory_free(memory, p->vectors, p->vectors_room, sizeof *p->vectors);
    sheaf__memory_free(memory, p->layers, p->n_layers, sizeof *p->layers);
    sheaf__memory last = *memory; /* the struct to be freed holds its own allocator */
    holder *h = (holder *)(void *)w;
    sheaf__memory_free(&last, h, 1, sizeof *h);
    SHEAF__ASSERT(last.live_bytes == 0);
}
