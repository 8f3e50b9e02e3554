"""What importing TVM for a build loads, and what stays usable afterwards; each in a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPTS = {
    "a build loads neither torch nor Relax nor what makes code for GPUs": """
import os, sys
os.environ["TVM_DEVICE_BACKEND_AUTOLOAD"] = "1"
import cuvilc.targets._tvm
from cuvilc.targets import schedules, llvm
assert "torch" not in sys.modules and "tvm.relax" not in sys.modules
assert "tvm.backend.cuda.ptx" not in sys.modules
assert os.environ["TVM_DEVICE_BACKEND_AUTOLOAD"] == "1"
""",
    "Relax comes when it is asked for, with what makes code for GPUs": """
import os, sys
os.environ.pop("TVM_DEVICE_BACKEND_AUTOLOAD", None)
import cuvilc.targets._tvm
import tvm
assert "TVM_DEVICE_BACKEND_AUTOLOAD" not in os.environ
assert tvm.relax.BlockBuilder is not None
assert tvm.backend.loader.is_loaded("cuda")
try:
    tvm.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError
""",
    "TVM that is loaded already stays as it is": """
import tvm
before = tvm.relax
import cuvilc.targets._tvm
assert tvm.relax is before and "__getattr__" not in vars(tvm)
""",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_importing(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
