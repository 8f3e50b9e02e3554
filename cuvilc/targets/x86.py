"""x86-64 CPUs: one package holds every kernel for several CPU levels; the runtime picks at load."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuvilc.diagnostics import fail
from cuvilc.dialect.ir import Program
from cuvilc.package.begun import Begun, begun
from cuvilc.package.cache import Cache
from cuvilc.package.describe import describe
from cuvilc.package.link import runtime_objects
from cuvilc.package.plan import Level
from cuvilc.package.runtime_source import feature_bits, find_runtime
from cuvilc.package.toolchain import find_toolchain
from cuvilc.package.write import write_package
from cuvilc.targets.chip import Chip
from cuvilc.targets.dots import BYTES, HALVES
from cuvilc.targets.emit_plan import Emitted, emit_plan
from cuvilc.targets.kernels import Kernel, compile_kernels, refined
from cuvilc.targets.pack_ahead import packed_ahead
from cuvilc.targets.target import UNKNOWN_TARGET, BuildOptions
from cuvilc.targets.x86_dot import dots
from cuvilc.targets.x86_lookup import look_ups

# The micro-architecture levels of the x86-64 psABI, by what the runtime must find.
_V2 = ("sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "lahf_lm")
_V3 = (*_V2, "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_VNNI = (*_V4, "avx512vnni")
_BF16 = (*_VNNI, "avx512bf16")
_WIDE = ["-prefer-256-bit"]  # LLVM would otherwise split 512-bit vectors on some chips
# The psABI's levels are compiled by a CPU model that names no size of a loop buffer: up to that
# size LLVM unrolls loops, which schedules have unrolled already. Kernels compile a tenth faster and
# run as fast. What the model has and the levels have not is taken off.
_MODEL = "znver2"
_MODEL_ONLY = tuple(
    f"-{name}"
    for name in (
        "sse4a", "aes", "pclmul", "sha", "adx", "clzero", "clwb", "mwaitx", "rdpid", "rdrnd",
        "rdseed", "wbnoinvd", "prfchw",
    )
)  # fmt: skip
_LEVEL = (*_MODEL_ONLY, *(f"+{name}" for name in _V4 if name.startswith("avx512")))


def _narrow(name: str, lanes: int, features: tuple[str, ...], **llvm: Any) -> Chip:
    """A chip of vectors up to 256 bits."""
    return Chip(name, lanes, 16, features, llvm or {"mcpu": name}, dots=dots(lanes))


def _wide(
    name: str, features: tuple[str, ...], cpu: str = "", attributes: tuple[str, ...] = (),
    **more: Any,
) -> Chip:  # fmt: skip
    """A chip whose compiler would use 256-bit vectors unless told to use 512-bit ones."""
    llvm = {"mcpu": cpu or name, "mattr": [*_WIDE, *attributes]}
    vnni, bf16 = "avx512vnni" in features, "avx512bf16" in features
    fast = (BYTES.function,) * vnni + (HALVES.function,) * bf16
    texts = dots(16, vnni, bf16) | look_ups()
    return Chip(name, 16, 32, features, llvm, l2_bytes=1 << 20, dots=texts, fast_dots=fast, **more)


_V4_NAME, _VNNI_NAME, _BF16_NAME = "x86-64-v4", "x86-64-v4-vnni", "x86-64-v4-bf16"
CHIPS = {
    c.name: c
    for c in (
        _narrow("x86-64-v2", 4, _V2),
        _narrow("x86-64-v3", 8, _V3, mcpu=_MODEL, mattr=list(_MODEL_ONLY)),
        _wide(_V4_NAME, _V4, _MODEL, _LEVEL),
        _wide(
            _VNNI_NAME, _VNNI, _MODEL, (*_LEVEL, "+avx512vnni"), base=(_V4_NAME,),
            refines=(BYTES.label,),
        ),
        _wide(
            _BF16_NAME, _BF16, _MODEL, (*_LEVEL, "+avx512vnni", "+avx512bf16"),
            base=(_VNNI_NAME, _V4_NAME), refines=(HALVES.label,),
        ),
        _narrow("haswell", 8, _V3),
        _narrow("znver2", 8, _V3),
        _narrow("znver3", 8, _V3),
        _wide("skylake-avx512", _V4),
        _wide("icelake-server", _VNNI),
        _wide("znver4", _BF16),
    )
}  # fmt: skip
DEFAULT_CPU = f"x86-64-v3+{_V4_NAME}"  # and what refines it


def choose_chips(cpu: str) -> list[Chip]:
    """The chips that `--cpu` names, best first; by default with those that refine them. CUV401."""
    chips = [] if cpu else [c for c in CHIPS.values() if c.base]
    for name in (cpu or DEFAULT_CPU).split("+"):
        if name == "host":
            chips += _host()
        elif name in CHIPS:
            chips.append(CHIPS[name])
        else:
            known = ", ".join(["host", *CHIPS])
            raise fail(
                UNKNOWN_TARGET, f"`{name}` is not a CPU of target x86", help=f"CPUs: {known}"
            )
    return sorted({c.name: c for c in chips}.values(), key=lambda c: (-len(c.features), c.name))


def _host() -> list[Chip]:
    """The best psABI level of this machine, and what refines it."""
    for name in ("x86-64-v4", "x86-64-v3", "x86-64-v2"):
        if runs_here(CHIPS[name]):
            refining = (c for c in CHIPS.values() if name in c.base)
            return [CHIPS[name], *(c for c in refining if runs_here(c))]
    raise fail(
        UNKNOWN_TARGET,
        "this machine is not an x86-64 CPU of level 2 or above",
        help="name one with --cpu",
    )


# Features that Linux spells otherwise.
_LINUX = {
    "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "lzcnt": "abm",
    "avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16",
}  # fmt: skip


def runs_here(chip: Chip) -> bool:
    """Whether this machine has the chip's features."""
    flags = _cpu_flags()
    return all(f in flags or _LINUX.get(f, f) in flags for f in chip.features)


def _cpu_flags() -> set[str]:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return set(line.split(":", 1)[1].split())
    except OSError:
        pass
    return set()


@dataclass
class Compiled:
    """Kernels by name, the plan that calls them, and the package as far as it is written."""

    kernels: dict[str, Kernel]
    emitted: Emitted
    begun: Begun | None = None


class X86:
    """Target `x86`."""

    name = "x86"
    summary = "x86-64 CPUs, AVX2 and AVX-512, chosen at load"

    def __init__(self) -> None:
        self._runtime: Future[Any] | None = None

    def describe(self) -> list[tuple[str, str]]:
        return [(c.name, " ".join(c.features)) for c in CHIPS.values()]

    def check(self, options: BuildOptions) -> None:
        """CPU names and a C compiler to link with; compiles the runtime ahead on another thread."""
        choose_chips(options.cpu)
        toolchain, runtime = find_toolchain(), find_runtime()
        with_cache = Cache()
        pool = ThreadPoolExecutor(1)
        self._runtime = pool.submit(runtime_objects, toolchain, runtime, with_cache)
        pool.shutdown(wait=False)

    def lowering(self, program: Program, options: BuildOptions) -> None:
        """Packs the first weights, if they will be written."""
        if options.destination is not None:
            options.later.enter_context(packed_ahead(program))

    def compile(self, program: Program, options: BuildOptions) -> Compiled:
        chips = refined(program, choose_chips(options.cpu))
        cache = options.cache or Cache(enabled=False)
        jobs = options.jobs or len(os.sched_getaffinity(0))
        levels = [Level(c.name, c.features) for c in chips]
        compiled: list[Compiled] = []

        def scheduled(kernels: dict[str, Kernel]) -> None:
            emitted = emit_plan(program, kernels, levels)
            emitted.plan.codes = {n: k.codes for n, k in kernels.items()}
            started = None
            if options.destination is not None:
                features = feature_bits(find_runtime())
                started = options.later.enter_context(
                    begun(emitted.plan, emitted.weights, features, options.destination)
                )
            compiled.append(Compiled(kernels, emitted, started))

        compile_kernels(program, chips, cache, jobs, options.progress, scheduled)
        if options.emit in ("tir", "llvm", "asm"):
            self._emit_texts(program, chips, options)
        return compiled[0]

    def _emit_texts(self, program: Program, chips: list[Chip], options: BuildOptions) -> None:
        from cuvilc.dialect import ir  # noqa: PLC0415
        from cuvilc.targets import llvm  # noqa: PLC0415
        from cuvilc.targets.kernels import schedule_kernel  # noqa: PLC0415

        form = {"tir": "tir", "llvm": "ll", "asm": "asm"}[options.emit]
        with program:
            for function in program.functions():
                if "symbols" not in function.attributes:
                    continue
                name = ir.attrs(function)["sym_name"]
                for chip in chips:
                    made, target = schedule_kernel(program, function, chip, name), chip.llvm
                    codes = {f"{name}.{chip.name}": made.function} if made.function else {}
                    codes |= {part.symbol: part.build() for part in made.parts}
                    for label, code in codes.items():
                        if label not in options.texts:
                            text = llvm.lower(code, llvm.llvm_target(target), form)
                            options.texts[label] = text

    def write(
        self, compiled: Compiled, metadata: dict[str, Any], destination: Path, options: BuildOptions
    ) -> Any:
        emitted = compiled.emitted
        kernels = [compiled.kernels[name] for name in emitted.plan.kernels]
        parts = {symbol: code for kernel in kernels for symbol, code in kernel.parts.items()}
        objects = [code for kernel in kernels for code in kernel.objects]
        complete = describe(emitted.plan, target_kind=self.name, kernels=emitted.facts, **metadata)
        if self._runtime is not None:
            self._runtime.result()
        return write_package(
            emitted.plan,
            [*objects, *parts.values()],
            emitted.weights,
            complete,
            destination,
            vectors=options.vectors,
            cache=Cache(),
            links=options.cache,
            adapters=options.adapters(emitted) if options.adapters else lambda base: (),
            begun=compiled.begun,
        )


TARGET = X86()
