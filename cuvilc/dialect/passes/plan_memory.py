"""Give every value of `main` a place: in one arena, an output, or another value's memory.

Lifetimes are over the linear order of operations, branches one after the other. With static sizes
offsets are chosen best-fit (largest first); with symbolic sizes values share slots when one
provably fits, and an offset is a sum of slot sizes. An elementwise kernel writes over an operand
that dies with it. A bare view (ir.VIEWS) shares its operand's memory. ALIGNMENT keeps vectors and
cache lines of different buffers apart.

What kernels of "prepared" operations make of constants alone lies in memory of the model that is
filled when the package is opened ("prepared", offset in bytes); no run writes there.

What is sized by a symbol that the model computes lies in a heap slot, which grows while the model
runs; values that live one after the other share slots. What a loop carries along lies in the
memory of the loop's result; what a loop reads from around it lives until the loop ends.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cuvilc.diagnostics import define, fail
from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, bounds, ceildiv, maximum, symbols, symbols_of
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.op import write_attr
from cuvilc.dialect.ops.structure import computed_sizes, defined_sizes
from cuvilc.dialect.passes.context import PassContext
from cuvilc.dialect.types import MOST_BYTES, item_bytes
from cuvilc.dialect.verify_launch import is_prepared, verify_launch

NAME = "plan-memory"
VERSION = 1

TOO_BIG = define(
    "CUV303",
    "the model's values need more memory than a process can address",
    """\
The sizes of the model's inputs and of what it computes from them ask for more than 128 TiB at one
time, which no machine gives.

Next step: look at the sizes that the model declares; `cuvilc inspect` and `--dump-after
outline-kernels` show them.
""",
)
ALIGNMENT = 64
Place = tuple[str, Dim]


@dataclass
class Lifetime:
    """Memory of `size_bytes` (rounded up) needed from step `first` to and with step `last`."""

    owner: Value
    size_bytes: Dim
    first: int
    last: int
    offset: Dim = 0
    slot: int | None = None  # of the heap; None: in the arena


def run(program: Program, context: PassContext) -> None:
    """After it `main` is at the launch level: ai.cpu.launch with places, copies for outputs."""
    with program:
        main = program.function("main")
        if any(o.name == "ai.cpu.launch" for o in ir.walk(ir.body(main))):
            return
        for block in ir.blocks(ir.body(main)):
            _copy_results(block)
        prepared = _prepare(program, main)
        outputs = _claim_outputs(main, prepared)
        order = list(ir.walk(ir.body(main)))
        roots = _roots(main, order)
        lifetimes = _lifetimes(order, roots, {*outputs, *prepared})
        for step, operation in enumerate(order):
            _share_in_place(program, step, operation, roots, lifetimes)
        computed = set(computed_sizes(ir.body(main)))
        lives = list({id(x): x for x in lifetimes.values()}.values())
        _assign_heap([x for x in lives if symbols(x.size_bytes) & computed])
        arena = _assign([x for x in lives if x.slot is None], program)
        if isinstance(arena, int) and arena > MOST_BYTES:
            raise fail(TOO_BIG, f"the model's values need {arena} bytes at one time")
        main.attributes["arena_bytes"] = write_attr(arena)
        fixed = {v: ("output", number) for v, number in outputs.items()} | prepared
        for operation in order:
            _place(operation, lifetimes, fixed)
    verify_launch(program)


def _prepare(program: Program, main: Operation) -> dict[Value, Place]:
    """Places of what is made of constants alone when the package is opened."""
    found: dict[Value, Place] = {}
    total = 0
    for operation in ir.walk(ir.body(main)):
        if operation.name != "ai.launch" or not is_prepared(program, operation):
            continue
        for result in operation.results:
            found[result] = ("prepared", total)
            room = _rounded(result)
            assert isinstance(room, int)
            total += room
    return found


def _copy_results(block: Any) -> None:
    """What a region yields is copied where it must not lie where it was computed."""
    for operation in ir.operations(block):
        if operation.name == "ai.if":
            for region in operation.regions:
                end = ir.terminator(region.blocks[0])
                _copy_operands(end, range(len(end.operands)))
        elif operation.name == "ai.loop":
            _copy_carried(operation)


def _copy_carried(loop: Operation) -> None:
    """A loop writes its carried values one after the other: one that is another's may be gone."""
    block, end = ir.body(loop), ir.terminator(ir.body(loop))
    own = list(block.arguments)
    first = int(ir.attrs(loop)["conditional"])
    moved = []
    for i, value in enumerate(end.operands):
        source = _view_source(value)
        mine = 0 <= i - first < len(own) and source == own[i - first]
        if ir.defining(source) is None and source in own and not mine:
            moved.append(i)
    _copy_operands(end, moved)


def _copy_operands(end: Operation, indices: Iterable[int]) -> None:
    with ir.before(end):
        for i in indices:
            end.operands[i] = ir.build("ai.copy", end.operands[i], place=("branch", i))


def _claim_outputs(main: Operation, prepared: Container[Value] = ()) -> dict[Value, int]:
    """Values that may be written into an output's memory directly; others are copied.

    A view may have sizes that are computed only after its source: until then the output has no
    memory.
    """
    end = ir.terminator(ir.body(main))
    computed = set(computed_sizes(ir.body(main)))
    claimed: dict[Value, int] = {}
    for i, value in enumerate(list(end.operands)):
        source = _view_source(value)
        owner = ir.defining(source)
        direct = owner is not None and owner.name in ("ai.launch", "ai.dim_values")
        late = (_sizes_in(value) - _sizes_in(source)) & computed
        if not direct or late or source in claimed or source in prepared:
            with ir.before(end):
                value = ir.build("ai.copy", value, place=("output", i))
            end.operands[i] = value
            source = value
        claimed[source] = i
    return claimed


def _sizes_in(value: Value) -> set[str]:
    return symbols_of(ir.type_of(value).shape)


def _view_source(value: Value) -> Value:
    owner = ir.defining(value)
    while owner is not None and owner.name in ir.VIEWS:
        value = owner.operands[0]
        owner = ir.defining(value)
    return value


def _roots(main: Operation, order: list[Operation]) -> dict[Value, Value]:
    """Every value -> the owner of its memory. A branch's copy lies in the conditional's result, a
    loop's argument in the loop's.
    """
    roots: dict[Value, Value] = {a: a for a in ir.body(main).arguments}
    for operation in order:
        for result in operation.results:
            roots[result] = _view_source(result)
    for operation in order:
        if operation.name == "ai.if":
            for region in operation.regions:
                end = ir.terminator(region.blocks[0])
                roots.update(zip(end.operands, operation.results, strict=True))
        elif operation.name == "ai.loop":
            roots.update(zip(ir.body(operation).arguments, operation.results, strict=False))
    return {v: roots.get(_view_source(r), r) for v, r in roots.items()}


def _lifetimes(
    order: list[Operation], roots: dict[Value, Value], outputs: Container[Value]
) -> dict[Value, Lifetime]:
    """Lifetimes of all values that need arena memory, by owning value."""
    found: dict[Value, Lifetime] = {}
    for step, operation in enumerate(order):
        for value in (*operation.operands, *operation.results):
            root = roots.get(value, value)
            life = found.get(root)
            if life is not None:
                life.first, life.last = min(life.first, step), max(life.last, step)
            elif _in_arena(root, outputs):
                found[root] = Lifetime(root, _room(root), step, step)
    for first, last in _loops(order):
        for life in found.values():
            read_again = life.first < first <= life.last
            if life.first == first or read_again:
                life.last = max(life.last, last)
    return found


def _room(root: Value) -> Dim:
    """Bytes for a value. The result of a conditional whose condition says which size it has holds
    what either branch gives: the runtime looks at places before it knows which one is taken.
    """
    room = _rounded(root)
    owner = ir.defining(root)
    if owner is None or owner.name != "ai.if" or _sizes_in(root) & set(defined_sizes(owner)):
        return room
    at = list(owner.results).index(root)
    for region in owner.regions:
        room = maximum(room, _rounded(ir.terminator(region.blocks[0]).operands[at]))
    return room


def _rounded(value: Value) -> Dim:
    return ceildiv(ir.type_of(value).size_bytes, ALIGNMENT) * ALIGNMENT


def _loops(order: list[Operation]) -> Iterator[tuple[int, int]]:
    """(step of the loop, step of its last operation), inner loops before those around them."""
    place = {operation: step for step, operation in enumerate(order)}
    for step, operation in reversed(list(enumerate(order))):
        if operation.name == "ai.loop":
            yield step, place[ir.terminator(ir.body(operation))]


def _share_in_place(
    program: Program,
    step: int,
    operation: Operation,
    roots: dict[Value, Value],
    lifetimes: dict[Value, Lifetime],
) -> None:
    """Let a kernel that is purely elementwise write over an operand that nothing reads after it."""
    if operation.name != "ai.launch" or len(operation.results) != 1:
        return
    result = operation.results[0]
    t, mine = ir.type_of(result), lifetimes.get(result)
    kernel = program.function(ir.attrs(operation)["kernel"])
    if mine is None or mine.first != step or not _is_elementwise(kernel):
        return
    for operand in operation.operands:
        theirs, given = lifetimes.get(roots.get(operand, operand)), ir.type_of(operand)
        same = (given.shape, given.layout) == (t.shape, t.layout)
        if theirs is None or theirs is mine or not same or theirs.last != step:
            continue
        if item_bytes(given.dtype) != item_bytes(t.dtype) or theirs.first == step:
            continue
        theirs.last = mine.last
        lifetimes[result] = theirs
        kernel.attributes["in_place"] = write_attr(True)
        return


def _is_elementwise(kernel: Operation) -> bool:
    """Whether element i of the result depends on element i of every operand of its shape alone."""
    for operation in ir.operations(ir.body(kernel))[:-1]:
        declared = ir.definition(operation)
        if operation.name != "ai.full" and "elementwise" not in getattr(declared, "traits", ()):
            return False
    return True


def _in_arena(value: Value, outputs: Container[Value]) -> bool:
    owner = ir.defining(value)
    if owner is None or value in outputs:
        return False
    return owner.name in ("ai.launch", "ai.dim_values", "ai.copy", "ai.if", "ai.loop")


def _assign_heap(lifetimes: list[Lifetime]) -> None:
    """In order of birth, each in the slot that has been free for longest; else in a new one."""
    free_from: list[int] = []
    for life in sorted(lifetimes, key=lambda x: x.first):
        free = [s for s, step in enumerate(free_from) if step < life.first]
        life.slot = min(free, key=free_from.__getitem__, default=len(free_from))
        free_from[life.slot : life.slot + 1] = [life.last]


def _assign(lifetimes: list[Lifetime], program: Program) -> Dim:
    """Choose offsets; returns the arena's size in bytes."""
    if all(isinstance(x.size_bytes, int) for x in lifetimes):
        return _assign_static(lifetimes)
    return _assign_slots(lifetimes, program)


def _assign_static(lifetimes: list[Lifetime]) -> int:
    """Largest first, each at the lowest offset where it overlaps nothing alive at the same time."""
    placed: list[Lifetime] = []
    total = 0
    for life in sorted(lifetimes, key=lambda x: (-int(x.size_bytes), x.first)):  # type: ignore[arg-type]
        alive = [p for p in placed if p.first <= life.last and life.first <= p.last]
        offset = 0
        for other in sorted(alive, key=lambda p: int(p.offset)):  # type: ignore[arg-type]
            if offset + int(life.size_bytes) <= int(other.offset):  # type: ignore[arg-type]
                break
            offset = max(offset, int(other.offset) + int(other.size_bytes))  # type: ignore[arg-type]
        life.offset = offset
        placed.append(life)
        total = max(total, offset + int(life.size_bytes))  # type: ignore[arg-type]
    return total


def _assign_slots(lifetimes: list[Lifetime], program: Program) -> Dim:
    """In order of birth, values reuse a free slot that surely holds them, or that they outgrow."""
    slots: list[tuple[Dim, int, list[Lifetime]]] = []  # size, last step of its users, users
    for life in sorted(lifetimes, key=lambda x: x.first):
        best = None
        for i, (size, last, _) in enumerate(slots):
            if last >= life.first:
                continue
            lo, hi = bounds(size - life.size_bytes, program.ranges)
            if size == life.size_bytes:
                best = i
                break
            if best is None and (lo >= 0 or hi <= 0):
                best = i
        if best is None:
            slots.append((life.size_bytes, life.last, [life]))
        else:
            size, _, users = slots[best]
            lo, _ = bounds(size - life.size_bytes, program.ranges)
            slots[best] = (size if lo >= 0 else life.size_bytes, life.last, [*users, life])
    total: Dim = 0
    for size, _, users in slots:
        for life in users:
            life.offset = total
        total = total + size
    return total


def _place(
    operation: Operation, lifetimes: dict[Value, Lifetime], outputs: dict[Value, Place]
) -> None:
    """Write the chosen places into the operation."""
    if operation.name == "ai.launch":
        places = tuple(_place_of(r, lifetimes, outputs) for r in operation.results)
        with ir.before(operation):
            results = ir.build(
                "ai.cpu.launch", *operation.operands, **ir.attrs(operation), places=places,
                types=[ir.type_of(r) for r in operation.results],
            )  # fmt: skip
        ir.replace(operation, *(results if isinstance(results, tuple) else (results,)))
    elif operation.name == "ai.if":
        places = tuple(_place_of(r, lifetimes, outputs) for r in operation.results)
        operation.attributes["places"] = write_attr(places)
        for region in operation.regions:
            for value, place in zip(ir.terminator(region.blocks[0]).operands, places, strict=True):
                ir.defining(value).attributes["place"] = write_attr(place)  # type: ignore[union-attr]
    elif operation.name == "ai.loop":
        places = tuple(_place_of(r, lifetimes, outputs) for r in operation.results)
        operation.attributes["places"] = write_attr(places)
    elif operation.name in ("ai.dim_values", "ai.copy") and operation.results:
        result = operation.results[0]
        if result in lifetimes or result in outputs:
            name = "place" if operation.name == "ai.copy" else "places"
            place = _place_of(result, lifetimes, outputs)
            operation.attributes[name] = write_attr(place if name == "place" else (place,))


def _place_of(value: Value, lifetimes: dict[Value, Lifetime], outputs: dict[Value, Place]) -> Place:
    if value in outputs:
        return outputs[value]
    life = lifetimes[value]
    return ("arena", life.offset) if life.slot is None else ("heap", life.slot)
