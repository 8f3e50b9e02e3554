"""Metadata: its schema, what older and newer readers make of it, and packages that were tampered
with.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped, unused-ignore]

from cuvilc.artifact import (
    SCHEMA_VERSION,
    canonical,
    input_symbols,
    read_package,
    schema,
    validate,
)
from cuvilc.diagnostics import CODES, CuvilError
from cuvilc.package.write import write_package

from .helpers import (
    pick_metadata,
    scale_metadata,
    scale_object,
    scale_plan,
    scale_vectors,
    scale_weights,
    stub_runtime,
)

FIXTURES = sorted((Path(__file__).parents[1] / "fixtures" / "metadata").glob("*.json"))
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packages") / "scale.cuvil"
    write_package(
        scale_plan(), [scale_object()], scale_weights(), scale_metadata(), path,
        runtime=stub_runtime(), vectors=scale_vectors(),
    )  # fmt: skip
    return path


@pytest.fixture
def package(built: Path, tmp_path: Path) -> Path:
    """A package to spoil."""
    path = tmp_path / "scale.cuvil"
    path.mkdir()
    for file in built.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def test_the_schema_is_a_schema_and_describes_what_is_written(built: Path) -> None:
    Draft202012Validator.check_schema(schema())
    metadata = json.loads((built / "metadata.json").read_bytes())
    validate(metadata)
    assert metadata["schema_version"] == SCHEMA_VERSION
    assert set(schema()["properties"]) >= set(metadata), "every field that is written is described"


@pytest.mark.parametrize("fixture", FIXTURES, ids=[p.stem for p in FIXTURES])
def test_old_metadata_still_loads(fixture: Path) -> None:
    validate(json.loads(fixture.read_bytes()))


def test_there_are_fixtures() -> None:
    days = {"1.0": "29", "1.1": "29", "1.2": "29", "1.3": "30", "1.4": "30", "1.5": "30"}
    assert {f"2026-11-{d}-v{v}" for v, d in days.items()} <= {p.stem for p in FIXTURES}


def test_computed_symbols_are_marked() -> None:
    metadata = pick_metadata()
    assert metadata["symbols"] == [
        {"name": "n", "lo": 0, "hi": None, "input": 0, "axis": 0},
        {"name": "count", "lo": 0, "hi": 1000, "computed": True},
    ]
    assert [s["name"] for s in input_symbols(metadata)] == ["n"]
    assert metadata["outputs"][0]["dims"] == ["count"]
    assert metadata["memory"]["heap"] == [
        {"slot": 0, "offset": "8*n", "bytes": "8*count"},
        {"slot": 0, "offset": 0, "bytes": "8*n"},
    ]


@pytest.mark.parametrize("field", ["input", "axis", "computed"])
def test_a_symbol_is_read_or_computed(field: str) -> None:
    [fixture] = [p for p in FIXTURES if p.stem.endswith("v1.1")]
    metadata = json.loads(fixture.read_bytes())
    validate(metadata)
    for symbol in metadata["symbols"]:
        symbol.pop(field, None)
    with pytest.raises(CuvilError, match=r"CUV522"):
        validate(metadata)


@pytest.mark.parametrize(("field", "value"), [("others", 5), ("tied", {"e": "head"})])
def test_what_adapters_need_to_know_is_checked(field: str, value: Any) -> None:
    [fixture] = [p for p in FIXTURES if p.stem.endswith("v1.4")]
    metadata = json.loads(fixture.read_bytes())
    assert metadata["lora"]["others"] and metadata["lora"]["tied"]
    metadata["lora"][field] = value
    with pytest.raises(CuvilError, match=r"CUV522"):
        validate(metadata)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all keys in nested objects and lists."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [p for k, v in items for p in [(*path, k), *leaves(v, (*path, k))]]


OPTIONAL = [("model", "opset"), ("vectors",), ("files", "vectors.npz")]


def test_every_other_field_is_required(built: Path) -> None:
    metadata = json.loads((built / "metadata.json").read_bytes())
    free = ("opset", "code_bytes")
    for path in leaves(metadata):
        if isinstance(path[-1], int) or (path[:-1] and path[-2] in free):
            continue
        changed = copy.deepcopy(metadata)
        parent = changed
        for key in path[:-1]:
            parent = parent[key]
        del parent[path[-1]]
        if path in OPTIONAL:
            validate(changed)
        else:
            with pytest.raises(CuvilError, match=r"CUV522"):
                validate(changed)


def test_unknown_fields_of_a_newer_minor_version_are_ignored(package: Path) -> None:
    metadata = json.loads((package / "metadata.json").read_bytes())
    metadata |= {"schema_version": "1.99", "new": {"field": [1]}}
    metadata["target"]["also"] = None
    (package / "metadata.json").write_bytes(canonical(metadata))
    assert read_package(package, check=True).metadata["target"]["kind"] == "x86"


@pytest.mark.parametrize("version", ["2.0", "10.1", "999999999999.0"])
def test_a_newer_major_version_is_refused(package: Path, version: str) -> None:
    (package / "metadata.json").write_text(json.dumps({"schema_version": version}))
    with pytest.raises(CuvilError, match="CUV521.*newer than 1.x"):
        read_package(package)


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "[" * 100_000, "\xff\xfe"),
        *(f'{{"schema_version": {v}}}' for v in ("1", '"one"', '"1.0"')),
    ],
)
def test_metadata_that_is_none(package: Path, text: str) -> None:
    (package / "metadata.json").write_text(text, "latin-1")
    with pytest.raises(CuvilError, match="CUV522"):
        read_package(package)


def test_the_difference_to_the_schema_is_shown(package: Path) -> None:
    metadata = json.loads((package / "metadata.json").read_bytes())
    metadata["inputs"][0]["dims"] = [-1, 1.5]
    with pytest.raises(CuvilError, match=r"CUV522(.|\n)*\$\.inputs\[0\]\.dims\[0\]: -1"):
        validate(metadata)


def test_a_file_name_that_leads_outside(package: Path) -> None:
    metadata = json.loads((package / "metadata.json").read_bytes())
    metadata["files"]["../../etc/passwd"] = metadata["files"]["model.so"]
    (package / "metadata.json").write_bytes(canonical(metadata))
    with pytest.raises(CuvilError, match="CUV522.*not a plain file name"):
        read_package(package)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.so", "vectors.npz"])
def test_damage_is_found(package: Path, name: str) -> None:
    flip(package / name)
    read_package(package)
    with pytest.raises(CuvilError, match=rf"CUV523.*{name} has another SHA-256"):
        read_package(package, check=True)
    shorten(package / name)
    with pytest.raises(CuvilError, match=rf"CUV523.*{name} has \d+ bytes"):
        read_package(package)


def unlink_library(path: Path) -> None:
    (path / "model.so").unlink()


def unlink_metadata(path: Path) -> None:
    (path / "metadata.json").unlink()


def directory_for_library(path: Path) -> None:
    (path / "model.so").unlink()
    (path / "model.so").mkdir()


@pytest.mark.parametrize("spoil", [unlink_library, unlink_metadata, directory_for_library])
def test_a_directory_that_is_no_package(package: Path, spoil: Callable[[Path], None]) -> None:
    spoil(package)
    with pytest.raises(CuvilError, match="CUV520"):
        read_package(package)


def test_a_path_that_is_no_directory(built: Path) -> None:
    for path, fact in (
        (built / "model.so", "is not a directory"),
        (built / "none", "does not exist"),
    ):
        with pytest.raises(CuvilError, match=f"CUV520.*{fact}"):
            read_package(path)


def test_the_canonical_text() -> None:
    assert (
        canonical({"b": [1, 0.0001], "a": "é"})
        == '{\n  "a": "é",\n  "b": [\n    1,\n    0.0001\n  ]\n}\n'.encode()
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical({"a": float("nan")})


def test_every_code_has_a_page() -> None:
    for code in [f"CUV{n}" for n in (*range(501, 512), *range(520, 524))]:
        assert len(CODES[code].help) > 200
        assert max(map(len, CODES[code].help.splitlines())) <= 110


def test_reading_metadata_imports_nothing_heavy() -> None:
    script = (
        "import sys, cuvilc.artifact; print({'numpy', 'jsonschema', 'onnx'} & set(sys.modules))"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout
    assert output == "set()\n"
