"""Linking: flat images that run, the seven refusals, and GNU ld as the judge for AArch64."""

from __future__ import annotations

import ctypes
import mmap
import pathlib
import shutil
import subprocess
from typing import Any

import llvmlite.binding as llvm
import pytest

from castiron import errors
from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, elf_objects, link

AVX512, AVX2, BASELINE, AARCH64 = targets.ALL
HOST_TARGETS = [
    target
    for target in targets.ALL
    if target.architecture == targets.host().architecture
    and set(target.required_flags) <= {*targets.host().required_flags, "sse2"}
]

TABLE = """
@table = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40], align 32
declare dso_local i64 @scaled(i64)
define dso_local i64 @table_sum(i64 %i) align 64 {
  %j = and i64 %i, 3
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %j
  %v = load i64, ptr %p
  %s = call i64 @scaled(i64 %v)
  ret i64 %s
}
"""

JUMPS = """
define dso_local i64 @scaled(i64 %i) align 64 {
entry:
  %k = udiv i64 %i, 10
  switch i64 %k, label %other [
    i64 1, label %one
    i64 2, label %two
    i64 3, label %three
    i64 4, label %four
    i64 5, label %five
  ]
one:
  %a = call i64 @local_square(i64 7)
  ret i64 %a
two:
  ret i64 222
three:
  ret i64 -3333
four:
  %b = mul i64 %i, 101
  ret i64 %b
five:
  ret i64 5
other:
  ret i64 0
}
define internal i64 @local_square(i64 %i) noinline {
  %r = mul i64 %i, %i
  ret i64 %r
}
"""

VECTORS = """
define dso_local void @polynomial(ptr %x, ptr %y) align 64 {
  %v = load <16 x float>, ptr %x, align 4
  %a = fmul <16 x float> %v, <float 0.0, float 1.0, float 2.0, float 3.0, float 4.0, float 5.0,
    float 6.0, float 7.0, float 8.0, float 9.0, float 10.0, float 11.0, float 12.0, float 13.0,
    float 14.0, float 15.0>
  %b = fadd <16 x float> %a, <float 0.5, float 1.5, float 2.5, float 3.5, float 4.5, float 5.5,
    float 6.5, float 7.5, float 8.5, float 9.5, float 10.5, float 11.5, float 12.5, float 13.5,
    float 14.5, float 15.5>
  store <16 x float> %b, ptr %y, align 4
  ret void
}
"""

COPIES = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define dso_local void @fill_and_copy(ptr %to, ptr %from, i64 %n) align 64 {
  call void @llvm.memset.p0.i64(ptr %to, i8 90, i64 %n, i1 false)
  %half = lshr i64 %n, 1
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %half, i1 false)
  ret void
}
"""

KERNELS = [TABLE, JUMPS, VECTORS, COPIES]


def objects_for(texts: list[str], target: targets.Target) -> list[elf_objects.KernelObject]:
    return [elf_objects.parse(assemble.compile_kernel(text, target)) for text in texts]


def object_compiled_as(text: str, reloc: str, codemodel: str) -> elf_objects.KernelObject:
    assemble.compile_kernel(VECTORS, AVX2)
    machine = llvm.Target.from_triple(AVX2.triple).create_target_machine(
        cpu=AVX2.cpu, reloc=reloc, codemodel=codemodel
    )
    return elf_objects.parse(machine.emit_object(llvm.parse_assembly(text)))


def place_in_memory(content: bytes) -> tuple[int, mmap.mmap]:
    memory = mmap.mmap(-1, len(content), prot=mmap.PROT_READ | mmap.PROT_WRITE)
    memory.write(content)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    assert protect(base, len(content), mmap.PROT_READ | mmap.PROT_EXEC) == 0
    return base, memory


@pytest.mark.parametrize("target", HOST_TARGETS, ids=lambda target: target.name)
def test_a_linked_image_runs_with_exact_results(target: targets.Target) -> None:
    image = link.link(objects_for(KERNELS, target), target)
    base, _memory = place_in_memory(image.data)

    def function(name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(base + image.symbols[name][0])

    table_sum = function("table_sum", ctypes.c_int64, ctypes.c_int64)
    assert [table_sum(i) for i in range(4)] == [49, 222, -3333, 4040]
    x = (ctypes.c_float * 16)(*range(16))
    y = (ctypes.c_float * 16)()
    function("polynomial", None, ctypes.c_void_p, ctypes.c_void_p)(
        ctypes.addressof(x), ctypes.addressof(y)
    )
    assert list(y) == [i * i + i + 0.5 for i in range(16)]
    source = bytes(range(256)) * 40
    goal = ctypes.create_string_buffer(len(source) + 1)
    fill = function("fill_and_copy", None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)
    fill(ctypes.addressof(goal), source, len(source))
    half = len(source) // 2
    assert goal.raw == source[:half] + b"Z" * half + b"\0"


@pytest.mark.parametrize("target", targets.ALL, ids=lambda target: target.name)
def test_the_same_kernels_give_the_same_image(target: targets.Target) -> None:
    first = link.link(objects_for(KERNELS, target), target)
    second = link.link(objects_for(KERNELS, target), target)
    assert first == second
    assert list(first.symbols)[:4] == ["table_sum", "scaled", "polynomial", "fill_and_copy"]
    assert {"memset", "memcpy"} <= set(first.symbols)
    assert all(offset % 64 == 0 for offset, _ in first.symbols.values())


def test_equal_objects_are_linked_once() -> None:
    objects = objects_for([VECTORS, VECTORS], AVX2)
    assert link.link(objects, AVX2) == link.link(objects[:1], AVX2)


def test_memset_is_not_supplied_when_nobody_asks() -> None:
    assert set(link.link(objects_for([VECTORS], AVX2), AVX2).symbols) == {"polynomial"}


def refusal_of(*objects: elf_objects.KernelObject, target: targets.Target = AVX2) -> str:
    with pytest.raises(errors.BuildError) as caught:
        link.link(objects, target)
    return str(caught.value)


def test_an_undefined_symbol_is_refused_with_every_place() -> None:
    text = """
declare float @expf(float)
declare float @tanhf(float)
define dso_local float @curve(float %x) {
  %a = call float @expf(float %x)
  %b = call float @tanhf(float %a)
  ret float %b
}
"""
    message = refusal_of(*objects_for([text], AVX2))
    assert "2 reason(s)" in message
    assert "kernel curve: .text+0x2: symbol expf is not defined" in message
    assert "symbol tanhf is not defined" in message


CONSTANT_READER = """
@weights = internal constant [64 x float] zeroinitializer
define dso_local float @read(i64 %i) {
  %p = getelementptr [64 x float], ptr @weights, i64 0, i64 %i
  %v = load float, ptr %p
  ret float %v
}
"""


def test_a_static_relocation_is_refused() -> None:
    message = refusal_of(object_compiled_as(CONSTANT_READER, "static", "small"))
    assert "kernel read: .text+0x" in message
    assert "R_X86_64_32S, which is not position-independent" in message
    assert "symbol .rodata" in message or "symbol .bss" in message or "symbol weights" in message


def test_the_jit_code_model_is_refused() -> None:
    message = refusal_of(object_compiled_as(CONSTANT_READER, "default", "jitdefault"))
    assert ".ltext+0x0" in message
    assert "R_X86_64_64" in message
    assert "symbol read" in message


def test_a_writable_global_is_refused() -> None:
    text = """
@count = internal global i64 7
define dso_local i64 @next() {
  %a = load i64, ptr @count
  %b = add i64 %a, 1
  store i64 %b, ptr @count
  ret i64 %b
}
"""
    message = refusal_of(*objects_for([text], AVX2))
    assert "kernel next: .data+0x0 (8 bytes), symbol count: writable data" in message


def test_a_table_of_pointers_is_refused() -> None:
    text = """
@steps = internal constant [2 x ptr] [ptr @a, ptr @b]
define dso_local i64 @a() {
  ret i64 1
}
define dso_local i64 @b() {
  ret i64 2
}
define dso_local i64 @pick(i64 %i) {
  %p = getelementptr [2 x ptr], ptr @steps, i64 0, i64 %i
  %f = load ptr, ptr %p
  %r = call i64 %f()
  ret i64 %r
}
"""
    message = refusal_of(*objects_for([text], AVX2))
    assert ".data.rel.ro+0x0 (16 bytes), symbol steps: table of pointers" in message
    assert ".data.rel.ro+0x8" in message


def test_external_data_is_refused() -> None:
    text = """
@elsewhere = external global i64
define dso_local i64 @look() {
  %a = load i64, ptr @elsewhere
  ret i64 %a
}
"""
    message = refusal_of(*objects_for([text], AVX2))
    assert "kernel look: .text+0x3: symbol elsewhere is not defined" in message


def test_an_exported_constant_is_refused() -> None:
    text = CONSTANT_READER.replace("internal constant", "constant")
    message = refusal_of(*objects_for([text], AVX2))
    assert "kernel read: .text+0x3: symbol weights needs R_X86_64_REX_GOTPCRELX" in message
    assert "constants internal" in message


def test_a_name_given_twice_is_refused() -> None:
    other = VECTORS.replace("0.5", "0.75")
    message = refusal_of(*objects_for([VECTORS, other], AVX2))
    assert "symbol polynomial is defined a second time" in message


def test_an_object_of_another_machine_is_refused() -> None:
    message = refusal_of(*objects_for([VECTORS], AARCH64))
    assert "ELF machine 183, expected 62" in message


def test_the_large_model_on_aarch64_is_refused() -> None:
    assemble.compile_kernel(VECTORS, AARCH64)
    machine = llvm.Target.from_triple(AARCH64.triple).create_target_machine(
        reloc="static", codemodel="large"
    )
    parsed = elf_objects.parse(machine.emit_object(llvm.parse_assembly(CONSTANT_READER)))
    message = refusal_of(parsed, target=AARCH64)
    assert "R_AARCH64_MOVW_UABS_G0_NC" in message


LINKER_SCRIPT = """
SECTIONS {
  . = 0x10000;
  .text : SUBALIGN(64) { *(.text) } =0
  .rodata : SUBALIGN(64) { *(.rodata .rodata.*) } =0
  /DISCARD/ : { *(*) }
}
"""


def test_an_aarch64_image_equals_what_gnu_ld_makes(tmp_path: pathlib.Path) -> None:
    linker = shutil.which("aarch64-linux-gnu-ld")
    copier = shutil.which("aarch64-linux-gnu-objcopy")
    if linker is None or copier is None:
        pytest.skip("aarch64-linux-gnu-ld is not installed; it is the judge of this test")
    texts = [TABLE, JUMPS, VECTORS]
    files = []
    for number, text in enumerate(texts):
        path = tmp_path / f"{number}.o"
        path.write_bytes(assemble.compile_kernel(text, AARCH64))
        files.append(str(path))
    script = tmp_path / "flat.ld"
    script.write_text(LINKER_SCRIPT)
    linked, result = tmp_path / "flat.elf", tmp_path / "flat.bin"
    command = [linker, "-T", str(script), "-o", str(linked), *files]
    subprocess.run(command, check=True, timeout=30)
    subprocess.run([copier, "-O", "binary", str(linked), str(result)], check=True, timeout=30)
    image = link.link(objects_for(texts, AARCH64), AARCH64)
    theirs = result.read_bytes()
    assert len(theirs) > 500
    assert image.data == theirs
