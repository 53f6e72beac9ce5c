"""The part of the TypeScript class that speaks of an application's values; empty without any."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from castiron.contract import model
from castiron.contract.client import naming

_Kind = Callable[[model.Entry], str]

_SENT = {
    "image": "Image", "number": "number", "flag": "boolean", "tensor": "Shaped",
    "labels": "readonly Label[]", "boxes": "readonly Box[]",
}  # fmt: skip


def types(contract: model.Contract) -> str:
    """Question and Answer: what ``predict`` takes and gives."""
    if not naming.is_application(contract):
        return ""
    asked, told = contract.schema.input, naming.answered(contract)
    lines = ["", "/** What an application sends. */"]
    lines += _interface("Question", asked, _sent) if asked else ["export type Question = Values;"]
    lines += ["", "/** What an application gets. */"]
    lines += _interface("Answer", told, _told) if told else ["export type Answer = Fields;"]
    return "\n".join(lines) + "\n"


def method(contract: model.Contract) -> str:
    """The member ``predict``."""
    if not naming.is_application(contract):
        return ""
    given = ["...values", *_as_text(contract.schema.input)]
    told = naming.answered(contract)
    answer = "\n".join(
        f"      [{json.dumps(entry.name)}]: "
        f"promisedValue(found, {json.dumps(entry.name)}, {json.dumps(entry.kind)}),"
        for entry in told
    )
    return _METHOD.format(
        given=", ".join(given), answer=f"{{\n{answer}\n    }}" if told else "found"
    )


def imports(contract: model.Contract) -> str:
    """The import of what these parts name."""
    text = types(contract) + method(contract)
    if not text:
        return ""
    known = {
        "Box": "Box[]", "Image": ": Image;", "Kinds": "Kinds[", "Label": "Label[]",
        "Shaped": ": Shaped;", "Values": "= Values;",
    }  # fmt: skip
    names = [f"type {name}" for name, mark in known.items() if mark in text]
    names += [name for name in ("base64", "promisedValue") if f"{name}(" in text]
    return f'import {{ {", ".join(names)} }} from "./application.js";\n' if names else ""


def needs_fields(contract: model.Contract) -> bool:
    """Whether an answer is known only as an object."""
    return "= Fields;" in types(contract)


def _interface(name: str, entries: tuple[model.Entry, ...], kind: _Kind) -> list[str]:
    lines = [f"export interface {name} {{"]
    for entry in entries:
        if entry.description:
            lines.append(f"  /** {comment(entry.description)} */")
        mark = "?" if entry.optional and name == "Question" else ""
        lines.append(f"  readonly {json.dumps(entry.name)}{mark}: {kind(entry)};")
    return [*lines, "}"]


def _sent(entry: model.Entry) -> str:
    if entry.kind == "text":
        text = " | ".join(map(json.dumps, entry.values)) or "string"
        languages = " | ".join(map(json.dumps, entry.languages))
        return f"{{ readonly text: {text}; readonly language: {languages} }}" if languages else text
    if entry.kind == "table":
        row = ", ".join(["number"] * len(entry.columns))
        return f"readonly (readonly [{row}])[]"
    return _SENT[entry.kind]


def _told(entry: model.Entry) -> str:
    return f"Kinds[{json.dumps(entry.kind)}]"


def _as_text(entries: tuple[model.Entry, ...]) -> Iterator[str]:
    """Images that the model takes as base64 alone."""
    for entry in entries:
        if naming.is_text_only(entry):
            name = json.dumps(entry.name)
            made = f"await base64(values[{name}])"
            if entry.optional:
                made = f"values[{name}] === undefined ? undefined : {made}"
            yield f"[{name}]: {made}"


def comment(value: str) -> str:
    """On one line, and unable to end a comment."""
    clean = "".join(letter if letter.isprintable() else " " for letter in value)
    return clean.replace("*/", "* /")


_METHOD = """
  /** Ask with an application's values; images are bytes. */
  async predict(values: Question, options: CallOptions = {{}}): Promise<Answer> {{
    const found = await this.client.predict(MODEL, {{ {given} }}, options);
    return {answer};
  }}
"""
