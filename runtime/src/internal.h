/* What the runtime's files share. Nothing here is visible outside model.so. */
#ifndef CUVIL_INTERNAL_H
#define CUVIL_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "../include/cuvil.h"
#include "adapter.h"
#include "image.h"
#include "pages.h"
#include "pool.h"

#define CUVIL_MAX_THREADS 1024
#define CUVIL_TEXT_BYTES 96 /* longest expression that messages and cuvil_tensor_info spell out */

/* What must be renewed when a computed symbol gets a value: an expression, an output, a buffer, the
 * scratch of a step, or an entry of OPERANDS that holds a scalar or a pointer. */
enum {
    CUVIL_FOLLOWER_EXPR,
    CUVIL_FOLLOWER_OUTPUT,
    CUVIL_FOLLOWER_BUFFER,
    CUVIL_FOLLOWER_SCRATCH,
    CUVIL_FOLLOWER_SCALAR,
    CUVIL_FOLLOWER_POINTER
};
typedef struct {
    uint32_t kind, number;
} cuvil_follower;

typedef struct cuvil_adapter cuvil_adapter;
struct cuvil_adapter {
    char *name;
    const cuvil_adapter_header *header;
    const cuvil_adapter_entry *entries; /* checked */
    int64_t *ends;                      /* of each: panels to merge in it and all before it */
    void *mapped;                       /* a file's mapping; NULL: part of the image */
    cuvil_page_table pages;             /* of a batched model's */
    int64_t users;                      /* contexts that hold it, as often as in a batch */
    bool unloaded;                      /* and alive for them alone */
    cuvil_adapter *next;
};

/* One state of all adaptable weights (swap.c). */
typedef struct {
    const void **places;          /* of each adaptable weight */
    const cuvil_adapter *adapter; /* whose weights they are; NULL: nobody's */
    unsigned char *shadow;        /* memory for weights that are not the package's own */
    uint8_t *panels;              /* of all weights: what the shadow holds of each */
    int64_t readers;              /* runs that hold it */
    uint64_t serial;              /* another one after every change */
} cuvil_view;
#define CUVIL_VIEWS 3

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
    uint32_t prepare_count; /* the first steps: they run when the model is opened */

    uint32_t level;                  /* the chosen one */
    char (*texts)[CUVIL_TEXT_BYTES]; /* per DIMS entry: its expression */
    uint32_t *io_operands; /* places in `operands` that name an input's or output's buffer */
    uint32_t io_operand_count;

    unsigned char *prepared; /* mmap: what PREPARE steps made */
    size_t prepared_bytes;

    bool dynamic;           /* places change while it runs: it has computed symbols or heap slots */
    uint32_t input_symbols; /* how many are read from inputs; the computed ones follow */
    uint32_t slot_count;
    uint32_t *epochs;          /* of each expression (image.h) */
    cuvil_follower *followers; /* sorted by epoch */
    size_t *follower_ends;     /* of epoch e: those before entry e, from entry e - 1 on */

    const cuvil_adaptable *adaptable;
    uint32_t adaptable_count;
    bool takes_adapters; /* what follows exists */
    const cuvil_lora *lora; /* NULL where nothing is adaptable */
    const unsigned char *adapter_data;
    uint64_t adapter_bytes;
    uint32_t *adapted_operands; /* places in `operands` that name an adapted buffer */
    uint32_t adapted_operand_count;

    pthread_mutex_t lock;     /* guards what follows, and the views but for their contents */
    pthread_mutex_t swapping; /* one swap at a time; taken before `lock` */
    pthread_cond_t idle;      /* some view lost its last reader */
    cuvil_adapter *adapters;
    cuvil_tenant *tenants;
    cuvil_pages *pages; /* of a batched model */
    cuvil_view views[CUVIL_VIEWS];
    uint32_t current;
    uint64_t serials;
    uint64_t shadow_bytes, *shadow_offsets; /* of each adaptable weight in a shadow */
    size_t *first_panels;                   /* of each among all weights' panels */
    float *ones;
    cuvil_pool *pool; /* that merges */
};

/* One tensor of a context: its shape and place. */
typedef struct {
    void *data;
    int64_t dims[CUVIL_MAX_RANK];
    int64_t bytes;
    bool set; /* by the caller; of an output: all of its dims are known */
} cuvil_slot;

/* Memory of its own that grows and keeps its content: mmap. */
typedef struct {
    unsigned char *data;
    size_t bytes;
} cuvil_block;

struct cuvil_context {
    const cuvil_model *model;
    cuvil_model *owner;     /* the same, for what its lock guards */
    const cuvil_view *view; /* during a run of a model that takes adapters */
    uint64_t view_serial;   /* of the view that the pointers were resolved for */
    cuvil_pool *pool; /* NULL with one thread */
    int32_t threads;
    int64_t unshared_cost; /* of steps run alone since the pool fell asleep */
    cuvil_probe probe;
    void *probe_user;

    cuvil_slot *inputs;  /* the caller's */
    cuvil_slot *targets; /* memory that the caller offers for outputs */
    cuvil_slot *outputs; /* inferred shapes, -1 where not known yet; data: where the result goes,
                            the target or a block */
    int64_t *symbols, *values; /* of each symbol, of each expression */
    void **pointers;           /* per entry of OPERANDS that is a buffer: where it lies now */
    int64_t *scalars;          /* per entry of OPERANDS that is an expression: its value now */

    unsigned char *block; /* mmap: arena, then outputs, then scratch of each thread */
    size_t block_bytes;
    unsigned char *scratch;
    size_t scratch_stride;
    cuvil_block *heap; /* heap slots, then of each output with computed dims, then scratch */
    size_t heap_count;

    cuvil_adapter **adapters; /* of each part of the batch; NULL: none */
    int64_t adapter_count;
    int64_t *slots, slot_room; /* what kernels read of them */
    int64_t rank;              /* the largest so far */

    bool bound;        /* values belong to symbols */
    bool dims_stale;   /* some input changed its shape since the last binding */
    bool memory_stale; /* shapes or output memory changed since the block was laid out */
    bool ran;          /* the outputs hold results */
};

/* error.c: store the message, return the status. */
cuvil_status cuvil_fail(cuvil_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* A kernel as the CPU level in use has it. */
static inline cuvil_kernel cuvil_kernel_of(const cuvil_model *model, uint32_t number)
{
    return cuvil_kernel_table[model->level * cuvil_kernel_count + number];
}

/* image.c, check.c */
cuvil_status cuvil_image_find(cuvil_model *model);
cuvil_status cuvil_image_check(const cuvil_model *model);
const char *cuvil_string(const cuvil_model *model, uint32_t offset);
int64_t cuvil_dtype_bytes(uint32_t dtype); /* 0 for an unknown dtype */
const char *cuvil_dtype_name(uint32_t dtype);

/* expr.c: all values of epoch 0 in order, or one; a fault names the expression. */
cuvil_status cuvil_evaluate(const cuvil_model *model, const int64_t *symbols, int64_t *values);
cuvil_status cuvil_evaluate_one(const cuvil_model *model, const int64_t *symbols, int64_t *values,
                                uint32_t number);
void cuvil_expr_text(const cuvil_model *model, uint32_t expr, char text[CUVIL_TEXT_BYTES]);
/* "n = 3, m = 2": as many symbols as there is room for, computed ones left out. */
void cuvil_symbols_text(const cuvil_model *model, const int64_t *symbols,
                        char text[CUVIL_TEXT_BYTES]);

/* tensor.c: check a caller's tensor against its declaration, and on success store it in the slot.
 */
cuvil_status cuvil_accept(const cuvil_model *model, const cuvil_io *io, const char *role,
                          const cuvil_tensor *tensor, cuvil_slot *slot);
/* Bytes of a shape; false on a negative dimension or more than 2^62 bytes. */
bool cuvil_shape_bytes(uint32_t dtype, uint32_t rank, const int64_t *dims, int64_t *bytes);
/* "1..64" or "1 or more". */
void cuvil_range_text(const cuvil_symbol *symbol, char text[CUVIL_TEXT_BYTES]);

/* shape.c: bind symbols from the inputs, evaluate, check every dimension and size. */
cuvil_status cuvil_bind(cuvil_context *context);
/* Refuse the bound sizes unless the condition of a REQUIRE step holds. */
cuvil_status cuvil_require(const cuvil_context *context, const cuvil_step *step);
/* Fill in the dims of an output that have this epoch and, once all are known, its bytes. */
cuvil_status cuvil_infer_output(cuvil_context *context, uint32_t number, uint32_t epoch);
/* Whether the buffer lies inside what holds it; a heap slot grows later. */
cuvil_status cuvil_check_buffer(const cuvil_context *context, uint32_t number);
/* What to say of a buffer that needs more than `room`: some size is negative, or a bad package. */
cuvil_status cuvil_misfit(const cuvil_context *context, uint32_t number, int64_t room);

/* memory.c: lay the block out, resolve pointers and scalars. */
cuvil_status cuvil_place(cuvil_context *context);
void cuvil_release(cuvil_context *context);
void cuvil_resolve(cuvil_context *context);
void *cuvil_locate(const cuvil_context *context, uint32_t buffer);
/* The caller's memory for an output has the dims of the result, as far as they are known. */
cuvil_status cuvil_check_target(const cuvil_context *context, uint32_t output);
void cuvil_prefer_huge_pages(void *data, size_t bytes);

/* heap.c: blocks that grow. `layer`: for which one, NULL before the run. */
cuvil_status cuvil_grow(cuvil_block *block, uint64_t bytes, const char *layer);
cuvil_status cuvil_reserve_heap(cuvil_context *context, uint32_t buffer, const char *layer);
size_t cuvil_heap_bytes(const cuvil_context *context);
void cuvil_release_heap(cuvil_context *context);
/* A step that the runtime itself executes stays inside its buffers; kernels are trusted. */
cuvil_status cuvil_check_step(const cuvil_context *context, const cuvil_step *step);
/* The same, with pointers to where its buffers lie now. */
cuvil_status cuvil_reach(cuvil_context *context, const cuvil_step *step);

/* followers.c: note what follows from each computed symbol, when a model is opened. */
cuvil_status cuvil_find_followers(cuvil_model *model);

/* prepare.c: run the PREPARE steps, once the level is chosen. */
cuvil_status cuvil_prepare(cuvil_model *model);
void cuvil_drop_prepared(cuvil_model *model);

/* adapters.c. `list` is the model's or a tenant's. The caller of the first two has model->lock, or
 * nobody else has the model yet; so too that of cuvil_drop_adapter. */
cuvil_adapter *cuvil_find_adapter(cuvil_adapter *list, const char *name);
cuvil_status cuvil_unknown_adapter(const cuvil_adapter *list, const char *name);
cuvil_status cuvil_list_adapters(cuvil_model *model);
/* An error for a model that takes none, or NULL. */
cuvil_status cuvil_need_adapters(const cuvil_model *model, const char *function);
void cuvil_drop_adapter(cuvil_model *model, cuvil_adapter *adapter);
void cuvil_drop_adapters(cuvil_model *model, cuvil_adapter **list);
cuvil_status cuvil_load_into(cuvil_model *model, cuvil_adapter **list, const char *path,
                             const char *name);
cuvil_status cuvil_unload_from(cuvil_model *model, cuvil_adapter **list, const char *name);
int32_t cuvil_count_adapters(cuvil_model *model, cuvil_adapter *const *list);
cuvil_status cuvil_describe_adapter(cuvil_model *model, cuvil_adapter *const *list, int32_t index,
                                    cuvil_adapter_info *info);
/* adapter_check.c. What can be told from a header of a file of so many bytes; then the rest, once
 * all of it is in memory. `place`: for messages. */
cuvil_status cuvil_check_adapter_header(const cuvil_model *model,
                                        const cuvil_adapter_header *header, uint64_t bytes,
                                        const char *place);
cuvil_status cuvil_check_adapter(const cuvil_model *model, const cuvil_adapter_header *header,
                                 const char *place);
const cuvil_adapter_entry *cuvil_adapter_entries(const cuvil_adapter_header *header);
const char *cuvil_adapter_strings(const cuvil_adapter_header *header);
/* image.c: the checksum of an adapter. */
uint32_t cuvil_adapter_sum(const cuvil_adapter_header *header);

/* batch.c */
cuvil_status cuvil_open_batch(cuvil_model *model);
void cuvil_close_batch(cuvil_model *model);
cuvil_status cuvil_hold_adapter(cuvil_model *model, cuvil_adapter *adapter);
void cuvil_release_adapters(cuvil_context *context);
cuvil_status cuvil_set_hidden(cuvil_context *context);
/* How many inputs the caller sets. */
uint32_t cuvil_visible_inputs(const cuvil_model *model);

/* swap.c */
uint32_t cuvil_panels(const cuvil_adaptable *site);
cuvil_status cuvil_open_views(cuvil_model *model);
void cuvil_close_views(cuvil_model *model);
void cuvil_forget_views(cuvil_model *model, const cuvil_adapter *adapter);
const cuvil_view *cuvil_take_view(cuvil_model *model);
void cuvil_give_view(cuvil_model *model, const cuvil_view *view);

/* computed.c. Before a run: what it will compute is not known, and 0 where it is read too early. */
void cuvil_forget(cuvil_context *context);
/* Execute a BIND step. */
cuvil_status cuvil_bind_computed(cuvil_context *context, const cuvil_step *step);
/* After the run: every output has all of its dims. */
cuvil_status cuvil_check_known(const cuvil_context *context);

#endif
