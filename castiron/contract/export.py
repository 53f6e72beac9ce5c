"""Everything that is generated from a contract, as texts by file name. Nothing is written here.

The same contract gives the same bytes. ``castiron contract export`` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from castiron.contract import json_schema, model, openapi, proto
from castiron.contract.client import naming, python, typescript

Files = dict[str, str]


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _schema(contract: model.Contract) -> Files:
    return {"schema.json": _json(json_schema.document(contract))}


def _openapi(contract: model.Contract) -> Files:
    return {"openapi.json": _json(openapi.document(contract))}


def _proto(contract: model.Contract) -> Files:
    return {f"{naming.file_name(contract.name)}.proto": proto.text(contract)}


FORMS: dict[str, Callable[[model.Contract], Files]] = {
    "json-schema": _schema,
    "openapi": _openapi,
    "proto": _proto,
    "typescript": typescript.files,
    "python": python.files,
}


def files(contract: model.Contract, form: str) -> Files:
    """File name to text for one of FORMS."""
    return FORMS[form](contract)


def everything(contract: model.Contract) -> Files:
    """All forms; clients in folders of their own."""
    found: Files = {}
    for form in FORMS:
        folder = f"{form}/" if form in {"typescript", "python"} else ""
        found |= {folder + name: text for name, text in files(contract, form).items()}
    return found
