"""Compiling kernels: passes on request, faults named, processes and cache giving the same code."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from castiron import errors
from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, elf_objects, kernel_cache

ROOT = pathlib.Path(__file__).parents[3]
AVX512, AVX2, BASELINE, AARCH64 = targets.ALL


def scale_text(number: int) -> str:
    return f"""
define dso_local float @scale_{number}(float %x) align 64 {{
  %y = fmul float %x, {float(number + 3)}
  ret float %y
}}
"""


ZERO_LOOP = """
define dso_local void @zero(ptr %x, i64 %n) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %p = getelementptr float, ptr %x, i64 %i
  store float 0.0, ptr %p, align 4
  %j = add nuw i64 %i, 1
  %more = icmp ult i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


@pytest.fixture
def cache(tmp_path: pathlib.Path) -> kernel_cache.KernelCache:
    return kernel_cache.KernelCache(tmp_path / "kernels")


@pytest.mark.parametrize("target", targets.ALL, ids=lambda target: target.name)
def test_the_same_text_gives_the_same_object(target: targets.Target) -> None:
    first = assemble.compile_kernel(scale_text(1), target)
    assert first == assemble.compile_kernel(scale_text(1), target)
    parsed = elf_objects.parse(first)
    assert parsed.exported() == ("scale_1",)
    assert all(not section.name.startswith(".eh_frame") for section in parsed.sections)


def test_wide_vectors_use_the_registers_of_the_target() -> None:
    text = """
define dso_local void @double(ptr %x) {
  %v = load <16 x float>, ptr %x, align 64
  %w = fadd <16 x float> %v, %v
  store <16 x float> %w, ptr %x, align 64
  ret void
}
"""
    registers = {"avx512": "%zmm0", "avx2": "%ymm0", "baseline": "%xmm0", "aarch64": "v0.4s"}
    for target in targets.ALL:
        assembly = assemble.emit_assembly(text, target)
        assert registers[target.name] in assembly
    assert "%ymm" not in assemble.emit_assembly(text, AVX512)


def test_there_are_no_passes_unless_the_text_asks() -> None:
    assert assemble.requested_passes(ZERO_LOOP) == ()
    asked = "; passes: sroa, instcombine\n" + ZERO_LOOP
    assert assemble.requested_passes(asked) == ("sroa", "instcombine")
    slow = """
define dso_local i64 @twice(i64 %x) {
  %home = alloca i64
  store i64 %x, ptr %home
  %y = load i64, ptr %home
  ret i64 %y
}
"""
    assert "(%rsp)" in assemble.emit_assembly(slow, AVX2)
    assert "(%rsp)" not in assemble.emit_assembly("; passes: sroa\n" + slow, AVX2)


@pytest.mark.parametrize("name", [*assemble._PASS_METHODS, "O1", "O2", "O3"])
def test_every_pass_that_may_be_named_exists(name: str) -> None:
    assembly = assemble.emit_assembly(f"; passes: {name}\n{ZERO_LOOP}", AVX2)
    assert "zero:" in assembly


@pytest.mark.parametrize("attributes", ["", " nounwind", " local_unnamed_addr #0", " align 64"])
def test_a_loop_never_becomes_a_call(attributes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "; passes: O3\n" + ZERO_LOOP.replace("%n) {", f"%n){attributes} {{")
    text += "attributes #0 = { nounwind }\n"
    assert "memset" not in assemble.emit_assembly(text, AVX2)
    monkeypatch.setattr(assemble, "_without_builtins", lambda same: same)
    assert "memset" in assemble.emit_assembly(text, AVX2)


def test_parameters_with_parentheses_are_marked_in_the_right_place() -> None:
    line = "define dso_local void @f(ptr align(64) dereferenceable(8) %x) unnamed_addr align 64 {"
    assert assemble._mark_define(line) == (
        "define dso_local void @f(ptr align(64) dereferenceable(8) %x) unnamed_addr "
        'nounwind "no-builtins" align 64 {'
    )


def test_an_unknown_pass_is_refused() -> None:
    with pytest.raises(errors.BuildError, match=r"kernel zero: .* found magic"):
        assemble.compile_kernel("; passes: sroa,magic\n" + ZERO_LOOP, AVX2)


def test_invalid_text_is_refused_with_the_kernel_and_llvm_s_words() -> None:
    with pytest.raises(errors.BuildError, match="kernel zero: expected valid LLVM IR for avx2"):
        assemble.compile_kernel(ZERO_LOOP.replace("icmp ult i64 %j", "icmp ult i32 %j"), AVX2)


def test_inline_assembly_for_a_foreign_machine_is_refused_before_llvm_aborts() -> None:
    foreign = AARCH64 if targets.host().architecture == "x86_64" else AVX2
    text = """
define dso_local void @halt() {
  call void asm sideeffect "nop", ""()
  ret void
}
"""
    with pytest.raises(errors.BuildError, match="kernel halt: expected no inline assembly"):
        assemble.compile_kernel(text, foreign)


def test_worker_processes_give_what_one_process_gives(
    cache: kernel_cache.KernelCache, tmp_path: pathlib.Path
) -> None:
    texts = [scale_text(number) for number in range(20)] + [scale_text(3)]
    calls: list[tuple[int, int]] = []
    many = assemble.compile_kernels(
        texts, AVX2, lambda done, total: calls.append((done, total)), workers=2, cache=cache
    )
    other = kernel_cache.KernelCache(tmp_path / "other")
    assert many == assemble.compile_kernels(texts, AVX2, workers=0, cache=other)
    assert calls == [(done, 20) for done in range(21)]
    assert many[3] is many[20]
    assert assemble.names_of(many[:2]) == ["scale_0", "scale_1"]


def test_a_second_build_compiles_nothing(
    cache: kernel_cache.KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [scale_text(number) for number in range(5)]
    first = assemble.compile_kernels(texts, AVX2, cache=cache)

    def refuse(text: str, target: targets.Target) -> bytes:
        raise AssertionError(f"compiled {text} for {target.name} again")

    monkeypatch.setattr(assemble, "compile_kernel", refuse)
    assert assemble.compile_kernels(texts, AVX2, cache=cache) == first
    with pytest.raises(AssertionError, match="for baseline again"):
        assemble.compile_kernels(texts, BASELINE, cache=cache)


def test_a_fault_in_a_worker_arrives_with_the_kernel_s_name(
    cache: kernel_cache.KernelCache,
) -> None:
    texts = [scale_text(number) for number in range(16)] + [ZERO_LOOP.replace("%n", "%m", 1)]
    with pytest.raises(errors.BuildError, match="kernel zero: "):
        assemble.compile_kernels(texts, AVX2, workers=2, cache=cache)


def test_code_that_kills_its_worker_is_reported(cache: kernel_cache.KernelCache) -> None:
    # LLVM aborts when it cannot select an instruction that the target does not have.
    deadly = """
declare <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>, <64 x i8>, <64 x i8>)
define dso_local void @deadly(ptr %x, ptr %y) {
  %a = load <16 x i32>, ptr %x
  %b = load <64 x i8>, ptr %y
  %c = call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %a, <64 x i8> %b, <64 x i8> %b)
  store <16 x i32> %c, ptr %x
  ret void
}
"""
    texts = [scale_text(number) for number in range(16)] + [deadly]
    with pytest.raises(
        errors.BuildError, match=r"(?s)kernel deadly: .* dead \(SIGABRT\).*LLVM ERROR"
    ):
        assemble.compile_kernels(texts, AVX2, workers=2, cache=cache)


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "build.py"
    script.write_text(f"""
import pathlib, sys
sys.path.insert(0, {str(ROOT)!r})
print("started")
from castiron.compiler import target
from castiron.compiler.codegen import assemble, kernel_cache
texts = {[scale_text(number) for number in range(4)]!r}
cache = kernel_cache.KernelCache(pathlib.Path({str(tmp_path)!r}))
print(len(assemble.compile_kernels(texts, target.named("avx2"), workers=2, cache=cache)))
""")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["started", "4"]
    assert done.stderr == ""


def test_little_text_is_compiled_in_place_and_much_in_processes() -> None:
    assert assemble._fitting_workers({"a": ZERO_LOOP, "b": ZERO_LOOP}) == 0
    many = {str(number): ";" * 20_000 for number in range(50)}
    cpus = len(os.sched_getaffinity(0))
    assert assemble._fitting_workers(many) == (min(cpus, 50) if cpus > 1 else 0)
