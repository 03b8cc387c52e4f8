# cmake -S tflm_app -B build/qemu_an547 -DBOARD=qemu_an547 -DCMAKE_TOOLCHAIN_FILE=boards/qemu_an547/toolchain.cmake
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR arm)
set(CMAKE_C_COMPILER arm-none-eabi-gcc)
set(CMAKE_C_FLAGS_INIT "-mcpu=cortex-m55 -mthumb -mfloat-abi=hard")
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY) # a program needs start-up code, which the compiler's test has not
