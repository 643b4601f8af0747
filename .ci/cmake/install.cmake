# What `cmake --install` puts in place: the library, the public headers under include/tapir, TapirConfig.cmake for
# find_package(Tapir), tapir.pc for pkg-config, and the script for gdb.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(BUILD_SHARED_LIBS)  # which brings its own dependencies
    set(TAPIR_FIND_DEPENDENCIES "")
    set(TAPIR_PC_REQUIRES "")
    set(TAPIR_PC_LIBS "")
endif()

# Public is every header outside ops/cpu, ops/kernels, a detail folder, *_impl.h and *_internal.h. The tests use this list too.
file(GLOB_RECURSE TAPIR_PUBLIC_HEADERS CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} core/*.h autograd/*.h ops/*.h
     ops/*.def nn/*.h optim/*.h)
list(FILTER TAPIR_PUBLIC_HEADERS EXCLUDE REGEX "^ops/(cpu|kernels)/|/detail/|_impl\\.h$|_internal\\.h$")
if(EXISTS ${PROJECT_SOURCE_DIR}/tapir.h)
    list(APPEND TAPIR_PUBLIC_HEADERS tapir.h runtime.h)
endif()
foreach(header ${TAPIR_PUBLIC_HEADERS})
    cmake_path(GET header PARENT_PATH folder)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapir/${folder})
endforeach()

install(FILES core/gdb/tapir_gdb.py DESTINATION ${CMAKE_INSTALL_DATADIR}/tapir)  # also in the library: for `source` in ~/.gdbinit

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Tapir)
install(TARGETS tapir EXPORT TapirTargets)
if(TARGET tapir_runtime)
    install(TARGETS tapir_runtime EXPORT TapirTargets)
endif()
install(EXPORT TapirTargets NAMESPACE Tapir:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/TapirConfig.cmake.in TapirConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(TapirConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/TapirConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/TapirConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindDNNL.cmake ${CMAKE_CURRENT_LIST_DIR}/FindLinalgLAPACK.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindCUDNN.cmake
        DESTINATION ${package_dir})

file(RELATIVE_PATH TAPIR_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_CURRENT_LIST_DIR}/tapir.pc.in tapir.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tapir.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
