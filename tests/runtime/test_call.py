"""Calling a model from Python: results, shapes, checks, threads."""

from __future__ import annotations

import gc
import os
from types import SimpleNamespace

import cuvil
import fake_models
import numpy as np
import pytest
from threads import on_threads

from tests.tolerances import mismatch

# Each test with both ways into the library.
pytestmark = pytest.mark.usefixtures("way")
RNG = np.random.default_rng(7)


def batch(size: int) -> np.ndarray:
    return RNG.standard_normal((size, fake_models.K)).astype(np.float32)


def refused(code: str, call, *args, **kwargs) -> cuvil.CuvilError:
    with pytest.raises(cuvil.CuvilError) as caught:
        call(*args, **kwargs)
    assert caught.value.code == code, caught.value
    return caught.value


def test_sizes_that_the_model_cannot_take(load):
    """Those that no run can have are refused when shapes are bound, others in their branch."""
    model = load(fake_models.demanding())
    ones, yes, no = np.ones, np.array(True), np.array(False)
    for n, flag in ((3, no), (2, yes), (4, yes)):
        assert model(flag, ones(n, np.float32)).shape == (n,)
    error = refused("CUV606", model, no, ones(5, np.float32))
    assert "layer `/Slice`: n must be below 5, for n = 5" in str(error)
    error = refused("CUV606", model, yes, ones(3, np.float32))
    assert "layer `/If/then`: n must be even, for n = 3" in str(error)
    assert model(no, ones(3, np.float32)).sum() == 3
    events = model.trace({"flag": yes, "x": ones(2, np.float32)})
    assert [e.layer for e in events] == ["/If", "/Copy"]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_batch_size_is_right(load, threads):
    model = load(fake_models.mlp(), threads=threads)
    for size in [1, 2, 7, 64, 3, 64, 1]:
        x = batch(size)
        y, shape = model(x)
        assert not mismatch(y, fake_models.mlp_reference(x))
        assert shape.tolist() == [size, fake_models.N]


def test_thread_count_does_not_change_a_bit(load):
    one, four = load(fake_models.mlp(), threads=1), load(fake_models.mlp(), threads=4)
    x = batch(64)
    assert all(np.array_equal(one(x).y, four(x).y) for _ in range(50))


def test_cheap_steps_stay_on_one_thread(load):
    events = load(fake_models.mlp(cost=1000), threads=4).trace({"x": batch(8)})
    assert {event.threads for event in events} == {1}


def test_ports_and_repr(load):
    model = load(fake_models.mlp())
    (x,) = model.inputs
    assert (x.name, x.dtype, x.dims) == ("x", np.dtype("float32"), ("batch", fake_models.K))
    assert x.ranges == ((1, 64), (fake_models.K, fake_models.K))
    assert repr(x) == "x: float32[batch=1..64, 5]"
    assert [port.name for port in model.outputs] == ["y", "shape"]
    assert model.level == "base"
    assert model.metadata["model"]["name"] == "fake"
    assert "out y: float32[batch=1..64, 7]" in repr(model)


def test_dims_are_spelled_as_expressions(load):
    model = load(fake_models.shapes())
    assert model.inputs[2].dims == ("(2*n) + 1",)
    assert model.outputs[0].dims == ("ceildiv(n, 4)", "max(n, 3)")
    assert model.inputs[2].ranges == ((0, None),)


@pytest.mark.parametrize(("n", "shape"), [(0, (0, 3)), (1, (1, 3)), (4, (1, 4)), (9, (3, 9))])
def test_shape_arithmetic(load, n, shape):
    a, c = np.zeros(n, np.int8), np.zeros(2 * n + 1, np.int8)
    assert load(fake_models.shapes())(a, a, c).shape == shape


def test_empty_batch(load):
    model = load(fake_models.mlp(lo=0), threads=2)
    y, shape = model(batch(0))
    assert y.shape == (0, fake_models.N)
    assert shape.tolist() == [0, fake_models.N]


def test_several_outputs_by_place_and_name(load):
    outputs = load(fake_models.mlp())(x=batch(2))
    assert outputs.names == ("y", "shape")
    with pytest.raises(KeyError, match="no output `z`; there are y, shape"):
        outputs["z"]
    assert outputs["y"] is outputs.y is outputs[0]
    with pytest.raises(AttributeError):
        _ = outputs.z


def test_outputs_are_independent_of_later_calls(load):
    model = load(fake_models.mlp())
    x = batch(3)
    first = model(x).y
    before = first.copy()
    model(batch(3))
    assert np.array_equal(first, before)


def test_strided_misaligned_and_read_only_inputs(load):
    model = load(fake_models.mlp())
    x = batch(6)
    expected = model(x).y
    wide = np.zeros((6, 2 * fake_models.K), np.float32)
    wide[:, ::2] = x
    raw = np.frombuffer(b"\0" + x.tobytes(), np.uint8)
    misaligned = np.ndarray(x.shape, np.float32, raw.data, offset=1)
    assert not misaligned.flags.aligned
    frozen = x.copy()
    frozen.flags.writeable = False
    for variant in (wide[:, ::2], np.asfortranarray(x), misaligned, frozen):
        assert np.array_equal(model(variant).y, expected)


class OnlyDlpack:
    """What a framework's tensor looks like to us."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_goes_in_and_out_without_a_copy(load):
    model = load(fake_models.mlp())
    x = batch(4)
    assert np.array_equal(model(OnlyDlpack(x)).y, model(x).y)
    assert np.shares_memory(model.inputs[0].array(OnlyDlpack(x)), x)
    y = model(x).y
    assert np.shares_memory(np.from_dlpack(y), y)


def test_dlpack_failure_names_the_input(load):
    class Device(OnlyDlpack):
        def __dlpack__(self, **options):
            raise BufferError("it lives on the GPU")

    error = refused("CUV604", load(fake_models.mlp()), Device(batch(1)))
    assert "`x`" in error.message
    assert "it lives on the GPU" in error.message


def test_array_protocol(load):
    model, x = load(fake_models.mlp()), batch(2)
    assert np.array_equal(model(memoryview_like(x)).y, model(x).y)


def memoryview_like(x: np.ndarray) -> object:
    return SimpleNamespace(__array_interface__=x.__array_interface__, keep=x)


def test_range_is_in_the_message(load):
    model = load(fake_models.mlp())
    error = refused("CUV606", model, batch(65))
    assert error.message == "input `x`: axis 0 is 65, allowed is 1..64 (symbol batch)"
    assert "input x: float32[batch=1..64, 5]" in error.place
    assert error.help == "build the package with a wider range: `--dim batch=1..65`"
    help = refused("CUV606", model, np.zeros((2, 4), "f4")).help
    assert help.startswith("5 is fixed in the package: give that size, or leave it open")
    assert "0, allowed is 1..64" in refused("CUV606", model, batch(0)).message
    open_end = load(fake_models.mlp(lo=2, hi=2**63 - 1))
    error = refused("CUV606", open_end, batch(1))
    assert "1, allowed is 2 or more (symbol batch)" in error.message
    assert error.help.endswith("`--dim batch=1..`")


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        (np.zeros((2, 5)), "CUV605", "input `x` is float64, the model declares float32"),
        (np.zeros((2, 5), ">f4"), "CUV605", "byte-swapped float32, the model declares float32"),
        (np.zeros((2, 4), "f4"), "CUV606", "input `x`: axis 1 is 4, must be 5"),
        (np.zeros(5, "f4"), "CUV606", "rank 1 (shape [5]), the model declares rank 2"),
        (np.zeros((1,) * 12, "f4"), "CUV606", "rank 12 (shape [..]), the model declares rank 2"),
        ([[1.0] * 5], "CUV604", "input `x` is of type list, not an array"),
    ],
)
def test_wrong_inputs(load, value, code, message):
    assert message in refused(code, load(fake_models.mlp()), value).message


def test_wrong_names(load):
    model, x = load(fake_models.mlp()), batch(1)
    assert "no input `X`; it has `x`" in refused("CUV604", model, X=x).message
    assert "input `x` is missing" in refused("CUV604", model).message
    assert "by place and by name" in refused("CUV604", model, x, x=x).message
    assert "2 inputs given, the model has 1" in refused("CUV604", model, x, x).message
    wrong = {"z": np.zeros(1)}
    assert (
        "no output `z`; it has `y`, `shape`"
        in refused("CUV604", model.run, {"x": x}, wrong).message
    )


@pytest.mark.parametrize("given", [[batch(1)], batch(1), batch(9), None, 3, "x", {"x"}, []])
def test_what_is_no_mapping(load, given):
    model = load(fake_models.mlp())
    message = refused("CUV604", model.run, given).message
    assert message.startswith('inputs come by name, {"x": array}, not as ')
    if given is not None:
        error = refused("CUV604", model.run, {"x": batch(1)}, given)
        assert error.message.startswith('outputs come by name, {"y": array}, not as ')


def test_a_mapping_that_fails_says_why(load):
    class Damaged(dict):
        def __getitem__(self, name):
            raise OSError("the file is damaged")

    with pytest.raises(OSError, match="damaged"):
        load(fake_models.mlp()).run(Damaged(x=batch(1)))


def test_inputs_must_agree(load):
    model = load(fake_models.shapes())
    a = np.zeros(4, np.int8)
    error = refused("CUV606", model, a, a[:3], np.zeros(9, np.int8))
    assert error.message == "input `b`: axis 0 is 3, but n is 4 (axis 0 of input `a`)"
    error = refused("CUV606", model, a, a, np.zeros(8, np.int8))
    assert error.message == "input `c`: axis 0 is 8, must be (2*n) + 1 = 9 here"
    assert model(a, a, np.zeros(9, np.int8)).shape == (1, 4)
    # The same symbol values as before, but one input differs: still refused.
    refused("CUV606", model, a, a[:2], np.zeros(9, np.int8))


def test_out_buffers(load):
    model, x = load(fake_models.mlp()), batch(3)
    y = np.empty((3, fake_models.N), np.float32)
    result = model.run({"x": x}, out={"y": y})
    assert result["y"] is y
    assert not mismatch(y, fake_models.mlp_reference(x))
    assert result["shape"].tolist() == [3, fake_models.N]


def test_wrong_out_buffers(load):
    model, x = load(fake_models.mlp()), batch(3)
    shape = (3, fake_models.N)

    def run(y):
        return model.run, {"x": x}, {"y": y}

    refused("CUV605", *run(np.empty(shape)))
    refused("CUV607", *run(np.empty((3, 2 * fake_models.N), "f4")[:, ::2]))
    refused("CUV604", *run([1.0]))
    frozen = np.empty(shape, "f4")
    frozen.flags.writeable = False
    refused("CUV607", *run(frozen))
    message = refused("CUV606", *run(np.empty((4, fake_models.N), "f4"))).message
    assert message == "output `y`: axis 0 of the given memory is 4, the result has 3"
    memory = np.zeros(100, np.float32)
    x = memory[: 3 * fake_models.K].reshape(3, fake_models.K)
    overlapping = memory[10 : 10 + 3 * fake_models.N].reshape(shape)
    assert "overlaps that of `x`" in refused("CUV610", *run(overlapping)).message


@pytest.mark.parametrize("threads", [1, 3])
def test_kernel_fault_names_kernel_and_layer(load, threads):
    model = load(fake_models.gather(cost=10**9), threads=threads)
    index = np.tile(np.arange(9), 20)
    assert np.array_equal(model(index), index * 10.0)
    index[100] = 9
    message = refused("CUV609", model, index).message
    assert "kernel `test_gather` of layer `/embed/Gather`" in message
    assert "index in the data lies outside its axis" in message
    index[100] = 8
    assert np.array_equal(model(index), index * 10.0)


def test_branch(load):
    model = load(fake_models.branch())
    a, b = np.arange(4, dtype=np.float32), -np.arange(4, dtype=np.float32)
    assert np.array_equal(model(np.array(True), a, b), a)
    assert np.array_equal(model(np.array(False), a, b), b)


@pytest.mark.parametrize("count", [0, 1, 10])
def test_loop(load, count):
    x, step = np.arange(4, dtype=np.float32), np.full(4, 2, np.float32)
    assert np.array_equal(load(fake_models.loop())(np.array(count), x, step), x + 2 * count)


def test_many_threads_call_one_model(load):
    model = load(fake_models.mlp(), threads=2)
    wrong = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            x = rng.standard_normal((rng.integers(1, 65), fake_models.K)).astype(np.float32)
            y, shape = model(x)
            if shape[0] != len(x) or mismatch(y, fake_models.mlp_reference(x)):
                wrong.append(len(x))

    on_threads(work)
    assert wrong == []
    assert 1 <= len(model._all) <= 6


def test_forked_child_runs_without_the_workers(load):
    model, x = load(fake_models.mlp(), threads=3), batch(16)
    expected = model(x).y
    child = os.fork()
    if child == 0:
        same = np.array_equal(model(x).y, expected)
        model.close()
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_trace_and_profile(load):
    model, feeds = load(fake_models.mlp(), threads=2), {"x": batch(64)}
    events = model.trace(feeds)
    assert [e.layer for e in events] == ["/fc/MatMul", "/fc/Add", "/Shape"]
    assert [e.step for e in events] == [0, 1, 2]
    assert all(e.begin_ns <= e.end_ns and 1 <= e.threads <= 2 for e in events)
    profile = model.profile(feeds, runs=3)
    assert sorted(row.step for row in profile) == [0, 1, 2]
    assert "test_matmul  /fc/MatMul" in str(profile)


def test_trace_counts_a_loop_once_per_turn(load):
    x = np.zeros(2, np.float32)
    feeds = {"count": np.array(3), "x": x, "step": x}
    model = load(fake_models.loop())
    assert [e.layer for e in model.trace(feeds)].count("/Loop/body") == 3
    assert len([row for row in model.profile(feeds) if row.layer == "/Loop/body"]) == 1


def test_closed_model(load):
    model = load(fake_models.mlp())
    model.close()
    model.close()
    assert "closed" in refused("CUV610", model, batch(1)).message


def test_closing_while_others_run(load):
    """A close is refused or final: every run before it answers, every one after it is refused."""

    def work(seed: int) -> None:
        for _ in range(40):
            try:
                outputs = model(x)
                assert np.array_equal(outputs.y, wanted)
                if seed < 2:
                    model.close()
            except cuvil.CuvilError as error:
                if error.message == "the model is closed":
                    return
                if error.message != "the model is closed while another thread runs it":
                    raise

    x = batch(3)
    wanted = load(fake_models.mlp(), threads=1)(x).y
    for _ in range(8):
        model = load(fake_models.mlp(), threads=1)
        on_threads(work)
        model.close()
        refused("CUV610", model, x)


class Forgetful(list):
    """What other threads empty whenever somebody has looked whether it is."""

    def __len__(self) -> int:
        return 1


def test_free_contexts_may_go_at_any_time(load):
    model = load(fake_models.mlp(), threads=1)
    model._free, context = Forgetful(), model._take()
    assert model(batch(2)).shape.tolist() == [2, fake_models.N]
    refused("CUV610", model.close)
    model._release(context)
    model.close()


def test_a_model_that_is_collected_with_its_caller_is_closed(make):
    """The finalizer of an object in one cycle with a model runs after the model's own."""

    class Caller:
        def __init__(self) -> None:
            self.model, self.itself = cuvil.load(make(fake_models.mlp()), threads=1), self

        def __del__(self) -> None:
            codes.append(refused("CUV610", self.model, batch(1)).message)

    codes: list[str] = []
    Caller()
    gc.collect()
    assert codes == ["the model is closed"]


def sized(op: str, number: int) -> fake_models.Image:
    """An arena of `n <op> number` bytes, or `number <op> n` for a division; y = x."""
    image = fake_models.Image()
    n = image.symbol("n", 0, 0)
    x = image.port(fake_models.INPUT, "x", "int8", [n])
    y = image.port(fake_models.OUTPUT, "y", "int8", [n])
    operands = (image.const(number), n) if op == "floordiv" else (n, image.const(number))
    image.arena_bytes = image.expr(op, *operands)
    image.step(fake_models.COPY, buffers=[x, y])
    return image


@pytest.mark.parametrize(
    ("op", "number", "n", "code", "message"),
    [
        ("mul", 2**62, 2, "CUV606", "the size `n*4611686018427387904` overflows 64 bits for n = 2"),
        ("floordiv", 100, 0, "CUV606", "the size `100//n` divides by zero for n = 0"),
        ("mul", 2**50, 8, "CUV608", "out of memory: these shapes need 9007199254740"),
    ],
)
def test_sizes_beyond_reason(load, op, number, n, code, message):
    model = load(sized(op, number), threads=1)
    assert message in refused(code, model, np.zeros(n, np.int8)).message
    small = np.ones(1 if op == "floordiv" else 0, np.int8)
    assert np.array_equal(model(small), small), "a refusal leaves the context usable"


def test_output_beyond_memory(load):
    image = fake_models.Image()
    n = image.symbol("n", 0, 0)
    image.arena_bytes = image.const(0)
    image.port(fake_models.INPUT, "x", "int8", [n])
    image.port(fake_models.OUTPUT, "y", "int8", [image.mul(n, image.const(2**50))])
    message = refused("CUV608", load(image, threads=1), np.zeros(4, np.int8)).message
    assert message == "no memory for output `y` of shape [4503599627370496]"


def test_output_of_sizes_that_no_array_has(load):
    """Without elements, so without bytes, and still more than NumPy takes."""
    port = load(fake_models.mlp(), threads=1).outputs[0]
    with pytest.raises(cuvil.CuvilError) as caught:
        port.empty((2**63 - 1, 0))
    assert caught.value.code == "CUV608"


def test_a_refused_size_leaves_no_trace(load):
    """Sizes of outputs are remembered between calls, but only those of inputs that were taken."""
    model = load(fake_models.mlp())
    small, large = batch(2), batch(9)
    for x in (small, small, large):
        assert model(x).y.shape[0] == len(x)
    refused("CUV606", model, batch(65))
    refused("CUV605", model, large.astype(np.float64))
    for x in (large, small, small):
        assert not mismatch(model(x).y, fake_models.mlp_reference(x))


def test_inputs_that_cannot_be_written(load):
    model, x = load(fake_models.mlp()), batch(3)
    x.flags.writeable = False
    assert not mismatch(model(x).y, fake_models.mlp_reference(x))
    view = np.frombuffer(x.tobytes(), np.float32).reshape(x.shape)
    assert not mismatch(model(view).y, fake_models.mlp_reference(x))
