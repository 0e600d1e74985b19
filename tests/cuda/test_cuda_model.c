/* cuda/test_cuda_model.c - the model of a pool (pool/model_world.h) on a GPU: taking, sharing,
 * retiring, copying and compacting blocks against a naive reference, contents included. */
#include "gpu.h"

#include "pool/model_world.h"

static void a_pool_on_a_gpu_behaves_as_the_reference(void **state)
{
    (void)state;
    sheaf_device *device = gpu_open(0);
    run(&device->door, 1, SLAB, 5, 1, 2000);
    run(&device->door, 3, SLAB, 9, 0, 2000);
    run(&device->door, 2, 16, 3, 1, 2000); /* a slab of 16 blocks is one granule, never short */
    gpu_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pool_on_a_gpu_behaves_as_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
