# The CUDA device and its kernels: only with SHEAF_CUDA. Machine code for Hopper (sm_90a, whose own instructions
# a plain sm_90 lacks) and no other; the runtime is linked statically, the driver's library is looked for when a
# device is opened, so that what is built here also runs, and says so, where there is none.
if(NOT SHEAF_CUDA)
  return()
endif()
if(NOT CMAKE_CUDA_COMPILER)
  find_program(SHEAF_NVCC nvcc HINTS ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
  if(NOT SHEAF_NVCC)
    message(FATAL_ERROR "SHEAF_CUDA needs nvcc: put it on the PATH, or set CUDA_HOME")
  endif()
  set(CMAKE_CUDA_COMPILER ${SHEAF_NVCC})
endif()
set(CMAKE_CUDA_ARCHITECTURES OFF) # the one below
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)

target_compile_options(sheaf_flags INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:
  -gencode=arch=compute_90a,code=sm_90a --compress-mode=size -Xcompiler=-Wall,-Wextra,-Wno-unused-parameter>)
if(SHEAF_WERROR)
  target_compile_options(sheaf_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -Xcompiler=-Werror>)
endif()

# sheaf_cuda_sources(FLOOR FILE...): kernels of a floor. `-fmad=false` files (EXACT) come first: those whose
# numbers must be the processor's to the bit never fuse a product and a sum by themselves.
function(sheaf_cuda_sources floor)
  cmake_parse_arguments(ARG "" "" "EXACT" ${ARGN})
  target_sources(sheaf_${floor} PRIVATE ${ARG_EXACT} ${ARG_UNPARSED_ARGUMENTS})
  foreach(file IN LISTS ARG_EXACT)
    set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS -fmad=false)
  endforeach()
  target_link_libraries(sheaf_${floor} PUBLIC CUDA::cudart_static)
endfunction()
