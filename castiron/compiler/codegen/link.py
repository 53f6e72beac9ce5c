"""Kernel objects to one flat, relocated image: code first, then constants.

The image runs wherever a multiple of 64 KB places it; nothing in it is written at load. Whatever
would need a writable page, a run-time address or an outside symbol is refused here, all of it at
once. The executable's writer stores the image.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from castiron import errors
from castiron.compiler import target as targets
from castiron.compiler.codegen import elf_objects, relocate, support

_ALIGN = 64
_LARGE_SECTION = 0x10000000
_MACHINES = {
    "x86_64": elf_objects.MACHINE_X86_64,
    "aarch64": elf_objects.MACHINE_AARCH64,
}
# Running into a gap traps: int3 on x86, and word 0 is undefined on AArch64.
_GAP = {elf_objects.MACHINE_X86_64: b"\xcc", elf_objects.MACHINE_AARCH64: b"\0"}

Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Image:
    """Code and constants of all kernels.

    `symbols` maps each exported function to (offset in `data`, size in bytes), in order of
    offset; `text_bytes` is the length of the code in front of the constants.
    """

    data: bytes
    symbols: dict[str, tuple[int, int]]
    text_bytes: int


def link(objects: Sequence[elf_objects.KernelObject], target: targets.Target) -> Image:
    """The image of `objects`, in their order; equal objects are linked once.

    Raises BuildError that lists every reason why the objects cannot be flat: each with kernel,
    section, offset and symbol. Same objects, same bytes.
    """
    members = list(dict.fromkeys(objects))
    members += support.supplied(target, _wanted(members))
    machine = _MACHINES[target.architecture]
    definitions = _definitions(members)
    problems = [*_foreign(members, machine), *_doubles(members, definitions)]
    problems += _unfit_sections(members)
    places, image, text_bytes = _lay_out(members, machine)
    problems += _relocate(members, places, definitions, image)
    if problems:
        raise errors.BuildError(_refusal(target, problems))
    return Image(bytes(image), _exports(members, places), text_bytes)


def _wanted(members: list[elf_objects.KernelObject]) -> set[str]:
    """Names that a kept section refers to and no member defines."""
    defined = {name for parsed in members for name in parsed.exported()}
    return {
        parsed.symbols[item.symbol].name
        for parsed in members
        for item in parsed.relocations
        if parsed.symbols[item.symbol].section == elf_objects.UNDEFINED
    } - defined


def _definitions(members: list[elf_objects.KernelObject]) -> dict[str, Place]:
    """The first (member, symbol index) that exports each name."""
    found: dict[str, Place] = {}
    for number, parsed in enumerate(members):
        for index, symbol in enumerate(parsed.symbols):
            if symbol.is_exported and symbol.section != elf_objects.UNDEFINED:
                found.setdefault(symbol.name, (number, index))
    return found


def _foreign(members: list[elf_objects.KernelObject], machine: int) -> Iterator[str]:
    for parsed in members:
        if parsed.machine != machine:
            yield (
                f"kernel {_first_name(parsed)}: ELF machine {parsed.machine}, expected {machine}; "
                "compile it for this target"
            )


def _doubles(
    members: list[elf_objects.KernelObject], definitions: dict[str, Place]
) -> Iterator[str]:
    for number, parsed in enumerate(members):
        for index, symbol in enumerate(parsed.symbols):
            home = definitions.get(symbol.name, (number, index))
            if symbol.is_exported and symbol.section >= 0 and home != (number, index):
                yield (
                    f"kernel {_first_name(parsed)}: {_at(parsed, symbol.section, symbol.offset)}: "
                    f"symbol {symbol.name} is defined a second time; give each kernel its own name"
                )


def _unfit_sections(members: list[elf_objects.KernelObject]) -> Iterator[str]:
    for parsed in members:
        for index, section in enumerate(parsed.sections):
            reason = _unfit_reason(section)
            if reason:
                inside = ", ".join(
                    symbol.name
                    for symbol in parsed.symbols
                    if symbol.section == index and symbol.name not in ("", section.name)
                )
                yield (
                    f"kernel {_first_name(parsed)}: {section.name}+0x0 "
                    f"({len(section.content)} bytes), symbol {inside or section.name}: {reason}"
                )


def _unfit_reason(section: elf_objects.Section) -> str:
    if section.name.startswith(".data.rel.ro"):
        return "table of pointers; print a switch, or offsets from a known place"
    if section.flags & elf_objects.SECTION_TLS:
        return "thread-local data; keep state in the argument block"
    if section.flags & elf_objects.SECTION_WRITE:
        return "writable data; keep state in the argument block"
    if section.flags & _LARGE_SECTION:
        return "section of the large code model; compile with reloc pic, code model small"
    return ""


def _lay_out(
    members: list[elf_objects.KernelObject], machine: int
) -> tuple[dict[Place, int], bytearray, int]:
    """Offsets of all sections by (member, section index), the raw image, and its code length."""
    sections = [
        ((number, index), section)
        for number, parsed in enumerate(members)
        for index, section in enumerate(parsed.sections)
    ]
    code = [entry for entry in sections if entry[1].flags & elf_objects.SECTION_EXEC]
    constants = [entry for entry in sections if not entry[1].flags & elf_objects.SECTION_EXEC]
    image = bytearray()
    places: dict[Place, int] = {}
    text_bytes = 0
    for place, section in (*code, *constants):
        gap = -len(image) % max(section.align, _ALIGN)
        image += _GAP.get(machine, b"\0") * gap
        places[place] = len(image)
        image += section.content
        if section.flags & elf_objects.SECTION_EXEC:
            text_bytes = len(image)
    return places, image, text_bytes


def _relocate(
    members: list[elf_objects.KernelObject],
    places: dict[Place, int],
    definitions: dict[str, Place],
    image: bytearray,
) -> list[str]:
    """Patch every place that can be patched; a line for each that cannot."""
    problems = []
    for number, parsed in enumerate(members):
        for item in parsed.relocations:
            meant = _offset_meant(members, places, definitions, (number, item.symbol))
            place = places[number, item.section] + item.offset
            problem = _patch(parsed, item, image, place, meant)
            if problem:
                problems.append(problem)
    return problems


def _offset_meant(
    members: list[elf_objects.KernelObject],
    places: dict[Place, int],
    definitions: dict[str, Place],
    reference: Place,
) -> int | None:
    """Image offset of the symbol at (member, symbol index), wherever it is defined."""
    number, index = reference
    symbol = members[number].symbols[index]
    if symbol.section == elf_objects.UNDEFINED and symbol.name in definitions:
        number, index = definitions[symbol.name]
        symbol = members[number].symbols[index]
    if symbol.section < 0:
        return None
    return places[number, symbol.section] + symbol.offset


def _patch(
    parsed: elf_objects.KernelObject,
    item: elf_objects.Relocation,
    image: bytearray,
    place: int,
    meant: int | None,
) -> str:
    symbol = parsed.symbols[item.symbol]
    kind = relocate.kind_name(parsed.machine, item.kind)
    where = (
        f"kernel {_kernel_at(parsed, item.section, item.offset)}: "
        f"{_at(parsed, item.section, item.offset)}: symbol {symbol.name or '(none)'}"
    )
    patch = relocate.patch_for(parsed.machine, item.kind)
    if meant is None:
        return (
            f"{where} is not defined by any kernel ({kind}); print the function or the data "
            "inside the kernel, there is no C library to call"
        )
    if patch is None:
        return (
            f"{where} needs {kind}, which is not position-independent; compile with reloc pic and "
            "code model small, mark functions dso_local and constants internal"
        )
    try:
        patch(image, place, meant + item.addend)
    except relocate.OutOfReachError as fault:
        return f"{where} is out of reach of {kind}: {fault}; build fewer or smaller kernels"
    return ""


def _exports(
    members: list[elf_objects.KernelObject], places: dict[Place, int]
) -> dict[str, tuple[int, int]]:
    found = {
        symbol.name: (places[number, symbol.section] + symbol.offset, symbol.size)
        for number, parsed in enumerate(members)
        for symbol in parsed.symbols
        if symbol.is_exported and symbol.is_function and symbol.section >= 0
    }
    return dict(sorted(found.items(), key=lambda entry: (entry[1], entry[0])))


def _at(parsed: elf_objects.KernelObject, section: int, offset: int) -> str:
    return f"{parsed.sections[section].name}+{offset:#x}"


def _first_name(parsed: elf_objects.KernelObject) -> str:
    names = parsed.exported()
    return names[0] if names else "(without a name)"


def _kernel_at(parsed: elf_objects.KernelObject, section: int, offset: int) -> str:
    """The function that covers that place, else the object's first exported function."""
    for symbol in parsed.symbols:
        inside = symbol.offset <= offset < symbol.offset + symbol.size
        if symbol.is_function and symbol.section == section and inside:
            return symbol.name
    return _first_name(parsed)


def _refusal(target: targets.Target, problems: list[str]) -> str:
    lines = "\n".join(f"  - {problem}" for problem in problems)
    return (
        f"link for {target.name}: expected code that is flat (position-independent, nothing "
        f"writable, nothing outside); found {len(problems)} reason(s) why it is not:\n{lines}"
    )
