"""The diagnostics of importing a model: CUV101 to CUV114."""

from __future__ import annotations

from cuvilc.diagnostics import define

NOT_A_MODEL = define(
    "CUV101",
    "the file is not a model of a known format",
    """\
The importer is chosen by the file's content, whatever its name. The message says what the content
looks like, and which formats are read.

Usual reasons: a download that saved an error page or a Git LFS pointer, weights without a graph
(safetensors, a pickled state_dict), an archive that must be unpacked first.

Next step: give an ONNX file; from torch, `torch.onnx.export(model, (x,), "net.onnx", dynamo=True)`
writes one.
""",
)

CORRUPT = define(
    "CUV102",
    "the model file is truncated or damaged",
    """\
The file begins like an ONNX model, but its protobuf structure breaks off or contradicts itself.

Next step: compare its size and checksum with the source, and fetch it again.
`python -m onnx.tools.net_drawer` or any other ONNX tool will refuse it too.
""",
)

TOO_NEW = define(
    "CUV103",
    "the model needs a newer ONNX than this compiler knows",
    """\
The file's IR version or the version of an operator set is above what the installed `onnx` package
defines, so the meaning of its operators is not known.

Next step: upgrade cuvilc (and `onnx`), or export the model again with a lower `opset_version`.
""",
)

NO_IMPORTER = define(
    "CUV104",
    "an operator of the model has no importer",
    """\
cuvilc lists every operator, and every attribute of one, that it cannot import, all at once and
before any work. Each stands in a diagnostic of its own with the nodes that use it.

Next step: export the model without the operator, for example with other export options or a higher
`opset_version`, or add an importer: one function, see CONTRIBUTING.md, "An operator".
""",
)

BAD_GRAPH = define(
    "CUV105",
    "the model's graph contradicts itself",
    """\
The graph breaks ONNX's own rules: a node uses a value that nothing makes, two nodes make the same
value, nodes depend on each other in a circle, or an output does not exist. Nodes in another than
topological order are accepted and sorted.

Next step: run `onnx.checker.check_model` in the program that wrote the file.
""",
)

BAD_TENSOR = define(
    "CUV106",
    "a weight does not hold what it declares",
    """\
The number of bytes of an initialiser (or of a Constant node) differs from what its dimensions and
element type ask for, or its dimensions are negative or too large to address.

Next step: the file is damaged or was edited by hand; write it again from its source.
""",
)

BAD_EXTERNAL = define(
    "CUV107",
    "external data cannot be used",
    """\
A weight lies in another file. For safety that file must lie in the model's own folder or below: no
absolute path, no `..`, no symbolic link that leaves the folder, no hard link to a file elsewhere,
and offset and length must lie inside the file.

Next step: keep the data file beside the model, under the name that the model gives.
""",
)

BAD_SHAPE_OPTION = define(
    "CUV108",
    "--shape, --dim or --elements does not fit the model",
    """\
`--shape INPUT=1,3,224,224` fixes the sizes of one input (`?` leaves a size as the model has it);
`--dim NAME=1..64` gives the range of a named size, `--dim NAME=8` fixes it; `--elements INPUT=3`
says how many tensors a sequence has. They narrow what the file leaves open. A size that is a number
in the file stays that number: the exporter has written it, into other layers too.

Next step: `cuvilc build MODEL --dry-run` lists the model's inputs and the names of its sizes. To
open a fixed size, export the model again, in torch with `dynamic_shapes={"x": {0: Dim("batch")}}`.
""",
    exit_code=2,
)

DATA_DEPENDENT = define(
    "CUV109",
    "something must be known at compile time and is not",
    """\
Sizes may be computed while the model runs: shapes, bounds, counts, the rounds of a loop. Some other
operands decide what code is made (axes, a rank, the number of outputs, the scale of a Resize), so
they must be constants of the model, or follow from its constants and the sizes of its inputs.

Next step: if the value is in truth constant, make it so in the export; otherwise split the model at
this node, or fix the sizes with --shape.
""",
)

BAD_NODE = define(
    "CUV110",
    "a node of the model does not fit its operands",
    """\
The node's operands have types or sizes that its operator does not allow; the message says which,
the evidence shows the node with its types.

Next step: look at the named node in the program that exported the model. If sizes were given with
--shape or --dim, check that the model really accepts them.
""",
)

BAD_TYPE = define(
    "CUV111",
    "an input, output or weight has a type that packages do not hold",
    """\
Packages hold tensors of float64, float32, float16, bfloat16, floats of 8, 6 and 4 bits, integers of
2 to 64 bits and bool. Strings, maps, sparse values and complex numbers are refused; of a ZipMap,
as scikit-learn models end in, the output is the tensor of its values. A sequence becomes one tensor
for each element, and so its length must be known: `--elements INPUT=3` gives an input's,
`--elements INPUT=0` says that an optional one is absent.

Next step: move what is refused out of the model, such as a tokeniser. A scikit-learn classifier
whose labels are strings gives their numbers when it is exported with
`options={id(classifier): {"nocl": True}}`.
""",
)

UNREADABLE = define(
    "CUV112",
    "the model file cannot be read",
    """\
The operating system refused to open the file, or it is a folder. The message has the reason.

Next step: give the path of the .onnx file itself, and see that it may be read (`ls -l`).
""",
    exit_code=2,
)

OLD_OPSET = define(
    "CUV113",
    "the model is too old and onnx's converter cannot upgrade it",
    """\
Operator sets before 7 mean other things by the same names, so such models are upgraded by
`onnx.version_converter`, which failed on this one; its own words stand under the error.

Next step: export the model again with opset 13 or newer.
""",
)

BRANCHES_DIFFER = define(
    "CUV114",
    "the branches of an If give different types",
    """\
Which branch runs is known only at run time, so both must give results of one dtype and rank. Their
sizes may differ.

Next step: if the condition is in truth constant, make it so; or cast and reshape the results of
the branches to one type.
""",
)
