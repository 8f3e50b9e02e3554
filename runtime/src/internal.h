/* What the runtime's files share. Nothing here is visible outside model.so. */
#ifndef CUVIL_INTERNAL_H
#define CUVIL_INTERNAL_H

#include <stdbool.h>

#include "../include/cuvil.h"
#include "image.h"
#include "pool.h"

#define CUVIL_TEXT_BYTES 96 /* longest expression that messages and cuvil_tensor_info spell out */

/* A checked image: once cuvil_image_check accepts it, every index in it is in bounds. */
struct cuvil_model {
    const cuvil_image_header *header;
    const char *strings, *metadata;
    const cuvil_level *levels;
    const cuvil_symbol *symbols;
    const cuvil_expr *exprs;
    const uint32_t *dims, *operands;
    const cuvil_io *inputs, *outputs;
    const cuvil_buffer *buffers;
    const cuvil_step *steps;
    const unsigned char *weights;
    uint64_t string_bytes, weight_bytes;
    uint32_t level_count, symbol_count, expr_count, dim_count, operand_count;
    uint32_t input_count, output_count, buffer_count, step_count;

    uint32_t level;                  /* the chosen one */
    char (*texts)[CUVIL_TEXT_BYTES]; /* per DIMS entry: its expression */
    uint32_t *io_operands; /* places in `operands` that name an input's or output's buffer */
    uint32_t io_operand_count;
};

/* One tensor of a context: its shape and place. */
typedef struct {
    void *data;
    int64_t dims[CUVIL_MAX_RANK];
    int64_t bytes;
    bool set; /* by the caller */
} cuvil_slot;

struct cuvil_context {
    const cuvil_model *model;
    cuvil_pool *pool; /* NULL with one thread */
    int32_t threads;
    int64_t unshared_cost; /* of steps run alone since the pool fell asleep */
    cuvil_probe probe;
    void *probe_user;

    cuvil_slot *inputs;  /* the caller's */
    cuvil_slot *targets; /* memory that the caller offers for outputs */
    cuvil_slot *outputs; /* inferred shapes; data: where the result goes, the target or `block` */
    int64_t *symbols, *values; /* of each symbol, of each expression */
    void **pointers;           /* per entry of OPERANDS that is a buffer: where it lies now */
    int64_t *scalars;          /* per entry of OPERANDS that is an expression: its value now */

    unsigned char *block; /* mmap: arena, then outputs, then scratch of each thread */
    size_t block_bytes;
    unsigned char *scratch;
    size_t scratch_stride;

    bool bound;        /* values belong to symbols */
    bool dims_stale;   /* some input changed its shape since the last binding */
    bool memory_stale; /* shapes or output memory changed since the block was laid out */
    bool ran;          /* the outputs hold results */
};

/* error.c: store the message, return the status. */
cuvil_status cuvil_fail(cuvil_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* image.c, check.c */
cuvil_status cuvil_image_find(cuvil_model *model);
cuvil_status cuvil_image_check(const cuvil_model *model);
const char *cuvil_string(const cuvil_model *model, uint32_t offset);
int64_t cuvil_dtype_bytes(uint32_t dtype); /* 0 for an unknown dtype */
const char *cuvil_dtype_name(uint32_t dtype);

/* expr.c: all values in order; a fault names the expression. */
cuvil_status cuvil_evaluate(const cuvil_model *model, const int64_t *symbols, int64_t *values);
void cuvil_expr_text(const cuvil_model *model, uint32_t expr, char text[CUVIL_TEXT_BYTES]);
/* "n = 3, m = 2": as many symbols as there is room for. */
void cuvil_symbols_text(const cuvil_model *model, const int64_t *symbols,
                        char text[CUVIL_TEXT_BYTES]);

/* tensor.c: check a caller's tensor against its declaration, and on success store it in the slot.
 */
cuvil_status cuvil_accept(const cuvil_model *model, const cuvil_io *io, const char *role,
                          const cuvil_tensor *tensor, cuvil_slot *slot);
/* Bytes of a shape; false on a negative dimension or more than 2^62 bytes. */
bool cuvil_shape_bytes(uint32_t dtype, uint32_t rank, const int64_t *dims, int64_t *bytes);

/* shape.c: bind symbols from the inputs, evaluate, check every dimension and size. */
cuvil_status cuvil_bind(cuvil_context *context);
/* Refuse the bound sizes unless the condition of a REQUIRE step holds. */
cuvil_status cuvil_require(const cuvil_context *context, const cuvil_step *step);

/* memory.c: lay the block out, resolve pointers and scalars. */
cuvil_status cuvil_place(cuvil_context *context);
void cuvil_release(cuvil_context *context);

#endif
