/*
 * fuzz_npy.c - any bytes are a .npy file, a .npz archive, or refused. What is accepted can be
 * copied whole; members of an archive are unpacked within a bound.
 */
#include "format_laws.h"

#include "format/npy.h"

#define MEMBER_BYTES_MAX ((uint64_t)1 << 20)

static void copy_out(const ms_npy_array *array) {
    uint8_t *out = malloc(array->bytes > 0 ? array->bytes : 1);
    hold(out != NULL, "there is memory for the array");
    hold(ms_npy_copy(array, out) == MS_OK, "what was accepted can be copied");
    hold(array->bytes == (uint64_t)array->count * ms_dtype_bytes(array->dtype),
         "count and bytes agree");
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t before = live_bytes();
    uint8_t *copy = exact_copy(data, size);
    ms_npy_array array;
    ms_status status = ms_npy_parse(copy, size, "fuzz", &array);
    if (status == MS_OK) {
        copy_out(&array);
    } else {
        hold_refusal(status);
    }
    ms_npz *npz = NULL;
    status = ms_npz_open_memory(copy, size, "fuzz", &npz);
    if (status == MS_OK) {
        for (int64_t i = 0; i < ms_npz_count(npz); i++) {
            ms_npy *npy = NULL;
            status = ms_npz_read(npz, ms_npz_name(npz, i), MEMBER_BYTES_MAX, &npy);
            if (status == MS_OK) {
                copy_out(ms_npy_get(npy));
                ms_npy_close(npy);
            } else {
                hold_refusal(status);
            }
        }
        ms_npz_close(npz);
    } else {
        hold_refusal(status);
    }
    free(copy);
    hold(live_bytes() == before, "memory in use is the same afterwards");
    return 0;
}
