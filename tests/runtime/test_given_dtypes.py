"""Inputs of other dtypes than NumPy has, or than the model declares."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import fake_models
import numpy as np
import pytest
from fake_package import DTYPES
from test_call import OnlyDlpack, refused

# Each test with both ways into the library.
pytestmark = pytest.mark.usefixtures("way")


class TorchTensor(OnlyDlpack):
    __module__ = "torch"


def test_bfloat16_has_the_dtype_of_ml_dtypes_or_raw_bits(load):
    image = fake_models.Image()
    image.arena_bytes = image.const(0)
    dims = [image.const(3)]
    x = image.port(fake_models.INPUT, "x", "bfloat16", dims)
    y = image.port(fake_models.OUTPUT, "y", "bfloat16", dims)
    image.step(fake_models.COPY, buffers=[x, y])
    model = load(image)
    bits = np.array([0x3F80, 0x4000, 0xC000], np.uint16)
    assert np.array_equal(model(bits).view(np.uint16), bits)
    assert model.outputs[0].dtype.itemsize == 2
    assert np.array_equal(model(bits.view(model.inputs[0].dtype)).view(np.uint16), bits)
    error = refused("CUV605", model, bits.astype("f4"))
    assert "declares bfloat16" in error.message
    assert "x.astype(ml_dtypes.bfloat16)` converts" in error.help
    assert "its bits as uint16" in error.help
    help = refused("CUV605", model, TorchTensor(bits.astype("f4"))).help
    assert help == "`x.to(torch.bfloat16).view(torch.uint16)` converts"
    assert refused("CUV604", model, [1.0]).help == "np.asarray(value, ml_dtypes.bfloat16)"


@pytest.mark.parametrize(
    ("dtype", "numpy", "torch"),
    [("int64", "np.int64", "int64"), ("bool", "np.bool_", "bool"), ("int4", "np.int8", "int8")],
)
def test_another_dtype_and_how_to_convert_it(load, dtype, numpy, torch):
    image = fake_models.Image()
    image.arena_bytes = image.const(0)
    x = image.port(fake_models.INPUT, "x", dtype, [image.const(3)])
    y = image.port(fake_models.OUTPUT, "y", dtype, [image.const(3)])
    image.step(fake_models.COPY, buffers=[x, y])
    model, given = load(image), np.ones(3, "f4")
    assert refused("CUV605", model, given).help == f"`x.astype({numpy})` converts"
    help = refused("CUV605", model, TorchTensor(given)).help
    assert help == f"`x.to(torch.{torch})` converts"
    assert model(given.astype(eval(numpy, {"np": np}))).size == 3


NARROW = DTYPES[DTYPES.index("bool") + 1 :]


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_ports_have_the_dtype_of_ml_dtypes_or_raw_bytes(dtype, installed, load, monkeypatch):
    if not installed:
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)  # its import fails
    image = fake_models.Image()
    image.arena_bytes = image.const(0)
    x, y = (
        image.port(kind, name, dtype, [image.const(4)])
        for kind, name in ((fake_models.INPUT, "x"), (fake_models.OUTPUT, "y"))
    )
    image.step(fake_models.COPY, buffers=[x, y])
    model = load(image)
    port = model.inputs[0]
    signed = dtype in ("int4", "int2")
    plain = np.dtype("int8" if signed else "uint8")
    assert port.dtype.name == (dtype if installed else plain.name)
    assert repr(port) == f"x: {dtype}[4]"
    values = np.array([0, 1, -1 if signed else 2, 1], plain)
    for given in (values, values.view(port.dtype)):
        assert np.array_equal(model(given).view(plain), values)
    assert np.array_equal(model(values.view(np.uint8)).view(plain), values)
    assert f"declares {dtype}" in refused("CUV605", model, values.astype("f4")).message
    assert f"declares {dtype}" in refused("CUV605", model, values.astype("i2")).message
    unknown = SimpleNamespace(__dlpack__=lambda **_: None)  # as of a dtype that NumPy has not
    assert f"`x.view(torch.{plain.name})`" in refused("CUV604", model, unknown).help
