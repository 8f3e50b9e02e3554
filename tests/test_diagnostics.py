"""Every code has a page, and a test that raises it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from cuvilc import diagnostics
from cuvilc.cli_explain import all_codes
from cuvilc.diagnostics import CODES, CuvilError, Diagnostic, define, fail

ROOT = Path(__file__).parents[1]
CODE = re.compile(r"CUV[0-9]{3}")
STATUS = re.compile(r"CUVIL_ERROR_[A-Z]+ = ([0-9]{3})")

# No test raises these, and why. A code that gains a test must leave this list.
UNTESTED: dict[str, str] = {}


def sources() -> list[Path]:
    kinds = ("*.py", "*.c", "*.h", "*.hpp")
    folders = (ROOT / "cuvilc", ROOT / "runtime" / "cuvil", ROOT / "runtime" / "src")
    headers = [*(ROOT / "runtime" / "include").iterdir()]
    return headers + [p for f in folders for kind in kinds for p in f.rglob(kind)]


def test_every_code_in_the_sources_has_a_page() -> None:
    pages = all_codes()
    for path in sources():
        text = path.read_text("utf-8")
        used = set(CODE.findall(text)) | {f"CUV{n}" for n in STATUS.findall(text)}
        missing = used - set(pages)
        assert not missing, f"{path.relative_to(ROOT)} uses {sorted(missing)}"


def test_reading_the_sources_finds_what_importing_does() -> None:
    import cuvilc.api
    import cuvilc.driver
    import cuvilc.targets.emit_plan
    import cuvilc.targets.null  # noqa: F401

    pages = all_codes()
    for code, page in CODES.items():
        assert pages[code] == page


def test_pages_say_what_to_do() -> None:
    for code, page in all_codes().items():
        assert page.title[0].islower() or page.title.startswith(("--", "ONNX")), code
        assert not page.title.endswith("."), code
        assert page.help.endswith("\n"), code
        assert page.exit_code in (1, 2, 3), code
        assert max(map(len, page.help.splitlines())) <= 120, code
        assert "Next step" in page.help, code


def constants() -> dict[str, str]:
    """Names of codes: NO_COMPILER → CUV501."""
    names = {}
    for path in (ROOT / "cuvilc").rglob("*.py"):
        text = path.read_text("utf-8")
        if '"CUV' not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                first = next(iter(node.value.args), None)
                if isinstance(first, ast.Constant) and CODE.fullmatch(str(first.value)):
                    names[node.targets[0].id] = first.value  # type: ignore[attr-defined]
    return names


def test_every_code_is_raised_by_some_test() -> None:
    tested: set[str] = set()
    names = constants()
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "tests" / "goldens").glob("*.txt")]:
        if path == Path(__file__):
            continue
        text = path.read_text("utf-8")
        tested |= set(CODE.findall(text))
        tested |= {names[word] for word in set(re.findall(r"[A-Z_]{6,}", text)) if word in names}
    untested = set(all_codes()) - tested
    assert untested == set(UNTESTED)


def test_rendering() -> None:
    full = Diagnostic("CUV900", "fact", "file: node", "line 1\nline 2", ["one", "two"], "do this")
    assert full.render() == (
        "error[CUV900]: fact\n"
        "  --> file: node\n"
        "   |  line 1\n"
        "   |  line 2\n"
        "   = note: one\n"
        "   = note: two\n"
        "   = help: do this"
    )
    assert Diagnostic("CUV900", "fact").render().endswith("= help: see `cuvilc explain CUV900`")
    assert Diagnostic("CUV900", "fact").to_json() == {"code": "CUV900", "message": "fact"}


def test_an_error_of_several_has_the_gravest_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnostics, "CODES", {**CODES})
    monkeypatch.setitem(diagnostics.CODES, "CUV099", diagnostics.Code("a", "b", 1))
    error = CuvilError(Diagnostic("CUV099", "one"), Diagnostic("CUV900", "two"))
    assert error.exit_code == 3
    assert str(error).count("error[") == 2


def test_a_code_is_defined_once_and_raised_only_when_defined() -> None:
    with pytest.raises(ValueError, match="twice"):
        define("CUV900", "again", "")
    with pytest.raises(AssertionError):
        fail("CUV000", "never defined")
