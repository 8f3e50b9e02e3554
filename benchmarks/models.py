"""Export the benchmark models: `python benchmarks/models.py [NAME ...] [--into FOLDER]`.

Names that end in -int8 or -dynamic are quantised (quantised.py), and only made when asked for; so
are the networks of further_networks.py, and names that begin with zoo-: trained models of public
packages (zoo.py), answers by onnxruntime.

FOLDER/NAME/ holds model.onnx (torch.onnx, the dynamo exporter, static shapes, batch 1),
inputs.npz, ref.npz (torch's own answers, one thread) and meta.json (operations, bytes). What is
there already is kept. Needs the `bench` and `torch` extras.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # this folder's names must not hide others' (`kernels`)
    sys.path[0] = str(Path(__file__).resolve().parents[1])

FILES = ("model.onnx", "inputs.npz", "ref.npz", "meta.json")
NAMES = (
    "resnet18",
    "resnet50",
    "mobilenetv2",
    "bert_base",
    "minilm",
    "vit_s16",
    "gpt2_prefill",
    "gpt2_decode",
    "llama_prefill",
    "llama_decode",
)
FURTHER = (
    "swin",
    "convnext",
    "regnet",
    "efficientnet",
    "mobilevit",
    "shufflenet",
    "segformer",
    "densenet",
    "ghostnet",
    "unet",
    "unet3d",
    "yolo",
    "hifigan",
    "whisper_encoder",
    "wav2vec2",
    "t5_encoder",
    "deberta",
    "distilbert",
    "albert",
    "clip_text",
    "bart",
    "qwen2",
    "gemma",
    "mamba",
)
QUANTISED = (
    "resnet18-int8",
    "resnet50-int8",
    "mobilenetv2-int8",
    "bert_base-int8",
    "minilm-int8",
    "minilm-dynamic",
)
ALL = NAMES + FURTHER + QUANTISED
ZOO = "zoo-"


def named(words: Iterable[str]) -> list[str]:
    """Names of models; the word `further` stands for those of FURTHER."""
    return [name for word in words for name in (FURTHER if word == "further" else (word,))]


def cache_folder() -> Path:
    """$CUVIL_BENCH_MODELS, or a folder of the user's cache."""
    chosen = os.environ.get("CUVIL_BENCH_MODELS")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else base / "cuvil" / "benchmark-models"


def ensure(name: str, into: Path | None = None) -> Path:
    """The folder of an exported model; exports it when it is not there whole."""
    folder = (into or cache_folder()) / name
    if not all((folder / file).is_file() for file in FILES):
        export(name, folder)
    return folder


def export(name: str, folder: Path) -> None:
    """Export aside, then rename: a folder that exists is whole."""
    aside = folder.with_name(f"{folder.name}.{os.getpid()}")
    aside.mkdir(parents=True)
    try:
        if name in QUANTISED:
            from benchmarks.quantised import quantise

            source, _, kind = name.rpartition("-")
            quantise(ensure(source, folder.parent), kind, aside)
        elif name.startswith(ZOO):
            from benchmarks.zoo import take

            take(name.removeprefix(ZOO), aside)
        else:
            _trace(name, aside)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _trace(name: str, aside: Path) -> None:
    """Torch's export of a network, and its own answers."""
    import numpy as np
    import torch

    from benchmarks.networks import build

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            network = build(name)
            arguments = tuple(network.inputs.values())
            answer = network.module(*arguments)
            answers = answer if isinstance(answer, tuple) else (answer,)
            torch.onnx.export(
                network.module,
                arguments,
                aside / "model.onnx",
                input_names=list(network.inputs),
                output_names=network.outputs,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            np.savez(aside / "inputs.npz", **{k: v.numpy() for k, v in network.inputs.items()})
            pairs = zip(network.outputs, answers, strict=True)
            np.savez(aside / "ref.npz", **{k: v.numpy() for k, v in pairs})
            meta = {"name": name, **facts(network.module, arguments), "torch": torch.__version__}
            (aside / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    finally:
        torch.set_num_threads(threads)


def facts(module: Any, arguments: tuple[Any, ...]) -> dict[str, int]:
    """Multiply-adds counted as two operations; weight bytes with and without embedding tables."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    switch = next((m for m in module.modules() if hasattr(m, "set_attn_implementation")), None)
    if switch is not None:
        switch.set_attn_implementation("eager")  # the counter knows plain products only
    with FlopCounterMode(display=False) as counter:
        module(*arguments)
    embeddings = {
        id(p)
        for layer in module.modules()
        if isinstance(layer, torch.nn.Embedding)
        for p in layer.parameters(recurse=False)
    }
    weights = {id(p): p.nbytes for p in module.parameters()}
    return {
        "flops": counter.get_total_flops(),
        "weight_bytes": sum(weights.values()),
        "weight_bytes_read": sum(n for key, n in weights.items() if key not in embeddings),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}")
    parser.add_argument("--into", type=Path, default=cache_folder())
    options = parser.parse_args()
    if unknown := {n for n in options.names if not n.startswith(ZOO)} - set(ALL):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    for name in options.names or NAMES:
        start = time.perf_counter()
        folder = ensure(name, options.into)
        meta = json.loads((folder / "meta.json").read_text())
        print(
            f"{name:14} {meta['flops'] / 1e9:7.2f} GFLOP {meta['weight_bytes'] / 1e6:7.1f} MB "
            f"{time.perf_counter() - start:6.1f} s",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    sys.exit(main())
