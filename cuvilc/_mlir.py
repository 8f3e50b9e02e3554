"""The one importer of the MLIR bindings (PyPI wheel `torch-mlir`, an MLIR snapshot pinned in pyproject.toml).

Everything else takes `ir` and friends from here, so a new snapshot is absorbed in this file.
Traps: never enable multithreading on a context that has Python verifiers (it hangs); erasing an operation
that still has uses aborts the process (dialect/ir.py guards this).
"""

from __future__ import annotations

from torch_mlir import ir
from torch_mlir.dialects import ext, func, irdl
from torch_mlir.passmanager import PassManager

__all__ = ["PassManager", "ext", "func", "ir", "irdl"]
