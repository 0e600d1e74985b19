# Compiler flags that every target shares, and those of the files of one instruction set.

add_library(sheaf_flags INTERFACE)
target_compile_definitions(sheaf_flags INTERFACE _GNU_SOURCE)
target_compile_options(sheaf_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:
  -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes
  -Wmissing-prototypes -ffp-contract=off -fno-fast-math -fno-math-errno>)
if(SHEAF_WERROR)
  target_compile_options(sheaf_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Werror>)
endif()

if(NOT SHEAF_CHECK STREQUAL "")
  target_compile_definitions(sheaf_flags INTERFACE SHEAF_CHECK=${SHEAF_CHECK})
else()
  target_compile_definitions(sheaf_flags INTERFACE SHEAF_CHECK=$<IF:$<CONFIG:Debug>,2,0>)
endif()

if(SHEAF_BUILD_FUZZERS)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "SHEAF_BUILD_FUZZERS needs clang: configure with -DCMAKE_C_COMPILER=clang")
  endif()
  target_compile_options(sheaf_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined
    -fno-omit-frame-pointer -fno-sanitize-recover=all -g)
  target_link_options(sheaf_flags INTERFACE -fsanitize=address,undefined)
elseif(SHEAF_SANITIZE)
  target_compile_options(sheaf_flags INTERFACE -fsanitize=${SHEAF_SANITIZE}
    -fno-omit-frame-pointer -fno-sanitize-recover=all -g)
  target_link_options(sheaf_flags INTERFACE -fsanitize=${SHEAF_SANITIZE})
endif()

# sheaf_isa_flags(FILE...): gives each source file the flags of its instruction set, told by
# the end of its name (_scalar.c, _avx2.c, _avx512.c). Such files are never optimised across
# files: link-time inlining has been seen to fuse operations that their flags forbid. Under sanitizers
# the SIMD forms, which inline a great deal, are watched for addresses (or threads) alone: with the
# checks of undefined behaviour, which the scalar forms keep, one of them compiles for two minutes.
function(sheaf_isa_flags)
  foreach(file IN LISTS ARGN)
    if(file MATCHES "\\.cu$")
      continue()
    endif()
    set(flags -fno-lto)
    if((SHEAF_SANITIZE OR SHEAF_BUILD_FUZZERS) AND file MATCHES "_(avx2|avx512|neon)\\.c$")
      list(APPEND flags -O1 -fno-sanitize=undefined)
    endif()
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
      if(file MATCHES "_avx512\\.c$")
        list(APPEND flags -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c)
      elseif(file MATCHES "_avx2\\.c$")
        list(APPEND flags -mavx2 -mfma -mf16c)
      elseif(file MATCHES "_scalar\\.c$")
        list(APPEND flags -mfma -fno-tree-vectorize)
      endif()
    endif()
    set_source_files_properties(${file} PROPERTIES COMPILE_OPTIONS "${flags}")
  endforeach()
endfunction()
