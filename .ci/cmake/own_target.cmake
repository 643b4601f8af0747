# Settings for Tapir's own targets. They are private: nothing of them reaches a user of the library.

# For every target of the project: warnings, and true source paths in messages and debug information.
function(tapir_own_target target)
    target_compile_options(${target} PRIVATE
        "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wconversion;-Wshadow;$<$<BOOL:${TAPIR_WERROR}>:-Werror>;\
$<$<NOT:$<BOOL:${TAPIR_OPENMP}>>:-Wno-unknown-pragmas>;\
-ffile-prefix-map=${PROJECT_BINARY_DIR}/include/tapir=${PROJECT_SOURCE_DIR}>"
        "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall;$<$<BOOL:${TAPIR_WERROR}>:-Werror=all-warnings;-Xcompiler=-Werror>>")
endfunction()

# For code whose own speed does not matter, after tapir_own_target: half to a third of the compile time. (With -O2, full
# debug information costs as much again as the rest; at -O1, so do the sanitizers.)
function(tapir_compile_fast target)
    target_compile_options(${target} PRIVATE $<IF:$<CONFIG:Debug>,-O0,-O1>)
    if(TAPIR_SANITIZE OR NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
        target_compile_options(${target} PRIVATE -g1)
    endif()
endfunction()

# Headers that are compiled once for all files of a target, which takes 1 to 2 seconds off each. Only in the folders of the sanitizers: what others
# compile is the same in several of them, and ccache would no longer see that it is.
function(tapir_precompile target)
    if(TAPIR_SANITIZE)
        target_precompile_headers(${target} PRIVATE <algorithm> <functional> <memory> <string> <unordered_map> <vector> ${ARGN})
    endif()
endfunction()

# For the library and its kernels.
function(tapir_library_settings target)
    tapir_own_target(${target})
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr>")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_link_libraries(${target} PRIVATE ${TAPIR_PRIVATE_LIBS})
    target_include_directories(${target} PRIVATE ${PROJECT_BINARY_DIR}/include_gen)
    target_compile_definitions(${target} PRIVATE $<$<BOOL:${DNNL_FOUND}>:TAPIR_HAVE_ONEDNN=1>)
endfunction()
