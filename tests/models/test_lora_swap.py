"""`--lora swap`: one package, PEFT's adapters exchanged in it; each gives what PEFT's merge gives,
and leaves nothing behind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cuvil
import numpy as np
import pytest

from cuvilc.driver import BuildRequest, build
from cuvilc.driver_cuvla import build_adapters
from tests.tolerances import mismatch

pytest.importorskip("peft")
pytest.importorskip("transformers")

from tests.models import lora_models
from tests.models.test_lora_fold import CASES


class Swapped:
    """A package with all adapters of a model's cases but the last; what each should give."""

    def __init__(self, name: str, folder: Path, dynamo: bool) -> None:
        self.name, self.folder = name, folder
        cases = [(c, o) for n, c, o in CASES if n == name]
        self.truth = lora_models.prepared(name, folder, dynamo, cases)
        # What a package is not told of: biases, and modules that are saved whole.
        self.later = next(c for c, o in reversed(cases) if not {"bias", "modules_to_save"} & set(o))
        self.inside = [case for case, _ in cases if case != self.later]
        self.package = folder / "swap.cuvil"
        self.report = build(
            BuildRequest(
                folder / "model.onnx",
                self.package,
                vectors=0,
                lora="swap",
                lora_modules=".*",
                adapters=[(folder / case, case) for case in self.inside],
            )
        )

    def run(self, model: Any) -> np.ndarray:
        found: np.ndarray = model.run({"x": lora_models.MODELS[self.name].input().numpy()})["y"]
        return found


@pytest.fixture(scope="module", params=list(lora_models.MODELS))
def swapped(request: pytest.FixtureRequest, exporter: bool, tmp_path_factory: Any) -> Swapped:
    name = request.param
    return Swapped(name, tmp_path_factory.mktemp(f"{name}-{exporter}"), exporter)


@pytest.mark.parametrize("threads", [1, 2])
def test_each_adapter_is_the_merged_model_and_leaves_no_trace(swapped: Swapped, threads) -> None:
    model = cuvil.load(swapped.package, threads=threads)
    plain = swapped.run(model)
    first: dict[str | None, np.ndarray] = {None: plain}
    rng = np.random.default_rng(threads)
    for _ in range(4 * len(swapped.inside) + 4):
        name = [None, *swapped.inside][rng.integers(len(swapped.inside) + 1)]
        model.use(name)
        found = swapped.run(model)
        if name is not None:
            assert not mismatch(found, swapped.truth[name].astype(np.float32)), name
        assert np.array_equal(found, first.setdefault(name, found)), name
        assert [a.name for a in model.adapters if a.active] == ([name] if name else [])
    model.close()


def test_an_adapter_built_for_the_package_later(swapped: Swapped, tmp_path: Path) -> None:
    name = swapped.later
    [(adapter, data)] = build_adapters(swapped.folder / name, name, swapped.package)
    assert adapter.name == name
    (tmp_path / "later.cuvla").write_bytes(data)
    model = cuvil.load(swapped.package)
    plain = swapped.run(model)
    model.load_adapter(tmp_path / "later.cuvla")
    model.use(name)
    found = swapped.run(model)
    assert not mismatch(found, swapped.truth[name].astype(np.float32))
    assert mismatch(found, plain)
    model.use(None)
    model.unload_adapter(name)
    assert np.array_equal(swapped.run(model), plain)
    assert [a.name for a in model.adapters] == swapped.inside
    model.close()
