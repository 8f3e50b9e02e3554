"""The verifier of the launch level: kernels fit, places lie in the arena, live values are apart.

With symbolic sizes the places are checked at sample sizes of every symbol. It works from the
program alone and shares nothing with the pass that plans memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, evaluate, maximum, symbols, symbols_of
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.ops.structure import computed_sizes, defined_sizes, region_sizes

_SAMPLES = (1, 2, 7, 64)


class LaunchError(ValueError):
    """The program is not a valid launch level; the message names the operation."""


@dataclass
class _Held:
    """`size_bytes` of the arena, or of a heap slot, from `offset` on, from operation number `first`
    to `last`.
    """

    offset: Dim
    size_bytes: Dim
    first: int
    last: int
    name: str
    in_place: bool = False  # made by a kernel that may write over an operand
    slot: int | None = None  # of the heap, then at its beginning


def verify_launch(program: Program) -> None:
    """Raise LaunchError unless `main` is a sound launch level."""
    with program:
        main = program.function("main")
        order = list(ir.walk(ir.body(main)))
        for operation in order:
            if operation.name.endswith(".launch"):
                _check_call(program, operation)
        _check_prepared(program, order)
        _check_outputs(main, order)
        every = list(_held(program, order))
        _check_slots([one for one in every if one.slot is not None])
        held = [one for one in every if one.slot is None]
        computed = set(computed_sizes(ir.body(main)))
        shapes = {ir.type_of(r).shape for o in order for r in o.results}
        shapes = {s for s in shapes if not any(symbols(d) & computed for d in s)}
        for sizes in _sizes(program, main):
            # Windows need least lengths that no range states: a negative size is no sample.
            if any(_number(d, sizes) < 0 for shape in shapes for d in shape):
                continue
            arena = _number(ir.attrs(main)["arena_bytes"], sizes)
            _check_places(held, arena, sizes)


def is_prepared(program: Program, launch: Operation) -> bool:
    """Whether a launch may run when the package is opened: it computes from constants alone, by
    operations that ask for it.
    """
    if not launch.operands:
        return False
    for value in launch.operands:
        owner = ir.defining(value)
        if owner is None or owner.name != "ai.constant":
            return False
    kernel = program.function(ir.attrs(launch)["kernel"])
    inner = ir.operations(ir.body(kernel))[:-1]
    declared = [ir.definition(o) for o in inner]
    return all(d is not None and "prepared" in d.traits for d in declared)


def _check_prepared(program: Program, order: list[Operation]) -> None:
    """Prepared places are apart, aligned, and filled by launches that need no run."""
    end = 0
    for operation in order:
        kinds = {kind for kind, _ in ir.places(operation)}
        if "prepared" not in kinds:
            continue
        if kinds != {"prepared"} or not is_prepared(program, operation):
            raise LaunchError(f"{operation.name} is prepared and needs a run")
        for value, (_, offset) in zip(operation.results, ir.places(operation), strict=True):
            size = ir.type_of(value).size_bytes
            if not isinstance(size, int) or offset % 64 or offset < end:
                raise LaunchError(f"{operation.name} is prepared at {offset}, {end} is in use")
            end = offset + size


def _check_outputs(main: Operation, order: list[Operation]) -> None:
    """What is written into an output comes after all that binds the output's sizes."""
    computed = set(computed_sizes(ir.body(main)))
    types = [ir.type_of(v) for v in ir.terminator(ir.body(main)).operands]
    bound: set[str] = set()
    for operation in order:
        bound |= set(region_sizes(operation))
        for kind, where in ir.places(operation):
            needed = symbols_of(types[where].shape) if kind == "output" else set()
            if unbound := sorted((needed & computed) - bound):
                raise LaunchError(
                    f"{operation.name} writes output {where} before its size {unbound[0]} is known"
                )
        bound |= set(defined_sizes(operation))


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
    """The last operation that reads each value, through any chain of views and round of a loop."""
    last: dict[Value, int] = {}
    for number, operation in enumerate(order):
        for value in operation.operands:
            last[value] = number
    for operation in reversed(order):
        if operation.name in ir.VIEWS:
            source, view = operation.operands[0], operation.results[0]
            last[source] = max(last.get(source, 0), last.get(view, 0))
    made = {r: number for number, o in enumerate(order) for r in o.results}
    place = {o: number for number, o in enumerate(order)}
    for number, operation in reversed(list(enumerate(order))):
        if operation.name == "ai.loop":
            end = place[ir.terminator(ir.body(operation))]
            for value, use in last.items():
                if made.get(value, end) < number <= use:
                    last[value] = max(use, end)
            for value in operation.results:
                last[value] = max(last.get(value, 0), end)
    return last


def _held(program: Program, order: list[Operation]) -> Iterator[_Held]:
    last = _last_uses(order)
    for number, operation in enumerate(order):
        attrs = ir.attrs(operation)
        for value, place in zip(operation.results, ir.places(operation), strict=False):
            # A branch's copy lies in its conditional's result, which is listed by itself.
            inside = operation.name == "ai.copy" and operation.parent.name == "ai.if"
            if place[0] in ("output", "prepared") or inside:
                continue
            size = _most_bytes(operation, value)
            kernel = attrs.get("kernel", "")
            in_place = bool(kernel) and "in_place" in ir.attrs(program.function(kernel))
            end = last.get(value, number)
            slot = place[1] if place[0] == "heap" else None
            offset = place[1] if slot is None else 0
            yield _Held(offset, size, number, end, operation.name, in_place, slot)


def _most_bytes(operation: Operation, value: Value) -> Dim:
    """Of the result of an operation: a conditional's takes what either branch gives."""
    most = ir.type_of(value).size_bytes
    if operation.name != "ai.if" or symbols(most) & set(defined_sizes(operation)):
        return most
    at = list(operation.results).index(value)
    for region in operation.regions:
        most = maximum(most, ir.type_of(ir.terminator(region.blocks[0]).operands[at]).size_bytes)
    return most


def _check_slots(held: list[_Held]) -> None:
    """No two values are in one slot at one time; one may take over what dies with it."""
    for i, a in enumerate(held):
        for b in held[i + 1 :]:
            together = a.first <= b.last and b.first <= a.last
            if together and a.slot == b.slot and not (b.in_place and a.last == b.first):
                raise LaunchError(f"{a.name} and {b.name} share slot {a.slot} of the heap")


def _check_places(held: list[_Held], arena: int, sizes: dict[str, int]) -> None:
    begins = [_number(one.offset, sizes) for one in held]
    ends = [x + _number(one.size_bytes, sizes) for x, one in zip(begins, held, strict=True)]
    for one, begin, end in zip(held, begins, ends, strict=True):
        if begin < 0 or end > arena:
            raise LaunchError(
                f"{one.name}: bytes {begin}..{end} of an arena of {arena} for {sizes}"
            )
    for i, a in enumerate(held):
        for j, b in enumerate(held[i + 1 :], i + 1):
            same = (begins[i], ends[i]) == (begins[j], ends[j])
            if b.in_place and a.last == b.first and same:
                continue
            together = a.first <= b.last and b.first <= a.last
            begin, end = max(begins[i], begins[j]), min(ends[i], ends[j])
            if together and begin < end:
                raise LaunchError(f"{a.name} and {b.name} share bytes {begin}..{end} for {sizes}")


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


def _number(d: Dim, sizes: dict[str, int]) -> int:
    return d if isinstance(d, int) else evaluate(d, sizes)
