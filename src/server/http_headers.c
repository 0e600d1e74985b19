/* server/http_headers.c - the headers of requests and of replies: framing, keys, origins. */
#include <string.h>
#include <strings.h>

#include "server/http_private.h"

/* ---- pairs ------------------------------------------------------------------------------- */

sheaf_status sheaf__http_pair_add(sheaf__text *pairs, const char *name, const char *value)
{
    uint64_t before = pairs->n;
    sheaf_status st = sheaf__text_append(pairs, name, strlen(name) + 1);
    if (st == SHEAF_OK) st = sheaf__text_append(pairs, value, strlen(value) + 1);
    if (st != SHEAF_OK) pairs->n = before;
    return st;
}

/* Steps through pairs: false at the end. *at starts at 0. */
static bool next_pair(const sheaf__text *pairs, uint64_t *at, const char **name,
                      const char **value)
{
    if (*at >= pairs->n) return false;
    *name = pairs->data + *at;
    *value = *name + strlen(*name) + 1;
    *at = (uint64_t)(*value + strlen(*value) + 1 - pairs->data);
    return true;
}

const char *sheaf__http_pair_find(const sheaf__text *pairs, const char *name)
{
    const char *n, *v;
    for (uint64_t at = 0; next_pair(pairs, &at, &n, &v);)
        if (strcmp(n, name) == 0) return v;
    return NULL;
}

/* ---- of a request ------------------------------------------------------------------------ */

static void read_length(sheaf__http_head *head, const char *value)
{
    uint64_t n = 0;
    const char *at = value;
    for (; *at >= '0' && *at <= '9' && n < UINT64_MAX / 16; at++)
        n = n * 10 + (uint64_t)(*at - '0');
    /* a second length, even the same one, is what smuggled requests look like */
    if (*at != 0 || at == value || head->content_length != UINT64_MAX) head->ambiguous = true;
    head->content_length = n;
}

static enum MHD_Result read_header(void *ctx, enum MHD_ValueKind kind, const char *name,
                                   const char *value)
{
    sheaf__http_head *head = ctx;
    (void)kind;
    if (value == NULL) return MHD_YES;
    if (strcasecmp(name, "Content-Length") == 0)
        read_length(head, value);
    else if (strcasecmp(name, "Transfer-Encoding") == 0) {
        if (head->chunked || strcasecmp(value, "chunked") != 0) head->ambiguous = true;
        head->chunked = true;
    } else if (strcasecmp(name, "Expect") == 0)
        head->expects = strcasecmp(value, "100-continue") == 0;
    else if (strcasecmp(name, "Authorization") == 0)
        head->authorization = value;
    else if (strcasecmp(name, "Origin") == 0)
        head->origin = value;
    else if (strcasecmp(name, "Host") == 0)
        head->host = value;
    else if (strcasecmp(name, "Sec-Fetch-Site") == 0)
        head->fetch_site = value;
    else if (strcasecmp(name, "X-Request-Id") == 0)
        head->request_id = value;
    else if (strcasecmp(name, "Access-Control-Request-Method") == 0)
        head->asked_method = value;
    else if (strcasecmp(name, "Access-Control-Request-Headers") == 0)
        head->asked_headers = value;
    return MHD_YES;
}

void sheaf__http_head_read(struct MHD_Connection *mhd, sheaf__http_head *head)
{
    *head = (sheaf__http_head){.content_length = UINT64_MAX};
    MHD_get_connection_values(mhd, MHD_HEADER_KIND, read_header, head);
    bool has_length = head->content_length != UINT64_MAX;
    if (has_length && head->chunked) head->ambiguous = true;
    if (!has_length) head->content_length = 0;
    head->has_body = head->chunked || head->content_length > 0;
}

/* Compares digests, so that the time tells nothing about a key, not even its length. */
bool sheaf__http_key_is_good(const sheaf__http *http, const char *authorization)
{
    static const char scheme[] = "Bearer ";
    unsigned char digest[SHEAF__SHA256_BYTES];
    if (http->options.n_api_keys == 0) return true;
    if (authorization == NULL || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return false;
    const char *key = authorization + sizeof scheme - 1;
    while (*key == ' ') key++;
    if (sheaf__sha256_of(key, strlen(key), digest) != SHEAF_OK) return false;
    uint32_t good = 0;
    for (uint32_t i = 0; i < http->options.n_api_keys; i++) {
        uint32_t differs = 0;
        for (uint32_t j = 0; j < SHEAF__SHA256_BYTES; j++)
            differs |= (uint32_t)(digest[j] ^ http->key_digests[i][j]);
        good |= differs == 0;
    }
    return good != 0;
}

const char *sheaf__http_allowed_origin(const sheaf__http *http, const char *origin)
{
    if (origin == NULL) return NULL;
    for (uint32_t i = 0; i < http->options.n_origins; i++) {
        const char *allowed = http->options.origins[i];
        if (strcmp(allowed, "*") == 0 || strcasecmp(allowed, origin) == 0) return allowed;
    }
    return NULL;
}

/* ---- strangers' pages -------------------------------------------------------------------- */

/* What comes after "https://". */
static const char *authority_of(const char *origin)
{
    const char *at = strstr(origin, "://");
    return at != NULL ? at + 3 : origin;
}

/* Bytes of a name or address before its port. */
static size_t name_size(const char *authority)
{
    const char *end = authority[0] == '[' ? strchr(authority, ']') : NULL;
    return end != NULL ? (size_t)(end + 1 - authority) : strcspn(authority, ":");
}

static bool same_name(const char *a, const char *b)
{
    size_t n = name_size(a);
    return n == name_size(b) && strncasecmp(a, b, n) == 0;
}

/* Whether a Host can be this machine's: an address, a name without a domain, or one that was told. */
static bool is_own_name(const sheaf__http *http, const char *host)
{
    static const char suffix[] = ".localhost";
    const sheaf__http_options *o = &http->options;
    size_t n = name_size(host), n_suffix = sizeof suffix - 1;
    if (host[0] == '[' || memchr(host, '.', n) == NULL) return true;
    if (strspn(host, "0123456789.") >= n) return true;
    if (n > n_suffix && strncasecmp(host + n - n_suffix, suffix, n_suffix) == 0) return true;
    bool own = same_name(host, o->host);
    for (uint32_t i = 0; i < o->n_origins; i++)
        own |= strcmp(o->origins[i], "*") == 0 || same_name(host, authority_of(o->origins[i]));
    return own;
}

const char *sheaf__http_stranger(const sheaf__http *http, const sheaf__http_head *head)
{
    const char *host = head->host != NULL ? head->host : "", *origin = head->origin;
    if (http->options.n_api_keys != 0) return NULL;
    if (http->loopback && !is_own_name(http, host)) return host;
    if (origin == NULL || sheaf__http_allowed_origin(http, origin) != NULL) return NULL;
    if (head->fetch_site != NULL && strcmp(head->fetch_site, "same-origin") == 0) return NULL;
    return strcasecmp(authority_of(origin), host) == 0 ? NULL : origin;
}

/* ---- of a reply -------------------------------------------------------------------------- */

void sheaf__http_reply_headers(const sheaf__exchange *x, sheaf__http_header_fn *fn, void *ctx)
{
    const sheaf__http_reply *reply = &x->reply;
    const char *name, *value;
    fn(ctx, "X-Request-Id", x->id);
    fn(ctx, "X-Content-Type-Options", "nosniff");
    if (reply->content_type[0] != 0) fn(ctx, "Content-Type", reply->content_type);
    if (reply->stream) {
        fn(ctx, "Cache-Control", "no-cache");
        fn(ctx, "X-Accel-Buffering", "no"); /* proxies pass each piece on at once */
    }
    if (x->http->options.n_origins != 0) fn(ctx, "Vary", "Origin");
    if (x->allowed_origin != NULL) {
        fn(ctx, "Access-Control-Allow-Origin", x->allowed_origin);
        fn(ctx, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    }
    for (uint64_t at = 0; next_pair(&reply->headers, &at, &name, &value);) fn(ctx, name, value);
}
