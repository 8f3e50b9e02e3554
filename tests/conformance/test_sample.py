"""A fixed tenth of the small cases and all that ever failed; `make conformance` runs all."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from zlib import crc32

import pytest

from cuvilc.targets.target import target_names
from tests.conformance.__main__ import EVER_FAILED
from tests.conformance.cases import all_cases
from tests.conformance.report import report
from tests.conformance.worker import RIVAL, Worker

PART = 10
PAGE = Path(__file__).parents[2] / "docs" / "conformance.md"
REFUSED = PAGE.read_text().partition("## Refused")[2]  # what may be refused, and nothing else
KNOWN = getattr(import_module("tests.import.test_onnx_cases"), "DIFFERENT", frozenset())


def names() -> list[str]:
    """By the names' checksums: the sample stays the same when onnx adds cases."""
    cases = all_cases()
    ever_failed = set(EVER_FAILED.read_text().split()) & cases.keys()
    tenth = {n for n in cases if crc32(n.encode()) % PART == 0 and cases[n].category != "light"}
    return sorted((tenth | ever_failed) - KNOWN)


@pytest.fixture(scope="module", params=target_names())
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    worker = Worker(request.param)
    yield worker
    worker.close()


@pytest.mark.parametrize("name", names())
def test_case(worker: Worker, name: str) -> None:
    outcome = worker.run(name)
    if outcome["kind"] == "refused":
        assert f"`{name}`" in REFUSED, outcome["reason"]
        pytest.skip(outcome["reason"])
    assert outcome["kind"] == "passed", outcome["reason"]


def test_a_lost_worker_costs_one_case(worker: Worker) -> None:
    process = worker._start()
    assert not isinstance(process, str)
    process.kill()
    assert worker.run("test_add")["kind"] == "failed"
    assert worker.run("test_add")["kind"] == "passed"


def test_the_report_counts() -> None:
    results = [
        {"name": "test_add", "operator": "Add", "kind": "passed", "reason": ""},
        {"name": "test_erf", "operator": "Erf", "kind": "failed", "reason": "y: a|b"},
        {"name": "test_seq", "operator": "SplitToSequence", "kind": "refused", "reason": "no"},
    ]
    categories = ("node", "node", "simple")
    results = [{**r, "category": c} for r, c in zip(results, categories, strict=True)]
    page = report(results, "x86")
    assert "3 cases: 1 passed, 1 failed, 1 refused." in page
    assert "| node | 1 | 1 |  |" in page
    assert "| simple |  |  | 1 |" in page
    assert "| Erf |  | 1 |  |" in page
    assert "SplitToSequence" not in page  # operators are counted by their own cases
    assert "- y: a\\|b" in page


def test_the_report_sets_onnxruntime_beside() -> None:
    result = {"name": "test_add", "operator": "Add", "category": "node", "kind": "passed"}
    rival = {"test_add": {"kind": "refused", "reason": "no"}}
    page = report([{**result, "reason": ""}], "x86", rival, ["test_big"])
    assert "| Add | 1 |  |  |  |  | 1 |" in page
    assert "must be downloaded: `test_big`." in page


def test_onnxruntime_runs_cases_the_same_way() -> None:
    worker = Worker(RIVAL)
    try:
        for name in ("test_cast_FLOAT_to_INT4", "test_compress_bfloat16"):
            assert worker.run(name)["kind"] == "passed"
        assert worker.run("test_add")["kind"] == "passed"
    finally:
        worker.close()
