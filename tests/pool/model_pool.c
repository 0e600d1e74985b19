/* pool/model_pool.c - the model of a pool (pool/model_world.h) on the machine's own memory, and on a
 * device whose memory the host cannot touch. */
#include "pool/model_world.h"

#include "fake_device.h"

static const sheaf__device *cpu(void)
{
    static sheaf__device device;
    device = sheaf__device_cpu(NULL);
    return &device;
}

static void one_group_behaves_as_the_reference(void **state)
{
    (void)state;
    run(cpu(), 1, SLAB, 3, 1, 50000);
    run(cpu(), 1, SLAB, 12, 0, 20000);
}

static void two_groups_behave_as_the_reference(void **state)
{
    (void)state;
    run(cpu(), 2, SLAB, 4, 1, 50000);
    run(cpu(), 2, SLAB, 7, 3, 20000);
}

static void five_groups_behave_as_the_reference(void **state)
{
    (void)state;
    run(cpu(), 5, SLAB, 10, 1, 20000);
}

static void slabs_that_may_be_short_behave_as_the_reference(void **state)
{
    (void)state;
    run(cpu(), 1, 16, 6, 1, 20000);
    run(cpu(), 2, 16, 7, 1, 50000);
    run(cpu(), 3, 64, 11, 0, 20000);
}

static void a_pool_on_a_device_behaves_as_the_reference(void **state)
{
    (void)state;
    static fake_device fake;
    sheaf_device *device = fake_open(&fake, PAGE);
    run(&device->door, 1, SLAB, 5, 1, 10000);
    run(&device->door, 3, SLAB, 9, 0, 10000);
    run(&device->door, 2, 16, 7, 1, 10000);
    assert_int_equal(fake.committed_bytes, 0);
    device = fake_open(&fake, 2 << 20); /* as a GPU's, the same runs as there */
    run(&device->door, 1, SLAB, 5, 1, 2000);
    run(&device->door, 3, SLAB, 9, 0, 2000);
    run(&device->door, 2, 16, 3, 1, 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_group_behaves_as_the_reference),
        cmocka_unit_test(two_groups_behave_as_the_reference),
        cmocka_unit_test(five_groups_behave_as_the_reference),
        cmocka_unit_test(slabs_that_may_be_short_behave_as_the_reference),
        cmocka_unit_test(a_pool_on_a_device_behaves_as_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
