/* base/cuda_driver.c - calls of NVIDIA's driver, found while the program runs. */
#include "base/cuda_driver.h"

#include <string.h>

#include "base/cuda_error.h"
#include "base/status.h"

sheaf_status sheaf__cuda_driver_call(const char *name, void *call, sheaf_error *err)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    SHEAF__TRY(sheaf__cuda_status(
        cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result), name,
        err));
    if (result != cudaDriverEntryPointSuccess || found == NULL)
        return sheaf__error_set(err, SHEAF_E_UNSUPPORTED, "the driver has no %s", name);
    memcpy(call, &found, sizeof found);
    return SHEAF_OK;
}

bool sheaf__cuda_kept_call(void **kept, const char *name, void *call)
{
    void *found = __atomic_load_n(kept, __ATOMIC_ACQUIRE);
    if (found == NULL) {
        if (sheaf__cuda_driver_call(name, &found, NULL) != SHEAF_OK) return false;
        __atomic_store_n(kept, found, __ATOMIC_RELEASE);
    }
    memcpy(call, &found, sizeof found);
    return true;
}
