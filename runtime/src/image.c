/* Find the image among the program headers of the file that this code was linked into. */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stddef.h>
#include <unistd.h>

#include "internal.h"

/* The start of the file in memory, that is its ELF header: the linker defines the symbol. */
extern const unsigned char __ehdr_start[] __attribute__((visibility("hidden")));

static const struct {
    const char *name;
    int64_t bytes;
} dtypes[] = {
    [CUVIL_FLOAT32] = {"float32", 4}, [CUVIL_FLOAT64] = {"float64", 8},
    [CUVIL_FLOAT16] = {"float16", 2}, [CUVIL_BFLOAT16] = {"bfloat16", 2},
    [CUVIL_INT8] = {"int8", 1},       [CUVIL_INT16] = {"int16", 2},
    [CUVIL_INT32] = {"int32", 4},     [CUVIL_INT64] = {"int64", 8},
    [CUVIL_UINT8] = {"uint8", 1},     [CUVIL_UINT16] = {"uint16", 2},
    [CUVIL_UINT32] = {"uint32", 4},   [CUVIL_UINT64] = {"uint64", 8},
    [CUVIL_BOOL] = {"bool", 1},
    [CUVIL_FLOAT8_E4M3FN] = {"float8_e4m3fn", 1},
    [CUVIL_FLOAT8_E4M3FNUZ] = {"float8_e4m3fnuz", 1},
    [CUVIL_FLOAT8_E5M2] = {"float8_e5m2", 1},
    [CUVIL_FLOAT8_E5M2FNUZ] = {"float8_e5m2fnuz", 1},
    [CUVIL_FLOAT8_E8M0FNU] = {"float8_e8m0fnu", 1},
    [CUVIL_FLOAT6_E2M3FN] = {"float6_e2m3fn", 1},
    [CUVIL_FLOAT6_E3M2FN] = {"float6_e3m2fn", 1},
    [CUVIL_FLOAT4_E2M1FN] = {"float4_e2m1fn", 1},
    [CUVIL_INT4] = {"int4", 1},
    [CUVIL_UINT4] = {"uint4", 1},
    [CUVIL_INT2] = {"int2", 1},
    [CUVIL_UINT2] = {"uint2", 1},
};

int64_t cuvil_dtype_bytes(uint32_t dtype)
{
    return dtype < sizeof dtypes / sizeof dtypes[0] ? dtypes[dtype].bytes : 0;
}

const char *cuvil_dtype_name(uint32_t dtype)
{
    return dtype < sizeof dtypes / sizeof dtypes[0] ? dtypes[dtype].name : "unknown";
}

const char *cuvil_string(const cuvil_model *model, uint32_t offset)
{
    return offset == CUVIL_NONE ? "" : model->strings + offset;
}

/* Whether the byte can be read. A file cut short maps without complaint and raises SIGBUS when
 * touched; the kernel, asked to copy from there, says EFAULT instead. */
static bool readable(const unsigned char *byte)
{
    int ends[2];
    if (pipe(ends) != 0)
        return true; /* out of file descriptors: no way to tell, and not a fault of the package */
    bool faulted = write(ends[1], byte, 1) != 1 && errno == EFAULT;
    close(ends[0]);
    close(ends[1]);
    return !faulted;
}

/* The last PT_LOAD, when it is read-only data as the packer makes it. */
static const unsigned char *last_segment(uint64_t *bytes)
{
    const ElfW(Ehdr) *elf = (const void *)__ehdr_start;
    const ElfW(Phdr) *headers = (const void *)(__ehdr_start + elf->e_phoff);
    const ElfW(Phdr) *first = NULL, *last = NULL;
    for (unsigned i = 0; i < elf->e_phnum; i++) {
        if (headers[i].p_type != PT_LOAD)
            continue;
        last = &headers[i];
        if (first == NULL)
            first = last;
    }
    if (last == first || last->p_flags != PF_R || last->p_filesz < sizeof(cuvil_image_header))
        return NULL;
    *bytes = last->p_filesz;
    return __ehdr_start + (last->p_vaddr - first->p_vaddr);
}

/* Adler-32 (RFC 1950), continued from `sum`. */
static uint32_t adler32(uint32_t sum, const unsigned char *data, uint64_t bytes)
{
    uint32_t a = sum & 0xffffu, b = sum >> 16;
    while (bytes > 0) {
        uint64_t block = bytes < 5552 ? bytes : 5552; /* the most that cannot overflow b */
        bytes -= block;
        for (; block > 0; block--) {
            a += *data++;
            b += a;
        }
        a %= 65521u;
        b %= 65521u;
    }
    return b << 16 | a;
}

uint32_t cuvil_adapter_sum(const cuvil_adapter_header *header)
{
    const unsigned char *data = (const unsigned char *)header;
    const size_t at = offsetof(cuvil_adapter_header, checksum), after = at + sizeof(uint32_t);
    static const unsigned char zero[sizeof(uint32_t)];
    uint32_t sum = adler32(adler32(1, data, at), zero, sizeof zero);
    return adler32(sum, data + after, header->bytes - after);
}

static cuvil_status check_sum(const cuvil_image_header *header)
{
    const unsigned char *image = (const unsigned char *)header;
    if (header->checksum == 0)
        return CUVIL_OK;
    uint32_t sum = adler32(1, image, offsetof(cuvil_image_header, checksum));
    for (int i = 0; i < CUVIL_SECTION_ADAPTERS; i++)
        if (i != CUVIL_SECTION_WEIGHTS)
            sum = adler32(sum, image + header->sections[i].offset, header->sections[i].bytes);
    if (sum != header->checksum)
        return cuvil_fail(CUVIL_ERROR_PACKAGE,
                          "corrupt package: the plan's checksum is %08x, the header says %08x", sum,
                          header->checksum);
    return CUVIL_OK;
}

static cuvil_status check_header(const cuvil_image_header *header, uint64_t segment_bytes)
{
    if (header->magic != CUVIL_IMAGE_MAGIC)
        return cuvil_fail(CUVIL_ERROR_PACKAGE,
                          "no cuvil image in this file: its last segment begins "
                          "with %016llx",
                          (unsigned long long)header->magic);
    if (header->version != CUVIL_IMAGE_VERSION)
        return cuvil_fail(CUVIL_ERROR_VERSION, "image format %u, this runtime reads %u",
                          header->version, CUVIL_IMAGE_VERSION);
    if (header->section_count != CUVIL_SECTION_COUNT || header->image_bytes > segment_bytes)
        return cuvil_fail(CUVIL_ERROR_PACKAGE,
                          "corrupt package: %u sections in %llu bytes, expected %d in at most %llu",
                          header->section_count, (unsigned long long)header->image_bytes,
                          CUVIL_SECTION_COUNT, (unsigned long long)segment_bytes);
    for (int i = 0; i < CUVIL_SECTION_COUNT; i++) {
        uint64_t offset = header->sections[i].offset, bytes = header->sections[i].bytes;
        uint64_t alignment = i == CUVIL_SECTION_WEIGHTS ? 65536 : 64;
        if (offset > header->image_bytes || bytes > header->image_bytes - offset ||
            offset % alignment != 0)
            return cuvil_fail(CUVIL_ERROR_PACKAGE,
                              "corrupt package: section %d is %llu bytes at "
                              "%llu, outside the image of %llu bytes or misaligned",
                              i, (unsigned long long)bytes, (unsigned long long)offset,
                              (unsigned long long)header->image_bytes);
    }
    return CUVIL_OK;
}

/* Bytes of each section's record; 1 where it is plain bytes. */
static const uint8_t record_bytes[CUVIL_SECTION_COUNT] = {
    [CUVIL_SECTION_STRINGS] = 1,
    [CUVIL_SECTION_METADATA] = 1,
    [CUVIL_SECTION_LEVELS] = sizeof(cuvil_level),
    [CUVIL_SECTION_SYMBOLS] = sizeof(cuvil_symbol),
    [CUVIL_SECTION_EXPRS] = sizeof(cuvil_expr),
    [CUVIL_SECTION_DIMS] = sizeof(uint32_t),
    [CUVIL_SECTION_INPUTS] = sizeof(cuvil_io),
    [CUVIL_SECTION_OUTPUTS] = sizeof(cuvil_io),
    [CUVIL_SECTION_BUFFERS] = sizeof(cuvil_buffer),
    [CUVIL_SECTION_STEPS] = sizeof(cuvil_step),
    [CUVIL_SECTION_OPERANDS] = sizeof(uint32_t),
    [CUVIL_SECTION_WEIGHTS] = 1,
    [CUVIL_SECTION_ADAPTABLE] = sizeof(cuvil_adaptable),
    [CUVIL_SECTION_LORA] = sizeof(cuvil_lora),
    [CUVIL_SECTION_ADAPTERS] = 1,
};

static const void *section(const cuvil_model *model, int kind, uint32_t *count)
{
    if (count != NULL)
        *count = (uint32_t)(model->header->sections[kind].bytes / record_bytes[kind]);
    return (const unsigned char *)model->header + model->header->sections[kind].offset;
}

static void fill(cuvil_model *model)
{
    model->strings = section(model, CUVIL_SECTION_STRINGS, NULL);
    model->string_bytes = model->header->sections[CUVIL_SECTION_STRINGS].bytes;
    model->metadata = section(model, CUVIL_SECTION_METADATA, NULL);
    model->levels = section(model, CUVIL_SECTION_LEVELS, &model->level_count);
    model->symbols = section(model, CUVIL_SECTION_SYMBOLS, &model->symbol_count);
    while (model->input_symbols < model->symbol_count &&
           model->symbols[model->input_symbols].input != CUVIL_NONE)
        model->input_symbols++;
    model->exprs = section(model, CUVIL_SECTION_EXPRS, &model->expr_count);
    model->dims = section(model, CUVIL_SECTION_DIMS, &model->dim_count);
    model->inputs = section(model, CUVIL_SECTION_INPUTS, &model->input_count);
    model->outputs = section(model, CUVIL_SECTION_OUTPUTS, &model->output_count);
    model->buffers = section(model, CUVIL_SECTION_BUFFERS, &model->buffer_count);
    model->steps = section(model, CUVIL_SECTION_STEPS, &model->step_count);
    while (model->prepare_count < model->step_count &&
           model->steps[model->prepare_count].kind == CUVIL_STEP_PREPARE)
        model->prepare_count++;
    model->operands = section(model, CUVIL_SECTION_OPERANDS, &model->operand_count);
    model->weights = section(model, CUVIL_SECTION_WEIGHTS, NULL);
    model->weight_bytes = model->header->sections[CUVIL_SECTION_WEIGHTS].bytes;
    model->adaptable = section(model, CUVIL_SECTION_ADAPTABLE, &model->adaptable_count);
    uint32_t loras;
    model->lora = section(model, CUVIL_SECTION_LORA, &loras);
    model->lora = loras == 1 ? model->lora : NULL;
    model->adapter_data = section(model, CUVIL_SECTION_ADAPTERS, NULL);
    model->adapter_bytes = model->header->sections[CUVIL_SECTION_ADAPTERS].bytes;
}

/* Fill in where each section lies; sizes, version and checksum hold afterwards, indices are not yet
 * checked. Reads no weights but their last byte. */
cuvil_status cuvil_image_find(cuvil_model *model)
{
    uint64_t bytes = 0;
    const unsigned char *image = last_segment(&bytes);
    if (image == NULL)
        return cuvil_fail(CUVIL_ERROR_PACKAGE,
                          "no cuvil image in this file: it was linked, not packed");
    if (!readable(image) || !readable(image + bytes - 1))
        return cuvil_fail(CUVIL_ERROR_PACKAGE,
                          "truncated package: the image has %llu bytes, the file ends before them",
                          (unsigned long long)bytes);
    model->header = (const cuvil_image_header *)image;
    cuvil_status status = check_header(model->header, bytes);
    if (status == CUVIL_OK)
        status = check_sum(model->header);
    if (status != CUVIL_OK)
        return status;
    for (int i = 0; i < CUVIL_SECTION_COUNT; i++)
        if (model->header->sections[i].bytes % record_bytes[i] != 0 ||
            (i != CUVIL_SECTION_WEIGHTS && i != CUVIL_SECTION_ADAPTERS &&
             model->header->sections[i].bytes > UINT32_MAX))
            return cuvil_fail(CUVIL_ERROR_PACKAGE,
                              "corrupt package: section %d has %llu bytes, not a "
                              "multiple of %d",
                              i, (unsigned long long)model->header->sections[i].bytes,
                              record_bytes[i]);
    fill(model);
    return CUVIL_OK;
}
