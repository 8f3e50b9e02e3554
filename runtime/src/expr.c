/* Shape expressions: evaluate them, spell them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

enum fault { FAULT_NONE, FAULT_OVERFLOW, FAULT_ZERO };

/* Division rounds to minus infinity, so the remainder has the divisor's sign. */
static enum fault divide(uint32_t op, int64_t a, int64_t b, int64_t *result)
{
    if (b == 0)
        return FAULT_ZERO;
    if (a == INT64_MIN && b == -1) {
        *result = 0;
        return op == CUVIL_EXPR_MOD ? FAULT_NONE : FAULT_OVERFLOW;
    }
    int64_t quotient = a / b, remainder = a % b;
    bool differ = (remainder < 0) != (b < 0);
    if (op == CUVIL_EXPR_MOD)
        *result = remainder != 0 && differ ? remainder + b : remainder;
    else if (op == CUVIL_EXPR_FLOORDIV)
        *result = remainder != 0 && differ ? quotient - 1 : quotient;
    else
        *result = remainder != 0 && !differ ? quotient + 1 : quotient;
    return FAULT_NONE;
}

static enum fault binary(uint32_t op, int64_t a, int64_t b, int64_t *result)
{
    bool overflow = false;
    switch (op) {
    case CUVIL_EXPR_ADD: overflow = __builtin_add_overflow(a, b, result); break;
    case CUVIL_EXPR_SUB: overflow = __builtin_sub_overflow(a, b, result); break;
    case CUVIL_EXPR_MUL: overflow = __builtin_mul_overflow(a, b, result); break;
    case CUVIL_EXPR_MIN: *result = a < b ? a : b; break;
    case CUVIL_EXPR_MAX: *result = a > b ? a : b; break;
    case CUVIL_EXPR_EQ: *result = a == b; break;
    case CUVIL_EXPR_LT: *result = a < b; break;
    default: return divide(op, a, b, result);
    }
    return overflow ? FAULT_OVERFLOW : FAULT_NONE;
}

void cuvil_symbols_text(const cuvil_model *model, const int64_t *symbols,
                        char text[CUVIL_TEXT_BYTES])
{
    size_t used = 0;
    snprintf(text, CUVIL_TEXT_BYTES, "any input");
    for (uint32_t i = 0; i < model->input_symbols && used < CUVIL_TEXT_BYTES; i++)
        used += (size_t)snprintf(text + used, CUVIL_TEXT_BYTES - used, "%s%s = %" PRId64,
                                 i ? ", " : "", cuvil_string(model, model->symbols[i].name),
                                 symbols[i]);
}

static cuvil_status report(const cuvil_model *model, const int64_t *symbols, uint32_t expr,
                           enum fault fault)
{
    char text[CUVIL_TEXT_BYTES], where[CUVIL_TEXT_BYTES];
    cuvil_expr_text(model, expr, text);
    cuvil_symbols_text(model, symbols, where);
    return cuvil_fail(CUVIL_ERROR_SHAPE, "the size `%s` %s for %s", text,
                      fault == FAULT_ZERO ? "divides by zero" : "overflows 64 bits", where);
}

cuvil_status cuvil_evaluate_one(const cuvil_model *model, const int64_t *symbols, int64_t *values,
                                uint32_t number)
{
    const cuvil_expr *expr = &model->exprs[number];
    enum fault fault = FAULT_NONE;
    if (expr->op == CUVIL_EXPR_CONST)
        values[number] = expr->imm;
    else if (expr->op == CUVIL_EXPR_SYMBOL)
        values[number] = symbols[expr->a];
    else if (expr->op == CUVIL_EXPR_LEVEL)
        values[number] = model->level;
    else if (expr->op == CUVIL_EXPR_SELECT)
        values[number] = values[expr->a] ? values[expr->b] : values[expr->imm];
    else
        fault = binary(expr->op, values[expr->a], values[expr->b], &values[number]);
    return fault == FAULT_NONE ? CUVIL_OK : report(model, symbols, number, fault);
}

cuvil_status cuvil_evaluate(const cuvil_model *model, const int64_t *symbols, int64_t *values)
{
    cuvil_status status = CUVIL_OK;
    for (uint32_t i = 0; i < model->expr_count && status == CUVIL_OK; i++)
        if (model->epochs[i] == 0)
            status = cuvil_evaluate_one(model, symbols, values, i);
    return status;
}

typedef struct {
    const cuvil_model *model;
    char *text;
    size_t used; /* CUVIL_TEXT_BYTES - 1 once full */
} writer;

static void put(writer *out, const char *text)
{
    size_t room = CUVIL_TEXT_BYTES - 1 - out->used, length = strlen(text);
    length = length < room ? length : room;
    memcpy(out->text + out->used, text, length);
    out->used += length;
}

/* `inside`: an operand of another expression. The depth limit bounds the stack and, as a full
 * buffer ends the walk, shared operands cannot make it long. */
static void spell(writer *out, uint32_t number, bool inside, int depth)
{
    static const char *const signs[] = {
        [CUVIL_EXPR_ADD] = " + ",      [CUVIL_EXPR_SUB] = " - ",        [CUVIL_EXPR_MUL] = "*",
        [CUVIL_EXPR_FLOORDIV] = "//",  [CUVIL_EXPR_MOD] = "%",          [CUVIL_EXPR_MIN] = "min",
        [CUVIL_EXPR_MAX] = "max",      [CUVIL_EXPR_EQ] = " == ",        [CUVIL_EXPR_LT] = " < ",
        [CUVIL_EXPR_SELECT] = "where", [CUVIL_EXPR_CEILDIV] = "ceildiv"};
    const cuvil_expr *expr = &out->model->exprs[number];
    char digits[24];
    if (expr->op == CUVIL_EXPR_CONST) {
        snprintf(digits, sizeof digits, "%" PRId64, expr->imm);
        put(out, digits);
    } else if (expr->op == CUVIL_EXPR_SYMBOL) {
        put(out, cuvil_string(out->model, out->model->symbols[expr->a].name));
    } else if (expr->op == CUVIL_EXPR_LEVEL) {
        put(out, "cpu_level");
    } else if (depth == 0 || out->used == CUVIL_TEXT_BYTES - 1) {
        put(out, "...");
    } else {
        const char *sign = signs[expr->op];
        bool call = sign[0] >= 'a' && sign[0] <= 'z';
        put(out, call ? sign : "");
        put(out, call || inside ? "(" : "");
        spell(out, expr->a, !call, depth - 1);
        put(out, call ? ", " : sign);
        spell(out, expr->b, !call, depth - 1);
        if (expr->op == CUVIL_EXPR_SELECT) {
            put(out, ", ");
            spell(out, (uint32_t)expr->imm, false, depth - 1);
        }
        put(out, call || inside ? ")" : "");
    }
}

void cuvil_expr_text(const cuvil_model *model, uint32_t expr, char text[CUVIL_TEXT_BYTES])
{
    writer out = {model, text, 0};
    spell(&out, expr, false, 8);
    text[out.used] = '\0';
}
