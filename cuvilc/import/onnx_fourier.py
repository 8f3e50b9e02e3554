"""Fourier transforms of any known length as matrix products and products with constants.

A signal is [B, parts, n]: the real parts, and with 2 parts the imaginary ones, side by side, so
that a short transform is one product with a matrix and everything else contiguous. A longer one is
split into two shorter ones (Cooley & Tukey 1965, the four-step form of Bailey 1990, §2); a length
without small factors becomes a circular convolution of a smooth length (Bluestein 1970); a real
signal of even length goes through a complex one of half the length (Sorensen et al. 1987, §II).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cuvilc.dialect import dims as D
from cuvilc.dialect import ir
from cuvilc.dialect.types import numpy_dtype

from .onnx_node import Node, ai, dtype_of, reshape, shape_of
from .onnx_nodes_slice import sliced

_DENSE = 512 * 514  # elements of the largest matrix: real signals of 512, complex ones of 256
LONGEST = 1 << 22  # its constants take some hundred MB while a model is imported
_RADIX = 64  # the longest transform that a longer one is split into


def forward(n: Node, x: ir.Value, onesided: bool) -> ir.Value:
    """[B, parts, n] → [B, 2, n], or of a onesided one the first n // 2 + 1 frequencies."""
    length = _length(x)
    kept = length // 2 + 1 if onesided else length
    if shape_of(x)[1] == 1:
        return _Transform(n, -1.0).real(x, kept)
    y = _Transform(n, -1.0).complex(x, 1.0)
    return sliced(y, (0, 0, 0), (*shape_of(y)[:2], kept))


def inverse(n: Node, x: ir.Value) -> ir.Value:
    """[B, parts, n] → [B, 2, n], divided by n."""
    length = _length(x)
    if shape_of(x)[1] == 1:
        none = ir.full(0.0, shape_of(x), dtype_of(x))
        x = ai("concat", x, none, axis=1)
    return _Transform(n, 1.0).complex(x, 1.0 / length)


def inverse_real(n: Node, x: ir.Value, length: int) -> ir.Value:
    """[B, 2, length // 2 + 1], the frequencies of a real signal → [B, 1, length], its values."""
    batch, _, half = shape_of(x)
    k, j = np.arange(length // 2 + 1)[:, None], np.arange(length)
    if 2 * k.size * length <= _DENSE:
        angle = 2 * np.pi * ((j * k) % length) / length
        weight = np.where((k == 0) | (2 * k == length), 1.0, 2.0) / length
        matrix = np.concatenate([weight * np.cos(angle), -weight * np.sin(angle)])
        flat = reshape(x, (batch, D.product((2, half))))
        return reshape(ai("matmul", flat, _constant(n, matrix, x)), (batch, 1, length))
    mirrored = np.where(j <= length // 2, j, length - j)
    sign = np.stack([np.ones(length), np.where(j <= length // 2, 1.0, -1.0)])
    sign[1, (j == 0) | (2 * j == length)] = 0.0
    full = ai("gather", x, n.constant(mirrored), axis=2)
    full = ai("elemwise_mul", full, _constant(n, sign, x))
    y = inverse(n, full)
    return sliced(y, (0, 0, 0), (batch, 1, length))


def _length(x: ir.Value) -> int:
    length = shape_of(x)[2]
    assert isinstance(length, int)
    return length


def _constant(n: Node, array: np.ndarray, like: ir.Value) -> ir.Value:
    return n.constant(array.astype(numpy_dtype(dtype_of(like))))


def _roots(numbers: np.ndarray, length: int, sign: float) -> np.ndarray:
    """exp(sign · 2πi · numbers / length), the numbers reduced first."""
    return np.exp(sign * 2j * np.pi * (numbers % length) / length)


@dataclass(frozen=True)
class _Transform:
    """Σ x[j] · exp(sign · 2πi jk / n), with the constants of a node."""

    n: Node
    sign: float

    def real(self, x: ir.Value, kept: int) -> ir.Value:
        """The first `kept` frequencies of a real signal."""
        batch, _, length = shape_of(x)
        assert isinstance(length, int)
        if length * 2 * kept <= _DENSE:
            roots = _roots(np.outer(np.arange(length), np.arange(kept)), length, self.sign)
            matrix = np.concatenate([roots.real, roots.imag], 1)
            y = ai("matmul", reshape(x, (batch, length)), _constant(self.n, matrix, x))
            return reshape(y, (batch, 2, kept))
        if length % 2:
            none = ir.full(0.0, shape_of(x), dtype_of(x))
            y = self.complex(ai("concat", x, none, axis=1), 1.0)
            return sliced(y, (0, 0, 0), (batch, 2, kept))
        return self._from_half(x, kept)

    def _from_half(self, x: ir.Value, kept: int) -> ir.Value:
        """Even places as real parts, odd ones as imaginary; then the two are told apart.

        X[k] = (Z[k] + Z*[h - k]) / 2 - i/2 · exp(sign · 2πi k / n) · (Z[k] - Z*[h - k]), h = n / 2.
        """
        batch, _, length = shape_of(x)
        assert isinstance(length, int)
        half = length // 2
        pairs = ai("transpose", reshape(x, (batch, half, 2)), perm=(0, 2, 1))
        z = self.complex(pairs, 1.0)
        k = np.arange(kept)
        there, back = (
            ai("gather", z, self.n.constant(p % half), axis=2) for p in (k, (half - k) % half)
        )
        conjugate = np.array([[1.0], [-1.0]])
        back = ai("elemwise_mul", back, _constant(self.n, conjugate, x))
        turn = -0.5j * _roots(k, length, self.sign)
        even = ai("elemwise_add", there, back)
        odd = self._times(ai("elemwise_sub", there, back), turn)
        return ai("elemwise_add", ai("elemwise_mul", even, ir.full(0.5, (), dtype_of(x))), odd)

    def complex(self, x: ir.Value, scale: float) -> ir.Value:
        """The transform of [B, 2, n], times `scale`."""
        length = _length(x)
        split = _split(length)
        if split == length:
            return self._dense(x, scale)
        if split == 1:
            return self._bluestein(x, scale)
        return self._two_steps(x, split, length // split, scale)

    def _dense(self, x: ir.Value, scale: float) -> ir.Value:
        batch, _, length = shape_of(x)
        assert isinstance(length, int)
        places = np.arange(length)
        roots = scale * _roots(np.outer(places, places), length, self.sign)
        matrix = np.block([[roots.real, roots.imag], [-roots.imag, roots.real]])
        y = ai("matmul", reshape(x, (batch, 2 * length)), _constant(self.n, matrix, x))
        return reshape(y, (batch, 2, length))

    def _two_steps(self, x: ir.Value, a: int, b: int, scale: float) -> ir.Value:
        """x[i·b + j] with i < a, j < b: transforms along i, a turn of each, transforms along j.

        X[k + a·l] = Σ_j exp(2πi jl / b) · exp(2πi jk / n) · Σ_i exp(2πi ik / a) · x[i·b + j].
        """
        batch = shape_of(x)[0]
        y = ai("transpose", reshape(x, (batch, 2, a, b)), perm=(0, 3, 1, 2))
        y = self.complex(reshape(y, (batch * b, 2, a)), 1.0)
        turns = scale * _roots(np.outer(np.arange(b), np.arange(a)), a * b, self.sign)
        y = self._times(reshape(y, (batch, b, 2, a)), turns[:, None, :])
        y = ai("transpose", y, perm=(0, 3, 2, 1))
        y = self.complex(reshape(y, (batch * a, 2, b)), 1.0)
        y = ai("transpose", reshape(y, (batch, a, 2, b)), perm=(0, 2, 3, 1))
        return reshape(y, (batch, 2, a * b))

    def _bluestein(self, x: ir.Value, scale: float) -> ir.Value:
        """With jk = (j² + k² - (k - j)²) / 2 the sum is a convolution with a chirp."""
        batch, _, length = shape_of(x)
        assert isinstance(length, int)
        size = 1 << math.ceil(math.log2(2 * length - 1))
        chirp = _roots(np.arange(length, dtype=np.int64) ** 2, 2 * length, self.sign)
        kernel = np.zeros(size, np.complex128)
        kernel[:length] = chirp.conj()
        kernel[size - length + 1 :] = chirp[:0:-1].conj()
        # Both transforms of the convolution in this one's sense, and back by the other's.
        spectrum = np.fft.fft(kernel) / size
        y = self._times(x, chirp)
        after = (0, 0, size - length)
        y = ai("pad", y, before=(0, 0, 0), after=after, mode="constant", value=0.0)
        y = self._times(_Transform(self.n, -1.0).complex(y, 1.0), spectrum)
        y = _Transform(self.n, 1.0).complex(y, 1.0)
        y = sliced(y, (0, 0, 0), (batch, 2, length))
        return self._times(y, scale * chirp)

    def _times(self, x: ir.Value, factor: np.ndarray) -> ir.Value:
        """[.., 2, n] times complex constants [.., n] or [.., 1, n], which broadcast."""
        real, imaginary = factor.real, factor.imag
        rank = len(shape_of(x))
        if factor.ndim < rank - 1:
            real, imaginary = real[..., None, :], imaginary[..., None, :]
        swapped = ai(
            "slice", x, starts=(*[0] * (rank - 2), 1, 0), steps=(*[1] * (rank - 2), -1, 1),
            sizes=shape_of(x),
        )  # fmt: skip
        crossed = np.concatenate([-imaginary, imaginary], -2)
        direct = ai("elemwise_mul", x, _constant(self.n, real, x))
        return ai(
            "elemwise_add", direct, ai("elemwise_mul", swapped, _constant(self.n, crossed, x))
        )


def _split(length: int) -> int:
    """The first factor to split a complex transform by; `length`: none; 1: it has no small one."""
    if length <= _RADIX:
        return length
    factors = [d for d in range(2, _RADIX + 1) if length % d == 0]
    if not factors:
        return length if 4 * length * length <= _DENSE else 1
    if length <= _RADIX * _RADIX:
        return min(factors, key=lambda d: abs(math.log(d * d / length)))
    return factors[-1]
