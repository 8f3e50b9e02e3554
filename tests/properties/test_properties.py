"""Every operator on random models: a few here, many in `make fuzz`."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cuvilc.diagnostics import CuvilError
from tests.properties import check
from tests.properties.draws import Draw
from tests.properties.registry import operators

EXAMPLES = 5
COMPILED = 5  # of so many examples one is compiled, the others run in the interpreter


@pytest.mark.parametrize("name", sorted(operators()))
def test_operator(name: str) -> None:
    outcomes = run(name, EXAMPLES, derandomize=True)
    assert outcomes["agreed"], f"nothing to compare: {outcomes}"


def run(
    name: str, examples: int, derandomize: bool = False, compiled_of: int = COMPILED
) -> dict[str, int]:
    """Draw examples and compare each; how many agreed, how many no reference would run."""
    counts = {"agreed": 0, "no reference": 0}
    make = operators()[name]

    @settings(
        max_examples=examples, derandomize=derandomize, deadline=None, database=None,
        suppress_health_check=list(HealthCheck), print_blob=False,
    )  # fmt: skip
    @given(st.data())
    def one(data: st.DataObject) -> None:
        case = make(Draw(data))
        wanted = check.answers(case)
        compiled = sum(counts.values()) % compiled_of == 0
        try:
            found = (check.by_package if compiled else check.by_interpreter)(case)
        except CuvilError as error:
            reason = check.refused(error)
            assert not wanted, f"refused: {reason}"
            return
        if not wanted:
            counts["no reference"] += 1
            return
        wrong = check.different(case, found, wanted)
        assert not wrong, f"{'compiled' if compiled else 'interpreted'}: {wrong}"
        counts["agreed"] += 1

    one()
    return counts
