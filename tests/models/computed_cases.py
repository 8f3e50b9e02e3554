"""Small models whose sizes or rounds the data decides, each with several feeds in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Feeds = dict[str, np.ndarray]
Case = tuple[onnx.ModelProto, list[Feeds]]
CASES: dict[str, Callable[[np.random.Generator], Case]] = {}


def case(function: Callable[[np.random.Generator], Case]) -> Callable[[np.random.Generator], Case]:
    CASES[function.__name__] = function
    return function


def port(name: str, shape: Sequence[Any] | None, elem: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """Inputs and outputs by spaces; `_` is one that is left out."""
    names = ["" if i == "_" else i for i in inputs.split()]
    return helper.make_node(op, names, outputs.split(), f"{op}_{outputs}", **attributes)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    **weights: Any,
) -> onnx.ModelProto:
    stored = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "main", inputs, outputs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def body(
    nodes: list[onnx.NodeProto],
    carried: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    condition: str = "go",
) -> onnx.GraphProto:
    """A Loop's body over `i`, `go` and the carried values; `condition` is what it says next."""
    nodes = [*nodes, node("Identity", condition, "next")]
    inputs = [port("i", [], INT64), port("go", [], BOOL), *carried]
    return helper.make_graph(nodes, "body", inputs, [port("next", [], BOOL), *outputs])


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@case
def carried_and_rows(rng: np.random.Generator) -> Case:
    """A running sum, and its double of every round; the trip count is an input."""
    inner = body(
        [node("Add", "s x", "s2"), node("Add", "s2 s2", "row")],
        [port("s", [3])], [port("s2", [3]), port("row", [3])],
    )  # fmt: skip
    proto = model(
        [node("Loop", "trips _ s0", "sum rows", body=inner)],
        [port("x", [3]), port("s0", [3]), port("trips", [], INT64)],
        [port("sum", [3]), port("rows", [None, 3])],
    )
    return proto, [
        {"x": floats(rng, 3), "s0": floats(rng, 3), "trips": np.array(n)} for n in (4, 0, 9, 1)
    ]


@case
def known_trip_count(rng: np.random.Generator) -> Case:
    inner = body(
        [node("Mul", "s x", "s2"), node("Cast", "i", "f", to=FLOAT), node("Add", "s2 f", "row")],
        [port("s", [2])], [port("s2", [2]), port("row", [2])],
    )  # fmt: skip
    proto = model(
        [node("Loop", "five _ x", "product rows", body=inner), node("Neg", "rows", "y")],
        [port("x", [2])], [port("product", [2]), port("y", [5, 2])], five=np.array(5),
    )  # fmt: skip
    return proto, [{"x": floats(rng, 2)} for _ in range(2)]


@case
def until_a_condition(rng: np.random.Generator) -> Case:
    inner = body(
        [
            node("Mul", "s factor", "s2"),
            node("ReduceSum", "s2", "t", keepdims=0),
            node("Less", "t limit", "more"),
            node("Identity", "s2", "row"),
        ],
        [port("s", [3])],
        [port("s2", [3]), port("row", [3])],
        "more",
    )
    proto = model(
        [node("Loop", "_ start s0", "last rows", body=inner)],
        [port("s0", [3]), port("start", [], BOOL)],
        [port("last", [3]), port("rows", [None, 3])],
        factor=np.float32(1.5), limit=np.float32(10),
    )  # fmt: skip
    begin = np.array([0.5, 0.25, 0.125], np.float32)
    return proto, [
        {"s0": begin * k, "start": np.array(go)} for k, go in ((1, True), (9, True), (1, False))
    ]


@case
def value_that_grows(rng: np.random.Generator) -> Case:
    inner = body([node("Concat", "s x", "s2", axis=0)], [port("s", None)], [port("s2", None)])
    proto = model(
        [node("Loop", "trips _ x", "y", body=inner), node("Relu", "y", "z")],
        [port("x", ["n", 3]), port("trips", [], INT64)], [port("z", [None, 3])],
    )  # fmt: skip
    return proto, [
        {"x": floats(rng, n, 3), "trips": np.array(t)} for n, t in ((2, 3), (1, 0), (5, 40), (1, 2))
    ]


@case
def sizes_that_feed_each_other(rng: np.random.Generator) -> Case:
    """Fibonacci's lengths: each carried value takes the other's size in one round."""
    inner = body(
        [node("Identity", "b", "a2"), node("Concat", "a b", "b2", axis=0)],
        [port("a", None), port("b", None)], [port("a2", None), port("b2", None)],
    )  # fmt: skip
    proto = model(
        [node("Loop", "trips _ x y", "xf yf", body=inner)],
        [port("x", ["n"]), port("y", ["m"]), port("trips", [], INT64)],
        [port("xf", [None]), port("yf", [None])],
    )
    return proto, [
        {"x": floats(rng, n), "y": floats(rng, m), "trips": np.array(t)}
        for n, m, t in ((1, 2, 5), (3, 1, 0), (2, 2, 7))
    ]


@case
def values_that_swap(rng: np.random.Generator) -> Case:
    inner = body(
        [node("Identity", "b", "a2"), node("Add", "a b", "b2")],
        [port("a", [3]), port("b", [3])], [port("a2", [3]), port("b2", [3])],
    )  # fmt: skip
    proto = model(
        [node("Loop", "six _ x y", "xf yf", body=inner)],
        [port("x", [3]), port("y", [3])], [port("xf", [3]), port("yf", [3])], six=np.array(6),
    )  # fmt: skip
    return proto, [{"x": floats(rng, 3), "y": floats(rng, 3)}]


@case
def rows_by_the_counter(rng: np.random.Generator) -> Case:
    inner = body(
        [node("Gather", "x i", "r"), node("Add", "s r", "s2")], [port("s", [3])], [port("s2", [3])]
    )
    proto = model(
        [
            node("Shape", "x", "length", start=0, end=1),
            node("Squeeze", "length", "trips"),
            node("Loop", "trips _ s0", "sum", body=inner),
        ],
        [port("x", ["n", 3]), port("s0", [3])], [port("sum", [3])],
    )  # fmt: skip
    return proto, [{"x": floats(rng, n, 3), "s0": floats(rng, 3)} for n in (4, 1, 7)]


@case
def loops_within_loops(rng: np.random.Generator) -> Case:
    """The inner loop runs as often as the outer one's counter says, and reads the outermost x."""
    inner = helper.make_graph(
        [node("Add", "q x", "q2"), node("Identity", "go1", "next1")], "inner",
        [port("j", [], INT64), port("go1", [], BOOL), port("q", [3])],
        [port("next1", [], BOOL), port("q2", [3])],
    )  # fmt: skip
    outer = body(
        [node("Loop", "i _ s", "s2", body=inner), node("Mul", "s2 s2", "row")],
        [port("s", [3])], [port("s2", [3]), port("row", [3])],
    )  # fmt: skip
    proto = model(
        [node("Loop", "trips _ s0", "last rows", body=outer)],
        [port("x", [3]), port("s0", [3]), port("trips", [], INT64)],
        [port("last", [3]), port("rows", [None, 3])],
    )
    return proto, [
        {"x": floats(rng, 3), "s0": floats(rng, 3), "trips": np.array(n)} for n in (4, 0, 2)
    ]


@case
def condition_within_a_loop(rng: np.random.Generator) -> Case:
    """Each round doubles the length or cuts it: which one the data says."""
    longer = helper.make_graph(
        [node("Concat", "s s", "a", axis=0)], "longer", [], [port("a", None)]
    )
    shorter = helper.make_graph([node("Slice", "s one end", "b")], "shorter", [], [port("b", None)])
    inner = body(
        [
            node("ReduceSum", "s", "t", keepdims=0),
            node("Greater", "t zero", "positive"),
            node("If", "positive", "c", then_branch=longer, else_branch=shorter),
            node("Sub", "c step", "s2"),
        ],
        [port("s", None)],
        [port("s2", None)],
    )
    proto = model(
        [node("Loop", "trips _ x", "y", body=inner)],
        [port("x", ["n"]), port("trips", [], INT64)], [port("y", [None])],
        zero=np.float32(0), step=np.float32(0.5), one=np.array([1]), end=np.array([1 << 60]),
    )  # fmt: skip
    return proto, [
        {"x": floats(rng, n) + 0.8, "trips": np.array(t)} for n, t in ((3, 4), (6, 2), (2, 6))
    ]


@case
def branches_of_two_sizes(rng: np.random.Generator) -> Case:
    first = helper.make_graph([node("Concat", "x x", "a", axis=0)], "a", [], [port("a", None)])
    second = helper.make_graph([node("Neg", "x", "b")], "b", [], [port("b", None)])
    proto = model(
        [node("If", "c", "y", then_branch=first, else_branch=second), node("Mul", "y y", "z")],
        [port("x", ["n", 3]), port("c", [], BOOL)], [port("z", [None, 3])],
    )  # fmt: skip
    return proto, [{"x": floats(rng, 2, 3), "c": np.array(c)} for c in (True, False, True)]


@case
def sequence_of_rows(rng: np.random.Generator) -> Case:
    sequence = helper.make_tensor_sequence_value_info
    inner = body(
        [
            node("Gather", "x i", "r"),
            node("Mul", "r r", "r2"),
            node("SequenceInsert", "q r2", "q2"),
        ],
        [sequence("q", FLOAT, None)], [sequence("q2", FLOAT, None)],
    )  # fmt: skip
    proto = model(
        [
            node("SequenceEmpty", "", "q0", dtype=FLOAT),
            node("Shape", "x", "length", start=0, end=1),
            node("Squeeze", "length", "trips"),
            node("Loop", "trips _ q0", "all", body=inner),
            node("ConcatFromSequence", "all", "z", axis=1, new_axis=1),
            node("SequenceAt", "all minus", "last"),
        ],
        [port("x", ["n", 3])], [port("z", [3, None]), port("last", [3])], minus=np.array(-1),
    )  # fmt: skip
    return proto, [{"x": floats(rng, n, 3)} for n in (4, 1, 6)]


@case
def pieces_of_a_tensor(rng: np.random.Generator) -> Case:
    """A scripted `for piece in torch.split(x, 2)`: the last piece may be shorter."""
    inner = body(
        [
            node("SequenceAt", "pieces i", "piece"),
            node("Add", "piece piece", "twice"),
            node("Concat", "twice s", "s2", axis=0),
        ],
        [port("s", None)], [port("s2", None)],
    )  # fmt: skip
    proto = model(
        [
            node("SplitToSequence", "x two", "pieces", axis=0),
            node("SequenceLength", "pieces", "trips"),
            node("Slice", "x zero zero", "none"),
            node("Loop", "trips _ none", "y", body=inner),
            node("ConcatFromSequence", "pieces", "whole", axis=0),
            node("SplitToSequence", "x", "rows", axis=1, keepdims=0),
            node("ConcatFromSequence", "rows", "columns", axis=0, new_axis=1),
        ],
        [port("x", ["n", 3])], [port("y", [None, 3]), port("whole", [None, 3]),
         port("columns", [3, None])],
        two=np.array(2), zero=np.array([0]),
    )  # fmt: skip
    return proto, [{"x": floats(rng, n, 3)} for n in (5, 2, 1, 8)]


@case
def scan_backwards(rng: np.random.Generator) -> Case:
    inner = helper.make_graph(
        [node("Add", "s r", "s2"), node("Identity", "s2", "o")], "body",
        [port("s", [3]), port("r", [3])], [port("s2", [3]), port("o", [3])],
    )  # fmt: skip
    scan = node(
        "Scan", "s0 x", "last y", body=inner, num_scan_inputs=1, scan_input_directions=[1],
        scan_output_axes=[1],
    )  # fmt: skip
    ports = [port("s0", [3]), port("x", ["n", 3])]
    proto = model([scan], ports, [port("last", [3]), port("y", [3, None])])
    return proto, [{"s0": floats(rng, 3), "x": floats(rng, n, 3)} for n in (5, 1, 2)]


@case
def reshape_by_data(rng: np.random.Generator) -> Case:
    proto = model(
        [node("Reshape", "x shape", "y"), node("Relu", "y", "z")],
        [port("x", [4, 6]), port("shape", [3], INT64)], [port("z", [None, None, None])],
    )  # fmt: skip
    shapes = ([2, -1, 3], [0, 3, 2], [-1, 1, 1], [1, 24, 1])
    return proto, [{"x": floats(rng, 4, 6), "shape": np.array(s)} for s in shapes]


@case
def view_of_sizes_known_late(rng: np.random.Generator) -> Case:
    """The last operation is a view whose sizes are computed after what it looks at."""
    proto = model(
        [
            node("Range", "zero n one", "r"),
            node("Neg", "r", "m"),
            node("Add", "shape shape", "twice"),
            node("Reshape", "m twice", "y"),
        ],
        [port("n", [], INT64), port("shape", [2], INT64)], [port("y", [None, None], INT64)],
        zero=np.array(0), one=np.array(1),
    )  # fmt: skip
    return proto, [
        {"n": np.array(a * b * 4), "shape": np.array([a, b])} for a, b in ((2, 3), (1, 1), (5, 2))
    ]


@case
def slice_by_data(rng: np.random.Generator) -> Case:
    proto = model(
        [node("Slice", "x begin end", "y"), node("Relu", "y", "z")],
        [port("x", [4, "n"]), port("begin", [2], INT64), port("end", [2], INT64)],
        [port("z", [None, None])],
    )
    return proto, [
        {"x": floats(rng, 4, 6), "begin": np.array(b), "end": np.array(e)}
        for b, e in (
            ([1, -4], [2**62, -1]), ([0, 0], [4, 6]), ([3, 5], [1, 9]), ([-9, 1], [-1, 2**63 - 1])
        )
    ]  # fmt: skip


@case
def pad_by_data(rng: np.random.Generator) -> Case:
    proto = model(
        [node("Pad", "x pads", "y")],
        [port("x", [2, 3]), port("pads", [4], INT64)], [port("y", [None, None])],
    )  # fmt: skip
    return proto, [
        {"x": floats(rng, 2, 3), "pads": np.array(p)} for p in ([1, 0, 2, 3], [0, 0, 0, 0])
    ]


@case
def sizes_by_data(rng: np.random.Generator) -> Case:
    """Expand, Tile, ConstantOfShape and TopK by numbers that are inputs."""
    proto = model(
        [
            node("Expand", "x shape", "a"),
            node("Tile", "x repeats", "b"),
            node("ConstantOfShape", "shape", "c"),
            node("TopK", "w k", "d e"),
        ],
        [port("x", [3, 1]), port("shape", [3], INT64), port("repeats", [2], INT64),
         port("w", [2, 8]), port("k", [1], INT64)],
        [port("a", None), port("b", None), port("c", None), port("d", None),
         port("e", None, INT64)],
    )  # fmt: skip
    return proto, [
        {"x": floats(rng, 3, 1), "shape": np.array(s), "repeats": np.array(r),
         "w": floats(rng, 2, 8), "k": np.array([k])}
        for s, r, k in (([2, 1, 4], [2, 3], 3), ([1, 3, 1], [0, 2], 8), ([5, 3, 7], [1, 1], 0))
    ]  # fmt: skip


@case
def range_by_data(rng: np.random.Generator) -> Case:
    proto = model(
        [node("Range", "a b c", "y"), node("Range", "d e f", "z")],
        [*(port(n, []) for n in "abc"), *(port(n, [], INT64) for n in "def")],
        [port("y", [None]), port("z", [None], INT64)],
    )
    return proto, [
        dict(zip("abcdef", [*(np.array(v, np.float32) for v in p), *map(np.array, q)], strict=True))
        for p, q in (
            ((1, 4.25, 0.5), (3, 10, 3)), ((5, 1, -0.75), (4, -5, -2)), ((1, 0, 1), (0, 0, 1))
        )
    ]  # fmt: skip


@case
def non_zero(rng: np.random.Generator) -> Case:
    proto = model(
        [node("NonZero", "x", "y"), node("Transpose", "y", "z"), node("NonZero", "flat", "w")],
        [port("x", ["n", 4]), port("flat", ["m"], BOOL)],
        [port("z", [None, 2], INT64), port("w", [1, None], INT64)],
    )
    return proto, [
        {"x": (rng.random((n, 4)) > p).astype(np.float32), "flat": rng.random(n) > p}
        for n, p in ((3, 0.5), (1, 1.0), (9, 0.2), (5, 0.0))
    ]


@case
def compress(rng: np.random.Generator) -> Case:
    proto = model(
        [
            node("Compress", "x c", "y", axis=1), node("Compress", "x c", "z"),
            node("Relu", "y", "r"),
        ],
        [port("x", ["n", 4]), port("c", [3], BOOL)], [port("r", None), port("z", None)],
    )  # fmt: skip
    return proto, [
        {"x": floats(rng, n, 4), "c": np.array(c)}
        for n, c in ((3, [True, False, True]), (2, [False] * 3), (5, [True] * 3))
    ]


def _unique(rng: np.random.Generator, shape: list[Any], **attributes: Any) -> Case:
    names = "y first inverse counts"
    proto = model(
        [node("Unique", "x", names, **attributes)], [port("x", shape)],
        [port(n, None, INT64 if i else FLOAT) for i, n in enumerate(names.split())],
    )  # fmt: skip
    sizes = [[d if isinstance(d, int) else n for d in shape] for n in (9, 1, 30)]
    return proto, [{"x": rng.integers(0, 4, s).astype(np.float32)} for s in sizes]


@case
def unique_sorted(rng: np.random.Generator) -> Case:
    return _unique(rng, ["n"])


@case
def unique_as_they_come(rng: np.random.Generator) -> Case:
    return _unique(rng, ["n"], sorted=0)


@case
def unique_rows(rng: np.random.Generator) -> Case:
    return _unique(rng, ["n", 2], axis=0)


@case
def unique_columns_as_they_come(rng: np.random.Generator) -> Case:
    return _unique(rng, [2, "n"], axis=-1, sorted=0)


@case
def non_max_suppression(rng: np.random.Generator) -> Case:
    proto = model(
        [node("NonMaxSuppression", "boxes scores most overlap least", "y")],
        [port("boxes", [2, "n", 4]), port("scores", [2, 3, "n"])], [port("y", [None, 3], INT64)],
        most=np.array(7), overlap=np.float32(0.3), least=np.float32(0.4),
    )  # fmt: skip
    return proto, [
        {"boxes": rng.random((2, n, 4), np.float32), "scores": rng.random((2, 3, n), np.float32)}
        for n in (20, 1, 50)
    ]


@case
def boxes_of_a_detector(rng: np.random.Generator) -> Case:
    """What comes after the suppression in exported detectors: the boxes and scores that stayed."""
    proto = model(
        [
            node("NonMaxSuppression", "boxes scores most overlap least", "picked"),
            node("Slice", "picked two three one", "column"),
            node("Squeeze", "column one", "index"),
            node("Gather", "boxes index", "stayed", axis=1),
            node("Shape", "index", "count"),
            node("ReduceMax", "scores", "best", axes=[1], keepdims=0),
            node("Gather", "best index", "sure", axis=1),
        ],
        [port("boxes", [1, "n", 4]), port("scores", [1, 3, "n"])],
        [port("stayed", [1, None, 4]), port("count", [1], INT64), port("sure", [1, None])],
        most=np.array(5), overlap=np.float32(0.5), least=np.float32(0.25), two=np.array([2]),
        three=np.array([3]), one=np.array([1]),
    )  # fmt: skip
    proto.opset_import[0].version = 17  # ReduceMax with axes as an attribute
    return proto, [
        {"boxes": rng.random((1, n, 4), np.float32), "scores": rng.random((1, 3, n), np.float32)}
        for n in (20, 2)
    ]
