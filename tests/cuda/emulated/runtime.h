/* emulated/runtime.h - as much of CUDA's runtime as plans and their tests call. Streams do what they are
 * given at once, or keep it while they are captured. */
#ifndef SHEAF_TESTS_EMULATED_RUNTIME_H
#define SHEAF_TESTS_EMULATED_RUNTIME_H

#include <functional>

#include <cuda_runtime.h>

namespace emulated
{

void queue(std::function<void()> work);

} // namespace emulated

#endif
