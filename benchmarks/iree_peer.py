"""IREE: its ONNX importer, then its compiler for this CPU."""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.peer import Feeds, Peer, compile_with, kept

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O3",
    "--iree-opt-data-tiling=true",
    "--iree-llvmcpu-stack-allocation-limit=262144",  # the default of 32 KiB refuses LayerNorms
)


class Iree(Peer):
    """Compiled once for all numbers of threads; one thread runs without a pool."""

    needs = ("iree.compiler", "iree.runtime")

    def prepare(self, folder: Path) -> Path:
        def make(path: Path) -> None:
            with tempfile.TemporaryDirectory() as aside:
                program = str(Path(aside) / "model.mlir")
                importer = [sys.executable, "-m", "iree.compiler.tools.import_onnx"]
                compile_with([*importer, str(folder / "model.onnx"), "-o", program])
                compiler = find_tool("iree-compile")
                compile_with([compiler, program, "-o", str(path), *FLAGS])

        import iree.runtime  # noqa: F401  # not counted to `load`
        from iree.compiler.tools.binaries import find_tool

        return kept(folder, f"iree-{version('iree-base-compiler')}.vmfb", make)

    def load(self, path: Path, threads: int, feeds: Feeds) -> None:
        from iree import runtime

        if threads > 1:
            runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
        config = runtime.Config("local-sync" if threads == 1 else "local-task")
        self.context = runtime.SystemContext(config=config)
        self.context.add_vm_module(runtime.VmModule.mmap(config.vm_instance, str(path)))
        module = self.context.modules.module
        names = module.vm_module.function_names
        self.function = module[next(n for n in names if not n.startswith("__") and "$" not in n)]
        self.inputs = list(feeds.values())

    def run(self) -> list[np.ndarray]:
        found = self.function(*self.inputs)
        return [a.to_host() for a in (found if isinstance(found, tuple | list) else (found,))]
