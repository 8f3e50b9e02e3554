"""Further networks, in the form of networks.py: what people deploy beside the ten of the tables.

Most come from the configurations of `transformers` in the size of a published checkpoint, or
smaller where that one is large; seven are plain torch. Weights are random, but activations keep
an ordinary size: where an initialisation would let them vanish it is changed, else answers agree
whatever a branch computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.networks import (
    IMAGE,
    Classifier,
    Network,
    Positional,
    convolution,
    settle,
    token_ids,
)

HIDDEN = "last_hidden_state"


def vision(kind: str, side: int = 224, output: str = HIDDEN, **config: Any) -> Network:
    """A model of `transformers` on an image of side x side."""
    import transformers

    return on_image(getattr(transformers, kind)(_config(kind, **config)), side, output)


def on_image(
    model: nn.Module, side: int, output: str = HIDDEN, ends: Sequence[nn.Module] = ()
) -> Network:
    """A model whose normalisations' statistics are filled: `settle`."""
    inputs = {"pixel_values": torch.randn(1, 3, side, side)}
    module = Positional(model, list(inputs), [output])
    return Network(settle(module, (3, side, side), ends), inputs, [output])


def text(
    kind: str, length: int = 64, output: str = HIDDEN, options: Any = None, **config: Any
) -> Network:
    """A model of `transformers` on random tokens; `options` go to its call."""
    import transformers

    configuration = _config(kind, **config)
    model = getattr(transformers, kind)(configuration)
    inputs = {"input_ids": token_ids(configuration.vocab_size, length)}
    return Network(Positional(model, list(inputs), [output], **(options or {})), inputs, [output])


def decoder(kind: str, **config: Any) -> Network:
    """A small language model of decoder blocks, without a cache."""
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "vocab_size": 8000}
    return text(kind, output="logits", options={"use_cache": False}, **sizes, **config)


def _config(kind: str, **config: Any) -> Any:
    """The configuration of a model class, which names it."""
    import transformers

    return getattr(transformers, kind).config_class(**config)


def regnet() -> Network:
    from transformers import RegNetConfig, RegNetModel

    model = RegNetModel(RegNetConfig())
    blocks = [block for stage in model.encoder.stages for block in stage.layers]
    return on_image(model, 224, ends=[block.layer[-1].normalization for block in blocks])


def whisper_encoder() -> Network:
    """Of the tiny size: 30 s of a mel spectrogram, 80 bands."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536
    )
    inputs = {"input_features": torch.randn(1, 80, 3000)}
    return Network(Positional(WhisperEncoder(config), list(inputs), [HIDDEN]), inputs, [HIDDEN])


def wav2vec2() -> Network:
    """The base size with four of its layers: one second of sound at 16 kHz."""
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    model = Wav2Vec2Model(Wav2Vec2Config(num_hidden_layers=4))
    inputs = {"input_values": torch.randn(1, 16000)}
    return Network(Positional(model, list(inputs), [HIDDEN]), inputs, [HIDDEN])


def distilbert() -> Network:
    from transformers import DistilBertConfig, DistilBertModel

    model = DistilBertModel(DistilBertConfig())
    inputs = {
        "input_ids": token_ids(30522, 64),
        "attention_mask": torch.ones(1, 64, dtype=torch.int64),
    }
    return Network(Positional(model, list(inputs), [HIDDEN]), inputs, [HIDDEN])


def bart() -> Network:
    """Encoder and decoder with cross-attention, no cache."""
    from transformers import BartConfig, BartModel

    sizes = {
        f"{side}_{what}": size
        for side in ("encoder", "decoder")
        for what, size in (("layers", 4), ("attention_heads", 8), ("ffn_dim", 2048))
    }
    model = BartModel(BartConfig(d_model=512, vocab_size=5000, **sizes))
    inputs = {"input_ids": token_ids(5000, 64), "decoder_input_ids": token_ids(5000, 16)}
    module = Positional(model, list(inputs), [HIDDEN], use_cache=False)
    return Network(module, inputs, [HIDDEN])


class UNet(nn.Module):
    """Ronneberger et al. 2015 with padding and batch normalisation: `depth` halvings and back."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(self.pair(i, o) for i, o in pairwise([3, *widths]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(o, i, 2, 2) for i, o in reversed(pairs))
        self.join = nn.ModuleList(self.pair(o, i) for i, o in reversed(pairs))
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def pair(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(convolution(inputs, outputs, 3), convolution(outputs, outputs, 3))

    def forward(self, x: Tensor) -> Tensor:
        *levels, bottom = self.down
        kept = []
        for level in levels:
            kept.append(level(x))
            x = nn.functional.max_pool2d(kept[-1], 2)
        x = bottom(x)
        for up, join, skip in zip(self.up, self.join, reversed(kept), strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.head(x)


def unet() -> Network:
    inputs = {"image": torch.randn(1, 3, 256, 256)}
    return Network(settle(UNet(32, 3, 2), (3, 256, 256)), inputs, ["mask"])


silu = partial(convolution, act=nn.SiLU)


class Split(nn.Module):
    """The block C2f of YOLOv8: half of the channels pass residual pairs, all stages are joined."""

    def __init__(self, inputs: int, outputs: int, blocks: int, shortcut: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.shortcut = shortcut
        self.first = silu(inputs, outputs, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(silu(half, half, 3), silu(half, half, 3)) for _ in range(blocks)
        )
        self.last = silu((2 + blocks) * half, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        stages = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            found = block(stages[-1])
            stages.append(stages[-1] + found if self.shortcut else found)
        return self.last(torch.cat(stages, 1))


class Pyramid(nn.Module):
    """Three 5x5 maxima one after the other, joined with what they came from (SPPF)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = silu(width, width // 2, 1), silu(2 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        stages = [self.first(x)]
        for _ in range(3):
            stages.append(nn.functional.max_pool2d(stages[-1], 5, 1, 2))
        return self.last(torch.cat(stages, 1))


class Yolo(nn.Module):
    """A detector like the smallest YOLOv8, its neck upwards only, no boxes' anchors.

    Gives the distances of a box's four sides, each the mean of a distribution over `bins` steps,
    and the classes' scores: [1, 4, places] and [1, classes, places].
    """

    def __init__(self, classes: int = 80, bins: int = 16) -> None:
        super().__init__()
        self.classes, self.bins = classes, bins
        self.stem = nn.Sequential(
            silu(3, 16, 3, 2),
            silu(16, 32, 3, 2),
            Split(32, 32, 1, True),
            silu(32, 64, 3, 2),
            Split(64, 64, 2, True),
        )
        self.middle = nn.Sequential(silu(64, 128, 3, 2), Split(128, 128, 2, True))
        self.deep = nn.Sequential(silu(128, 256, 3, 2), Split(256, 256, 1, True), Pyramid(256))
        self.joins = nn.ModuleList([Split(256 + 128, 128, 1, False), Split(128 + 64, 64, 1, False)])
        outputs = 4 * bins + classes
        self.heads = nn.ModuleList(nn.Conv2d(width, outputs, 1) for width in (64, 128, 256))
        self.register_buffer("steps", torch.arange(float(bins)).view(1, bins, 1, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.stem(x)
        middle = self.middle(fine)
        deep = self.deep(middle)
        enlarge = partial(nn.functional.interpolate, scale_factor=2.0, mode="nearest")
        middle = self.joins[0](torch.cat([enlarge(deep), middle], 1))
        fine = self.joins[1](torch.cat([enlarge(middle), fine], 1))
        levels = zip(self.heads, (fine, middle, deep), strict=True)
        found = torch.cat([head(level).flatten(2) for head, level in levels], 2)
        sides, scores = found.split((4 * self.bins, self.classes), 1)
        shares = sides.view(sides.shape[0], 4, self.bins, -1).transpose(1, 2).softmax(1)
        return (shares * self.steps).sum(1), scores.sigmoid()


def yolo() -> Network:
    inputs = {"image": torch.randn(1, 3, 320, 320)}
    return Network(settle(Yolo(), (3, 320, 320)), inputs, ["sides", "scores"])


class Shuffle(nn.Module):
    """Ma et al. 2018, ShuffleNetV2: one half of the channels passes, then halves interleave."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.stride = stride
        width = half if stride == 1 else inputs
        self.body = nn.Sequential(
            convolution(width, half, 1),
            convolution(half, half, 3, stride, groups=half, act=None),
            convolution(half, half, 1),
        )
        if stride > 1:
            self.passing = nn.Sequential(
                convolution(inputs, inputs, 3, stride, groups=inputs, act=None),
                convolution(inputs, half, 1),
            )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            left, right = x.chunk(2, 1)
        else:
            left, right = self.passing(x), x
        return nn.functional.channel_shuffle(torch.cat([left, self.body(right)], 1), 2)


def shufflenet() -> Network:
    layers: list[nn.Module] = [convolution(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    inputs = 24
    for width, blocks in ((116, 4), (232, 8), (464, 4)):
        for block in range(blocks):
            layers.append(Shuffle(inputs, width, 1 if block else 2))
            inputs = width
    layers.append(convolution(inputs, 1024, 1))
    return Network(settle(Classifier(layers, 1024)), {"image": torch.randn(1, *IMAGE)}, ["logits"])


class Dense(nn.Module):
    """Huang et al. 2017, DenseNet-BC: a layer's 32 channels are joined to all that were before."""

    def __init__(self, inputs: int, growth: int = 32) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU())
        self.body = nn.Sequential(
            convolution(inputs, 4 * growth, 1), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(self.first(x))], 1)


def densenet() -> Network:
    """DenseNet-121."""
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for number, blocks in enumerate((6, 12, 24, 16)):
        if number:
            halved = nn.Conv2d(width, width // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(width), nn.ReLU(), halved, nn.AvgPool2d(2)]
            width //= 2
        layers += [Dense(width + 32 * block) for block in range(blocks)]
        width += 32 * blocks
    layers += [nn.BatchNorm2d(width), nn.ReLU()]
    return Network(settle(Classifier(layers, width)), {"image": torch.randn(1, *IMAGE)}, ["logits"])


class Ghost(nn.Module):
    """Han et al. 2020, GhostNet: half of the channels are made of the others, one by one."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        half = outputs // 2
        self.first = convolution(inputs, half, 1)
        self.cheap = convolution(half, half, 3, groups=half)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return torch.cat([x, self.cheap(x)], 1)


def ghostnet() -> Network:
    """Its modules in a row, no squeezing, at the widths of the paper's first stages."""
    layers: list[nn.Module] = [convolution(3, 16, 3, 2)]
    inputs = 16
    for width, stride in ((48, 2), (72, 1), (72, 2), (120, 1), (120, 2), (240, 1), (200, 1)):
        layers.append(Ghost(inputs, width))
        if stride > 1:
            layers.append(convolution(width, width, 3, 2, groups=width, act=None))
        inputs = width
    return Network(
        settle(Classifier(layers, inputs)), {"image": torch.randn(1, *IMAGE)}, ["logits"]
    )


class Volume(nn.Module):
    """Cicek et al. 2016, 3D U-Net, small: instance normalisation, two halvings and back."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(self.stage, (1, width, 2 * width), (width, 2 * width, 64)))
        self.up = nn.ModuleList(nn.ConvTranspose3d(2 * w, w, 2, 2) for w in (2 * width, width))
        self.join = nn.ModuleList(self.stage(2 * w, w) for w in (2 * width, width))
        self.head = nn.Conv3d(width, 3, 1)

    @staticmethod
    def stage(inputs: int, outputs: int) -> nn.Sequential:
        norm = nn.InstanceNorm3d(outputs, affine=True)
        return nn.Sequential(nn.Conv3d(inputs, outputs, 3, 1, 1), norm, nn.LeakyReLU())

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.down
        kept = [first(x)]
        kept.append(second(nn.functional.max_pool3d(kept[0], 2)))
        x = third(nn.functional.max_pool3d(kept[1], 2))
        for up, join, skip in zip(self.up, self.join, reversed(kept), strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.head(x)


def unet3d() -> Network:
    return Network(Volume().eval(), {"volume": torch.randn(1, 1, 32, 48, 48)}, ["mask"])


class Vocoder(nn.Module):
    """Kong et al. 2020, HiFi-GAN's generator: each enlargement is followed by the mean of three
    stacks of dilated convolutions of 3, 7 and 11 taps. 256 samples a frame.
    """

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.up, self.stacks = nn.ModuleList(), nn.ModuleList()
        for stride, taps in ((8, 16), (8, 16), (4, 8)):
            half, pad = width // 2, (taps - stride) // 2
            self.up.append(nn.ConvTranspose1d(width, half, taps, stride, pad))
            self.stacks.append(nn.ModuleList(self.stack(half, taps) for taps in (3, 7, 11)))
            width = half
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    @staticmethod
    def stack(width: int, taps: int) -> nn.ModuleList:
        return nn.ModuleList(
            nn.Conv1d(width, width, taps, padding=taps // 2 * dilation, dilation=dilation)
            for step in (1, 3, 5) for dilation in (step, 1)
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        leaky = partial(nn.functional.leaky_relu, negative_slope=0.1)
        x = self.first(x)
        for up, stacks in zip(self.up, self.stacks, strict=True):
            x = up(leaky(x))
            found = []
            for layers in stacks:
                y = x
                for dilated, plain in zip(layers[::2], layers[1::2], strict=True):
                    y = y + plain(leaky(dilated(leaky(y))))
                found.append(y)
            x = (found[0] + found[1] + found[2]) / 3
        return torch.tanh(self.last(leaky(x)))


def hifigan() -> Network:
    return Network(Vocoder().eval(), {"mel": torch.randn(1, 80, 64)}, ["sound"])


FURTHER: dict[str, Callable[[], Network]] = {
    "swin": lambda: vision("SwinModel"),
    # Its usual 1e-6 would leave out what the blocks compute.
    "convnext": lambda: vision("ConvNextModel", layer_scale_init_value=1.0),
    "regnet": regnet,
    "efficientnet": lambda: vision(
        "EfficientNetModel",
        image_size=224,
        width_coefficient=1.0,
        depth_coefficient=1.0,
        hidden_dim=1280,
    ),
    "mobilevit": lambda: vision("MobileViTModel", 256),
    "shufflenet": shufflenet,
    "segformer": lambda: vision(
        "SegformerForSemanticSegmentation", 256, output="logits", num_labels=150
    ),
    "densenet": densenet,
    "ghostnet": ghostnet,
    "unet": unet,
    "unet3d": unet3d,
    "yolo": yolo,
    "hifigan": hifigan,
    "whisper_encoder": whisper_encoder,
    "wav2vec2": wav2vec2,
    "t5_encoder": lambda: text("T5EncoderModel"),
    "deberta": lambda: text(
        "DebertaV2Model",
        hidden_size=384,
        num_hidden_layers=6,
        num_attention_heads=6,
        intermediate_size=1536,
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=64,
    ),
    "distilbert": distilbert,
    "albert": lambda: text(
        "AlbertModel", hidden_size=768, num_attention_heads=12, intermediate_size=3072
    ),
    "clip_text": lambda: text("CLIPTextModel", 77),
    "bart": bart,
    "qwen2": lambda: decoder(
        "Qwen2ForCausalLM", num_hidden_layers=8, num_key_value_heads=2, intermediate_size=1408
    ),
    "gemma": lambda: decoder(
        "GemmaForCausalLM",
        num_hidden_layers=6,
        num_key_value_heads=1,
        head_dim=64,
        intermediate_size=2048,
    ),
    "mamba": lambda: text(
        "MambaModel",
        32,
        options={"use_cache": False},
        hidden_size=256,
        num_hidden_layers=4,
        vocab_size=1000,
    ),
}
