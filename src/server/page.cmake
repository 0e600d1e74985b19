# The files of the page become bytes of the program: page_files.c, made anew when one of them changes.
set(page_names
  index.html
  api.js
  chat.js
  format.js
  icon.svg
  main.js
  map.js
  numbers.js
  page.css
  pool.js
  requests.js
  vendor/uplot/LICENSE
  vendor/uplot/uPlot.iife.min.js
  vendor/uplot/uPlot.min.css)
set(page_root ${CMAKE_CURRENT_SOURCE_DIR}/page)
list(TRANSFORM page_names PREPEND ${page_root}/ OUTPUT_VARIABLE page_paths)
add_custom_command(
  OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/page_files.c
  COMMAND ${CMAKE_COMMAND} "-DNAMES=${page_names}" -DROOT=${page_root}
    -DOUTPUT=${CMAKE_CURRENT_BINARY_DIR}/page_files.c -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
  DEPENDS ${page_paths} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
  COMMENT "Embedding the page"
  VERBATIM)
target_sources(sheaf_server PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/page_files.c)
