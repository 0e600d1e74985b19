/* examples/page_table.c - the page table that paged attention kernels take, from Sheaf's views.
 *
 * Kernels of the field (FlashInfer's among them) take a batch as three arrays and a few strides:
 *
 *     indptr        [n + 1]      sequence i has the pages indices[indptr[i] .. indptr[i+1])
 *     indices       [indptr[n]]  page numbers; here rows of the pool
 *     last_page_len [n]          positions used in the last of them, 1 to page_size (0: no page)
 *
 *     K of page, head, slot, d:  k_data[page * stride_page + head * stride_head + slot * dim + d]
 *
 * which is the layout [page, head, slot, dim] ("HND"), with a stride from page to page that spans
 * the whole block. A block holds all layers of its group, so the arrays serve every layer of a group;
 * only k_data and v_data differ from layer to layer. One call of sheaf_sequence_view a sequence has
 * all it takes.
 *
 *     cc page_table.c -o page_table $(pkg-config --cflags --libs sheaf)
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <sheaf/sheaf.h>

#define TRY(call)                                                                              \
    do {                                                                                       \
        sheaf_status status_ = (call);                                                         \
        if (status_ == SHEAF_OK) break;                                                        \
        fprintf(stderr, "%s: %s\n", #call, sheaf_status_text(status_));                        \
        return status_;                                                                        \
    } while (0)

/* ---- the table ----------------------------------------------------------------------------- */

enum { MOST_SEQS = 4, MOST_PAGES = 64 };

typedef struct page_table {
    uint32_t n; /* sequences */
    int32_t indptr[MOST_SEQS + 1];
    int32_t indices[MOST_PAGES];
    int32_t last_page_len[MOST_SEQS];
    int32_t first_pos[MOST_SEQS]; /* position of the first page's first slot: where a window has
                                   * slid, the pages before it are gone */
    uint32_t page_size;           /* positions */
    uint32_t n_kv_heads, dim;
    const uint16_t *k_data, *v_data; /* of one layer, page 0; 16-bit codecs */
    uint64_t stride_page;            /* elements, from here on */
    uint64_t stride_head; /* of K; that of V is the same where dimensions are equal */
} page_table;

/* From the views of one layer: [n]. They come from one pool, so they agree in all but the rows.
 * Valid until a sequence of the batch changes. */
static sheaf_status page_table_fill(const sheaf_kv_view *views, uint32_t n, page_table *out)
{
    const sheaf_kv_view *v = &views[0];
    if (n == 0 || n > MOST_SEQS || v->key_dim != v->value_dim) return SHEAF_E_INVALID;
    if (v->codec_k != SHEAF_CODEC_BF16 || v->codec_v != v->codec_k) return SHEAF_E_CODEC;
    const uint64_t element = sizeof(uint16_t);
    memset(out, 0, sizeof *out);
    out->n = n;
    out->page_size = v->block_tokens;
    out->n_kv_heads = v->n_kv_heads;
    out->dim = v->key_dim;
    out->k_data = (const uint16_t *)(const void *)(v->base + v->k_offset);
    out->v_data = (const uint16_t *)(const void *)(v->base + v->v_offset);
    out->stride_page = v->row_stride_k / element; /* rows are whole cache lines: it divides */
    out->stride_head = v->k_head_stride / element;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t begin = views[i].first_block * out->page_size;
        if ((uint32_t)out->indptr[i] + views[i].n_rows > MOST_PAGES) return SHEAF_FULL;
        for (uint32_t p = 0; p < views[i].n_rows; p++) {
            if (views[i].rows[p] > INT32_MAX) return SHEAF_E_OVERFLOW;
            out->indices[(uint32_t)out->indptr[i] + p] = (int32_t)views[i].rows[p];
        }
        out->indptr[i + 1] = out->indptr[i] + (int32_t)views[i].n_rows;
        out->first_pos[i] = (int32_t)begin;
        out->last_page_len[i] =
            views[i].n_rows == 0
                ? 0
                : (int32_t)(views[i].n_tokens - begin - (views[i].n_rows - 1) * out->page_size);
    }
    return SHEAF_OK;
}

/* Positions of a sequence that its pages hold, as a kernel counts them. */
static uint32_t page_table_length(const page_table *t, uint32_t i)
{
    uint32_t pages = (uint32_t)(t->indptr[i + 1] - t->indptr[i]);
    return pages == 0 ? 0 : (pages - 1) * t->page_size + (uint32_t)t->last_page_len[i];
}

/* K of the j-th of these positions, through the table alone: what a kernel does. */
static float page_table_key(const page_table *t, uint32_t i, uint32_t j, uint32_t head,
                            uint32_t d)
{
    uint32_t page = (uint32_t)t->indices[(uint32_t)t->indptr[i] + j / t->page_size];
    uint32_t bits = t->k_data[page * t->stride_page + head * t->stride_head +
                              (uint64_t)(j % t->page_size) * t->dim + d];
    bits <<= 16; /* bf16 is the upper half of f32 */
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* ---- a batch to try it on ------------------------------------------------------------------ */

enum { LAYERS = 3, KV_HEADS = 2, DIM = 64, PAGE = 16, MOST_STEP = 64 };
enum { WINDOWED = 1, WINDOW = 24 }; /* the layer with a window, and its positions */

/* A key that says which it is: whole numbers up to 256, which bf16 keeps exactly. */
static float key_of(uint32_t layer, int32_t tag, uint32_t pos, uint32_t head, uint32_t d)
{
    return (float)((layer * 101 + (uint32_t)tag * 59 + pos * 13 + head * 7 + d) % 257);
}

static sheaf_status append(sheaf_sequence *seq, int32_t tag, uint32_t n)
{
    static float k[MOST_STEP][KV_HEADS][DIM], v[MOST_STEP][KV_HEADS][DIM];
    sheaf_kv_source src = SHEAF_KV_SOURCE_INIT;
    src.n_kv_heads = KV_HEADS;
    src.key_dim = src.value_dim = DIM;
    src.k = k;
    src.v = v;
    int32_t tokens[MOST_STEP];
    uint32_t first = sheaf_sequence_length(seq);
    TRY(sheaf_sequence_extend(seq, n));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t h = 0; h < KV_HEADS; h++)
                for (uint32_t d = 0; d < DIM; d++)
                    k[t][h][d] = key_of(layer, tag, first + t, h, d);
        TRY(sheaf_sequence_write(seq, layer, first, n, &src));
    }
    for (uint32_t t = 0; t < n; t++) tokens[t] = tag;
    TRY(sheaf_sequence_commit(seq, n, tokens));
    TRY(sheaf_sequence_slide(seq, 0)); /* lets go of what the window has passed */
    return SHEAF_OK;
}

static void print_table(const page_table *t, uint32_t layer)
{
    printf("layer %" PRIu32 ": indptr", layer);
    for (uint32_t i = 0; i <= t->n; i++) printf(" %" PRId32, t->indptr[i]);
    printf(", last_page_len");
    for (uint32_t i = 0; i < t->n; i++) printf(" %" PRId32, t->last_page_len[i]);
    printf(", first_pos");
    for (uint32_t i = 0; i < t->n; i++) printf(" %" PRId32, t->first_pos[i]);
    printf("\n  pages of %" PRIu32 ", strides: page %" PRIu64 ", head %" PRIu64
           ", slot %" PRIu32 "\n",
           t->page_size, t->stride_page, t->stride_head, t->dim);
}

/* Reads every key back through the table; the tokens say which tag a position was written with. */
static sheaf_status verify(const page_table *t, uint32_t layer, sheaf_sequence *const *seqs)
{
    uint64_t n_read = 0, n_wrong = 0;
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t j = 0; j < page_table_length(t, i); j++) {
            uint32_t pos = (uint32_t)t->first_pos[i] + j;
            int32_t tag = sheaf_sequence_tokens(seqs[i])[pos];
            for (uint32_t h = 0; h < t->n_kv_heads; h++)
                for (uint32_t d = 0; d < t->dim; d++, n_read++)
                    n_wrong += page_table_key(t, i, j, h, d) != key_of(layer, tag, pos, h, d);
        }
    printf("  %" PRIu64 " numbers read through the table, %" PRIu64 " wrong\n", n_read,
           n_wrong);
    return n_wrong == 0 ? SHEAF_OK : SHEAF_E_CORRUPT;
}

/* Pages that two sequences both list: their blocks are shared, and in memory once. */
static uint32_t pages_in_common(const page_table *t, uint32_t a, uint32_t b)
{
    uint32_t n = 0;
    for (int32_t i = t->indptr[a]; i < t->indptr[a + 1]; i++)
        for (int32_t j = t->indptr[b]; j < t->indptr[b + 1]; j++)
            n += t->indices[i] == t->indices[j];
    return n;
}

/* Leaves its sequences in seqs, also when it fails: the caller destroys them. */
static sheaf_status use(sheaf_pool *pool, sheaf_sequence **seqs)
{
    TRY(sheaf_sequence_create(pool, &seqs[0]));
    TRY(append(seqs[0], 1, 40));
    TRY(sheaf_sequence_fork(seqs[0], &seqs[1])); /* its pages are listed twice */
    TRY(append(seqs[0], 2, 8));                  /* up to a page's end: last_page_len 16 */
    TRY(append(seqs[1], 3, 23));
    TRY(sheaf_sequence_create(pool, &seqs[2]));
    TRY(append(seqs[2], 1, 1));
    TRY(sheaf_sequence_create(pool, &seqs[3])); /* empty: no page */

    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        sheaf_kv_view views[MOST_SEQS];
        for (uint32_t i = 0; i < MOST_SEQS; i++)
            TRY(sheaf_sequence_view(seqs[i], layer, &views[i]));
        page_table table;
        TRY(page_table_fill(views, MOST_SEQS, &table));
        print_table(&table, layer);
        TRY(verify(&table, layer, seqs));
        uint32_t common = pages_in_common(&table, 0, 1);
        printf("  the fork shares %" PRIu32 " pages\n", common);
        if (common != (layer == WINDOWED ? 0 : 2)) return SHEAF_E_CORRUPT;
    }
    return SHEAF_OK;
}

int main(void)
{
    sheaf_layer layers[LAYERS];
    for (uint32_t i = 0; i < LAYERS; i++) {
        memset(&layers[i], 0, sizeof layers[i]);
        layers[i].n_kv_heads = KV_HEADS;
        layers[i].key_dim = layers[i].value_dim = DIM;
        layers[i].codec_k = layers[i].codec_v = SHEAF_CODEC_BF16;
    }
    layers[WINDOWED].window = WINDOW; /* a group, and so a page table, of its own */
    sheaf_pool_options options = SHEAF_POOL_OPTIONS_INIT;
    options.layers = layers;
    options.n_layers = LAYERS;
    options.block_tokens = PAGE;
    options.budget_bytes = 4 << 20;

    sheaf_pool *pool = NULL;
    sheaf_sequence *seqs[MOST_SEQS] = {NULL};
    sheaf_error err = {SHEAF_OK, ""};
    sheaf_status st = sheaf_pool_open(&options, &pool, &err);
    if (st != SHEAF_OK) fprintf(stderr, "%s\n", err.text);
    if (st == SHEAF_OK) st = use(pool, seqs);
    for (uint32_t i = 0; i < MOST_SEQS; i++) sheaf_sequence_destroy(seqs[i]);
    sheaf_status closed = sheaf_pool_close(pool);
    return st == SHEAF_OK && closed == SHEAF_OK ? 0 : 1;
}
