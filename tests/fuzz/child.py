"""The process that builds hostile models under bounds; its death costs one model.

`Child` is the side that asks; `python -m tests.fuzz.child` the side that builds: a path and a
target a line in, an outcome a line out.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import subprocess
import sys
import traceback
from pathlib import Path
from time import process_time

ROOT = Path(__file__).resolve().parents[2]
BUILD_S = 10  # of processor time: other work on the machine does not count
PER_NODE_S = 1e-3  # more, for each node of the file: a hundred thousand may be what a model needs
WAIT_S = 300  # until it counts as a hang without processor time
MOST_ELEMENTS = 1 << 22  # of an input, when a package is run
MEMORY_BYTES = 3 << 30  # address space beyond what the libraries take
GOOD = ("package", "refused")


class Child:
    """Builds models one after another in a process of its own; starts another after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, path: Path, target: str) -> tuple[str, str]:
        """(outcome, details): `package`, `refused`, or what must not be."""
        process = self._start()
        assert process.stdin and process.stdout
        try:
            process.stdin.write(json.dumps([str(path), target]).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return "crash", self.close()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            answered = selector.select(WAIT_S)
        line = process.stdout.readline() if answered else b""
        if not line:
            why = self.close()
            return ("crash" if answered else "hang"), why
        kind, details = json.loads(line)
        return kind, details

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.child"], cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            assert self._process.stdout
            self._process.stdout.readline()  # "ready": imports are no part of a model's time
        return self._process

    def close(self) -> str:
        """End the child; says how it ended, if by itself."""
        process, self._process = self._process, None
        if process is None:
            return ""
        try:
            if process.stdin:
                process.stdin.close()
            code = process.wait(2)
        except (subprocess.TimeoutExpired, OSError):
            process.kill()
            process.wait()
            return f"no answer within {WAIT_S} s"
        finally:
            if process.stdout:
                process.stdout.close()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


def outcome(path: Path, target: str) -> tuple[str, str]:
    """Build the model; what came of it."""
    from cuvilc.diagnostics import CODES, CuvilError
    from cuvilc.driver import BuildRequest, build

    start = process_time()
    cpu = "host" if target == "x86" else ""
    package = path.with_suffix(".cuvil")
    try:
        build(BuildRequest(path, package, target=target, cpu=cpu, jobs=1, vectors=0))
        spent = process_time() - start  # how long the model itself takes is its own affair
        if target == "x86" and b"Loop" not in path.read_bytes():
            run_once(package)
        start = process_time() - spent
        found = ("package", "")
    except CuvilError as error:
        code = error.diagnostics[0].code
        ours = CODES[code].exit_code == 3
        text = "\n".join(d.render() for d in error.diagnostics[:3])
        found = ("internal" if ours else "refused", f"{_report(path) if ours else ''}{text}"[:4000])
    except MemoryError:
        found = ("memory", traceback.format_exc()[-3000:])
    except BaseException:  # anything else is a finding, SystemExit and KeyboardInterrupt too
        found = ("traceback", traceback.format_exc()[-3000:])
    spent = process_time() - start
    if spent > BUILD_S and spent > BUILD_S + PER_NODE_S * _nodes(path) and found[0] in GOOD:
        return "slow", f"{spent:.1f} s of processor time: {found[0]} {found[1][:300]}"
    return found


def run_once(package: Path) -> None:
    """Run the package on inputs of any content. Its own errors (memory, sizes) are fine."""
    import numpy as np

    from cuvilc.diagnostics import CODES, CuvilError
    from cuvilc.open_package import open_package

    rng, sizes = np.random.default_rng(0), {}
    try:
        loaded = open_package(package, threads=1)
        feeds = {}
        for port in loaded.inputs:
            shape = [
                d if isinstance(d, int) else sizes.setdefault(d, lo + 2)
                for d, (lo, _) in zip(port.dims, port.ranges, strict=True)
            ]
            if np.prod([float(d) for d in shape]) > MOST_ELEMENTS:
                return
            bits = rng.integers(0, 255, [*shape, port.dtype.itemsize], np.uint8)
            bits = bits % 2 if port.dtype == bool else bits
            feeds[port.name] = bits.view(port.dtype).reshape(shape)
        with np.errstate(all="ignore"):
            loaded.run(feeds)
        loaded.close()
    except CuvilError as error:
        if CODES[error.diagnostics[0].code].exit_code == 3:
            raise


def _nodes(path: Path) -> int:
    import onnx

    try:
        return len(onnx.load(path, load_external_data=False).graph.node)
    except Exception:  # protobuf's errors differ between its implementations
        return 0


def _report(path: Path) -> str:
    """The end of the crash report that the driver wrote beside the package."""
    reports = sorted(path.parent.glob("*.crash.txt"))
    return reports[-1].read_text()[-2500:] + "\n" if reports else ""


def serve() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    import cuvilc.driver
    import cuvilc.targets.kernels  # noqa: F401  # the libraries' own address space is no model's

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers.write("ready\n")
    for line in sys.stdin:
        path, target = json.loads(line)
        answers.write(json.dumps(outcome(Path(path), target)) + "\n")


if __name__ == "__main__":
    serve()
