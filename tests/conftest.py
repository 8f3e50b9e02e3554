"""For every test: what a worker process may use."""

from __future__ import annotations

import os

# Several workers share the cores: libraries that start a thread per core would fight over them.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
