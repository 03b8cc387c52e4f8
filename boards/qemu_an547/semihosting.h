/* Files and the console of the machine that runs the emulator (Arm semihosting, IHI 0057; the calls that are needed).
 */
#ifndef SEMIHOSTING_H
#define SEMIHOSTING_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum semihosting_mode { SEMIHOSTING_READ = 1, SEMIHOSTING_WRITE = 5 }; /* "rb", "wb" */

static inline int32_t semihosting_call(uint32_t operation, const void *parameters)
{
    register uint32_t r0 __asm("r0") = operation;
    register const void *r1 __asm("r1") = parameters;
    __asm volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return (int32_t)r0;
}

/* A handle, or -1. */
static inline int32_t semihosting_open(const char *path, enum semihosting_mode mode)
{
    const uint32_t parameters[] = {(uintptr_t)path, mode, strlen(path)};
    return semihosting_call(0x01, parameters);
}

static inline void semihosting_close(int32_t handle)
{
    const uint32_t parameters[] = {(uint32_t)handle};
    semihosting_call(0x02, parameters);
}

/* The number of bytes read: fewer than size at the end of the file. */
static inline uint32_t semihosting_read(int32_t handle, void *to, uint32_t size)
{
    const uint32_t parameters[] = {(uint32_t)handle, (uintptr_t)to, size};
    return size - (uint32_t)semihosting_call(0x06, parameters);
}

/* The number of bytes that were not written. */
static inline uint32_t semihosting_write(int32_t handle, const void *from, uint32_t size)
{
    const uint32_t parameters[] = {(uint32_t)handle, (uintptr_t)from, size};
    return (uint32_t)semihosting_call(0x05, parameters);
}

/* The command line that the emulator was given for this program. */
static inline bool semihosting_command_line(char *line, uint32_t size)
{
    uint32_t parameters[] = {(uintptr_t)line, size};
    return semihosting_call(0x15, parameters) == 0;
}

static inline void semihosting_print(const char *text)
{
    semihosting_call(0x04, text);
}

/* Ends the emulator with this exit code. */
_Noreturn static inline void semihosting_exit(int code)
{
    const uint32_t parameters[] = {0x20026, (uint32_t)code}; /* ADP_Stopped_ApplicationExit */
    semihosting_call(0x20, parameters);
    for (;;)
        continue;
}

#endif
