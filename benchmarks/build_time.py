"""How long building takes: `python benchmarks/build_time.py [--models NAME ...]`.

In process, a fresh one each: model file to loaded package, by phase, without the cache and with a
full one. As a command: `cuvilc build` with all its imports, without a cache (--no-cache), with an
empty one, where the runtime is compiled too, and with a full one. For the host's CPU level and for
the default package. The least of --rounds counts, each of wall time and of the CPU time of all
threads, which tells more on a machine that others use. What a build writes to has been in use
before: a virtual machine may get memory from its host only as it touches it, and writing BERT-base
then takes a second longer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

from benchmarks import models
from benchmarks.machine import machine

HOST, DEFAULT = "host", ""


def in_process(model: str, cpu: str, cached: str) -> None:
    """The child: build and load, print seconds by phase as JSON. Imports are not counted.

    `cached`: "cached" for a full cache.
    """
    import cuvil

    from cuvilc.driver import BuildRequest, build

    with tempfile.TemporaryDirectory() as folder:
        warm(Path(folder), cpu)
        package = Path(folder) / "model.cuvil"
        request = BuildRequest(Path(model), package, cpu=cpu, use_cache=bool(cached), vectors=0)
        if cached:
            build(request)
            shutil.rmtree(package)
        touch(Path(folder) / "touched", 3 * Path(model).stat().st_size)
        start, busy = time.perf_counter(), time.process_time()
        report = build(request)
        built = time.perf_counter()
        loaded = cuvil.load(package)
        end = time.perf_counter()
        busy = time.process_time() - busy
        loaded.close()
    phases = {**report.seconds, "load": end - built, "all": end - start, "cpu": busy}
    kernels = report.kernels_built + report.kernels_cached
    print(json.dumps({"phases": phases, "kernels": kernels}))


def touch(path: Path, size_bytes: int) -> None:
    """Fill the page cache with so much, and let go of it: memory that is there to be written to."""
    block = bytes(1 << 24)
    with path.open("wb", buffering=0) as file:
        for _ in range(-(-size_bytes // len(block))):
            file.write(block)
    path.unlink()


def warm(folder: Path, cpu: str) -> None:
    """One tiny build imports what a build imports."""
    import onnx
    from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info

    from cuvilc.driver import BuildRequest, build

    ports = [make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy"]
    graph = make_graph([make_node("Relu", ["x"], ["y"])], "warm", ports[:1], ports[1:])
    onnx.save(make_model(graph), folder / "warm.onnx")
    build(BuildRequest(folder / "warm.onnx", folder / "warm.cuvil", cpu=cpu, use_cache=False))


def child(model: Path, cpu: str, cached: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", str(model), cpu, "cached" if cached else ""]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return result


def command_s(model: Path, cpu: str, cache: Path, *options: str) -> tuple[float, float]:
    """Wall time of `cuvilc build`, and its CPU time with that of the C compiler."""
    with tempfile.TemporaryDirectory() as folder:
        call = "from cuvilc.cli import command; command()"
        command = [sys.executable, "-c", call, "build", model, "-o", f"{folder}/model.cuvil", "-q"]
        command += [*options, *(["--cpu", cpu] if cpu else [])]
        path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
        environment = {**os.environ, "CUVILC_CACHE_DIR": str(cache), "PYTHONPATH": path}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        start, busy = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
        subprocess.run(command, check=True, env=environment)
        wall, now = time.perf_counter() - start, getrusage(RUSAGE_CHILDREN)
        return wall, now.ru_utime + now.ru_stime - busy.ru_utime - busy.ru_stime


def measure(model: Path, cpu: str, rounds: int) -> dict[str, Any]:
    results = [[child(model, cpu, cached) for cached in (False, True)] for _ in range(rounds)]
    plain, full = (_least([r["phases"] for r in each]) for each in zip(*results, strict=True))
    commands = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder)
            empty, cached = (command_s(model, cpu, cache) for _ in range(2))
            walls = {"no cache": command_s(model, cpu, cache, "--no-cache")}
            walls |= {"empty cache": empty, "full cache": cached}
            commands.append({k: v[0] for k, v in walls.items()})
            commands[-1] |= {f"{k}, cpu": v[1] for k, v in walls.items()}
    kernels = results[0][0]["kernels"]
    return {"kernels": kernels, "phases": plain, "cached": full, "command": _least(commands)}


def _least(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: min(each[name] for each in rounds) for name in rounds[0]}


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        in_process(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["resnet18"], metavar="NAME")
    parser.add_argument("--folder", type=Path, default=models.cache_folder(), help="of the models")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    report: dict[str, Any] = {"machine": machine(), "results": []}
    for name in options.models:
        model = models.ensure(name, options.folder) / "model.onnx"
        for cpu in (HOST, DEFAULT):
            result = measure(model, cpu, options.rounds)
            report["results"].append({"model": name, "cpu": cpu or "default", **result})
            if not options.json:
                print(f"{name}, {cpu or 'default'}: {result['kernels']} kernels")
                rows = {"no cache": result["phases"], "full cache": result["cached"]}
                for cache, phases in rows.items():
                    spelled = "  ".join(f"{k} {v * 1e3:.0f}" for k, v in phases.items())
                    print(f"  in process, {cache}, ms:  {spelled}")
                spelled = "; ".join(f"{k} {v:.2f}" for k, v in result["command"].items())
                print(f"  command, s:  {spelled}", flush=True)
    if options.json:
        print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
