# The runner that is upstream TFLM: the only C++ of the app. TFLM itself is the user's (docs/tflm.md).
enable_language(CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -DNDEBUG")

# A checkout in which TFLM's Makefile ran, or the tree that its create_tflm_tree.py makes.
file(GLOB found ${TFLM_ROOT}/libtensorflow-microlite.a ${TFLM_ROOT}/lib/libtensorflow-microlite.a
  ${TFLM_ROOT}/gen/*/lib/libtensorflow-microlite.a)
list(LENGTH found count)
if(count GREATER 1)
  message(FATAL_ERROR "TFLM_ROOT has ${count} builds of TFLM: choose one with -DTFLM_LIBRARY=FILE.")
endif()
set(TFLM_LIBRARY "${found}" CACHE FILEPATH "libtensorflow-microlite.a")
set(third_party ${TFLM_ROOT}/third_party ${TFLM_ROOT}/tensorflow/lite/micro/tools/make/downloads)
find_path(TFLM_FLATBUFFERS flatbuffers/flatbuffers.h PATHS ${third_party} PATH_SUFFIXES flatbuffers/include
  NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
find_path(TFLM_GEMMLOWP fixedpoint/fixedpoint.h PATHS ${third_party} PATH_SUFFIXES gemmlowp
  NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH)
foreach(needed ${TFLM_ROOT}/tensorflow/lite/micro/micro_interpreter.h ${TFLM_FLATBUFFERS} ${TFLM_GEMMLOWP}
    ${TFLM_LIBRARY})
  if(NOT EXISTS ${needed})
    set(missing ${needed})
  endif()
endforeach()
if(missing OR NOT TFLM_LIBRARY)
  message(FATAL_ERROR "TFLM_ROOT (${TFLM_ROOT}) lacks TFLM's headers or its library: docs/tflm.md says how to get them.")
endif()

# Safe for every build of TFLM; OFF saves preparing anew for each probe where no kernel keeps anything of the weights.
option(TFLM_CACHES_WEIGHTS "kernels derive something from the weights when they prepare" ON)
set(RUNNER_SOURCES ${CMAKE_CURRENT_LIST_DIR}/runner.cc)
set_source_files_properties(${RUNNER_SOURCES} PROPERTIES
  COMPILE_DEFINITIONS "TF_LITE_STATIC_MEMORY;TFLM_CACHES_WEIGHTS=$<BOOL:${TFLM_CACHES_WEIGHTS}>"
  COMPILE_OPTIONS "-fno-exceptions;-fno-rtti;-fno-threadsafe-statics")
include_directories(SYSTEM ${TFLM_ROOT} ${TFLM_FLATBUFFERS} ${TFLM_GEMMLOWP})
link_libraries(${TFLM_LIBRARY})
