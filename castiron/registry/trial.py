"""The judging of one candidate, inside the process that ``judge.py`` starts for it.

Digests, contract, the version before, golden cases: in this order, since each is of no use before
the last. What the candidate is opened with is handed in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from castiron import errors
from castiron.contract import check, compare, derive, document, golden, model
from castiron.executable import reader
from castiron.registry import supply
from castiron.tensor import signature as signatures

Open = Callable[[Path], supply.Instance]
Describe = Callable[[Path], tuple[signatures.Signature, dict[str, str]]]


def run(path: Path, source: Path, previous: Path | None, given: tuple[Open, Describe]) -> None:
    """Judge the executable at ``path``, made from ``source``, beside which its contract lies.

    Raises ExecutableError, ContractError, InputError or AdmissionError.
    """
    open_instance, describe = given
    with reader.open(path) as file:
        file.verify()
    instance = open_instance(path)
    beside = document.beside(source)
    held = instance.metadata.get(document.METADATA_KEY, "")
    contract = None
    if beside is not None:
        contract = document.load(beside)
    elif held:
        contract = document.parse(held, f"the contract inside {path}")
    if contract is not None:
        check.require(contract, instance.signature, str(beside or path))
    if previous is not None:
        _compare(instance.signature, previous, describe)
    if contract is not None:
        _try(instance, contract, source.parent)


def _compare(signature: signatures.Signature, previous: Path, describe: Describe) -> None:
    """Clients of the version before must be understood by this one."""
    old, _ = describe(previous)
    changes = compare.diff(derive.derive(old, {}), derive.derive(signature, {}))
    breaking = [change for change in compare.breaking(changes) if _is_of_tensors(change.path)]
    if breaking:
        raise errors.AdmissionError(
            "clients of the version before would not be understood: "
            + "; ".join(str(change) for change in breaking)
        )


def _is_of_tensors(path: str) -> bool:
    return path.startswith(("input", "output"))


def _try(instance: supply.Instance, contract: model.Contract, folder: Path) -> None:
    found = []
    for case in golden.cases(contract, folder):
        found += golden.faults(case, instance.run(case.inputs))
    if found:
        raise errors.AdmissionError("; ".join(found))
