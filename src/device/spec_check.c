/*
 * spec_check.c - is a spec what its slot's contract (kernel.h) asks for?
 *
 * ms_kernel_prepare calls ms__spec_check before any back end sees a spec, so that kernels may trust
 * counts, presence, types, shapes and attributes.
 *
 * Most of a contract is data: for each slot a row of arguments, each with a name, a class of type
 * and a pattern of dims. A letter of a pattern is bound by the first argument that has it and
 * compared by the others, a digit is itself, "*" is a flat argument (any rank; its element count is
 * bound):
 *
 *     {"weight", TYPE_S, "C"}          s[C]
 *     {"delta", TYPE_X, "NC", true}    x[N,C]?
 *
 * What shapes alone do not say (attributes, arguments that come together, attention's sizes) is
 * checked by a function per slot after that. Rejected: one hand-written function per slot for all
 * of it, as messages would differ and holes would be hard to see.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "device/device_ops.h"

typedef enum type_class {
    TYPE_X,      /* the compute type: fp64, fp32, bf16 */
    TYPE_S,      /* fp64 when x is fp64, else fp32 */
    TYPE_X_OR_S, /* c of a matmul */
    TYPE_FLOAT,  /* any floating type */
    TYPE_F64,
    TYPE_BF16,
    TYPE_I32,
    TYPE_I64,
    TYPE_U8,
} type_class;

typedef struct argument_rule {
    const char *name;
    type_class type;
    const char *dims;
    bool optional;
} argument_rule;

typedef struct slot_rule {
    int argument_count;
    argument_rule arguments[MS_ARGS_MAX];
    ms_status (*check)(ms_kernel_spec *spec); /* NULL: the patterns say all */
} slot_rule;

/* What the arguments seen so far have fixed. */
typedef struct bindings {
    int64_t dims[128]; /* by letter; -1: not bound */
    bool x_known, s_known;
    ms_dtype x, s;
} bindings;

static ms_status check_matmul(ms_kernel_spec *spec);
static ms_status check_pack(ms_kernel_spec *spec);
static ms_status check_norm(ms_kernel_spec *spec);
static ms_status check_norm_grads(ms_kernel_spec *spec);
static ms_status check_activation(ms_kernel_spec *spec);
static ms_status check_activation_grad(ms_kernel_spec *spec);
static ms_status check_attention(ms_kernel_spec *spec);
static ms_status check_attention_cached(ms_kernel_spec *spec);
static ms_status check_rope(ms_kernel_spec *spec);
static ms_status check_dropout(ms_kernel_spec *spec);
static ms_status check_xent(ms_kernel_spec *spec);
static ms_status check_square_sum(ms_kernel_spec *spec);

#define HYPER_DIMS "7"
_Static_assert(MS_HYPER_COUNT == 7, "HYPER_DIMS");

static const slot_rule rules[MS_SLOT_COUNT] = {
    [MS_SLOT_MATMUL] = {4,
                        {{"a", TYPE_X, "ab", false},
                         {"b", TYPE_X, "?", false},
                         {"bias", TYPE_S, "N", true},
                         {"c", TYPE_X_OR_S, "MN", false}},
                        check_matmul},
    [MS_SLOT_PACK] = {2, {{"in", TYPE_X, "ab", false}, {"packed", TYPE_U8, "p", true}}, check_pack},
    [MS_SLOT_COLUMN_SUM] = {2, {{"in", TYPE_X, "NC", false}, {"out", TYPE_S, "C", false}}, NULL},
    [MS_SLOT_EMBEDDING] = {4,
                           {{"ids", TYPE_I32, "N", false},
                            {"table", TYPE_X, "VC", false},
                            {"addend", TYPE_X, "NC", true},
                            {"out", TYPE_X, "NC", false}},
                           NULL},
    [MS_SLOT_EMBEDDING_GRAD] = {3,
                                {{"ids", TYPE_I32, "N", false},
                                 {"dy", TYPE_X, "NC", false},
                                 {"table_grad", TYPE_S, "VC", false}},
                                NULL},
    [MS_SLOT_NORM] = {7,
                      {{"x", TYPE_X, "NC", false},
                       {"delta", TYPE_X, "NC", true},
                       {"weight", TYPE_S, "C", false},
                       {"bias", TYPE_S, "C", true},
                       {"sum", TYPE_X, "NC", true},
                       {"y", TYPE_X, "NC", false},
                       {"stats", TYPE_S, "N2", false}},
                      check_norm},
    [MS_SLOT_NORM_INPUT_GRAD] = {6,
                                 {{"dy", TYPE_X, "NC", false},
                                  {"sum", TYPE_X, "NC", false},
                                  {"weight", TYPE_S, "C", false},
                                  {"stats", TYPE_S, "N2", false},
                                  {"dsum", TYPE_X, "NC", true},
                                  {"dx", TYPE_X, "NC", false}},
                                 NULL},
    [MS_SLOT_NORM_WEIGHT_GRAD] = {5,
                                  {{"dy", TYPE_X, "NC", false},
                                   {"sum", TYPE_X, "NC", false},
                                   {"stats", TYPE_S, "N2", false},
                                   {"dweight", TYPE_S, "C", false},
                                   {"dbias", TYPE_S, "C", true}},
                                  check_norm_grads},
    [MS_SLOT_ACTIVATION] = {3,
                            {{"a", TYPE_X, "NC", false},
                             {"up", TYPE_X, "NC", true},
                             {"y", TYPE_X, "NC", false}},
                            check_activation},
    [MS_SLOT_ACTIVATION_GRAD] = {5,
                                 {{"dy", TYPE_X, "NC", false},
                                  {"a", TYPE_X, "NC", false},
                                  {"up", TYPE_X, "NC", true},
                                  {"da", TYPE_X, "NC", false},
                                  {"dup", TYPE_X, "NC", true}},
                                 check_activation_grad},
    [MS_SLOT_ATTENTION] = {6,
                           {{"q", TYPE_X, "RQ", false},
                            {"k", TYPE_X, "RK", true},
                            {"v", TYPE_X, "RK", true},
                            {"sample", TYPE_I64, "B", true},
                            {"o", TYPE_X, "RO", false},
                            {"lse", TYPE_S, "BHT", false}},
                           check_attention},
    [MS_SLOT_ATTENTION_GRAD] = {10,
                                {{"q", TYPE_X, "RQ", false},
                                 {"k", TYPE_X, "RK", true},
                                 {"v", TYPE_X, "RK", true},
                                 {"sample", TYPE_I64, "B", true},
                                 {"o", TYPE_X, "RO", false},
                                 {"lse", TYPE_S, "BHT", false},
                                 {"do", TYPE_X, "RO", false},
                                 {"dq", TYPE_X, "RQ", false},
                                 {"dk", TYPE_X, "RK", true},
                                 {"dv", TYPE_X, "RK", true}},
                                check_attention},
    [MS_SLOT_ATTENTION_CACHED] = {6,
                                  {{"q", TYPE_X, "RQ", false},
                                   {"k", TYPE_X, "RK", true},
                                   {"v", TYPE_X, "RK", true},
                                   {"cache_k", TYPE_X, "SG", false},
                                   {"cache_v", TYPE_X, "SG", false},
                                   {"o", TYPE_X, "RO", false}},
                                  check_attention_cached},
    [MS_SLOT_ROPE] = {3,
                      {{"x", TYPE_X, "NC", false},
                       {"positions", TYPE_I32, "N", false},
                       {"y", TYPE_X, "NC", false}},
                      check_rope},
    [MS_SLOT_DROPOUT] = {3,
                         {{"x", TYPE_X, "NC", false},
                          {"sample", TYPE_I64, "B", false},
                          {"y", TYPE_X, "NC", false}},
                         check_dropout},
    [MS_SLOT_XENT_STATS] = {3,
                            {{"logits", TYPE_S, "NV", false},
                             {"targets", TYPE_I32, "N", false},
                             {"stats", TYPE_S, "N3", false}},
                            check_xent},
    [MS_SLOT_XENT_GRAD] = {6,
                           {{"logits", TYPE_S, "NV", false},
                            {"targets", TYPE_I32, "N", false},
                            {"stats", TYPE_S, "PN3", false},
                            {"scale", TYPE_F64, "1", false},
                            {"dlogits", TYPE_X, "NV", true},
                            {"loss", TYPE_S, "N", false}},
                           check_xent},
    [MS_SLOT_ADD] = {3,
                     {{"a", TYPE_X, "*", false},
                      {"b", TYPE_X, "*", false},
                      {"c", TYPE_X, "*", false}},
                     NULL},
    [MS_SLOT_CAST] = {2, {{"x", TYPE_FLOAT, "*", false}, {"y", TYPE_FLOAT, "*", false}}, NULL},
    [MS_SLOT_SUM] = {2, {{"x", TYPE_S, "*", false}, {"total", TYPE_F64, "1", false}}, NULL},
    [MS_SLOT_SQUARE_SUM] = {2,
                            {{"x", TYPE_S, "*", false}, {"partial", TYPE_F64, "p", false}},
                            check_square_sum},
    [MS_SLOT_ADAMW] = {6,
                       {{"w", TYPE_S, "*", false},
                        {"grad", TYPE_S, "*", false},
                        {"m", TYPE_S, "*", false},
                        {"v", TYPE_S, "*", false},
                        {"hyper", TYPE_F64, HYPER_DIMS, false},
                        {"copy", TYPE_BF16, "*", true}},
                       NULL},
    [MS_SLOT_SGD] = {5,
                     {{"w", TYPE_S, "*", false},
                      {"grad", TYPE_S, "*", false},
                      {"m", TYPE_S, "*", true},
                      {"hyper", TYPE_F64, HYPER_DIMS, false},
                      {"copy", TYPE_BF16, "*", true}},
                     NULL},
};

const char *ms__argument_name(ms_slot slot, int index) {
    if ((unsigned)slot >= MS_SLOT_COUNT || index < 0 || index >= rules[slot].argument_count) {
        return "unknown";
    }
    return rules[slot].arguments[index].name;
}

/* "fp32[4,8]" */
static const char *describe(const ms_argument *argument, char *buffer, size_t bytes) {
    int at = snprintf(buffer, bytes, "%s[", ms_dtype_name(argument->dtype));
    for (int i = 0; i < argument->rank && at > 0 && (size_t)at < bytes; i++) {
        at += snprintf(buffer + at, bytes - (size_t)at, "%s%" PRId64, i > 0 ? "," : "",
                       argument->dims[i]);
    }
    if (at > 0 && (size_t)at < bytes) {
        snprintf(buffer + at, bytes - (size_t)at, "]");
    }
    return buffer;
}

/* The pattern with what is known of its letters: "[N,C] with N 4" becomes "[4,C]". */
static const char *describe_pattern(const char *pattern, const bindings *bound, char *buffer,
                                    size_t bytes) {
    if (pattern[0] == '*') {
        snprintf(buffer, bytes, "%" PRId64 " elements", bound->dims['*']);
        return buffer;
    }
    int at = snprintf(buffer, bytes, "[");
    for (size_t i = 0; pattern[i] != '\0' && at > 0 && (size_t)at < bytes; i++) {
        int64_t known = bound->dims[(unsigned char)pattern[i]];
        const char *comma = i > 0 ? "," : "";
        at += known >= 0 ? snprintf(buffer + at, bytes - (size_t)at, "%s%" PRId64, comma, known)
                         : snprintf(buffer + at, bytes - (size_t)at, "%s%c", comma, pattern[i]);
    }
    if (at > 0 && (size_t)at < bytes) {
        snprintf(buffer + at, bytes - (size_t)at, "]");
    }
    return buffer;
}

static bool is_float(ms_dtype dtype) {
    return dtype == MS_F64 || dtype == MS_F32 || dtype == MS_BF16 || dtype == MS_F16;
}

/* The wanted type in words when `dtype` does not fit, else NULL; binds x and s. */
static const char *type_mismatch(type_class class, ms_dtype dtype, bindings *bound) {
    switch (class) {
    case TYPE_X:
        if (!bound->x_known) {
            if (dtype != MS_F64 && dtype != MS_F32 && dtype != MS_BF16) {
                return "fp64, fp32 or bf16";
            }
            if (bound->s_known && (dtype == MS_F64) != (bound->s == MS_F64)) {
                return bound->s == MS_F64 ? "fp64" : "fp32 or bf16";
            }
            bound->x_known = true;
            bound->x = dtype;
            bound->s_known = true;
            bound->s = dtype == MS_F64 ? MS_F64 : MS_F32;
        }
        return dtype == bound->x ? NULL : ms_dtype_name(bound->x);
    case TYPE_S:
        if (!bound->s_known) {
            if (dtype != MS_F64 && dtype != MS_F32) {
                return "fp64 or fp32";
            }
            bound->s_known = true;
            bound->s = dtype;
        }
        return dtype == bound->s ? NULL : ms_dtype_name(bound->s);
    case TYPE_X_OR_S:
        return dtype == bound->x || dtype == bound->s ? NULL : ms_dtype_name(bound->x);
    case TYPE_FLOAT:
        return is_float(dtype) ? NULL : "a floating type";
    case TYPE_F64:
        return dtype == MS_F64 ? NULL : "fp64";
    case TYPE_BF16:
        return dtype == MS_BF16 ? NULL : "bf16";
    case TYPE_I32:
        return dtype == MS_I32 ? NULL : "int32";
    case TYPE_I64:
        return dtype == MS_I64 ? NULL : "int64";
    case TYPE_U8:
        return dtype == MS_U8 ? NULL : "uint8";
    }
    return "a known type";
}

/* Binds or compares one dim. */
static bool dim_fits(char letter, int64_t dim, bindings *bound) {
    int64_t *known = &bound->dims[(unsigned char)letter];
    if (*known < 0) {
        *known = dim;
    }
    return *known == dim;
}

static bool dims_fit(const char *pattern, const ms_argument *argument, bindings *bound) {
    if (pattern[0] == '?') {
        return true;
    }
    if (pattern[0] == '*') {
        return argument->rank > 0 && dim_fits('*', ms_argument_elements(argument), bound);
    }
    if (argument->rank != (int)strlen(pattern)) {
        return false;
    }
    for (int i = 0; i < argument->rank; i++) {
        if (!dim_fits(pattern[i], argument->dims[i], bound)) {
            return false;
        }
    }
    return true;
}

/* Sizes that any kernel may multiply by an element's bytes without a further check. */
static bool size_is_sane(const ms_argument *argument) {
    int64_t bytes = 8;
    for (int i = 0; i < argument->rank; i++) {
        if (argument->dims[i] < 0) {
            return false;
        }
        int64_t dim = argument->dims[i] > 0 ? argument->dims[i] : 1;
        if (!ms_i64_mul(bytes, dim, &bytes)) {
            return false;
        }
    }
    return true;
}

static ms_status check_argument(const ms_kernel_spec *spec, int index, bindings *bound) {
    const argument_rule *rule = &rules[spec->slot].arguments[index];
    const ms_argument *argument = &spec->arguments[index];
    const char *slot = ms_slot_name(spec->slot);
    if (argument->rank < 0) {
        return rule->optional
                   ? MS_OK
                   : ms_fail(MS_ERR_ARGUMENT, "kernel %s: argument %s is absent", slot, rule->name);
    }
    if (argument->rank > MS_DIMS_MAX || (unsigned)argument->dtype >= MS_DTYPE_COUNT) {
        return ms_fail(MS_ERR_ARGUMENT, "kernel %s: argument %s has rank %d, type number %d", slot,
                       rule->name, argument->rank, (int)argument->dtype);
    }
    char text[128];
    char wanted[128];
    if (!size_is_sane(argument)) {
        return ms_fail(MS_ERR_ARGUMENT, "kernel %s: argument %s is %s: a size out of range", slot,
                       rule->name, describe(argument, text, sizeof text));
    }
    bool packed_b = spec->slot == MS_SLOT_MATMUL && index == 1 && spec->attributes.matmul.packed;
    const char *type = packed_b ? (argument->dtype == MS_U8 ? NULL : "uint8 (packed)")
                                : type_mismatch(rule->type, argument->dtype, bound);
    if (type != NULL) {
        return ms_fail(MS_ERR_ARGUMENT, "kernel %s: argument %s is %s, its type must be %s", slot,
                       rule->name, describe(argument, text, sizeof text), type);
    }
    if (!dims_fit(rule->dims, argument, bound)) {
        return ms_fail(MS_ERR_ARGUMENT, "kernel %s: argument %s is %s, its shape must be %s", slot,
                       rule->name, describe(argument, text, sizeof text),
                       describe_pattern(rule->dims, bound, wanted, sizeof wanted));
    }
    return MS_OK;
}

ms_status ms__spec_check(ms_kernel_spec *spec) {
    if ((unsigned)spec->slot >= MS_SLOT_COUNT) {
        return ms_fail(MS_ERR_ARGUMENT, "kernel slot %d does not exist", (int)spec->slot);
    }
    const slot_rule *rule = &rules[spec->slot];
    if (spec->argument_count != rule->argument_count) {
        return ms_fail(MS_ERR_ARGUMENT, "kernel %s: takes %d arguments, not %d",
                       ms_slot_name(spec->slot), rule->argument_count, spec->argument_count);
    }
    bindings bound = {0};
    for (size_t i = 0; i < sizeof bound.dims / sizeof bound.dims[0]; i++) {
        bound.dims[i] = i >= '0' && i <= '9' ? (int64_t)i - '0' : -1;
    }
    for (int i = 0; i < spec->argument_count; i++) {
        MS_TRY(check_argument(spec, i, &bound));
    }
    if (rule->check != NULL) {
        MS_TRY(rule->check(spec));
    }
    return MS_OK;
}

bool ms__spec_is_empty(const ms_kernel_spec *spec) {
    for (int i = 0; i < spec->argument_count; i++) {
        if (spec->slot == MS_SLOT_PACK && i == 1) {
            continue; /* its size is what prepare is asked for */
        }
        if (spec->arguments[i].rank >= 0 && ms_argument_elements(&spec->arguments[i]) == 0) {
            return true;
        }
    }
    return false;
}

static ms_status refuse(const ms_kernel_spec *spec, const char *sentence) {
    return ms_fail(MS_ERR_ARGUMENT, "kernel %s: %s", ms_slot_name(spec->slot), sentence);
}

static bool has(const ms_kernel_spec *spec, int index) {
    return spec->arguments[index].rank >= 0;
}

static ms_status check_matmul(ms_kernel_spec *spec) {
    const ms_argument *a = &spec->arguments[0];
    const ms_argument *b = &spec->arguments[1];
    const ms_argument *c = &spec->arguments[3];
    bool transpose_a = spec->attributes.matmul.transpose_a;
    bool transpose_b = spec->attributes.matmul.transpose_b;
    int64_t m = a->dims[transpose_a ? 1 : 0];
    int64_t k = a->dims[transpose_a ? 0 : 1];
    int64_t n = c->dims[1];
    if (c->dims[0] != m) {
        return ms_fail(MS_ERR_ARGUMENT, "kernel matmul: op(a) has %" PRId64 " rows, c has %" PRId64,
                       m, c->dims[0]);
    }
    if (spec->attributes.matmul.packed) {
        if (b->rank != 1) {
            return refuse(spec, "packed b must be uint8[packed_bytes]");
        }
    } else if (b->rank != 2 || b->dims[transpose_b ? 1 : 0] != k ||
               b->dims[transpose_b ? 0 : 1] != n) {
        char text[128];
        return ms_fail(MS_ERR_ARGUMENT,
                       "kernel matmul: b is %s, op(b) must be [%" PRId64 ",%" PRId64 "]",
                       describe(b, text, sizeof text), k, n);
    }
    if (spec->attributes.matmul.runtime_rows && transpose_a) {
        return refuse(spec, "runtime_rows and transpose_a exclude each other");
    }
    spec->attributes.matmul.m = m;
    spec->attributes.matmul.n = n;
    spec->attributes.matmul.k = k;
    return MS_OK;
}

static ms_status check_pack(ms_kernel_spec *spec) {
    const ms_argument *in = &spec->arguments[0];
    int64_t n = spec->attributes.matmul.n;
    int64_t k = spec->attributes.matmul.k;
    bool transpose_b = spec->attributes.matmul.transpose_b;
    if (in->dims[transpose_b ? 1 : 0] != k || in->dims[transpose_b ? 0 : 1] != n ||
        spec->attributes.matmul.m < 0) {
        char text[128];
        return ms_fail(MS_ERR_ARGUMENT,
                       "kernel pack: in is %s, its matmul's op(b) is [%" PRId64 ",%" PRId64
                       "] (matmul.m %" PRId64 ")",
                       describe(in, text, sizeof text), k, n, spec->attributes.matmul.m);
    }
    return MS_OK;
}

static ms_status check_norm(ms_kernel_spec *spec) {
    if (has(spec, 1) != has(spec, 4)) {
        return refuse(spec, "delta and sum must be both present or both absent");
    }
    if (spec->attributes.norm.rms && has(spec, 3)) {
        return refuse(spec, "an RMS norm has no bias");
    }
    if (!(spec->attributes.norm.epsilon >= 0.0) || !isfinite(spec->attributes.norm.epsilon)) {
        return refuse(spec, "norm.epsilon must be 0 or more");
    }
    return MS_OK;
}

static ms_status check_norm_grads(ms_kernel_spec *spec) {
    if (spec->attributes.norm.rms && has(spec, 4)) {
        return refuse(spec, "an RMS norm has no bias, so no dbias");
    }
    return MS_OK;
}

static ms_status check_activation(ms_kernel_spec *spec) {
    if ((unsigned)spec->attributes.activation.function > MS_RELU) {
        return refuse(spec, "activation.function is none of those listed");
    }
    return MS_OK;
}

static ms_status check_activation_grad(ms_kernel_spec *spec) {
    if (has(spec, 2) != has(spec, 4)) {
        return refuse(spec, "up and dup must be both present or both absent");
    }
    return check_activation(spec);
}

/* q[rows, (heads, or heads and both kv_heads when packed) * head_size], k, v, o. */
static ms_status check_heads(ms_kernel_spec *spec, int output) {
    int64_t heads = spec->attributes.attention.heads;
    int64_t kv_heads = spec->attributes.attention.kv_heads;
    int64_t size = spec->attributes.attention.head_size;
    bool packed = spec->attributes.attention.packed;
    int64_t limit = INT64_C(1) << 20;
    if (heads < 1 || kv_heads < 1 || size < 1 || heads > limit || kv_heads > limit ||
        size > limit || heads % kv_heads != 0) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "kernel %s: %" PRId64 " heads, %" PRId64 " key/value heads of size %" PRId64
                       ": heads must be a multiple of key/value heads",
                       ms_slot_name(spec->slot), heads, kv_heads, size);
    }
    if (has(spec, 1) == packed || has(spec, 2) == packed) {
        return refuse(spec, "k and v are absent exactly when q holds q|k|v (attention.packed)");
    }
    int64_t query_columns = (packed ? heads + 2 * kv_heads : heads) * size;
    if (spec->arguments[0].dims[1] != query_columns ||
        spec->arguments[output].dims[1] != heads * size ||
        (!packed && spec->arguments[1].dims[1] != kv_heads * size)) {
        char text[128];
        return ms_fail(MS_ERR_ARGUMENT,
                       "kernel %s: q is %s, with %" PRId64 " heads, %" PRId64
                       " key/value heads of size %" PRId64 " q must have %" PRId64
                       " columns, k and v %" PRId64 ", o %" PRId64,
                       ms_slot_name(spec->slot), describe(&spec->arguments[0], text, sizeof text),
                       heads, kv_heads, size, query_columns, kv_heads * size, heads * size);
    }
    if (!isfinite(spec->attributes.attention.scale)) {
        return refuse(spec, "attention.scale must be finite");
    }
    if (spec->attributes.attention.scale == 0.0) {
        spec->attributes.attention.scale = 1.0 / sqrt((double)size);
    }
    return MS_OK;
}

static ms_status check_attention(ms_kernel_spec *spec) {
    MS_TRY(check_heads(spec, 4));
    int64_t batch = spec->attributes.attention.batch;
    int64_t positions = spec->attributes.attention.positions;
    int64_t rows = 0;
    const int64_t *lse = spec->arguments[5].dims;
    if (batch < 0 || positions < 0 || !ms_i64_mul(batch, positions, &rows) ||
        spec->arguments[0].dims[0] != rows || lse[0] != batch || lse[2] != positions ||
        lse[1] != spec->attributes.attention.heads) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "kernel %s: q has %" PRId64 " rows and lse is [%" PRId64 ",%" PRId64
                       ",%" PRId64 "], for attention.batch %" PRId64 ", heads %" PRId64
                       ", positions %" PRId64,
                       ms_slot_name(spec->slot), spec->arguments[0].dims[0], lse[0], lse[1], lse[2],
                       batch, spec->attributes.attention.heads, positions);
    }
    if (spec->slot == MS_SLOT_ATTENTION_GRAD &&
        (has(spec, 8) != has(spec, 1) || has(spec, 9) != has(spec, 2))) {
        return refuse(spec, "dk and dv are absent exactly when k and v are");
    }
    double dropout = spec->attributes.attention.dropout;
    if (!(dropout >= 0.0 && dropout < 1.0)) {
        return refuse(spec, "attention.dropout must be in [0, 1)");
    }
    if (dropout > 0.0 && !has(spec, 3)) {
        return refuse(spec, "attention.dropout needs the argument sample");
    }
    if (spec->attributes.attention.heads_global == 0) {
        spec->attributes.attention.heads_global = spec->attributes.attention.heads;
    }
    if (spec->attributes.attention.head_first < 0 ||
        spec->attributes.attention.head_first >
            spec->attributes.attention.heads_global - spec->attributes.attention.heads) {
        return refuse(spec, "heads from attention.head_first on must lie within heads_global");
    }
    return MS_OK;
}

static ms_status check_attention_cached(ms_kernel_spec *spec) {
    MS_TRY(check_heads(spec, 5));
    int64_t columns = spec->attributes.attention.kv_heads * spec->attributes.attention.head_size;
    if (spec->arguments[3].dims[1] != columns) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "kernel attention_cached: the caches have %" PRId64
                       " columns, key/value heads make %" PRId64,
                       spec->arguments[3].dims[1], columns);
    }
    return MS_OK;
}

static ms_status check_rope(ms_kernel_spec *spec) {
    int64_t heads = spec->attributes.rope.heads;
    int64_t size = spec->attributes.rope.head_size;
    int64_t columns = 0;
    if (heads < 1 || size < 2 || size % 2 != 0 || !ms_i64_mul(heads, size, &columns) ||
        columns != spec->arguments[0].dims[1]) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "kernel rope: %" PRId64 " heads of (even) size %" PRId64 " for %" PRId64
                       " columns",
                       heads, size, spec->arguments[0].dims[1]);
    }
    if (spec->attributes.rope.position_max < 1 || spec->attributes.rope.position_max > INT32_MAX) {
        return refuse(spec, "rope.position_max must be in 1 .. 2^31 - 1");
    }
    const ms_rope_scaling *scaling = &spec->attributes.rope.scaling;
    if (!(spec->attributes.rope.theta > 0.0) || !isfinite(spec->attributes.rope.theta) ||
        !(scaling->factor > 0.0) || !isfinite(scaling->factor)) {
        return refuse(spec, "rope.theta and rope.scaling.factor must be above 0 (factor 1: none)");
    }
    if (scaling->factor != 1.0 && !scaling->linear &&
        (!(scaling->low_frequency_factor > 0.0) ||
         !(scaling->high_frequency_factor > scaling->low_frequency_factor) ||
         scaling->original_positions < 1)) {
        return refuse(spec, "rope.scaling needs 0 < low_frequency_factor < high_frequency_factor "
                            "and original_positions");
    }
    return MS_OK;
}

static ms_status check_dropout(ms_kernel_spec *spec) {
    double probability = spec->attributes.dropout.probability;
    if (!(probability >= 0.0 && probability < 1.0)) {
        return refuse(spec, "dropout.probability must be in [0, 1)");
    }
    int64_t rows = 0;
    int64_t end = 0;
    if (spec->attributes.dropout.positions < 1 ||
        !ms_i64_mul(spec->arguments[1].dims[0], spec->attributes.dropout.positions, &rows) ||
        spec->attributes.dropout.row_first < 0 ||
        spec->attributes.dropout.row_first > rows - spec->arguments[0].dims[0]) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "kernel dropout: %" PRId64 " samples of dropout.positions %" PRId64
                       " for %" PRId64 " rows",
                       spec->arguments[1].dims[0], spec->attributes.dropout.positions,
                       spec->arguments[0].dims[0]);
    }
    if (spec->attributes.dropout.column_first < 0 ||
        !ms_i64_add(spec->attributes.dropout.column_first, spec->arguments[0].dims[1], &end) ||
        end > spec->attributes.dropout.columns_global) {
        return refuse(spec, "columns from dropout.column_first on must lie within columns_global");
    }
    return MS_OK;
}

static ms_status check_xent(ms_kernel_spec *spec) {
    if (spec->attributes.xent.valid < 0 ||
        spec->attributes.xent.valid > spec->arguments[0].dims[1]) {
        return ms_fail(MS_ERR_ARGUMENT, "kernel %s: xent.valid %" PRId64 " of %" PRId64 " columns",
                       ms_slot_name(spec->slot), spec->attributes.xent.valid,
                       spec->arguments[0].dims[1]);
    }
    if (spec->attributes.xent.first < 0) {
        return refuse(spec, "xent.first must be 0 or more");
    }
    return MS_OK;
}

static ms_status check_square_sum(ms_kernel_spec *spec) {
    int64_t elements = ms_argument_elements(&spec->arguments[0]);
    int64_t blocks = ms_ceil_div(elements, MS_NORM_BLOCK);
    if (spec->arguments[1].dims[0] != blocks) {
        return ms_fail(MS_ERR_ARGUMENT,
                       "kernel square_sum: %" PRId64 " elements make %" PRId64
                       " partial sums, not %" PRId64,
                       elements, blocks, spec->arguments[1].dims[0]);
    }
    return MS_OK;
}
