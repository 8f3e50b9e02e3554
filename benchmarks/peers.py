"""The peers, one class each, and the process that one is measured in.

A peer loads a model and runs it with nothing that a caller would not pay for. To add one: write a
class with these members and put it into PEERS.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # this folder's names must not hide others' (`kernels`)
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

import numpy as np

Feeds = dict[str, np.ndarray]


class Peer:
    """`needs`: the modules it lives from. `truth`: the file of the right answers; "": of none."""

    needs: ClassVar[tuple[str, ...]]
    truth: ClassVar[str] = "ref.npz"

    def prepare(self, folder: Path) -> Path:
        """Imports, and what is done once for all loads: compiling. Returns what `load` takes."""
        return folder / "model.onnx"

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        raise NotImplementedError

    def run(self) -> list[np.ndarray]:
        """The outputs in order, for the feeds given to `load`."""
        raise NotImplementedError


class Cuvil(Peer):
    """A package for the host's CPU level, through the Python loader."""

    needs = ("cuvil", "cuvilc", "tvm", "torch_mlir")

    def prepare(self, folder: Path) -> Path:
        self.aside = tempfile.TemporaryDirectory(prefix="cuvil-bench-")
        package = Path(self.aside.name) / f"{folder.name}.cuvil"
        # Another process: the compiler's memory is none of the runtime's.
        command = [sys.executable, "-m", "cuvilc", "build", "--quiet", "--cpu", "host"]
        command += ["--vectors", "0", "-o", str(package), str(folder / "model.onnx")]
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
        self.feeds = feeds

    def run(self) -> list[np.ndarray]:
        return list(self.model.run(self.feeds).values())


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


class Torch(Peer):
    """Eager torch on the module that the model was exported from."""

    needs = ("torch", "transformers")

    def prepare(self, folder: Path) -> Path:
        from benchmarks.networks import build

        self.module = build(folder.name).module
        return folder

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        import torch

        torch.set_num_threads(threads)
        self.inference = torch.inference_mode
        self.inputs = [torch.from_numpy(v) for v in feeds.values()]

    def run(self) -> list[np.ndarray]:
        with self.inference():
            answer = self.module(*self.inputs)
        return [t.numpy() for t in (answer if isinstance(answer, tuple) else (answer,))]


PEERS: dict[str, type[Peer]] = {
    "cuvil": Cuvil,
    "onnxruntime": OnnxRuntime,
    "openvino-f32": OpenVino,
    "openvino": OpenVinoDefault,
    "torch": Torch,
}


def resident_mb(key: str) -> float:
    """VmRSS or VmHWM of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def relative_error(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """The largest error over the largest magnitude, of the worst output."""
    errors = (
        float(np.abs(a.astype(np.float64).reshape(b.shape) - b).max() / max(np.abs(b).max(), 1e-30))
        for a, b in zip(found, wanted, strict=True)
    )
    return max(errors, default=0.0)


def serve(peer: Peer, folder: Path, threads: int) -> None:
    """Load and say how that went; then one timing slot for each number of seconds read."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    clock = time.perf_counter
    try:
        feeds = arrays(folder / "inputs.npz")
        wanted = list(arrays(folder / peer.truth).values()) if peer.truth else []
        start = clock()
        path = peer.prepare(folder)
        prepared = clock()
        peer.load(path, threads, feeds)
        loaded = clock()
        first = [np.array(a) for a in peer.run()]
        answered = clock()
    except Exception as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        answers.write(json.dumps({"error": message}) + "\n")
        return
    facts = {
        "prepare_s": prepared - start,
        "load_s": loaded - prepared,
        "first_s": answered - loaded,
        "resident_mb": resident_mb("VmRSS"),
        "relative_error": relative_error(first, wanted),
    }
    answers.write(json.dumps(facts) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(slot(peer, float(line))) + "\n")


def arrays(path: Path) -> Feeds:
    with np.load(path) as file:
        return {key: file[key] for key in file.files}


def slot(peer: Peer, seconds: float) -> dict[str, float]:
    """Run for so long, three times at least; CPU and wall seconds tell how disturbed it was."""
    peer.run()
    times: list[float] = []
    cpu, start = time.process_time(), time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        peer.run()
        times.append(time.perf_counter() - before)
    return {
        "median_ms": statistics.median(times) * 1e3,
        "min_ms": min(times) * 1e3,
        "runs": len(times),
        "wall_s": time.perf_counter() - start,
        "cpu_s": time.process_time() - cpu,
    }


if __name__ == "__main__":
    serve(PEERS[sys.argv[1]](), Path(sys.argv[2]), int(sys.argv[3]))
