/*
 * NumPy's .npy: one array with a header that is a Python dictionary written out.
 *
 * Stands below data/ (images and labels in .npz) and tools that read arrays of other programs.
 *
 *   "\x93NUMPY" | major | minor | header length (u16 in version 1, u32 in 2 and 3) | header | data
 *   header: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
 *
 * Only that dictionary is understood: three keys, a string, True or False, a tuple of integers. All
 * else is refused with its offset, above all 'O' (pickled objects, which run code when loaded).
 *
 * Invariant: after ms_npy_parse, data + bytes is the end of the input and bytes == product * size.
 *
 * Rejected: bytes after the array (two arrays saved into one file): a flipped bit in a dim would
 * pass.
 */
#include "format/npy.h"

#include <inttypes.h>
#include <string.h>

#include "base/file.h"

#define MAGIC_BYTES 6
#define HEADER_BYTES_MAX ((size_t)1 << 20)

typedef struct scanner {
    const char *name; /* of the file */
    const char *bytes;
    size_t position, end; /* offsets in the file */
} scanner;

static ms_status fail_at(const scanner *scan, const char *expected) {
    return ms_fail(MS_ERR_FORMAT, "%s: header at byte %zu: expected %s", scan->name, scan->position,
                   expected);
}

static void skip_space(scanner *scan) {
    while (scan->position < scan->end && strchr(" \t\r\n", scan->bytes[scan->position]) != NULL &&
           scan->bytes[scan->position] != '\0') {
        scan->position++;
    }
}

static bool accept(scanner *scan, char wanted) {
    skip_space(scan);
    if (scan->position < scan->end && scan->bytes[scan->position] == wanted) {
        scan->position++;
        return true;
    }
    return false;
}

static bool accept_word(scanner *scan, const char *word) {
    skip_space(scan);
    size_t length = strlen(word);
    if (scan->end - scan->position < length ||
        memcmp(scan->bytes + scan->position, word, length) != 0) {
        return false;
    }
    scan->position += length;
    return true;
}

/* A quoted string without escapes, at most 31 bytes. */
static ms_status read_string(scanner *scan, char out[32]) {
    skip_space(scan);
    char quote = '\'';
    if (!accept(scan, quote)) {
        quote = '"';
        if (!accept(scan, quote)) {
            return fail_at(scan, "a quoted string (structured types are not supported)");
        }
    }
    size_t length = 0;
    while (scan->position < scan->end && scan->bytes[scan->position] != quote && length < 31) {
        out[length++] = scan->bytes[scan->position++];
    }
    out[length] = '\0';
    return accept(scan, quote) ? MS_OK : fail_at(scan, "a closing quote");
}

static ms_status read_shape(scanner *scan, ms_npy_array *array) {
    if (!accept(scan, '(')) {
        return fail_at(scan, "a shape such as (3, 4)");
    }
    array->rank = 0;
    while (!accept(scan, ')')) {
        if (array->rank == MS_NPY_DIMS_MAX) {
            return ms_fail(MS_ERR_UNSUPPORTED, "%s: more than %d dims", scan->name,
                           MS_NPY_DIMS_MAX);
        }
        skip_space(scan);
        int64_t dim = 0;
        size_t begin = scan->position;
        while (scan->position < scan->end && scan->bytes[scan->position] >= '0' &&
               scan->bytes[scan->position] <= '9') {
            if (!ms_i64_mul(dim, 10, &dim) ||
                !ms_i64_add(dim, scan->bytes[scan->position] - '0', &dim)) {
                return ms_fail(MS_ERR_FORMAT, "%s: header at byte %zu: dim over 2^63", scan->name,
                               begin);
            }
            scan->position++;
        }
        if (scan->position == begin) {
            return fail_at(scan, "a dim");
        }
        accept(scan, 'L'); /* Python 2 wrote long integers so */
        array->dims[array->rank++] = dim;
        if (!accept(scan, ',')) {
            if (!accept(scan, ')')) {
                return fail_at(scan, "',' or ')'");
            }
            break;
        }
    }
    return MS_OK;
}

static ms_status read_dtype(const scanner *scan, const char *descr, ms_dtype *dtype) {
    static const struct {
        char kind, digit;
        ms_dtype dtype;
    } table[] = {{'f', '8', MS_F64}, {'f', '4', MS_F32}, {'f', '2', MS_F16}, {'i', '8', MS_I64},
                 {'i', '4', MS_I32}, {'i', '2', MS_I16}, {'i', '1', MS_I8},  {'u', '8', MS_U64},
                 {'u', '4', MS_U32}, {'u', '2', MS_U16}, {'u', '1', MS_U8},  {'b', '1', MS_BOOL}};
    if (strchr(descr, 'O') != NULL) {
        return ms_fail(
            MS_ERR_UNSUPPORTED,
            "%s: an array of Python objects: reading it would run what it contains; save "
            "it with a numeric dtype",
            scan->name);
    }
    if (strlen(descr) == 3) {
        for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
            if (descr[1] != table[i].kind || descr[2] != table[i].digit) {
                continue;
            }
            if (descr[0] == '<' || descr[0] == '=' || (descr[0] == '|' && descr[2] == '1')) {
                *dtype = table[i].dtype;
                return MS_OK;
            }
        }
    }
    return ms_fail(MS_ERR_UNSUPPORTED,
                   "%s: dtype '%s' is not supported; little-endian floats, integers and bool are",
                   scan->name, descr);
}

static ms_status read_dictionary(scanner *scan, ms_npy_array *array) {
    bool has_descr = false, has_order = false, has_shape = false;
    if (!accept(scan, '{')) {
        return fail_at(scan, "'{'");
    }
    while (!accept(scan, '}')) {
        char text[32];
        MS_TRY(read_string(scan, text));
        if (!accept(scan, ':')) {
            return fail_at(scan, "':'");
        }
        if (strcmp(text, "descr") == 0 && !has_descr) {
            MS_TRY(read_string(scan, text));
            MS_TRY(read_dtype(scan, text, &array->dtype));
            has_descr = true;
        } else if (strcmp(text, "fortran_order") == 0 && !has_order) {
            array->fortran_order = accept_word(scan, "True");
            if (!array->fortran_order && !accept_word(scan, "False")) {
                return fail_at(scan, "True or False");
            }
            has_order = true;
        } else if (strcmp(text, "shape") == 0 && !has_shape) {
            MS_TRY(read_shape(scan, array));
            has_shape = true;
        } else {
            return fail_at(scan, "each of descr, fortran_order and shape once");
        }
        if (!accept(scan, ',')) {
            if (!accept(scan, '}')) {
                return fail_at(scan, "',' or '}'");
            }
            break;
        }
    }
    skip_space(scan);
    if (!has_descr || !has_order || !has_shape || scan->position != scan->end) {
        return fail_at(scan, "descr, fortran_order and shape and nothing else");
    }
    return MS_OK;
}

static ms_status find_header(const uint8_t *bytes, size_t length, scanner *scan) {
    if (length < MAGIC_BYTES + 4 || memcmp(bytes, "\x93NUMPY", MAGIC_BYTES) != 0) {
        return ms_fail(MS_ERR_FORMAT, "%s: not a .npy file: it does not begin with \\x93NUMPY",
                       scan->name);
    }
    unsigned version = bytes[MAGIC_BYTES];
    if (version < 1 || version > 3) {
        return ms_fail(MS_ERR_UNSUPPORTED, "%s: .npy version %u at byte %d; 1, 2 and 3 are known",
                       scan->name, version, MAGIC_BYTES);
    }
    size_t length_bytes = version == 1 ? 2 : 4;
    size_t begin = MAGIC_BYTES + 2 + length_bytes;
    size_t header = 0;
    for (size_t i = 0; i < length_bytes && begin <= length; i++) {
        header |= (size_t)bytes[MAGIC_BYTES + 2 + i] << (8 * i);
    }
    if (begin > length || header > length - begin) {
        return ms_fail(MS_ERR_FORMAT, "%s: header of %zu bytes at byte %zu, but the file has %zu",
                       scan->name, header, begin, length);
    }
    if (header > HEADER_BYTES_MAX) {
        return ms_fail(MS_ERR_RANGE, "%s: header of %zu bytes, allowed are %zu", scan->name, header,
                       HEADER_BYTES_MAX);
    }
    scan->bytes = (const char *)bytes;
    scan->position = begin;
    scan->end = begin + header;
    return MS_OK;
}

ms_status ms_npy_parse(const void *bytes, size_t length, const char *name, ms_npy_array *array) {
    scanner scan = {.name = name};
    ms_npy_array made = {0};
    MS_TRY(find_header(bytes, length, &scan));
    made.data_offset = scan.end;
    MS_TRY(read_dictionary(&scan, &made));
    size_t product = ms_dtype_bytes(made.dtype);
    for (int i = 0; i < made.rank; i++) {
        if (!ms_size_mul(product, (size_t)made.dims[i], &product)) {
            return ms_fail(MS_ERR_FORMAT, "%s: product of the dims is over 2^63", name);
        }
    }
    if (product != length - made.data_offset) {
        return ms_fail(MS_ERR_FORMAT,
                       "%s: shape and dtype need %zu bytes from byte %" PRIu64
                       ", the file has %" PRIu64,
                       name, product, made.data_offset, length - made.data_offset);
    }
    made.bytes = product;
    made.count = (int64_t)(product / ms_dtype_bytes(made.dtype));
    made.data = (const uint8_t *)bytes + made.data_offset;
    *array = made;
    return MS_OK;
}

ms_status ms_npy_copy(const ms_npy_array *array, void *out) {
    if (array->bytes == 0) {
        return MS_OK;
    }
    if (!array->fortran_order || array->rank < 2) {
        memcpy(out, array->data, array->bytes);
        return MS_OK;
    }
    size_t size = ms_dtype_bytes(array->dtype);
    int64_t stride[MS_NPY_DIMS_MAX], index[MS_NPY_DIMS_MAX] = {0};
    stride[0] = 1;
    for (int i = 1; i < array->rank; i++) {
        stride[i] = stride[i - 1] * array->dims[i - 1];
    }
    const uint8_t *from = array->data;
    uint8_t *to = out;
    int64_t offset = 0; /* of the element at `index`, in elements */
    for (int64_t done = 0; done < array->count; done++) {
        memcpy(to, from + (size_t)offset * size, size);
        to += size;
        for (int dim = array->rank - 1; dim >= 0; dim--) {
            offset += stride[dim];
            if (++index[dim] < array->dims[dim]) {
                break;
            }
            offset -= stride[dim] * array->dims[dim];
            index[dim] = 0;
        }
    }
    return MS_OK;
}

struct ms_npy {
    ms_file_map map;
    void *memory; /* of a member unpacked from .npz */
    ms_npy_array array;
};

ms_status ms_npy_adopt(void *memory, size_t length, const char *name, ms_npy **npy) {
    ms_npy *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &made));
    ms_status status = ms_npy_parse(memory, length, name, &made->array);
    if (status != MS_OK) {
        ms_free(made);
        return status;
    }
    made->memory = memory;
    *npy = made;
    return MS_OK;
}

ms_status ms_npy_open(const char *path, ms_npy **npy) {
    ms_npy *made = NULL;
    MS_TRY(MS_NEW(1, MS_MEMORY_CALLER, &made));
    ms_status status;
    MS_TRY_GOTO(ms_file_map_open(path, &made->map), free_handle);
    MS_TRY_GOTO(ms_npy_parse(made->map.data, made->map.bytes, path, &made->array), close_map);
    *npy = made;
    return MS_OK;
close_map:
    ms_file_map_close(&made->map);
free_handle:
    ms_free(made);
    return status;
}

void ms_npy_close(ms_npy *npy) {
    if (npy == NULL) {
        return;
    }
    if (npy->map.data != NULL) {
        ms_file_map_close(&npy->map);
    }
    ms_free(npy->memory);
    ms_free(npy);
}

const ms_npy_array *ms_npy_get(const ms_npy *npy) {
    return &npy->array;
}
