# The CUDA device: decides whether it is built, and how. Sets TAPIR_WITH_CUDA and TAPIR_CUDA_SOURCES, and adds to
# TAPIR_PRIVATE_LIBS and to what a user of the static library must link (see dependencies.cmake).
#
# AUTO takes it where there are both nvcc and a GPU, so that a build elsewhere stays quick. EMULATED compiles the same
# sources as C++ against tests/cuda_emulator, where kernels run on CPU threads: for tests on machines without a GPU.
find_program(TAPIR_NVCC nvcc HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
mark_as_advanced(TAPIR_NVCC)
set(TAPIR_WITH_CUDA OFF)
if(TAPIR_CUDA STREQUAL "ON" OR TAPIR_CUDA STREQUAL "EMULATED")
    set(TAPIR_WITH_CUDA ON)
elseif(TAPIR_CUDA STREQUAL "AUTO" AND TAPIR_NVCC AND EXISTS /dev/nvidia0)
    set(TAPIR_WITH_CUDA ON)
endif()
if(NOT TAPIR_WITH_CUDA)
    return()
endif()

# NVRTC compiles kernels while a program runs (cuda/fused.cpp), from headers that the library carries as text.
macro(tapir_use_nvrtc)
    set_property(SOURCE ${PROJECT_SOURCE_DIR}/cuda/fused.cpp PROPERTY COMPILE_DEFINITIONS
                 TAPIR_HAVE_NVRTC=1 TAPIR_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    set(headers cuda/fused.cuh cuda/positions.cuh cuda/unroll.cuh cuda/scalar.cuh cuda/elementwise_functions.cuh
                ops/kernels/scalar_functions.h ops/elementwise/elementwise.def)
    list(TRANSFORM headers PREPEND ${PROJECT_SOURCE_DIR}/)
    set_property(SOURCE ${PROJECT_SOURCE_DIR}/cuda/fused.cpp PROPERTY OBJECT_DEPENDS ${headers})
endmacro()

file(GLOB TAPIR_CUDA_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/cuda/*.cpp ${PROJECT_SOURCE_DIR}/cuda/*.cu)
if(TAPIR_CUDA STREQUAL "EMULATED")
    file(GLOB emulator CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/cuda_emulator/*.cpp)
    if(LinalgLAPACK_FOUND AND NOT TAPIR_CUSOLVER STREQUAL "OFF")
        set_source_files_properties(${PROJECT_SOURCE_DIR}/cuda/linalg.cpp PROPERTIES COMPILE_DEFINITIONS TAPIR_HAVE_CUSOLVER=1)
    elseif(TAPIR_CUSOLVER STREQUAL "ON")
        message(FATAL_ERROR "TAPIR_CUSOLVER=ON, but the emulator's cuSOLVER needs LAPACK, which was not found")
    else()
        list(FILTER emulator EXCLUDE REGEX "/cusolver.cpp$")
    endif()
    list(APPEND TAPIR_CUDA_SOURCES ${emulator})
    set_property(SOURCE ${PROJECT_SOURCE_DIR}/tests/cuda_emulator/nvrtc.cpp PROPERTY COMPILE_DEFINITIONS
                 TAPIR_EMULATOR_COMPILER="${CMAKE_CXX_COMPILER}" TAPIR_EMULATOR_DIR="${PROJECT_SOURCE_DIR}/tests/cuda_emulator")
    tapir_use_nvrtc()
    set_source_files_properties(${TAPIR_CUDA_SOURCES} PROPERTIES LANGUAGE CXX
                                INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/tests/cuda_emulator
                                COMPILE_OPTIONS -Wno-maybe-uninitialized)  # g++ does not see through loops of packs
    return()
endif()

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND TAPIR_NVCC)
    set(CMAKE_CUDA_COMPILER ${TAPIR_NVCC})
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
find_package(CUDNN 9 QUIET)
if(NOT CUDNN_FOUND)
    message(FATAL_ERROR "The CUDA device needs cuDNN 9 for convolutions, and cudnn.h or libcudnn was not found. Install it, or give "
                        "its folder: -D CUDNN_ROOT=DIR with DIR/include/cudnn.h and DIR/lib/libcudnn.so.9 (a Python "
                        "environment has it as nvidia/cudnn). -D TAPIR_CUDA=OFF builds without the device.")
endif()
list(APPEND TAPIR_PRIVATE_LIBS CUDA::cudart_static CUDA::cublasLt CUDNN::cudnn)
string(APPEND TAPIR_FIND_DEPENDENCIES "find_dependency(CUDAToolkit)\nfind_dependency(CUDNN 9)\n")
string(APPEND TAPIR_PC_LIBS " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lcublasLt ${CUDNN_LIBRARY} -ldl -lrt")
if(NOT TAPIR_CUSOLVER STREQUAL "OFF")  # cuSOLVER, and cuBLAS beside it
    find_path(TAPIR_CUSOLVER_INCLUDE_DIR cusolverDn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} NO_DEFAULT_PATH)
    mark_as_advanced(TAPIR_CUSOLVER_INCLUDE_DIR)
    if(TARGET CUDA::cusolver AND TARGET CUDA::cublas AND TAPIR_CUSOLVER_INCLUDE_DIR)
        set_source_files_properties(${PROJECT_SOURCE_DIR}/cuda/linalg.cpp PROPERTIES COMPILE_DEFINITIONS TAPIR_HAVE_CUSOLVER=1)
        list(APPEND TAPIR_PRIVATE_LIBS CUDA::cusolver CUDA::cublas)
        string(APPEND TAPIR_PC_LIBS " -lcusolver -lcublas")
    elseif(TAPIR_CUSOLVER STREQUAL "ON")
        message(FATAL_ERROR "TAPIR_CUSOLVER=ON, but cusolverDn.h, libcusolver or libcublas was not found in the CUDA toolkit")
    endif()
endif()
if(NOT TAPIR_NVRTC STREQUAL "OFF")
    if(TARGET CUDA::nvrtc AND CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.8)  # of which cudaLibraryLoadData is
        tapir_use_nvrtc()
        list(APPEND TAPIR_PRIVATE_LIBS CUDA::nvrtc)
        string(APPEND TAPIR_PC_LIBS " -lnvrtc")
    elseif(TAPIR_NVRTC STREQUAL "ON")
        message(FATAL_ERROR "TAPIR_NVRTC=ON, but libnvrtc of CUDA 12.8 or newer was not found")
    endif()
endif()
