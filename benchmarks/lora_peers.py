"""The peers of lora.py, one class each, and the process that one is measured in.

`over`: the peer without adapters at run time that a peer's time is compared with.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # this folder's names must not hide others' (`kernels`)
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

import numpy as np

from benchmarks import lora_models
from benchmarks.peers import Feeds, OnnxRuntime, Peer, Torch, arrays, serve


class LoraPeer(Peer):
    """`workloads`: those it is made for; none: all but the swaps."""

    over: ClassVar[str] = ""
    truth: ClassVar[str] = "one.npz"
    workloads: ClassVar[Sequence[str]] = ("prefill", "decode", "decode64")


class Package(LoraPeer):
    """A package that lora.py built; `package`: its name."""

    needs = ("cuvil", "cuvilc", "tvm", "torch_mlir")
    package: ClassVar[str]
    many: ClassVar[bool] = False

    def prepare(self, folder: Path) -> Path:
        self.count = len(list(folder.glob("adapters/*/adapter_config.json")))
        return folder / f"{self.package}.cuvil"

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        import cuvil

        self.model = cuvil.load(path, threads=threads)
        self.feeds = feeds
        self.rows = len(next(iter(feeds.values())))

    def run(self) -> list[np.ndarray]:
        return list(self.model.run(self.feeds).values())


class Base(Package):
    """The model without an adapter."""

    package, truth, over = "base", "base.npz", "fold"


class Fold(Package):
    package = "fold"


class Swap(Package):
    """One adapter put to use before the runs."""

    package, over = "swap", "fold"

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        super().load(path, threads, feeds)
        self.model.use("a0")


class BatchUnused(Package):
    """Could have an adapter in every row, and has none."""

    package, truth, over = "batch", "base.npz", "base"


class BatchOne(Package):
    """The same adapter in every row."""

    package, over = "batch", "fold"

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        super().load(path, threads, feeds)
        self.chosen = self.choose()

    def choose(self) -> list[str]:
        return ["a0"] * self.rows

    def run(self) -> list[np.ndarray]:
        return list(self.model.run(self.feeds, adapters=self.chosen).values())


class BatchMany(BatchOne):
    """A different adapter in every row."""

    truth, workloads = "many.npz", ("decode64",)

    def choose(self) -> list[str]:
        return lora_models.names(self.rows)


class SwapTime(Package):
    """A run is a swap: three adapters take turns. On as many CPUs as there are threads."""

    package, truth, workloads = "swap", "", ("swap",)

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        super().load(path, threads, feeds)
        super().run()
        self.turns = cycle(lora_models.names(self.count))

    def run(self) -> list[np.ndarray]:
        self.model.use(next(self.turns))
        return []


class TorchPeft(LoraPeer, Torch):
    """Eager torch, PEFT's adapter beside the weights."""

    needs, over = ("torch", "transformers", "peft"), "torch-merged"
    count: ClassVar[int] = 1

    def prepare(self, folder: Path) -> Path:
        name, _, *quick = folder.name.split("-")
        self.workload = (lora_models.QUICK if quick else lora_models.FULL)[name]
        network = self.workload.network()
        self.module = network.module
        self.model = lora_models.loaded(network, folder, self.count or self.workload.rows)
        return folder


class TorchMerged(TorchPeft):
    """Eager torch, the adapter merged into the weights."""

    over = ""

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        super().load(path, threads, feeds)
        self.module.model = self.model.merge_and_unload()


class TorchPeftMany(TorchPeft):
    """A different adapter in every row: PEFT's `adapter_names`."""

    truth, count, workloads = "many.npz", 0, ("decode64",)

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        super().load(path, threads, feeds)
        chosen = lora_models.names(self.workload.rows)
        self.module.options["adapter_names"] = chosen


class TorchSwapTime(TorchPeft):
    """PEFT's unmerge and merge: what it takes to run without the adapter's cost."""

    truth, workloads, over, count = "", ("swap",), "", 3

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        super().load(path, threads, feeds)
        self.turns = cycle(lora_models.names(3))
        super().run()

    def run(self) -> list[np.ndarray]:
        with self.inference():
            self.model.unmerge_adapter()
            self.model.set_adapter(next(self.turns))
            self.model.merge_adapter()
        return []


class OrtMerged(LoraPeer, OnnxRuntime):
    """onnxruntime with the adapter merged into the initialisers."""

    needs = ("onnxruntime", "onnx", "safetensors")

    def prepare(self, folder: Path) -> Any:
        import onnx

        model = onnx.load(folder / "model.onnx")
        self.change(model, folder, json.loads((folder / "sites.json").read_text()))
        return model.SerializeToString()

    def change(self, model: Any, folder: Path, sites: dict[str, str]) -> None:
        from onnx import numpy_helper

        held = {i.name: i for i in model.graph.initializer}
        for module, (a, b) in lora_models.factors(folder, "a0").items():
            site = held[sites[module]]
            delta = b.astype(np.float64) @ a.astype(np.float64)
            merged = numpy_helper.to_array(site) + delta.T
            site.CopyFrom(numpy_helper.from_array(merged.astype(np.float32), site.name))


class OrtInputs(OrtMerged):
    """onnxruntime with the adapter's factors as inputs of the graph: two products and a sum."""

    over = "ort-merged"

    def change(self, model: Any, folder: Path, sites: dict[str, str]) -> None:
        from onnx import TensorProto, helper

        self.factors = {}
        for module, (a, b) in self.stacked(folder).items():
            self.factors |= {f"{module}.A": a, f"{module}.B": b}
            beside(model.graph, sites[module], module)
        for name, array in self.factors.items():
            port = helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
            model.graph.input.append(port)

    def stacked(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """A [K, r] and B [r, N] of each module."""
        found = lora_models.factors(folder, "a0")
        return {
            m: (np.ascontiguousarray(a.T), np.ascontiguousarray(b.T)) for m, (a, b) in found.items()
        }

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        super().load(path, threads, feeds | self.factors)


class OrtInputsMany(OrtInputs):
    """A different adapter in every row: factors [rows, K, r] and [rows, r, N]."""

    truth, workloads = "many.npz", ("decode64",)

    def stacked(self, folder: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        rows = len(next(iter(arrays(folder / "inputs.npz").values())))
        all_of = [lora_models.factors(folder, name) for name in lora_models.names(rows)]
        return {
            m: (np.stack([f[m][0].T for f in all_of]), np.stack([f[m][1].T for f in all_of]))
            for m in all_of[0]
        }


def beside(graph: Any, weight: str, module: str) -> None:
    """y = x·W becomes x·W + (x·A)·B, of two values `MODULE.A` and `MODULE.B`."""
    from onnx import helper

    place, node = next((i, n) for i, n in enumerate(graph.node) if weight in n.input)
    if node.op_type != "MatMul" or node.input[1] != weight:
        raise ValueError(f"{module}: its weight is no right operand of a MatMul")
    x, y = node.input[0], node.output[0]
    node.output[0] = f"{y}.base"
    made = [
        helper.make_node("MatMul", [x, f"{module}.A"], [f"{y}.t"]),
        helper.make_node("MatMul", [f"{y}.t", f"{module}.B"], [f"{y}.delta"]),
        helper.make_node("Add", [f"{y}.base", f"{y}.delta"], [y]),
    ]
    for offset, new in enumerate(made, 1):
        graph.node.insert(place + offset, new)


LORA_PEERS: dict[str, type[LoraPeer]] = {
    "base": Base,
    "fold": Fold,
    "swap": Swap,
    "batch-unused": BatchUnused,
    "batch-one": BatchOne,
    "batch-many": BatchMany,
    "torch-merged": TorchMerged,
    "torch-peft": TorchPeft,
    "torch-peft-many": TorchPeftMany,
    "ort-merged": OrtMerged,
    "ort-inputs": OrtInputs,
    "ort-inputs-many": OrtInputsMany,
    "swaps": SwapTime,
    "torch-peft-swaps": TorchSwapTime,
}

if __name__ == "__main__":
    serve(LORA_PEERS[sys.argv[1]](), Path(sys.argv[2]), int(sys.argv[3]))
