"""The forms that fusion_gain.py compares, one class each, and the process that one is measured in.

A form is a package NAME.cuvil in the folder `gain` of a workload, built by fusion_gain.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # this folder's names must not hide others' (`kernels`)
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

from benchmarks.lora_peers import BatchOne, Package
from benchmarks.peers import serve

GAIN = "gain"


class Form(Package):
    """`options`: of `cuvilc build`. `model`: what is built: the base, or `separate.onnx`.

    `adapted`: whether the adapter a0 is given to the build.
    """

    options: ClassVar[tuple[str, ...]] = ()
    model: ClassVar[str] = "model.onnx"
    adapted: ClassVar[bool] = False

    def prepare(self, folder: Path) -> Path:
        return folder / GAIN / f"{self.package}.cuvil"


class SeparateUnfused(Form):
    """x·W + (x·A)·B in the graph: two products and a sum; no two operations share a kernel."""

    package, model, options = "separate-unfused", "separate.onnx", ("--no-fusion",)


class Separate(Form):
    """The same graph as it is usually built: what can share a kernel does."""

    package, model = "separate", "separate.onnx"


class Fused(Form, BatchOne):
    """The adapter's own kernels: x·A, then its expansion in the tile of the product."""

    package, options, adapted = "fused", ("--lora", "batch"), True


class Folded(Form):
    """The adapter in the weights."""

    package, options, adapted = "folded", ("--lora", "fold"), True


class OperationEach(Form):
    """A model whose every operation is a kernel of its own."""

    package, truth, options = "unfused", "ref.npz", ("--no-fusion",)


class AsBuilt(Form):
    """The model as it is usually built."""

    package, truth = "fused-kernels", "ref.npz"


ADAPTER_LEVEL = (SeparateUnfused, Separate, Fused, Folded)
KERNEL_LEVEL = (OperationEach, AsBuilt)
FORMS: dict[str, type[Form]] = {f.package: f for f in (*ADAPTER_LEVEL, *KERNEL_LEVEL)}

if __name__ == "__main__":
    serve(FORMS[sys.argv[1]](), Path(sys.argv[2]), int(sys.argv[3]))
