"""The rules of the house that no linter knows: names, sizes, docstrings, imports across folders.

Prints one line for each breach and ends with status 1 if there was any. A function that must be
longer, wider or deeper than the limit says so on its `def` line: `# limit: the reason`.
What the rules are for is told in CONTRIBUTING.md.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "castiron"
FOLDERS = (PACKAGE, "zoo", "tests", "bench", "examples", "tools")

MAX_BODY_LINES = 60
MAX_FILE_LINES = 500
MAX_PARAMETERS = 6
MAX_NESTING = 3
MAX_HEADER_LINES = 8  # the aim is 2 to 6

# These say nothing, wherever they stand.
EMPTY_WORDS = frozenset("util utils helper helpers common core base misc impl stuff".split())
# docs/words.md has one word for each of these things, and it is another one.
OTHER_WORDS = frozenset(
    "artifact checkpoint deployment engine optimizer predictor revision rollout runner schedule "
    "session strategy workspace".split()
)
EMPTY_CLASS_WORDS = frozenset("abstract base data handler impl info manager".split())

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.Try, ast.TryStar, ast.Match)


@dataclass(frozen=True, slots=True)
class Source:
    """One file, parsed; `path` is relative to the root of the checkout."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> list[str]:
        """The text by lines, without their ends."""
        return self.text.splitlines()

    @property
    def is_product(self) -> bool:
        """Whether the file is part of the package that users install."""
        return self.path.parts[0] == PACKAGE


Breach = tuple[int, str]  # line number, what is wrong


def words_of(identifier: str) -> list[str]:
    """The lower-case words of a snake_case or CamelCase name: `HTTPError2` -> http, error."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)
    return [part.lower() for part in parts]


def check_file_name(source: Source) -> Iterator[Breach]:
    """A file is a noun or a verb of the domain, and hides no standard module."""
    stem = source.path.stem
    for word in EMPTY_WORDS.intersection(words_of(stem)):
        yield 1, f"the file name says nothing: {word!r}"
    if not source.is_product:
        return
    if re.search(r"\d$", stem):
        yield 1, "a file name ends with a number"
    # A file of cli/ is named after its command.
    if stem in sys.stdlib_module_names and source.path.parts[1] != "cli":
        yield 1, f"the file name hides the standard module {stem!r}"
    for folder in source.path.parts[:-1]:
        if "_" in folder or folder in EMPTY_WORDS:
            yield 1, f"a folder is one noun that says something, not {folder!r}"


def check_identifiers(source: Source) -> Iterator[Breach]:
    """Names that are defined use the words of docs/words.md, and none that say nothing."""
    if not source.is_product or source.path.name == "backend.py":
        return
    # What is measured side by side may be called an engine; nothing of ours is one.
    allowed = {"engine"} if source.path.parts[1] == "cli" else set()
    for line, name in _defined_names(source.tree):
        words = set(words_of(name)) - allowed
        for word in sorted(words & OTHER_WORDS):
            yield line, f"{name}: {word!r} is not our word (docs/words.md)"
        for word in sorted(words & EMPTY_WORDS - {"base", "common", "core"}):
            yield line, f"{name}: {word!r} says nothing"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef):
            for word in sorted(EMPTY_CLASS_WORDS.intersection(words_of(node.name))):
                yield node.lineno, f"class {node.name}: {word!r} says nothing"


def _defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, _Function | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def check_header(source: Source) -> Iterator[Breach]:
    """A file of the package opens with what it is for, what it is not, who continues."""
    if not source.is_product:
        return
    text = ast.get_docstring(source.tree)
    if source.path.name == "errors.py":
        return  # it opens with the whole tree of errors
    if text is None:
        yield 1, "the file opens with no docstring"
    elif len(text.splitlines()) > MAX_HEADER_LINES:
        yield 1, f"the opening docstring has more than {MAX_HEADER_LINES} lines"


def check_docstrings(source: Source) -> Iterator[Breach]:
    """Public functions and classes of the package state their contract."""
    if not source.is_product:
        return
    for node in source.tree.body:
        if not isinstance(node, _Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None:
            yield node.lineno, f"{node.name} is public and has no docstring"


def check_sizes(source: Source) -> Iterator[Breach]:
    """Files, functions, parameter lists and nesting stay readable."""
    if len(source.lines) > MAX_FILE_LINES:
        yield 1, f"{len(source.lines)} lines (limit {MAX_FILE_LINES})"
    for node in ast.walk(source.tree):
        if not isinstance(node, _Function) or "# limit: " in source.lines[node.lineno - 1]:
            continue
        measured = (
            ("lines", body_lines(node), MAX_BODY_LINES),
            ("parameters", num_parameters(node), MAX_PARAMETERS),
            ("levels of nesting", nesting(node.body), MAX_NESTING),
        )
        for what, found, limit in measured:
            if found > limit:
                yield node.lineno, f"{node.name} has {found} {what} (limit {limit})"


def body_lines(function: _Function) -> int:
    """Lines of a function's body, its docstring left out."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    if not body:
        return 0
    last = body[-1].end_lineno
    assert last is not None, "parsed from text, so every node has an end"
    return last - body[0].lineno + 1


def num_parameters(function: _Function) -> int:
    """Parameters that a caller gives; `self` and `cls` are not among them."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if positional and positional[0].arg in {"self", "cls"}:
        positional = positional[1:]
    return len(positional) + len(arguments.kwonlyargs)


def nesting(body: list[ast.stmt]) -> int:
    """The deepest chain of branches and loops; `elif` goes no deeper, `with` does not count."""
    return max((_depth(statement) for statement in body), default=0)


def _depth(node: ast.AST) -> int:
    if isinstance(node, _Function | ast.ClassDef | ast.Lambda):
        return 0  # measured on its own
    if isinstance(node, ast.If) and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
        return max(1 + nesting(node.body), _depth(node.orelse[0]))
    inner = max((_depth(child) for child in ast.iter_child_nodes(node)), default=0)
    return inner + isinstance(node, _BLOCKS)


def check_unfinished(source: Source) -> Iterator[Breach]:
    """What is not done is not there; it leaves no mark in the text."""
    mark = re.compile(r"#\s*(TODO|FIXME|XXX|HACK)\b|raise NotImplemented" + "Error")
    for number, line in enumerate(source.lines, 1):
        if mark.search(line):
            yield number, f"unfinished: {line.strip()[:60]}"


def check_imports(source: Source) -> Iterator[Breach]:
    """Across folders modules and classes are imported; private names stay in their file."""
    modules: set[str] = set()
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
            continue
        if node.module.split(".")[0] != PACKAGE:
            continue
        for alias in node.names:
            if _is_module(f"{node.module}.{alias.name}"):
                modules.add(alias.asname or alias.name)
            elif str(source.path) == f"{PACKAGE}/__init__.py":
                continue  # the face of the package names what it shows
            elif alias.name[0].isupper() or alias.name.startswith("__") or not source.is_product:
                continue
            elif not _same_folder(source.path, node.module):
                yield node.lineno, f"import the module, not {alias.name!r} from {node.module}"
    if source.is_product:
        yield from _private_uses(source.tree, modules)


def _is_module(dotted: str) -> bool:
    path = Path(*dotted.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def _same_folder(path: Path, module: str) -> bool:
    parts = module.split(".")
    if path.name == "__main__.py":
        return True  # it is the door to one function
    return len(parts) > 1 and len(path.parts) > 2 and path.parts[1] == parts[1]


def _private_uses(tree: ast.Module, modules: set[str]) -> Iterator[Breach]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        if node.value.id in modules and re.match(r"_(?!_)", node.attr):
            yield node.lineno, f"{node.value.id}.{node.attr} is private to its file"


CHECKS: tuple[Callable[[Source], Iterator[Breach]], ...] = (
    check_file_name,
    check_identifiers,
    check_header,
    check_docstrings,
    check_sizes,
    check_unfinished,
    check_imports,
)


def breaches(path: Path, text: str) -> list[str]:
    """Every breach in one file, as `path:line: what is wrong`; `path` is relative to the root."""
    source = Source(path=path, text=text, tree=ast.parse(text))
    found = sorted(breach for check in CHECKS for breach in check(source))
    return [f"{path}:{line}: {what}" for line, what in found]


def main() -> int:
    """Check every Python file of the checkout, which is the current folder."""
    files = sorted(file for folder in FOLDERS for file in Path(folder).rglob("*.py"))
    found = [line for file in files for line in breaches(file, file.read_text())]
    for line in found:
        print(line)
    print(f"names and sizes: {len(files)} files, {len(found)} breaches")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
