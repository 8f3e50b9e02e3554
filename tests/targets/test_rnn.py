"""Recurrent layers: every sample, activation, direction; odd sizes, lengths, unused results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cuvilc.dialect import ir
from cuvilc.dialect.ops.rnn import ACTIVATIONS
from cuvilc.targets.schedules import rnn
from tests.dialect.ops.one_op import build
from tests.targets.kernel_harness import (
    V3,
    V4,
    Kernel,
    Launch,
    check,
    compare,
    program_of,
    random_feeds,
    tensor,
)
from tests.targets.samples import check_sample, on_chips, on_samples

GATES = {"ai.lstm": 4, "ai.gru": 3, "ai.rnn": 1}
on_layers = pytest.mark.parametrize("name", GATES)


@on_chips
@on_samples(lambda o: o.name in GATES)
def test_samples(name, case, chip):
    check_sample(name, case, chip, rnn.schedule)


def _types(name: str, hidden: int, inputs: Any, count: int = 1, dtype: str = "float32") -> list:
    """x, w, r and bias."""
    rows = GATES[name] * hidden
    weights = [f"{count},{rows},{n}" for n in (inputs, hidden)]
    shapes = (f"t,b,{inputs}", *weights, f"{count},{2 * rows}")
    return [tensor(s, dtype) for s in shapes]


@pytest.mark.parametrize(("hidden", "inputs"), [(1, 1), (7, 5), (16, 33), (37, 16), (50, 0)])
@on_chips
@on_layers
def test_sizes(name, hidden, inputs, chip):
    types = _types(name, hidden, inputs)
    program = program_of(types, lambda *a: ir.build(name, *a, hidden=hidden))
    sizes = [{"t": t, "b": b} for t, b in ((1, 1), (0, 2), (3, 0), (4, 1), (5, 2), (9, 3))]
    check(program, chip, rnn.schedule, sizes)


@on_layers
def test_symbolic_input_size(name):
    types = _types(name, 6, "i")
    program = program_of(types, lambda *a: ir.build(name, *a, hidden=6))
    check(program, V4, rnn.schedule, [{"t": 5, "b": 2, "i": i} for i in (1, 16, 37)])


@pytest.mark.parametrize("lengths", [(5, 0, -1), (9, 3, 4)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@on_layers
def test_lengths_and_directions(name, direction, lengths):
    count = 2 if direction == "bidirectional" else 1
    state = tensor(f"{count},3,18")
    types = [*_types(name, 18, 11, count), tensor("3", "int32"), state]
    attrs: dict[str, Any] = {"hidden": 18, "direction": direction}
    given = {"ai.lstm": ("Sigmoid", "Tanh", "Tanh"), "ai.gru": ("Sigmoid", "Tanh")}
    attrs["activations"] = given.get(name, ("Tanh",)) * count
    if name == "ai.lstm":
        types += [state, tensor(f"{count},54")]
    types = [t.with_(shape=tuple({"t": 9, "b": 3}.get(str(d), d) for d in t.shape)) for t in types]
    rng = np.random.default_rng(0)
    feeds = {f"x{n}": rng.uniform(-1, 1, t.shape).astype(t.dtype) for n, t in enumerate(types)}
    feeds["x4"] = np.array(lengths, np.int32)
    compare(build(name, types, attrs), feeds, V3 if count == 2 else V4, rnn.schedule)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation):
    other = "Tanh" if activation == "Sigmoid" else "Sigmoid"
    attrs = {
        "hidden": 21, "direction": "bidirectional", "activations": (activation, other),
        "alphas": (0.75, None), "betas": (0.5,), "clip": 0.9,
    }  # fmt: skip
    program = program_of(_types("ai.rnn", 21, 8, 2), lambda *a: ir.build("ai.rnn", *a, **attrs))
    check(program, V4, rnn.schedule, [{"t": 6, "b": 2}])


@pytest.mark.parametrize("linear_before_reset", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@on_chips
def test_gru_reset(linear_before_reset, biased, chip):
    types = _types("ai.gru", 19, 12)[: 4 if biased else 3]
    attrs = {"hidden": 19, "linear_before_reset": linear_before_reset}
    program = program_of(types, lambda *a: ir.build("ai.gru", *a, **attrs))
    check(program, chip, rnn.schedule, [{"t": 6, "b": 2}])


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@on_layers
def test_dtypes(name, dtype):
    types = _types(name, 20, 9, 1, dtype)
    program = program_of(types, lambda *a: ir.build(name, *a, hidden=20))
    check(program, V4, rnn.schedule, [{"t": 5, "b": 2}])


@pytest.mark.parametrize("kept", [(0,), (1,), (2,), (2, 0)])
def test_unused_results(kept):
    def body(*a):
        made = ir.build("ai.lstm", *a, hidden=9)
        return tuple(made[n] for n in kept)

    check(program_of(_types("ai.lstm", 9, 4), body), V3, rnn.schedule, [{"t": 5, "b": 2}])


@on_chips
def test_input_forget(chip):
    types = _types("ai.lstm", 17, 6)
    program = program_of(types, lambda *a: ir.build("ai.lstm", *a, hidden=17, input_forget=True))
    check(program, chip, rnn.schedule, [{"t": 5, "b": 2}])


def _static(types: list, **sizes: int) -> list:
    return [t.with_(shape=tuple(sizes.get(str(d), d) for d in t.shape)) for t in types]


@pytest.mark.parametrize(
    ("batch", "hidden", "inputs"), [(2, 1, 1), (3, 7, 5), (8, 16, 33), (9, 37, 16), (17, 50, 3)]
)
@on_chips
@on_layers
def test_rows_of_a_batch_together(name, batch, hidden, inputs, chip):
    types = _static(_types(name, hidden, inputs), t=8, b=batch)
    program = program_of(types, lambda *a: ir.build(name, *a, hidden=hidden))
    compiled = check(program, chip, rnn.schedule)
    assert compiled.scheduled.facts.tasks == -(-batch // 8) + (batch == 8)


@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@on_layers
def test_rows_together_with_states(name, direction, dtype):
    count = 2 if direction == "bidirectional" else 1
    states = [tensor(f"{count},5,18", dtype)] * (2 if name == "ai.lstm" else 1)
    if name == "ai.lstm":
        states.append(tensor(f"{count},54", dtype))
    given = {"ai.lstm": ("Sigmoid", "Tanh", "Tanh"), "ai.gru": ("Sigmoid", "Tanh")}
    attrs: dict[str, Any] = {"hidden": 18, "direction": direction}
    attrs["activations"] = given.get(name, ("Tanh",)) * count

    def body(x: Any, w: Any, r: Any, bias: Any, *starts: Any) -> Any:
        return ir.build(name, x, w, r, bias, ir.full(-1, (5,), "int32"), *starts, **attrs)

    types = _static([*_types(name, 18, 11, count, dtype), *states], t=9, b=5)
    compiled = check(program_of(types, body), V4, rnn.schedule)
    assert compiled.scheduled.facts.tasks == count


@pytest.mark.parametrize("linear_before_reset", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@on_chips
def test_gru_reset_of_rows_together(linear_before_reset, biased, chip):
    types = _static(_types("ai.gru", 19, 12)[: 4 if biased else 3], t=6, b=5)
    attrs = {"hidden": 19, "linear_before_reset": linear_before_reset}
    program = program_of(types, lambda *a: ir.build("ai.gru", *a, **attrs))
    check(program, chip, rnn.schedule)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@on_chips
@on_layers
def test_open_batches_go_together_where_there_are_enough(name, direction, chip):
    count = 2 if direction == "bidirectional" else 1
    given = {"ai.lstm": ("Sigmoid", "Tanh", "Tanh"), "ai.gru": ("Sigmoid", "Tanh")}
    attrs: dict[str, Any] = {"hidden": 18, "direction": direction}
    attrs["activations"] = given.get(name, ("Tanh",)) * count
    types = _types(name, 18, 11, count)
    program = program_of(types, lambda *a: ir.build(name, *a, **attrs))
    sizes = [{"t": t, "b": b} for t, b in ((5, 1), (5, 3), (3, 4), (4, 4), (0, 9), (5, 9))]
    check(program, chip, rnn.schedule, sizes)


def test_work_of_an_open_batch_lies_evenly_among_the_tasks():
    program = program_of(_types("ai.lstm", 18, 11), lambda *a: ir.build("ai.lstm", *a, hidden=18))
    launch = Launch(Kernel(program, V4, rnn.schedule), random_feeds(program, {"t": 5, "b": 16}))
    launch(0, launch.tasks // 2)
    done = ~np.isnan(launch.results()[0]).any(axis=(0, 1, 3))
    assert done.tolist() == [True] * 8 + [False] * 8


def test_rows_with_lengths_stay_apart():
    types = _static([*_types("ai.gru", 18, 11), tensor("b", "int32")], t=9, b=5)
    program = program_of(types, lambda *a: ir.build("ai.gru", *a, hidden=18))
    assert check(program, V4, rnn.schedule).scheduled.facts.tasks == 5
