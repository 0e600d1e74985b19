# Cross build for AArch64 Linux with gcc; qemu runs the tests. What it links lies in SHEAF_SYSROOT, which
# tools/sysroot.sh makes (./run deps aarch64).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(SHEAF_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build/sysroot-aarch64 CACHE PATH
  "AArch64 libraries and headers")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES SHEAF_SYSROOT)
get_filename_component(CMAKE_SYSROOT ${SHEAF_SYSROOT} ABSOLUTE)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR}
  ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)

find_program(SHEAF_QEMU NAMES qemu-aarch64-static qemu-aarch64)
if(SHEAF_QEMU)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${SHEAF_QEMU} -L ${CMAKE_SYSROOT})
endif()
