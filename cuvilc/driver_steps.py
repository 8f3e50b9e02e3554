"""What the driver does between the phases: dumps, verification, reproducers, summaries, vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cuvilc.diagnostics import CuvilError, define, fail, internal_error, write_report

AUTO_VECTORS = -1  # as a number of vectors: one if that is cheap, else none

BROKEN_PASS = define(
    "CUV302",
    "a pass broke the program",
    """\
This is a fault of cuvilc, not of the model: after a pass the verifier rejected the program. The
program as it was before the pass was written beside the package as a reproducer.

Next step: report it with the reproducer file.
""",
    exit_code=3,
)


TOO_COMPLEX = define(
    "CUV304",
    "a size of the model is too long an expression",
    """\
Buffers are sized by expressions over the sizes that the model leaves open. Here one grew beyond
what could be computed quickly when the model runs.

Next step: fix some of the open sizes, with `--dim NAME=N` or `--shape INPUT=…`.
""",
)


@dataclass
class Dumps:
    """Writes the program after each pass to a folder; keeps texts that `--dump-after` names."""

    folder: Path | None
    wanted: Sequence[str]
    texts: dict[str, str]
    taken: Counter[str] = field(default_factory=Counter)

    def check(self) -> None:
        """Every wanted pass exists, and the folder can be made."""
        from cuvilc.driver import UNKNOWN_NAME  # noqa: PLC0415

        if self.wanted:
            from cuvilc.dialect.passes import PIPELINE  # noqa: PLC0415

            known = list(dict.fromkeys(["import", *(p.NAME for p in PIPELINE)]))
            for name in self.wanted:
                if name not in known:
                    passes = f"passes: {', '.join(known)}"
                    raise fail(UNKNOWN_NAME, f"`{name}` is not a pass", help=passes)
        if self.folder is not None:
            from cuvilc.package.destination import os_errors  # noqa: PLC0415

            with os_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def any(self) -> bool:
        """Whether anybody wants to see one."""
        return bool(self.wanted) or self.folder is not None

    def take(self, name: str, program: Any) -> None:
        """The program after `name`: NN-name.mlir in the folder, and among the texts if wanted."""
        number = self.taken.total()
        self.taken[name] += 1
        if self.folder is not None:
            from cuvilc.package.destination import os_errors  # noqa: PLC0415

            path = self.folder / f"{number:02}-{name}.mlir"
            with os_errors(path):
                path.write_text(program.text(), "utf-8")
        if name in self.wanted:
            again = f" ({self.taken[name]})" if self.taken[name] > 1 else ""
            self.texts[f"after {name}{again}"] = program.text()


class Checkpoint:
    """The program as it is now, as a copy that costs little and prints only when it is needed."""

    def __init__(self, program: Any) -> None:
        self._program = program
        with program:
            self._module = program.module.operation.clone()

    def text(self) -> str:
        with self._program:  # to print is to verify, which asks for the context's types
            return str(self._module)

    def verify(self) -> None:
        with self._program:
            self._module.verify()


class Trail:
    """The program before each pass that ran since it was last verified. So the verifier runs once
    for several passes: if it rejects the program, the copies tell which of them broke it.
    """

    _LONGEST = 8  # passes; each copy has every operation, and none of the weights

    def __init__(self, output: Path, model: Path) -> None:
        self._output, self._model = output, model
        self._passes: list[tuple[str, Checkpoint]] = []

    def enter(self, name: str, program: Any) -> Checkpoint:
        """The pass `name` comes next; the program as it finds it."""
        if len(self._passes) == self._LONGEST:
            self.verify(program)
        before = Checkpoint(program)
        self._passes.append((name, before))
        return before

    def verify(self, program: Any) -> None:
        """Every verifier accepts the program. CUV302 of the first pass after which it does not."""
        from cuvilc._mlir import ir  # noqa: PLC0415

        try:
            program.verify()
        except ir.MLIRError:
            self._blame(Checkpoint(program))
            raise
        self._passes.clear()

    def blame(self) -> None:
        """A pass has raised: CUV302 if an earlier one had handed it a broken program."""
        if self._passes:
            self._blame(self._passes[-1][1])

    def _blame(self, last: Checkpoint) -> None:
        """`last` is the program as the last pass that ran through left it."""
        from cuvilc._mlir import ir  # noqa: PLC0415

        states = [before for _, before in self._passes]
        for (name, before), after in zip(self._passes, [*states[1:], last], strict=True):
            try:
                after.verify()
            except ir.MLIRError as error:
                text = before.text()
                raise not_valid(error, name, text, self._output, self._model) from error


def verify(program: Any, after: str, output: Path, model: Path) -> None:
    """Every verifier accepts the program. CUV302 with a reproducer beside `output` otherwise."""
    from cuvilc._mlir import ir  # noqa: PLC0415

    try:
        program.verify()
    except ir.MLIRError as error:
        raise not_valid(error, after, program.text(), output, model) from error


def not_valid(
    error: Exception, after: str, reproducer: str, output: Path, model: Path
) -> CuvilError:
    """CUV302, with the program's text before it broke beside `output`."""
    path = write_reproducer(output, reproducer)
    return fail(
        BROKEN_PASS, f"the program is not valid after `{after}`", place=str(model),
        evidence="\n".join(str(error).splitlines()[:6]), notes=[f"reproducer: {path}"],
    )  # fmt: skip


def write_reproducer(output: Path, text: str) -> Path:
    return write_report(output.with_name(output.stem + ".reproducer.mlir"), text)


def too_complex(error: Exception, name: str, model: Path) -> CuvilError:
    return fail(TOO_COMPLEX, f"in `{name}`: {error}", place=str(model))


def broken(error: Exception, output: Path, phase: str, program: Any, model: Path) -> CuvilError:
    """CUV900 for whatever a phase raised; traceback and reproducer beside the output."""
    from cuvilc import __version__  # noqa: PLC0415

    notes = []
    if program is not None:
        try:
            notes = [f"reproducer: {write_reproducer(output, program.text())}"]
        except Exception as second:  # the program itself may be what is broken
            notes = [f"no reproducer: {type(second).__name__}: {second}"]
    report = output.with_name(output.stem + ".crash.txt")
    facts = {"phase": phase or "start", "model": str(model), "cuvilc": __version__}
    return internal_error(error, report, facts, notes)


def vectors(program: Any, wanted: int, precision: str = "") -> tuple[Any, str]:
    """Test vectors of the program, and a note that says why there are none.

    They are the model's own answers at any `precision`, whose error is held to what it allows.
    """
    from cuvilc import vectors as rules  # noqa: PLC0415

    limit = rules.AUTO_LIMIT if wanted == AUTO_VECTORS else None
    program = integer_form(program)
    try:
        made = rules.reference_vectors(program, max(wanted, 1), limit)
    except rules.TooCostly as error:
        return None, (
            f"no test vectors: the interpreter would need {error.args[0] / 1e9:.1f} GFLOP for one "
            f"(automatic up to {rules.AUTO_LIMIT / 1e9:g}); `--vectors 1` bundles one"
        )
    except ValueError as error:
        fixed = "; `--dim` can fix sizes that do fit" if program.ranges else ""
        return None, f"no test vectors: random inputs do not fit this model: {error}{fixed}"
    if precision == "bf16":
        made = replace(made, tolerance=rules.tolerance_of({"bfloat16"}))
    return made, ""


def integer_form(program: Any) -> Any:
    """The program, or a copy whose quantised layers are sums of integers, as kernels compute them.

    A value between two levels may fall on either when it is computed in another way; every layer
    after it passes the difference on, and a deep model's outputs then differ by percents. Quantised
    weights have their adapters in them: the levels that they then fall on are no rounding error.
    """
    from cuvilc.dialect import ir  # noqa: PLC0415
    from cuvilc.dialect.passes import canonicalize, merge_lora, raise_integers  # noqa: PLC0415
    from cuvilc.dialect.passes.context import PassContext  # noqa: PLC0415

    with program:
        names = {o.name for o in ir.walk(ir.body(program.function("main")))}
    passes = []
    if {"ai.lora", "ai.dequantize_linear"} <= names:
        passes.append(merge_lora)
    if "ai.quantize_linear" in names:
        passes += [canonicalize, raise_integers]
    if not passes:
        return program
    copy = ir.Program.parse(program.text(), dict(program.weights))
    copy.name = program.name
    for each in passes:
        each.run(copy, PassContext())
    return copy


def summary(program: Any) -> dict[str, Any]:
    """What the graph level tells: operations by name, weights, symbols with their ranges."""
    from cuvilc.dialect import ir  # noqa: PLC0415

    with program:
        block = ir.body(program.function("main"))
        names = [o.name for o in ir.walk(block) if o.name.startswith("ai.")]
    found = Counter(n for n in names if n not in ("ai.constant", "ai.full", "ai.yield"))
    arrays = program.weights.values()
    return {
        "model": program.name,
        "operations": dict(sorted(found.items(), key=lambda item: (-item[1], item[0]))),
        "symbols": [{"name": n, "lo": lo, "hi": hi} for n, (lo, hi) in program.ranges.items()],
        "weights": {"count": len(program.weights), "bytes": sum(int(a.nbytes) for a in arrays)},
        **_ports(program),
    }


def _ports(program: Any) -> dict[str, Any]:
    from cuvilc.dialect import ir  # noqa: PLC0415
    from cuvilc.dialect.dims import plain  # noqa: PLC0415

    with program:
        main = program.function("main")
        names, block = ir.attrs(main), ir.body(main)
        values = {"inputs": block.arguments, "outputs": ir.terminator(block).operands}
        return {
            role: [
                {"name": n, "dtype": t.dtype, "dims": [plain(d) for d in t.shape]}
                for n, t in zip(
                    names[f"{role[:-1]}_names"], [ir.type_of(v) for v in each], strict=True
                )
            ]
            for role, each in values.items()
        }


def lowered_summary(program: Any) -> dict[str, Any]:
    """What the launch level tells: kernels, launches, the arena."""
    from cuvilc.dialect import ir  # noqa: PLC0415
    from cuvilc.dialect.dims import Expr, plain, substitute  # noqa: PLC0415
    from cuvilc.dialect.passes.batch_adapters import RANK  # noqa: PLC0415
    from cuvilc.package.plan import TYPICAL_RANK  # noqa: PLC0415

    with program:
        main = program.function("main")
        launches = [o for o in ir.walk(ir.body(main)) if o.name.endswith(".launch")]
        calls = Counter(ir.attrs(o)["kernel"] for o in launches)
        layers: dict[str, list[str]] = {}
        for o in launches:
            layers.setdefault(ir.attrs(o)["kernel"], []).append(ir.source_name(o))
        arena = ir.attrs(main).get("arena_bytes", 0)
    if isinstance(arena, Expr):  # the metadata tells it so, too
        arena = substitute(arena, {RANK: TYPICAL_RANK})
    return {
        "kernels": [
            {"name": n, "calls": c, "layers": [x for x in dict.fromkeys(layers[n]) if x]}
            for n, c in calls.items()
        ],
        "arena_bytes": plain(arena),
    }


def metadata(program: Any, passes: Sequence[str], version: str) -> dict[str, Any]:
    """The parts of the metadata that the target does not know."""
    from cuvilc.dialect.passes import PIPELINE  # noqa: PLC0415

    source = program.source
    opset = source.get("opset")
    sha256 = program.digest.result() if program.digest else source.get("sha256", "")
    versions = {p.NAME: p.VERSION for p in PIPELINE}
    if isinstance(opset, int):
        opset = {"": opset}
    return {
        "model": {
            "name": program.name,
            "source_format": source.get("format", ""),
            "source_sha256": sha256,
            **({"opset": opset} if isinstance(opset, dict) else {}),
        },
        "compiler": {
            "version": version,
            "passes": [{"name": n, "version": versions[n]} for n in passes],
        },
    }
