# What is installed: the command (CMakeLists.txt), libmindspeed as a shared and a static library, the public
# headers, mindspeed.pc and a CMake package. Other libraries are private: a consumer of the shared library
# needs none of their headers. Tests at the end install into a folder of the build and use the result.
if(NOT MS_ROOMS STREQUAL "all")
    return()
endif()
include(CMakePackageConfigHelpers)

add_library(mindspeed_shared SHARED $<TARGET_OBJECTS:ms_objects>)
set_target_properties(mindspeed_shared PROPERTIES
    OUTPUT_NAME mindspeed
    EXPORT_NAME mindspeed
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/mindspeed.map)
target_include_directories(mindspeed_shared INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(mindspeed_shared PRIVATE ms_dependencies ms_sanitizers)
target_link_options(mindspeed_shared PRIVATE
    "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/mindspeed.map")
if(NOT MS_SAN)
    target_link_options(mindspeed_shared PRIVATE "LINKER:--no-undefined")
endif()

install(TARGETS mindspeed_shared EXPORT mindspeed_targets)
install(FILES $<TARGET_FILE:mindspeed_static> DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/mindspeed DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mindspeed)
install(EXPORT mindspeed_targets NAMESPACE mindspeed:: FILE mindspeed-targets.cmake
    DESTINATION ${package_dir})
configure_package_config_file(cmake/mindspeed-config.cmake.in mindspeed-config.cmake
    INSTALL_DESTINATION ${package_dir})
# Until 1.0 a minor version may change the interface.
write_basic_package_version_file(mindspeed-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/mindspeed-config.cmake
    ${CMAKE_CURRENT_BINARY_DIR}/mindspeed-config-version.cmake DESTINATION ${package_dir})

# Paths in it are relative to the file, so that an installed tree can be moved (and PREFIX be given late).
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH pc_to_prefix /prefix/${pc_dir} /prefix)
string(REGEX REPLACE "/$" "" pc_to_prefix "${pc_to_prefix}")
configure_file(cmake/mindspeed.pc.in mindspeed.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/mindspeed.pc DESTINATION ${pc_dir})

if(NOT MS_SAN)
    add_test(NAME installed_library COMMAND ${PROJECT_SOURCE_DIR}/tests/install/run
        ${CMAKE_BINARY_DIR} ${PROJECT_SOURCE_DIR})
    set_tests_properties(installed_library PROPERTIES LABELS "cli" TIMEOUT 180)
endif()
add_test(NAME reference_pages COMMAND ${PROJECT_SOURCE_DIR}/tools/check-docs
    $<TARGET_FILE:mindspeed> ${PROJECT_SOURCE_DIR})
set_tests_properties(reference_pages PROPERTIES LABELS "unit;cli" TIMEOUT 60)
