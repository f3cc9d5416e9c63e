# Built-in data: every file of data/ is put into the library as it is, under its name.

file(GLOB builtin_traces CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/data/traces/*.json)
file(GLOB builtin_clusters CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/data/clusters/*.json)
set(builtin_files ${builtin_traces} ${builtin_clusters})

# Sizes are written down when CMake runs, so it runs again when the data changes.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${builtin_files})

set(blobs "")
set(declarations "")
set(rows "")
set(number 0)
foreach(path ${builtin_files})
  get_filename_component(name ${path} NAME_WE)
  set(kind MGW_DATA_TRACE)
  if(path IN_LIST builtin_clusters)
    set(kind MGW_DATA_CLUSTER)
  endif()
  set(symbol mgw_builtin_${number})
  file(SIZE ${path} size)
  string(APPEND blobs ".globl ${symbol}\n.hidden ${symbol}\n${symbol}: .incbin \"${path}\"\n.byte 0\n")
  string(APPEND declarations "extern const char ${symbol}[];\n")
  string(APPEND rows "        {\"${name}\", ${kind}, ${symbol}, ${size}},\n")
  math(EXPR number "${number} + 1")
endforeach()

set(builtin_sources ${CMAKE_CURRENT_BINARY_DIR}/generated/builtin.S
                    ${CMAKE_CURRENT_BINARY_DIR}/generated/builtin.c)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/builtin.S CONTENT
"/* The files of data/, byte by byte. */
.section .rodata
@blobs@.section .note.GNU-stack,\"\",%progbits
" @ONLY)
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/generated/builtin.c CONTENT
"/* The list of what is built in. */
#include <mgwfbp/data.h>

#pragma GCC visibility push(hidden)
@declarations@#pragma GCC visibility pop

const mgw_builtin *mgw_builtin_list(size_t *count)
{
    static const mgw_builtin list[] = {
@rows@    };
    *count = sizeof list / sizeof *list;
    return list;
}
" @ONLY)
set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/generated/builtin.S PROPERTIES OBJECT_DEPENDS
  "${builtin_files}")
