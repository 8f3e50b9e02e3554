"""ONNX files → Program: safe reading, sizes by name, one pass over the nodes.

Sizes that the model leaves open become symbols under the model's own names. Some facts show only
on the way (two unnamed sizes must be equal, a size is bounded by a table of positions): then the
import starts again knowing them, so types are right from the first operation on.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from cuvilc.diagnostics import CuvilError, fail
from cuvilc.dialect import ir
from cuvilc.dialect.dims import substitute, symbols_of
from cuvilc.dialect.op import ShapeError, write_attr
from cuvilc.dialect.ops.structure import computed_sizes
from cuvilc.dialect.types import TensorType

from . import codes, onnx_model, onnx_wire
from .onnx_convert import Converter
from .onnx_inputs import Inputs, fixed_sizes, read_inputs
from .onnx_node import Constrain, attribute_value
from .onnx_sequences import OptionalVal, SequenceVal, tensors_of
from .onnx_tensors import TensorReader
from .onnx_values import Val, assuming
from .registry import ImportOptions

FORMAT = "ONNX"
_MOST_RESTARTS = 64


def sniff(path: Path, head: bytes) -> int:
    """How surely the file is ONNX. A file that breaks off is still ours, to say where."""
    return onnx_wire.looks_like_model(path, head)


def load(path: Path, options: ImportOptions) -> ir.Program:
    """Import the model. CuvilError with everything that is wrong with it."""
    path = Path(path)
    wire = onnx_wire.read(path)
    with ExitStack() as here:
        digest = (options.later or here).enter_context(onnx_wire.digest(wire.buffer))
        model = onnx_model.parse(path, wire)
        onnx_model.check_versions(path, model)
        original_opset = onnx_model.opsets(model)[""]
        if onnx_model.needs_upgrade(model):
            wire.message, wire.blobs = bytes(wire.buffer[:]), {}
            model = onnx_model.upgrade(path, onnx_model.parse(path, wire))
        blobs = {model.graph.initializer[i].name: place for i, place in wire.blobs.items()}
        model = onnx_model.inline(path, model)
        reader = TensorReader(path, wire)
        session = _Session(path, model, reader, blobs, options)
        program = session.run()
        sha256 = ""
        if options.later:
            program.digest = digest
        else:
            sha256 = digest.result()
    program.source = {
        "format": "onnx",
        "sha256": sha256,
        "ir_version": int(model.ir_version),
        "opset": original_opset,
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
        "dims": session.inputs.original_names,
    }
    return program


class _Session:
    """The attempts to import one model, until nothing new is learned about its sizes."""

    def __init__(
        self,
        path: Path,
        model: Any,
        reader: TensorReader,
        blobs: dict[str, tuple[int, int]],
        options: ImportOptions,
    ) -> None:
        self.path, self.model, self.reader = path, model, reader
        self.weights = self._weights(blobs)
        self.opsets = onnx_model.opsets(model)
        self.inputs: Inputs = read_inputs(path, model, options, set(self.weights))
        self.assumed: dict[str, int] = {}  # If nodes that sizes decide -> the branch taken
        self.known = fixed_sizes(self.inputs)  # symbols that turned out to be something else

    def _weights(self, blobs: dict[str, tuple[int, int]]) -> dict[str, np.ndarray]:
        return {
            t.name: self.reader.read(t, blobs.get(t.name)) for t in self.model.graph.initializer
        }

    def run(self) -> ir.Program:
        errors = onnx_model.check_types(self.path, self.model)
        errors += onnx_model.check_operators(self.path, self.model, self._attributes)
        first: CuvilError | None = None
        for _ in range(_MOST_RESTARTS):
            try:
                return self._attempt(errors)
            except Constrain as fact:
                self._learn(fact)
            except CuvilError as error:
                first = first or error
                untried = [label for label, branch in self.assumed.items() if branch == 0]
                if errors or not untried:
                    raise first from None
                self.assumed[untried[-1]] = 1
        raise fail(codes.BAD_NODE, "the model's sizes contradict each other", place=str(self.path))

    def _attributes(self, node: Any) -> dict[str, Any]:
        """A node's attributes for the look before any work; tensors are not read."""
        return {a.name: attribute_value(a, lambda tensor: tensor) for a in node.attribute}

    def _learn(self, fact: Constrain) -> None:
        if fact.value is not None:
            self.known = {
                n: substitute(d, {fact.symbol: fact.value}) for n, d in self.known.items()
            }
            self.known[fact.symbol] = fact.value
            self._check_fixed(fact)
        else:
            lo, hi = self.inputs.ranges[fact.symbol]
            assert fact.greatest is not None
            self.inputs.ranges[fact.symbol] = (
                lo,
                fact.greatest if hi is None else min(hi, fact.greatest),
            )

    def _check_fixed(self, fact: Constrain) -> None:
        lo, hi = self.inputs.ranges[fact.symbol]
        value = fact.value
        if isinstance(value, int) and (value < lo or (hi is not None and value > hi)):
            raise fail(
                codes.BAD_SHAPE_OPTION,
                f"the model needs {fact.symbol} = {fact.value}, outside the range given for it",
                place=str(self.path),
                notes=[self.inputs.listing()],
            )

    def _attempt(self, errors: list[Any]) -> ir.Program:
        types = [
            TensorType(tuple(substitute(d, self.known) for d in t.shape), t.dtype)
            for t in self.inputs.types.values()
        ]
        program = ir.Program.create(self.path.stem)
        names = [n for n in self.inputs.ranges if n not in self.known]
        program.ranges = {n: self.inputs.ranges[n] for n in names}
        converter = Converter(program, self.path, self.reader)
        converter.invented, converter.assumed = self.inputs.invented, self.assumed
        converter.reserved = set(self.inputs.ranges)
        with program, assuming(program.ranges):
            block = ir.define_function(
                program, "main", types, input_names=tuple(self.inputs.types), output_names=()
            )
            with ir.at_end(block):
                results = self._body(converter, block)
            onnx_model.raise_all(errors + converter.errors)
            named = self._outputs(results)
            with ir.at_end(block):
                values = [converter.value(val) for _, val in named]
            ir.finish_function(block, values)
            names_of_outputs = write_attr(tuple(name for name, _ in named))
            block.owner.operation.attributes["output_names"] = names_of_outputs
            used = {s for v in block.arguments for s in symbols_of(ir.type_of(v).shape)}
            used |= set(computed_sizes(block))
        program.ranges = {n: r for n, r in program.ranges.items() if n in used}
        return program

    def _outputs(self, results: list[Val | None]) -> list[tuple[str, Val]]:
        """The tensors that the package gives: sequences by element, absent optionals not at all.

        CUV110 for an output without value (a node gave a result that it leaves out) and for a
        sequence that is neither a list of tensors nor the rows of one. CUV105 for none, or two of
        one name.
        """
        named: list[tuple[str, Val]] = []
        for info, value in zip(self.model.graph.output, results, strict=True):
            if value is None:
                message = f"output `{info.name}` is not computed"
                raise fail(codes.BAD_NODE, message, place=str(self.path))
            try:
                named += tensors_of(info.name, value)
            except ShapeError as error:
                message = f"output `{info.name}`: {error}"
                raise fail(codes.BAD_NODE, message, place=str(self.path)) from None
        count = Counter(name for name, _ in named)
        if not named or len(count) < len(named):
            double = next((f"two outputs are called `{n}`" for n, c in count.items() if c > 1), "")
            raise fail(codes.BAD_GRAPH, double or "the model has no output", place=str(self.path))
        return named

    def _body(self, converter: Converter, block: Any) -> list[Val | None]:
        scope: dict[str, Val | None] = {n: Val.constant(a, n) for n, a in self.weights.items()}
        converter.main = block
        for name, argument in zip(self.inputs.types, block.arguments, strict=True):
            scope[name] = Val.of(argument)
        for name, members in self.inputs.groups.items():
            scope[name] = SequenceVal([val for m in members if (val := scope.pop(m))])
        for name, given in self.inputs.optional.items():
            scope[name] = OptionalVal(scope[name] if given else None)
        graph = self.model.graph
        return converter.graph(graph, scope, self.opsets, converter.place(graph.name or "main"))
