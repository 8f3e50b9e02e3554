"""A fixed tenth of the operator cases; `make conformance` runs all of them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from zlib import crc32

import pytest

from cuvilc.targets.target import target_names
from tests.conformance.cases import all_cases
from tests.conformance.report import report
from tests.conformance.worker import Worker

PART = 10
KNOWN = getattr(import_module("tests.import.test_onnx_cases"), "DIFFERENT", frozenset())


def names() -> list[str]:
    """By the names' checksums: the sample stays the same when onnx adds cases."""
    return sorted(n for n in all_cases() if crc32(n.encode()) % PART == 0 and n not in KNOWN)


@pytest.fixture(scope="module", params=target_names())
def worker(request: pytest.FixtureRequest) -> Iterator[Worker]:
    worker = Worker(request.param)
    yield worker
    worker.close()


@pytest.mark.parametrize("name", names())
def test_case(worker: Worker, name: str) -> None:
    outcome = worker.run(name)
    if outcome["kind"] == "refused":
        pytest.skip(outcome["reason"])
    assert outcome["kind"] == "passed", outcome["reason"]


def test_a_lost_worker_costs_one_case(worker: Worker) -> None:
    process = worker._start()
    assert not isinstance(process, str)
    process.kill()
    assert worker.run("test_add")["kind"] == "failed"
    assert worker.run("test_add")["kind"] == "passed"


def test_the_report_counts() -> None:
    page = report(
        [
            {"name": "test_add", "operator": "Add", "kind": "passed", "reason": ""},
            {"name": "test_erf", "operator": "Erf", "kind": "failed", "reason": "y: a|b"},
            {"name": "test_seq", "operator": "SplitToSequence", "kind": "refused", "reason": "no"},
        ],
        "x86",
    )
    assert "3 cases: 1 passed, 1 failed, 1 refused." in page
    assert "| Erf |  | 1 |  |" in page
    assert "- y: a\\|b" in page
