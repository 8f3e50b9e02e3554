"""Train LoRA adapters with PEFT, then serve them from packages that cuvilc compiles.

A small Llama with random weights is the base. Each adapter teaches it a task on tokens: the next
one, the mirrored one, the square. The base is compiled with an adapter folded in, for swapping
(the square is unknown to that package and comes from a file), and for batches whose rows have
different adapters. Every answer is compared with PEFT's own. Nothing is downloaded:

    python examples/lora/demo.py [FOLDER]
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import cuvil
import numpy as np
import peft
import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
TOKENS, LENGTH, STEPS = 16, 8, 200
TASKS: dict[str, Callable[[Any], Any]] = {
    "next": lambda x: (x + 1) % TOKENS,
    "mirror": lambda x: TOKENS - 1 - x,
    "square": lambda x: x * x % TOKENS,  # learned later, for a package that is there already
}
ADAPTERS = {
    "next": peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"),
    "mirror": peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", use_rslora=True),
    "square": peft.LoraConfig(
        r=8, lora_alpha=16, target_modules=["gate_proj", "up_proj", "down_proj"]
    ),
}


class Logits(torch.nn.Module):
    """Tokens int64 [batch, LENGTH] in, logits [batch, LENGTH, TOKENS] out: what is exported."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(tokens)
        found: torch.Tensor = self.model(tokens, attention_mask=mask, use_cache=False).logits
        return found


def base() -> torch.nn.Module:
    """The same weights every time."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=TOKENS, hidden_size=64, intermediate_size=176, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
        initializer_range=0.15, attn_implementation="eager",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def train(task: str, folder: Path) -> Logits:
    """Train an adapter for the task and save it; returns PEFT's model, adapter unmerged."""
    model = peft.get_peft_model(base(), ADAPTERS[task])
    logits = Logits(model.base_model.model)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    start, first = time.perf_counter(), 0.0
    for step in range(STEPS):
        tokens = torch.randint(0, TOKENS, (16, LENGTH))
        guess = logits(tokens).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(guess, TASKS[task](tokens).flatten())
        first = first if step else loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    seconds, values = time.perf_counter() - start, sum(p.numel() for p in trained)
    print(f"trained   {task:8} loss {first:.2f} -> {loss.item():.4f} in {seconds:.1f} s, "
          f"{values} values")  # fmt: skip
    return logits.eval()


def export(path: Path) -> None:
    """The base alone, its batch open."""
    tokens = torch.zeros(2, LENGTH, dtype=torch.int64)
    torch.onnx.export(
        Logits(base()), (tokens,), path, input_names=["tokens"], output_names=["logits"],
        dynamic_shapes={"tokens": {0: torch.export.Dim("batch", min=1, max=64)}},
        dynamo=True, verbose=False,
    )  # fmt: skip


def cuvilc(*words: str | Path) -> None:
    """One command of the compiler, shown and run."""
    shown = [w.name if isinstance(w, Path) else w for w in words]
    start = time.perf_counter()
    quiet = [] if words[0] == "adapter" else ["--quiet", "--vectors", "0", "--cpu", "host"]
    command = [sys.executable, "-m", "cuvilc", *words, *quiet]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    print(f"ran       cuvilc {' '.join(shown)}  ({time.perf_counter() - start:.1f} s)")


def median_ms(run: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return median(seconds) * 1000


def size_kb(path: Path) -> float:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files) / 1000


class Table:
    """Answers of packages beside PEFT's, a row each."""

    def __init__(self, truth: dict[str | None, Logits]) -> None:
        self.tokens = torch.randint(0, TOKENS, (64, LENGTH))
        with torch.no_grad():
            self.truth = {name: model(self.tokens).numpy() for name, model in truth.items()}
        tasks = "".join(f"{task:>8}" for task in TASKS)
        print(f"\n{'package':9}{'adapter':9}{tasks}{'from PEFT':>12}{'latency':>11}{'size':>10}")

    def run(self, model: Any, adapters: Sequence[str | None] = ()) -> np.ndarray:
        """`adapters`: of each row, for a package that takes batches of them."""
        given = {"adapters": adapters} if adapters else {}
        found: np.ndarray = model.run({"tokens": self.tokens.numpy()}, **given)["logits"]
        return found

    def row(
        self, package: Path, label: str | None, model: Any, mixed: Sequence[str | None] = ()
    ) -> np.ndarray:
        """Tokens right for each task, the largest error of a logit, ms for 64 rows, kB.

        `mixed`: the adapter of each row; a task is then asked of the rows with its adapter.
        """
        found = self.run(model, mixed)
        best = torch.from_numpy(found.argmax(-1))
        truth = self.truth[label] if not mixed else self.mixed_truth(mixed)
        cells = ""
        for name, task in TASKS.items():
            rows = [a == name for a in mixed] or [True] * len(found)
            cells += f"{(best == task(self.tokens))[rows].double().mean().item():8.0%}"
        print(
            f"{package.stem:9}{'each row' if mixed else label or '–':9}{cells}"
            f"{np.abs(found - truth).max():12.1e}"
            f"{median_ms(lambda: self.run(model, mixed), 30):8.2f} ms{size_kb(package):7.0f} kB"
        )
        return found

    def mixed_truth(self, mixed: Sequence[str | None]) -> np.ndarray:
        return np.stack([self.truth[adapter][row] for row, adapter in enumerate(mixed)])


def swap(package: Path, later: Path, table: Table) -> str:
    """Exchange adapters in one loaded package; one comes from a file. Ends if a trace is left.

    Returns what to say of it.
    """
    model = cuvil.load(package, threads=1)
    plain = table.row(package, None, model)
    found = {None: plain}
    for name in ("next", "mirror"):
        model.use(name)
        found[name] = table.row(package, name, model)
    model.load_adapter(later, "square")
    model.use("square")
    found["square"] = table.row(package, "square", model)
    for name in ("next", "mirror", "next", "square", None, "mirror", "next", None):
        model.use(name)
        if not np.array_equal(table.run(model), found[name]):
            raise SystemExit(f"{name}: not the answer it was before")
    names = [name for name in found if name is not None]
    times = [median_ms(lambda name=name: model.use(name), 1) for name in names * 20]
    return (
        f"swaps     {median(times):.2f} ms each; next -> mirror -> next: bit-identical\n"
        f"adapter   {later.name}: {size_kb(later):.0f} kB, package {size_kb(package):.0f} kB"
    )


def batch(package: Path, table: Table) -> None:
    """Different adapters in the rows of one run; every fourth row has none."""
    model = cuvil.load(package, threads=1)
    table.row(package, None, model)
    table.row(package, None, model, [*TASKS, None] * 16)


def main() -> None:
    folder = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "lora"
    folder.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore")  # the exporter's
    logging.disable(logging.WARNING)
    torch.manual_seed(1)
    torch.set_num_threads(1)  # tensors this small gain nothing from more
    trained = {task: train(task, folder / task) for task in TASKS}
    export(folder / "model.onnx")
    build = ["build", folder / "model.onnx"]
    packages = [folder / f"{mode}.cuvil" for mode in ("base", "fold", "swap", "batch")]
    plain, folded, swapped, batched = packages
    one, two, three = (("--adapter", folder / task) for task in TASKS)
    cuvilc(*build, "-o", plain)
    cuvilc(*build, *one, "-o", folded)
    cuvilc(*build, *one, *two, "--lora", "swap", "-o", swapped)
    cuvilc(*build, *one, *two, *three, "--lora", "batch", "-o", batched)
    later = folder / "square.cuvla"
    cuvilc("adapter", "build", folder / "square", "--base", swapped, "-o", later)

    table = Table({None: Logits(base()), **trained})
    table.row(plain, None, cuvil.load(plain, threads=1))
    table.row(folded, "next", cuvil.load(folded, threads=1))
    notes = swap(swapped, later, table)
    batch(batched, table)
    print(f"\n{notes}")


if __name__ == "__main__":
    main()
