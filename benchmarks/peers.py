"""The peers, one class each, and the process that one is measured in.

To add one: write a class with the members of `Peer` and put it into PEERS.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # this folder's names must not hide others' (`kernels`)
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

import numpy as np

from benchmarks.iree_peer import Iree
from benchmarks.peer import Feeds, Peer, arrays, serve
from benchmarks.torch_peers import AotInductor, Torch, TorchCompile

__all__ = ["PEERS", "Feeds", "OnnxRuntime", "Peer", "Torch", "arrays", "serve"]


class Cuvil(Peer):
    """A package for the host's CPU level, through the Python loader."""

    needs = ("cuvil", "cuvilc", "tvm", "torch_mlir")
    options: ClassVar[tuple[str, ...]] = ()  # of `cuvilc build`

    def prepare(self, folder: Path) -> Path:
        self.aside = tempfile.TemporaryDirectory(prefix="cuvil-bench-")
        package = Path(self.aside.name) / f"{folder.name}.cuvil"
        # Another process: the compiler's memory is none of the runtime's.
        command = [sys.executable, "-m", "cuvilc", "build", "--quiet", "--cpu", "host"]
        command += ["--vectors", "0", *self.options, "-o", str(package)]
        command.append(str(folder / "model.onnx"))
        path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
        built = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.PIPE, text=True
        )
        if built.returncode:
            raise RuntimeError(built.stderr.strip() or f"cuvilc ended with {built.returncode}")
        return package

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        import cuvil

        self.model = cuvil.load(path, threads=threads)
        self.package, self.feeds = path, feeds

    def run(self) -> list[np.ndarray]:
        return list(self.model.run(self.feeds).values())

    def facts(self) -> dict[str, float]:
        """Size of the package; what the plan's kernels read and write in a run, in fixed sizes."""
        moved = [kernel["bytes"] for kernel in self.model.metadata["kernels"]]
        files = (f for f in self.package.rglob("*") if f.is_file())
        return {
            "package_mb": sum(f.stat().st_size for f in files) / 1e6,
            "moved_mb": sum(b for b in moved if isinstance(b, int | float)) / 1e6,
        }


class CuvilBf16(Cuvil):
    """Weights, and what they multiply, rounded to bfloat16."""

    options = ("--precision", "bf16")


class CuvilUnfused(Cuvil):
    """Every operation a kernel of its own."""

    options = ("--no-fusion",)


class CuvilExact(Cuvil):
    """No Winograd, nothing that may change a float's last digits."""

    options = ("--math", "exact")


class CuvilSize(Cuvil):
    """Less memory rather than less time."""

    options = ("--prefer", "size")


class CuvilSpeed(Cuvil):
    """More memory where that is faster."""

    options = ("--prefer", "speed")


class OnnxRuntime(Peer):
    """The CPU provider with every graph optimisation."""

    needs = ("onnxruntime",)

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self.feeds = feeds

    def run(self) -> list[np.ndarray]:
        return self.session.run(None, self.feeds)


class OpenVino(Peer):
    """The CPU plugin with the latency hint, held to float32."""

    needs = ("openvino",)
    precision: ClassVar[dict[str, str]] = {"INFERENCE_PRECISION_HINT": "f32"}

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        import openvino

        options = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,
            **self.precision,
        }
        self.request = openvino.Core().compile_model(path, "CPU", options).create_infer_request()
        self.feeds = feeds

    def run(self) -> list[np.ndarray]:
        found = self.request.infer(self.feeds, share_inputs=True, share_outputs=True)
        return [found[i] for i in range(len(found))]


class OpenVinoDefault(OpenVino):
    """As above with the precision it chooses by itself: bfloat16 where the CPU has it."""

    precision: ClassVar[dict[str, str]] = {}


PEERS: dict[str, type[Peer]] = {
    "cuvil": Cuvil,
    "cuvil-bf16": CuvilBf16,
    "onnxruntime": OnnxRuntime,
    "openvino-f32": OpenVino,
    "openvino": OpenVinoDefault,
    "torch": Torch,
    "torch-compile": TorchCompile,
    "aot-inductor": AotInductor,
    "iree": Iree,
}
QUICK = ("cuvil", "onnxruntime", "openvino-f32", "openvino", "torch")  # to compile

# cuvil with switches, for techniques.py.
VARIANTS: dict[str, type[Peer]] = {
    "cuvil-no-fusion": CuvilUnfused,
    "cuvil-exact": CuvilExact,
    "cuvil-size": CuvilSize,
    "cuvil-speed": CuvilSpeed,
}


if __name__ == "__main__":
    serve({**PEERS, **VARIANTS}[sys.argv[1]](), Path(sys.argv[2]), int(sys.argv[3]))
