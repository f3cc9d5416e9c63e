# oneDNN 2.6 or later of version 2 (version 3 has another interface): the target OneDNN2::OneDNN2.
# Its own CMake package insists on OpenCL's development files, which nothing here needs.
find_path(OneDNN2_INCLUDE_DIR oneapi/dnnl/dnnl.h)
find_library(OneDNN2_LIBRARY dnnl)
mark_as_advanced(OneDNN2_INCLUDE_DIR OneDNN2_LIBRARY)
if(OneDNN2_INCLUDE_DIR)
  file(STRINGS ${OneDNN2_INCLUDE_DIR}/oneapi/dnnl/dnnl_version.h lines REGEX "define DNNL_VERSION_M[AI]")
  string(REGEX MATCH "MAJOR ([0-9]+)" found "${lines}")
  set(OneDNN2_VERSION ${CMAKE_MATCH_1})
  string(REGEX MATCH "MINOR ([0-9]+)" found "${lines}")
  string(APPEND OneDNN2_VERSION ".${CMAKE_MATCH_1}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OneDNN2 REQUIRED_VARS OneDNN2_LIBRARY OneDNN2_INCLUDE_DIR
  VERSION_VAR OneDNN2_VERSION HANDLE_VERSION_RANGE)
if(OneDNN2_FOUND AND NOT TARGET OneDNN2::OneDNN2)
  add_library(OneDNN2::OneDNN2 UNKNOWN IMPORTED)
  set_target_properties(OneDNN2::OneDNN2 PROPERTIES IMPORTED_LOCATION ${OneDNN2_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${OneDNN2_INCLUDE_DIR})
endif()
