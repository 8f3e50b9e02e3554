/* The image: plan, metadata and weights of one model, as one read-only segment of model.so.
 *
 * The packer (cuvilc/package/image.py) writes it, this runtime maps it; both sides are tied by
 * tests/runtime/test_image.py. Little-endian; every section starts on a 64-byte boundary, the
 * weights section on a 64 KiB boundary. All offsets are bytes from the start of the image.
 * The segment is the last PT_LOAD of the file; it is found from the program headers at run time, so
 * weights of any size need no relocation.
 *
 * cuvil_open checks all of it, once; it also asks for these:
 * - A symbol is the dimension of the axis it is read from. An axis whose dimension is another
 *   expression is compared with that expression when shapes are bound.
 * - The buffer of input or output i has kind INPUT or OUTPUT, place i, and exactly the tensor's
 *   bytes. A result that is an input, a weight or two outputs at once gets there by a COPY step.
 * - PREPARE steps come first, and no step jumps to them. They read and write WEIGHT and PREPARED
 *   buffers alone; their tasks, scalars and scratch depend on no symbol. The bytes of a PREPARED
 *   buffer are a CUVIL_EXPR_CONST.
 * - COPY and DIMS write only to ARENA, OUTPUT and HEAP buffers. A step may jump backwards: loops
 *   are allowed.
 * - Computed symbols come after all others, in the order in which the program binds them first. The
 *   epoch of an expression is 0 when it uses none, else 1 + the number, among the computed ones, of
 *   the last one that it uses. The arena, the inputs, their buffers and those of weights have sizes
 *   of epoch 0.
 */
#ifndef CUVIL_IMAGE_H
#define CUVIL_IMAGE_H

#include <stdint.h>

#define CUVIL_IMAGE_MAGIC 0x474d494c49565543ull /* "CUVILIMG" */
#define CUVIL_IMAGE_VERSION 2u
#define CUVIL_NONE 0xffffffffu /* no string, no expression, no buffer */

enum cuvil_section_kind {
    CUVIL_SECTION_STRINGS = 0,  /* NUL-terminated UTF-8; a string is named by its offset here */
    CUVIL_SECTION_METADATA = 1, /* metadata.json, NUL-terminated */
    CUVIL_SECTION_LEVELS = 2,   /* cuvil_level[], best first */
    CUVIL_SECTION_SYMBOLS = 3,  /* cuvil_symbol[] */
    CUVIL_SECTION_EXPRS = 4,    /* cuvil_expr[], operands come before their users */
    CUVIL_SECTION_DIMS = 5,     /* uint32_t[]: expression numbers, shapes of inputs and outputs */
    CUVIL_SECTION_INPUTS = 6,   /* cuvil_io[] */
    CUVIL_SECTION_OUTPUTS = 7,  /* cuvil_io[] */
    CUVIL_SECTION_BUFFERS = 8,  /* cuvil_buffer[] */
    CUVIL_SECTION_STEPS = 9,    /* cuvil_step[] */
    CUVIL_SECTION_OPERANDS = 10, /* uint32_t[]: buffer and expression numbers of the steps */
    CUVIL_SECTION_WEIGHTS = 11,
    CUVIL_SECTION_ADAPTABLE = 12, /* cuvil_adaptable[] */
    CUVIL_SECTION_LORA = 13,      /* one cuvil_lora, or nothing */
    CUVIL_SECTION_ADAPTERS = 14,  /* adapters (adapter.h), each on a 64-byte boundary */
    CUVIL_SECTION_COUNT = 15
};

typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t section_count; /* CUVIL_SECTION_COUNT */
    uint64_t image_bytes;
    uint64_t arena_bytes;   /* expression number of the arena's size in bytes */
    struct {
        uint64_t offset;
        uint64_t bytes;
    } sections[CUVIL_SECTION_COUNT];
    uint32_t checksum; /* Adler-32 of the header up to here, then sections 0 to 10, 12 and 13; 0:
                          not given */
    uint32_t reserved;
} cuvil_image_header; /* 280 bytes; offsetof(checksum) = 272 */

/* One CPU level: every kernel exists once per level. */
typedef struct {
    uint32_t name;     /* string, "x86-64-v4" */
    uint32_t reserved;
    uint64_t features; /* bit i: feature i of cuvil_cpu_feature_names[] (cpu.h) is required */
} cuvil_level;

/* A symbolic dimension, bound from an input's shape, or a computed one: by BIND steps. */
typedef struct {
    uint32_t name;
    uint32_t input; /* input and axis it is read from; CUVIL_NONE and 0 when computed */
    uint32_t axis;
    uint32_t reserved;
    int64_t lo, hi; /* inclusive; hi = INT64_MAX when unbounded */
} cuvil_symbol;

/* Shape arithmetic on int64. Division and modulo round to minus infinity; a zero divisor is a
 * fault. */
enum cuvil_expr_op {
    CUVIL_EXPR_CONST = 0,    /* imm */
    CUVIL_EXPR_SYMBOL = 1,   /* symbol a */
    CUVIL_EXPR_ADD = 2,      /* a + b, likewise below */
    CUVIL_EXPR_SUB = 3,
    CUVIL_EXPR_MUL = 4,
    CUVIL_EXPR_FLOORDIV = 5,
    CUVIL_EXPR_MOD = 6,
    CUVIL_EXPR_MIN = 7,
    CUVIL_EXPR_MAX = 8,
    CUVIL_EXPR_EQ = 9,       /* 1 or 0 */
    CUVIL_EXPR_LT = 10,
    CUVIL_EXPR_SELECT = 11,  /* a ? b : expression number imm */
    CUVIL_EXPR_CEILDIV = 12,
    CUVIL_EXPR_LEVEL = 13    /* number of the CPU level in use: kernels of different levels have other tasks */
};

typedef struct {
    uint32_t op;
    uint32_t a, b;
    uint32_t reserved;
    int64_t imm;
} cuvil_expr;

typedef struct {
    uint32_t name;
    uint32_t dtype; /* cuvil_dtype */
    uint32_t rank;
    uint32_t dims;  /* first of `rank` entries of DIMS */
    uint32_t buffer;
    uint32_t reserved;
} cuvil_io;

enum cuvil_buffer_kind {
    CUVIL_BUFFER_ARENA = 0,  /* place: expression number of the offset in the arena */
    CUVIL_BUFFER_WEIGHT = 1, /* place: byte offset in WEIGHTS */
    CUVIL_BUFFER_INPUT = 2,  /* place: input number */
    CUVIL_BUFFER_OUTPUT = 3, /* place: output number */
    CUVIL_BUFFER_HEAP = 4,   /* place: slot number, and << 32 the expression number of the offset
                                in it. A slot is a block of its own, which grows and keeps what it
                                holds */
    CUVIL_BUFFER_ADAPTED = 5, /* place: number in ADAPTABLE; where it lies depends on the adapter
                                 in use */
    CUVIL_BUFFER_PREPARED = 6 /* place: byte offset, of 64, in memory of the model that PREPARE
                                 steps fill */
};

/* A weight that adapters may exchange. */
typedef struct {
    uint32_t name;    /* string: its key, for messages */
    uint32_t kernel;  /* merges a low-rank change into it: buffers w, a, b, gain, result; scalar
                         rank; tasks: its panels. CUVIL_NONE: it is exchanged whole */
    uint64_t place;   /* byte offset in WEIGHTS */
    uint64_t bytes;
    uint32_t rows;    /* elements of one output */
    uint32_t outputs;
    uint32_t packed;  /* 1: panels of CUVIL_PANEL outputs, [panels, rows, CUVIL_PANEL]; else
                         [rows, outputs] */
    uint32_t reserved;
} cuvil_adaptable;

/* What adapters must have been built for. */
typedef struct {
    uint8_t fingerprint[32];
    uint32_t hidden_inputs; /* 0, or the model's last inputs are the runtime's own (batch.c): its
                               weights are not exchanged, rows of a batch have adapters */
    uint32_t reserved[7];
} cuvil_lora;

typedef struct {
    uint32_t kind;
    uint32_t bytes; /* expression number of the size in bytes */
    uint64_t place;
} cuvil_buffer;

enum cuvil_step_kind {
    CUVIL_STEP_KERNEL = 0,   /* run kernel `target` over tasks [0, tasks) */
    CUVIL_STEP_COPY = 1,     /* buffer 1 := buffer 0, whole of buffer 1's size */
    CUVIL_STEP_DIMS = 2,     /* buffer 0 := the scalars, as int64 */
    CUVIL_STEP_BRANCH = 3,   /* when the bool in buffer 0 is false or, without a buffer, the scalar
                                is 0, go to step `target` */
    CUVIL_STEP_JUMP = 4,     /* go to step `target` */
    CUVIL_STEP_REQUIRE = 5,  /* a scalar that is 0: refuse these shapes; `name` says why. Those that
                                come first and have epoch 0 are asked when shapes are bound */
    CUVIL_STEP_BIND = 6,     /* computed symbol `target` := the scalar or, with a buffer, the
                                element of that number of buffer 0, as int64. What has its epoch,
                                and nothing else, is evaluated and placed anew */
    CUVIL_STEP_PREPARE = 7   /* run kernel `target` when the model is opened, and not again */
};

typedef struct {
    uint32_t kind;
    uint32_t target;        /* kernel, step or symbol number */
    uint32_t buffers;       /* first of `buffer_count` entries of OPERANDS: buffer numbers */
    uint32_t buffer_count;
    uint32_t scalars;       /* first of `scalar_count` entries of OPERANDS: expression numbers */
    uint32_t scalar_count;
    uint32_t tasks;         /* expression: how many tasks the kernel has */
    uint32_t scratch_bytes; /* expression: scratch that each thread needs, or CUVIL_NONE */
    uint32_t cost;          /* expression: FLOPs or 4 x bytes moved, the larger; for threading */
    uint32_t name;          /* string: the kernel's name */
    uint32_t layer;         /* string: the model's own node name(s) */
    uint32_t reserved;
} cuvil_step;

/* A compiled kernel. Works on tasks [begin, end) of its outermost loop; any partition of the tasks
 * over threads gives the same result. `scratch` is this thread's own, 64-byte aligned. Returns 0,
 * or a cuvil_kernel_fault. Buffers need the alignment of their element type only. */
typedef int32_t (*cuvil_kernel)(void *const *buffers, const int64_t *scalars, int64_t begin,
                                int64_t end, void *scratch);

enum cuvil_kernel_fault {
    CUVIL_FAULT_NONE = 0,
    CUVIL_FAULT_INDEX = 1,  /* an index read from data lies outside its axis */
    CUVIL_FAULT_DIVIDE = 2  /* integer division by zero */
};

/* Made for each package by the packer: [level][kernel], and how many kernels each level has. */
extern const cuvil_kernel cuvil_kernel_table[] __attribute__((visibility("hidden")));
extern const uint32_t cuvil_kernel_count __attribute__((visibility("hidden")));

#endif
