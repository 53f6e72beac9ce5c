"""Vector registers that spill to the stack inside loops, counted in the emitted assembly.

A register tile that does not fit the target shows here and nowhere else: results stay right and
speed drops. Tests of tiles assert zero; `castiron inspect` prints the count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from castiron import errors
from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble

_LABEL = re.compile(r"^(\.?[A-Za-z_$][\w.$]*):")
_LOCAL = re.compile(r"\.L[\w.$]+")
_X86_VECTOR = re.compile(r"%[xyz]mm\d+")
_X86_STACK = re.compile(r"\(%rsp(?:\)|,)")
_X86_FRAMED_STACK = re.compile(r"\(%r[sb]p(?:\)|,)")
# Only behind this is rbp the frame; without it rbp is one more general register.
_X86_FRAME = re.compile(r"movq\s+%rsp, %rbp")
_AARCH64_VECTOR = re.compile(r"(?:^|[\s,{\[])(?:[bhsdqv]\d+(?:\.\d*[bhsdq])?)\b")
_AARCH64_STACK = re.compile(r"\[(?:sp|x29)\b")


def count_vector_spills(text: str, target: targets.Target, function: str) -> int:
    """How many instructions in loops of `function` move vector registers to or from the stack.

    `text` is kernel text as `assemble.compile_kernel` takes it; loops are found as backward
    branches. BuildError if the text does not define `function`.
    """
    return count_in_assembly(assemble.emit_assembly(text, target), target, function)


def count_in_assembly(assembly: str, target: targets.Target, function: str) -> int:
    """`count_vector_spills` of assembly text already emitted for `target`."""
    lines = _body(assembly, function)
    inside = {index for first, last in _loops(lines) for index in range(first, last + 1)}
    framed = any(_X86_FRAME.search(line) for line in lines)
    stack = _X86_FRAMED_STACK if framed else _X86_STACK
    return sum(_is_spill(lines[index], target, stack) for index in inside)


def _body(assembly: str, function: str) -> list[str]:
    lines = assembly.splitlines()
    quoted = (f"{function}:", f'"{function}":')
    starts = [index for index, line in enumerate(lines) if line.startswith(quoted)]
    if not starts:
        raise errors.BuildError(
            f"spills: expected a function {function}; found none of that name in the assembly. "
            "Name a function that the kernel defines."
        )
    for index in range(starts[0] + 1, len(lines)):
        if lines[index].startswith(".Lfunc_end"):
            return lines[starts[0] + 1 : index]
    return lines[starts[0] + 1 :]


def _loops(lines: list[str]) -> Iterator[tuple[int, int]]:
    """First and last line of each backward branch's range."""
    labels: dict[str, int] = {}
    for index, line in enumerate(lines):
        label = _LABEL.match(line)
        if label:
            labels[label[1]] = index
            continue
        words = line.split(None, 1)
        if len(words) == 1 or not words or not _is_branch(words[0]):
            continue
        for name in _LOCAL.findall(words[1]):
            if name in labels:
                yield labels[name], index


def _is_branch(mnemonic: str) -> bool:
    return mnemonic[0] == "j" or mnemonic.split(".", maxsplit=1)[0] in (
        "b",
        "cbz",
        "cbnz",
        "tbz",
        "tbnz",
    )


def _is_spill(line: str, target: targets.Target, x86_stack: re.Pattern[str]) -> bool:
    code = line.split("#", 1)[0] if target.architecture == "x86_64" else line.split("//", 1)[0]
    if _LABEL.match(code) or not code[:1].isspace():
        return False
    if target.architecture == "x86_64":
        return bool(_X86_VECTOR.search(code) and x86_stack.search(code))
    words = code.split(None, 1)
    operands = words[1] if len(words) > 1 else ""
    return bool(_AARCH64_VECTOR.search(operands) and _AARCH64_STACK.search(operands))
