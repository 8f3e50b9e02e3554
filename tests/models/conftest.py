"""What several tests of models ask for."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", params=[True, False], ids=["dynamo", "torchscript"])
def exporter(request: pytest.FixtureRequest) -> bool:
    """Whether torch's dynamo exporter makes the model, or the TorchScript one."""
    return bool(request.param)
