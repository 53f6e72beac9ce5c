"""What a node must obey before it is rewritten: its op exists, counts and attributes fit.

Each function returns problems as lines of text for a LoadError; none raises.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import onnx

from castiron.loader import onnx_draft
from castiron.loader.onnx_draft import Draft

# Ops without an ONNX schema that onnx_contrib decomposes or the evaluator runs.
_SCHEMALESS = {"com.microsoft"}

# The schemas count in 32 bits.
_NO_VERSION = 1 << 31

# Ops with a schema that nothing here can run, and what to do instead.
_NEITHER = {
    "Gradient": "export the gradient as ordinary ops",
    "ZipMap": "export the classifier with zipmap switched off",
    "CastMap": "give the map's values as a tensor",
    "CategoryMapper": "use ai.onnx.ml::LabelEncoder",
}

# Withdrawn forms that onnx_versions still rewrites.
_REPLACED = {"GroupNormalization", "Scatter", "Upsample"}


def import_problems(proto: onnx.ModelProto) -> list[str]:
    """Problems of the opset imports and the IR version."""
    problems = []
    newest_ir = onnx.IR_VERSION
    if proto.ir_version > newest_ir:
        problems.append(
            f"IR version {proto.ir_version} is newer than {newest_ir}; export for an older one"
        )
    if not proto.opset_import and proto.ir_version >= 3:
        problems.append("no opset is imported; expected one entry for each domain in use")
    for holder in (proto, *proto.functions):
        for entry in holder.opset_import:
            problems += _import_problem(entry)
    return problems


def _import_problem(entry: onnx.OperatorSetIdProto) -> list[str]:
    domain = onnx_draft.normal_domain(entry.domain)
    newest = onnx_draft.NEWEST.get(domain)
    spoken = domain or "ai.onnx"
    if entry.version < 1:
        return [f"opset {entry.version} of domain {spoken} does not exist; versions begin at 1"]
    if entry.version >= _NO_VERSION:
        return [f"opset {entry.version} of domain {spoken} does not exist; expected a small number"]
    if newest is not None and domain not in _SCHEMALESS and entry.version > newest:
        found = f"opset {entry.version} of domain {spoken} is newer than {newest}, the newest known"
        return [f"{found}; export the model with opset {newest} or older"]
    return []


def opsets(proto: onnx.ModelProto) -> dict[str, int]:
    """Domain to version; a model from before imports existed means opset 1."""
    imports = {onnx_draft.normal_domain(e.domain): e.version for e in proto.opset_import}
    return imports or {"": 1}


def node_problems(draft: Draft, supported: frozenset[str], types: Mapping[str, str]) -> list[str]:
    """Problems of one node; ``supported`` lists the ops known without a schema."""
    if draft.domain in _SCHEMALESS:
        if f"{draft.domain}::{draft.op}" in supported:
            return []
        return [_unknown(draft, types, [name.split("::")[1] for name in supported])]
    try:
        schema = onnx.defs.get_schema(draft.op, draft.version, draft.domain)
    except onnx.defs.SchemaError:
        return [_unknown(draft, types, _names_in(draft.domain))]
    if draft.domain and draft.op in _NEITHER:
        return [f"{draft.label} has no kernel and no evaluator; {_NEITHER[draft.op]}"]
    if schema.deprecated and draft.op not in _REPLACED:
        return [f"{draft.label} is withdrawn from this opset; export the model again"]
    return [*_count_problems(draft, schema, types), *_attr_problems(draft, schema)]


def _names_in(domain: str) -> list[str]:
    return [schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == domain]


def _unknown(draft: Draft, types: Mapping[str, str], known: list[str]) -> str:
    near = difflib.get_close_matches(draft.op, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return (
        f"{draft.label} on {_operands(draft, types)}: no such op is known; {hint}"
        "express it in standard ops or as a model-local function"
    )


def _operands(draft: Draft, types: Mapping[str, str]) -> str:
    listed = ", ".join(types.get(name, f"{name}: unknown type") for name in draft.inputs if name)
    return f"({listed})"


def _count_problems(
    draft: Draft, schema: onnx.defs.OpSchema, types: Mapping[str, str]
) -> list[str]:
    problems = []
    found = len(draft.inputs)
    if not schema.min_input <= found <= schema.max_input:
        expected = f"{schema.min_input} to {schema.max_input} inputs"
        problems.append(f"{draft.label} on {_operands(draft, types)}: expected {expected}")
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    for formal, name in zip(schema.inputs, draft.inputs, strict=False):
        if not name and formal.option == single:
            problems.append(f"{draft.label}: the input {formal.name!r} is required, found none")
    if not schema.min_output <= len(draft.outputs) <= schema.max_output:
        expected = f"{schema.min_output} to {schema.max_output} outputs"
        problems.append(f"{draft.label}: expected {expected}, found {len(draft.outputs)}")
    return problems


def _attr_problems(draft: Draft, schema: onnx.defs.OpSchema) -> list[str]:
    problems = [
        f"{draft.label}: the attribute {key!r} is required, found none"
        for key, attr in schema.attributes.items()
        if attr.required and key not in draft.attrs
    ]
    for key in draft.attrs:
        if key not in schema.attributes:
            near = difflib.get_close_matches(key, list(schema.attributes), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            problems.append(f"{draft.label}: no attribute {key!r} exists{hint}")
    return problems


def attr_type_problems(node: onnx.NodeProto, draft: Draft) -> list[str]:
    """Attributes whose type is not the one that the schema of this version declares."""
    try:
        schema = onnx.defs.get_schema(draft.op, draft.version, draft.domain)
    except onnx.defs.SchemaError:
        return []
    names = onnx.AttributeProto.AttributeType
    return [
        f"{draft.label}: the attribute {attr.name!r} is {names.Name(attr.type)}, "
        f"expected {names.Name(onnx_draft.kind_code(schema.attributes[attr.name]))}"
        for attr in node.attribute
        if attr.name in schema.attributes
        and attr.type != onnx_draft.kind_code(schema.attributes[attr.name])
    ]
