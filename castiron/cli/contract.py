"""``castiron contract``: what a model promises: write it, check it, compare it, generate from it."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

HELP = "write, check and compare a model's contract; generate clients and descriptions from it"

_MODEL = "a model.onnx, a model.cast, or the folder of a model or of one version"
_EITHER = f"a contract.toml, {_MODEL}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    from castiron.contract import export

    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    init = verbs.add_parser("init", help="write a contract for a model that has none")
    init.add_argument("model", metavar="MODEL_OR_DIR", help=_MODEL)
    init.add_argument("-o", "--out", help="the file to write; - prints it (default: beside it)")
    init.add_argument("--force", action="store_true", help="write over a contract that is there")
    init.set_defaults(verb_run=_init)
    check = verbs.add_parser("check", help="say where a contract and its model differ")
    check.add_argument("model", metavar="MODEL_OR_DIR", help=_MODEL)
    check.add_argument("--contract", help="the contract (default: beside or inside the model)")
    check.set_defaults(verb_run=_check)
    diff = verbs.add_parser("diff", help="say which changes break clients; status 1 if one does")
    diff.add_argument("old", metavar="OLD", help=_EITHER)
    diff.add_argument("new", metavar="NEW", help=_EITHER)
    diff.add_argument("--json", action="store_true", help="print the changes as JSON")
    diff.set_defaults(verb_run=_diff)
    writes = verbs.add_parser("export", help="write JSON Schema, OpenAPI, .proto and clients")
    writes.add_argument("model", metavar="MODEL_OR_DIR", help=_EITHER)
    writes.add_argument("-o", "--out", default="exported", help="the folder (default: %(default)s)")
    writes.add_argument(
        "--form", choices=("all", *export.FORMS), default="all", help="what (default: %(default)s)"
    )
    writes.set_defaults(verb_run=_export)


def run(options: argparse.Namespace) -> int:
    """Run one verb."""
    return int(options.verb_run(options))


def _init(options: argparse.Namespace) -> int:
    from castiron import api, errors
    from castiron.contract import derive, document

    file = document.model_in(options.model)
    text = document.text(derive.derive(*api.describe(file), document.name_of(options.model)))
    if options.out == "-":
        print(text, end="")
        return 0
    out = Path(options.out) if options.out else _place_beside(Path(options.model))
    if out.exists() and not options.force:
        raise errors.ContractError(str(out), ["there is one already; --force writes over it"])
    out.write_text(text)
    print(out)
    return 0


def _place_beside(given: Path) -> Path:
    from castiron.contract import document

    if given.is_dir():
        return given / document.FILE_NAME
    stems = {file.stem for file in document.models_in(given.parent)}
    is_alone = stems <= {given.stem}
    return given.with_name(document.FILE_NAME if is_alone else f"{given.stem}.{document.FILE_NAME}")


def _check(options: argparse.Namespace) -> int:
    from castiron import api, errors
    from castiron.contract import check, document
    from castiron.server.steps import fit, folder

    given = options.contract or options.model
    declared = api.contract(given)
    file = document.model_in(options.model)
    signature, metadata = api.describe(file)
    problems = check.check(declared, signature)
    if declared.pipeline is None:
        place = Path(options.contract).parent if options.contract else file.parent
        problems += fit.mismatches(
            declared, folder.Folder(place, metadata), has_before=False, has_after=False
        )
    if problems:
        raise errors.ContractError(str(given), problems)
    print(f"{given}: the contract of {declared.name} fits")
    return 0


def _diff(options: argparse.Namespace) -> int:
    from castiron import api
    from castiron.contract import compare

    changes = compare.diff(api.contract(options.old), api.contract(options.new))
    num_breaking = len(compare.breaking(changes))
    if options.json:
        print(json.dumps([dataclasses.asdict(change) for change in changes], indent=1, default=str))
        return 1 if num_breaking else 0
    for change in changes:
        print(change)
    print(f"{len(changes)} changed, {num_breaking} of it breaking clients")
    return 1 if num_breaking else 0


def _export(options: argparse.Namespace) -> int:
    from castiron import api
    from castiron.contract import export

    declared = api.contract(options.model)
    if options.form == "all":
        files = export.everything(declared)
    else:
        files = export.files(declared, options.form)
    for name, text in files.items():
        path = Path(options.out, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path)
    return 0
