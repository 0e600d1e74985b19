/* model/rope.c - the tables of cosines and sines, page by page of 1024 positions.
 *
 *     pages[p] = [2][1024][head_dim / 2]: cosines of the positions from p * 1024, then sines
 *
 * A page is made whole and never moves. Every f32 operation below has its counterpart in
 * transformers' modeling_rope_utils.py, in the same order; there a number divided by a tensor
 * is that number times the tensor's reciprocal.
 */
#include "model/rope.h"

#include <math.h>

#include "base/dmath.h"
#include "base/fpenv.h"
#include "base/status.h"

#define PAGE_ROWS     1024u
#define MAX_POSITIONS (1u << 24)

struct sheaf__rope {
    sheaf__memory *memory;
    uint32_t half;    /* head_dim / 2 */
    uint32_t n_pages; /* made */
    float **pages;    /* [page_room] */
    uint64_t page_room;
    float *frequencies; /* [half] */
};

static bool is_positive(double x)
{
    return x > 0 && isfinite(x);
}

static bool config_is_sound(const sheaf__rope_config *config)
{
    if (!is_positive(config->theta)) return false;
    if (config->kind == SHEAF__ROPE_PLAIN) return true;
    if (!is_positive(config->factor)) return false;
    if (config->kind == SHEAF__ROPE_LINEAR) return true;
    return config->kind == SHEAF__ROPE_LLAMA3 && is_positive(config->low_freq_factor) &&
           config->high_freq_factor > config->low_freq_factor &&
           isfinite(config->high_freq_factor) && config->original_max_positions > 0;
}

/* Llama 3: long waves are stretched by the factor, short ones kept, those between blended. */
static float scale_llama3(const sheaf__rope_config *config, float frequency)
{
    const float two_pi = 6.283185307179586f, positions = (float)config->original_max_positions;
    double low_wave = config->original_max_positions / config->low_freq_factor;
    double high_wave = config->original_max_positions / config->high_freq_factor;
    float factor = (float)config->factor, low = (float)config->low_freq_factor;
    float width = (float)(config->high_freq_factor - config->low_freq_factor);

    float wave = (1.0f / frequency) * two_pi;
    if (wave > (float)low_wave) return frequency / factor;
    if (wave < (float)high_wave) return frequency;
    float smooth = ((1.0f / wave) * positions - low) / width;
    float stretched = ((1.0f - smooth) * frequency) / factor;
    float kept = smooth * frequency;
    return stretched + kept;
}

static float frequency_at(const sheaf__rope_config *config, uint32_t i, uint32_t head_dim)
{
    float exponent = (float)(2 * i) / (float)head_dim;
    float power = (float)sheaf__dpow((float)config->theta, exponent);
    float frequency = 1.0f / power;
    if (config->kind == SHEAF__ROPE_LINEAR) return frequency / (float)config->factor;
    if (config->kind == SHEAF__ROPE_LLAMA3) return scale_llama3(config, frequency);
    return frequency;
}

sheaf_status sheaf__rope_create(const sheaf__rope_config *config, uint32_t head_dim,
                                sheaf__memory *memory, sheaf__rope **out)
{
    if (head_dim == 0 || head_dim % 2 != 0 || !config_is_sound(config)) return SHEAF_E_INVALID;
    sheaf__rope *rope = sheaf__memory_alloc(memory, 1, sizeof *rope);
    if (rope == NULL) return SHEAF_E_NO_MEMORY;
    rope->memory = memory;
    rope->half = head_dim / 2;
    rope->frequencies = sheaf__memory_alloc(memory, rope->half, sizeof *rope->frequencies);
    if (rope->frequencies == NULL) {
        sheaf__rope_destroy(rope);
        return SHEAF_E_NO_MEMORY;
    }
    uint64_t saved = sheaf__fpenv_enter();
    for (uint32_t i = 0; i < rope->half; i++)
        rope->frequencies[i] = frequency_at(config, i, head_dim);
    sheaf__fpenv_leave(saved);
    *out = rope;
    return SHEAF_OK;
}

static uint64_t page_floats(const sheaf__rope *rope)
{
    return 2 * PAGE_ROWS * (uint64_t)rope->half;
}

void sheaf__rope_destroy(sheaf__rope *rope)
{
    if (rope == NULL) return;
    for (uint32_t i = 0; i < rope->n_pages; i++)
        sheaf__memory_free(rope->memory, rope->pages[i], page_floats(rope), sizeof(float));
    sheaf__memory_free(rope->memory, rope->pages, rope->page_room, sizeof *rope->pages);
    sheaf__memory_free(rope->memory, rope->frequencies, rope->half, sizeof *rope->frequencies);
    sheaf__memory_free(rope->memory, rope, 1, sizeof *rope);
}

static void fill_page(const sheaf__rope *rope, uint32_t page, float *cosines)
{
    float *sines = cosines + PAGE_ROWS * (uint64_t)rope->half;
    uint64_t saved = sheaf__fpenv_enter();
    for (uint32_t row = 0; row < PAGE_ROWS; row++)
        for (uint32_t i = 0; i < rope->half; i++) {
            float angle = (float)(page * PAGE_ROWS + row) * rope->frequencies[i];
            double sine, cosine;
            sheaf__dsincos(angle, &sine, &cosine);
            *cosines++ = (float)cosine;
            *sines++ = (float)sine;
        }
    sheaf__fpenv_leave(saved);
}

sheaf_status sheaf__rope_reserve(sheaf__rope *rope, uint32_t n_positions)
{
    if (n_positions > MAX_POSITIONS) return SHEAF_E_INVALID;
    uint32_t wanted = (n_positions + PAGE_ROWS - 1) / PAGE_ROWS;
    if (wanted <= rope->n_pages) return SHEAF_OK;
    void *pages = rope->pages;
    SHEAF__TRY(sheaf__memory_grow(rope->memory, &pages, &rope->page_room, wanted,
                                  sizeof *rope->pages));
    rope->pages = pages;
    while (rope->n_pages < wanted) {
        float *page = sheaf__memory_alloc(rope->memory, page_floats(rope), sizeof *page);
        if (page == NULL) return SHEAF_E_NO_MEMORY;
        fill_page(rope, rope->n_pages, page);
        rope->pages[rope->n_pages++] = page;
    }
    return SHEAF_OK;
}

const float *sheaf__rope_cos(const sheaf__rope *rope, uint32_t pos)
{
    return rope->pages[pos / PAGE_ROWS] + (pos % PAGE_ROWS) * (uint64_t)rope->half;
}

const float *sheaf__rope_sin(const sheaf__rope *rope, uint32_t pos)
{
    return sheaf__rope_cos(rope, pos) + PAGE_ROWS * (uint64_t)rope->half;
}
