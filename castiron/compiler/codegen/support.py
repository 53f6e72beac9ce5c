"""The few symbols LLVM may call on its own account, printed by us.

memset and memcpy stand as a net under kernels that print llvm.memset or llvm.memcpy; on AArch64
the system call stub stands in for inline assembly, which LLVM cannot assemble for a foreign
target. Nothing else is supplied: link refuses it by name.
"""

from __future__ import annotations

import struct

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, elf_objects

SYSCALL = "castiron_syscall"

_X86_MEMSET = """\
define dso_local ptr @memset(ptr %to, i32 %value, i64 %size) nounwind "no-builtins" align 64 {
  %byte = trunc i32 %value to i8
  %ends = call { ptr, i64 } asm sideeffect "rep stosb", \
"={rdi},={rcx},{rax},0,1,~{memory},~{dirflag},~{fpsr},~{flags}"(i8 %byte, ptr %to, i64 %size)
  ret ptr %to
}
"""

_X86_MEMCPY = """\
define dso_local ptr @memcpy(ptr %to, ptr %from, i64 %size) nounwind "no-builtins" align 64 {
  %ends = call { ptr, ptr, i64 } asm sideeffect "rep movsb", \
"={rdi},={rsi},={rcx},0,1,2,~{memory},~{dirflag},~{fpsr},~{flags}"(ptr %to, ptr %from, i64 %size)
  ret ptr %to
}
"""

_PORTABLE_LOOP = """\
define dso_local ptr @{name}(ptr %to, {argument}, i64 %size) nounwind "no-builtins" align 64 {{
entry:
{setup}  %wide_end = and i64 %size, -16
  %has_wide = icmp ne i64 %wide_end, 0
  br i1 %has_wide, label %wide, label %rest
wide:
  %i = phi i64 [ 0, %entry ], [ %i_next, %wide ]
  %wide_to = getelementptr i8, ptr %to, i64 %i
{wide}  store <16 x i8> %chunk, ptr %wide_to, align 1
  %i_next = add nuw i64 %i, 16
  %more_wide = icmp ult i64 %i_next, %wide_end
  br i1 %more_wide, label %wide, label %rest
rest:
  %has_bytes = icmp ult i64 %wide_end, %size
  br i1 %has_bytes, label %bytes, label %done
bytes:
  %j = phi i64 [ %wide_end, %rest ], [ %j_next, %bytes ]
  %byte_to = getelementptr i8, ptr %to, i64 %j
{narrow}  store i8 %byte, ptr %byte_to, align 1
  %j_next = add nuw i64 %j, 1
  %more_bytes = icmp ult i64 %j_next, %size
  br i1 %more_bytes, label %bytes, label %done
done:
  ret ptr %to
}}
"""

_PORTABLE_MEMSET = _PORTABLE_LOOP.format(
    name="memset",
    argument="i32 %value",
    setup="""\
  %byte = trunc i32 %value to i8
  %first = insertelement <16 x i8> poison, i8 %byte, i64 0
  %chunk = shufflevector <16 x i8> %first, <16 x i8> poison, <16 x i32> zeroinitializer
""",
    wide="",
    narrow="",
)

_PORTABLE_MEMCPY = _PORTABLE_LOOP.format(
    name="memcpy",
    argument="ptr %from",
    setup="",
    wide="""\
  %wide_from = getelementptr i8, ptr %from, i64 %i
  %chunk = load <16 x i8>, ptr %wide_from, align 1
""",
    narrow="""\
  %byte_from = getelementptr i8, ptr %from, i64 %j
  %byte = load i8, ptr %byte_from, align 1
""",
)

_TEXTS = {
    "x86_64": {"memset": _X86_MEMSET, "memcpy": _X86_MEMCPY},
    "aarch64": {"memset": _PORTABLE_MEMSET, "memcpy": _PORTABLE_MEMCPY},
}

# mov x8,x0; mov x0..x5,x1..x6; svc 0; ret: number first, six arguments, result in x0.
_AARCH64_SYSCALL = struct.pack(
    "<9I",
    0xAA0003E8,
    0xAA0103E0,
    0xAA0203E1,
    0xAA0303E2,
    0xAA0403E3,
    0xAA0503E4,
    0xAA0603E5,
    0xD4000001,
    0xD65F03C0,
)


def supplied(target: targets.Target, names: set[str]) -> list[elf_objects.KernelObject]:
    """Objects for those of `names` that castiron supplies on `target`, in a fixed order."""
    texts = _TEXTS[target.architecture]
    objects = [
        elf_objects.parse(assemble.compile_kernel(text, target))
        for name, text in texts.items()
        if name in names
    ]
    if target.architecture == "aarch64" and SYSCALL in names:
        objects.append(_syscall_stub())
    return objects


def _syscall_stub() -> elf_objects.KernelObject:
    flags = elf_objects.SECTION_ALLOC | elf_objects.SECTION_EXEC
    section = elf_objects.Section(".text", flags, 64, _AARCH64_SYSCALL)
    symbol = elf_objects.Symbol(
        SYSCALL, 0, 0, len(_AARCH64_SYSCALL), is_exported=True, is_function=True
    )
    return elf_objects.KernelObject(elf_objects.MACHINE_AARCH64, (section,), (symbol,), ())
