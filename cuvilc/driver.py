"""From a model file to a package, phase by phase. Prints nothing: progress and results go to the caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from cuvilc import __version__
from cuvilc.diagnostics import CuvilError, Diagnostic, define, fail

PHASES = ("import", "verify", "optimise", "lower", "schedule", "pack")
EMITS = ("", "ai", "layout", "launch", "tir", "llvm", "asm")

UNKNOWN_NAME = define(
    "CUV301",
    "unknown pass, phase or form",
    """\
`--dump-after` takes the name of a pass, `--stop-after` a phase, `--emit` a form. The message lists them.
""",
    exit_code=2,
)
BROKEN_PASS = define(
    "CUV302",
    "a pass broke the program",
    """\
This is a fault of cuvilc, not of the model: after a pass the verifier rejected the program. The program
before the pass was written beside the package as a reproducer.

Next step: report it with the reproducer file.
""",
    exit_code=3,
)


@dataclass
class BuildRequest:
    """What `cuvilc build` is asked to do. `report(phase, done, total, detail)` is told of progress."""

    model: Path
    output: Path | None = None
    target: str = "x86"
    cpu: str = ""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dims: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    jobs: int = 0
    use_cache: bool = True
    verify: bool = False
    vectors: int = 1
    dry_run: bool = False
    dump_ir: Path | None = None
    dump_after: Sequence[str] = ()
    stop_after: str = ""
    emit: str = ""
    report: Callable[[str, int, int, str], None] | None = None


@dataclass
class BuildReport:
    """What came of it. `seconds` by phase; `texts` by name (dumps and emitted forms)."""

    package: Path | None = None
    metadata: dict[str, Any] | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    misses: list[Any] = field(default_factory=list)
    applied: dict[str, int] = field(default_factory=dict)
    kernels_cached: int = 0
    kernels_built: int = 0
    program: Any = None


def load_model(path: Path, shapes: dict[str, tuple[int, ...]], dims: dict[str, tuple[int, int | None]]) -> Any:
    """The model as a Program at the graph level, by the importer that its content asks for."""
    registry = import_module("cuvilc.import.registry")
    return registry.load(path, registry.ImportOptions(shapes=shapes, dims=dims))


def build(request: BuildRequest) -> BuildReport:
    """Build a package. Raises CuvilError; then nothing was written."""
    return _Build(request).run()


class _Stop(Exception):
    """The phase named by stop_after is done."""


class _Build:
    def __init__(self, request: BuildRequest) -> None:
        self.request = request
        self.report = BuildReport()
        self.output = request.output or Path(request.model.stem + ".cuvil")

    def run(self) -> BuildReport:
        self.check()
        try:
            self.phases()
        except _Stop:
            pass
        return self.report

    def check(self) -> None:
        """Everything that can be wrong with the request itself, before any work."""
        from cuvilc.targets.target import BuildOptions, find_target  # noqa: PLC0415

        request = self.request
        if request.stop_after not in ("", *PHASES):
            raise fail(UNKNOWN_NAME, f"`{request.stop_after}` is not a phase", help=f"phases: {', '.join(PHASES)}")
        if request.emit not in EMITS:
            raise fail(UNKNOWN_NAME, f"`{request.emit}` is not a form", help=f"forms: {', '.join(EMITS[1:])}")
        self.target = find_target(request.target)
        cache = None
        if request.use_cache:
            from cuvilc.package.cache import Cache  # noqa: PLC0415

            cache = Cache()
        self.options = BuildOptions(request.cpu, request.jobs, cache, self._kernel_done, emit=request.emit)
        if not (request.dry_run or request.stop_after):
            from cuvilc.package.destination import check_destination  # noqa: PLC0415

            check_destination(self.output)
        self.target.check(self.options)

    def phases(self) -> None:
        request = self.request
        with self.phase("import"):
            program = self.report.program = load_model(request.model, request.shapes, request.dims)
        with self.phase("verify"):
            self.verify(program, "import")
            self.dump(program, "import")
        with self.phase("optimise"):
            self.make_vectors(program)
            self.passes(program, lower=False)
        with self.phase("lower"):
            self.passes(program, lower=True)
        if request.dry_run:
            raise _Stop
        with self.phase("schedule"):
            compiled = self.target.compile(program, self.options)
            self.count(compiled)
            self.report.texts |= self.options.texts
        with self.phase("pack"):
            metadata = self.metadata(program)
            self.report.metadata = self.target.write(compiled, metadata, self.output, self.options)
            self.report.package = self.output

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self.request.report:
            self.request.report(name, 0, 0, "")
        start = time.perf_counter()
        yield
        self.report.seconds[name] = self.report.seconds.get(name, 0) + time.perf_counter() - start
        if self.request.stop_after == name:
            raise _Stop

    def passes(self, program: Any, lower: bool) -> None:
        """Run the pipeline's passes that belong to this phase, dumping and verifying after each."""
        from cuvilc.dialect.passes import LOWERING, PIPELINE  # noqa: PLC0415
        from cuvilc.dialect.passes.context import PassContext  # noqa: PLC0415

        names = [p.NAME for p in PIPELINE]
        for wanted in self.request.dump_after:
            if wanted not in (*names, "import"):
                known = ", ".join(dict.fromkeys(names))
                raise fail(UNKNOWN_NAME, f"`{wanted}` is not a pass", help=f"passes: import, {known}")
        if not hasattr(self, "context"):
            self.context = PassContext()
        for each in PIPELINE:
            if (each in LOWERING) != lower:
                continue
            each.run(program, self.context)
            self.verify(program, each.NAME)
            self.dump(program, each.NAME)
        self.report.misses = self.context.misses
        self.report.applied = dict(self.context.applied)
        level = {False: "layout", True: "launch"}[lower]
        if self.request.emit == level or (self.request.emit == "ai" and not lower):
            self.report.texts[level] = program.text()

    def verify(self, program: Any, after: str) -> None:
        from cuvilc._mlir import ir  # noqa: PLC0415

        try:
            program.verify()
        except ir.MLIRError as error:
            reproducer = self.output.with_suffix(".reproducer.mlir")
            reproducer.write_text(program.text())
            raise CuvilError(
                Diagnostic(
                    BROKEN_PASS, f"the program is not valid after `{after}`", place=str(self.request.model),
                    evidence="\n".join(str(error).splitlines()[:6]), notes=[f"reproducer: {reproducer}"],
                )
            ) from error  # fmt: skip

    def dump(self, program: Any, name: str) -> None:
        if self.request.dump_ir is not None:
            self.request.dump_ir.mkdir(parents=True, exist_ok=True)
            number = len(list(self.request.dump_ir.glob("*.mlir")))
            (self.request.dump_ir / f"{number:02}-{name}.mlir").write_text(program.text())
        if name in self.request.dump_after:
            self.report.texts[f"after {name}"] = program.text()

    def make_vectors(self, program: Any) -> None:
        if self.request.vectors and not self.request.dry_run and not self.request.stop_after:
            from cuvilc.vectors import reference_vectors  # noqa: PLC0415

            self.options.vectors = reference_vectors(program, self.request.vectors)

    def metadata(self, program: Any) -> dict[str, Any]:
        """The parts of the metadata that the target does not know."""
        from cuvilc.dialect.passes import PIPELINE  # noqa: PLC0415

        source = program.source
        passes = {p.NAME: p.VERSION for p in PIPELINE}
        return {
            "model": {
                "name": program.name,
                "source_format": source.get("format", ""),
                "source_sha256": source.get("sha256", ""),
                **({"opset": source["opset"]} if isinstance(source.get("opset"), dict) else {}),
            },
            "compiler": {
                "version": __version__,
                "passes": [{"name": n, "version": v} for n, v in passes.items()],
            },
        }

    def count(self, compiled: Any) -> None:
        kernels = getattr(compiled, "kernels", {})
        self.report.kernels_cached = sum(k.cached for k in kernels.values())
        self.report.kernels_built = len(kernels) - self.report.kernels_cached

    def _kernel_done(self, done: int, total: int, name: str) -> None:
        if self.request.report:
            self.request.report("schedule", done, total, name)
