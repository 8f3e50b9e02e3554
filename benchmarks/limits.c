/* What one core can do: `limits SECONDS BYTES...` prints float32 GFLOP/s of multiply-adds, then the
 * rate in GB/s at which each so many bytes are read. Built with -O3 -march=native. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__AVX512F__)
#define LANES 16
#define REGISTER "+v"
#else
#define LANES 8
#define REGISTER "+x"
#endif
#define CHAINS 12 /* independent, to hide a latency of 4 on two units */
#define EACH(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
typedef float vector __attribute__((vector_size(LANES * 4)));

static volatile float sink;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* x = x * a + b in every chain. Operations per call: 2 * LANES * CHAINS * n. */
static void multiply_add(long n) {
  vector a, b;
  for (int l = 0; l < LANES; l++) a[l] = 0.999f, b[l] = 0.001f;
#define DECLARE(c) vector x##c = a + (float)c;
#define STEP(c) x##c = x##c * a + b;
#define KEEP(c) __asm__ volatile("" : REGISTER(x##c));
#define SUM(c) b += x##c;
  EACH(DECLARE)
  for (long i = 0; i < n; i++) {
    EACH(STEP)
    EACH(KEEP)
  }
  EACH(SUM)
  sink = b[0];
}

static void read_all(const vector *data, size_t count) {
  vector sum[8] = {{0}};
  for (size_t i = 0; i + 8 <= count; i += 8)
    for (int k = 0; k < 8; k++) sum[k] += data[i + k];
  for (int k = 1; k < 8; k++) sum[0] += sum[k];
  sink = sum[0][0];
}

int main(int argc, char **argv) {
  double seconds = argc > 1 ? atof(argv[1]) : 1.0, best = 0;
  for (double end = now() + seconds; now() < end;) {
    long n = 400000;
    double start = now();
    multiply_add(n);
    double rate = 2.0 * LANES * CHAINS * (double)n / (now() - start) / 1e9;
    if (rate > best) best = rate;
  }
  printf("%.1f", best);
  for (int s = 2; s < argc; s++) {
    size_t size = (size_t)atoll(argv[s]);
    vector *data = aligned_alloc(2u << 20, (size + (2u << 20) - 1) >> 21 << 21);
    if (!data) return 1;
    madvise(data, size, MADV_HUGEPAGE);
    for (size_t i = 0; i < size / 4; i++) ((float *)data)[i] = (float)i;
    best = 0;
    for (double end = now() + seconds; now() < end;) {
      size_t repeats = ((size_t)64 << 20) / size + 1;
      double start = now();
      for (size_t r = 0; r < repeats; r++) read_all(data, size / sizeof(vector));
      double rate = (double)(size * repeats) / (now() - start) / 1e9;
      if (rate > best) best = rate;
    }
    printf(" %.1f", best);
    free(data);
  }
  printf("\n");
  return 0;
}
