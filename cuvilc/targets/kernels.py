"""Compile kernel functions to object code, for several CPU levels, in parallel, through the cache.

The cache's key is the kernel's text, the chip, and the sources of everything that decides its code;
a hit needs neither TVM nor LLVM.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from cuvilc.diagnostics import define, fail
from cuvilc.dialect import dims, ir
from cuvilc.dialect.dims import Dim
from cuvilc.dialect.ir import Operation, Program
from cuvilc.package.cache import Cache, digest
from cuvilc.package.plan import CPU_LEVEL, kernel_symbol
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import KINDS
from cuvilc.targets.facts import Facts

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

    `levels`: for each level the one whose code it runs.
    """

    name: str
    facts: Facts
    levels: tuple[int, ...] = ()
    objects: list[bytes] = field(default_factory=list)
    cached: bool = False


def compile_kernels(
    program: Program,
    chips: Sequence[Chip],
    cache: Cache,
    jobs: int,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Kernel]:
    """Every kernel function of the program, by name.

    Schedules are built on this thread (MLIR's context is bound to it), LLVM runs on `jobs` others.
    """
    kernels: dict[str, Kernel] = {}
    with program, tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(jobs) as pool:
        functions = program.kernels()
        pending: list[tuple[Kernel, list[tuple[str, bytes, Future[bytes]]]]] = []
        for function in functions:
            kernel, work = _start(program, function, chips, cache, pool, Path(directory))
            pending.append((kernel, work))
        for done, (kernel, work) in enumerate(pending, 1):
            for key, header, future in work:
                code = future.result()
                kernel.objects.append(code)
                if key:
                    cache.put(key, header + code)
            kernels[kernel.name] = kernel
            if progress:
                progress(done, len(functions), kernel.name)
    return kernels


def _start(
    program: Program,
    function: Operation,
    chips: Sequence[Chip],
    cache: Cache,
    pool: ThreadPoolExecutor,
    directory: Path,
) -> tuple[Kernel, list[tuple[str, bytes, Future[bytes]]]]:
    """Look up or schedule one kernel on every level, and set LLVM to work."""
    name = ir.attrs(function)["sym_name"]
    text = ir.text_of(function)
    every: list[Facts] = []
    work: list[tuple[str, bytes, Future[bytes]]] = []
    cached = True
    levels = _code_levels(function, chips)
    for level, chip in enumerate(chips):
        if levels[level] != level:
            continue
        given = every[-1].scalars if every else ()
        key = digest(text, repr(chip), kernel_symbol(name, level), repr(given), code_version())
        entry = cache.get(key)
        if entry is not None:
            size = int.from_bytes(entry[:4], "little")
            every.append(Facts.from_json(json.loads(entry[4 : 4 + size])))
            work.append(("", b"", _done(entry[4 + size :])))
            continue
        cached = False
        symbol = kernel_symbol(name, level)
        facts, code = schedule_kernel(program, function, chip, symbol, given)
        header = json.dumps(facts.to_json()).encode()
        future = pool.submit(_compile, code, chip, directory / f"{symbol}.o")
        every.append(facts)
        work.append((key, len(header).to_bytes(4, "little") + header, future))
    made = dict(zip(sorted(set(levels)), every, strict=True))
    return Kernel(name, _merge([made[i] for i in levels]), levels, cached=cached), work


def kinds_of(function: Operation) -> frozenset[str]:
    """What levels may refine in a kernel: "int8", products of bytes; "bf16", of bfloat16."""
    names = {o.name for o in ir.walk(ir.body(function))}
    return frozenset(kind.label for kind in KINDS if names & {kind.matmul, kind.conv})


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
) -> tuple[Facts, Any]:
    """Facts and function (tirx.PrimFunc) of the first schedule that takes the region, else CUV403.

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
        return replace(scheduled.facts, misses=tuple(misses)), scheduled.function
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


def _compile(function: Any, chip: Chip, path: Path) -> bytes:
    from cuvilc.targets import llvm  # noqa: PLC0415

    llvm.compile_object(function, llvm.llvm_target(chip.llvm), str(path))
    code = path.read_bytes()
    path.unlink()
    return code


def _merge(every: list[Facts]) -> Facts:
    """One set of facts for all levels."""
    merged = every[-1]  # its scalars begin with those of all before
    for level in reversed(range(len(every) - 1)):
        here = dims.equal(dims.symbol(CPU_LEVEL), level)
        merged = replace(
            merged,
            tasks=dims.select(here, every[level].tasks, merged.tasks),
            scratch_bytes=dims.select(here, every[level].scratch_bytes, merged.scratch_bytes),
        )
    return replace(merged, schedule=every[0].schedule, misses=every[0].misses)


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
