"""The benchmark networks as torch modules, weights random from a fixed seed.

A builder returns a Network: module, inputs by name in call order, names of the outputs. The
convolutional networks are plain torch; the transformers come from the configurations of
`transformers`, with random weights, so nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

IMAGE = (3, 224, 224)


class Network(NamedTuple):
    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: list[str]


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: Any = nn.ReLU
) -> nn.Sequential:
    """Convolution, batch normalisation and, unless None, an activation."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, act()) if act else nn.Sequential(*layers)


class Residual(nn.Module):
    """He et al. 2016: two 3x3 convolutions, or 1x1, 3x3, 1x1 as a bottleneck, and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            self.body = nn.Sequential(
                convolution(inputs, width, 1),
                convolution(width, width, 3, stride),
                convolution(width, outputs, 1, act=None),
            )
        else:
            self.body = nn.Sequential(
                convolution(inputs, width, 3, stride), convolution(width, width, 3, act=None)
            )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride, act=None)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


class InvertedResidual(nn.Module):
    """Sandler et al. 2018: widen, depthwise 3x3, narrow."""

    def __init__(self, inputs: int, outputs: int, stride: int, widen: int) -> None:
        super().__init__()
        width = inputs * widen
        first = [] if widen == 1 else [convolution(inputs, width, 1, act=nn.ReLU6)]
        self.body = nn.Sequential(
            *first,
            convolution(width, width, 3, stride, groups=width, act=nn.ReLU6),
            convolution(width, outputs, 1, act=None),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.shortcut else self.body(x)


class Classifier(nn.Module):
    """Features, mean over the image, one linear layer."""

    def __init__(self, features: Sequence[nn.Module], width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.head = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


def settle(
    module: nn.Module, image: tuple[int, int, int] = IMAGE, ends: Sequence[nn.Module] = ()
) -> nn.Module:
    """One training pass fills the normalisations' statistics: activations stay of order one.

    ends: normalisations that end residual branches, a quarter as strong. Training does the same;
    in deep networks with branches as strong as what they are added to, errors of rounding explode.
    """
    quiet = {id(end) for end in ends}
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None
            strength = 0.25 if id(layer) in quiet else 1.0
            nn.init.uniform_(layer.weight, 0.7 * strength, 1.3 * strength)
            nn.init.uniform_(layer.bias, -0.2, 0.2)
    module.train()
    with torch.no_grad():
        module(torch.randn(4, *image))
    return module


def resnet(depths: Sequence[int], bottleneck: bool) -> Network:
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, depth in enumerate(depths):
        width = 64 << stage
        for block in range(depth):
            layers.append(Residual(inputs, width, 2 if stage and not block else 1, bottleneck))
            inputs = 4 * width if bottleneck else width
    return Network(settle(Classifier(layers, inputs)), {"x": torch.randn(1, *IMAGE)}, ["logits"])


# (widen, channels, blocks, stride), table 2 of the paper.
MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2() -> Network:
    layers: list[nn.Module] = [convolution(3, 32, 3, 2, act=nn.ReLU6)]
    inputs = 32
    for widen, channels, blocks, stride in MOBILENET_V2:
        for block in range(blocks):
            layers.append(InvertedResidual(inputs, channels, 1 if block else stride, widen))
            inputs = channels
    layers.append(convolution(inputs, 1280, 1, act=nn.ReLU6))
    return Network(settle(Classifier(layers, 1280)), {"x": torch.randn(1, *IMAGE)}, ["logits"])


class Positional(nn.Module):
    """Gives a model of `transformers` positional inputs and a tuple of tensors as output."""

    def __init__(self, model: nn.Module, inputs: list[str], outputs: list[str], **options: Any):
        super().__init__()
        self.model, self.inputs, self.outputs, self.options = model, inputs, outputs, options

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        result = self.model(**dict(zip(self.inputs, values, strict=True)), **self.options)
        return tuple(result[name] for name in self.outputs)


class Decode(nn.Module):
    """One token behind a cache: (ids, key0, value0, ...) -> (logits, key0', value0', ...)."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model, self.options = model, options

    def forward(self, input_ids: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        result = self.model(
            input_ids=input_ids, past_key_values=cache, use_cache=True, **self.options
        )
        kept = [t for layer in result.past_key_values.layers for t in (layer.keys, layer.values)]
        return (result.logits, *kept)


def token_ids(vocabulary: int, length: int, rows: int = 1) -> Tensor:
    return torch.randint(0, vocabulary, (rows, length))


def bert(**config: int) -> Network:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(attn_implementation="sdpa", **config))
    outputs = ["last_hidden_state", "pooler_output"]
    inputs = {
        "input_ids": token_ids(30522, 128),
        "attention_mask": torch.ones(1, 128, dtype=torch.int64),
    }
    return Network(Positional(model, list(inputs), outputs), inputs, outputs)


def vit_s16() -> Network:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=6,
        intermediate_size=1536,
        num_labels=1000,
        attn_implementation="sdpa",
    )
    model = ViTForImageClassification(config)
    inputs = {"pixel_values": torch.randn(1, *IMAGE)}
    return Network(Positional(model, list(inputs), ["logits"]), inputs, ["logits"])


class Language(NamedTuple):
    """A causal language model and what its inputs look like."""

    module: nn.Module
    vocabulary: int
    layers: int
    cache_heads: int
    head_width: int


def gpt2() -> Language:
    from transformers import GPT2Config, GPT2LMHeadModel

    return Language(GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa")), 50257, 12, 12, 64)


LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
}


def llama(**changed: int) -> Language:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(attn_implementation="sdpa", **(LLAMA | changed))
    width = config.hidden_size // config.num_attention_heads
    layers, heads = config.num_hidden_layers, config.num_key_value_heads
    return Language(LlamaForCausalLM(config), config.vocab_size, layers, heads, width)


def prefill(make: Callable[[], Language], length: int = 64) -> Network:
    """All logits of a prompt."""
    language = make()
    inputs = {"input_ids": token_ids(language.vocabulary, length)}
    module = Positional(language.module, list(inputs), ["logits"], use_cache=False)
    return Network(module, inputs, ["logits"])


def decode(make: Callable[[], Language], past: int = 64, rows: int = 1) -> Network:
    """The next token of each row behind a cache of `past` tokens."""
    language = make()
    names = [f"{kind}{layer}" for layer in range(language.layers) for kind in ("key", "value")]
    shape = (rows, language.cache_heads, past, language.head_width)
    inputs = {"input_ids": token_ids(language.vocabulary, 1, rows)}
    inputs |= {name: torch.randn(shape) for name in names}
    return Network(Decode(language.module), inputs, ["logits", *(f"{n}_out" for n in names)])


NETWORKS: dict[str, Callable[[], Network]] = {
    "resnet18": lambda: resnet((2, 2, 2, 2), bottleneck=False),
    "resnet50": lambda: resnet((3, 4, 6, 3), bottleneck=True),
    "mobilenetv2": mobilenet_v2,
    "bert_base": bert,
    "minilm": lambda: bert(
        hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    ),
    "vit_s16": vit_s16,
    "gpt2_prefill": lambda: prefill(gpt2),
    "gpt2_decode": lambda: decode(gpt2),
    "llama_prefill": lambda: prefill(llama),
    "llama_decode": lambda: decode(llama),
}


def build(name: str, seed: int = 0) -> Network:
    """The network of this name, here or in further_networks.py, in inference mode."""
    from benchmarks.further_networks import FURTHER

    torch.manual_seed(seed)
    network = (NETWORKS | FURTHER)[name]()
    network.module.eval().requires_grad_(False)
    return network
