# The CUDA device: decides whether it is built, and how. Sets TAPIR_WITH_CUDA and TAPIR_CUDA_SOURCES, and adds to
# TAPIR_PRIVATE_LIBS and to what a user of the static library must link.
#
# AUTO takes it where there are both nvcc and a GPU, so that a build elsewhere stays quick. EMULATED compiles the same
# sources as C++ against tests/cuda_emulator, where kernels run on CPU threads: for tests on machines without a GPU.
set(TAPIR_WITH_CUDA OFF)
if(TAPIR_CUDA STREQUAL "ON" OR TAPIR_CUDA STREQUAL "EMULATED")
    set(TAPIR_WITH_CUDA ON)
elseif(TAPIR_CUDA STREQUAL "AUTO")
    find_program(TAPIR_NVCC nvcc HINTS ENV CUDA_PATH /usr/local/cuda/bin)
    mark_as_advanced(TAPIR_NVCC)
    if(TAPIR_NVCC AND EXISTS /dev/nvidia0)
        set(TAPIR_WITH_CUDA ON)
    endif()
endif()
if(NOT TAPIR_WITH_CUDA)
    return()
endif()

file(GLOB TAPIR_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*.cpp ${PROJECT_SOURCE_DIR}/cuda/*.cu)
if(TAPIR_CUDA STREQUAL "EMULATED")
    file(GLOB emulator CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/cuda_emulator/*.cpp)
    list(APPEND TAPIR_CUDA_SOURCES ${emulator})
    set_source_files_properties(${TAPIR_CUDA_SOURCES} PROPERTIES LANGUAGE CXX
                                INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/tests/cuda_emulator
                                COMPILE_OPTIONS -Wno-maybe-uninitialized)  # g++ does not see through loops of packs
    return()
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT ENV{CUDACXX} AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    if(EXISTS /dev/nvidia0)
        set(CMAKE_CUDA_ARCHITECTURES native)
    else()
        set(CMAKE_CUDA_ARCHITECTURES 90)  # and its PTX, which newer devices compile for themselves
    endif()
endif()
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
list(APPEND TAPIR_PRIVATE_LIBS CUDA::cudart_static CUDA::cublasLt)
string(APPEND TAPIR_FIND_DEPENDENCIES "find_dependency(CUDAToolkit)\n")
