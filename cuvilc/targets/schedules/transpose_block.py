"""A square of elements, transposed in log₂ n rounds of shuffles (Eklundh 1972)."""

from __future__ import annotations

from typing import Any

from tvm import DataType, tirx

from cuvilc.targets.tir import Buffer, KernelBuilder


def transpose_block(
    b: KernelBuilder, n: int, source: tuple[Buffer, Any, Any], target: tuple[Buffer, Any, Any],
    read: int = -1, written: int = -1,
) -> None:  # fmt: skip
    """target[r, c] = source[c, r] for r, c < n; each is (buffer, first element, distance of rows).

    Rows are contiguous, n is a power of two, both buffers have elements of one size. Where only
    some rows are `read`, zeros stand for the others; where some are `written`, the others stay.
    """
    bits = DataType(str(source[0].dtype)).bits
    read, written = (n if rows < 0 else rows for rows in (read, written))
    name = f"cuvil_transpose{n}x{bits}" + (f"r{read}w{written}" if min(read, written) < n else "")
    b.llvm(name, _text(name, n, f"i{bits}", read, written))
    arguments = []
    for buffer, first, distance in (source, target):
        pointer = tirx.address_of(tirx.BufferLoad(buffer, [b.simplify(first)]))
        arguments += [pointer, b.simplify(distance)]
    b.emit(tirx.Evaluate(tirx.call_extern("int32", name, *arguments)))


def _text(name: str, n: int, element: str, read: int, written: int) -> str:
    vector, align = f"<{n} x {element}>", int(element[1:]) // 8
    parameters = "ptr %s, i64 %ss, ptr %t, i64 %ts"
    lines = [f"define linkonce_odr hidden i32 @{name}({parameters}) alwaysinline nounwind {{"]
    for i in range(read):
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
            a, b = (
                f"{vector} "
                + ("zeroinitializer" if not stage and row >= read else f"%v{stage}_{row}")
                for row in (i, i | step)
            )
            low = [x if not x & step else n + x - step for x in range(n)]
            high = [x + step if not x & step else n + x for x in range(n)]
            for row, mask in ((i, low), (i | step, high)):
                picks = ", ".join(f"i32 {m}" for m in mask)
                lines.append(
                    f"  %v{stage + 1}_{row} = shufflevector {a}, {b}, <{n} x i32> <{picks}>"
                )
        stage, step = stage + 1, step * 2
    for i in range(written):
        lines += [
            f"  %to{i} = mul i64 %ts, {i}",
            f"  %tp{i} = getelementptr {element}, ptr %t, i64 %to{i}",
            f"  store {vector} %v{stage}_{i}, ptr %tp{i}, align {align}",
        ]
    return "\n".join([*lines, "  ret i32 0", "}"])
