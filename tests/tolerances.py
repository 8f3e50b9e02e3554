"""How far a result may be from the reference: one table for every test, by dtype."""

from __future__ import annotations

import numpy as np

# Largest error relative to the output's scale (its greatest finite magnitude). None: must be equal.
RELATIVE: dict[str, float | None] = {
    "float64": 1e-6, "float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2,
}  # fmt: skip
# Of the interpreter before and after passes, in the same unit, where it computes in float32.
MOVED = 2e-6  # operations are moved, merged or folded
REWRITTEN = 1e-5  # formulas become one operation, or kernels add in another order
DOUBLE = 1e-11  # of kernels, where nothing on the way is float32
# Least scale of random cases whose contents are about 1 in size: some have one element near 0.
LEAST_SCALE = 1e-2
# An 8-bit result may fall on the neighbouring step where a value lies between two.
QUANTISED_STEPS = 1


def mismatch(
    found: np.ndarray, wanted: np.ndarray, quantised: bool = False, scale: float = 1e-6
) -> str:
    """What differs by the table, or nothing. NaN agrees with NaN.

    scale: the least scale that errors are measured by, for outputs that happen to be tiny.
    """
    if found.shape != wanted.shape:
        return f"shape {found.shape}, not {wanted.shape}"
    if found.dtype != wanted.dtype:
        return f"dtype {found.dtype}, not {wanted.dtype}"
    limit = RELATIVE.get(found.dtype.name)
    if limit is None:
        return _whole(found, wanted, QUANTISED_STEPS if quantised else 0)
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return "NaN in other places"
    special = ~np.isfinite(b) | ~np.isfinite(a)
    if not np.array_equal(a[special], b[special], equal_nan=True):
        return "infinities in other places"
    finite = np.where(special, 0.0, b)
    error = np.abs(np.where(special, 0.0, a) - finite).max(initial=0.0)
    scale = max(np.abs(finite).max(initial=0.0), scale)
    if error > limit * scale:
        return f"error {error:.3g} at scale {scale:.3g}, allowed {limit:g} of it"
    return ""


def _whole(found: np.ndarray, wanted: np.ndarray, steps: int) -> str:
    if found.dtype.kind in "fV":  # ml_dtypes' small floats and integers: exact in float32
        a, b = found.astype(np.float32), wanted.astype(np.float32)
        wrong = int(((a != b) & ~(np.isnan(a) & np.isnan(b))).sum())
    elif found.dtype == bool or found.dtype.kind not in "iu":
        wrong = int((found != wanted).sum())
    else:
        wrong = int((np.abs(found.astype(np.int64) - wanted.astype(np.int64)) > steps).sum())
    return f"{wrong} of {wanted.size} elements differ" if wrong else ""
