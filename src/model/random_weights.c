/* model/random_weights.c - seeded weights at the geometry of published models, for measuring without
 * a download.
 *
 * Number e of tensor t is a function of (seed, t, e) alone; tensors are numbered as weights.c lists
 * them, norms included:
 *
 *     key  = mix(mix(seed) + (t + 1) * GOLDEN)
 *     word = mix(key + (e / 4 + 1) * GOLDEN)             splitmix64 (Steele, Lea, Flood 2014)
 *     h    = bits [16 * (e % 4), +16) of word, signed    four numbers a word
 *     w    = bf16((h + 0.5) * std * sqrt(3) / 32768)     uniform, mean 0
 *
 * with std 0.02 for the embedding and 1 / sqrt(columns) for the others, so that a normalised input
 * gives outputs of about its own size. Norms are 1, biases 0.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/half.h"
#include "base/status.h"
#include "model/weights_private.h"

#define GOLDEN        0x9e3779b97f4a7c15ull
#define EMBEDDING_STD 0.02f
#define BLOCK_WORDS   256u

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "words are cut into halves in memory");

static inline uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* bf16 numbers [begin, begin + n) of a tensor; begin is a multiple of 4. */
static void random_numbers(uint64_t key, float step, uint64_t begin, uint64_t n, uint16_t *to)
{
    uint64_t words[BLOCK_WORDS];
    int16_t halves[BLOCK_WORDS * 4];
    for (uint64_t word = begin / 4; n != 0; word += BLOCK_WORDS) {
        for (uint64_t i = 0; i < BLOCK_WORDS; i++)
            words[i] = mix(key + (word + i + 1) * GOLDEN);
        memcpy(halves, words, sizeof halves);
        uint64_t count = sheaf__min_u64(n, BLOCK_WORDS * 4);
        for (uint64_t i = 0; i < count; i++)
            to[i] = sheaf__bf16_of_f32(((float)halves[i] + 0.5f) * step);
        to += count;
        n -= count;
    }
}

/* ctx: the mixed seed. Chunks begin at multiples of 4 numbers. */
static void random_chunk(const void *ctx, const sheaf__slot *slot, uint32_t index,
                         uint64_t begin, uint64_t n, unsigned char *to)
{
    uint64_t key = mix(*(const uint64_t *)ctx + (index + 1) * GOLDEN);
    float std =
        slot->kind == SHEAF__SLOT_EMBEDDING ? EMBEDDING_STD : 1.0f / sqrtf((float)slot->cols);
    float step = std * 1.7320508f / 32768.0f;
    random_numbers(key, step, begin / 2, n / 2, (uint16_t *)(void *)to);
}

/* Every matrix is bf16. */
static void set_types(struct sheaf__weights_private *p)
{
    for (uint64_t i = 0; i < p->n_slots; i++) {
        sheaf__slot *slot = &p->slots[i];
        if (slot->matrix != NULL)
            *slot->matrix = (sheaf__matrix){NULL, SHEAF_DTYPE_BF16, slot->rows, slot->cols};
    }
}

sheaf_status sheaf__weights_random_size(const sheaf__config *config, uint64_t *n_parameters,
                                        uint64_t *bytes_resident, sheaf_error *err)
{
    sheaf__weights *w = NULL;
    const sheaf__weights_options options = {0};
    uint64_t arena_bytes, n_tasks;
    SHEAF__TRY(sheaf__weights_begin(config, &options, &w, err));
    set_types(w->private_);
    sheaf_status status = sheaf__weights_lay_out(w->private_, &arena_bytes, &n_tasks);
    if (status == SHEAF_OK) {
        sheaf__weights_finish(w);
        *n_parameters = w->n_parameters;
        *bytes_resident = w->bytes_resident + arena_bytes;
    }
    sheaf__weights_close(w);
    return status;
}

sheaf_status sheaf__weights_random(const sheaf__config *config,
                                   const sheaf__weights_options *options, sheaf__weights **out,
                                   sheaf_error *err)
{
    sheaf__weights *w = NULL;
    SHEAF__TRY(sheaf__weights_begin(config, options, &w, err));
    struct sheaf__weights_private *p = w->private_;
    set_types(p);
    for (uint64_t i = 0; i < p->n_slots; i++) {
        const sheaf__slot *slot = &p->slots[i];
        for (uint32_t j = 0; slot->matrix == NULL && j < slot->cols; j++)
            slot->vector[j] = slot->kind == SHEAF__SLOT_NORM ? 1.0f : 0.0f;
    }
    uint64_t seed = mix(options->random_seed == 0 ? 1 : options->random_seed);
    const sheaf__fill fill = {random_chunk, &seed, "making random weights"};
    sheaf_status status = sheaf__weights_fill(w, &fill, options, err);
    if (status != SHEAF_OK) {
        sheaf__weights_close(w);
        return status;
    }
    sheaf__weights_finish(w);
    *out = w;
    return SHEAF_OK;
}

/* Geometry of the published models: config.json of Qwen/Qwen3-0.6B and meta-llama/Llama-3.2-1B. */
static const struct {
    const char *name;
    sheaf__config config;
} models[] = {
    {"qwen3-0.6b",
     {.arch = SHEAF__ARCH_QWEN3,
      .n_layers = 28,
      .hidden = 1024,
      .intermediate = 3072,
      .n_heads = 16,
      .n_kv_heads = 8,
      .head_dim = 128,
      .vocab = 151936,
      .max_positions = 40960,
      .rms_eps = 1e-6f,
      .tied_head = true,
      .qk_norm = true,
      .rope = {.kind = SHEAF__ROPE_PLAIN, .theta = 1e6},
      .bos = -1}},
    {"llama-3.2-1b",
     {.arch = SHEAF__ARCH_LLAMA,
      .n_layers = 16,
      .hidden = 2048,
      .intermediate = 8192,
      .n_heads = 32,
      .n_kv_heads = 8,
      .head_dim = 64,
      .vocab = 128256,
      .max_positions = 131072,
      .rms_eps = 1e-5f,
      .tied_head = true,
      .qk_norm = false,
      .rope = {.kind = SHEAF__ROPE_LLAMA3,
               .theta = 5e5,
               .factor = 32,
               .low_freq_factor = 1,
               .high_freq_factor = 4,
               .original_max_positions = 8192},
      .bos = -1}},
};

/* "", or ":layers=N". False: something else. */
static bool read_layers(const char *text, uint32_t *n_layers)
{
    static const char key[] = ":layers=";
    if (*text == 0) return true;
    if (strncmp(text, key, sizeof key - 1) != 0) return false;
    const char *digits = text + sizeof key - 1;
    if (*digits < '0' || *digits > '9') return false;
    char *end;
    unsigned long value = strtoul(digits, &end, 10);
    if (*end != 0 || value < 1 || value > SHEAF_MAX_LAYERS) return false;
    *n_layers = (uint32_t)value;
    return true;
}

sheaf_status sheaf__weights_random_config(const char *spec, sheaf__config *out,
                                          sheaf_error *err)
{
    static const char prefix[] = "random:";
    if (strncmp(spec, prefix, sizeof prefix - 1) == 0) {
        const char *name = spec + sizeof prefix - 1;
        for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
            size_t n = strlen(models[i].name);
            uint32_t n_layers = models[i].config.n_layers;
            if (strncmp(name, models[i].name, n) != 0) continue;
            if (!read_layers(name + n, &n_layers)) continue;
            memcpy(out, &models[i].config, sizeof *out);
            out->n_layers = n_layers;
            return SHEAF_OK;
        }
    }
    return sheaf__error_set(err, SHEAF_E_CONFIG,
                            "%.80s: no such random model; known: random:qwen3-0.6b[:layers=N], "
                            "random:llama-3.2-1b[:layers=N], N from 1 to %d",
                            spec, SHEAF_MAX_LAYERS);
}
