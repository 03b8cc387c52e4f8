# cmake -S tflm_app -B build/stm32n6 -DBOARD=stm32n6 -DCMAKE_TOOLCHAIN_FILE=boards/stm32n6/toolchain.cmake
# CPU=cortex-m33: the same sources for an emulator that knows neither Helium nor the M55's floating point.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR arm)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CPU cortex-m55 CACHE STRING "cortex-m55, or cortex-m33 for emulation")
if(CPU STREQUAL "cortex-m55")
  set(CMAKE_C_FLAGS_INIT "-mcpu=cortex-m55 -mthumb -mfloat-abi=hard")
else()
  set(CMAKE_C_FLAGS_INIT "-mcpu=${CPU} -mthumb -mfloat-abi=soft")
endif()
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES CPU)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY) # a program needs start-up code, which the compiler's test has not
