"""What is checked of a model before anything is built: versions, graph, operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import defs, inliner, version_converter

from cuvilc.diagnostics import CuvilError, Diagnostic, fail

from . import codes
from ._table import find
from .onnx_tensors import DTYPES, type_name
from .onnx_wire import WireModel, corrupt

OLDEST_OPSET = 7
# Whose form before opset 7 the importers do not read themselves.
OLD_FORMS = {"Cast", "GlobalLpPool", "LpPool", "Tile", "Upsample"}
UPGRADED_OPSET = 13
MOST_NODES = 1_000_000  # of a model whose functions are written out
SHOWN_NODES = 3  # names of nodes that a diagnostic lists


def normal_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def parse(path: Path, wire: WireModel) -> Any:
    """The ModelProto of the stripped message. CuvilError when protobuf refuses it."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(wire.message)
    except Exception as error:  # protobuf's DecodeError differs between its implementations
        raise corrupt(path, str(error).split("\n")[0], 0, len(wire.buffer)) from None
    if not model.HasField("graph"):
        raise corrupt(path, "it has no graph", len(wire.buffer), len(wire.buffer))
    if not all(isinstance(name, str) for name in _names(model)):
        raise corrupt(path, "a name is not UTF-8", 0, len(wire.buffer))
    return model


def _names(model: Any) -> Iterator[Any]:
    """Every name in the model; protobuf gives bytes for one that is not UTF-8."""
    yield from (o.domain for o in model.opset_import)
    yield from (model.producer_name, model.producer_version)
    graphs = [model.graph]
    for function in model.functions:
        yield from (function.name, function.domain, function.overload)
        yield from (*function.input, *function.output, *function.attribute)
        yield from (o.domain for o in function.opset_import)
        yield from _node_names(function.node, graphs)
    for graph in graphs:  # grows while it is read
        yield graph.name
        yield from (v.name for v in (*graph.input, *graph.output, *graph.initializer))
        yield from _node_names(graph.node, graphs)
        for info in graph.input:
            yield from (d.dim_param for d in info.type.tensor_type.shape.dim)


def _node_names(nodes: Any, graphs: list[Any]) -> Iterator[Any]:
    """The names in these nodes; the graphs inside them join `graphs`."""
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.overload)
        yield from (*node.input, *node.output)
        for a in node.attribute:
            yield from (a.name, a.ref_attr_name)
            graphs += [a.g] if a.HasField("g") else a.graphs


def opsets(model: Any) -> dict[str, int]:
    """Domain -> version; unused domains and version -1 are the caller's to ignore."""
    found = {normal_domain(o.domain): int(o.version) for o in model.opset_import}
    found.setdefault("", 1)
    return found


def nodes_of(graph: Any, prefix: str = "") -> Iterator[tuple[str, int, Any]]:
    """(graph name, index, node) of the graph and all graphs inside its nodes."""
    name = prefix + (graph.name or "main")
    for index, node in enumerate(graph.node):
        yield name, index, node
        for a in node.attribute:
            for inner in [a.g] if a.HasField("g") else a.graphs:
                yield from nodes_of(inner, f"{name}/")


def check_versions(path: Path, model: Any) -> None:
    """The file's IR and the operator sets that its nodes use must be known."""
    if model.ir_version > onnx.IR_VERSION:
        raise fail(
            codes.TOO_NEW,
            f"the model has IR version {model.ir_version}, known are up to {onnx.IR_VERSION}",
            place=str(path),
        )
    used = {normal_domain(node.domain) for _, _, node in nodes_of(model.graph)}
    newest = {"": defs.onnx_opset_version()}
    for schema in defs.get_all_schemas():
        newest[schema.domain] = max(newest.get(schema.domain, 0), schema.since_version)
    for domain, version in opsets(model).items():
        if domain in used and version > newest.get(domain, version):
            raise fail(
                codes.TOO_NEW,
                f"the model uses opset {version} of {domain or 'ai.onnx'}, "
                f"known are up to {newest[domain]}",
                place=str(path),
            )


def inline(path: Path, model: Any) -> Any:
    """The model with its own functions written out where they are called."""
    if not model.functions:
        return model
    count = _nodes_when_inlined(path, model)
    if count > MOST_NODES:
        message = f"its functions, written out where they are called, make {count} nodes"
        raise fail(codes.BAD_GRAPH, message, place=str(path))
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:  # onnx raises bare RuntimeError and its own
        raise fail(
            codes.BAD_GRAPH, f"its functions cannot be inlined: {error}", place=str(path)
        ) from None


def _nodes_when_inlined(path: Path, model: Any) -> int:
    """How many nodes the model has once its functions are written out. CuvilError if one calls
    itself: calls that double sixty times are a small file.
    """
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    counts: dict[tuple[str, str, str], int] = {}

    def calls(graphs: list[Any]) -> Iterator[tuple[str, str, str]]:
        for nodes in graphs:  # grows while it is read
            for node in nodes:
                yield node.domain, node.op_type, node.overload
                for a in node.attribute:
                    graphs += [g.node for g in ([a.g] if a.HasField("g") else a.graphs)]

    # Depth first without recursion: a function is counted when all that it calls are.
    waiting, open_ = list(functions), set()
    while waiting:
        key = waiting[-1]
        called = [c for c in calls([functions[key].node]) if c in functions]
        if key in counts or all(c in counts for c in called):
            others = sum(1 for c in calls([functions[key].node])) - len(called)
            counts.setdefault(key, others + sum(counts[c] for c in called))
            waiting.pop()
            open_.discard(key)
        elif key in open_:
            message = f"function `{key[1]}` calls itself, directly or through others"
            raise fail(codes.BAD_GRAPH, message, place=str(path))
        else:
            open_.add(key)
            waiting += [c for c in called if c not in counts]
    return sum(counts.get(c, 1) for c in calls([model.graph.node]))


def needs_upgrade(model: Any) -> bool:
    old = opsets(model)[""] < OLDEST_OPSET
    return old and any(node.op_type in OLD_FORMS for _, _, node in nodes_of(model.graph))


def upgrade(path: Path, model: Any) -> Any:
    """An opset-1-to-6 model as opset 13."""
    try:
        return version_converter.convert_version(model, UPGRADED_OPSET)
    except Exception as error:  # onnx raises bare RuntimeError and its own
        raise fail(
            codes.OLD_OPSET,
            f"opset {opsets(model)['']} cannot be upgraded",
            place=str(path),
            evidence=str(error).strip().split("\n")[0],
        ) from None


def sort(graph: Any, outer: frozenset[str], place: str) -> list[tuple[int, Any]]:
    """(index, node), makers before users. CuvilError for a graph that has no such order."""
    makers = _makers(graph, place)
    given = outer | {i.name for i in graph.input} | {t.name for t in graph.initializer} | {""}
    waiting: dict[int, set[int]] = {}
    for index, node in enumerate(graph.node):
        needs = set()
        for name in used_names(node):
            if name in makers:
                needs.add(makers[name])
            elif name not in given:
                raise fail(
                    codes.BAD_GRAPH,
                    f"value `{name}` is used, but nothing makes it",
                    place=f"{place}, {describe(index, node)}",
                )
        waiting[index] = needs
    for output in graph.output:
        if output.name not in makers and output.name not in given:
            raise fail(codes.BAD_GRAPH, f"output `{output.name}` is made by no node", place=place)
    return [(i, graph.node[i]) for i in _order(graph, waiting, place)]


def _makers(graph: Any, place: str) -> dict[str, int]:
    taken = Counter(i.name for i in graph.input)
    weights = Counter(t.name for t in graph.initializer)
    makers: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in makers or name in taken or name in weights:
                raise fail(
                    codes.BAD_GRAPH,
                    f"value `{name}` is made twice",
                    place=f"{place}, {describe(index, node)}",
                )
            makers[name] = index
    for names in (taken, weights):
        double = [n for n, count in names.items() if count > 1]
        if double:
            raise fail(codes.BAD_GRAPH, f"`{double[0]}` is declared twice", place=place)
    return makers


def used_names(node: Any) -> Iterator[str]:
    """Names of outer values that the node uses, its inner graphs included."""
    yield from filter(None, node.input)
    for a in node.attribute:
        for inner in [a.g] if a.HasField("g") else a.graphs:
            own = {i.name for i in inner.input} | {t.name for t in inner.initializer}
            own |= {o for n in inner.node for o in n.output}
            for n in inner.node:
                yield from (name for name in used_names(n) if name not in own)
            yield from (o.name for o in inner.output if o.name not in own)


def _order(graph: Any, waiting: dict[int, set[int]], place: str) -> list[int]:
    users: dict[int, list[int]] = {}
    for index, needs in waiting.items():
        for need in needs:
            users.setdefault(need, []).append(index)
    left = {index: len(needs) for index, needs in waiting.items()}
    # Depth first from a stack, so a model in order stays in its order.
    ready = [i for i in reversed(range(len(graph.node))) if not left[i]]
    if all(need < index for index, needs in waiting.items() for need in needs):
        return list(range(len(graph.node)))
    order: list[int] = []
    while ready:
        index = ready.pop()
        order.append(index)
        for user in users.get(index, ()):
            left[user] -= 1
            if not left[user]:
                ready.append(user)
    if len(order) < len(graph.node):
        circle = _circle(waiting, {i for i, n in left.items() if n})
        names = " -> ".join(describe(i, graph.node[i]) for i in circle)
        raise fail(
            codes.BAD_GRAPH, "nodes depend on each other in a circle", place=place, evidence=names
        )
    return order


def _circle(waiting: dict[int, set[int]], stuck: set[int]) -> list[int]:
    """A shortest-found cycle among stuck nodes: follow needs until one repeats."""
    path: list[int] = []
    at = min(stuck)
    while at not in path:
        path.append(at)
        at = min(waiting[at] & stuck)
    return [*path[path.index(at) :], at]


def describe(index: int, node: Any) -> str:
    return f"node {index} `{node.name or node.op_type}`"


def check_types(path: Path, model: Any) -> list[Diagnostic]:
    """Inputs and outputs that are no plain tensors, and sparse weights."""
    found = []
    for kind, infos in (("input", model.graph.input), ("output", model.graph.output)):
        for info in infos:
            held = _element_type(info.type)
            which = held.WhichOneof("value")
            if which not in ("tensor_type", None) and not (
                kind == "output" and _zip_map(model, info.name)
            ):
                word = which.removesuffix("_type").replace("_", " ")
                found.append(
                    Diagnostic(codes.BAD_TYPE, f"{kind} `{info.name}` is a {word}", place=str(path))
                )
            elem = held.tensor_type.elem_type
            if which == "tensor_type" and elem and elem not in DTYPES:
                message = f"{kind} `{info.name}` is of type {type_name(elem)}"
                found.append(Diagnostic(codes.BAD_TYPE, message, place=str(path)))
    for tensor in model.graph.sparse_initializer:
        message = f"weight `{tensor.values.name}` is sparse"
        found.append(Diagnostic(codes.BAD_TYPE, message, place=str(path)))
    return found


def _element_type(kind: Any) -> Any:
    """The type that an optional, a sequence or an optional sequence holds; the type itself else."""
    if kind.WhichOneof("value") == "optional_type":
        kind = kind.optional_type.elem_type
    is_sequence = kind.WhichOneof("value") == "sequence_type"
    element = kind.sequence_type.elem_type if is_sequence else None
    if element is not None and element.WhichOneof("value") in ("tensor_type", None):
        return element
    return kind


def _zip_map(model: Any, name: str) -> bool:
    return any(n.op_type == "ZipMap" and name in n.output for n in model.graph.node)


def check_operators(path: Path, model: Any, attributes: Any) -> list[Diagnostic]:
    """One diagnostic per operator (and reason) without importer; `attributes` reads a node's."""
    versions = opsets(model)
    missing: dict[tuple[str, str, str], list[tuple[str, int, Any]]] = {}
    total = 0
    for graph, index, node in nodes_of(model.graph):
        total += 1
        reason = refusal(node, versions, attributes)
        if reason:
            key = (normal_domain(node.domain), node.op_type, reason)
            missing.setdefault(key, []).append((graph, index, node))
    rest = total - sum(map(len, missing.values()))
    return [_missing(path, key, where, versions, rest) for key, where in missing.items()]


def refusal(node: Any, versions: dict[str, int], attributes: Any) -> str | None:
    """Why the node cannot be imported; None when it can."""
    domain = normal_domain(node.domain)
    opset = versions.get(domain, 1)
    entry = find(domain, node.op_type, opset)
    if entry is None:
        return None if schema_function(domain, node.op_type, opset) else "has no importer"
    if entry.refuse is None:
        return None
    found = attributes(node)
    # Refusals rely on attributes of the right types; those of wrong ones are a fault by themselves.
    return None if attribute_fault(node, opset, found) else entry.refuse(found)


def _schema(domain: str, op: str, opset: int) -> Any:
    try:
        return defs.get_schema(op, min(max(opset, 1), defs.onnx_opset_version()), domain)
    except defs.SchemaError:
        return None


def schema_function(domain: str, op: str, opset: int) -> Any:
    """The schema of an operator that ONNX itself defines by others; else None."""
    schema = _schema(domain, op, opset)
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        return None
    return schema


def attribute_fault(node: Any, opset: int, attributes: dict[str, Any]) -> str | None:
    """What is wrong with the node's attributes, by ONNX's schema; None when they are right.

    Importers may then rely on those that are required, and on the types.
    """
    domain = normal_domain(node.domain)
    newest = _schema(domain, node.op_type, defs.onnx_opset_version())
    # Importers also take what is older than the operator, or than one of its attributes.
    schema = _schema(domain, node.op_type, opset) or newest
    if schema is None:
        return None
    schemas = (schema, newest or schema)
    for name, wanted in schema.attributes.items():
        if wanted.required and attributes.get(name) is None:
            return f"attribute `{name}` is missing"
    for a in node.attribute:
        known = next((s.attributes[a.name] for s in schemas if a.name in s.attributes), None)
        if known is not None and not a.ref_attr_name and a.type != known.type.value:
            return f"attribute `{a.name}` must be of type {known.type.name}"
    return None


def _missing(
    path: Path,
    key: tuple[str, str, str],
    where: list[tuple[str, int, Any]],
    versions: dict[str, int],
    rest: int,
) -> Diagnostic:
    domain, op, reason = key
    graph, index, node = where[0]
    spelled = f"{domain}::{op}" if domain else op
    inputs = ", ".join(f"%{name}" for name in node.input)
    notes = []
    if rest:
        notes = [f"the other {rest} nodes import" if rest > 1 else "the other node imports"]
    if len(where) > 1:
        names = ", ".join(f"`{n.name or n.op_type}`" for _, _, n in where[:SHOWN_NODES])
        notes.insert(0, f"{len(where)} nodes: {names}{', …' if len(where) > SHOWN_NODES else ''}")
    what = reason if reason.startswith("has ") else f": {reason}"
    version = f"(opset {versions.get(domain, 1)})"
    return Diagnostic(
        codes.NO_IMPORTER,
        f"ONNX op `{spelled}` {version} {what}".replace(" : ", ": "),
        place=f"{path}: graph `{graph}`, {describe(index, node)}",
        evidence=f"{', '.join('%' + o for o in node.output)} = {op}({inputs})",
        notes=notes,
    )


def raise_all(diagnostics: list[Diagnostic]) -> None:
    if diagnostics:
        raise CuvilError(*diagnostics)
