"""What the packer demands of a plan before it writes one byte."""

from __future__ import annotations

from collections.abc import Container, Iterator

from cuvilc.diagnostics import fail
from cuvilc.dialect import dims
from cuvilc.package.codes import BAD_PLAN
from cuvilc.package.image_format import DTYPES, MAX_RANK
from cuvilc.package.plan import CPU_LEVEL, Buffer, BufferKind, Plan, Port, Step, StepKind


def check_plan(plan: Plan, weight_keys: Container[str], features: Container[str]) -> None:
    """Every number in `plan` names something, every weight and CPU feature exists; else CUV511."""
    faults = [
        *_symbol_faults(plan),
        *_computed_faults(plan),
        *_port_faults(plan, plan.inputs, BufferKind.INPUT, "input"),
        *_port_faults(plan, plan.outputs, BufferKind.OUTPUT, "output"),
        *(f for i, b in enumerate(plan.buffers) for f in _buffer_faults(plan, i, b, weight_keys)),
        *(f for i, s in enumerate(plan.steps) for f in _step_faults(plan, i, s)),
        *_prepare_faults(plan),
        *_adaptable_faults(plan, weight_keys),
        *_level_faults(plan, features),
        *_name_faults(plan),
    ]
    if faults:
        raise fail(BAD_PLAN, faults[0], notes=faults[1:8])


def _symbol_faults(plan: Plan) -> Iterator[str]:
    names = [s.name for s in plan.symbols]
    if len(set(names)) < len(names):
        yield "a symbol is declared twice"
    for s in plan.symbols:
        if s.computed:
            if s.axis != 0:
                yield f"the computed symbol `{s.name}` has the axis {s.axis}"
        elif not (0 <= s.input < len(plan.inputs) and 0 <= s.axis < len(plan.inputs[s.input].dims)):
            yield f"symbol `{s.name}` is read from axis {s.axis} of input {s.input}: there is none"
        elif plan.inputs[s.input].dims[s.axis] != dims.symbol(s.name):
            yield f"symbol `{s.name}` is not axis {s.axis} of input {s.input}"
        if s.hi is not None and s.hi < s.lo:
            yield f"symbol `{s.name}` has the empty range {s.lo}..{s.hi}"


def _computed_faults(plan: Plan) -> Iterator[str]:
    """The order of the computed symbols, and sizes that must be known before the run."""
    computed = [i for i, s in enumerate(plan.symbols) if s.computed]
    bound = dict.fromkeys(s.target for s in plan.steps if s.kind == StepKind.BIND)
    if computed != list(range(len(plan.symbols) - len(computed), len(plan.symbols))):
        yield "a computed symbol stands before one that is read from an input"
    elif [i for i in bound if i in computed] != computed:
        yield "the computed symbols are not in the order in which the program binds them first"
    names = {plan.symbols[i].name for i in computed}
    sizes = [("the arena", plan.arena_bytes)]
    sizes += [(f"input `{p.name}`", d) for p in plan.inputs for d in p.dims]
    for i, buffer in enumerate(plan.buffers):
        if buffer.kind in (BufferKind.INPUT, BufferKind.WEIGHT, BufferKind.ADAPTED):
            sizes.append((f"buffer {i}", buffer.bytes))
    for what, size in sizes:
        if names & dims.symbols(size):
            yield f"{what} has a computed size: {size}"


def _port_faults(plan: Plan, ports: list[Port], kind: BufferKind, word: str) -> Iterator[str]:
    for i, port in enumerate(ports):
        if port.dtype not in DTYPES:
            yield f"{word} `{port.name}` has a dtype that the runtime does not know: {port.dtype}"
        if len(port.dims) > MAX_RANK:
            yield f"{word} `{port.name}` has {len(port.dims)} axes, the runtime takes {MAX_RANK}"
        if not 0 <= port.buffer < len(plan.buffers):
            yield f"{word} `{port.name}` is buffer {port.buffer}, which does not exist"
        elif (plan.buffers[port.buffer].kind, plan.buffers[port.buffer].place) != (kind, i):
            yield f"buffer {port.buffer} is not that of {word} {i}, `{port.name}`"
    if len({p.name for p in ports}) < len(ports):
        yield f"two {word}s have one name"


def _buffer_faults(plan: Plan, i: int, buffer: Buffer, keys: Container[str]) -> Iterator[str]:
    place = buffer.place
    if buffer.kind == BufferKind.HEAP:
        if not (isinstance(place, tuple) and 0 <= place[0] < len(plan.buffers)):
            yield f"buffer {i} has no place in a heap slot: {place}"
    elif isinstance(place, tuple):
        yield f"buffer {i} has a place in a heap slot and is of kind {buffer.kind.name.lower()}"
    elif buffer.kind == BufferKind.WEIGHT:
        if not isinstance(place, str):
            yield f"buffer {i} is a weight without a key"
        elif place not in keys:
            yield f"buffer {i} is the weight `{place}`, which is not in the table"
    elif isinstance(place, str):
        yield f"buffer {i} has the key `{place}` and is not a weight"
    elif buffer.kind == BufferKind.PREPARED:
        if not (isinstance(place, int) and place >= 0 and place % 64 == 0):
            yield f"buffer {i} has no place in prepared memory: {place}"
        if not isinstance(buffer.bytes, int):
            yield f"buffer {i}, of prepared memory, has a symbolic size: {buffer.bytes}"
    elif buffer.kind != BufferKind.ARENA:
        counts = {
            BufferKind.INPUT: len(plan.inputs),
            BufferKind.OUTPUT: len(plan.outputs),
            BufferKind.ADAPTED: len(plan.adaptable),
        }
        count = counts[buffer.kind]
        if not (isinstance(place, int) and 0 <= place < count):
            yield f"buffer {i} belongs to {buffer.kind.name.lower()} {place}, which does not exist"


_BUFFERS_OF = {
    StepKind.COPY: (2,), StepKind.DIMS: (1,), StepKind.BRANCH: (0, 1), StepKind.JUMP: (0,),
    StepKind.REQUIRE: (0,), StepKind.BIND: (0, 1),
}  # fmt: skip


def _step_faults(plan: Plan, i: int, step: Step) -> Iterator[str]:
    what = f"step {i} ({step.kind.name.lower()} {step.name})".replace(" )", ")")
    for b in step.buffers:
        if not 0 <= b < len(plan.buffers):
            yield f"{what} uses buffer {b}, which does not exist"
    if step.kind in (StepKind.KERNEL, StepKind.PREPARE) and not 0 <= step.target < len(
        plan.kernels
    ):
        yield f"{what} runs kernel {step.target}, which does not exist"
    if step.kind in (StepKind.BRANCH, StepKind.JUMP) and not 0 <= step.target <= len(plan.steps):
        yield f"{what} goes to step {step.target}, which does not exist"
    if step.kind == StepKind.BIND and not (
        0 <= step.target < len(plan.symbols) and plan.symbols[step.target].computed
    ):
        yield f"{what} binds symbol {step.target}, which is not computed"
    by_scalar = step.kind == StepKind.BRANCH and not step.buffers
    one_scalar = by_scalar or step.kind in (StepKind.REQUIRE, StepKind.BIND)
    if one_scalar and len(step.scalars) != 1:
        yield f"{what} has {len(step.scalars)} scalars, not one"
    if len(step.buffers) not in _BUFFERS_OF.get(step.kind, (len(step.buffers),)):
        yield f"{what} has {len(step.buffers)} buffers"


def _prepare_faults(plan: Plan) -> Iterator[str]:
    """They come first, nothing jumps to them, and they know no input."""
    count = sum(s.kind == StepKind.PREPARE for s in plan.steps)
    allowed = (BufferKind.WEIGHT, BufferKind.PREPARED)
    for i, step in enumerate(plan.steps):
        if step.kind in (StepKind.BRANCH, StepKind.JUMP) and step.target < count:
            yield f"step {i} goes to step {step.target}, which is prepared"
        if step.kind != StepKind.PREPARE:
            continue
        if i >= count:
            yield f"step {i} is prepared, and steps before it are not"
        sizes = (step.tasks, step.scratch_bytes, *step.scalars)
        if set().union(*(dims.symbols(d) for d in sizes)) - {CPU_LEVEL}:
            yield f"step {i} is prepared, and has sizes that only a run can tell"
        kinds = [plan.buffers[b].kind for b in step.buffers if 0 <= b < len(plan.buffers)]
        if any(k not in allowed for k in kinds):
            yield f"step {i} is prepared, and uses what only a run has"


def _adaptable_faults(plan: Plan, keys: Container[str]) -> Iterator[str]:
    for i, site in enumerate(plan.adaptable):
        if site.weight not in keys:
            yield f"exchangeable weight {i} is `{site.weight}`, which is not in the table"
        if site.kernel is not None and not 0 <= site.kernel < len(plan.kernels):
            yield f"exchangeable weight {i} is merged by kernel {site.kernel}, which does not exist"
        if not 0 <= site.out_axis < max(len(site.shape), 1):
            yield f"exchangeable weight {i} has its outputs along axis {site.out_axis}"


def _level_faults(plan: Plan, features: Container[str]) -> Iterator[str]:
    if not plan.levels:
        yield "the plan has no CPU level"
    for level in plan.levels:
        for feature in level.features:
            if feature not in features:
                yield f"level {level.name} asks for `{feature}`, which the runtime cannot detect"


def _name_faults(plan: Plan) -> Iterator[str]:
    """Strings end at NUL in the image; kernel names become assembler symbols."""
    names = [p.name for p in [*plan.inputs, *plan.outputs]]
    names += [s.name for s in plan.symbols] + [x.name for x in plan.levels]
    for name in names:
        if "\0" in name:
            yield f"the name {name!r} contains NUL"
    for kernel in plan.kernels:
        if not (kernel.isascii() and kernel.isidentifier()):
            yield f"the kernel name {kernel!r} is not a C identifier"
    if len(set(plan.kernels)) < len(plan.kernels):
        yield "two kernels have one name"
