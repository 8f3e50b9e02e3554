"""GFLOP/s of single kernels on one core, and their share of the core's measured multiply-add peak.

`python benchmarks/kernels.py [v3|v4] [name…]`. Peak and kernel are timed in turns and the best of
each counts, since other work on the machine slows both.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

from cuvilc.dialect import ir
from cuvilc.dialect.dims import evaluate
from cuvilc.dialect.types import TensorType
from cuvilc.targets.chip import Chip
from cuvilc.targets.schedules import conv as conv_schedule
from cuvilc.targets.schedules import depthwise as depthwise_schedule
from cuvilc.targets.schedules import gemm, pool
from tests.targets.kernel_harness import CHIPS, Kernel, Launch, program_of, random_feeds

_PEAK = r"""
#include <immintrin.h>
#define T __m%(bits)d
#define FMA _mm%(prefix)s_fmadd_ps
__attribute__((target("%(feature)s,fma"))) float peak(long n) {
  T x = _mm%(prefix)s_set1_ps(0.5f), a[12];
  for (int i = 0; i < 12; i++) a[i] = _mm%(prefix)s_set1_ps(i);
  for (long k = 0; k < n; k++) {
    _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) a[i] = FMA(a[i], x, x);
  }
  T s = a[0];
  for (int i = 1; i < 12; i++) s += a[i];
  return s[0];
}
"""


@cache
def peak_call(chip: Chip) -> tuple[Callable[[], Any], float]:
    """(a run of multiply-adds in registers, its FLOPs)."""
    bits = chip.lanes * 32
    feature = "avx512f" if bits == 512 else "avx2"
    text = _PEAK % {"bits": bits, "prefix": bits if bits == 512 else 256, "feature": feature}
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "peak.c", Path(folder) / "peak.so"
        source.write_text(text)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        peak = ctypes.CDLL(str(library)).peak
    peak.argtypes, n = [ctypes.c_long], 4000
    return lambda: peak(n), 2.0 * n * 12 * chip.lanes


_PIECE_SECONDS = 50e-6  # far longer than a call from Python costs


def best(launch: Launch, peak: Callable[[], Any], seconds: float = 1.0) -> tuple[float, float]:
    """(seconds of all tasks, of the peak): each piece of a launch at its best, so that a pause
    costs one piece.
    """
    start = time.perf_counter()
    launch(0, launch.tasks)
    pieces = max(1, min(launch.tasks, int((time.perf_counter() - start) / _PIECE_SECONDS)))
    cuts = [launch.tasks * i // pieces for i in range(pieces + 1)]
    least, least_peak = [float("inf")] * pieces, float("inf")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i in range(pieces):
            start = time.perf_counter()
            launch(cuts[i], cuts[i + 1])
            least[i] = min(least[i], time.perf_counter() - start)
        start = time.perf_counter()
        peak()
        least_peak = min(least_peak, time.perf_counter() - start)
    return sum(least), least_peak


def matmul(m: int, k: int, n: int) -> Any:
    types = [TensorType((m, k)), TensorType((k, n), layout="pack1_32"), TensorType((n,))]

    def body(a: Any, b: Any, bias: Any) -> Any:
        return ir.build("ai.relu", ir.build("ai.elemwise_add", ir.build("ai.matmul", a, b), bias))

    return program_of(types, body), gemm.schedule


CASES: dict[str, Callable[[], Any]] = {
    f"gemm {m}x{k}x{n}": partial(matmul, m, k, n)
    for m, k, n in (
        (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (197, 384, 1536), (49, 512, 2048),
        (128, 1024, 1024), (12544, 64, 256), (3136, 256, 64), (7, 768, 768), (1, 768, 3072),
        (1, 2048, 1000),
    )
}  # fmt: skip


def conv(c: int, size: int, o: int, kernel: int, stride: int = 1, batch: int = 1) -> Any:
    pads = (kernel // 2,) * 2
    types = [
        TensorType((batch, c, size, size), layout="" if c < 16 else "NCHW16c"),
        TensorType((o, c, kernel, kernel), layout="pack0_32"),
        TensorType((o,)),
    ]

    def body(x: Any, w: Any, bias: Any) -> Any:
        value = ir.build(
            "ai.conv", x, w, bias, strides=(stride, stride), pads_begin=pads, pads_end=pads,
            dilations=(1, 1), out_layout="NCHW16c",
        )  # fmt: skip
        return ir.build("ai.relu", value)

    return program_of(types, body), conv_schedule.schedule


CASES |= {
    f"conv {k}x{k}/{s} {c}->{o} @{size}": partial(conv, c, size, o, k, s)
    for c, size, o, k, s in (
        (3, 224, 64, 7, 2), (64, 56, 64, 3, 1), (128, 28, 128, 3, 1), (256, 14, 256, 3, 1),
        (512, 7, 512, 3, 1), (64, 56, 128, 3, 2), (256, 14, 512, 3, 2), (64, 56, 256, 1, 1),
        (256, 56, 64, 1, 1), (512, 7, 2048, 1, 1), (2048, 7, 512, 1, 1), (256, 56, 512, 1, 2),
        (24, 75, 40, 3, 1),
    )
}  # fmt: skip


def depthwise(c: int, size: int, kernel: int, stride: int) -> Any:
    pads = (kernel // 2,) * 2
    types = [
        TensorType((1, c, size, size), layout="NCHW16c"),
        TensorType((c, 1, kernel, kernel), layout="pack0_16"),
        TensorType((c,)),
    ]

    def body(x: Any, w: Any, bias: Any) -> Any:
        value = ir.build(
            "ai.conv", x, w, bias, strides=(stride, stride), pads_begin=pads, pads_end=pads,
            dilations=(1, 1), groups=c, out_layout="NCHW16c",
        )  # fmt: skip
        return ir.build("ai.relu", value)

    return program_of(types, body), depthwise_schedule.schedule


def max_pool(c: int, size: int) -> Any:
    attrs = {
        "kernel": (3, 3), "strides": (2, 2), "pads_begin": (1, 1), "pads_end": (1, 1),
        "dilations": (1, 1),
    }  # fmt: skip
    types = [TensorType((1, c, size, size), layout="NCHW16c")]
    return program_of(types, lambda x: ir.build("ai.max_pool", x, **attrs)), pool.schedule


def global_mean(c: int, size: int) -> Any:
    types = [TensorType((1, c, size, size), layout="NCHW16c")]
    made = program_of(types, lambda x: ir.build("ai.reduce_mean", x, axes=(2, 3), keepdims=False))
    return made, pool.schedule


CASES |= {
    f"depthwise {k}x{k}/{s} {c} @{size}": partial(depthwise, c, size, k, s)
    for c, size, k, s in (
        (32, 112, 3, 1), (96, 112, 3, 2), (384, 14, 3, 1), (240, 28, 5, 1),
        (960, 7, 5, 1),
    )
} | {
    "max_pool 3x3/2 64 @112": lambda: max_pool(64, 112),
    "global mean 2048 @7": lambda: global_mean(2048, 7),
}  # fmt: skip


def measure(name: str, chip: Chip) -> None:
    program, schedule = CASES[name]()
    kernel = Kernel(program, chip, schedule)
    launch = Launch(kernel, random_feeds(program))
    peak, peak_flops = peak_call(chip)
    seconds, peak_seconds = best(launch, peak)
    rate = evaluate(kernel.scheduled.facts.flops, launch.sizes) / seconds / 1e9
    top = peak_flops / peak_seconds / 1e9
    bandwidth = evaluate(kernel.scheduled.facts.bytes, launch.sizes) / seconds / 1e9
    print(
        f"{chip.name} {name:34} {rate:7.1f} GFLOP/s {100 * rate / top:5.1f} % of {top:5.1f}"
        f" {bandwidth:5.1f} GB/s {launch.tasks:4} tasks of {seconds / launch.tasks * 1e6:5.1f} us,"
        f" schedule {kernel.schedule_ms:3.0f} + LLVM {kernel.compile_ms:3.0f} ms,"
        f" code {kernel.code_bytes} B",
        flush=True,
    )


def main(words: list[str]) -> None:
    chips = [c for c in CHIPS if c.name[-2:] in words] or list(CHIPS)
    wanted = [w for w in words if w not in ("v3", "v4")]
    for name in CASES:
        if not wanted or any(w in name for w in wanted):
            for chip in chips:
                measure(name, chip)


if __name__ == "__main__":
    main(sys.argv[1:])
