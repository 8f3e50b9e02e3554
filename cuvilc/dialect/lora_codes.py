"""The diagnostics of adapters in a program and a package: from CUV740, and from CUV760."""

from __future__ import annotations

from cuvilc.diagnostics import define

CHAINED_MAGNITUDES = define(
    "CUV740",
    "a DoRA adapter cannot be folded together with another",
    """\
DoRA scales the rows of a weight to a learned length, and that length depends on what is in the
weight already. With two adapters on one weight, of which one is DoRA, the result depends on their
order, and no order is the right one.

Next step: build a package for each of them, or one with `--lora swap` or `--lora batch`, which keep
them apart; `cuvilc adapter inspect` shows which modules they share.
""",
)

NOT_FINITE = define(
    "CUV741",
    "a weight with the adapter in it is not finite",
    """\
The merged weight was computed in float64 and then rounded to the base weight's dtype, where at
least one element is infinite or NaN. Usual reasons: the sum is beyond the largest float16 (65504),
or a DoRA adapter meets a row of zeros, which has no direction.

Next step: export the base model in bfloat16 or float32; check the adapter's scale (lora_alpha / r).
""",
)

CLASHING_CHANGES = define(
    "CUV742",
    "two adapters replace the same parameter",
    """\
`modules_to_save` and trained biases replace a parameter as a whole: a classifier, say, takes the
place of the base's. Two adapters that bring different values for it cannot both be folded.

Next step: build a package for each of them, or one with `--lora swap` or `--lora batch`, where each
has its own.
""",
)

NO_PLACE = define(
    "CUV743",
    "the program has no place for this part of an adapter",
    """\
The parameter was found, but the graph around it leaves no room for the change. With `--lora batch`:
where the module computes, rows are not those of the batch (axis 0 of the first input), so that
nothing tells whose adapter a row has. Otherwise: a bias of B (`lora_bias`) on a weight whose
product could not be found, or a replaced parameter whose sizes are not those of the program's.

Next step: the message names the module and, of `--lora batch`, the operation after which the rows
were not the batch's: one that picks rows, puts another axis first, or joins rows of several.
Indexing by 0, 1, 2, … along the batch, as attention masks are made, is understood. Build with
`--lora swap` or `fold`, or change the model so that axis 0 stays the batch there; where the batch
has a fixed size that another axis has too, export the model with an open batch axis. Otherwise
export it again without graph optimisations (`torch.onnx.export(…, optimize=False)`).
""",
)

NO_SUCH_MODE = define(
    "CUV744",
    "adapters cannot be built in this way",
    """\
`--lora` says what becomes of adapters: `fold` merges them into the weights, which costs nothing
when the model runs; `swap` keeps them apart, to be exchanged in milliseconds; `batch` serves
different ones in one batch. The message says why this does not go here: a mode that there is not,
an option that says nothing in this mode, two adapters of one name, or a part of the model or the
adapter that the mode does not take. `fold` takes every kind of change, `swap` those of weights that
are not quantised, `batch` those that a row can have for itself: factors of linear layers and
embeddings, and biases.

Next step: do what the message's help says; `cuvilc build MODEL --adapter DIR --dry-run` compares
the modes.
""",
    exit_code=2,
)

OTHER_ADAPTER = define(
    "CUV745",
    "other adapters are folded into the package than were named",
    """\
`cuvilc verify PKG --against MODEL --adapter DIR` compares a folded package with the base model and
the adapters that were folded into it. The package remembers them by the SHA-256 of their tensors,
and what was named has others: a later checkpoint of the same training, another adapter, or not all
of several.

Next step: name the adapters that the message lists by `--adapter`; or, where the new ones are
meant, build the package again: `cuvilc build MODEL --adapter DIR`.
""",
)

NOT_EXCHANGEABLE = define(
    "CUV760",
    "a weight cannot be exchanged at run time",
    """\
`--lora swap` keeps the weights that adapters change apart from everything else, so that another
adapter can be put in their place while the package is loaded. This one is not there as such: it is
quantised (its numbers and its scales would both change), or computed from others.

Next step: build with `--lora fold`, which changes such weights too; or build from the model before
it was quantised; or, for adapters that come later, leave the module out with `--lora-modules`.
""",
)

NOT_IN_PACKAGE = define(
    "CUV761",
    "an adapter changes what the package cannot exchange",
    """\
A package built with `--lora swap` or `--lora batch` has a list of weights that adapters may change
(`cuvilc inspect PKG --json`, under `lora`): those of its own adapters and those that
`--lora-modules` named. Unless it said otherwise these are all linear layers; with `--lora batch`
only where the build named no adapter. This adapter changes others too, and nothing of an adapter
is left out silently.

Next step: `cuvilc adapter inspect ADAPTER --base PKG` shows all that fits and all that does not.
Where the package is of the right model, build it again, with this adapter among its `--adapter`s or
with `--lora-modules` that names the module.
""",
)

TAKES_NO_ADAPTERS = define(
    "CUV762",
    "the package takes no adapters",
    """\
It was built without `--lora swap` and `--lora batch`, so its weights are packed and fused where no
adapter can reach them.

Next step: build it with one of them (`cuvilc build MODEL.onnx --lora swap` needs no adapter yet),
or fold the adapter in: `cuvilc build MODEL.onnx --adapter DIR`.
""",
)
