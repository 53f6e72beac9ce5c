"""Object files: what LLVM emits is understood whole, what is damaged is refused."""

from __future__ import annotations

import random

import pytest

from castiron import errors
from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, elf_objects

TEXT = """
@table = internal constant [3 x i64] [i64 1, i64 2, i64 3]
declare dso_local i64 @other(i64)
define dso_local i64 @kernel(i64 %i) align 64 {
  %p = getelementptr [3 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  %r = call i64 @other(i64 %v)
  ret i64 %r
}
define internal i64 @hidden(i64 %i) noinline {
  ret i64 %i
}
"""


@pytest.mark.parametrize("target", targets.ALL, ids=lambda target: target.name)
def test_sections_symbols_and_relocations_are_all_there(target: targets.Target) -> None:
    parsed = elf_objects.parse(assemble.compile_kernel(TEXT, target))
    names = [section.name for section in parsed.sections]
    assert names[0] == ".text"
    assert any(name.startswith(".rodata") for name in names)
    assert parsed.sections[0].align == 64
    by_name = {symbol.name: symbol for symbol in parsed.symbols}
    assert by_name["kernel"].is_exported
    assert by_name["kernel"].size > 0
    assert not by_name["hidden"].is_exported
    assert by_name["other"].section == elf_objects.UNDEFINED
    assert parsed.exported() == ("kernel",)
    meant = {parsed.symbols[item.symbol].name for item in parsed.relocations}
    assert "other" in meant
    assert len(meant) == 2


@pytest.mark.parametrize("target", targets.ALL, ids=lambda target: target.name)
def test_the_packed_form_gives_the_object_back(target: targets.Target) -> None:
    parsed = elf_objects.parse(assemble.compile_kernel(TEXT, target))
    assert elf_objects.unpack(elf_objects.pack(parsed)) == parsed


def test_a_damaged_object_is_refused_or_read_but_nothing_else() -> None:
    content = assemble.compile_kernel(TEXT, targets.named("avx2"))
    chance = random.Random(3)
    refused = 0
    for turn in range(1000):
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        data = bytes(damaged) if turn % 2 else content[: chance.randrange(len(content))]
        try:
            elf_objects.parse(data)
        except errors.BuildError:
            refused += 1
    assert refused >= 500


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(errors.BuildError, match="expected a relocatable ELF64"):
        elf_objects.parse(b"#!/bin/sh\n" + bytes(100))
    with pytest.raises(errors.BuildError, match="found 4 bytes"):
        elf_objects.parse(b"\x7fELF")
