/* Run a compiled model on raw little-endian files, or on zeros, and print the first values of each
 * result.
 *
 *     ./run NAME.cuvil [INPUT.bin | -]...     "-": zeros
 *
 * Dynamic axes take their lowest size above 0.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuvil_dl.h"

static const char *const dtype_names[] = {
    "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8",
    "uint16", "uint32", "uint64", "bool", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int4",
    "uint4", "int2", "uint2"};
static const size_t dtype_bytes[] = {4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1,
                                     1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void print_info(const char *role, const cuvil_tensor_info *info)
{
    printf("%s %s: %s[", role, info->name, dtype_names[info->dtype]);
    for (int axis = 0; axis < info->rank; axis++) {
        printf(axis ? ", " : "");
        if (info->symbols[axis] != NULL)
            printf("%s", info->symbols[axis]);
        else
            printf("%" PRId64, info->dims[axis]);
    }
    printf("]\n");
}

/* A tensor of the smallest shape the model takes, filled from the file. The caller frees
 * tensor->data. */
static void make_input(const cuvil_tensor_info *info, const char *path, cuvil_tensor *tensor)
{
    size_t count = 1;
    *tensor = (cuvil_tensor){.dtype = info->dtype, .rank = info->rank};
    for (int axis = 0; axis < info->rank; axis++) {
        tensor->dims[axis] = info->lo[axis] > 0 ? info->lo[axis] : info->dims[axis] != 0;
        count *= (size_t)tensor->dims[axis];
    }
    tensor->data = calloc(count + (count == 0), dtype_bytes[info->dtype]);
    if (tensor->data == NULL)
        fail(info->name, "out of memory");
    if (path == NULL || (path[0] == '-' && path[1] == '\0'))
        return;
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(tensor->data, dtype_bytes[info->dtype], count, file) != count)
        fail(path, "cannot be read, or is shorter than the input");
    fclose(file);
}

static void print_value(const cuvil_tensor *tensor, size_t i)
{
    switch (tensor->dtype) {
    case CUVIL_FLOAT32: printf(" %g", (double)((const float *)tensor->data)[i]); break;
    case CUVIL_FLOAT64: printf(" %g", ((const double *)tensor->data)[i]); break;
    case CUVIL_INT32: printf(" %" PRId32, ((const int32_t *)tensor->data)[i]); break;
    case CUVIL_INT64: printf(" %" PRId64, ((const int64_t *)tensor->data)[i]); break;
    default: /* the bytes, last first: hexadecimal */
        printf(" 0x");
        for (size_t byte = dtype_bytes[tensor->dtype]; byte-- > 0;)
            printf("%02x", ((const uint8_t *)tensor->data)[i * dtype_bytes[tensor->dtype] + byte]);
    }
}

static void print_output(const char *name, const cuvil_tensor *tensor)
{
    size_t count = 1;
    printf("%s [", name);
    for (int axis = 0; axis < tensor->rank; axis++) {
        printf("%s%" PRId64, axis ? ", " : "", tensor->dims[axis]);
        count *= (size_t)tensor->dims[axis];
    }
    printf("]:");
    for (size_t i = 0; i < count && i < 8; i++)
        print_value(tensor, i);
    printf(count > 8 ? " ...\n" : "\n");
}

int main(int argc, char **argv)
{
    cuvil_api api;
    cuvil_model *model;
    cuvil_context *context;
    cuvil_tensor_info info;
    cuvil_tensor tensor;
    if (argc < 2)
        fail("usage", "run NAME.cuvil [INPUT.bin | -]...");
    const char *problem = cuvil_dl_load(&api, argv[1]);
    if (problem != NULL)
        fail("cannot load", problem);
    if (api.open(NULL, &model) || api.context_create(model, NULL, &context))
        fail(argv[1], api.last_error());

    int inputs = api.input_count(model), outputs = api.output_count(model);
    void **memory = calloc((size_t)inputs + 1, sizeof *memory);
    if (memory == NULL)
        fail(argv[1], "out of memory");
    printf("level %s\n", api.level_name(model));
    for (int i = 0; i < inputs; i++) {
        if (api.input_info(model, i, &info))
            fail(argv[1], api.last_error());
        print_info("input ", &info);
        make_input(&info, i + 2 < argc ? argv[i + 2] : NULL, &tensor);
        memory[i] = tensor.data;
        if (api.set_input(context, i, &tensor))
            fail(argv[1], api.last_error());
    }
    for (int i = 0; i < outputs; i++) {
        if (api.output_info(model, i, &info))
            fail(argv[1], api.last_error());
        print_info("output", &info);
    }
    if (api.run(context))
        fail(argv[1], api.last_error());
    for (int i = 0; i < outputs; i++) {
        if (api.output_info(model, i, &info) || api.get_output(context, i, &tensor))
            fail(argv[1], api.last_error());
        print_output(info.name, &tensor);
    }

    api.context_destroy(context);
    api.close(model);
    cuvil_dl_unload(&api);
    for (int i = 0; i < inputs; i++)
        free(memory[i]);
    free(memory);
    return 0;
}
