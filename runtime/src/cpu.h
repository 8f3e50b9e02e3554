/* CPU features by number: bit i of cuvil_level.features is cuvil_cpu_feature_names[i]. */
#ifndef CUVIL_CPU_H
#define CUVIL_CPU_H

#include <stdint.h>

/* The x86 numbering. Packages on disk hold these bits: append, never reorder. The packer reads this
 * list (one feature a line); a feature counts as present only when the operating system saves its
 * registers. */
#define CUVIL_X86_FEATURES(FEATURE) \
    FEATURE(0, "sse3")              \
    FEATURE(1, "ssse3")             \
    FEATURE(2, "sse4.1")            \
    FEATURE(3, "sse4.2")            \
    FEATURE(4, "popcnt")            \
    FEATURE(5, "cx16")              \
    FEATURE(6, "lahf_lm")           \
    FEATURE(7, "avx")               \
    FEATURE(8, "avx2")              \
    FEATURE(9, "bmi1")              \
    FEATURE(10, "bmi2")             \
    FEATURE(11, "f16c")             \
    FEATURE(12, "fma")              \
    FEATURE(13, "lzcnt")            \
    FEATURE(14, "movbe")            \
    FEATURE(15, "avx512f")          \
    FEATURE(16, "avx512bw")         \
    FEATURE(17, "avx512cd")         \
    FEATURE(18, "avx512dq")         \
    FEATURE(19, "avx512vl")         \
    FEATURE(20, "avx512vnni")       \
    FEATURE(21, "avx512bf16")       \
    FEATURE(22, "avxvnni")          \
    FEATURE(23, "amx-tile")         \
    FEATURE(24, "amx-int8")         \
    FEATURE(25, "amx-bf16")         \
    FEATURE(26, "avx512fp16")       \
    FEATURE(27, "avx512vbmi")       \
    FEATURE(28, "avx512ifma")       \
    FEATURE(29, "gfni")

#define CUVIL_CPU_FEATURE_LIMIT 64

/* Names by bit, NULL where this architecture gives the bit no meaning. */
extern const char *const cuvil_cpu_feature_names[CUVIL_CPU_FEATURE_LIMIT];

/* Which of `wanted` this CPU and operating system offer. Asking for AMX asks Linux to allow it. */
uint64_t cuvil_cpu_features(uint64_t wanted);

/* How many CPUs this process may run on; at least 1. */
int32_t cuvil_cpu_count(void);

#endif
