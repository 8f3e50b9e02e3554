"""How long building takes: `python benchmarks/build_time.py [--models NAME ...]`.

In process, a fresh one each: model file to loaded package, by phase, without the cache. As a
command: `cuvilc build` with all its imports, with an empty and with a full cache. For the host's
CPU level and for the default package. The least of --rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "runtime")]

from benchmarks import models
from benchmarks.machine import machine

HOST, DEFAULT = "host", ""


def in_process(model: str, cpu: str) -> None:
    """The child: build and load, print seconds by phase as JSON. Imports are not counted."""
    import cuvil

    from cuvilc.driver import BuildRequest, build

    with tempfile.TemporaryDirectory() as folder:
        warm(Path(folder), cpu)
        package = Path(folder) / "model.cuvil"
        start = time.perf_counter()
        report = build(BuildRequest(Path(model), package, cpu=cpu, use_cache=False, vectors=0))
        built = time.perf_counter()
        loaded = cuvil.load(package)
        end = time.perf_counter()
        loaded.close()
    phases = {**report.seconds, "load": end - built, "all": end - start}
    print(json.dumps({"phases": phases, "kernels": report.kernels_built}))


def warm(folder: Path, cpu: str) -> None:
    """One tiny build imports what a build imports."""
    import onnx
    from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info

    from cuvilc.driver import BuildRequest, build

    ports = [make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy"]
    graph = make_graph([make_node("Relu", ["x"], ["y"])], "warm", ports[:1], ports[1:])
    onnx.save(make_model(graph), folder / "warm.onnx")
    build(BuildRequest(folder / "warm.onnx", folder / "warm.cuvil", cpu=cpu, use_cache=False))


def child(model: Path, cpu: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", str(model), cpu]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(out.stdout.splitlines()[-1])
    return result


def command_s(model: Path, cpu: str, cache: Path) -> float:
    """Wall time of `cuvilc build`."""
    with tempfile.TemporaryDirectory() as folder:
        call = "from cuvilc.cli import command; command()"
        command = [sys.executable, "-c", call, "build", model, "-o", f"{folder}/model.cuvil", "-q"]
        command += ["--cpu", cpu] if cpu else []
        path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
        environment = {**os.environ, "CUVILC_CACHE_DIR": str(cache), "PYTHONPATH": path}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
        start = time.perf_counter()
        subprocess.run(command, check=True, env=environment)
        return time.perf_counter() - start


def measure(model: Path, cpu: str, rounds: int) -> dict[str, Any]:
    results = [child(model, cpu) for _ in range(rounds)]
    best = min(results, key=lambda r: r["phases"]["all"])
    cold, cached = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            cold.append(command_s(model, cpu, Path(cache)))
            cached.append(command_s(model, cpu, Path(cache)))
    return {**best, "command_s": min(cold), "cached_s": min(cached)}


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
                phases = "  ".join(f"{k} {v * 1e3:.0f}" for k, v in result["phases"].items())
                print(
                    f"{name}, {cpu or 'default'}: {result['kernels']} kernels\n"
                    f"  in process, no cache, ms:  {phases}\n"
                    f"  command: {result['command_s']:.2f} s, "
                    f"with a full cache {result['cached_s']:.2f} s",
                    flush=True,
                )
    if options.json:
        print(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
