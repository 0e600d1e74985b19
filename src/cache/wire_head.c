/* cache/wire_head.c - HEAD: what is to come, whether it agrees with itself and suits a pool. */
#include <string.h>

#include "base/bits.h"
#include "cache/wire.h"

_Static_assert(SHEAF__WIRE_HEAD_FIXED == 80 && sizeof(sheaf__wire_group) == 24 &&
                   sizeof(sheaf_layer) == 24,
               "as docs/format.md has it");

/* what is asked for along with a checksum: the next header, and what stands before a block's tiles */
#define AHEAD_OF_LARGE (SHEAF__WIRE_FRAME - sizeof(uint64_t) + SHEAF__WIRE_BLOCK_HEAD)

static uint64_t payload_bytes(const sheaf__wire_head *head)
{
    return SHEAF__WIRE_HEAD_FIXED + head->n_groups * sizeof(sheaf__wire_group) +
           head->n_layers * sizeof(sheaf_layer);
}

/* ---- out ----------------------------------------------------------------------------------- */

void sheaf__wire_head_init(sheaf__wire_head *head, const sheaf__layout *layout)
{
    *head = (sheaf__wire_head){.block_tokens = layout->block_tokens,
                               .n_layers = layout->n_layers,
                               .n_groups = layout->n_groups,
                               .fingerprint = layout->fingerprint};
    for (uint32_t g = 0; g < layout->n_groups; g++) {
        head->groups[g].window = layout->groups[g].window;
        head->groups[g].block_bytes = layout->groups[g].tile_bytes;
    }
}

bool sheaf__wire_head_stream_bytes(const sheaf__wire_head *head, uint64_t *out)
{
    uint64_t sum = SHEAF__WIRE_PROLOGUE + SHEAF__WIRE_FRAME + payload_bytes(head) +
                   SHEAF__WIRE_FRAME + SHEAF__WIRE_DONE_BYTES;
    for (uint32_t g = 0; g < head->n_groups; g++) {
        uint64_t bytes = SHEAF__WIRE_FRAME + SHEAF__WIRE_BLOCK_HEAD;
        if (!sheaf__add_u64(bytes, head->groups[g].block_bytes, &bytes) ||
            !sheaf__mul_u64(bytes, head->groups[g].n_blocks, &bytes) ||
            !sheaf__add_u64(sum, bytes, &sum))
            return false;
    }
    *out = sum;
    return true;
}

sheaf_status sheaf__wire_head_put(const sheaf__wire_head *head, const sheaf__layout *layout,
                                  sheaf__wire_out *out)
{
    sheaf__wire_out_open(out, SHEAF__WIRE_HEAD, payload_bytes(head));
    sheaf__wire_out_put(out, head, SHEAF__WIRE_HEAD_FIXED);
    sheaf__wire_out_put(out, head->groups, head->n_groups * sizeof head->groups[0]);
    for (uint32_t i = 0; i < layout->n_layers; i++)
        sheaf__wire_out_put(out, &layout->layers[i].layer, sizeof(sheaf_layer));
    return sheaf__wire_out_close(out);
}

/* ---- in ------------------------------------------------------------------------------------ */

/* What can be said without knowing the layout. */
static sheaf_status check_counts(const sheaf__wire_head *head, const sheaf__wire_in *in)
{
    if (head->n_layers == 0 || head->n_layers > SHEAF_MAX_LAYERS || head->n_groups == 0 ||
        head->n_groups > SHEAF_MAX_GROUPS || !sheaf__is_pow2(head->block_tokens) ||
        in->frame_bytes != payload_bytes(head))
        return sheaf__wire_in_wrong(in, "the head describes an impossible layout");
    bool sequences = head->carries == SHEAF__WIRE_SEQUENCES;
    if (head->carries > SHEAF__WIRE_BLOCK || head->reserved != 0 ||
        sequences != (head->n_sequences != 0))
        return sheaf__wire_in_wrong(in, "the head does not say what the stream carries");
    return SHEAF_OK;
}

static sheaf_status get_all(sheaf__wire_head *head, sheaf__wire_in *in)
{
    SHEAF__TRY(sheaf__wire_in_get(in, head, SHEAF__WIRE_HEAD_FIXED));
    SHEAF__TRY(check_counts(head, in));
    head->layers = sheaf__memory_alloc(in->memory, head->n_layers, sizeof *head->layers);
    if (head->layers == NULL)
        return sheaf__error_set(in->err, SHEAF_E_NO_MEMORY, "no host memory for %u layers",
                                head->n_layers);
    SHEAF__TRY(sheaf__wire_in_get(in, head->groups, head->n_groups * sizeof head->groups[0]));
    SHEAF__TRY(sheaf__wire_in_get(in, head->layers, head->n_layers * sizeof *head->layers));
    return sheaf__wire_in_close(in);
}

sheaf_status sheaf__wire_head_get(sheaf__wire_head *head, sheaf__wire_in *in)
{
    *head = (sheaf__wire_head){0};
    in->certain += SHEAF__WIRE_FRAME + SHEAF__WIRE_HEAD_FIXED;
    SHEAF__TRY(sheaf__wire_in_open(in, SHEAF__WIRE_HEAD));
    SHEAF__TRY(get_all(head, in));
    uint64_t least, largest = 0;
    if (!sheaf__wire_head_stream_bytes(head, &least) || least > head->n_bytes)
        return sheaf__wire_in_wrong(in, "the head counts more than the stream's bytes");
    for (uint32_t g = 0; g < head->n_groups; g++)
        largest = sheaf__max_u64(largest, head->groups[g].block_bytes);
    in->n_bytes = in->certain = head->n_bytes;
    in->ahead = largest < SHEAF__WIRE_LARGE ? SHEAF__WIRE_BUFFER : AHEAD_OF_LARGE;
    return SHEAF_OK;
}

void sheaf__wire_head_free(sheaf__wire_head *head, sheaf__memory *memory)
{
    sheaf__memory_free(memory, head->layers, head->n_layers, sizeof *head->layers);
    head->layers = NULL;
}

/* ---- checks -------------------------------------------------------------------------------- */

/* The first group whose numbers cannot be; n_groups when all can. */
static uint32_t wrong_group(const sheaf__wire_head *head, const sheaf__layout *layout)
{
    uint32_t g = 0;
    for (; g < head->n_groups; g++) {
        const sheaf__wire_group *group = &head->groups[g];
        if (group->window != layout->groups[g].window || group->reserved != 0 ||
            group->block_bytes != layout->groups[g].tile_bytes)
            break;
        if (head->carries == SHEAF__WIRE_BLOCK &&
            (group->n_blocks > 1 || (group->n_blocks == 0 && group->window == 0)))
            break;
        if (group->n_blocks > UINT32_MAX) break;
    }
    return g;
}

sheaf_status sheaf__wire_head_agrees(const sheaf__wire_head *head, const sheaf__layout *layout,
                                     sheaf_error *err)
{
    static const sheaf_key none;
    if (head->n_groups != layout->n_groups || head->fingerprint != layout->fingerprint)
        return sheaf__error_set(err, SHEAF_E_FORMAT,
                                "the head's groups or fingerprint are not those of its layers");
    uint32_t g = wrong_group(head, layout);
    if (g != head->n_groups)
        return sheaf__error_set(err, SHEAF_E_FORMAT,
                                "the head's group %u is not that of its layers", g);
    if (head->carries == SHEAF__WIRE_BLOCK &&
        (head->n_tokens != head->block_tokens || memcmp(&head->space, &none, sizeof none) != 0))
        return sheaf__error_set(err, SHEAF_E_FORMAT,
                                "the head of a single block says more than that");
    return SHEAF_OK;
}

/* A codec's name, also of one that a later library has. */
static const char *name_of_codec(uint32_t codec)
{
    const char *name = sheaf_codec_name(codec);
    return name != NULL ? name : "not known here";
}

/* Says what of a layer differs. */
static sheaf_status other_layer(uint32_t i, const sheaf_layer *saved, const sheaf_layer *here,
                                sheaf_error *err)
{
    const struct {
        const char *what;
        uint32_t saved, here;
    } sizes[] = {{"KV heads", saved->n_kv_heads, here->n_kv_heads},
                 {"numbers in a key", saved->key_dim, here->key_dim},
                 {"numbers in a value", saved->value_dim, here->value_dim},
                 {"positions in its window", saved->window, here->window}};
    for (uint32_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        if (sizes[s].saved != sizes[s].here)
            return sheaf__error_set(err, SHEAF_E_FOREIGN,
                                    "saved with another layout: layer %u has %u %s, here %u", i,
                                    sizes[s].saved, sizes[s].what, sizes[s].here);
    return sheaf__error_set(
        err, SHEAF_E_FOREIGN,
        "saved with other codecs: K and V of layer %u are %s and %s, here %s "
        "and %s",
        i, name_of_codec(saved->codec_k), name_of_codec(saved->codec_v),
        name_of_codec(here->codec_k), name_of_codec(here->codec_v));
}

static sheaf_status check_layers(const sheaf__wire_head *head, const sheaf__layout *layout,
                                 sheaf_error *err)
{
    if (head->block_tokens != layout->block_tokens || head->n_layers != layout->n_layers)
        return sheaf__error_set(err, SHEAF_E_FOREIGN,
                                "saved with %u layers and blocks of %u tokens; here are %u "
                                "layers and blocks of %u tokens",
                                head->n_layers, head->block_tokens, layout->n_layers,
                                layout->block_tokens);
    for (uint32_t i = 0; i < head->n_layers; i++)
        if (memcmp(&head->layers[i], &layout->layers[i].layer, sizeof(sheaf_layer)) != 0)
            return other_layer(i, &head->layers[i], &layout->layers[i].layer, err);
    return SHEAF_OK;
}

sheaf_status sheaf__wire_head_suits(const sheaf__wire_head *head, uint32_t carries,
                                    const sheaf__layout *layout, const sheaf_key *space,
                                    sheaf_error *err)
{
    static const char *const names[] = {"parked sequences", "a single block"};
    if (head->carries != carries)
        return sheaf__error_set(err, SHEAF_E_FORMAT, "the stream carries %s, not %s",
                                names[head->carries], names[carries]);
    SHEAF__TRY(check_layers(head, layout, err));
    SHEAF__TRY(sheaf__wire_head_agrees(head, layout, err));
    if (space != NULL && memcmp(space, &head->space, sizeof *space) != 0)
        return sheaf__error_set(err, SHEAF_E_FOREIGN,
                                "saved in another namespace: for another model, adapter, salt "
                                "or version of the arithmetic");
    return SHEAF_OK;
}

/* ---- where tiles lie ----------------------------------------------------------------------- */

/* *next counts tiles: layer i's K is 2 * i, its V 2 * i + 1. */
bool sheaf__wire_next_run(const sheaf__layout *layout, uint32_t group, uint32_t *next,
                          uint64_t *offset, uint64_t *bytes)
{
    uint64_t begin = 0, end = 0;
    for (; *next < 2 * layout->n_layers; ++*next) {
        const sheaf__layer_layout *place = &layout->layers[*next / 2];
        bool v = *next % 2 != 0;
        uint64_t segment = v ? place->v_segment_bytes : place->k_segment_bytes;
        if (place->group != group || segment == 0) continue;
        uint64_t at = v ? place->v_offset : place->k_offset;
        if (end == 0)
            begin = at;
        else if (at != end)
            break;
        end = at + segment * place->layer.n_kv_heads;
    }
    *offset = begin;
    *bytes = end - begin;
    return end != 0;
}
