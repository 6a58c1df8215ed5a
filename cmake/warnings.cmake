# Warnings and sanitizers, as two interface targets.
add_library(ms_warnings INTERFACE)
target_compile_options(ms_warnings INTERFACE -Wall -Wextra -Wshadow -Wconversion
    -Wstrict-prototypes -Wvla -Wno-unknown-warning-option)
if(MS_WERROR)
    target_compile_options(ms_warnings INTERFACE -Werror)
endif()
if(MS_DEBUG OR MS_SAN)
    target_compile_definitions(ms_warnings INTERFACE MS_DEBUG=1)
endif()

add_library(ms_sanitizers INTERFACE)
if(MS_SAN)
    target_compile_options(ms_sanitizers INTERFACE -fsanitize=${MS_SAN} -fno-omit-frame-pointer -g
        -fno-sanitize-recover=all)
    target_link_options(ms_sanitizers INTERFACE -fsanitize=${MS_SAN})
endif()
