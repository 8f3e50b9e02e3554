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


@case
def sizes_read_within_a_loop(rng: np.random.Generator) -> Case:
    """The body, imported twice since a carried value grows, makes sizes of a value around it."""
    proto = model(
        [node("Loop", "trips _ seed", "y", body=body(
            [node("Pad", "x pads", "p", mode="wrap"), node("Reshape", "p flat", "r"),
             node("Concat", "kept r", "grown", axis=0)],
            [port("kept", [None])], [port("grown", [None])],
        ))],
        [port("x", ["n", "m"]), port("pads", [4], INT64), port("trips", [], INT64)],
        [port("y", [None])],
        seed=floats(rng, 1), flat=np.array([-1]),
    )  # fmt: skip
    return proto, [
        {"x": floats(rng, n, m), "pads": np.array(pads), "trips": np.array(trips)}
        for n, m, pads, trips in (
            (3, 2, [2, 0, 0, 1], 2),
            (2, 3, [0, -1, 1, 2], 3),
            (1, 1, [0] * 4, 0),
        )
    ]


@case
def sizes_read_within_nested_loops(rng: np.random.Generator) -> Case:
    """Both loops are imported more than once; both bodies make sizes of values around them."""
    inner = body(
        [node("Slice", "x begin end", "p"), node("Concat", "kept p", "longer", axis=0)],
        [port("kept", [None])], [port("longer", [None])],
    )  # fmt: skip
    inner.name, inner.node[-1].name = "inner", "Identity_inner"
    outer = body(
        [node("Loop", "rounds _ held", "got", body=inner), node("Tile", "got times", "more"),
         node("Concat", "held more", "grown", axis=0)],
        [port("held", [None])], [port("grown", [None])],
    )  # fmt: skip
    proto = model(
        [node("Loop", "trips _ seed", "y", body=outer)],
        [port("x", ["n"]), *(port(name, [1], INT64) for name in ("begin", "end", "times")),
         port("rounds", [], INT64), port("trips", [], INT64)],
        [port("y", [None])],
        seed=floats(rng, 1),
    )  # fmt: skip
    return proto, [
        {"x": floats(rng, n)} | {
            name: np.array([v] if name in ("begin", "end", "times") else v)
            for name, v in zip(("begin", "end", "times", "rounds", "trips"), numbers, strict=True)
        }
        for n, numbers in ((4, (1, 3, 2, 2, 2)), (3, (-2, 9, 1, 1, 3)), (2, (0, 1, 3, 0, 1)))
    ]  # fmt: skip


@case
def numbers_of_a_branch_not_taken(rng: np.random.Generator) -> Case:
    """They may be negative: the branch that would make sizes of them does not run."""
    first = helper.make_graph([node("Expand", "x shape", "a")], "a", [], [port("a", None)])
    second = helper.make_graph([node("Neg", "x", "b")], "b", [], [port("b", None)])
    proto = model(
        [node("Size", "x", "n"), node("Greater", "n two", "c"),
         node("If", "c", "y", then_branch=first, else_branch=second)],
        [port("x", ["n", 1]), port("shape", [2], INT64)], [port("y", [None, None])],
        two=np.array(2),
    )  # fmt: skip
    return proto, [
        {"x": floats(rng, n, 1), "shape": np.array(shape)}
        for n, shape in ((3, [1, 4]), (2, [-1, -7]), (4, [4, 1]))
    ]


def _pads(mode: str) -> None:
    def make(rng: np.random.Generator) -> Case:
        proto = model(
            [node("Pad", "x pads", "y", mode=mode)],
            [port("x", ["n", "m"]), port("pads", [4], INT64)], [port("y", [None, None])],
        )  # fmt: skip
        proto.opset_import[0].version = 19
        return proto, [
            {"x": floats(rng, 4, 5), "pads": np.array(pads)}
            for pads in ([1, 2, 3, 0], [-1, 2, 1, -2], [0, -3, -2, 1], [0, 0, 0, 0])
        ]

    make.__name__ = f"pads_by_data_{mode}"
    case(make)


for _mode in ("edge", "reflect", "wrap"):
    _pads(_mode)
