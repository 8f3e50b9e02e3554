"""A small plan, kernels for it in C, and what goes with them."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cuvilc.artifact import Metadata
from cuvilc.dialect.dims import symbol
from cuvilc.package.describe import KernelFacts, describe
from cuvilc.package.plan import Buffer, BufferKind, Level, Plan, Port, Step, StepKind, Symbol
from cuvilc.package.runtime_source import RuntimeSource, runtime_at
from cuvilc.package.vectors import Case, Vectors

STUB_RUNTIME = Path(__file__).parent / "stub_runtime"


def stub_runtime() -> RuntimeSource:
    return runtime_at(STUB_RUNTIME)


def scale_plan(levels: tuple[Level, ...] = (Level("base", ()),)) -> Plan:
    """y = x · w (per column) for x: float32[n, 4], by the kernel `scale`; one task is one row."""
    n = symbol("n")
    return Plan(
        symbols=[Symbol("n", input=0, axis=0, lo=1, hi=64)],
        inputs=[Port("x", "float32", (n, 4), 0)],
        outputs=[Port("y", "float32", (n, 4), 2)],
        buffers=[
            Buffer(BufferKind.INPUT, n * 16, 0),
            Buffer(BufferKind.WEIGHT, 16, "w"),
            Buffer(BufferKind.OUTPUT, n * 16, 0),
            Buffer(BufferKind.WEIGHT, 16, "w again"),
        ],
        steps=[Step(StepKind.KERNEL, 0, (0, 1, 2), (n,), n, 0, n * 16, "scale", "/mul")],
        kernels=["scale"],
        levels=list(levels),
        arena_bytes=n * 64,
    )


_SCALE = """
#include <stdint.h>
int32_t {symbol}(void *const *b, const int64_t *s, int64_t begin, int64_t end, void *scratch)
{{
    const float *x = b[0], *w = b[1];
    float *y = b[2];
    for (int64_t i = begin; i < end; i++)
        for (int j = 0; j < 4; j++)
            y[i * 4 + j] = x[i * 4 + j] * w[j] * {factor};
    return 0;
}}
"""


@lru_cache
def compile_c(source: str) -> bytes:
    """The object file of a C source."""
    with TemporaryDirectory() as directory:
        unit, output = Path(directory, "unit.c"), Path(directory, "unit.o")
        unit.write_text(source)
        subprocess.run(["cc", "-O2", "-fPIC", "-c", str(unit), "-o", str(output)], check=True)
        return output.read_bytes()


def scale_object(level: int = 0, factor: int = 1) -> bytes:
    return compile_c(_SCALE.format(symbol=f"scale__L{level}", factor=factor))


def scale_weights() -> dict[str, np.ndarray]:
    w = np.array([1, 2, 3, 4], np.float32)
    return {"w": w, "unused": np.zeros(1000, np.float32), "w again": w.copy()}


def scale_metadata(plan: Plan | None = None) -> Metadata:
    return describe(
        plan or scale_plan(),
        model={
            "name": "scale",
            "source_format": "onnx",
            "source_sha256": "0" * 64,
            "opset": {"": 17},
        },
        compiler={"version": "0.1.0", "passes": [{"name": "canonicalise", "version": 1}]},
        target_kind="x86",
        kernels={"scale": KernelFacts("elementwise", symbol("n") * 4, symbol("n") * 32 + 16)},
    )


def scale_vectors() -> Vectors:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    case = Case([x], [x * np.array([1, 2, 3, 4], np.float32)])
    return Vectors([case], {"rtol": 1e-4, "atol": 1e-6})
