/* One feature a line, as in the runtime's own cpu.h.
    FEATURE(0, "sse3")
    FEATURE(5, "avx2") */
