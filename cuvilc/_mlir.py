"""The one importer of the MLIR bindings (PyPI wheel `torch-mlir`, an MLIR snapshot pinned in
pyproject.toml).

Everything else takes `ir` and friends from here, so a new snapshot is absorbed in this file. Traps:
never enable multithreading on a context that has Python verifiers (it hangs); erasing an operation
that still has uses aborts the process (dialect/ir.py guards this).
"""

from __future__ import annotations

import sys
from types import ModuleType

from torch_mlir import ir
from torch_mlir.dialects import ext, func, irdl
from torch_mlir.dialects._ods_common import _cext
from torch_mlir.passmanager import PassManager

register_type_caster = _cext.register_type_caster

# The bindings look for a Python module of every dialect whose operations they meet, each time anew
# while there is none: 9,000 failing imports in one build. Ours has no generated classes; an empty
# module says so.
sys.modules.setdefault("torch_mlir.dialects.ai", ModuleType("torch_mlir.dialects.ai"))

__all__ = ["PassManager", "ext", "func", "ir", "irdl", "register_type_caster"]
