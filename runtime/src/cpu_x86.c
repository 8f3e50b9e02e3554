/* CPU features on x86-64, from CPUID and XGETBV. */
#if defined(__x86_64__)

#define _GNU_SOURCE
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu.h"

#define NAME(bit, name) [bit] = name,
const char *const cuvil_cpu_feature_names[CUVIL_CPU_FEATURE_LIMIT] = {CUVIL_X86_FEATURES(NAME)};

enum { LEAF1_ECX, LEAF7_EBX, LEAF7_ECX, LEAF7_EDX, LEAF7_1_EAX, EXTENDED_ECX, WORDS };

/* XCR0 bits: the register files that the operating system saves at a context switch. */
#define STATE_NONE 0u
#define STATE_AVX 0x6u     /* SSE, AVX */
#define STATE_AVX512 0xe6u /* and opmask, the upper halves, the upper sixteen */
#define STATE_AMX 0x60000u /* tile configuration, tile data */

/* In the order of CUVIL_X86_FEATURES: the CPUID word, its bit, and the state it needs. */
static const struct {
    uint8_t word, bit;
    uint32_t state;
} places[] = {
    {LEAF1_ECX, 0, STATE_NONE},     {LEAF1_ECX, 9, STATE_NONE},    {LEAF1_ECX, 19, STATE_NONE},
    {LEAF1_ECX, 20, STATE_NONE},    {LEAF1_ECX, 23, STATE_NONE},   {LEAF1_ECX, 13, STATE_NONE},
    {EXTENDED_ECX, 0, STATE_NONE},  {LEAF1_ECX, 28, STATE_AVX},    {LEAF7_EBX, 5, STATE_AVX},
    {LEAF7_EBX, 3, STATE_NONE},     {LEAF7_EBX, 8, STATE_NONE},    {LEAF1_ECX, 29, STATE_AVX},
    {LEAF1_ECX, 12, STATE_AVX},     {EXTENDED_ECX, 5, STATE_NONE}, {LEAF1_ECX, 22, STATE_NONE},
    {LEAF7_EBX, 16, STATE_AVX512},  {LEAF7_EBX, 30, STATE_AVX512}, {LEAF7_EBX, 28, STATE_AVX512},
    {LEAF7_EBX, 17, STATE_AVX512},  {LEAF7_EBX, 31, STATE_AVX512}, {LEAF7_ECX, 11, STATE_AVX512},
    {LEAF7_1_EAX, 5, STATE_AVX512}, {LEAF7_1_EAX, 4, STATE_AVX},   {LEAF7_EDX, 24, STATE_AMX},
    {LEAF7_EDX, 25, STATE_AMX},     {LEAF7_EDX, 22, STATE_AMX},    {LEAF7_EDX, 23, STATE_AVX512},
    {LEAF7_ECX, 1, STATE_AVX512},   {LEAF7_EBX, 21, STATE_AVX512}, {LEAF7_ECX, 8, STATE_NONE},
};

static void read_cpuid(uint32_t words[WORDS])
{
    uint32_t eax, ebx, ecx, edx;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx))
        words[LEAF1_ECX] = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
        words[LEAF7_EBX] = ebx;
        words[LEAF7_ECX] = ecx;
        words[LEAF7_EDX] = edx;
        if (eax >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx))
            words[LEAF7_1_EAX] = eax;
    }
    if (__get_cpuid(0x80000001u, &eax, &ebx, &ecx, &edx))
        words[EXTENDED_ECX] = ecx;
}

/* XCR0, or 0 where the operating system has not turned XSAVE on. */
static uint32_t saved_state(uint32_t leaf1_ecx)
{
    uint32_t low, high;
    if (!(leaf1_ecx >> 27 & 1u))
        return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* Linux grants tile registers (8 KiB more in every signal frame) only to a process that asks. */
static int amx_allowed(void)
{
    const long request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

uint64_t cuvil_cpu_features(uint64_t wanted)
{
    uint32_t words[WORDS] = {0};
    read_cpuid(words);
    uint32_t state = saved_state(words[LEAF1_ECX]);
    uint64_t found = 0;
    for (unsigned i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (!(wanted >> i & 1u) || !(words[places[i].word] >> places[i].bit & 1u) ||
            (places[i].state & state) != places[i].state)
            continue;
        if (places[i].state != STATE_AMX || amx_allowed())
            found |= UINT64_C(1) << i;
    }
    return found;
}

#else
typedef int cuvil_not_x86; /* ISO C wants a declaration in every file */
#endif
