/* dtype.h - element types, with their names in configuration and in safetensors files. Since 0.1.
 */
#ifndef MINDSPEED_DTYPE_H
#define MINDSPEED_DTYPE_H

/* X(name, value, bytes, config name, safetensors name) */
#define MS_DTYPE_LIST(X)                                                                           \
    X(F64, 0, 8, "fp64", "F64")                                                                    \
    X(F32, 1, 4, "fp32", "F32")                                                                    \
    X(BF16, 2, 2, "bf16", "BF16")                                                                  \
    X(F16, 3, 2, "fp16", "F16")                                                                    \
    X(I64, 4, 8, "int64", "I64")                                                                   \
    X(I32, 5, 4, "int32", "I32")                                                                   \
    X(U16, 6, 2, "uint16", "U16")                                                                  \
    X(U8, 7, 1, "uint8", "U8")                                                                     \
    X(I16, 8, 2, "int16", "I16")                                                                   \
    X(I8, 9, 1, "int8", "I8")                                                                      \
    X(BOOL, 10, 1, "bool", "BOOL")                                                                 \
    X(U32, 11, 4, "uint32", "U32")                                                                 \
    X(U64, 12, 8, "uint64", "U64")

typedef enum ms_dtype {
#define MS_DTYPE_ENUM(name, value, bytes, text, safetensors) MS_##name = (value),
    MS_DTYPE_LIST(MS_DTYPE_ENUM)
#undef MS_DTYPE_ENUM
        MS_DTYPE_COUNT
} ms_dtype;

#endif
