"""Put before each block what its operations demand of sizes that are known only at run time; what
they demand of computed sizes, after the operation that binds those.

The demands are those that the shape rules could not decide: two named sizes that broadcast only if
they are equal or one is 1, a slice that reads inside its axis only if the axis is long enough. What
the declared ranges decide is not asked again. The pass comes first, while the operations are still
the model's own: later ones may drop the operation that would have told.
"""

from __future__ import annotations

from typing import Any

from cuvilc.dialect import ir
from cuvilc.dialect.dims import Dim, bounds, symbols
from cuvilc.dialect.ir import Operation, Program
from cuvilc.dialect.op import ShapeError
from cuvilc.dialect.ops._rules import left_open
from cuvilc.dialect.ops.structure import defined_sizes
from cuvilc.dialect.passes.context import PassContext

NAME = "require-sizes"
VERSION = 1

_MESSAGE_CHARACTERS = 200  # sizes of deep strided layers are spelled at any length


def run(program: Program, context: PassContext) -> None:
    """After it sizes for which a shape rule does not hold are refused when the model runs."""
    with program:
        for block in ir.blocks(ir.body(program.function("main"))):
            _require(program, block)


def _require(program: Program, block: Any) -> None:
    operations = ir.operations(block)
    asked: dict[Dim, tuple[str, Operation]] = {}
    bound: dict[str, int] = {}  # computed size -> number of the operation that binds it
    for number, operation in enumerate(operations):
        if operation.name == "ai.require":
            asked[ir.attrs(operation)["condition"]] = ("", operation)
        for condition, message in _demands(operation).items():
            asked.setdefault(condition, (message, operation))
        bound |= dict.fromkeys(defined_sizes(operation), number)
    for condition, (message, operation) in asked.items():
        if message and bounds(condition, program.ranges)[0] < 1:
            after = max((bound[n] for n in symbols(condition) if n in bound), default=-1)
            with ir.before(operations[after + 1]), operation.location:
                ir.build("ai.require", condition=condition, message=_cut(message))


def _cut(message: str) -> str:
    whole = len(message) <= _MESSAGE_CHARACTERS
    return message if whole else f"{message[:_MESSAGE_CHARACTERS]}…"


def _demands(operation: Operation) -> dict[Dim, str]:
    """What the operation's shape rule leaves open; nothing where its types have another source."""
    declared = ir.definition(operation)
    if declared is None or declared.regions or declared.traits & {"terminator", "free-types"}:
        return {}
    with left_open() as found:
        try:
            declared.result_types([ir.type_of(v) for v in operation.operands], ir.attrs(operation))
        except ShapeError:  # the verifier's to report
            return {}
    return found
