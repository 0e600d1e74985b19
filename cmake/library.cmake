# libsheaf from the floors base to attn, shared and static, and the installation of it and of the
# program: headers, a pkg-config file, a CMake package (sheaf::sheaf, sheaf::sheaf_static).
include(CMakePackageConfigHelpers)

set(parts "")
foreach(floor IN LISTS SHEAF_LIBRARY_FLOORS)
  list(APPEND parts $<TARGET_OBJECTS:sheaf_${floor}>)
endforeach()
add_library(sheaf_shared SHARED ${parts})
add_library(sheaf_static STATIC ${parts})

set_target_properties(sheaf_shared PROPERTIES OUTPUT_NAME sheaf EXPORT_NAME sheaf
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
set_target_properties(sheaf_static PROPERTIES OUTPUT_NAME sheaf)
target_link_libraries(sheaf_shared PRIVATE sheaf_flags PkgConfig::XXHASH PkgConfig::CRYPTO Threads::Threads m)
if(NOT SHEAF_SANITIZE)
  target_link_options(sheaf_shared PRIVATE -Wl,--no-undefined)
endif()
set(PC_LIBS_CUDA "")
if(SHEAF_CUDA)
  target_link_libraries(sheaf_shared PRIVATE CUDA::cudart_static)
  target_link_libraries(sheaf_static INTERFACE $<BUILD_INTERFACE:CUDA::cudart_static>
    $<INSTALL_INTERFACE:${CUDA_cudart_static_LIBRARY}> $<INSTALL_INTERFACE:rt> $<INSTALL_INTERFACE:dl>)
  set(PC_LIBS_CUDA " ${CUDA_cudart_static_LIBRARY} -lrt -ldl")
  set_target_properties(sheaf_shared sheaf_static PROPERTIES LINKER_LANGUAGE C)
endif()
# plain names, so that the package needs nothing but a linker to find them
target_link_libraries(sheaf_static INTERFACE xxhash crypto Threads::Threads m)
foreach(library sheaf_shared sheaf_static)
  target_include_directories(${library} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()

set(not_installed "")
if(NOT SHEAF_CUDA) # what the library lacks
  set(not_installed PATTERN "cuda*.h" EXCLUDE)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/sheaf DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" ${not_installed})
install(TARGETS sheaf_shared sheaf_static EXPORT sheaf-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET sheaf)
  install(TARGETS sheaf RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# An installation can be moved: both files find their prefix from where they lie.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sheaf)
install(EXPORT sheaf-targets NAMESPACE sheaf:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/sheaf-config.cmake.in
  ${PROJECT_BINARY_DIR}/sheaf-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sheaf-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sheaf-config.cmake
  ${PROJECT_BINARY_DIR}/sheaf-config-version.cmake DESTINATION ${package_dir})

file(RELATIVE_PATH up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" PC_PREFIX "\${pcfiledir}/${up}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/sheaf.pc.in ${PROJECT_BINARY_DIR}/sheaf.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sheaf.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
