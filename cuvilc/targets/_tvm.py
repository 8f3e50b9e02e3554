"""Imports TVM without PyTorch: where torch is installed, `import tvm` loads it (1.1 s) for tensors
that kernels never see. A build imports this before anything else that needs TVM.
"""

from __future__ import annotations

import importlib
import sys

_HIDDEN = "torch" not in sys.modules
if _HIDDEN:
    sys.modules["torch"] = None  # type: ignore[assignment]  # `import torch` raises ImportError
try:
    importlib.import_module("tvm")
finally:
    if _HIDDEN:
        del sys.modules["torch"]
