/* cuvil: the C API of a compiled model. It lives in model.so itself: link the .so, or dlopen it and
 * look the functions up (cuvil_dl.h does that). Needs C11, libc, libm, pthreads; nothing else.
 *
 *     cuvil_model *model; cuvil_context *context;
 *     cuvil_open(NULL, &model);
 *     cuvil_context_create(model, NULL, &context);
 *     cuvil_set_input(context, 0, &tensor);          // checked here: dtype, rank, dims
 *     cuvil_run(context);
 *     cuvil_get_output(context, 0, &result);         // result.data lives until the next run
 *
 * Every call returns CUVIL_OK or a code; cuvil_last_error() then says more (thread-local, valid
 * until this thread's next call). A model may be shared by threads; a context belongs to one thread
 * at a time, has its own threads and memory, and any number of them run at once. A run allocates
 * nothing unless its sizes need more memory than any before.
 *
 * Some sizes may be known only while the model runs: how many elements are not zero, say. An output
 * with such a dimension gets it during cuvil_run.
 */
#ifndef CUVIL_H
#define CUVIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUVIL_API_VERSION 1
#if defined(__GNUC__)
#define CUVIL_API __attribute__((visibility("default")))
#else
#define CUVIL_API
#endif

typedef struct cuvil_model cuvil_model;
typedef struct cuvil_context cuvil_context;

/* The numbers are the diagnostics' codes: `cuvilc explain CUV601`. */
typedef enum {
    CUVIL_OK = 0,
    CUVIL_ERROR_PACKAGE = 601,   /* no image, wrong magic or checksum, bad index: corrupt */
    CUVIL_ERROR_VERSION = 602,   /* image of another format version */
    CUVIL_ERROR_CPU = 603,       /* the CPU lacks features; the message lists them */
    CUVIL_ERROR_INPUT = 604,     /* unknown input, or not set before the run */
    CUVIL_ERROR_DTYPE = 605,
    CUVIL_ERROR_SHAPE = 606,     /* rank or dimension differs, or lies outside its range */
    CUVIL_ERROR_STRIDES = 607,   /* not C-contiguous, or misaligned for its dtype */
    CUVIL_ERROR_MEMORY = 608,
    CUVIL_ERROR_KERNEL = 609,    /* a fault in the data, such as an index out of range */
    CUVIL_ERROR_ARGUMENT = 610,  /* null pointer, index out of range, unknown option */
    CUVIL_ERROR_ADAPTER = 611,   /* an adapter is damaged, or was built for another package */
    CUVIL_ERROR_NO_ADAPTER = 612 /* no adapter of that name, or a package that takes none */
} cuvil_status;

typedef enum {
    CUVIL_FLOAT32 = 0, CUVIL_FLOAT64, CUVIL_FLOAT16, CUVIL_BFLOAT16,
    CUVIL_INT8, CUVIL_INT16, CUVIL_INT32, CUVIL_INT64,
    CUVIL_UINT8, CUVIL_UINT16, CUVIL_UINT32, CUVIL_UINT64, CUVIL_BOOL,
    /* One byte each: a float's code in the low bits, the rest 0; an integer's value as int8_t or
     * uint8_t. Of an input only the low bits are read. */
    CUVIL_FLOAT8_E4M3FN, CUVIL_FLOAT8_E4M3FNUZ, CUVIL_FLOAT8_E5M2, CUVIL_FLOAT8_E5M2FNUZ,
    CUVIL_FLOAT8_E8M0FNU, CUVIL_FLOAT6_E2M3FN, CUVIL_FLOAT6_E3M2FN, CUVIL_FLOAT4_E2M1FN,
    CUVIL_INT4, CUVIL_UINT4, CUVIL_INT2, CUVIL_UINT2
} cuvil_dtype;

#define CUVIL_MAX_RANK 8

typedef struct {
    void *data;                      /* host memory, aligned to the element */
    cuvil_dtype dtype;
    int32_t rank;
    int64_t dims[CUVIL_MAX_RANK];
    const int64_t *strides;          /* in elements; NULL: C-contiguous */
} cuvil_tensor;

typedef struct {
    const char *name;
    cuvil_dtype dtype;
    int32_t rank;
    int64_t dims[CUVIL_MAX_RANK];    /* -1 where dynamic or computed */
    const char *symbols[CUVIL_MAX_RANK]; /* the dynamic dim's name or expression, else NULL */
    int64_t lo[CUVIL_MAX_RANK], hi[CUVIL_MAX_RANK]; /* range of each dim; hi INT64_MAX: unbounded */
} cuvil_tensor_info;

typedef struct {
    size_t struct_bytes;             /* sizeof(cuvil_options), for compatibility */
    int32_t threads;                 /* 0: as many as CPUs that the process may run on */
} cuvil_options;

typedef struct {                     /* one executed step, as given to a probe */
    const char *kernel, *layer;
    uint32_t step, threads;
    uint64_t begin_ns, end_ns;       /* CLOCK_MONOTONIC */
    int64_t cost;
} cuvil_event;
typedef void (*cuvil_probe)(const cuvil_event *event, void *user);

/* Check header, sizes and version, choose the CPU level. level: NULL for the best, else a name from
 * metadata such as "x86-64-v3". */
CUVIL_API cuvil_status cuvil_open(const char *level, cuvil_model **model);
CUVIL_API void cuvil_close(cuvil_model *model);
CUVIL_API const char *cuvil_last_error(void);
CUVIL_API const char *cuvil_metadata(void);
CUVIL_API uint32_t cuvil_api_version(void);

CUVIL_API const char *cuvil_level_name(const cuvil_model *model);
CUVIL_API int32_t cuvil_input_count(const cuvil_model *model);
CUVIL_API int32_t cuvil_output_count(const cuvil_model *model);
CUVIL_API cuvil_status cuvil_input_info(const cuvil_model *model, int32_t index,
                                        cuvil_tensor_info *info);
CUVIL_API cuvil_status cuvil_output_info(const cuvil_model *model, int32_t index,
                                         cuvil_tensor_info *info);

CUVIL_API cuvil_status cuvil_context_create(cuvil_model *model, const cuvil_options *options,
                                            cuvil_context **context);
CUVIL_API void cuvil_context_destroy(cuvil_context *context);

/* The tensor's memory is read during cuvil_run, not copied. */
CUVIL_API cuvil_status cuvil_set_input(cuvil_context *context, int32_t index,
                                       const cuvil_tensor *tensor);
/* Shapes of all outputs for the inputs set so far; binds and checks every symbol. A dimension that
 * only a run can tell is -1 then, whatever it was in an earlier run, whose results are given up. */
CUVIL_API cuvil_status cuvil_infer_shapes(cuvil_context *context);
/* After cuvil_infer_shapes or cuvil_run: shape, and after a run the data, with every dimension. */
CUVIL_API cuvil_status cuvil_get_output(cuvil_context *context, int32_t index,
                                        cuvil_tensor *tensor);
/* Optional: let output `index` be written to the caller's memory, which must overlap no input and
 * no other output. NULL tensor: back to the context's own. Dimensions that are not known before the
 * run are compared while it runs: CUVIL_ERROR_SHAPE when they differ. */
CUVIL_API cuvil_status cuvil_set_output(cuvil_context *context, int32_t index,
                                        const cuvil_tensor *tensor);
CUVIL_API cuvil_status cuvil_run(cuvil_context *context);

/* Adapters, of a package that was built with --lora swap. All of these may be called while other
 * threads run the model, but not from a probe; a run finishes with the adapter that it began with.
 *
 * cuvil_use_adapter: runs that begin afterwards see the weights that the adapter asks for, made anew
 * from the package's own; NULL: the package's own. It returns when they are ready, and does nothing
 * when it fails. */
typedef struct {
    char name[128];      /* longer names are cut off */
    uint8_t source[32];  /* SHA-256 of the tensors that the adapter was built from */
    int32_t rank;        /* the largest */
    int32_t tensors;     /* changes */
    uint64_t bytes;
    bool active;         /* what a run would use now */
} cuvil_adapter_info;
CUVIL_API int32_t cuvil_adapter_count(cuvil_model *model);
CUVIL_API cuvil_status cuvil_get_adapter(cuvil_model *model, int32_t index,
                                         cuvil_adapter_info *info);
CUVIL_API cuvil_status cuvil_use_adapter(cuvil_model *model, const char *name);
/* A .cuvla file, made for this package by `cuvilc adapter build`. name: NULL for the one it has. The
 * file is read, and not needed afterwards. */
CUVIL_API cuvil_status cuvil_load_adapter(cuvil_model *model, const char *path, const char *name);
/* Not the one in use. Waits for runs that still read what it made. */
CUVIL_API cuvil_status cuvil_unload_adapter(cuvil_model *model, const char *name);

/* Batches, of a package that was built with --lora batch: every part of a batch (an index of the
 * first axis of the first input) has an adapter of its own, or none. Adapters are loaded and unloaded
 * as above, but cuvil_use_adapter does not take them.
 *
 * A tenant has adapters that nobody else can name; the model's own are those of tenant NULL. What is
 * equal in several is in memory once, whoever brought it. A tenant is made when it is first asked
 * for and lives until cuvil_close. */
typedef struct cuvil_tenant cuvil_tenant;
CUVIL_API cuvil_status cuvil_get_tenant(cuvil_model *model, const char *name,
                                        cuvil_tenant **tenant);
CUVIL_API cuvil_status cuvil_tenant_load_adapter(cuvil_tenant *tenant, const char *path,
                                                 const char *name);
CUVIL_API cuvil_status cuvil_tenant_unload_adapter(cuvil_tenant *tenant, const char *name);
CUVIL_API int32_t cuvil_tenant_adapter_count(cuvil_tenant *tenant);
CUVIL_API cuvil_status cuvil_tenant_get_adapter(cuvil_tenant *tenant, int32_t index,
                                                cuvil_adapter_info *info);
/* For the runs of this context from now on: the tenant's adapter of each part of the batch, NULL for
 * none; count 0: none at all. The context holds them until it is told otherwise or destroyed, also
 * when they are unloaded meanwhile. On failure it keeps what it had. */
CUVIL_API cuvil_status cuvil_set_adapters(cuvil_context *context, cuvil_tenant *tenant,
                                          const char *const *names, int32_t count);
typedef struct {
    int64_t page_bytes;
    int64_t pages;    /* in memory */
    int64_t shared;   /* that would be there besides if equal tensors were not shared */
    int64_t adapters; /* with pages: all tenants', and unloaded ones that a context holds */
    uint64_t bytes;   /* of all pages */
} cuvil_pages_info;
CUVIL_API cuvil_status cuvil_get_pages(cuvil_model *model, cuvil_pages_info *info);

/* Bytes of weights that the model keeps in a form of its own, made when it was opened. */
CUVIL_API size_t cuvil_model_bytes(const cuvil_model *model);
/* Bytes of arena, scratch and growing blocks that this context holds. */
CUVIL_API size_t cuvil_context_bytes(const cuvil_context *context);
/* Call probe after every step; NULL turns it off again and costs nothing. */
CUVIL_API cuvil_status cuvil_set_probe(cuvil_context *context, cuvil_probe probe, void *user);

#ifdef __cplusplus
}
#endif
#endif
