"""What lora.py measures: models without adapters as ONNX files, and adapters for them from PEFT.

FOLDER/NAME-rRANK/ holds model.onnx (the base alone, static shapes), inputs.npz, adapters/a0, a1, …
(PEFT folders), sites.json (which initialiser is which module's weight, transposed), and torch's own
answers: base.npz without an adapter, one.npz with a0 in every row, many.npz with row i's own a{i}.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.models import cache_folder

FILES = ("model.onnx", "inputs.npz", "sites.json", "base.npz", "one.npz")
SMALL_LLAMA = {
    "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip
SMALL_BERT = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4
}  # fmt: skip


@dataclass(frozen=True)
class Workload:
    """A model, its inputs, and where its adapters are. rows: of the batch."""

    kind: str  # "prefill", "decode" or "bert"
    rows: int
    adapters: int
    targets: tuple[str, ...]
    config: dict[str, int] = field(default_factory=dict)

    def network(self) -> Any:
        """The same weights every time."""
        import torch

        from benchmarks import networks

        torch.manual_seed(0)
        if self.kind == "bert":
            network = networks.bert(**self.config)
        elif self.kind == "prefill":
            network = networks.prefill(lambda: networks.llama(**self.config))
        else:
            network = networks.decode(lambda: networks.llama(**self.config), rows=self.rows)
        network.module.eval().requires_grad_(False)
        return network


_QV = ("q_proj", "v_proj")
_QUERY_VALUE = ("query", "value")
FULL = {
    "swap": Workload("bert", 1, 3, _QUERY_VALUE),
    "prefill": Workload("prefill", 1, 1, _QV),
    "decode": Workload("decode", 1, 1, _QV),
    "decode64": Workload("decode", 64, 64, _QV),
}
QUICK = {
    "swap": Workload("bert", 1, 3, _QUERY_VALUE, SMALL_BERT),
    "prefill": Workload("prefill", 1, 1, _QV, SMALL_LLAMA),
    "decode": Workload("decode", 1, 1, _QV, SMALL_LLAMA),
    "decode64": Workload("decode", 4, 4, _QV, SMALL_LLAMA),
}


def names(count: int) -> list[str]:
    return [f"a{i}" for i in range(count)]


def ensure(name: str, rank: int, quick: bool, into: Path | None = None) -> Path:
    """The folder of a workload; made when it is not there whole."""
    label = f"{name}-r{rank}" + "-quick" * quick
    folder = (into or cache_folder() / "lora") / label
    if not all((folder / file).is_file() for file in FILES):
        print(f"exporting {label} …", end="", flush=True)
        start = time.perf_counter()
        aside = folder.with_name(f"{folder.name}.{os.getpid()}")
        aside.mkdir(parents=True)
        try:
            _export((QUICK if quick else FULL)[name], rank, aside)
            shutil.rmtree(folder, ignore_errors=True)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        print(f" {time.perf_counter() - start:.0f} s", flush=True)
    return folder


def _export(workload: Workload, rank: int, folder: Path) -> None:
    import torch

    network = workload.network()
    torch.set_num_threads(1)
    with torch.inference_mode():
        _save(folder / "base.npz", network)
    arguments = tuple(network.inputs.values())
    with torch.no_grad():
        torch.onnx.export(
            network.module, arguments, folder / "model.onnx", input_names=list(network.inputs),
            output_names=network.outputs, dynamo=True, external_data=False, verbose=False,
        )  # fmt: skip
    np.savez(folder / "inputs.npz", **{k: v.numpy() for k, v in network.inputs.items()})
    sites = _sites(folder / "model.onnx", network.module.model, workload.targets)
    (folder / "sites.json").write_text(json.dumps(sites, indent=1) + "\n")
    model = adapted(network, rank, workload)
    model.save_pretrained(folder / "adapters")
    with torch.inference_mode():
        _save(folder / "one.npz", network)
        if workload.adapters > 1 and workload.adapters == workload.rows:
            network.module.options["adapter_names"] = names(workload.adapters)
            _save(folder / "many.npz", network)


def adapted(network: Any, rank: int, workload: Workload) -> Any:
    """PEFT's model, put into the network; random adapters, a0 in use."""
    import peft

    config = peft.LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=list(workload.targets), init_lora_weights=False
    )
    first, *others = names(workload.adapters)
    model = peft.get_peft_model(network.module.model, config, adapter_name=first)
    for name in others:
        model.add_adapter(name, config)
    model.eval().requires_grad_(False)
    network.module.model = model
    return model


def loaded(network: Any, folder: Path, count: int) -> Any:
    """The same with the adapters that are saved in a workload's folder."""
    import peft

    first, *others = names(count)
    places = folder / "adapters"
    model = peft.PeftModel.from_pretrained(network.module.model, places / first, adapter_name=first)
    for name in others:
        model.load_adapter(places / name, adapter_name=name)
    model.eval().requires_grad_(False)
    network.module.model = model
    return model


def _save(path: Path, network: Any) -> None:
    found = network.module(*network.inputs.values())
    np.savez(path, **{k: v.numpy() for k, v in zip(network.outputs, found, strict=True)})


def _sites(path: Path, model: Any, targets: tuple[str, ...]) -> dict[str, str]:
    """The initialiser that equals each adapted module's weight, transposed."""
    import onnx

    arrays = {i.name: onnx.numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}
    found = {}
    for module_name, module in model.named_modules():
        if module_name.rpartition(".")[2] in targets:
            weight = module.weight.numpy().T
            found[module_name] = next(n for n, a in arrays.items() if _equal(a, weight))
    return found


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b))


def factors(folder: Path, name: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """A [r, K] and scale · B [N, r] of each module of an adapter."""
    from safetensors.numpy import load_file

    place = folder / "adapters" / name
    config: dict[str, Any] = json.loads((place / "adapter_config.json").read_text())
    scale = np.float32(config["lora_alpha"] / config["r"])
    tensors = load_file(place / "adapter_model.safetensors")
    found = {}
    for key, a in tensors.items():
        if key.endswith(".lora_A.weight"):
            b = tensors[key.replace("lora_A", "lora_B")]
            module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            found[module] = (a, scale * b)
    return found


def changed_bytes(folder: Path) -> int:
    """Of the base's weights that an adapter changes."""
    return 4 * sum(a.shape[1] * b.shape[0] for a, b in factors(folder, "a0").values())
