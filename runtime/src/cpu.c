/* What every architecture shares, and the feature table of those that have none. */
#define _GNU_SOURCE
#include <sched.h>

#include "cpu.h"

#if !defined(__x86_64__)
const char *const cuvil_cpu_feature_names[CUVIL_CPU_FEATURE_LIMIT];

uint64_t cuvil_cpu_features(uint64_t wanted)
{
    (void)wanted;
    return 0;
}
#endif

int32_t cuvil_cpu_count(void)
{
    unsigned long mask[1024 / sizeof(unsigned long)] = {0}; /* 8192 CPUs, Linux's own limit */
    if (sched_getaffinity(0, sizeof mask, (cpu_set_t *)mask) != 0)
        return 1;
    int32_t count = 0;
    for (unsigned i = 0; i < sizeof mask / sizeof mask[0]; i++)
        count += __builtin_popcountl(mask[i]);
    return count > 0 ? count : 1;
}
