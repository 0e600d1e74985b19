/* base/sha256.c - SHA-256 by libcrypto's EVP.
 *
 * Fetching the algorithm and making a context take longer than hashing a block's tokens. So the
 * algorithm is fetched once, and one context is kept for the next digest, whichever thread begins
 * it: taken and put back by an atomic exchange, and made anew by whoever finds none.
 */
#include "base/sha256.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/status.h"

static pthread_once_t fetched = PTHREAD_ONCE_INIT;
static EVP_MD *algorithm; /* null: libcrypto has none. Kept to the end of the process */
static _Atomic(EVP_MD_CTX *) spare; /* as is this one */

static void fetch(void)
{
    algorithm = EVP_MD_fetch(NULL, "SHA256", NULL);
}

sheaf_status sheaf__sha256_ready(void)
{
    if (pthread_once(&fetched, fetch) != 0) return SHEAF_E_UNSUPPORTED;
    return algorithm != NULL ? SHEAF_OK : SHEAF_E_UNSUPPORTED;
}

static void give_back(EVP_MD_CTX *context)
{
    EVP_MD_CTX_free(atomic_exchange_explicit(&spare, context, memory_order_acq_rel));
}

sheaf_status sheaf__sha256_begin(sheaf__sha256 *sha)
{
    SHEAF__TRY(sheaf__sha256_ready());
    EVP_MD_CTX *context = atomic_exchange_explicit(&spare, NULL, memory_order_acq_rel);
    if (context == NULL) context = EVP_MD_CTX_new();
    if (context == NULL) return SHEAF_E_NO_MEMORY;
    if (EVP_DigestInit_ex2(context, algorithm, NULL) != 1) {
        EVP_MD_CTX_free(context);
        return SHEAF_E_UNSUPPORTED;
    }
    *sha = (sheaf__sha256){.state = context};
    return SHEAF_OK;
}

void sheaf__sha256_add(sheaf__sha256 *sha, const void *data, uint64_t size)
{
    if (size != 0 && EVP_DigestUpdate(sha->state, data, size) != 1) sha->failed = true;
}

sheaf_status sheaf__sha256_end(sheaf__sha256 *sha, unsigned char digest[SHEAF__SHA256_BYTES])
{
    unsigned char whole[SHEAF__SHA256_BYTES];
    unsigned int size = 0;
    bool done = EVP_DigestFinal_ex(sha->state, whole, &size) == 1 && size == sizeof whole;
    give_back(sha->state);
    sha->state = NULL;
    if (!done || sha->failed) return SHEAF_E_UNSUPPORTED;
    for (uint32_t i = 0; i < sizeof whole; i++) digest[i] = whole[i];
    return SHEAF_OK;
}

sheaf_status sheaf__sha256_of(const void *data, uint64_t size,
                              unsigned char digest[SHEAF__SHA256_BYTES])
{
    sheaf__sha256 sha;
    SHEAF__TRY(sheaf__sha256_begin(&sha));
    sheaf__sha256_add(&sha, data, size);
    return sheaf__sha256_end(&sha, digest);
}
