"""Run a program in NumPy: the executable meaning of the dialect, at every level.

Every operation's `reference` computes in float64; its result is then rounded once to the declared
dtype. A layout changes where an element lies in memory, never its value, so graph and layout level
run alike. At the launch level results are written to their planned places in one arena and read
back from there, so a plan that lets two live values share memory gives wrong results here, as it
would on the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Expr, evaluate
from cuvilc.dialect.ir import Operation, Program, Value
from cuvilc.dialect.types import FLOATS, TensorType, numpy_dtype


class InterpretError(ValueError):
    """The inputs do not fit the program's inputs; the message says which."""


class Interpreter:
    """One run: values by SSA value, sizes by symbol."""

    def __init__(
        self, program: Program, exact: bool = False, most_rounds: int | None = None
    ) -> None:
        """exact: keep float64 between operations instead of rounding each result to its dtype.

        most_rounds: of all loops together; then InterpretError, as a loop may never end.
        """
        self.program = program
        self.exact = exact
        self.rounds_left = most_rounds
        self.values: dict[Value, np.ndarray] = {}
        self.sizes: dict[str, int] = {}
        self.arena: np.ndarray | None = None

    def bind(self, t: TensorType, array: np.ndarray, name: str) -> None:
        """Learn symbol sizes from an input's shape, and check everything that is already known."""
        if array.ndim != t.rank:
            raise InterpretError(f"input {name!r} has rank {array.ndim}, the program says {t.rank}")
        for d, n in zip(t.shape, array.shape, strict=True):
            if isinstance(d, Expr) and str(d).isidentifier():
                d = self.sizes.setdefault(str(d), n)
            if not isinstance(d, Expr) and d != n:
                raise InterpretError(f"input {name!r} is {array.shape}, the program says {t}")

    def call(self, function: Operation, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        block = ir.body(function)
        names = ir.attrs(function).get("input_names", tuple(f"#{i}" for i in range(len(arrays))))
        for argument, array, name in zip(block.arguments, arrays, names, strict=True):
            t = ir.type_of(argument)
            self.bind(t, array, name)
            self.values[argument] = np.asarray(array).astype(numpy_dtype(t.dtype), copy=False)
        planned = ir.attrs(function).get("arena_bytes")
        if planned is not None:
            # Sizes that make it negative are refused by the first operations.
            self.arena = np.full(max(self.concrete(planned), 0), 0xA5, np.uint8)
        return self.run_block(block)

    def run_block(self, block: Any) -> list[np.ndarray]:
        """Run a block whose arguments are bound; returns the terminator's operands."""
        for operation in ir.operations(block):
            declared = ir.definition(operation)
            if declared is None or "terminator" in declared.traits:
                return [self.values[v] for v in operation.operands]
            try:
                self.step(operation)
            except (ValueError, IndexError) as error:
                if not hasattr(error, "__notes__"):  # else an operation of an inner block has it
                    error.add_note(f"layer `{ir.source_name(operation)}`")
                raise
        return []

    def step(self, operation: Operation) -> None:
        declared = ir.definition(operation)
        assert declared is not None
        operands = [self.values[v] for v in operation.operands]
        special = declared.facet("interpret")
        if special:
            results = special(self, operation, operands)
        else:
            if declared.reference is None:
                raise NotImplementedError(f"{operation.name} has no reference")
            given = ir.attrs(operation)  # with places, which are no business of the reference
            attributes = {k: self.concrete(given[k]) for k in declared.attrs}
            wide = [widen(a) for a in operands]
            with np.errstate(all="ignore"):
                results = declared.reference(*declared.group(wide), **attributes)
            if not isinstance(results, (tuple, list)):
                results = (results,)
        places = self.places(operation)
        for value, array, place in zip(operation.results, results, places, strict=True):
            self.values[value] = self.put(
                self.finish(ir.type_of(value), np.asarray(array), operation), place
            )

    def count_round(self) -> None:
        """Another round of a loop begins."""
        if self.rounds_left is not None:
            if self.rounds_left == 0:
                raise InterpretError("its loops run for too long")
            self.rounds_left -= 1

    def places(self, operation: Operation) -> tuple[Any, ...]:
        """The planned place of each result; None above the launch level or outside the arena."""
        return self.concrete(ir.places(operation) or (None,) * len(operation.results))

    def put(self, array: np.ndarray, place: Any) -> np.ndarray:
        """`array` as it lies at its place."""
        if self.arena is None or place is None or place[0] != "arena":
            return array
        target = self.arena[place[1] : place[1] + array.nbytes]
        target[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return target.view(array.dtype).reshape(array.shape)

    def finish(self, t: TensorType, array: np.ndarray, operation: Operation) -> np.ndarray:
        """Check the shape against the type, and round to the type's dtype."""
        shape = tuple(self.concrete(d) for d in t.shape)
        if array.shape != shape:
            raise InterpretError(
                f"{operation.name}: reference gives {array.shape}, the type says {shape}"
            )
        if self.exact and t.is_float:
            return array.astype(np.float64)
        with np.errstate(all="ignore"):
            return array.astype(numpy_dtype(t.dtype))

    def concrete(self, value: Any) -> Any:
        """An attribute value with symbols replaced by their sizes."""
        if isinstance(value, Expr):
            return evaluate(value, self.sizes)
        if isinstance(value, tuple):
            return tuple(self.concrete(v) for v in value)
        return value


def widen(array: np.ndarray) -> np.ndarray:
    """Floats as float64, everything else as it is; narrow floats too, which are only moved."""
    return array.astype(np.float64) if array.dtype.name in FLOATS else array


def interpret(
    program: Program,
    feeds: Mapping[str, np.ndarray],
    exact: bool = False,
    most_rounds: int | None = None,
) -> dict[str, np.ndarray]:
    """The named outputs of `main` on named inputs. InterpretError for inputs that do not fit, and
    after `most_rounds` rounds of loops. ValueError or IndexError, with the layer as a note, where
    an operation refuses its operands.
    """
    with program:
        main = program.function("main")
        names = ir.attrs(main)
        missing = [n for n in names["input_names"] if n not in feeds]
        if missing:
            raise InterpretError(f"input {missing[0]!r} is missing")
        results = Interpreter(program, exact, most_rounds).call(
            main, [np.asarray(feeds[n]) for n in names["input_names"]]
        )
        return dict(zip(names["output_names"], results, strict=True))
