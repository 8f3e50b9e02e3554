"""The operator cases of ONNX's backend suite: iterate, import, run, compare. `make conformance`
uses it too.

A case ends as "passed", "failed" (wrong, or a crash) or "refused" (a diagnostic; the text says
why).
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from cuvilc.diagnostics import CuvilError
from cuvilc.dialect.interpret import interpret
from tests.tolerances import mismatch

FREEZING = ("CUV109", "CUV114")  # refusals after which small inputs are made constants
# The outputs are random: shape and dtype are all that can be compared.
RANDOM = ("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike")
RANDOM_CASES = "test_bernoulli"  # also by the operator's definition
SMALL = 16  # elements of an input that is made a constant at most
Runner = Callable[[Any, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Case:
    """One model of the suite with its inputs and expected outputs, by name."""

    name: str
    model: onnx.ModelProto
    data: tuple[tuple[dict[str, Any], dict[str, Any]], ...]
    category: str = "node"

    @property
    def operator(self) -> str:
        return str(self.model.graph.node[0].op_type)

    def outcome(self, kind: str, reason: str = "") -> Outcome:
        return Outcome(self.name, self.operator, kind, reason)


@dataclass(frozen=True)
class Outcome:
    """How a case ended, and why if it did not pass."""

    name: str
    operator: str
    kind: str  # passed, failed, refused
    reason: str = ""


def iter_cases(names: Callable[[str], bool] = lambda name: True) -> Iterator[Case]:
    """Every case of the suite whose name is wanted. Takes seconds: onnx computes them anew."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in collect_testcases(None):
            if names(case.name):
                yield Case(
                    case.name, case.model, tuple(by_name(case.model, d) for d in case.data_sets)
                )


def by_name(model: onnx.ModelProto, data: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A data set's inputs and outputs, given in the model's order, by name."""
    inputs, outputs = data
    return (
        dict(zip((i.name for i in model.graph.input), map(_array, inputs), strict=False)),
        dict(zip((o.name for o in model.graph.output), map(_array, outputs), strict=False)),
    )


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def freeze_small_inputs(case: Case) -> onnx.ModelProto:
    """The case's model with small vectors and scalars as constants.

    The suite passes shapes, axes and the like as inputs, where models have constants. Only a case
    that is refused as data-dependent is tried so.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    inputs = case.data[0][0]
    for info in list(model.graph.input):
        array = inputs.get(info.name)
        if isinstance(array, np.ndarray) and array.ndim <= 1 and array.size <= SMALL:
            model.graph.input.remove(info)
            model.graph.initializer.append(numpy_helper.from_array(array, info.name))
    return model


def run_case(case: Case, run: Runner = interpret) -> Outcome:
    """Import the case's model, run it, compare every output with the expected one."""
    try:
        program = _import(case, case.model)
    except CuvilError as error:
        if not any(d.code in FREEZING for d in error.diagnostics):
            return case.outcome("refused", _first_line(error))
        try:
            program = _import(case, freeze_small_inputs(case))
        except CuvilError as again:
            return case.outcome("refused", _first_line(again))
    try:
        for inputs, wanted in case.data:
            found = run(program, tensors(inputs))
            wrong = difference(case, found, wanted)
            if wrong:
                return case.outcome("failed", wrong)
    except Exception as error:  # a crash is a result here
        return case.outcome("failed", f"{type(error).__name__}: {error}")
    return case.outcome("passed")


def tensors(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A package's tensors for a model's values: sequences by element, absent ones not at all."""
    found: dict[str, np.ndarray] = {}
    for name, value in values.items():
        if isinstance(value, (list, tuple)):
            found |= tensors({f"{name}.{i}": element for i, element in enumerate(value)})
        elif value is not None:
            found[name] = np.asarray(value)
    return found


def elements(case: Case) -> dict[str, int]:
    """How many tensors the case gives for each sequence, and whether for each optional."""
    found = {}
    for info in case.model.graph.input:
        kind, value = info.type.WhichOneof("value"), case.data[0][0].get(info.name)
        if isinstance(value, (list, tuple)):
            found[info.name] = len(value)
        elif kind == "optional_type":
            found[info.name] = int(value is not None)
    return found


def ranks(case: Case) -> dict[str, tuple[None, ...]]:
    """The ranks of the elements of sequences, which the suite's models leave open."""
    found: dict[str, tuple[None, ...]] = {}
    for info in case.model.graph.input:
        value = case.data[0][0].get(info.name)
        kind = (
            info.type.optional_type.elem_type if info.type.HasField("optional_type") else info.type
        )
        element = kind.sequence_type.elem_type.tensor_type
        if isinstance(value, (list, tuple)) and not element.HasField("shape"):
            found |= {f"{info.name}.{i}": (None,) * np.ndim(v) for i, v in enumerate(value)}
    return found


def _import(case: Case, model: onnx.ModelProto) -> Any:
    registry = import_module("cuvilc.import.registry")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{case.name}.onnx"
        path.write_bytes(model.SerializeToString())
        options = registry.ImportOptions(shapes=ranks(case), elements=elements(case))
        return registry.load(path, options)


def _first_line(error: CuvilError) -> str:
    d = error.diagnostics[0]
    return f"{d.code} {d.message}"


def difference(case: Case, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first output that differs and how, or nothing."""
    if case.operator not in RANDOM and not case.name.startswith(RANDOM_CASES):
        return compare(found, wanted)
    for name, value in wanted.items():
        got, want = np.asarray(found[name]), np.asarray(value)
        if (got.shape, got.dtype) != (want.shape, want.dtype):
            return f"{name}: {got.dtype}{got.shape}, not {want.dtype}{want.shape}"
    return ""


def compare(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The first output that differs and how, or nothing."""
    expected = tensors(wanted)
    if missing := sorted(expected.keys() - found.keys()):
        return f"no output {missing[0]}"
    if extra := sorted(found.keys() - expected.keys()):
        return f"an output {extra[0]} that nobody expects"
    for name, want in expected.items():
        if wrong := mismatch(np.asarray(found[name]), want):
            return f"{name}: {wrong}"
    return ""


def table(outcomes: Sequence[Outcome]) -> str:
    """Counts by operator and in all, then what failed and what was refused."""
    lines = []
    for kind in ("failed", "refused"):
        lines += [f"{kind:8} {o.name}: {o.reason[:150]}" for o in outcomes if o.kind == kind]
    counts = {k: sum(o.kind == k for o in outcomes) for k in ("passed", "failed", "refused")}
    return "\n".join([*lines, ", ".join(f"{n} {k}" for k, n in counts.items())])


def main() -> None:
    wanted = sys.argv[1:]
    cases = iter_cases(lambda name: not wanted or any(w in name for w in wanted))
    print(table([run_case(case) for case in cases]))


if __name__ == "__main__":
    main()
