"""The documents say only what is so: every link leads somewhere, every name in code exists.

A code span such as `compiler.plan.plan_stage` or `castiron/compiler/plan.py` in a document is
looked up in the sources, without importing them. Prints one line for each fault.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "castiron"
_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")
_SPAN = re.compile(r"`([^`\n]+)`")
_DOTTED = re.compile(r"[a-z_]+(\.[A-Za-z_]+)+")
_FILE = re.compile(r"[\w.-]+(/[\w.-]+)*/?")


def documents(root: Path) -> list[Path]:
    """README.md and the like, and everything in docs/."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def faults(root: Path, document: Path) -> Iterator[str]:
    """What is wrong in one document."""
    for number, line in enumerate(document.read_text().splitlines(), 1):
        place = f"{document.relative_to(root)}:{number}"
        for target, _ in _LINK.findall(line):
            if "://" not in target and not (document.parent / target).exists():
                yield f"{place}: the link {target} leads nowhere"
        for span in _SPAN.findall(line):
            if not _exists(root, span):
                yield f"{place}: {span} does not exist"


def _exists(root: Path, span: str) -> bool:
    """Whether a code span that looks like a file or a name of ours is one; others pass."""
    first = span.split("/", maxsplit=1)[0]
    if _FILE.fullmatch(span) and "/" in span and (root / first).is_dir():
        return (root / span).exists()
    if not _DOTTED.fullmatch(span):
        return True
    parts = span.removeprefix(f"{PACKAGE}.").split(".")
    package = root / PACKAGE
    is_ours = (package / parts[0]).is_dir() or (package / f"{parts[0]}.py").is_file()
    return not is_ours or _is_defined(package, parts)


def _is_defined(folder: Path, parts: list[str]) -> bool:
    """Follow folders, then one file, then classes and functions in it."""
    here = folder
    while parts and (here / parts[0]).is_dir():
        here, parts = here / parts[0], parts[1:]
    file = here / f"{parts[0]}.py" if parts else here
    if file.is_file():
        parts = parts[1:]
    else:
        file = here / "__init__.py"
    if not parts:
        return True
    if not file.is_file():
        return False
    return _has_name(ast.parse(file.read_text()), parts)


def _has_name(node: ast.Module | ast.ClassDef, parts: list[str]) -> bool:
    for child in node.body:
        if isinstance(child, ast.ClassDef) and child.name == parts[0]:
            return len(parts) == 1 or _has_name(child, parts[1:])
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and child.name == parts[0]:
            return len(parts) == 1
        if isinstance(child, ast.Assign | ast.AnnAssign) and parts[0] in _targets(child):
            return len(parts) == 1
    return False


def _targets(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def main() -> int:
    """Check all documents of the checkout, which is the current folder."""
    root = Path.cwd()
    files = documents(root)
    found = [fault for file in files for fault in faults(root, file)]
    for fault in found:
        print(fault)
    print(f"documents: {len(files)} files, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
