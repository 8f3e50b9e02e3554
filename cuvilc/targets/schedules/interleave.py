"""Elements that lie apart laid beside each other: 16 columns of a few planes as 16 groups of
neighbours, as row-major channels become innermost; or a few vectors' elements in turn.
"""

from __future__ import annotations

from typing import Any

from tvm import DataType, tirx

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


def interleave_vectors(
    b: KernelBuilder, count: int, width: int, line: Buffer, target: tuple[Buffer, Any]
) -> None:
    """target[place · count + number] = line[number · width + place] for `count` vectors of `width`
    elements of any size.
    """
    bits = DataType(str(line.dtype)).bits
    name = f"cuvil_beside{count}x{width}x{bits}"
    b.llvm(name, _vectors_text(name, count, width, f"i{bits}"))
    pointers = (
        tirx.address_of(tirx.BufferLoad(buffer, [b.simplify(as_expr(at))]))
        for buffer, at in ((line, 0), target)
    )
    b.emit(tirx.Evaluate(tirx.call_extern("int32", name, *pointers)))


def _vectors_text(name: str, count: int, width: int, element: str) -> str:
    """The function in LLVM IR."""
    vector, align = f"<{width} x {element}>", int(element[1:]) // 8
    lines = [f"define linkonce_odr hidden i32 @{name}(ptr %s, ptr %t) alwaysinline nounwind {{"]
    for n in range(count):
        lines += [
            f"  %p{n} = getelementptr {element}, ptr %s, i64 {n * width}",
            f"  %v{n} = load {vector}, ptr %p{n}, align {align}",
        ]
    made = _merged([f"%v{n}" for n in range(count)], width, vector, lines)
    for n, value in enumerate(made):
        lines += [
            f"  %q{n} = getelementptr {element}, ptr %t, i64 {n * width}",
            f"  store {vector} {value}, ptr %q{n}, align {align}",
        ]
    return "\n".join([*lines, "  ret i32 0", "}"])


def _merged(vectors: list[str], width: int, vector: str, lines: list[str]) -> list[str]:
    """The vectors' elements in turn, as so many vectors again: those of even and of odd number
    by themselves, then in pairs; of an odd number of vectors one after the other.
    """

    def shuffled(a: str, c: str, picks: list[int]) -> str:
        order = ", ".join(f"i32 {p}" for p in picks)
        made = f"%m{len(lines)}"
        lines.append(
            f"  {made} = shufflevector {vector} {a}, {vector} {c}, <{width} x i32> <{order}>"
        )
        return made

    count = len(vectors)
    if count == 1:
        return vectors
    made: list[str] = []
    if count % 2 == 0:
        halves = [_merged(vectors[n::2], width, vector, lines) for n in (0, 1)]
        for n in range(count):  # vector n holds the elements from n · width / 2 on of both halves
            first = n * width // 2
            a, c = (half[first // width] for half in halves)
            picks = [first % width + lane // 2 + width * (lane % 2) for lane in range(width)]
            made.append(shuffled(a, c, picks))
        return made
    for n in range(count):
        places = [divmod(n * width + lane, count) for lane in range(width)]
        value = vectors[0]
        for number in range(1, count):
            # the elements of vector 0 move with the first shuffle, the others' in their own
            picks = [
                width + place if which == number else (lane if number > 1 else place)
                for lane, (place, which) in enumerate(places)
            ]
            value = shuffled(value, vectors[number], picks)
        made.append(value)
    return made
