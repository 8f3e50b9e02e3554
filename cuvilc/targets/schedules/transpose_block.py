"""A square of elements, transposed in log₂ n rounds of shuffles (Eklundh 1972)."""

from __future__ import annotations

from typing import Any

from tvm import DataType, tirx

from cuvilc.targets.tir import Buffer, KernelBuilder


def transpose_block(
    b: KernelBuilder, n: int, source: tuple[Buffer, Any, Any], target: tuple[Buffer, Any, Any]
) -> None:
    """target[r, c] = source[c, r] for r, c < n; each is (buffer, first element, distance of rows).

    Rows are contiguous, n is a power of two, both buffers have elements of one size.
    """
    bits = DataType(str(source[0].dtype)).bits
    name = f"cuvil_transpose{n}x{bits}"
    b.llvm(name, _text(name, n, f"i{bits}"))
    arguments = []
    for buffer, first, distance in (source, target):
        pointer = tirx.address_of(tirx.BufferLoad(buffer, [b.simplify(first)]))
        arguments += [pointer, b.simplify(distance)]
    b.emit(tirx.Evaluate(tirx.call_extern("int32", name, *arguments)))


def _text(name: str, n: int, element: str) -> str:
    vector, align = f"<{n} x {element}>", int(element[1:]) // 8
    parameters = "ptr %s, i64 %ss, ptr %t, i64 %ts"
    lines = [f"define linkonce_odr hidden i32 @{name}({parameters}) alwaysinline nounwind {{"]
    for i in range(n):
        lines += [
            f"  %so{i} = mul i64 %ss, {i}",
            f"  %sp{i} = getelementptr {element}, ptr %s, i64 %so{i}",
            f"  %v0_{i} = load {vector}, ptr %sp{i}, align {align}",
        ]
    stage, step = 0, 1
    while step < n:
        for i in range(n):
            if i & step:
                continue
            a, b = f"{vector} %v{stage}_{i}", f"{vector} %v{stage}_{i | step}"
            low = [x if not x & step else n + x - step for x in range(n)]
            high = [x + step if not x & step else n + x for x in range(n)]
            for row, mask in ((i, low), (i | step, high)):
                picks = ", ".join(f"i32 {m}" for m in mask)
                lines.append(
                    f"  %v{stage + 1}_{row} = shufflevector {a}, {b}, <{n} x i32> <{picks}>"
                )
        stage, step = stage + 1, step * 2
    for i in range(n):
        lines += [
            f"  %to{i} = mul i64 %ts, {i}",
            f"  %tp{i} = getelementptr {element}, ptr %t, i64 %to{i}",
            f"  store {vector} %v{stage}_{i}, ptr %tp{i}, align {align}",
        ]
    return "\n".join([*lines, "  ret i32 0", "}"])
