"""Torch's peers, on the module that a benchmark model was exported from."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # this folder's names must not hide others' (`kernels`)
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

import numpy as np

from benchmarks.peer import Feeds, Peer, arrays, compile_with, kept


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
        return [t.numpy() for t in (answer if isinstance(answer, tuple | list) else (answer,))]


class TorchCompile(Torch):
    """torch.compile with freezing: weights are constants, packed and folded. Compiles in `load`."""

    needs, programs = ("torch", "transformers"), ("g++",)

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        import torch

        super().load(path, threads, feeds)
        self.inference = torch.no_grad  # freezing refuses inference mode
        options = {"freezing": True, "cpp.threads": threads}
        self.module = torch.compile(self.module, fullgraph=True, dynamic=False, options=options)


class AotInductor(Torch):
    """torch.export and AOTInductor with freezing, compiled for the number of threads."""

    needs, programs = ("torch", "transformers"), ("g++",)

    def prepare(self, folder: Path) -> Path:
        import torch

        def make(path: Path) -> None:
            command = [sys.executable, __file__, str(folder), str(threads), str(path)]
            compile_with(command)

        threads = torch.get_num_threads()  # OMP_NUM_THREADS, set by compare.py
        return kept(folder, f"aot-inductor-{torch.__version__}-{threads}.pt2", make)

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        import torch

        super().load(path, threads, feeds)
        self.inference = torch.no_grad
        self.module = torch._inductor.aoti_load_package(str(path))


def compile_ahead(folder: Path, threads: int, path: Path) -> None:
    """Write AOTInductor's package of a benchmark model."""
    import torch

    from benchmarks.networks import build

    torch.set_num_threads(threads)
    inputs = tuple(torch.from_numpy(v) for v in arrays(folder / "inputs.npz").values())
    with torch.no_grad():
        program = torch.export.export(build(folder.name).module, inputs)
        options = {"freezing": True, "cpp.threads": threads}
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(path), inductor_configs=options
        )


if __name__ == "__main__":
    compile_ahead(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
