"""A process that runs cases: names in, outcomes out, a line each. Its death costs one case.

`Worker` is the side that asks; `python -m tests.conformance.worker TARGET` the side that runs.
The target `onnxruntime` is no target of cuvilc's: onnxruntime runs the cases itself.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RIVAL = "onnxruntime"
START_S = 180  # the first time, onnx computes its cases
CASE_S = 60
MEMORY_BYTES = 8 << 30


class Worker:
    """Runs cases in a child process; starts another one after a crash or a timeout."""

    def __init__(self, target: str = "x86") -> None:
        self.target = target
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, name: str) -> dict[str, str]:
        """The outcome of a case: name, operator, kind, reason."""
        process = self._start()
        if isinstance(process, str):
            return lost(name, process)
        assert process.stdin
        try:
            process.stdin.write(name.encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return lost(name, self.close())
        line = self._line(CASE_S)
        return lost(name, self.close()) if line is None else json.loads(line)

    def _start(self) -> subprocess.Popen[bytes] | str:
        if self._process is None:
            path = os.pathsep.join([str(ROOT), str(ROOT / "runtime")])
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.conformance.worker", self.target],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            if self._line(START_S) is None:
                return f"the worker does not start: {self.close()}"
        return self._process

    def _line(self, timeout_s: float) -> bytes | None:
        """The child's next line; None if it died or took too long."""
        assert self._process
        assert self._process.stdout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_s):
                return None
        return self._process.stdout.readline() or None

    def close(self) -> str:
        """End the child; says how it ended, if by itself."""
        process, self._process = self._process, None
        if process is None:
            return ""
        try:
            code = process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"no answer within {CASE_S} s"
        finally:
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()
        return f"the process died: signal {-code}" if code < 0 else f"the process ended: {code}"


def lost(name: str, reason: str) -> dict[str, str]:
    return {"name": name, "operator": "", "kind": "failed", "reason": reason}


def serve(target: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    from tests.conformance.cases import all_cases

    if target == RIVAL:
        from tests.conformance.onnxruntime_cases import run_case
    else:
        from tests.conformance.compiled import run_case as compiled

        run_case = partial(compiled, target=target)
    cases = all_cases()
    answers.write("ready\n")
    for line in sys.stdin:
        outcome: Any = run_case(cases[line.strip()])
        answers.write(json.dumps(vars(outcome)) + "\n")


if __name__ == "__main__":
    serve(sys.argv[1])
