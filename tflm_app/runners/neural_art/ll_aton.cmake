# ST's runtime LL_ATON and one generated network, without ST's drivers and CMSIS: what the runtime takes of those, the
# board's folder `ll_aton` has. LL_ATON polls: nothing sleeps, and its interrupts are errors.
set(ST_NPU_DIR "" CACHE PATH "ST's runtime of the NPU: the folder that holds ll_aton and Devices")
set(ST_NPU_LIBRARY "" CACHE FILEPATH "ST's NetworkRuntime*_CM55_GCC.a, for networks of which the CPU computes something")
if(NOT EXISTS ${ST_NPU_DIR}/ll_aton/ll_aton_runtime.h)
  message(FATAL_ERROR "ST_NPU_DIR (${ST_NPU_DIR}) lacks ll_aton/ll_aton_runtime.h: give the folder Npu of ST's runtime.")
endif()
if(NOT EXISTS ${BOARD_DIR}/ll_aton)
  message(FATAL_ERROR "The board ${BOARD} has no NPU: BOARD=stm32n6 has.")
endif()
file(GLOB ST_DEVICE ${ST_NPU_DIR}/Devices/STM32N6[Xx][Xx]/ATON.h) # X or x, by its version
if(NOT ST_DEVICE)
  message(FATAL_ERROR "ST_NPU_DIR (${ST_NPU_DIR}) lacks Devices/STM32N6xx/ATON.h: give the whole folder Npu.")
endif()
get_filename_component(ST_DEVICE ${ST_DEVICE} DIRECTORY)

file(GLOB NETWORK_SOURCES CONFIGURE_DEPENDS ${NEURAL_ART_DIR}/*.c)
list(FILTER NETWORK_SOURCES EXCLUDE REGEX "/stai_[^/]*$")
if(NOT NETWORK_SOURCES)
  message(FATAL_ERROR "NEURAL_ART_DIR (${NEURAL_ART_DIR}) has no network.c: give what stedgeai generate wrote.")
endif()
include(${CMAKE_CURRENT_LIST_DIR}/identity.cmake)
neural_art_id(NEURAL_ART_ID ${NETWORK_SOURCES})
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${NETWORK_SOURCES})
add_compile_definitions(NEURAL_ART_ID=${NEURAL_ART_ID})
file(GLOB BLOBS ${NEURAL_ART_DIR}/*_ecblobs.h)
if(BLOBS)
  message(FATAL_ERROR "The network in ${NEURAL_ART_DIR} was compiled with the epoch controller, which bakes biases and "
    "scales into a command stream and cannot be polled: compile it without --enable-epoch-controller.")
endif()

foreach(name ll_aton ll_aton_lib ll_aton_lib_sw_operators ll_aton_runtime ll_aton_util ll_aton_cipher ecloader)
  list(APPEND ST_SOURCES ${ST_NPU_DIR}/ll_aton/${name}.c)
endforeach()
if(ST_NPU_LIBRARY)
  list(APPEND ST_SOURCES ${ST_NPU_DIR}/ll_aton/ll_sw_float.c ${ST_NPU_DIR}/ll_aton/ll_sw_integer.c)
  link_libraries(${ST_NPU_LIBRARY} m)
endif()
set_source_files_properties(${NETWORK_SOURCES} ${ST_SOURCES} PROPERTIES COMPILE_OPTIONS "-w;-Os;-std=gnu11")
list(APPEND RUNNER_SOURCES ${NETWORK_SOURCES} ${ST_SOURCES})
include_directories(BEFORE ${BOARD_DIR}/ll_aton) # before ST's headers of the same names
include_directories(SYSTEM ${NEURAL_ART_DIR} ${ST_NPU_DIR}/ll_aton ${ST_DEVICE} ${ST_NPU_DIR}/../Inc)
add_compile_definitions(LL_ATON_PLATFORM=LL_ATON_PLAT_STM32N6 LL_ATON_OSAL=LL_ATON_OSAL_BARE_METAL
  LL_ATON_RT_MODE=LL_ATON_RT_POLLING LL_ATON_SW_FALLBACK LL_ATON_DBG_BUFFER_INFO_EXCLUDED=1)
