# A .deb, by packaging/build; what it depends on is what its libraries need.
set(CPACK_PACKAGE_NAME mgwfbp)
set(CPACK_PACKAGE_CONTACT "the mgwfbp authors <mgwfbp@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_STRIP_FILES ON)
include(CPack)
