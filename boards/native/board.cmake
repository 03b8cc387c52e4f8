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

# Kernels that need what not every x86-64 has: chosen at run time, so built whatever the machine at hand is.
if(KERNELS STREQUAL "x86")
  set(X86 ${CMAKE_CURRENT_SOURCE_DIR}/runners/int8/x86)
  set(AVX512 -mavx512f -mavx512bw -mavx512vl -mavx512vnni)
  set_source_files_properties(${X86}/pack_avx512.c ${X86}/product_vnni.c ${X86}/depthwise_vnni.c ${X86}/add_avx512.c
    ${X86}/pool_mean_avx512.c
    PROPERTIES COMPILE_OPTIONS "${AVX512}")
  set_source_files_properties(${X86}/product_avx2.c PROPERTIES COMPILE_OPTIONS "-mavx2")
  set_source_files_properties(${X86}/product_amx.c PROPERTIES COMPILE_OPTIONS "${AVX512};-mamx-tile;-mamx-int8")
endif()

add_compile_definitions(ZO_LAYOUTS=1) # the tests of the library walk through layouts
find_package(Threads REQUIRED)
add_executable(zo_board ${APP_SOURCES} ${BOARD_DIR}/port.c)
target_link_libraries(zo_board PRIVATE Threads::Threads)
add_library(zo_app SHARED EXCLUDE_FROM_ALL ${APP_SOURCES} ${BOARD_DIR}/port.c)
target_link_libraries(zo_app PRIVATE Threads::Threads)
if(KERNELS STREQUAL "x86")
  add_executable(zo_peak EXCLUDE_FROM_ALL ${BOARD_DIR}/peak.c)
endif()
