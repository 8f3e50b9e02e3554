"""From a model file to a package, phase by phase.

Prints nothing: progress goes to `BuildRequest.report`, results come as a BuildReport.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from cuvilc import __version__, driver_lora, driver_steps
from cuvilc.diagnostics import CuvilError, define, fail
from cuvilc.driver_steps import AUTO_VECTORS

PHASES = ("import", "verify", "optimise", "lower", "schedule", "pack")
# What `--emit` can show, and the phase that has made it.
EMITS = {
    "ai": "verify", "layout": "optimise", "launch": "lower",
    "tir": "schedule", "llvm": "schedule", "asm": "schedule",
}  # fmt: skip

PRECISIONS = ("bf16",)
PREFERENCES = ("balanced", "size", "speed")
MATHS = ("fast", "exact")

UNKNOWN_NAME = define(
    "CUV301",
    "unknown pass, phase, form, precision or preference",
    """\
`--dump-after` takes the name of a pass, `--stop-after` a phase, `--emit` a form, `--precision` a
precision, `--prefer` and `--math` one of few words.

Next step: take one of those that the message lists.
""",
    exit_code=2,
)


@dataclass
class BuildRequest:
    """What `cuvilc build` is asked to do.

    `precision`: "bf16" packs float32 weights as bfloat16, "" leaves the model's own.
    `prefer`: one of PREFERENCES; "size" holds no second form of weights in memory. `math`: "exact"
    keeps to the definitions' sums. `fusion` False: every operation is a kernel of its own.
    `dims`: (least, greatest) by symbol, greatest None when open. `elements`: how many tensors an
    input that is a sequence has; 0 for an optional input that is absent. `vectors`: test vectors to
    bundle, AUTO_VECTORS for one where that is cheap. `report(phase, done, of, detail)` is told of
    progress.

    adapters: (folder or file, name or ""). lora: what becomes of them, one of driver_lora.MODES; ""
    is "fold". adapter_map, base_weights: what helps to find their places. lora_modules: which
    modules of the base get room for adapters that come later.
    """

    model: Path
    output: Path | None = None
    target: str = "x86"
    cpu: str = ""
    shapes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    dims: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    elements: dict[str, int] = field(default_factory=dict)
    jobs: int = 0
    use_cache: bool = True
    verify: bool = False
    vectors: int = AUTO_VECTORS
    dry_run: bool = False
    dump_ir: Path | None = None
    dump_after: Sequence[str] = ()
    stop_after: str = ""
    emit: str = ""
    report: Callable[[str, int, int, str], None] | None = None
    precision: str = ""
    prefer: str = PREFERENCES[0]
    math: str = MATHS[0]
    fusion: bool = True
    adapters: Sequence[tuple[Path, str]] = ()
    lora: str = ""
    adapter_map: Path | None = None
    base_weights: Path | None = None
    lora_modules: str = ""


@dataclass
class BuildReport:
    """What came of it. `package` None: none was asked for.

    `seconds` by phase, and of the vectors; `texts` by name (dumps and emitted forms);
    `summary` what a dry run tells of the program; `checks` the comparisons that `verify` made;
    `notes` what the user should know though nothing went wrong.
    """

    package: Path | None = None
    metadata: Any = None
    seconds: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    misses: list[Any] = field(default_factory=list)
    applied: dict[str, int] = field(default_factory=dict)
    kernels_cached: int = 0
    kernels_built: int = 0
    summary: dict[str, Any] = field(default_factory=dict)
    checks: list[Any] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    program: Any = None


def load_model(
    path: Path,
    shapes: dict[str, tuple[int | None, ...]],
    dims: dict[str, tuple[int, int | None]],
    elements: dict[str, int] | None = None,
    later: ExitStack | None = None,
) -> Any:
    """The model as a Program at the graph level, by the importer that its content asks for."""
    registry = import_module("cuvilc.import.registry")
    options = registry.ImportOptions(shapes, dims, elements or {}, later)
    return registry.load(path, options)


def build(request: BuildRequest) -> BuildReport:
    """Build a package. CuvilError: no package was written, and an older one stands still."""
    with _rare_collections():
        return _Build(request).run()


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Python looks for garbage cycles less often. Nearly all that a build makes or imports stays
    alive to its end; looking through it again and again took a tenth of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def default_output(model: Path) -> Path:
    """NAME.cuvil in the current directory, for a model file NAME.onnx."""
    return Path((model.stem or model.name) + ".cuvil")


class _Stop(Exception):
    """The phase that the user wants to see is done."""


class _Build:
    def __init__(self, request: BuildRequest) -> None:
        self.request = request
        self.report = BuildReport()
        self.output = request.output or default_output(request.model)
        self.last_phase = EMITS.get(request.emit) or request.stop_after or PHASES[-1]
        self.packs = self.last_phase == PHASES[-1] and not request.dry_run
        self.now = ""  # the phase, or the pass, that is at work
        self.dumps = driver_steps.Dumps(request.dump_ir, request.dump_after, self.report.texts)
        self.context: Any = None
        self.attached: driver_lora.Attached | None = None
        self.costs: dict[str, Any] = {}
        self.later = ExitStack()  # what goes on beside the phases

    def run(self) -> BuildReport:
        try:
            with self.later:
                self.check()
                self.phases()
        except _Stop:
            pass
        except CuvilError:
            raise
        except Exception as error:
            from cuvilc.dialect.dims import TooComplex  # noqa: PLC0415

            if isinstance(error, TooComplex):
                raise driver_steps.too_complex(error, self.now, self.request.model) from error
            raise driver_steps.broken(
                error, self.output, self.now, self.report.program, self.request.model
            ) from error
        return self.report

    def check(self) -> None:
        """Everything that can be wrong with the request itself, before any work."""
        from cuvilc.targets.target import BuildOptions, find_target  # noqa: PLC0415

        request = self.request
        _known(request.stop_after, PHASES, "phase")
        _known(request.emit, tuple(EMITS), "form")
        _known(request.precision, PRECISIONS, "precision")
        _known(request.prefer, PREFERENCES, "preference")
        _known(request.math, MATHS, "way of computing")
        driver_lora.mode_of(request)
        if self.packs:
            from cuvilc.package.destination import check_destination  # noqa: PLC0415

            check_destination(self.output)
        self.dumps.check()
        self.target = find_target(request.target)
        cache = None
        if request.use_cache:
            from cuvilc.package.cache import Cache  # noqa: PLC0415

            cache = Cache()
        jobs = request.jobs
        self.options = BuildOptions(
            request.cpu, jobs, cache, self._kernel_done, emit=request.emit, later=self.later,
            destination=self.output if self.packs else None,
        )  # fmt: skip
        if PHASES.index(self.last_phase) >= PHASES.index("schedule") and not request.dry_run:
            self.target.check(self.options)

    def phases(self) -> None:
        request = self.request
        with self.phase("import"):
            program = load_model(
                request.model, request.shapes, request.dims, request.elements, self.later
            )
            self.report.program = program
            self.attach(program)
        with self.phase("verify"):
            driver_steps.verify(program, "import", self.output, request.model)
            self.dumps.take("import", program)
            self.report.summary = driver_steps.summary(program) | self.costs
            self.emit("ai", program)
        if self.packs:
            self.make_vectors(program)
        with self.phase("optimise"):
            self.passes(program, lower=False)
            self.emit("layout", program)
        with self.phase("lower"):
            self.target.lowering(program, self.options)
            self.passes(program, lower=True)
            self.report.summary |= driver_steps.lowered_summary(program)
            self.emit("launch", program)
        if request.dry_run:
            raise _Stop
        with self.phase("schedule"):
            compiled = self.target.compile(program, self.options)
            self.count(compiled)
            self.report.texts |= self.options.texts
        with self.phase("pack"):
            self.pack(program, compiled)

    def attach(self, program: Any) -> None:
        """Put adapters into the program; a dry run learns what each way of it would cost."""
        if self.request.adapters and self.request.report:
            self.request.report("adapters", 0, 0, "")
        self.attached = driver_lora.find(program, self.request)
        if self.attached is None:
            return
        if self.request.dry_run:
            from cuvilc.driver_lora_costs import compare  # noqa: PLC0415
            from cuvilc.driver_lora_trial import refusals  # noqa: PLC0415

            refused = refusals(self.request)
            if len(refused) == len(driver_lora.MODES):
                raise refused[self.attached.mode]
            with program:
                costs = compare(program, self.attached, self.request.precision, refused)
            self.costs = {"lora": costs}
            if self.attached.mode in refused:  # and not asked for: go on with what is possible
                self.attached = replace(self.attached, mode=costs["recommended"])
                self.report.notes.append(f"planned as with `--lora {self.attached.mode}`")
        driver_lora.attach(program, self.request, self.attached)
        self.options.adapters = driver_lora.embedded(self.attached)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.now = name
        if self.request.report:
            self.request.report(name, 0, 0, "")
        start = time.perf_counter()
        yield
        self.report.seconds[name] = time.perf_counter() - start
        if self.last_phase == name and name != PHASES[-1]:
            raise _Stop

    def passes(self, program: Any, lower: bool) -> None:
        """Run the pipeline's passes that belong to this phase; the program is valid after each."""
        from cuvilc.dialect.dims import TooComplex  # noqa: PLC0415

        pipeline, lowering = _pipeline()
        if self.context is None:
            from cuvilc.dialect.passes.context import PassContext  # noqa: PLC0415

            self.context = PassContext(
                precision=self.request.precision, prefer=self.request.prefer,
                math_exact=self.request.math == "exact", fusion=self.request.fusion,
                progress=self._merged,
            )  # fmt: skip
        trail = driver_steps.Trail(self.output, self.request.model)
        for each in pipeline:
            if (each in lowering) != lower:
                continue
            self.now = f"pass {each.NAME}"
            if self.request.report:
                self.request.report("lower" if lower else "optimise", 0, 0, each.NAME)
            before = trail.enter(each.NAME, program)
            try:
                each.run(program, self.context)
            except Exception as error:
                trail.blame()
                if isinstance(error, (CuvilError, TooComplex)):
                    raise
                raise driver_steps.broken(
                    error, self.output, self.now, before, self.request.model
                ) from error
            if self.dumps.any:
                trail.verify(program)
                self.dumps.take(each.NAME, program)
        trail.verify(program)
        self.report.misses = self.context.misses
        self.report.applied = {rule: n for rule, n in self.context.applied.items() if n}

    def emit(self, form: str, program: Any) -> None:
        if self.request.emit == form:
            self.report.texts[form] = program.text()

    def make_vectors(self, program: Any) -> None:
        """Test vectors as requested; why there are none, where there are none, becomes a note."""
        wanted = self.request.vectors
        if self.request.verify and wanted <= 0:
            wanted = 1
        if wanted == 0:
            return
        self.now = "vectors"
        start = time.perf_counter()
        self.options.vectors, note = driver_steps.vectors(program, wanted, self.request.precision)
        self.report.seconds["vectors"] = time.perf_counter() - start
        if note:
            self.report.notes.append(note)

    def pack(self, program: Any, compiled: Any) -> None:
        """Write the package; with `verify` into its place only if it computes rightly."""
        metadata = driver_steps.metadata(program, [p.NAME for p in _pipeline()[0]], __version__)
        metadata["adapters"] = driver_lora.metadata(self.attached, self.context.merged)
        metadata["lora"] = driver_lora.room(self.attached)
        report = self.report
        if not self.request.verify:
            report.metadata = self.target.write(compiled, metadata, self.output, self.options)
        else:
            from cuvilc.package.destination import os_errors, replace, sibling  # noqa: PLC0415
            from cuvilc.verify import require_some, verify_package  # noqa: PLC0415

            aside = sibling(self.output, "verify")
            try:
                report.metadata = self.target.write(compiled, metadata, aside, self.options)
                verified = verify_package(aside)
                require_some(verified, str(self.output), report.notes)
                report.checks = verified.checks
                with os_errors(self.output):
                    replace(aside, self.output)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
        report.package = self.output
        if self.output.suffix == ".so" and "model.so" in report.metadata["files"]:
            library = self.output / "model.so"
            report.notes.append(f"{self.output} is a folder, as packages are; load {library}")

    def count(self, compiled: Any) -> None:
        kernels = getattr(compiled, "kernels", {})
        self.report.kernels_cached = sum(k.cached for k in kernels.values())
        self.report.kernels_built = len(kernels) - self.report.kernels_cached

    def _merged(self, done: int, total: int, module: str) -> None:
        if self.request.report:
            self.request.report("adapters", done, total, module)

    def _kernel_done(self, done: int, total: int, name: str) -> None:
        if self.request.report:
            self.request.report("schedule", done, total, name)


def _pipeline() -> tuple[tuple[ModuleType, ...], tuple[ModuleType, ...]]:
    """All passes in order, and those of them that lower to launches."""
    from cuvilc.dialect.passes import LOWERING, PIPELINE  # noqa: PLC0415

    return PIPELINE, LOWERING


def _known(name: str, names: Sequence[str], what: str) -> None:
    if name and name not in names:
        raise fail(UNKNOWN_NAME, f"`{name}` is not a {what}", help=f"{what}s: {', '.join(names)}")
