"""Which ways of building adapters a model and its adapters leave, found by trying, for a dry run.

Each trial has a program of its own, since it changes it, and goes as far as what can refuse the
mode: `--lora batch` asks what the optimised program does to rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cuvilc import driver_lora
from cuvilc.diagnostics import CuvilError
from cuvilc.driver_lora import BATCH, FOLD, MODES

if TYPE_CHECKING:
    from cuvilc.driver import BuildRequest


def refusals(request: BuildRequest) -> dict[str, CuvilError]:
    """By mode, why it is not possible. A mode that the request names is not tried: what follows
    says it.
    """
    found = {}
    for mode in MODES:
        if mode != request.lora:
            try:
                _try(request, mode)
            except CuvilError as error:
                found[mode] = error.with_traceback(None)  # which would keep the program
    return found


def _try(request: BuildRequest, mode: str) -> None:
    from cuvilc import driver  # noqa: PLC0415
    from cuvilc.dialect.passes import PIPELINE, batch_adapters, merge_lora  # noqa: PLC0415
    from cuvilc.dialect.passes.context import PassContext  # noqa: PLC0415

    modules = "" if mode == FOLD else request.lora_modules  # which are for adapters to come
    trial = replace(request, lora=mode, lora_modules=modules)
    program = driver.load_model(trial.model, trial.shapes, trial.dims, trial.elements)
    attached = driver_lora.find(program, trial)
    assert attached is not None
    driver_lora.attach(program, trial, attached)
    if mode == FOLD:
        merge_lora.check(program)
    elif mode == BATCH:
        context = PassContext(
            precision=trial.precision, prefer=trial.prefer, math_exact=trial.math == "exact",
            fusion=trial.fusion,
        )  # fmt: skip
        for each in PIPELINE[: PIPELINE.index(batch_adapters) + 1]:
            each.run(program, context)
