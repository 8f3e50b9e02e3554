"""cuvil.compile and open_package."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import cuvil
import numpy as np
import pytest
from onnx import helper

from cuvilc import api
from cuvilc.diagnostics import CuvilError, internal_error
from cuvilc.driver import BuildRequest
from tests.tolerances import mismatch

from .helpers import dense
from .helpers import model as onnx_model

X = np.ones((2, 8), np.float32)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_compile_a_file_and_a_proto(model: Path, temporary: Path) -> None:
    a = cuvil.compile(str(model), cpu="x86-64-v3")
    b = cuvil.compile(dense(), X, threads=1, cpu="x86-64-v3")
    assert isinstance(a, cuvil.Model)
    np.testing.assert_array_equal(a.run({"x": X})["y"], b(X).y)
    assert [p.name for p in a.inputs] == ["x"]
    assert len(list(temporary.iterdir())) == 2
    del a, b
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_compile_for_the_interpreter(model: Path) -> None:
    loaded = cuvil.compile(model, {"x": X}, target="null")
    y, z = loaded(X)
    assert y.shape == (2, 20)
    assert z.shape == (2, 4, 5)
    assert "x: float32[batch, 8]" in repr(loaded.inputs[0])


def test_an_example_that_does_not_fit(model: Path, temporary: Path) -> None:
    for example in (X[:, :3], (X, X), {"y": X}):
        with pytest.raises(cuvil.CuvilError, match="CUV60"):
            cuvil.compile(model, example, target="null")
    assert list(temporary.iterdir()) == []


def test_inputs_of_the_interpreter_come_by_name(model: Path) -> None:
    with pytest.raises(CuvilError, match="CUV604.*by name, not as list"):
        cuvil.compile(model, target="null").run([X])


def test_what_is_wrong_with_the_model_is_a_cuvil_error(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_text("nonsense")
    with pytest.raises(cuvil.CuvilError) as caught:
        cuvil.compile(tmp_path / "bad.onnx")
    assert caught.value.code == "CUV101"
    with pytest.raises(cuvil.CuvilError, match="CUV112"):
        cuvil.compile("absent.onnx")


def test_torch_is_not_there_yet_and_that_is_said() -> None:
    def forward(x: object) -> object:
        return x

    with pytest.raises(cuvil.CuvilError) as caught:
        cuvil.compile(forward)
    assert caught.value.code == "CUV120"
    assert "torch.onnx.export" in caught.value.help
    for name in ("accelerate", "mlir"):
        with pytest.raises(AttributeError, match="Export to ONNX"):
            getattr(cuvil, name)


def test_unknown_options(model: Path) -> None:
    with pytest.raises(TypeError, match="no option `speed`"):
        cuvil.compile(model, speed=9)


def test_options_of_the_command_line(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[BuildRequest] = []

    def keep(request: BuildRequest) -> None:
        requests.append(request)
        raise KeyError("stop")

    monkeypatch.setattr(api, "build", keep)
    given = {"prefer": "size", "math": "exact", "shapes": {"x": [None, 8]}}
    for adapters, names in (
        ("./sql-lora", [("sql-lora", "")]),
        (Path("sql-lora"), [("sql-lora", "")]),
        (["a", ("b", "c"), (Path("d"), "e")], [("a", ""), ("b", "c"), ("d", "e")]),
    ):
        with pytest.raises(KeyError):
            cuvil.compile(model, adapters=adapters, **given)
        request = requests.pop()
        assert [(str(path), name) for path, name in request.adapters] == names
        assert (request.prefer, request.math, request.shapes) == ("size", "exact", {"x": (None, 8)})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shapes": {"x": "2,8"}}, r"shapes\['x'\] is '2,8'; give its sizes, \(1, 3, 224, 224\)"),
        ({"shapes": "x=2,8"}, "shapes is 'x=2,8'; give a dict by name"),
        ({"dims": [("batch", 2)]}, "give a dict by name"),
        ({"adapters": [3]}, r"an adapter is 3; give a path, or \(path, name\)"),
    ],
)
def test_options_of_another_form(model: Path, given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        cuvil.compile(model, target="null", **given)


def test_options_that_build_knows_not(model: Path) -> None:
    for given in ({"prefer": "both"}, {"math": "vague"}):
        with pytest.raises(cuvil.CuvilError, match="both|vague"):
            cuvil.compile(model, **given)


def test_the_names_of_the_package() -> None:
    assert {"load", "Model", "compile"} <= set(dir(cuvil))
    assert not {"accelerate", "import_module", "Any"} & set(dir(cuvil))
    for name in dir(cuvil):
        getattr(cuvil, name)


def test_cuvil_refuses_interpreted_packages(built: Path) -> None:
    with pytest.raises(cuvil.CuvilError, match="CUV624"):
        cuvil.load(built / "null.cuvil")


def test_open_package_opens_both(built: Path) -> None:
    from cuvilc.api import open_package

    results = []
    for name in ("net.cuvil", "null.cuvil"):
        model = open_package(built / name)
        results.append(model.run({"x": X}))
        assert [e.kernel for e in model.trace({"x": X})]
        assert model.metadata["model"]["name"] == "net"
        model.close()
    for a, b in zip(results[0].values(), results[1].values(), strict=True):
        assert not mismatch(a, b)


def test_dims_and_elements(model: Path, tmp_path: Path) -> None:
    assert cuvil.compile(model, target="null", dims={"batch": 4})(np.ones((4, 8), np.float32))
    with pytest.raises(cuvil.CuvilError, match="CUV606"):
        cuvil.compile(model, X, target="null", dims={"batch": (4, None)})
    for wrong in ("4", (1, 2, 3), (1, "x"), None):
        with pytest.raises(TypeError, match=r"dims\['batch'\]"):
            cuvil.compile(model, target="null", dims={"batch": wrong})
    with pytest.raises(cuvil.CuvilError, match="no sequence"):
        cuvil.compile(model, target="null", elements={"x": 2})


def test_every_error_of_the_compiler_is_told_whole(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Fandango", ["x"], ["y"], domain="music"),
        helper.make_node("Bolero", ["y"], ["z"], domain="music"),
    ]
    proto = onnx_model(nodes, {"x": [1, 2]}, ["z"])
    proto.opset_import.append(helper.make_opsetid("music", 1))
    with pytest.raises(cuvil.CuvilError) as caught:
        cuvil.compile(proto)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"error[CUV104]: {caught.value.message}"
    assert lines[1].startswith("  --> ")
    assert "   |  %z = Bolero(%y)" in lines


def test_the_report_of_an_internal_error_stays(
    model: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(request: BuildRequest) -> None:
        raise internal_error(KeyError("n1"), request.output.with_suffix(".crash.txt"), {})

    monkeypatch.setattr(api, "build", breaks)
    with pytest.raises(cuvil.CuvilError, match="CUV900"):
        cuvil.compile(model)
    assert len(list(temporary.glob("*/*.crash.txt"))) == 1
