"""Parameters that an adapter replaces as a whole, and what it adds to biases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cuvilc.adapter import Adapter, LowRank, ModuleChange, Rows
from cuvilc.diagnostics import CuvilError, fail

from . import ir
from . import lora_codes as codes
from .lora_packed import Uses, known
from .lora_sites import Site, Sites
from .lora_values import TURNED, Array, is_turned, outputs_first, round_once, set_rows
from .op import OPS
from .types import numpy_dtype


def no_place(module: str, why: str) -> CuvilError:
    return fail(codes.NO_PLACE, f"`{module}`: {why}")


@dataclass
class Parameters:
    """Replaces parameters at once; sums biases up, and `finish` rounds each sum once."""

    program: ir.Program
    sites: Sites
    uses: Uses
    owners: dict[tuple[str, str], tuple[str, Array]] = field(default_factory=dict)
    sums: dict[int, tuple[str, Array]] = field(default_factory=dict)

    def replace(self, adapter: Adapter, change: ModuleChange) -> None:
        """Set the parameters that a change brings whole, or rows of. CUV742, CUV743."""
        if change.rows is not None:
            self._replace_rows(adapter, change, change.rows)
        for parameter, array in change.replaced.items():
            owner, other = self.owners.setdefault((change.path, parameter), (adapter.name, array))
            if owner != adapter.name and not np.array_equal(other, array):
                raise self.clash(owner, adapter, f"{change.path}.{parameter}")
            found = self.sites.numbered(change.path, parameter)
            if not found:
                raise no_place(change.path, f"the program has no parameter `{parameter}` of it")
            for number, site in found:
                laid = _laid(site, change, array)
                if site.kind == "linear" and is_turned(
                    laid, _part(site, self._array(number, site))
                ):
                    raise no_place(change.path, TURNED)
                key = f"{change.path}.{parameter}+{adapter.name}"
                self._set(number, site, laid, key)

    def _replace_rows(self, adapter: Adapter, change: ModuleChange, rows: Rows) -> None:
        values = np.asarray(rows.values)
        owner, other = self.owners.setdefault((change.path, "weight"), (adapter.name, values))
        if owner != adapter.name and other is not values:
            raise self.clash(owner, adapter, f"{change.path}.weight")
        for number, site in self.sites.numbered(change.path, "weight"):
            whole = np.array(self._array(number, site))
            set_rows(_part(site, whole), site.kind, site.out_axis, rows)
            self._put(number, whole, f"{change.path}.weight+{adapter.name}")

    def clash(self, owner: str, adapter: Adapter, what: str) -> CuvilError:
        message = f"`{owner}` and `{adapter.name}` both change `{what}`, of which one replaces it"
        return fail(
            codes.CLASHING_CHANGES, message, place=str(adapter.place),
            help="`--lora swap` keeps them apart, each with its own; so does a package for each",
        )  # fmt: skip

    def add_bias(self, adapter: Adapter, module: str, low: LowRank) -> None:
        """scale · the bias of B is added to the module's own bias. CUV743."""
        assert low.bias is not None
        extra = float(low.scale) * low.bias.astype(np.float64).reshape(-1)
        found = self.sites.numbered(module, "bias")
        for number, site in found:
            if number not in self.sums:
                self.sums[number] = "", self._array(number, site).astype(np.float64)
            names, total = self.sums[number]
            _part(site, total)[...] += extra.reshape(_part(site, total).shape)
            self.sums[number] = f"{names}+{adapter.name}", total
        if not found:
            raise no_place(module, "the program has no bias of it")

    def finish(self) -> None:
        for number, (names, total) in self.sums.items():
            site = self.sites.sites[number]
            value = self._array(number, site)
            self._put(number, round_once(total, value.dtype), f"{site.module}.bias{names}")

    def _array(self, number: int, site: Site) -> Array:
        """What the site's uses read now."""
        operation, operand = self.uses.of[number][0]
        value = operation.operands[operand]
        array = known(self.program, value)
        if array is None:
            array = _dequantised(self.program, value)
        if array is None:
            raise no_place(site.module, f"its `{site.parameter}` is not constant")
        return array

    def _set(self, number: int, site: Site, laid: Array, key: str) -> None:
        old = self._array(number, site)
        made = laid.astype(old.dtype)
        if not site.is_whole:
            whole = np.array(old)
            _part(site, whole)[...] = made
            made = whole
        self._put(number, np.ascontiguousarray(made).reshape(old.shape), key)

    def _put(self, number: int, array: Array, key: str) -> None:
        """Let all uses of a site read a new constant."""
        for operation, operand in self.uses.of[number]:
            source = ir.defining(operation.operands[operand])
            if source is None:
                raise no_place(key, "it is an input of a loop or branch")
            with ir.after(source):
                operation.operands[operand] = ir.constant(self.program, array, key)


def _part(site: Site, array: Array) -> Array:
    """The module's part of an array that is the site's value: a view."""
    index = [slice(None)] * array.ndim
    index[site.out_axis] = slice(site.start, site.start + site.size)
    return array[tuple(index)]


def _laid(site: Site, change: ModuleChange, array: Array) -> Array:
    """A replaced parameter, as torch has it, laid as the module's part of the program's value."""
    shape = tuple(site.size if j == site.out_axis else d for j, d in enumerate(site.shape))
    laid = array
    if site.parameter == "weight" and array.ndim == len(shape):
        first = outputs_first(array, site.kind, site.size, change.fan_in_fan_out)
        laid = np.moveaxis(first, 0, site.out_axis)
    if [d for d in laid.shape if d != 1] != [d for d in shape if d != 1]:
        sizes = f"{list(array.shape)} of the adapter's, {list(shape)} of the program's"
        raise no_place(site.module, f"`{site.parameter}` has other sizes: {sizes}")
    return laid.reshape(shape)


def _dequantised(program: ir.Program, value: ir.Value) -> Array | None:
    """A dequantised constant, in the value's dtype."""
    source = ir.defining(value)
    if source is None or source.name != "ai.dequantize_linear":
        return None
    arrays: Sequence[Any] = [known(program, v) for v in source.operands]
    if any(a is None for a in arrays):
        return None
    declared = OPS[source.name]
    assert declared.reference is not None
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    made: Array = declared.reference(*declared.group(wide), **ir.attrs(source))
    return made.astype(numpy_dtype(ir.type_of(value).dtype))
