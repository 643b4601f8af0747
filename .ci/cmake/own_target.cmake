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

# Headers that are compiled once for all files of a target, which takes 1 to 2 seconds off each. Not for what several build folders compile alike:
# ccache would no longer see that it is the same.
function(tapir_precompile target)
    target_precompile_headers(${target} PRIVATE <algorithm> <functional> <memory> <string> <unordered_map> <vector> ${ARGN})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-fpch-preprocess>)  # what ccache needs of them
endfunction()

# Compiles the sources of a folder together, up to eight as one, which takes two thirds of the time: headers cost much of it. So names that
# are a file's own must be others in the files beside it. Sources with options of their own are compiled alone.
function(tapir_unity target)
    if(NOT TAPIR_UNITY)
        return()
    endif()
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources INCLUDE REGEX "\\.cpp$")
    set(folders "")
    foreach(source ${sources})
        cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE path)
        file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${path})
        cmake_path(GET path PARENT_PATH folder)
        if(folder STREQUAL "cuda")  # few files, of which each wraps another library
            continue()
        endif()
        string(REPLACE "/" "_" folder "${folder}")
        list(APPEND folders ${folder})
        list(APPEND in_${folder} ${source})
    endforeach()
    list(REMOVE_DUPLICATES folders)
    foreach(folder ${folders})
        list(LENGTH in_${folder} count)
        math(EXPR groups "(${count} + 7) / 8")
        set(at 0)
        foreach(source ${in_${folder}})
            math(EXPR group "${at} * ${groups} / ${count}")
            set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${group})
            math(EXPR at "${at} + 1")
        endforeach()
    endforeach()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    # A class with members of a file's own types is no fault where that file is the only one that has it.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
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
