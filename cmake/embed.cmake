# cmake/embed.cmake - turns files into one C source: their bytes, and the routes under which they are served.
#
#   cmake -DOUTPUT=page_files.c -DROOT=src/server/page -DNAMES="index.html;page.css" -P cmake/embed.cmake
#
# index.html is served at "/", every other file at "/page/" and its name (checklist: index.html names them so).
cmake_minimum_required(VERSION 3.25)

# The content type of a name, by its suffix; a licence has none.
function(type_of name out)
  if(name MATCHES "\\.html$")
    set(type "text/html; charset=utf-8")
  elseif(name MATCHES "\\.js$")
    set(type "text/javascript; charset=utf-8")
  elseif(name MATCHES "\\.css$")
    set(type "text/css; charset=utf-8")
  elseif(name MATCHES "\\.svg$")
    set(type "image/svg+xml")
  else()
    set(type "text/plain; charset=utf-8")
  endif()
  set(${out} "${type}" PARENT_SCOPE)
endfunction()

set(arrays "")
set(files "")
set(routes "")
set(number 0)
foreach(name IN LISTS NAMES)
  file(READ ${ROOT}/${name} bytes HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(REGEX REPLACE "(................................................................................)" "\\1\n"
    bytes "${bytes}")
  file(SHA256 ${ROOT}/${name} digest)
  string(SUBSTRING ${digest} 0 16 tag)
  type_of(${name} type)
  if(name STREQUAL "index.html")
    set(path "/")
  else()
    set(path "/page/${name}")
  endif()
  string(APPEND arrays "static const unsigned char file_${number}[] = {\n${bytes}};\n\n")
  string(APPEND files "    {\"${path}\", \"${type}\", \"\\\"${tag}\\\"\", file_${number}, sizeof file_${number}},\n")
  string(APPEND routes "    {\"GET\", \"${path}\", sheaf__serve_page, SHEAF__ROUTE_OPEN | SHEAF__ROUTE_INLINE},\n")
  math(EXPR number "${number} + 1")
endforeach()

file(WRITE ${OUTPUT} "/* Made by cmake/embed.cmake. */
#include \"server/page.h\"

${arrays}const sheaf__page_file sheaf__page_files[] = {
${files}};

const sheaf__http_route sheaf__page_routes[] = {
${routes}};

const uint32_t sheaf__n_page_routes = ${number};
")
