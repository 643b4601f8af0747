# Finds LAPACK and BLAS by their libraries: LinalgLAPACK::lapack, which links them only where something calls them. (CMake's own module
# looks for Fortran and for one vendor.) OpenBLAS, which Debian's liblapack.so.3 may be, makes its threads when it is loaded.
find_library(LINALG_LAPACK_LIBRARY lapack)
find_library(LINALG_BLAS_LIBRARY blas)
mark_as_advanced(LINALG_LAPACK_LIBRARY LINALG_BLAS_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LinalgLAPACK REQUIRED_VARS LINALG_LAPACK_LIBRARY LINALG_BLAS_LIBRARY)
if(LinalgLAPACK_FOUND AND NOT TARGET LinalgLAPACK::lapack)
    add_library(LinalgLAPACK::lapack INTERFACE IMPORTED)
    set_target_properties(LinalgLAPACK::lapack PROPERTIES INTERFACE_LINK_LIBRARIES
        "-Wl,--push-state,--as-needed,${LINALG_LAPACK_LIBRARY},${LINALG_BLAS_LIBRARY},--pop-state")
endif()
