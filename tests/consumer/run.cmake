# Installs Tapir as a static or a shared library (KIND), moves the installation, and builds and runs the consumer against
# it: by find_package, then by pkg-config. The library is linked from the objects of the build that runs the test.
function(run)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(NOT result EQUAL 0)
        list(JOIN ARGN " " command)
        message(FATAL_ERROR "${command}\n${output}")
    endif()
    set(output "${output}" PARENT_SCOPE)
endfunction()

set(shared_static OFF)
set(shared_shared ON)
file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} -G Ninja -S ${TAPIR_SOURCE} -B ${WORK}/tapir -D CMAKE_CXX_COMPILER=${CXX}
    -D BUILD_SHARED_LIBS=${shared_${KIND}} -D TAPIR_PREBUILT_OBJECTS=${TAPIR_BUILD}/objects.txt
    -D TAPIR_CUDA=${CUDA} -D TAPIR_TESTS=OFF -D TAPIR_BENCH=OFF -D TAPIR_EXAMPLES=OFF)
run(${CMAKE_COMMAND} --build ${WORK}/tapir --parallel 1)
run(${CMAKE_COMMAND} --install ${WORK}/tapir --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/prefix)

run(${CMAKE_COMMAND} -G Ninja -S ${TAPIR_SOURCE}/tests/consumer -B ${WORK}/consumer -D CMAKE_CXX_COMPILER=${CXX}
    -D CMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/consumer --parallel 1)
run(${WORK}/consumer/consumer)
message("find_package, ${KIND}: ${output}")

file(GLOB_RECURSE pc ${WORK}/prefix/*/tapir.pc)
cmake_path(GET pc PARENT_PATH pc_dir)
cmake_path(GET pc_dir PARENT_PATH lib_dir)
set(ENV{PKG_CONFIG_PATH} ${pc_dir})
run(pkg-config --cflags tapir)
if(NOT output MATCHES "^-I[^ ]+ *\n$")
    message(FATAL_ERROR "tapir.pc gives its users more than an include directory: ${output}")
endif()
run(pkg-config --cflags --libs tapir)
separate_arguments(flags UNIX_COMMAND "${output}")
set(source ${TAPIR_SOURCE}/tests/consumer)
run(${CXX} -std=c++20 ${source}/main.cpp ${source}/other.cpp -o ${WORK}/by_pkg_config ${flags})
set(ENV{LD_LIBRARY_PATH} ${lib_dir}:$ENV{LD_LIBRARY_PATH})
run(${WORK}/by_pkg_config)
message("pkg-config, ${KIND}: ${output}")
