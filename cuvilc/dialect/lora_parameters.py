"""Parameters that an adapter replaces as a whole, and what it adds to biases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cuvilc.adapter import Adapter, LowRank, ModuleChange
from cuvilc.diagnostics import CuvilError, fail

from . import ir
from . import lora_codes as codes
from .lora_packed import MOVES, Use, Uses, known
from .lora_sites import Site, Sites
from .lora_values import TURNED, Array, is_turned, outputs_first, round_once
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
        """Set the parameters that a change brings whole. CUV742, CUV743."""
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

    def clash(self, owner: str, adapter: Adapter, what: str) -> CuvilError:
        message = f"`{owner}` and `{adapter.name}` both change `{what}`, of which one replaces it"
        return fail(codes.CLASHING_CHANGES, message, place=str(adapter.place))

    def add_bias(self, adapter: Adapter, module: str, low: LowRank) -> None:
        """scale · the bias of B is added to the module's output, by its own bias if it has one."""
        assert low.bias is not None
        extra = float(low.scale) * low.bias.astype(np.float64).reshape(-1)
        found = self.sites.numbered(module, "bias")
        for number, site in found:
            if number not in self.sums:
                self.sums[number] = "", self._array(number, site).astype(np.float64)
            names, total = self.sums[number]
            _part(site, total)[...] += extra.reshape(_part(site, total).shape)
            self.sums[number] = f"{names}+{adapter.name}", total
        if found:
            return
        for number, site in self.sites.numbered(module, "weight"):
            for use in self.uses.of[number]:
                _add_after(self.program, site, use, extra, f"{module}.bias+{adapter.name}")

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
        first = outputs_first(array, site.kind, change.fan_in_fan_out)
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


def _add_after(program: ir.Program, site: Site, use: Use, extra: Array, key: str) -> None:
    """Add `extra` to the module's outputs, after the product that the use leads to."""
    operation, operand = use
    while operation.name in MOVES or operation.name == "ai.lora":
        readers = [(u.owner.operation, int(u.operand_number)) for u in operation.results[0].uses]
        if len(readers) != 1:
            raise no_place(site.module, "its weight is moved to several places")
        operation, operand = readers[0]
    result = operation.results[0]
    t = ir.type_of(result)
    axis = {
        ("ai.matmul", 1): t.rank - 1, ("ai.matmul", 0): t.rank - 2, ("ai.conv", 1): 1,
    }.get((operation.name, operand), -1)  # fmt: skip
    whole = site.shape[site.out_axis]
    if axis < 0 or t.shape[axis] != whole:
        raise no_place(site.module, f"no product to add a bias to, but {operation.name}")
    line = np.zeros(whole)
    line[site.start : site.start + site.size] = extra
    readers = [(u.owner.operation, int(u.operand_number)) for u in result.uses]
    if len(readers) == 1 and _join(program, readers[0], line, axis - t.rank, key):
        return
    shape = [1] * (t.rank - axis)
    shape[0] = whole
    with ir.after(operation):
        array = round_once(line, numpy_dtype(t.dtype)).reshape(shape)
        made = ir.build("ai.elemwise_add", result, ir.constant(program, array, key))
    for reader, place in readers:
        reader.operands[place] = made


def _join(program: ir.Program, use: Use, line: Array, axis: int, key: str) -> bool:
    """Add the line to the constant that an addition after the product adds anyway."""
    operation, operand = use
    if operation.name != "ai.elemwise_add":
        return False
    other = operation.operands[1 - operand]
    array = known(program, other)
    if array is None or array.ndim < -axis or array.shape[axis] != len(line):
        return False
    shape = [1] * array.ndim
    shape[axis] = len(line)
    total = round_once(array.astype(np.float64) + line.reshape(shape), array.dtype)
    with ir.before(operation):
        operation.operands[1 - operand] = ir.constant(program, total, key)
    return True
