/*
 * fuzz_safetensors.c - any bytes are a safetensors file or refused. Of what is accepted, every byte
 * of every tensor can be read, tensors fill the file without gap, and names find their tensors.
 */
#include "format_laws.h"

#include "format/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t before = live_bytes();
    uint8_t *copy = exact_copy(data, size);
    ms_safetensors *file = NULL;
    ms_status status = ms_safetensors_open_memory(copy, size, "fuzz", &file);
    if (status == MS_OK) {
        uint64_t end = 0;
        unsigned sum = 0;
        for (int64_t i = 0; i < ms_safetensors_count(file); i++) {
            const ms_safetensors_tensor *tensor = ms_safetensors_at(file, i);
            const uint8_t *bytes = tensor->data;
            for (uint64_t byte = 0; byte < tensor->bytes; byte++) {
                sum += bytes[byte];
            }
            hold(i == 0 || tensor->file_offset == end, "tensors are back to back");
            hold((uint64_t)ms_safetensors_tensor_count(tensor) * ms_dtype_bytes(tensor->dtype) ==
                     tensor->bytes,
                 "dims and bytes agree");
            hold(ms_safetensors_find(file, tensor->name) == tensor, "a name finds its tensor");
            end = tensor->file_offset + tensor->bytes;
        }
        hold(ms_safetensors_count(file) == 0 || end == size, "tensors end where the file does");
        hold(sum < UINT32_MAX, "bytes were read");
        ms_safetensors_close(file);
    } else {
        hold_refusal(status);
    }
    free(copy);
    hold(live_bytes() == before, "memory in use is the same afterwards");
    return 0;
}
