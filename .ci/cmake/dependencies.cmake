# Finds what the library links to: fmt, threads; OpenMP, oneDNN, zlib and LAPACK (all four optional); nlohmann-json (headers only);
# for Tapir::onnx ONNX's protobuf messages.
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

# A package that a build may lack: the option is OFF, ON (then its lack is an error) or AUTO. A macro, so that the caller has
# PACKAGE_FOUND.
macro(tapir_optional option package target pc_libs what)
    if(NOT ${option} STREQUAL "OFF")
        find_package(${package} QUIET)
        if(${package}_FOUND)
            list(APPEND TAPIR_PRIVATE_LIBS ${target})
            string(APPEND TAPIR_FIND_DEPENDENCIES "find_dependency(${package})\n")
            string(APPEND TAPIR_PC_LIBS " ${pc_libs}")
        elseif(${option} STREQUAL "ON")
            message(FATAL_ERROR "${option}=ON, but ${what} was not found")
        endif()
    endif()
endmacro()
tapir_optional(TAPIR_ONEDNN DNNL DNNL::dnnl "-ldnnl" "dnnl.hpp or libdnnl")
tapir_optional(TAPIR_ZLIB ZLIB ZLIB::ZLIB "-lz" "zlib.h or libz")
tapir_optional(TAPIR_LAPACK LinalgLAPACK LinalgLAPACK::lapack "-Wl,--push-state,--as-needed,-llapack,-lblas,--pop-state"
               "liblapack or libblas")

# Of Tapir::onnx alone.
set(TAPIR_WITH_ONNX OFF)
if(NOT TAPIR_ONNX STREQUAL "OFF" AND NOT TAPIR_PREBUILT_OBJECTS)
    find_package(OnnxProto QUIET)
    if(OnnxProto_FOUND)
        set(TAPIR_WITH_ONNX ON)
    elseif(TAPIR_ONNX STREQUAL "ON")
        message(FATAL_ERROR "TAPIR_ONNX=ON, but onnx/onnx_pb.h, libonnx_proto or libprotobuf was not found")
    endif()
endif()
