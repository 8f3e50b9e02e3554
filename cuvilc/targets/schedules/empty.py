"""Results without elements: nothing to do, whatever the operations are.

The other schedules may then divide by a size of theirs.
"""

from __future__ import annotations

from cuvilc.dialect import ir
from cuvilc.dialect.dims import product
from cuvilc.targets.chip import Chip
from cuvilc.targets.region import Emitter, Miss, Region, Scheduled


def schedule(region: Region, chip: Chip, name: str) -> Scheduled:
    """No task at all. Raises Miss if a result has elements, or may have."""
    if any(product(ir.type_of(v).shape) != 0 for v in region.results):
        raise Miss("a result has elements")
    emitter = Emitter(region, name)
    with emitter.builder.tasks():
        pass
    return emitter.finish("empty", 0, 0)
