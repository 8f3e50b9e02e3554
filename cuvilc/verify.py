"""Check a package: its files, its bundled test vectors, and on request another runtime as oracle.

Prints nothing; `verify_package` and `verify_against` return their comparisons as Checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from cuvilc.artifact import Package, input_symbols, read_package
from cuvilc.codes_runtime import (
    EXTRA_MISSING,
    NOT_VERIFIED,
    ORACLE_FAILED,
    WRONG_MACHINE,
    WRONG_RESULTS,
    WRONG_SHAPE,
)
from cuvilc.diagnostics import CuvilError, fail
from cuvilc.dialect.dims import evaluate
from cuvilc.dialect.dims_text import parse
from cuvilc.dialect.narrow import NARROW_FLOATS, NARROW_INTEGERS
from cuvilc.open_package import open_package
from cuvilc.oracle_values import flat, grouped, zip_labels
from cuvilc.vectors import random_array, tolerance_of, trials

THREADS = (1, 2)
ORACLE_CASES = 3
_NOTHING = np.empty(0)


@dataclass(frozen=True)
class Check:
    """One output of one case compared with its reference.

    `error`: largest difference relative to the output's scale; `limit`: the tolerance in the same
    unit; `problem`: what differs when it is not merely the error.
    """

    case: str
    output: str
    level: str
    threads: int
    error: float
    limit: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        return not self.problem and self.error <= self.limit

    def to_json(self) -> dict[str, Any]:
        error = self.error if np.isfinite(self.error) else None
        return {**asdict(self), "error": error, "ok": self.ok}


@dataclass
class Verified:
    """`skipped`: CPU levels that this machine cannot run. `notes`: what was not checked."""

    files: dict[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify_package(path: Path) -> Verified:
    """Files against their SHA-256, metadata against the schema, every level against the vectors.

    Raises CUV520 to CUV523 for files and metadata; compares, without judging, the results.
    """
    from cuvilc.package.vectors import read_vectors  # noqa: PLC0415

    package = read_package(path, check=True)
    result = Verified({n: i["sha256"] for n, i in package.metadata["files"].items()})
    vectors = read_vectors(package)
    if vectors is None or not vectors.cases:
        result.notes.append(
            "no test vectors in this package; `cuvilc build MODEL --vectors 1` bundles some"
        )
        return result
    inputs = [p["name"] for p in package.metadata["inputs"]]
    tolerance: Any = vectors.tolerance
    for level, threads, model in _models(package, result):
        for number, case in enumerate(vectors.cases):
            found = model.run(dict(zip(inputs, case.inputs, strict=True)))
            wanted = dict(zip(found, case.outputs, strict=True))
            result.checks += _compare(found, wanted, f"vector {number}", level, threads, tolerance)
    return result


def _models(package: Package, result: Verified) -> Iterator[tuple[str, int, Any]]:
    """The package loaded for each CPU level that runs here, at each number of threads."""
    for level in package.metadata["target"]["levels"]:
        for threads in THREADS:
            try:
                model = open_package(package.path, threads=threads, level=level["name"])
            except CuvilError as error:
                if [d.code for d in error.diagnostics] != [WRONG_MACHINE]:
                    raise
                result.skipped.append(level["name"])
                break
            try:
                if model.threads in (None, threads):  # the interpreter has one thread, always
                    yield level["name"], threads, model
            finally:
                model.close()
    if len(result.skipped) == len(package.metadata["target"]["levels"]):
        result.notes.append("this machine runs none of the package's CPU levels")


def require_some(result: Verified, place: str, notes: Sequence[str]) -> None:
    """Something was compared, and all of it is within tolerance. CUV626, CUV622."""
    if not result.checks:
        raise fail(
            NOT_VERIFIED, "nothing could be compared, so the package is not known to be right",
            place=place, notes=[*notes, *result.notes],
        )  # fmt: skip
    if problem := out_of_tolerance(result.checks, place):
        raise problem


def out_of_tolerance(checks: Sequence[Check], place: str) -> CuvilError | None:
    """CUV622 with the worst of the checks that are not within tolerance, if any is not."""
    wrong = sorted((c for c in checks if not c.ok), key=lambda c: -c.error)
    if not wrong:
        return None
    lines = [
        f"{c.case}, output `{c.output}`, {c.level}, {c.threads} thread{'s' * (c.threads > 1)}: "
        + (c.problem or f"error {c.error:.3g} of the scale, allowed {c.limit:.3g}")
        for c in wrong[:5]
    ]
    more = [f"and {len(wrong) - 5} more"] if len(wrong) > 5 else []
    message = f"{len(wrong)} of {len(checks)} comparisons are out of tolerance"
    return fail(WRONG_RESULTS, message, place=place, evidence="\n".join(lines), notes=more)


def _compare(
    found: Mapping[str, np.ndarray],
    wanted: Mapping[str, np.ndarray],
    case: str,
    level: str,
    threads: int,
    tolerance: Mapping[str, float],
) -> Iterator[Check]:
    for name, array in found.items():
        error, limit, problem = difference(array, wanted[name], tolerance)
        yield Check(case, name, level, threads, error, limit, problem)


def difference(
    found: np.ndarray, wanted: np.ndarray, tolerance: Mapping[str, float]
) -> tuple[float, float, str]:
    """(largest error, limit), both relative to the scale of `wanted`, and what else differs.

    Integers must be equal, but those of 8 bits and fewer, which quantised models round to, may be
    one step off, as may narrow floats.
    """
    if found.shape != wanted.shape:
        return np.inf, 0.0, f"shape {list(found.shape)}, not {list(wanted.shape)}"
    if found.dtype.kind in "iub" or found.dtype.name in NARROW_INTEGERS:
        steps = 1 if found.dtype.itemsize == 1 and found.dtype.kind != "b" else 0
        off = np.abs(found.astype(np.int64) - wanted.astype(np.int64))
        return float(off.max(initial=0)), float(steps), ""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    special = ~(np.isfinite(a) & np.isfinite(b))
    if not np.array_equal(a[special], b[special], equal_nan=True):
        return np.inf, 0.0, "NaN or infinities in other places"
    scale = np.abs(np.where(special, 0, b)).max(initial=0)
    error = np.abs(np.where(special, 0, a) - np.where(special, 0, b)).max(initial=0)
    unit = scale or 1.0  # all zeros have no scale: errors are then absolute
    relative = tolerance["rtol"]
    if found.dtype.name in NARROW_FLOATS:
        relative = max(relative, float(ml_dtypes.finfo(found.dtype).eps))
    limit = relative * scale + tolerance["atol"]
    return float(error / unit), float(limit / unit), ""


def verify_against(path: Path, oracle: Path, dims: Mapping[str, int]) -> Verified:
    """Compare with onnxruntime on random inputs, at several sizes of every symbol.

    `dims` fixes sizes. Raises CUV623 without onnxruntime, CUV625 when it refuses.
    """
    package = read_package(path)
    result = Verified()
    session = _session(oracle)
    info = package.metadata.get("vectors")
    dtypes = {p["dtype"] for p in package.metadata["outputs"]}
    tolerance: Any = info["tolerance"] if info else tolerance_of(dtypes)
    for number in range(ORACLE_CASES):
        refused: CuvilError | None = None
        for sizes, feeds, wanted in _oracle_cases(package, session, dims, number, oracle):
            label = ", ".join(f"{n}={s}" for n, s in sizes.items()) or f"random {number}"
            try:
                for level, threads, model in _models(package, Verified()):
                    found = model.run(feeds)
                    result.checks += _compare(found, wanted, label, level, threads, tolerance)
                break
            except CuvilError as error:
                if error.diagnostics[0].code != WRONG_SHAPE:
                    raise
                # onnxruntime makes something of sizes for which an operator has no meaning.
                refused = refused or error
                message = error.diagnostics[0].message
                result.notes.append(f"{label}: the package refuses these sizes: {message}")
        else:
            assert refused is not None
            raise refused
    return result


def verify_adapted(path: Path, program: Any, dims: Mapping[str, int]) -> Verified:
    """Compare with the interpreter's run of a program, a base model with adapters apart from its
    weights, on random inputs at several sizes of every symbol; `dims` fixes sizes. CUV625.
    """
    from cuvilc.dialect.interpret import interpret  # noqa: PLC0415

    package = read_package(path)
    result = Verified()
    dtypes = {p["dtype"] for p in package.metadata["outputs"]}
    info = package.metadata.get("vectors")
    tolerance: Any = info["tolerance"] if info else tolerance_of(dtypes)
    problem: Exception | None = None
    for number in range(ORACLE_CASES):
        for sizes, below in case_sizes(package.metadata, number, dims):
            feeds = random_inputs(package.metadata, sizes, number, below)
            try:
                wanted = interpret(program, feeds)
            except (ValueError, IndexError) as error:  # perhaps an index beyond a small table
                problem = error
                continue
            label = ", ".join(f"{n}={s}" for n, s in sizes.items()) or f"random {number}"
            for level, threads, model in _models(package, Verified()):
                found = model.run(feeds)
                result.checks += _compare(found, wanted, label, level, threads, tolerance)
            break
    if not result.checks and problem is not None:
        message = "the model with its adapters refuses the random inputs"
        raise _refused(message, Path(program.name), problem) from problem
    return result


def case_sizes(
    metadata: Any, number: int, dims: Mapping[str, int]
) -> Iterator[tuple[dict[str, int], int]]:
    """Sizes to try for case `number`, each with the limit of random integers."""
    symbols = input_symbols(metadata)
    batches = {s["name"] for s in symbols if s["axis"] == 0}
    if number == 0:
        smallest = {s["name"]: max(s["lo"], 1) for s in symbols}
        yield from (({**smallest, **dims}, below) for below in (8, 2))
    ranges = {s["name"]: (s["lo"], s["hi"]) for s in symbols}
    for sizes, below in trials(ranges, batches, number):
        yield {**sizes, **dims}, below


def random_inputs(
    metadata: Any, sizes: Mapping[str, int], seed: int, below: int = 8
) -> dict[str, np.ndarray]:
    """Random arrays of the shapes that the inputs have at these sizes."""
    rng = np.random.default_rng([1, seed])
    return {
        p["name"]: random_array(p["dtype"], port_shape(p, sizes), rng, below)
        for p in metadata["inputs"]
    }


def port_shape(port: Any, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(parse(str(d)), sizes) for d in port["dims"])


def _session(path: Path) -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415
    except ImportError as error:
        raise fail(
            EXTRA_MISSING,
            "onnxruntime is not installed, and --against needs it as the oracle",
            help="pip install onnxruntime",
        ) from error
    if not path.is_file():
        raise fail(ORACLE_FAILED, "there is no such model file", place=str(path))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # What the model says, operator by operator: fused, quantised layers round elsewhere.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # it has many exception classes of its own
        raise _refused("onnxruntime refuses the model", path, error) from error


def _oracle_cases(
    package: Package, session: Any, dims: Mapping[str, int], number: int, path: Path
) -> Iterator[tuple[dict[str, int], dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Sizes and random inputs that the oracle accepts, its outputs under the package's names.

    At least one such case. CUV625.
    """
    ours = [p["name"] for p in package.metadata["inputs"]]
    theirs = [i.name for i in session.get_inputs()]
    if grouped(dict.fromkeys(ours, _NOTHING), theirs) is None:
        raise fail(
            ORACLE_FAILED, "the package has other inputs than the model", place=str(path),
            evidence=f"package: {', '.join(ours)}\nmodel:   {', '.join(theirs)}",
        )  # fmt: skip
    names = [p["name"] for p in package.metadata["outputs"]]
    labels = zip_labels(path)
    problem: Exception | None = None
    accepted = 0
    for sizes, below in case_sizes(package.metadata, number, dims):
        feeds = random_inputs(package.metadata, sizes, number, below)
        try:
            values = session.run(None, grouped(feeds, theirs))
        except Exception as error:  # as above; perhaps an index beyond a small table
            problem = problem or error
            continue
        by_name: dict[str, np.ndarray] = {}
        for output, value in zip(session.get_outputs(), values, strict=True):
            by_name |= flat(output.name, value, labels)
        if not set(names) <= set(by_name):
            message = "the package has other outputs than the model"
            raise fail(ORACLE_FAILED, message, place=str(path))
        accepted += 1
        yield sizes, feeds, {n: by_name[n] for n in names}
    if accepted == 0:
        assert problem is not None
        raise _refused("onnxruntime refuses the random inputs", path, problem) from problem


def _refused(message: str, path: Path, error: Exception) -> CuvilError:
    lines = "\n".join(str(error).splitlines()[:4])
    return fail(ORACLE_FAILED, message, place=str(path), evidence=lines)
