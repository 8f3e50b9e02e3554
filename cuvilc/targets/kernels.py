"""Compile kernel functions to object code, for several CPU levels, in parallel, through the cache.

The cache's key is the kernel's text, the chip, and the sources of everything that decides its code;
a hit needs neither TVM nor LLVM.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuvilc.diagnostics import define, fail
from cuvilc.dialect import dims, ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.ir import Operation, Program
from cuvilc.package.cache import Cache, digest
from cuvilc.package.plan import CPU_LEVEL, kernel_symbol
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import HALVES, KINDS
from cuvilc.targets.facts import Facts

if TYPE_CHECKING:  # a cache hit does not load TVM
    from cuvilc.targets.region import Scheduled

NO_SCHEDULE = define(
    "CUV403",
    "no schedule takes a kernel",
    """\
A schedule turns the operations of one kernel into loops. Each says in a note why it does not take
these: they are of a kind, or lie in memory in a way, that nobody has written loops for. The model
is valid; this version of cuvilc cannot build it for the target.

Next step: `--target null` builds a package that the interpreter runs, slowly, to go on with. A size
that a note says is known at run time only can be fixed with `--dim NAME=N` or `--shape INPUT=…`.
Please report the message with the model.
""",
)


@dataclass
class Kernel:
    """A kernel on all levels. Sizes that differ by level select on the symbol CPU_LEVEL.

    `codes`: for each level the symbol of the code that it runs. `parts`: objects of the functions
    that it calls, and of those that are its code, by symbol.
    """

    name: str
    facts: Facts
    codes: tuple[str, ...] = ()
    objects: list[bytes] = field(default_factory=list)
    parts: dict[str, bytes] = field(default_factory=dict)
    cached: bool = False


def compile_kernels(
    program: Program,
    chips: Sequence[Chip],
    cache: Cache,
    jobs: int,
    progress: Callable[[int, int, str], None] | None = None,
    scheduled: Callable[[dict[str, Kernel]], None] = lambda kernels: None,
) -> dict[str, Kernel]:
    """Every kernel function of the program, by name.

    Schedules are built on this thread (MLIR's context is bound to it), LLVM runs on `jobs` others.
    `scheduled` gets the kernels when all is known of them but their code.
    """
    with ExitStack() as stack:
        stack.enter_context(program)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        functions = program.kernels()
        compiler = _Compiler(program, chips, cache, jobs, directory, stack)
        pending = [compiler.start(f) for f in functions]
        kernels = {kernel.name: kernel for kernel, _, _ in pending}
        scheduled(kernels)
        for done, (kernel, objects, parts) in enumerate(pending, 1):
            kernel.objects = [made.result() for made in objects]
            kernel.parts = {symbol: made.result() for symbol, made in parts.items()}
            if progress:
                progress(done, len(functions), kernel.name)
    return kernels


class _Compiler:
    """Looks kernels up or schedules them, and sets LLVM to work."""

    def __init__(
        self, program: Program, chips: Sequence[Chip], cache: Cache, jobs: int, directory: Path,
        stack: ExitStack,
    ) -> None:  # fmt: skip
        self.program, self.chips, self.cache = program, chips, cache
        self.jobs, self.directory, self.stack = jobs, directory, stack
        self.parts: dict[str, Future[bytes]] = {}

    def start(
        self, function: Operation
    ) -> tuple[Kernel, list[Future[bytes]], dict[str, Future[bytes]]]:
        """One kernel on every level, its objects to be, and those of its parts."""
        name, text = ir.attrs(function)["sym_name"], ir.text_of(function)
        every: list[Facts] = []
        objects: list[Future[bytes]] = []
        cached = True
        levels = _code_levels(function, self.chips)
        for level in sorted(set(levels)):
            chip, symbol = self.chips[level], kernel_symbol(name, level)
            given = every[-1].scalars if every else ()
            key = digest(text, repr(chip), symbol, repr(given), code_version())
            found = self.found(key, chip)
            if found is None:
                cached = False
                found = self.made(key, function, chip, symbol, given)
            every.append(found[0])
            if found[1] is not None:
                objects.append(found[1])
        made = dict(zip(sorted(set(levels)), every, strict=True))
        codes = tuple(made[i].code or kernel_symbol(name, i) for i in levels)
        kernel = Kernel(name, _merge([made[i] for i in levels]), codes, cached=cached)
        parts = {symbol: self.parts[symbol] for facts in every for symbol in facts.parts}
        return kernel, objects, parts

    def found(self, key: str, chip: Chip) -> tuple[Facts, Future[bytes] | None] | None:
        """A kernel in the cache, if all its parts are there too: what is known of it, and its
        object, if it has one.
        """
        entry = self.cache.get(key)
        if entry is None:
            return None
        size = int.from_bytes(entry[:4], "little")
        facts = Facts.from_json(json.loads(entry[4 : 4 + size]))
        if all(self.has_part(symbol, chip) for symbol in facts.parts):
            return facts, None if facts.code else _done(entry[4 + size :])
        return None

    def has_part(self, symbol: str, chip: Chip) -> bool:
        """Whether a part is there without being built."""
        if symbol not in self.parts:
            entry = self.cache.get(_part_key(symbol, chip))
            if entry is None:
                return False
            self.parts[symbol] = _done(entry)
        return True

    def made(
        self, key: str, function: Operation, chip: Chip, symbol: str, given: tuple[Dim, ...]
    ) -> tuple[Facts, Future[bytes] | None]:
        """A kernel that LLVM compiles, with those of its parts that are not there."""
        scheduled = schedule_kernel(self.program, function, chip, symbol, given)
        header = json.dumps(scheduled.facts.to_json()).encode()
        entry = len(header).to_bytes(4, "little") + header
        for part in scheduled.parts:
            if not self.has_part(part.symbol, chip):
                of_part = _part_key(part.symbol, chip)
                self.parts[part.symbol] = self.submit(part.build(), chip, part.symbol, of_part)
        if scheduled.function is None:
            self.cache.put(key, entry)
            return scheduled.facts, None
        return scheduled.facts, self.submit(scheduled.function, chip, symbol, key, entry)

    @cached_property
    def pool(self) -> ThreadPoolExecutor:
        """Threads for LLVM, from the first kernel on that is not in the cache."""
        from cuvilc.targets import _tvm  # noqa: F401, PLC0415
        from cuvilc.targets.llvm_options import held  # noqa: PLC0415

        self.stack.enter_context(held())
        return self.stack.enter_context(ThreadPoolExecutor(self.jobs))

    def submit(
        self, code: Any, chip: Chip, symbol: str, key: str, header: bytes = b""
    ) -> Future[bytes]:
        path = self.directory / f"{symbol}.o"
        return self.pool.submit(_compile, code, chip, path, self.cache, key, header)


def _part_key(symbol: str, chip: Chip) -> str:
    return digest("part", symbol, repr(chip), code_version())


def kinds_of(function: Operation) -> frozenset[str]:
    """What levels may refine in a kernel: "int8", products of bytes; "bf16", of bfloat16."""
    operations = list(ir.walk(ir.body(function)))
    names = {o.name for o in operations}
    found = {kind.label for kind in KINDS if names & {kind.matmul, kind.conv}}
    if any(o.name == "ai.attention" and ir.attrs(o)["narrow"] for o in operations):
        found.add(HALVES.label)
    return frozenset(found)


def _code_levels(function: Operation, chips: Sequence[Chip]) -> tuple[int, ...]:
    """For each level the one whose code it runs: its own, or that of the nearest base."""
    kinds, names = kinds_of(function), [c.name for c in chips]

    def level(i: int) -> int:
        bases = [names.index(b) for b in chips[i].base if b in names]
        return i if not bases or kinds & set(chips[i].refines) else level(bases[0])

    return tuple(level(i) for i in range(len(chips)))


def refined(program: Program, chips: Sequence[Chip]) -> list[Chip]:
    """The chips without those that would run the same code as their base everywhere."""
    with program:
        every = [_code_levels(f, chips) for f in program.kernels()]
    return [c for i, c in enumerate(chips) if not c.base or any(e[i] == i for e in every)]


def _done(code: bytes) -> Future[bytes]:
    future: Future[bytes] = Future()
    future.set_result(code)
    return future


def schedule_kernel(
    program: Program, function: Operation, chip: Chip, symbol: str, scalars: tuple[Dim, ...] = ()
) -> Scheduled:
    """What the first schedule that takes the region makes of it; CUV403 if none does.

    `scalars`: another level's, kept in front.
    """
    from cuvilc.targets import _tvm  # noqa: F401, PLC0415  (first: TVM without torch)
    from cuvilc.targets.region import Miss, Region  # noqa: PLC0415  (a cache hit does not load TVM)
    from cuvilc.targets.schedules import SCHEDULES  # noqa: PLC0415

    region = Region.of(program, function)
    region.scalars = scalars
    misses: list[str] = []
    for label, schedule in SCHEDULES:
        try:
            scheduled = schedule(region, chip, symbol)
        except Miss as miss:
            misses.append(f"{label}: {miss}")
            continue
        return replace(scheduled, facts=replace(scheduled.facts, misses=tuple(misses)))
    layers = ", ".join(_layers(program, function)) or "a layer without a name"
    raise fail(
        NO_SCHEDULE, f"no schedule makes code of kernel `{ir.attrs(function)['sym_name']}`",
        place=f"{program.name}: {layers}",
        evidence="\n".join(str(o) for o in region.operations), notes=misses,
    )  # fmt: skip


def _layers(program: Program, function: Operation) -> list[str]:
    """The names of the model's layers that the kernel computes."""
    name = ir.attrs(function)["sym_name"]
    calls = [o for o in ir.walk(ir.body(program.function("main"))) if o.name.endswith(".launch")]
    named = [ir.source_name(o) for o in calls if ir.attrs(o)["kernel"] == name]
    return [f"`{n}`" for n in dict.fromkeys(named) if n]


def _compile(function: Any, chip: Chip, path: Path, cache: Cache, key: str, header: bytes) -> bytes:
    """The object code, which the cache gets behind `header`."""
    from cuvilc.targets import llvm  # noqa: PLC0415

    llvm.compile_object(function, llvm.llvm_target(chip.llvm), str(path))
    code = path.read_bytes()
    path.unlink()
    cache.put(key, header + code)
    return code


def _merge(every: list[Facts]) -> Facts:
    """One set of facts for all levels."""
    merged = every[-1]  # its scalars begin with those of all before
    parts = tuple(dict.fromkeys(symbol for facts in every for symbol in facts.parts))
    for level in reversed(range(len(every) - 1)):
        here = dims.equal(dims.symbol(CPU_LEVEL), level)
        merged = replace(
            merged,
            tasks=dims.select(here, every[level].tasks, merged.tasks),
            scratch_bytes=dims.select(here, every[level].scratch_bytes, merged.scratch_bytes),
        )
    return replace(merged, schedule=every[0].schedule, misses=every[0].misses, parts=parts)


@lru_cache(maxsize=1)
def code_version() -> str:
    """Changes whenever anything that decides a kernel's code does: our sources, TVM's version."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    hasher = sha256()
    root = Path(__file__).resolve().parent
    for source in sorted([*root.rglob("*.py"), *(root.parent / "dialect" / "ops").glob("*.py")]):
        hasher.update(source.read_bytes())
    try:
        hasher.update(version("apache-tvm").encode())
    except PackageNotFoundError:
        hasher.update(b"none")
    return hasher.hexdigest()
