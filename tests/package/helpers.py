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


def pick_plan() -> Plan:
    """places = indices of what is not 0 in x: int64[n], by way of a heap slot; y = places."""
    n, count = symbol("n"), symbol("count")
    return Plan(
        symbols=[Symbol("n", input=0, axis=0), Symbol("count", hi=1000)],
        inputs=[Port("x", "int64", (n,), 0)],
        outputs=[Port("y", "int64", (count,), 1)],
        buffers=[
            Buffer(BufferKind.INPUT, n * 8, 0),
            Buffer(BufferKind.OUTPUT, count * 8, 0),
            Buffer(BufferKind.HEAP, count * 8, (0, n * 8)),
            Buffer(BufferKind.HEAP, n * 8, (0, 0)),
            Buffer(BufferKind.ARENA, 8, 0),
        ],
        steps=[
            Step(StepKind.KERNEL, 0, (0, 3, 4), (n,), 1, name="pick", layer="/NonZero"),
            Step(StepKind.BIND, 1, (4,), (0,), layer="/NonZero"),
            Step(StepKind.BRANCH, 5, scalars=(count,)),
            Step(StepKind.KERNEL, 1, (3, 2), (count,), 1, name="move", layer="/Move"),
            Step(StepKind.COPY, buffers=(2, 1)),
        ],
        kernels=["pick", "move"],
        levels=[Level("base", ())],
        arena_bytes=8,
    )


def pick_metadata() -> Metadata:
    kernels = {"pick": KernelFacts("fallback"), "move": KernelFacts("fallback", symbol("count"))}
    return describe(
        pick_plan(),
        model=scale_metadata()["model"],
        compiler=scale_metadata()["compiler"],
        target_kind="x86",
        kernels=kernels,
    )


_PICK = """
#include <stdint.h>
int32_t pick__L0(void *const *b, const int64_t *s, int64_t begin, int64_t end, void *scratch)
{
    int64_t *count = b[2];
    *count = 0;
    for (int64_t i = 0; i < s[0]; i++)
        if (((int64_t *)b[0])[i] != 0)
            ((int64_t *)b[1])[(*count)++] = i;
    return 0;
}
int32_t move__L0(void *const *b, const int64_t *s, int64_t begin, int64_t end, void *scratch)
{
    for (int64_t i = 0; i < s[0]; i++)
        ((int64_t *)b[1])[i] = ((int64_t *)b[0])[i];
    return 0;
}
"""


def pick_object() -> bytes:
    return compile_c(_PICK)


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
