# Finds NCCL 2.13 or newer by its header and library: NCCL::nccl. It may lie in the CUDA toolkit, in the system's folders, or in NCCL_ROOT: a folder with
# include/ and lib/, such as a Python environment's nvidia/nccl, whose library has no name without a version.
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT}/lib)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

set(NCCL_VERSION "")
if(EXISTS "${NCCL_INCLUDE_DIR}/nccl.h")
    file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
    string(REGEX REPLACE "[^0-9;]" "" NCCL_VERSION "${lines}")
    string(REPLACE ";" "." NCCL_VERSION "${NCCL_VERSION}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
if(NCCL_FOUND AND NCCL_VERSION VERSION_LESS 2.13)  # of which ncclGetLastError is
    set(NCCL_FOUND FALSE)
endif()
if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
    add_library(NCCL::nccl UNKNOWN IMPORTED)
    set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
