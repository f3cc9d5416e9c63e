# What `cmake --install` puts where: library, headers, command, man page, completion, and the files
# by which pkg-config and CMake find them.

set(documents ${CMAKE_BINARY_DIR}/documents)
file(MAKE_DIRECTORY ${documents})
add_custom_command(
  OUTPUT ${documents}/mgwfbp.1 ${documents}/mgwfbp
  COMMAND mgwfbp_cli --man > ${documents}/mgwfbp.1
  COMMAND mgwfbp_cli --bash-completion > ${documents}/mgwfbp
  DEPENDS mgwfbp_cli VERBATIM)
add_custom_target(documents ALL DEPENDS ${documents}/mgwfbp.1 ${documents}/mgwfbp)

# The command finds its library beside it, wherever both are moved to.
file(RELATIVE_PATH to_library "/prefix/${CMAKE_INSTALL_BINDIR}" "/prefix/${CMAKE_INSTALL_LIBDIR}")
set_target_properties(mgwfbp_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${to_library}")

install(TARGETS mgwfbp EXPORT mgwfbpTargets)
install(TARGETS mgwfbp_cli)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/mgwfbp TYPE INCLUDE)
install(FILES ${documents}/mgwfbp.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${documents}/mgwfbp DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)

# What a static libmgwfbp is linked with.
set(static_mpi OFF)
set(private_libraries "-lm -lpthread")
if(CMAKE_DL_LIBS)
  string(APPEND private_libraries " -l${CMAKE_DL_LIBS}")
endif()
if(MPI_C_FOUND)
  set(static_mpi ON)
  string(REPLACE ";" " " mpi_libraries "${MPI_C_LIBRARIES}")
  string(APPEND private_libraries " ${mpi_libraries}")
endif()

file(RELATIVE_PATH up "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
set(relative_prefix "\${pcfiledir}/${up}")
# Programs with the shared library need no jansson of their own: pkg-config would ask for its headers' package.
set(private_requires "")
if(NOT BUILD_SHARED_LIBS)
  set(private_requires "Requires.private: jansson")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/mgwfbp.pc.in ${CMAKE_BINARY_DIR}/mgwfbp.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/mgwfbp.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/mgwfbp)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/mgwfbpConfig.cmake.in
  ${CMAKE_BINARY_DIR}/mgwfbpConfig.cmake INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/mgwfbpConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(EXPORT mgwfbpTargets NAMESPACE mgwfbp:: DESTINATION ${package})
install(FILES ${CMAKE_BINARY_DIR}/mgwfbpConfig.cmake ${CMAKE_BINARY_DIR}/mgwfbpConfigVersion.cmake
  DESTINATION ${package})
