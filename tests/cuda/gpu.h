/* cuda/gpu.h - what the tests on a GPU share: a device, or a reason to skip. */
#ifndef SHEAF_TESTS_CUDA_GPU_H
#define SHEAF_TESTS_CUDA_GPU_H

#include <stdbool.h>

#include "testing.h"

#include "sheaf/cuda.h"

/* Opens GPU 0; leaves the running case as skipped where there is none. */
static inline sheaf_device *gpu_open(uint32_t whole_range)
{
    sheaf_cuda_options o = SHEAF_CUDA_OPTIONS_INIT;
    sheaf_device *device = NULL;
    sheaf_error err = {0};
    o.whole_range = whole_range;
    sheaf_status st = sheaf_cuda_open(&o, &device, &err);
    if (st == SHEAF_E_UNSUPPORTED) TESTING_SKIP("no GPU: %s", err.text);
    if (st != SHEAF_OK) fail_msg("%s", err.text);
    return device;
}

/* Whether a sanitizer watches, under which what is queued may be done at once. */
static inline bool gpu_is_watched(void)
{
    return getenv("SHEAF_GPU_SHORT") != NULL;
}

static inline void gpu_close(sheaf_device *device)
{
    assert_int_equal(sheaf_device_close(device), SHEAF_OK);
}

static inline sheaf_cuda_info gpu_info(const sheaf_device *device)
{
    sheaf_cuda_info info = SHEAF_CUDA_INFO_INIT;
    assert_int_equal(sheaf_cuda_info_read(device, &info), SHEAF_OK);
    return info;
}

#endif
