/* Check a caller's tensor: dtype, rank, dimensions, contiguity, alignment, in this order. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define SHAPE_TEXT_BYTES 200

static void shape_text(uint32_t rank, const int64_t *dims, char text[SHAPE_TEXT_BYTES])
{
    size_t used = 1;
    strcpy(text, "[");
    for (uint32_t i = 0; i < rank; i++)
        used += (size_t)snprintf(text + used, SHAPE_TEXT_BYTES - used, "%s%" PRId64, i ? ", " : "",
                                 dims[i]);
    strcpy(text + used, "]"); /* eight numbers of at most 20 characters always leave room */
}

bool cuvil_shape_bytes(uint32_t dtype, uint32_t rank, const int64_t *dims, int64_t *bytes)
{
    bool overflow = false, empty = false;
    *bytes = cuvil_dtype_bytes(dtype);
    for (uint32_t i = 0; i < rank; i++) {
        if (dims[i] < 0)
            return false;
        empty |= dims[i] == 0;
        overflow |= __builtin_mul_overflow(*bytes, dims[i], bytes);
    }
    if (empty)
        *bytes = 0;
    return empty || (!overflow && *bytes <= INT64_MAX / 2);
}

void cuvil_range_text(const cuvil_symbol *symbol, char text[CUVIL_TEXT_BYTES])
{
    int used = snprintf(text, CUVIL_TEXT_BYTES, "%" PRId64, symbol->lo);
    if (symbol->hi == INT64_MAX)
        strcpy(text + used, " or more");
    else
        snprintf(text + used, CUVIL_TEXT_BYTES - (size_t)used, "..%" PRId64, symbol->hi);
}

static cuvil_status check_dim(const cuvil_model *model, const char *name, const char *role,
                              const cuvil_expr *expr, uint32_t axis, int64_t dim)
{
    if (expr->op == CUVIL_EXPR_CONST && dim != expr->imm)
        return cuvil_fail(CUVIL_ERROR_SHAPE, "%s `%s`: axis %u is %" PRId64 ", must be %" PRId64,
                          role, name, axis, dim, expr->imm);
    if (expr->op != CUVIL_EXPR_SYMBOL)
        return CUVIL_OK;
    const cuvil_symbol *symbol = &model->symbols[expr->a];
    if (dim >= symbol->lo && dim <= symbol->hi)
        return CUVIL_OK;
    char range[CUVIL_TEXT_BYTES];
    cuvil_range_text(symbol, range);
    return cuvil_fail(CUVIL_ERROR_SHAPE,
                      "%s `%s`: axis %u is %" PRId64 ", allowed is %s (symbol %s)", role, name,
                      axis, dim, range, cuvil_string(model, symbol->name));
}

static cuvil_status check_strides(const cuvil_tensor *tensor, const char *name, const char *role)
{
    int64_t expected = 1;
    for (int32_t axis = tensor->rank - 1; tensor->strides != NULL && axis >= 0; axis--) {
        if (tensor->dims[axis] != 1 && tensor->strides[axis] != expected)
            return cuvil_fail(CUVIL_ERROR_STRIDES,
                              "%s `%s` is not C-contiguous: axis %d has stride %" PRId64
                              ", expected %" PRId64 "; copy it first",
                              role, name, axis, tensor->strides[axis], expected);
        expected *= tensor->dims[axis];
    }
    uint64_t alignment = (uint64_t)cuvil_dtype_bytes(tensor->dtype);
    if ((uintptr_t)tensor->data % alignment != 0)
        return cuvil_fail(CUVIL_ERROR_STRIDES,
                          "%s `%s` lies at %p, not aligned to its %s (%d bytes)", role, name,
                          tensor->data, cuvil_dtype_name(tensor->dtype), (int)alignment);
    return CUVIL_OK;
}

cuvil_status cuvil_accept(const cuvil_model *model, const cuvil_io *io, const char *role,
                          const cuvil_tensor *tensor, cuvil_slot *slot)
{
    const char *name = cuvil_string(model, io->name);
    if ((uint32_t)tensor->dtype != io->dtype)
        return cuvil_fail(CUVIL_ERROR_DTYPE, "%s `%s` is %s, the model declares %s", role, name,
                          cuvil_dtype_name(tensor->dtype), cuvil_dtype_name(io->dtype));
    if ((uint32_t)tensor->rank != io->rank) {
        char shape[SHAPE_TEXT_BYTES] = "[..]";
        if (tensor->rank >= 0 && tensor->rank <= CUVIL_MAX_RANK)
            shape_text((uint32_t)tensor->rank, tensor->dims, shape);
        return cuvil_fail(CUVIL_ERROR_SHAPE,
                          "%s `%s` has rank %d (shape %s), the model declares rank %u", role, name,
                          tensor->rank, shape, io->rank);
    }
    int64_t bytes;
    for (uint32_t axis = 0; axis < io->rank; axis++) {
        const cuvil_expr *expr = &model->exprs[model->dims[io->dims + axis]];
        cuvil_status status = check_dim(model, name, role, expr, axis, tensor->dims[axis]);
        if (status != CUVIL_OK)
            return status;
    }
    if (!cuvil_shape_bytes(io->dtype, io->rank, tensor->dims, &bytes)) {
        char shape[SHAPE_TEXT_BYTES];
        shape_text(io->rank, tensor->dims, shape);
        return cuvil_fail(CUVIL_ERROR_SHAPE, "%s `%s` has shape %s: negative or beyond 64 bits",
                          role, name, shape);
    }
    if (tensor->data == NULL && bytes > 0)
        return cuvil_fail(CUVIL_ERROR_ARGUMENT, "%s `%s` has %" PRId64 " bytes at a null pointer",
                          role, name, bytes);
    cuvil_status status = check_strides(tensor, name, role);
    if (status != CUVIL_OK)
        return status;
    slot->data = tensor->data;
    slot->bytes = bytes;
    slot->set = true;
    memcpy(slot->dims, tensor->dims, io->rank * sizeof slot->dims[0]);
    return CUVIL_OK;
}
