/* cache/key.c - namespaces and content keys.
 *
 * docs/format.md says byte by byte what is hashed; it must match. Every integer is little-endian and
 * every part that can vary in length carries its length, so that two different lists of parts are
 * never the same bytes.
 */
#include "cache/key.h"

#include <string.h>

#include "base/sha256.h"
#include "pool/pool.h"
#include "sheaf/key.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens are hashed as they lie");
_Static_assert(sizeof(sheaf_key) == SHEAF__SHA256_BYTES, "a key is a digest");

#define SPACE_VERSION 1
#define MAX_TAG       255

static const char space_mark[] = "sheaf space";
static const char block_mark[] = "sheaf block";

/* ---- content keys -------------------------------------------------------------------------- */

sheaf_status sheaf_key_next(const sheaf_key *parent, const int32_t *tokens, uint32_t n,
                            sheaf_key *out)
{
    if (parent == NULL || tokens == NULL || n == 0 || out == NULL) return SHEAF_E_INVALID;
    unsigned char head[sizeof block_mark - 1 + SHEAF_KEY_BYTES];
    memcpy(head, block_mark, sizeof block_mark - 1);
    memcpy(head + sizeof block_mark - 1, parent->bytes, SHEAF_KEY_BYTES);
    sheaf__sha256 sha;
    SHEAF__TRY(sheaf__sha256_begin(&sha));
    sheaf__sha256_add(&sha, head, sizeof head);
    sheaf__sha256_add(&sha, tokens, (uint64_t)n * sizeof *tokens);
    return sheaf__sha256_end(&sha, out->bytes);
}

/* ---- namespaces ---------------------------------------------------------------------------- */

static void add_u32(sheaf__sha256 *sha, uint32_t value)
{
    unsigned char bytes[4];
    for (int i = 0; i < 4; i++) bytes[i] = (unsigned char)(value >> (8 * i));
    sheaf__sha256_add(sha, bytes, sizeof bytes);
}

static void add_framed(sheaf__sha256 *sha, const void *data, uint64_t size)
{
    add_u32(sha, (uint32_t)size);
    add_u32(sha, (uint32_t)(size >> 32));
    sheaf__sha256_add(sha, data, size);
}

static void add_layout(sheaf__sha256 *sha, const sheaf__layout *layout)
{
    add_u32(sha, layout->block_tokens);
    add_u32(sha, layout->n_layers);
    for (uint32_t i = 0; i < layout->n_layers; i++) {
        const sheaf_layer *layer = &layout->layers[i].layer;
        add_u32(sha, layer->n_kv_heads);
        add_u32(sha, layer->key_dim);
        add_u32(sha, layer->value_dim);
        add_u32(sha, layer->window);
        add_u32(sha, layer->codec_k);
        add_u32(sha, layer->codec_v);
    }
}

static sheaf_status check_fields(const sheaf_field *fields, uint32_t n)
{
    if (n > SHEAF_MAX_FIELDS || (n != 0 && fields == NULL)) return SHEAF_E_INVALID;
    for (uint32_t i = 0; i < n; i++) {
        if (fields[i].tag == NULL || (fields[i].size != 0 && fields[i].data == NULL))
            return SHEAF_E_INVALID;
        size_t size = strnlen(fields[i].tag, MAX_TAG + 1);
        if (size == 0 || size > MAX_TAG) return SHEAF_E_INVALID;
        for (uint32_t k = 0; k < i; k++)
            if (strcmp(fields[i].tag, fields[k].tag) == 0) return SHEAF_E_INVALID;
    }
    return SHEAF_OK;
}

/* order: [n], the fields by the bytes of their tags. At most 32: by insertion. */
static void sort_fields(const sheaf_field *fields, uint32_t n, uint32_t *order)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = i;
        for (; k > 0 && strcmp(fields[order[k - 1]].tag, fields[i].tag) > 0; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
}

sheaf_status sheaf_space_make(const sheaf_pool *pool, const sheaf_field *fields,
                              uint32_t n_fields, sheaf_key *out)
{
    if (pool == NULL || out == NULL) return SHEAF_E_INVALID;
    SHEAF__TRY(check_fields(fields, n_fields));
    uint32_t order[SHEAF_MAX_FIELDS];
    sort_fields(fields, n_fields, order);
    sheaf__sha256 sha;
    SHEAF__TRY(sheaf__sha256_begin(&sha));
    sheaf__sha256_add(&sha, space_mark, sizeof space_mark - 1);
    add_u32(&sha, SPACE_VERSION);
    add_u32(&sha, SHEAF__NUMERICS_VERSION);
    add_framed(&sha, pool->device.kind, strlen(pool->device.kind));
    add_layout(&sha, sheaf__pool_layout(pool));
    add_u32(&sha, n_fields);
    for (uint32_t i = 0; i < n_fields; i++) {
        const sheaf_field *field = &fields[order[i]];
        add_framed(&sha, field->tag, strlen(field->tag));
        add_framed(&sha, field->data, field->size);
    }
    return sheaf__sha256_end(&sha, out->bytes);
}
