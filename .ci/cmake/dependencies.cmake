# Finds what the library links to: fmt, threads, OpenMP and oneDNN (both optional), and nlohmann-json (headers only).
# Sets TAPIR_PRIVATE_LIBS, and what a user of the static library must find or link in turn: TAPIR_FIND_DEPENDENCIES for
# TapirConfig.cmake, TAPIR_PC_REQUIRES and TAPIR_PC_LIBS for tapir.pc. A missing package: see .ci/install-deps.
find_package(fmt REQUIRED)
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
set(TAPIR_PRIVATE_LIBS fmt::fmt Threads::Threads $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
set(TAPIR_FIND_DEPENDENCIES "find_dependency(fmt)\nfind_dependency(Threads)\n")
set(TAPIR_PC_REQUIRES fmt)
set(TAPIR_PC_LIBS -pthread)

if(TAPIR_OPENMP)
    find_package(OpenMP REQUIRED COMPONENTS CXX)
    list(APPEND TAPIR_PRIVATE_LIBS OpenMP::OpenMP_CXX)
    string(APPEND TAPIR_FIND_DEPENDENCIES "find_dependency(OpenMP COMPONENTS CXX)\n")
    string(APPEND TAPIR_PC_LIBS " ${OpenMP_CXX_FLAGS}")
endif()

if(NOT TAPIR_ONEDNN STREQUAL "OFF")
    find_package(DNNL QUIET)
    if(DNNL_FOUND)
        list(APPEND TAPIR_PRIVATE_LIBS DNNL::dnnl)
        string(APPEND TAPIR_FIND_DEPENDENCIES "find_dependency(DNNL)\n")
        string(APPEND TAPIR_PC_LIBS " -ldnnl")
    elseif(TAPIR_ONEDNN STREQUAL "ON")
        message(FATAL_ERROR "TAPIR_ONEDNN=ON, but dnnl.hpp or libdnnl was not found")
    endif()
endif()
