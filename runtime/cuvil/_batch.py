"""Requests of several threads in one run: what may share it, and a queue that makes batches."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ._error import CuvilError
from ._model import Model


@dataclass(frozen=True, eq=False)
class Request:
    """One caller's inputs, checked against the model's ports. `rows`: along the batch axis."""

    arrays: dict[str, np.ndarray]
    rows: int
    adapter: str | None = None
    future: Future[dict[str, np.ndarray]] = field(default_factory=Future)


def batch_axis(model: Model) -> str:
    """The symbol that is axis 0 of every input and output, and of no other axis.

    CuvilError CUV610 where there is none: then rows of different requests cannot be told apart.
    """
    ports = (*model.inputs, *model.outputs)
    names = {port.dims[0] if port.dims else None for port in ports}
    name = next(iter(names)) if len(names) == 1 else None
    others = " ".join(str(d) for port in ports for d in port.dims[1:])
    if not isinstance(name, str) or not name.isidentifier() or name in others.split():
        raise _error(
            model,
            "CUV610",
            "requests cannot be batched: axis 0 of every input and output must be the same open "
            "size, and no other axis may have it",
        )
    return name


def _error(model: Model, code: str, message: str) -> CuvilError:
    return CuvilError(code, message, model.place)


def can_batch(model: Model, first: Request, second: Request) -> str:
    """ "" where two requests may share a run; else why not.

    They may when every input has the same dtype and the same sizes but for the batch axis, the rows
    of both are within its range, and the package can serve both adapters at once.
    """
    for port in model.inputs:
        a, b = first.arrays[port.name], second.arrays[port.name]
        if a.shape[1:] != b.shape[1:]:
            return f"input `{port.name}`: length {a.shape[1:]} is not {b.shape[1:]}"
        if a.dtype != b.dtype:
            return f"input `{port.name}`: dtype {a.dtype} is not {b.dtype}"
    most = model.inputs[0].ranges[0][1]
    if most is not None and first.rows + second.rows > most:
        return f"{first.rows} + {second.rows} rows are more than the {most} that the model takes"
    if first.adapter != second.adapter and model.lora_mode != "batch":
        return f"adapter {first.adapter!r} is not {second.adapter!r}, and one run has one adapter"
    return ""


class Batcher:
    """Makes batches of the requests of many threads.

    batcher = cuvil.Batcher(model, most_rows=32, wait_s=0.002)
    scores = batcher({"ids": ids}, adapter="sql")        # from any thread; blocks
    future = batcher.submit({"ids": ids})                # or does not

    A request waits at most `wait_s` for others that may share its run (`can_batch`), and a batch
    has at most `most_rows` rows. Requests run in the order in which they came, those that may not
    share the first one's run later. When a run fails, its requests are run one by one, so that only
    the one at fault fails. In a package for swapping, the batcher decides which adapter is in use:
    nobody else should call `model.use` meanwhile.
    """

    def __init__(self, model: Model, most_rows: int = 32, wait_s: float = 0.002) -> None:
        if most_rows < 1 or not 0 <= wait_s <= 60:
            raise _error(
                model, "CUV610", f"most_rows is {most_rows}, wait_s {wait_s}: 1 or more, and 0..60"
            )
        self.model, self.most_rows, self.wait_s = model, most_rows, wait_s
        batch_axis(model)
        self.runs = self.rows = 0  # done so far
        self._queue: deque[Request] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="cuvil-batcher", daemon=True)
        self._thread.start()

    def __call__(
        self, feeds: Mapping[str, Any], adapter: str | None = None
    ) -> dict[str, np.ndarray]:
        """Outputs by name, once the batch with this request has run."""
        return self.submit(feeds, adapter).result()

    def submit(
        self, feeds: Mapping[str, Any], adapter: str | None = None
    ) -> Future[dict[str, np.ndarray]]:
        """The request's future. What is wrong with its inputs is raised here."""
        request = self._request(feeds, adapter)
        with self._changed:
            if self._closed:
                raise _error(self.model, "CUV610", "the batcher is closed")
            self._queue.append(request)
            self._changed.notify_all()
        return request.future

    def close(self) -> None:
        """Run what waits, and end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Batcher:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _request(self, feeds: Mapping[str, Any], adapter: str | None) -> Request:
        arrays = self.model.check_feeds(feeds)
        rows = {a.shape[0] for a in arrays.values() if a.ndim}
        if len(rows) != 1:
            message = f"the inputs have {sorted(rows)} rows along the batch axis"
            raise _error(self.model, "CUV606", message)
        loaded = [a.name for a in self.model.adapters]
        if adapter is not None and adapter not in loaded:
            message = f"there is no adapter `{adapter}`; loaded: {', '.join(loaded) or 'none'}"
            if not self.model.lora_mode:
                message = (
                    "the package takes no adapters: it was not built with --lora swap or batch"
                )
            raise _error(self.model, "CUV612", message)
        return Request(arrays, rows.pop(), adapter)

    def _serve(self) -> None:
        while batch := self._next():
            claimed = [r for r in batch if r.future.set_running_or_notify_cancel()]
            if claimed:
                self._run(claimed)

    def _next(self) -> list[Request]:
        """The oldest request and those that may share its run; none when closed and empty."""
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            if not self._queue:
                return []
            until = time.monotonic() + self.wait_s
            while (batch := self._fitting()) and not self._closed:
                left = until - time.monotonic()
                if sum(r.rows for r in batch) >= self.most_rows or left <= 0:
                    break
                self._changed.wait(left)
            for request in batch:
                self._queue.remove(request)
            return batch

    def _fitting(self) -> list[Request]:
        first, *others = self._queue
        batch, rows = [first], first.rows
        for request in others:
            together = replace(first, rows=rows)
            fits = rows + request.rows <= self.most_rows
            if fits and not can_batch(self.model, together, request):
                batch.append(request)
                rows += request.rows
        return batch

    def _run(self, batch: list[Request]) -> None:
        try:
            outputs = self._outputs(batch)
        except CuvilError as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for request in batch:
                self._run([request])
            return
        except BaseException as error:  # a thread that dies would leave its callers waiting
            for request in batch:
                request.future.set_exception(error)
            return
        start = 0
        for request in batch:
            end = start + request.rows
            request.future.set_result({n: y[start:end].copy() for n, y in outputs.items()})
            start = end

    def _outputs(self, batch: list[Request]) -> dict[str, np.ndarray]:
        feeds = batch[0].arrays
        if len(batch) > 1:
            feeds = {n: np.concatenate([r.arrays[n] for r in batch]) for n in feeds}
        self.runs += 1
        self.rows += sum(r.rows for r in batch)
        if self.model.lora_mode == "batch":
            return self.model.run(feeds, adapters=[r.adapter for r in batch for _ in range(r.rows)])
        if self.model.lora_mode:
            self.model.use(batch[0].adapter)
        return self.model.run(feeds)
