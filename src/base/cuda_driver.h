/* base/cuda_driver.h - calls of NVIDIA's driver, found while the program runs.
 *
 * Owns: how they are looked up, so that nothing links the driver. For C and for C++.
 */
#ifndef SHEAF_BASE_CUDA_DRIVER_H
#define SHEAF_BASE_CUDA_DRIVER_H

#include <stdbool.h>

#include "sheaf/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One call, as of CUDA 12. call: a pointer to a pointer to such a function, set on success.
 * SHEAF_E_UNSUPPORTED: this driver has none; else as sheaf__cuda_status. err may be null. */
SHEAF_WARN sheaf_status sheaf__cuda_driver_call(const char *name, void *call, sheaf_error *err);

/* The same, looked up once: kept is static, null at first; threads that look at once find the same.
 * false: there is none, and no error is left behind. */
bool sheaf__cuda_kept_call(void **kept, const char *name, void *call);

#ifdef __cplusplus
}
#endif
#endif
