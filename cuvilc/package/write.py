"""Writes a package: aside, then renamed over the destination; or nothing at all.

Same inputs, same bytes: no time, path, host or user enters any file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import cast

from cuvilc import artifact
from cuvilc.artifact import FileInfo, Metadata
from cuvilc.diagnostics import fail
from cuvilc.package.begun import Begun
from cuvilc.package.cache import Cache
from cuvilc.package.check import check_plan
from cuvilc.package.codes import BAD_LIBRARY
from cuvilc.package.cuvla import fingerprint
from cuvilc.package.destination import check_destination, os_errors, staged, sync
from cuvilc.package.elf import ElfError, begin_segment, dependencies, end_segment, function_sizes
from cuvilc.package.image import weight_order, write_image
from cuvilc.package.link import Object, link_library, runtime_objects
from cuvilc.package.plan import Plan
from cuvilc.package.runtime_source import RuntimeSource, feature_bits, find_runtime
from cuvilc.package.toolchain import Toolchain, find_toolchain
from cuvilc.package.vectors import Vectors, write_vectors_file
from cuvilc.package.weights import Weights, WeightsAhead, WeightsSummary

_LINKED_FILE = ".linked"  # until its content is where the weights are already


def write_package(
    plan: Plan,
    objects: Sequence[Object],
    weights: Weights,
    metadata: Metadata,
    destination: Path,
    *,
    vectors: Vectors | None = None,
    toolchain: Toolchain | None = None,
    runtime: RuntimeSource | None = None,
    cache: Cache | None = None,
    links: Cache | None = None,
    adapters: Callable[[bytes], Sequence[bytes]] = lambda base: (),
    begun: Begun | None = None,
) -> Metadata:
    """Write the package directory `destination`, or replace it; the metadata as written.

    `objects` are object files, as bytes or paths, that define every kernel of `plan` for every
    level; `metadata` comes from `describe`; `cache` keeps the compiled runtime, `links` linked
    libraries; `adapters` gives those that come with the package, for its fingerprint (cuvla.py);
    `begun` has the weights of `plan` in their place already, and is of no use afterwards.
    Raises CUV501 to CUV511; then nothing is left behind, and what stood there stands there still.
    """
    check_destination(destination)
    with os_errors(destination):
        toolchain = toolchain or find_toolchain()
        runtime = runtime or find_runtime()
        features = feature_bits(runtime)
        check_plan(plan, weights, features)
        runtime_code = runtime_objects(toolchain, runtime, cache or Cache(enabled=False))
        with (
            staged(destination, begun.staging if begun else None) as staging,
            ExitStack() as stack,
        ):
            library = staging / artifact.LIBRARY_FILE
            linked = staging / _LINKED_FILE if begun else library
            ahead = None if begun else stack.enter_context(_ahead(plan, weights))
            link_library(plan, objects, runtime_code, linked, toolchain, links)
            complete = _measured(metadata, plan, objects, linked)
            if vectors is not None:
                write_vectors_file(staging / artifact.VECTORS_FILE, vectors)
                cases, tolerance = len(vectors.cases), vectors.tolerance
                complete["vectors"] = {"cases": cases, "tolerance": tolerance}
            if begun is not None and linked.stat().st_size > begun.offset:
                begun.close()
                linked.replace(library)
                begun, ahead = None, stack.enter_context(_ahead(plan, weights))
            text, sha256_known = partial(_text, plan, complete), ""
            try:
                if begun is not None:
                    sha256_known = begun.finish(linked.read_bytes(), text, adapters)
                    linked.unlink()
                elif ahead is not None:
                    _append_image(library, plan, ahead, features, text, adapters)
            except ElfError as error:
                message = f"the linked library cannot carry the image: {error}"
                raise fail(BAD_LIBRARY, message) from error
            _finish(staging, complete, {library.name: sha256_known})
    return complete


def _ahead(plan: Plan, weights: Weights) -> WeightsAhead:
    return WeightsAhead(weights, weight_order(plan))


def _measured(metadata: Metadata, plan: Plan, objects: Sequence[Object], library: Path) -> Metadata:
    """A copy of `metadata` with code sizes and what the library asks of the system."""
    sizes: dict[str, int] = {}
    try:
        for item in objects:
            sizes |= function_sizes(item if isinstance(item, bytes) else item.read_bytes())
        needs = dependencies(library.read_bytes())
    except ElfError as error:
        raise fail(BAD_LIBRARY, f"cannot read what was compiled: {error}") from error
    complete = cast(Metadata, {**metadata, "memory": {**metadata["memory"]}})
    complete["target"] = {
        **metadata["target"],
        "min_glibc": needs.min_glibc,
        "needed": sorted(needs.needed),
    }
    levels = list(enumerate(plan.levels))
    complete["kernels"] = [
        {
            **kernel,
            "code_bytes": {
                x.name: sizes.get(plan.code_symbol(kernel["name"], i), 0) for i, x in levels
            },
        }
        for kernel in metadata["kernels"]
    ]
    return complete


def _append_image(
    library: Path,
    plan: Plan,
    weights: WeightsAhead,
    features: Mapping[str, int],
    text: Callable[[WeightsSummary], bytes],
    adapters: Callable[[bytes], Sequence[bytes]],
) -> None:
    """Append plan, weights and metadata to the library and map them."""
    with library.open("r+b") as file:
        offset = begin_segment(file)
        write_image(file, plan, weights, features, text, adapters)
        end_segment(file, offset)


def _text(plan: Plan, metadata: Metadata, stored: WeightsSummary) -> bytes:
    """Completes `metadata` with what tells of the weights; its text."""
    metadata["weights"] = {"bytes": stored.size_bytes, "count": stored.count}
    if stored.sha256:
        metadata["weights"]["sha256"] = stored.sha256
    metadata["memory"]["weights_bytes"] = stored.size_bytes
    if plan.adaptable:
        metadata["lora"] = metadata.get("lora", {}) | {
            "mode": "batch" if plan.hidden_inputs else "swap",
            "fingerprint": fingerprint(plan.adaptable, stored.sha256).hex(),
            "weights": [a.describe() for a in plan.adaptable],
        }
    return artifact.canonical(metadata)


def _finish(staging: Path, metadata: Metadata, known: Mapping[str, str]) -> None:
    """Write the metadata file, with the hash of every other; all of them are on disk afterwards.

    `known`: hashes by name, "" where there is none yet.
    """
    files = sorted(staging.iterdir())
    with ThreadPoolExecutor(1, "sync") as pool:  # the disk is busy while the hashes are computed
        synced = pool.submit(sync, files)
        metadata["files"] = {p.name: _file_info(p, known.get(p.name, "")) for p in files}
        synced.result()
    description = staging / artifact.METADATA_FILE
    description.write_bytes(artifact.canonical(metadata))
    sync([description, staging])


def _file_info(path: Path, known: str) -> FileInfo:
    """Of a file that nobody else writes: it is hashed where the page cache has it, uncopied."""
    size_bytes = path.stat().st_size
    if known:
        return {"sha256": known, "bytes": size_bytes}
    with path.open("rb") as file, mmap(file.fileno(), size_bytes, access=ACCESS_READ) as content:
        return {"sha256": sha256(content).hexdigest(), "bytes": size_bytes}
