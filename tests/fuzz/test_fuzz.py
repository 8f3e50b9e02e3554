"""A minute of hostile models; `make fuzz` takes an hour. Seeds are fixed, so is what they make."""

from __future__ import annotations

import time
from collections.abc import Iterator

import onnx
import pytest

from tests.fuzz.bombs import BOMBS
from tests.fuzz.child import Child
from tests.fuzz.run import model_bytes, try_bomb, try_seed

SECONDS = 40  # on a machine that does nothing else; the seeds of that time come first
SEEDS = 1500
# Seeds whose models once ended as none may, each of its own kind.
FOUND = (
    248, 445, 464, 752, 909, 957, 4933, 6335, 6639, 10376, 11223, 14263, 15296, 16326, 16914, 22986,
    52154, 53743,
)  # fmt: skip


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child()
    yield child
    child.close()


@pytest.mark.parametrize("name", sorted(BOMBS))
def test_small_files_that_ask_for_much(child: Child, name: str) -> None:
    finding = try_bomb(child, name)
    assert finding is None, f"{finding.kind}: {finding.path}\n{finding.details}"


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_once(child: Child, seed: int) -> None:
    finding = try_seed(child, seed)
    assert finding is None, f"{finding.kind}: {finding.path}\n{finding.details}"


def test_mutated_models(child: Child) -> None:
    end = time.monotonic() + SECONDS
    for seed in range(SEEDS):
        finding = try_seed(child, seed)
        assert finding is None, f"{finding.kind}: {finding.path}\n{finding.details}"
        if time.monotonic() > end:
            break
    assert seed >= 20, "too slow to have tried anything"


def test_a_seed_makes_one_model() -> None:
    assert model_bytes(7) == model_bytes(7) != model_bytes(8)


def test_mutations_leave_some_models_whole() -> None:
    """Else the fuzzer would only try the parser."""
    whole = 0
    for seed in range(60):
        try:
            whole += onnx.ModelProto.FromString(model_bytes(seed)).HasField("graph")
        except Exception:  # which of protobuf's errors does not matter
            continue
    assert whole > 30


def test_a_crash_is_a_finding(child: Child) -> None:
    child._start().kill()
    finding = try_bomb(child, "nested_types")
    assert finding is not None and finding.kind == "crash"
    assert try_bomb(child, "nested_types") is None
