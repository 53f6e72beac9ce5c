"""The part of the Python class that speaks of an application's values; empty without any."""

from __future__ import annotations

from castiron.contract import model
from castiron.contract.client import naming

_SENT = {
    "image": "bytes", "table": "Sequence[Sequence[float]]", "number": "float", "flag": "bool",
    "tensor": "Shaped", "labels": "list[Label]", "boxes": "list[Box]",
}  # fmt: skip
_TOLD = {
    "text": "str", "image": "str", "table": "list[list[float]]", "number": "float", "flag": "bool",
    "tensor": "Shaped", "labels": "list[Label]", "boxes": "list[Box]",
}  # fmt: skip


def quoted(value: str) -> str:
    """As a literal in double quotes, in ASCII."""
    inner = ascii(value)[1:-1].replace("\\'", "'")
    return '"' + inner.replace('"', '\\"') + '"'


def types(contract: model.Contract) -> str:
    """Question and Answer: what ``predict`` takes and gives."""
    if not naming.is_application(contract):
        return ""
    asked, told = contract.schema.input, naming.answered(contract)
    text = "".join(
        _SAID.format(name=f"Text{index}", text=_text(entry), language=_literal(entry.languages))
        for index, entry in enumerate(asked)
        if entry.kind == "text" and entry.languages
    )
    sent = [_member(entry, _sent(entry, index)) for index, entry in enumerate(asked)]
    got = [_member(entry, _TOLD[entry.kind], is_sent=False) for entry in told]
    text += _typed("Question", sent) if asked else "Question = Mapping[str, Any]\n"
    text += _typed("Answer", got) if told else "Answer = dict[str, Any]\n"
    kinds = "".join(f"    {quoted(entry.name)}: {quoted(entry.kind)},\n" for entry in told)
    return text + (f"ANSWERS = {{\n{kinds}}}\n" if told else "")


def method(contract: model.Contract) -> str:
    """The member ``predict``."""
    if not naming.is_application(contract):
        return ""
    as_text = "".join(
        f", {quoted(entry.name)}: as_text(values.get({quoted(entry.name)}))"
        for entry in contract.schema.input
        if naming.is_text_only(entry)
    )
    given = f"{{**values{as_text}}}" if as_text else "values"
    answer = 'cast("Answer", promised(found, ANSWERS))' if naming.answered(contract) else "found"
    return _METHOD.format(given=given, answer=answer)


def imports(contract: model.Contract) -> dict[str, list[str]]:
    """What these parts name, by module."""
    text = types(contract) + method(contract)
    known = {
        "collections.abc": ["Mapping", "Sequence"],
        "typing": ["Any", "Literal", "NotRequired", "cast"],
        "castiron_client": ["Box", "Label", "Shaped", "as_text", "promised"],
    }
    return {
        module: [name for name in names if f"{name}[" in text or f"{name}(" in text
                 or f"[{name}]" in text or f": {name}," in text or f", {name}]" in text]
        for module, names in known.items()
    }  # fmt: skip


def _typed(name: str, members: list[str]) -> str:
    return f'{name} = TypedDict(\n    "{name}",\n    {{\n' + "".join(members) + "    },\n)\n"


def _member(entry: model.Entry, kind: str, *, is_sent: bool = True) -> str:
    kind = f"NotRequired[{kind}]" if is_sent and entry.optional else kind
    return f"        {quoted(entry.name)}: {kind},\n"


def _sent(entry: model.Entry, index: int) -> str:
    if entry.kind == "text":
        return f"Text{index}" if entry.languages else _text(entry)
    return _SENT[entry.kind]


def _text(entry: model.Entry) -> str:
    return _literal(entry.values) if entry.values else "str"


def _literal(words: tuple[str, ...]) -> str:
    return f"Literal[{', '.join(map(quoted, words))}]"


_SAID = '{name} = TypedDict("{name}", {{"text": {text}, "language": {language}}})\n'
_METHOD = '''
    def predict(self, values: Question, options: Options | None = None) -> Answer:
        """Ask with an application's values; images are bytes."""
        found = self.client.predict(MODEL, {given}, options)
        return {answer}
'''
