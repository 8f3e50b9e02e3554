"""The verifier of the launch level: kernels fit, places lie in the arena, live values are apart.

With symbolic sizes the places are checked at sample sizes of every symbol. It works from the
program alone and shares nothing with the pass that plans memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Expr, evaluate, symbols
from cuvilc.dialect.ir import Operation, Program, Value

_SAMPLES = (1, 2, 7, 64)


class LaunchError(ValueError):
    """The program is not a valid launch level; the message names the operation."""


@dataclass
class _Held:
    """Bytes [begin, end) of the arena from operation number `first` to `last`."""

    begin: int
    end: int
    first: int
    last: int
    name: str
    in_place: bool = False  # made by a kernel that may write over an operand


def verify_launch(program: Program) -> None:
    """Raise LaunchError unless `main` is a sound launch level."""
    with program:
        main = program.function("main")
        order = list(ir.walk(ir.body(main)))
        for operation in order:
            if operation.name.endswith(".launch"):
                _check_call(program, operation)
        last = _last_uses(order)
        for sizes in _sizes(program, main):
            if not _sensible(order, sizes):
                continue
            held = list(_held(program, order, last, sizes))
            arena = _number(ir.attrs(main)["arena_bytes"], sizes)
            _check_places(held, arena, sizes)


def _check_call(program: Program, operation: Operation) -> None:
    attrs = ir.attrs(operation)
    try:
        kernel = program.function(attrs["kernel"])
    except KeyError:
        raise LaunchError(f"{operation.name}: there is no kernel @{attrs['kernel']}") from None
    block = ir.body(kernel)
    wanted = [len(block.arguments), len(ir.terminator(block).operands)]
    found = [len(operation.operands), len(operation.results)]
    if wanted != found:
        raise LaunchError(
            f"@{attrs['kernel']} takes and gives {wanted} values, the launch has {found}"
        )
    pairs = zip(
        [*operation.operands, *operation.results],
        [*block.arguments, *ir.terminator(block).operands],
        strict=True,
    )
    for outer, inner in pairs:
        a, b = ir.type_of(outer), ir.type_of(inner)
        if (a.dtype, a.layout, a.rank) != (b.dtype, b.layout, b.rank):
            raise LaunchError(f"@{attrs['kernel']}: {a} is passed for {b}")
    if len(attrs["places"]) != len(operation.results):
        raise LaunchError(f"@{attrs['kernel']}: {len(attrs['places'])} places for its results")


def _last_uses(order: list[Operation]) -> dict[Value, int]:
    """The last operation that reads each value, through any chain of reshapes."""
    last: dict[Value, int] = {}
    for number, operation in enumerate(order):
        for value in operation.operands:
            last[value] = number
    for operation in reversed(order):
        if operation.name == "ai.reshape":
            source, view = operation.operands[0], operation.results[0]
            last[source] = max(last.get(source, 0), last.get(view, 0))
    return last


def _held(
    program: Program, order: list[Operation], last: dict[Value, int], sizes: dict[str, int]
) -> Iterator[_Held]:
    for number, operation in enumerate(order):
        attrs = ir.attrs(operation)
        places = attrs.get("places") or ((attrs["place"],) if "place" in attrs else ())
        for value, place in zip(operation.results, places, strict=False):
            # A branch's copy lies in its conditional's result, which is listed by itself.
            inside = operation.name == "ai.copy" and ir.users(value)[0].name == "ai.yield"
            if place[0] != "arena" or inside:
                continue
            begin = _number(place[1], sizes)
            end = begin + _number(ir.type_of(value).size_bytes, sizes)
            kernel = attrs.get("kernel", "")
            in_place = bool(kernel) and "in_place" in ir.attrs(program.function(kernel))
            yield _Held(begin, end, number, last.get(value, number), operation.name, in_place)


def _check_places(held: list[_Held], arena: int, sizes: dict[str, int]) -> None:
    for one in held:
        if one.begin < 0 or one.end > arena:
            raise LaunchError(
                f"{one.name}: bytes {one.begin}..{one.end} of an arena of {arena} for {sizes}"
            )
    for i, a in enumerate(held):
        for b in held[i + 1 :]:
            together = a.first <= b.last and b.first <= a.last
            if b.in_place and a.last == b.first and (a.begin, a.end) == (b.begin, b.end):
                continue
            if together and a.begin < b.end and b.begin < a.end and a.begin != a.end != b.begin:
                shared = f"{max(a.begin, b.begin)}..{min(a.end, b.end)}"
                raise LaunchError(f"{a.name} and {b.name} share bytes {shared} for {sizes}")


def _sizes(program: Program, main: Operation) -> Iterator[dict[str, int]]:
    names: set[str] = set()
    for argument in ir.body(main).arguments:
        for d in ir.type_of(argument).shape:
            names |= symbols(d)
    if not names:
        yield {}
        return
    for sample in _SAMPLES:
        sizes = {}
        for i, name in enumerate(sorted(names)):
            lo, hi = program.ranges.get(name, (0, None))
            wanted = max(lo, sample + i)
            sizes[name] = wanted if hi is None else min(wanted, hi)
        yield sizes


def _sensible(order: list[Operation], sizes: dict[str, int]) -> bool:
    """Whether no value has a negative size: windows need least lengths that no range states."""
    shapes = {ir.type_of(r).shape for o in order for r in o.results}
    return all(_number(d, sizes) >= 0 for shape in shapes for d in shape)


def _number(d: Expr | int, sizes: dict[str, int]) -> int:
    return d if isinstance(d, int) else evaluate(d, sizes)
