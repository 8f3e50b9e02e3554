"""Sums over the lanes of several vectors at once, in log₂ n rounds of shuffles and additions."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from cuvilc.targets.tir import Buffer, KernelBuilder


def row_sums(b: KernelBuilder, n: int, source: Buffer, target: tuple[Buffer, Any]) -> None:
    """target[r] = Σ_c source[r, c] for r, c < n, a power of two; float32.

    source: an array [n, n] on the stack, which LLVM keeps in registers. target: (buffer, first
    element). Round s of two vectors a and b adds to lane x of a, or of b where x has bit s, its
    neighbour x ^ s; so lane x ends as the sum of vector x.
    """
    name = f"cuvil_row_sums{n}"
    b.llvm(name, _text(name, n))
    buffer, first = target
    to = tirx.address_of(tirx.BufferLoad(buffer, [b.simplify(first)]))
    rows = tirx.address_of(tirx.BufferLoad(source, [b.simplify(0)]))
    b.emit(tirx.Evaluate(tirx.call_extern("int32", name, rows, to)))


def _text(name: str, n: int) -> str:
    vector = f"<{n} x float>"
    lines = [f"define linkonce_odr hidden i32 @{name}(ptr %s, ptr %t) alwaysinline nounwind {{"]
    for i in range(n):
        lines += [
            f"  %p{i} = getelementptr float, ptr %s, i64 {i * n}",
            f"  %v0_{i} = load {vector}, ptr %p{i}, align 4",
        ]
    stage, step = 0, 1
    while step < n:
        own = ", ".join(f"i32 {x + n * bool(x & step)}" for x in range(n))
        other = ", ".join(f"i32 {(x ^ step) + n * bool(x & step)}" for x in range(n))
        for i in range(0, n, 2 * step):
            a, b = f"{vector} %v{stage}_{i}", f"{vector} %v{stage}_{i + step}"
            made = f"%v{stage + 1}_{i}"
            lines += [
                f"  {made}.own = shufflevector {a}, {b}, <{n} x i32> <{own}>",
                f"  {made}.other = shufflevector {a}, {b}, <{n} x i32> <{other}>",
                f"  {made} = fadd {vector} {made}.own, {made}.other",
            ]
        stage, step = stage + 1, step * 2
    lines.append(f"  store {vector} %v{stage}_0, ptr %t, align 4")
    return "\n".join([*lines, "  ret i32 0", "}"])
