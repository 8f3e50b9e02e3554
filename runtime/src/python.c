/* A run from CPython in one step, for inputs that fit as they are. Through ctypes a call costs some
 * 0.3 us for each function and more for the Python code between, most of a small model's time.
 *
 * The library needs no Python and names no symbol of it: the loader hands over the addresses of
 * functions of the stable ABI (CPython 3.11), and makes a built-in function of cuvil_python_run.
 * Whatever is out of the ordinary, such as an array to convert, a size that the model cannot take or
 * a misspelt name, is answered with None and left to the loader's own code, which also says what is
 * wrong. An exception goes on to the caller where the loader might not meet it again: what makes an
 * output's array has no memory, or is interrupted from the keyboard. */
#include <stdint.h>
#include <string.h>

#include "internal.h"

typedef struct object object; /* PyObject */

/* Py_buffer, part of the stable ABI. */
typedef struct {
    void *data;
    object *owner;
    intptr_t bytes, item_bytes;
    int readonly, rank;
    char *format;
    intptr_t *shape, *strides, *suboffsets;
    void *internal;
} buffer_view;
/* PyBUF_WRITABLE, PyBUF_FORMAT, PyBUF_C_CONTIGUOUS */
enum { WRITABLE = 0x1, FORMAT = 0x4, C_CONTIGUOUS = 0x38 };

/* In the order of `_quick.py`. "Borrowed": the result is not to be released. */
typedef struct {
    object *(*tuple_get)(object *tuple, intptr_t place); /* borrowed */
    object *(*tuple_new)(intptr_t length);
    int (*tuple_set)(object *tuple, intptr_t place, object *value); /* takes the value over */
    object *(*integer)(long long value);
    void *(*integer_as_pointer)(object *integer);
    object *(*type)(object *value);
    intptr_t (*dict_size)(object *dict);
    object *(*dict_get)(object *dict, object *key); /* borrowed */
    int (*dict_set)(object *dict, object *key, object *value);
    object *(*dict_new)(void);
    object *(*call)(object *callable, object *arguments, object *keywords);
    int (*get_buffer)(object *value, buffer_view *view, int flags);
    void (*release_buffer)(buffer_view *view);
    object *(*error)(void); /* borrowed */
    void (*clear_error)(void);
    void *(*save_thread)(void);
    void (*restore_thread)(void *state);
    void (*hold)(object *value);
    void (*release)(object *value);
} interpreter;
static interpreter python;

/* What the calls of one context have in common; the loader keeps it and what it points to. */
typedef struct {
    cuvil_context *context;
    object *dict_type, *array_type, *none;
    object *const *inputs, *const *outputs; /* names */
    object *const *makers;                  /* makers[i](dims): an array for output i */
    buffer_view *views;                     /* room for each input's */
} python_call;

/* Called before any cuvil_python_run, with the GIL. CUVIL_ERROR_VERSION: by a loader that knows
 * other functions. */
CUVIL_API cuvil_status cuvil_python_bind(const void *functions, size_t bytes);
/* (feeds, out) -> outputs by name, the status of a run that failed, or None. NULL: an exception. */
CUVIL_API object *cuvil_python_run(object *self, object *const *arguments, intptr_t count);

cuvil_status cuvil_python_bind(const void *functions, size_t bytes)
{
    if (functions == NULL || bytes != sizeof python)
        return cuvil_fail(CUVIL_ERROR_VERSION, "%zu bytes of functions, this library wants %zu",
                          bytes, sizeof python);
    if (python.release == NULL) /* else another thread may be in a run with them */
        memcpy(&python, functions, bytes);
    return CUVIL_OK;
}

/* The letters of Python's module struct for what the loader accepts as this dtype. */
static const char *formats_of(uint32_t dtype)
{
    switch (dtype) {
    case CUVIL_FLOAT32: return "f";
    case CUVIL_FLOAT64: return "d";
    case CUVIL_FLOAT16: return "e";
    case CUVIL_BFLOAT16:
    case CUVIL_UINT16: return "H";
    case CUVIL_INT8: return "b";
    case CUVIL_INT16: return "h";
    case CUVIL_INT32:
    case CUVIL_INT64: return "ilq"; /* their sizes differ between systems */
    case CUVIL_UINT32:
    case CUVIL_UINT64: return "ILQ";
    case CUVIL_BOOL: return "?";
    case CUVIL_INT4:
    case CUVIL_UINT4:
    case CUVIL_INT2:
    case CUVIL_UINT2: return "bB";
    default: return "B"; /* uint8, and codes of narrow floats */
    }
}

/* The viewed array as a tensor; false when it is no array of the port's dtype. */
static bool describe(const buffer_view *view, const cuvil_io *io, cuvil_tensor *tensor)
{
    const char *format = view->format;
    if (format == NULL || format[0] == 0 || format[1] != 0 || view->rank > CUVIL_MAX_RANK ||
        strchr(formats_of(io->dtype), format[0]) == NULL ||
        view->item_bytes != cuvil_dtype_bytes(io->dtype))
        return false;
    *tensor = (cuvil_tensor){.data = view->data, .dtype = io->dtype, .rank = view->rank};
    for (int axis = 0; axis < view->rank; axis++)
        tensor->dims[axis] = view->shape[axis];
    return true;
}

static bool is_of(object *value, const object *type)
{
    object *found = python.type(value);
    python.release(found); /* the value holds it */
    return found == type;
}

/* The value of a name, borrowed; NULL also where a key fails to be compared. */
static object *look_up(object *dict, object *name)
{
    object *value = python.dict_get(dict, name);
    if (value == NULL)
        python.clear_error();
    return value;
}

/* Look at an input's array and give it to the context; the view is held when it was taken. */
static bool set_input(const python_call *call, object *feeds, uint32_t index)
{
    object *value = look_up(feeds, call->inputs[index]);
    buffer_view *view = &call->views[index];
    if (value == NULL || !is_of(value, call->array_type) ||
        python.get_buffer(value, view, FORMAT | C_CONTIGUOUS) != 0) {
        python.clear_error();
        return false;
    }
    cuvil_tensor tensor;
    if (describe(view, &call->context->model->inputs[index], &tensor) &&
        cuvil_set_input(call->context, (int32_t)index, &tensor) == CUVIL_OK)
        return true;
    python.release_buffer(view);
    return false;
}

/* ((dim, …),): a maker's arguments. NULL: no memory, or a dimension that only the run can tell. */
static object *shape_arguments(const int64_t *dims, uint32_t rank)
{
    object *arguments = python.tuple_new(1), *shape = python.tuple_new(rank);
    bool good = arguments != NULL && shape != NULL;
    for (uint32_t axis = 0; good && axis < rank; axis++) {
        object *dim = dims[axis] < 0 ? NULL : python.integer(dims[axis]);
        good = dim != NULL && python.tuple_set(shape, axis, dim) == 0;
    }
    if (good && python.tuple_set(arguments, 0, shape) == 0)
        return arguments;
    python.release(arguments);
    python.release(shape);
    return NULL;
}

/* A new array for an output. */
static object *make_output(const python_call *call, uint32_t index)
{
    const cuvil_context *context = call->context;
    uint32_t rank = context->model->outputs[index].rank;
    object *arguments = shape_arguments(context->outputs[index].dims, rank);
    if (arguments == NULL)
        return NULL;
    object *array = python.call(call->makers[index], arguments, NULL);
    python.release(arguments);
    return array;
}

/* The caller's array for an output; NULL when it gave none. */
static object *find_output(const python_call *call, object *out, uint32_t index)
{
    object *array = out == call->none ? NULL : look_up(out, call->outputs[index]);
    if (array != NULL)
        python.hold(array);
    return array;
}

/* Give an output's array to the context and store it in `results`. */
static bool set_output(const python_call *call, object *out, object *results, uint32_t index)
{
    object *array = find_output(call, out, index);
    if (array == NULL)
        array = make_output(call, index);
    if (array == NULL)
        return false;
    buffer_view view;
    bool good = is_of(array, call->array_type) &&
                python.get_buffer(array, &view, FORMAT | C_CONTIGUOUS | WRITABLE) == 0;
    if (good) {
        cuvil_tensor tensor;
        good = describe(&view, &call->context->model->outputs[index], &tensor) &&
               cuvil_set_output(call->context, (int32_t)index, &tensor) == CUVIL_OK &&
               python.dict_set(results, call->outputs[index], array) == 0;
        python.release_buffer(&view);
    } else {
        python.clear_error();
    }
    python.release(array); /* `results` holds it */
    return good;
}

/* Whether all names of `out` are outputs'. */
static bool knows_names(const python_call *call, object *out)
{
    intptr_t known = 0;
    for (uint32_t i = 0; i < call->context->model->output_count; i++)
        known += look_up(out, call->outputs[i]) != NULL;
    return python.dict_size(out) == known;
}

/* The outputs by name; of a run that failed its status as an int; NULL: not done, or an exception.
 */
static object *run(const python_call *call, object *out)
{
    cuvil_context *context = call->context;
    object *results = python.dict_new();
    uint32_t set = 0, outputs = context->model->output_count;
    while (results != NULL && set < outputs && set_output(call, out, results, set))
        set++;
    cuvil_status status = CUVIL_OK;
    if (results != NULL && set == outputs) {
        void *state = python.save_thread();
        status = cuvil_run(context);
        python.restore_thread(state);
        if (status == CUVIL_OK)
            return results;
    }
    python.release(results);
    return status == CUVIL_OK ? NULL : python.integer(status);
}

object *cuvil_python_run(object *self, object *const *arguments, intptr_t count)
{
    const python_call *call = python.integer_as_pointer(python.tuple_get(self, 0));
    uint32_t held = 0, inputs = cuvil_visible_inputs(call->context->model);
    object *results = NULL, *feeds = count == 2 ? arguments[0] : call->none;
    object *out = count == 2 ? arguments[1] : call->none;
    if (is_of(feeds, call->dict_type) && python.dict_size(feeds) == (intptr_t)inputs &&
        (out == call->none || (is_of(out, call->dict_type) && knows_names(call, out)))) {
        while (held < inputs && set_input(call, feeds, held))
            held++;
        if (held == inputs && cuvil_bind(call->context) == CUVIL_OK)
            results = run(call, out);
        while (held > 0)
            python.release_buffer(&call->views[--held]);
    }
    if (results == NULL && python.error() == NULL) {
        results = call->none;
        python.hold(results);
    }
    return results;
}
