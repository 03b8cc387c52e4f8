# The native board: a host process, and the same sources as a shared library for the tests.

# The fastest code for the machine at hand: a native board is built where it runs.
include(CheckCCompilerFlag)
foreach(flag -march=native -mcpu=native)
  string(MAKE_C_IDENTIFIER "HAVE${flag}" have)
  check_c_compiler_flag(${flag} ${have})
  if(${have})
    add_compile_options(${flag})
    break()
  endif()
endforeach()

find_package(Threads REQUIRED)
add_executable(zo_board ${APP_SOURCES} ${BOARD_DIR}/port.c)
target_link_libraries(zo_board PRIVATE Threads::Threads)
add_library(zo_app SHARED EXCLUDE_FROM_ALL ${APP_SOURCES} ${BOARD_DIR}/port.c)
target_link_libraries(zo_app PRIVATE Threads::Threads)
