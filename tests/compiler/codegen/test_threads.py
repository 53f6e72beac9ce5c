"""The run-time functions as text: they assemble and link for every target, alone and flat.

What they do is tested where they run: `tests/runtime`, and here under an emulator for AArch64.
"""

from __future__ import annotations

import re
import struct

import llvmlite.binding as llvm
import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, elf_objects, link, machine, threads

TARGETS = ("avx512", "avx2", "baseline", "aarch64")
ATOMIC = r"\b(lock|xchg\w?|cas[al]*|ldadd[al]*|ldaxr|ldxr|stlxr|stxr)\b"
ARCHITECTURES = ("x86_64", "aarch64")


@pytest.mark.parametrize("name", TARGETS)
def test_they_link_alone_into_a_flat_image(name: str) -> None:
    target = targets.named(name)
    text = threads.run_text(target.architecture)
    image = link.link([elf_objects.parse(assemble.compile_kernel(text, target))], target)
    assert set(image.symbols) == set(threads.ENTRY_POINTS)
    assert len(image.data) < 8192


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_text_is_the_same_every_time(architecture: str) -> None:
    assert threads.run_text(architecture) == threads.run_text(architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_text_passes_the_verifier(architecture: str) -> None:
    llvm.parse_assembly(threads.run_text(architecture)).verify()


def test_no_inline_assembly_on_aarch64() -> None:
    assert " asm " in threads.run_text("x86_64")
    assert " asm " not in threads.run_text("aarch64")


def test_the_system_call_of_aarch64_is_in_the_image_word_for_word() -> None:
    target = targets.named("aarch64")
    text = threads.run_text("aarch64")
    image = link.link([elf_objects.parse(assemble.compile_kernel(text, target))], target)
    stub = struct.pack("<9I", *machine.AARCH64_SYSCALL_WORDS)
    assert stub == bytes.fromhex(
        "e80300aae00301aae10302aae20303aae30304aae40305aae50306aa010000d4c0035fd6"
    )
    assert image.data.count(stub) == 1


def test_the_clock_of_aarch64_is_the_one_that_user_code_may_read() -> None:
    assembly = assemble.emit_assembly(threads.run_text("aarch64"), targets.named("aarch64"))
    assert re.search(r"mrs\s+x\d+, (?:CNTVCT_EL0|cntvct_el0)", assembly, re.IGNORECASE)
    assert "steadycounter" not in threads.run_text("aarch64")


@pytest.mark.parametrize("name", TARGETS)
def test_only_shared_paths_use_atomic_operations(name: str) -> None:
    target = targets.named(name)
    assembly = assemble.emit_assembly(threads.run_text(target.architecture), target)
    alone = ("castiron_time_step", "castiron_step", "castiron_fill_args", "castiron_run")
    for function in alone:
        body = re.search(rf"^{function}:.*?^\.Lfunc_end", assembly, re.MULTILINE | re.DOTALL)
        assert body is not None
        assert not re.search(ATOMIC, body[0])
    assert re.search(ATOMIC, assembly)


def test_an_unknown_architecture_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="expected x86_64 or aarch64, found 'riscv64'"):
        threads.run_text("riscv64")
