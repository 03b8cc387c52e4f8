/* Stand-in (README.md): what a generated network tells of itself. */
#ifndef LL_ATON_NN_INTERFACE_H
#define LL_ATON_NN_INTERFACE_H

#include <stdint.h>

typedef union {
    unsigned char *p;
    uintptr_t i;
} __LL_address_t;

typedef enum { CHPos_UNDEFINED, CHPos_First, CHPos_Last, CHPos_Mixed } Buffer_CHPos_TypeDef;
typedef enum { DataType_UNDEFINED, DataType_FLOAT, DataType_UINT8, DataType_INT8 } Buffer_DataType_TypeDef;

typedef struct {
    const char *name; /* NULL ends a list */
    __LL_address_t addr_base;
    uint32_t offset_start, offset_end, offset_limit;
    uint8_t is_user_allocated, is_param;
    uint16_t epoch;
    uint32_t batch;
    const uint32_t *mem_shape;
    uint16_t mem_ndims;
    Buffer_CHPos_TypeDef chpos;
    Buffer_DataType_TypeDef type;
    int8_t Qm, Qn;
    uint8_t Qunsigned, ndims, nbits, per_channel;
    const uint32_t *shape;
    const float *scale;
    const int16_t *offset;
} LL_Buffer_InfoTypeDef;

/* Generated networks have no such function: it says which network the simulation was given. */
uint32_t stand_in_network_id(void);

static inline unsigned char *LL_Buffer_addr_start(const LL_Buffer_InfoTypeDef *buffer)
{
    return buffer->addr_base.p + buffer->offset_start;
}

static inline uint32_t LL_Buffer_len(const LL_Buffer_InfoTypeDef *buffer)
{
    return buffer->offset_end - buffer->offset_start;
}

typedef struct {
    const char *network_name;
    const LL_Buffer_InfoTypeDef *(*input_buffers_info)(void);
    const LL_Buffer_InfoTypeDef *(*output_buffers_info)(void);
} NN_Interface_TypeDef;

typedef struct {
    const NN_Interface_TypeDef *network;
} NN_Instance_TypeDef;

#define LL_ATON_DECLARE_NAMED_NN_INSTANCE_AND_INTERFACE(n)                                                             \
    extern const LL_Buffer_InfoTypeDef *LL_ATON_Input_Buffers_Info_##n(void);                                          \
    extern const LL_Buffer_InfoTypeDef *LL_ATON_Output_Buffers_Info_##n(void);                                         \
    static const NN_Interface_TypeDef NN_Interface_##n = {#n, LL_ATON_Input_Buffers_Info_##n,                          \
                                                          LL_ATON_Output_Buffers_Info_##n};                            \
    static NN_Instance_TypeDef NN_Instance_##n = {&NN_Interface_##n}

#endif
