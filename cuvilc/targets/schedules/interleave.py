"""16 columns of a few planes as 16 groups of neighbours: row-major channels become innermost."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from cuvilc.targets.schedules.dot_rounding import VECTOR
from cuvilc.targets.tir import Buffer, KernelBuilder, as_expr

MOST_PLANES = 4


def interleave(
    b: KernelBuilder, planes: int, bits: int, source: tuple[Buffer, Any, Any],
    to: tuple[Buffer, Any],
) -> None:  # fmt: skip
    """to[at + column · planes + plane] = source[at + plane · stride + column] for VECTOR columns of
    elements of so many bits; `source`: buffer, at, stride; `to`: buffer, at.
    """
    name = f"cuvil_interleave_{planes}_{bits}"
    b.llvm(name, _text(name, planes, f"i{bits}"))
    buffer, at, stride = source
    call = tirx.call_extern(
        "int32", name, buffer.data, as_expr(b.simplify(at)), as_expr(stride), to[0].data,
        as_expr(b.simplify(to[1])),
    )  # fmt: skip
    b.emit(tirx.Evaluate(call))


def _text(name: str, planes: int, item: str) -> str:
    """The function in LLVM IR."""
    lines = [
        f"define linkonce_odr hidden i32 @{name}(ptr %x, i64 %i, i64 %stride, ptr %to, i64 %t)"
        " alwaysinline nounwind {",
    ]
    vector, pair, whole = (f"<{VECTOR * n} x {item}>" for n in (1, 2, MOST_PLANES))
    for c in range(planes):
        lines += [
            f"  %o{c} = mul i64 %stride, {c}",
            f"  %j{c} = add i64 %i, %o{c}",
            f"  %q{c} = getelementptr {item}, ptr %x, i64 %j{c}",
            f"  %v{c} = load {vector}, ptr %q{c}, align 1",
        ]
    values = [f"%v{c}" if c < planes else "poison" for c in range(MOST_PLANES)]
    lines += [
        f"  %a = shufflevector {vector} {values[0]}, {vector} {values[1]}, {_order(range(32))}",
        f"  %b = shufflevector {vector} {values[2]}, {vector} {values[3]}, {_order(range(32))}",
        f"  %c = shufflevector {pair} %a, {pair} %b, {_order(range(64))}",
        f"  %r = shufflevector {whole} %c, {whole} poison, "
        + _order([VECTOR * c + i for i in range(VECTOR) for c in range(planes)]),
        f"  %q = getelementptr {item}, ptr %to, i64 %t",
        f"  store <{VECTOR * planes} x {item}> %r, ptr %q, align 1",
        "  ret i32 0",
        "}",
        "",
    ]
    return "\n".join(lines)


def _order(places: Any) -> str:
    return f"<{len(places)} x i32> <{', '.join(f'i32 {p}' for p in places)}>"
