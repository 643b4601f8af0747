# What `cmake --install` puts in place: the libraries that are built, the public headers under include/tapir, TapirConfig.cmake for
# find_package(Tapir), tapir.pc, tapir_runtime.pc, tapir_onnx.pc and tapir_parallel.pc for pkg-config, and the script for gdb.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(BUILD_SHARED_LIBS)  # which brings its own dependencies
    set(TAPIR_FIND_DEPENDENCIES "")
    set(TAPIR_PC_REQUIRES "")
    set(TAPIR_PC_LIBS "")
    set(TAPIR_FIND_ONNX "set(OnnxProto_FOUND TRUE)")
    set(TAPIR_ONNX_PC_LIBS "")
    set(TAPIR_FIND_PARALLEL "")
    set(TAPIR_PARALLEL_PC_LIBS "")
else()
    set(TAPIR_FIND_ONNX "find_package(OnnxProto QUIET)")
    set(TAPIR_ONNX_PC_LIBS "-lonnx_proto -lprotobuf")
endif()

# Public is every header outside ops/cpu, ops/kernels, a detail folder, *_impl.h, *_internal.h, *_cpu.h and *_kernels.h. The tests use this list too.
file(GLOB_RECURSE TAPIR_PUBLIC_HEADERS CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} core/*.h autograd/*.h ops/*.h
     ops/*.def nn/*.h optim/*.h)
list(FILTER TAPIR_PUBLIC_HEADERS EXCLUDE REGEX "^ops/(cpu|kernels)/|/detail/|_(impl|internal|cpu|kernels)\\.h$")
if(EXISTS ${PROJECT_SOURCE_DIR}/tapir.h)
    list(APPEND TAPIR_PUBLIC_HEADERS tapir.h graph.h onnx.h debug.h runtime.h)
endif()
foreach(header ${TAPIR_PUBLIC_HEADERS})
    cmake_path(GET header PARENT_PATH folder)
    install(FILES ${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapir/${folder})
endforeach()

install(FILES ${elementwise_rows} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapir/core)

install(FILES core/gdb/tapir_gdb.py DESTINATION ${CMAKE_INSTALL_DATADIR}/tapir)  # also in the library: for `source` in ~/.gdbinit

# Libraries are installed without their debug information, which is 2.6 times as large as they are; functions keep their names.
option(TAPIR_INSTALL_DEBUG "Install the libraries with their debug information, which is line numbers alone in the release preset" OFF)
function(tapir_install_stripped target)
    if(TAPIR_INSTALL_DEBUG OR NOT CMAKE_OBJCOPY)
        return()
    endif()
    set(installed "\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/$<TARGET_FILE_NAME:${target}>")
    install(CODE "execute_process(COMMAND \"${CMAKE_OBJCOPY}\" --strip-debug --keep-section=.debug_gdb_scripts \"${installed}\")")
endfunction()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Tapir)
add_custom_target(tapir_libraries)  # what is installed
add_dependencies(tapir_libraries tapir)
install(TARGETS tapir EXPORT TapirTargets)
tapir_install_stripped(tapir)
install(EXPORT TapirTargets NAMESPACE Tapir:: DESTINATION ${package_dir})
# The others are apart, since a user of one does not need what another is linked to.
if(TARGET tapir_runtime)
    add_dependencies(tapir_libraries tapir_runtime)
    install(TARGETS tapir_runtime EXPORT TapirRuntimeTargets)
    install(EXPORT TapirRuntimeTargets NAMESPACE Tapir:: DESTINATION ${package_dir})
endif()
if(TARGET tapir_onnx)
    add_dependencies(tapir_libraries tapir_onnx)
    install(TARGETS tapir_onnx EXPORT TapirOnnxTargets)
    tapir_install_stripped(tapir_onnx)
    install(EXPORT TapirOnnxTargets NAMESPACE Tapir:: DESTINATION ${package_dir})
endif()
add_dependencies(tapir_libraries tapir_parallel)
install(TARGETS tapir_parallel EXPORT TapirParallelTargets)
tapir_install_stripped(tapir_parallel)
install(EXPORT TapirParallelTargets NAMESPACE Tapir:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/TapirConfig.cmake.in TapirConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(TapirConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/TapirConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/TapirConfigVersion.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindDNNL.cmake ${CMAKE_CURRENT_LIST_DIR}/FindLinalgLAPACK.cmake ${CMAKE_CURRENT_LIST_DIR}/FindBoostContext.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindCUDNN.cmake ${CMAKE_CURRENT_LIST_DIR}/FindNCCL.cmake
              ${CMAKE_CURRENT_LIST_DIR}/FindOnnxProto.cmake
        DESTINATION ${package_dir})

file(RELATIVE_PATH TAPIR_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
foreach(library tapir tapir_runtime tapir_onnx tapir_parallel)
    if(TARGET ${library})
        configure_file(${CMAKE_CURRENT_LIST_DIR}/${library}.pc.in ${library}.pc @ONLY)
        install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${library}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
    endif()
endforeach()
