"""More models of the kind of computed_cases.py: branches and sequences of unlike sizes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from tests.models.computed_cases import (
    CASES,
    FLOAT,
    INT64,
    Case,
    body,
    case,
    floats,
    model,
    node,
    port,
)

__all__ = ["CASES"]


@case
def branch_not_taken_that_is_larger(rng: np.random.Generator) -> Case:
    """The sizes of x tell the branch: three rows of it, or all twice and a few constant ones."""
    first = helper.make_graph([node("Slice", "x zero three", "a")], "a", [], [port("a", None)])
    second = helper.make_graph(
        [node("Concat", "x x more", "b", axis=0)], "b", [], [port("b", None)]
    )
    proto = model(
        [
            node("Shape", "x", "sizes"),
            node("Gather", "sizes zero0", "n"),
            node("Greater", "n three0", "long"),
            node("If", "long", "y", then_branch=first, else_branch=second),
            node("Neg", "y", "z"),
        ],
        [port("x", ["n"])], [port("z", [None])],
        zero=np.array([0]), three=np.array([3]), zero0=np.array(0), three0=np.array(3),
        more=np.ones(90, np.float32),
    )  # fmt: skip
    return proto, [{"x": floats(rng, n)} for n in (3, 4, 0, 5, 1000, 1)]


@case
def two_sizes_appended_each_round(rng: np.random.Generator) -> Case:
    """Each round appends x and x with one more row in front; all are joined."""

    def sequence(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_sequence_value_info(name, FLOAT, None)

    inner = body(
        [
            node("Cast", "i", "f", to=FLOAT),
            node("Add", "x f", "moved"),
            node("Concat", "row moved", "longer", axis=0),
            node("SequenceInsert", "s moved", "s1"),
            node("SequenceInsert", "s1 longer", "s2"),
        ],
        [sequence("s")], [sequence("s2")],
    )  # fmt: skip
    proto = model(
        [
            node("SequenceEmpty", "", "none"),
            node("Loop", "trips _ none", "all", body=inner),
            node("ConcatFromSequence", "all", "y", axis=0),
        ],
        [port("x", ["n", 2]), port("trips", [], INT64)],
        [port("y", [None, 2])],
        row=np.ones((1, 2), np.float32),
    )
    return proto, [
        {"x": floats(rng, n, 2), "trips": np.array(t)} for n, t in ((3, 2), (0, 3), (1, 1), (4, 5))
    ]
