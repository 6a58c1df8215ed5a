# Each library earns its place in docs/dependencies.md.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
pkg_check_modules(FYAML REQUIRED IMPORTED_TARGET libfyaml)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(ZIP REQUIRED IMPORTED_TARGET libzip)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
find_library(DNNL_LIBRARY dnnl REQUIRED)

add_library(ms_dependencies INTERFACE)
target_link_libraries(ms_dependencies INTERFACE PkgConfig::FYAML PkgConfig::JANSSON
    PkgConfig::PCRE2 PkgConfig::XXHASH PkgConfig::ZIP PkgConfig::UTF8PROC ${DNNL_LIBRARY}
    OpenMP::OpenMP_C Threads::Threads m)
