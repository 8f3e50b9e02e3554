"""The diagnostics of LoRA adapters: CUV701 to CUV712 of reading, from CUV720 of attaching."""

from __future__ import annotations

from cuvilc.diagnostics import define

NOT_AN_ADAPTER = define(
    "CUV701",
    "there is no adapter at this place",
    """\
An adapter is one of these:

- a folder that PEFT wrote: `adapter_config.json` and `adapter_model.safetensors`,
- a folder of several such folders, each of which is one adapter, named as its folder,
- a `.safetensors` file of kohya's or of diffusers' (`lora_unet_….lora_down.weight`,
  `unet.….lora_A.weight`).

A `.cuvla` file is what `cuvilc adapter build` made of one for a package, and is loaded there:
`model.load_adapter("FILE.cuvla")`; `cuvilc adapter inspect FILE.cuvla` says what it is.

`--base-weights` takes the checkpoint of the base model: a `.safetensors` file, or a folder of such.

Next step: compare the path with what the message found there. In PEFT, `model.save_pretrained(DIR)`
writes such a folder; a training run's checkpoints are such folders too.
""",
)

BAD_TENSOR_FILE = define(
    "CUV702",
    "the adapter's tensor file is truncated or damaged",
    """\
A safetensors file is 8 bytes with the length of its header, the header in JSON, then the data. The
header gives each tensor's dtype, shape and place; the places must follow one another without gap or
overlap and end with the file. All of this is checked before any value is read.

Next step: compare the file's size and checksum with the source, and fetch it again. A file of a few
hundred bytes is often a Git LFS pointer (`git lfs pull`).
""",
)

BAD_ADAPTER_CONFIG = define(
    "CUV703",
    "adapter_config.json is not right",
    """\
The configuration is no JSON, lacks a field, has one of a wrong type or value, contradicts itself,
or has an option that this version of cuvilc does not know. An unknown option is not passed over,
as it may change what the adapter computes; one that is null, false or empty is.

`graph_semantics` may say `{"dependency_level": "cross-attention"}` and
`{"fusion_strategy": "additive"}`; other values are refused.

Next step: correct the field that the message names, or save the adapter again with PEFT.
""",
)

OTHER_METHOD = define(
    "CUV704",
    "the adapter is of a kind that cuvilc does not take",
    """\
cuvilc takes LoRA with its options, rank-stabilised LoRA, DoRA, and LoRA on embeddings and
convolutions. Other methods (IA3, AdaLoRA, LoHa, LoKr, OFT, VeRA, prompt tuning, …) and extensions
that change the computation otherwise are refused by name, never approximated.

An adapter that began as PiSSA, OLoRA, CorDA, LoftQ or LoRA-GA belongs to base weights that its
initialisation changed. Save it as an ordinary one:
`save_pretrained(…, path_initial_model_for_weight_conversion=…)`; or save the changed base beside
it and set `init_lora_weights` to true.

Next step: where PEFT can merge the adapter, `merge_and_unload()` and export the merged model;
`convert_to_lora` of PEFT approximates several methods by LoRA.
""",
)

UNEXPLAINED_TENSOR = define(
    "CUV705",
    "nothing explains a tensor of the adapter",
    """\
Every tensor of the file must belong to a module that the configuration selects: by `target_modules`
(and `layers_to_transform`, `exclude_modules`), `modules_to_save` or `bias`. PEFT itself would pass
such tensors over; here nothing is left unused without a word.

Usual reasons: the configuration of another adapter, a file edited by hand, a tensor of a training
state.

Next step: fetch both files from one place; or add the module to `target_modules` (if it has A and
B) or to `modules_to_save` (if it is whole) in adapter_config.json; or remove the tensor.
""",
)

INCOMPLETE_MODULE = define(
    "CUV706",
    "a module of the adapter lacks a tensor",
    """\
Low-rank changes come in pairs, A and B (kohya: down and up); with `use_dora` a magnitude belongs to
them. A pair that lacks one would change nothing, or something unknown.

Next step: save the adapter again. Under sharded training (DeepSpeed ZeRO-3, FSDP) gather the
parameters before `save_pretrained`.
""",
)

BAD_TENSOR_SHAPE = define(
    "CUV707",
    "a tensor of the adapter has a wrong shape",
    """\
A is [r, inputs] and B [outputs, r]; in convolutions A is [r, channels, kernel…] and B
[outputs, r / groups, 1…]; of embeddings A is [r, vocabulary] and B [width, r]. r is `r` of the
configuration, or what `rank_pattern` says of the module. A magnitude and a bias have one value for
each output. Of a square weight that `modules_to_save` brings whole, `fan_in_fan_out` leaves open
which axis holds the outputs: PEFT goes by the class of the layer, which it does not save.

Next step: compare the configuration with the tensors; they may come from two adapters. Let LoRA
change a square layer (`target_modules`) instead of saving it whole.
""",
)

NOT_FINITE = define(
    "CUV708",
    "the adapter has values that are not finite",
    """\
A NaN or an infinity in an adapter would spread through every result of the module that it changes.

Usual reason: training in float16 that diverged. Next step: take an earlier checkpoint.
""",
)

BAD_TENSOR_DTYPE = define(
    "CUV709",
    "a tensor of the adapter has a dtype that cuvilc does not take",
    """\
Adapters have tensors of float32, float16 or bfloat16. Quantised ones and float64 are refused.

Next step: convert the file, once:

    python -c "import torch, safetensors.torch as s; p = 'adapter_model.safetensors'; \\
    s.save_file({k: v.to(torch.float32) for k, v in s.load_file(p).items()}, p)"
""",
)

PICKLED = define(
    "CUV710",
    "the adapter's tensors are pickled",
    """\
`adapter_model.bin`, `.pt` and `.ckpt` are Python pickles: loading one can run any code, so cuvilc
does not read them.

Next step: convert a file that you trust, once:

    python -c "import torch, safetensors.torch as s; \\
    t = torch.load('adapter_model.bin', map_location='cpu', weights_only=True); \\
    s.save_file({k: v.contiguous() for k, v in t.items()}, 'adapter_model.safetensors')"
""",
)

BROKEN_DEPENDENCY = define(
    "CUV711",
    "the adapter breaks the dependency that it declares",
    """\
`graph_semantics: {"dependency_level": "cross-attention"}` says that the adapter changes projections
which depend on one another: in each layer of attention that it changes, q and v, or k and v. A
merged projection (`qkv_proj`, `c_attn`, `kv_proj`) counts as all that it holds. Which module is
which projection is told by the last part of its path, such as `q_proj`, `query` or `to_q`.

Next step: train the adapter with the missing projections among `target_modules`; or, if its author
did not mean it so, remove `dependency_level` from `graph_semantics` in adapter_config.json.
""",
)

SCALE_FUSION = define(
    "CUV712",
    "the adapter forbids that its scale is fused",
    """\
`graph_semantics: {"fusion_strategy": "additive"}` says that the adapter's contribution is added to
the module's output with its scale apart. `--lora swap` and `--lora batch` multiply the scale into
a factor ahead of time, and are refused before anything runs.

Next step: build with `--lora fold`, which adds scale · (B · A); or, if the adapter's author did not
mean it so, remove `fusion_strategy` from `graph_semantics` in adapter_config.json.
""",
)

MODULE_NOT_FOUND = define(
    "CUV720",
    "the model has no weight for a module of the adapter",
    """\
An adapter attaches to a model by the paths of modules. Where a weight is, is known from the names
of initialisers (`model.layers.0.self_attn.q_proj.weight`), from the names of nodes
(`/model/layers.0/self_attn/q_proj/MatMul`) and from what PyTorch's dynamo exporter writes beside
the nodes. Paths may differ by a prefix such as `model.`; nothing of an adapter is left out because
it has no place.

Next step, one of (`cuvilc adapter inspect ADAPTER --base MODEL.onnx` shows what came of it):

- check that the adapter belongs to this model: the message names what comes nearest, and PEFT's
  adapter_config.json the model that it was trained on (`base_model_name_or_path`),
- export the base model, as it is before `get_peft_model` puts PEFT's layers into it,
- export the model again with PyTorch, so that its names stay,
- give the checkpoint it was exported from: `--base-weights model.safetensors` finds weights by
  their values, also transposed, and Q, K and V in a merged matrix,
- say it: `--adapter-map map.json` with `{"MODULE": "initialiser or node"}`.
""",
)

AMBIGUOUS_SITE = define(
    "CUV721",
    "a module of the adapter could be several of the model's",
    """\
Several weights fit what the adapter names equally well, or two modules of the adapter would change
the same weight. The message lists the candidates and what speaks for each.

Next step: `--adapter-map map.json` with `{"MODULE": "initialiser or node"}` settles it, and so does
`--base-weights model.safetensors` where the values differ.
""",
)

SITE_MISFIT = define(
    "CUV722",
    "a weight of the model does not fit the adapter's",
    """\
The module is there, but its weight has other sizes than A [r, K] and B [N, r] ask for, or other
than the parameter that the adapter brings. Usually the adapter was trained on another model of the
same family, such as the large one instead of the base.

Next step: compare the sizes in the message, and fetch the adapter for this model, or the model that
adapter_config.json names (`base_model_name_or_path`). If the weight is a merged one, of which the
module owns a part of the outputs, `--adapter-map` says which:
`{"MODULE": {"name": "initialiser or node", "outputs": [START, SIZE]}}`.
""",
)

NO_PARAMETER = define(
    "CUV723",
    "the model does not have a parameter that the adapter brings",
    """\
The module is in the model, one of its parameters is not: one that was computed into something else,
or parameters of a BatchNormalization, which becomes one multiplication and one addition on import.
A bias alone may be missing, as a new classifier's, which is all zeros, is after an optimiser: it is
added to the product of the module's weight. This one was not, since it has another size than the
weight has outputs, the base checkpoint's is not zero, or a constant is added behind the product,
of which it may be a part.

Next step: export the model with the parameter in place (`torch.onnx.export(…, optimize=False)`
keeps every bias), or train the adapter without it (`bias="none"`, no `modules_to_save`).
""",
)

CHANGED_WEIGHT = define(
    "CUV724",
    "the weight that an adapter would change is not the module's own any more",
    """\
A change of a module's weight can only be added to that weight. Here the model holds another one: an
exporter or optimiser multiplied a BatchNormalization into it, or the weight of that name serves
other modules only.

Next step: export the model without that optimisation (`torch.onnx.export(…, training=
TrainingMode.PRESERVE)` for the TorchScript exporter, `optimize=False` for the dynamo one).
`--base-weights model.safetensors` shows that a weight is unchanged.
""",
)

OTHER_BASE = define(
    "CUV725",
    "the model's weights differ from the base checkpoint's",
    """\
`--base-weights` was given, and a weight that the adapter changes has other values there than in the
model. The model was exported from another checkpoint, or it was optimised so that weights changed,
and an adapter trained on the checkpoint does not belong to it.

Next step: give the checkpoint that the model was exported from, or export the model again.
""",
)

BAD_ADAPTER_MAP = define(
    "CUV726",
    "the adapter map is not right",
    """\
`--adapter-map` names a JSON file that says where modules of adapters are:

    {"model.layers.0.self_attn.q_proj": "onnx::MatMul_123",
     "model.layers.0.self_attn.k_proj": {"name": "Attention_0", "outputs": [768, 768]},
     "classifier.bias": "/classifier/Gemm"}

A key is the path of a module as the adapter spells it (its weight is meant), or the path and the
name of another parameter. A value names an initialiser or a node; `outputs` are the first one and
the number of those that are the module's. Every entry must be used, and every name must exist.

Next step: `cuvilc adapter inspect ADAPTER --base model.onnx` lists modules and what they attach to.
""",
    exit_code=2,
)
