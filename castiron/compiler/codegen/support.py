"""The few symbols LLVM may call on its own account, printed by us.

memset and memcpy stand as a net under kernels that print llvm.memset or llvm.memcpy. Nothing else
is supplied: link refuses it by name.
"""

from __future__ import annotations

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, elf_objects

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


def supplied(target: targets.Target, names: set[str]) -> list[elf_objects.KernelObject]:
    """Objects for those of `names` that castiron supplies on `target`, in a fixed order."""
    texts = _TEXTS[target.architecture]
    return [
        elf_objects.parse(assemble.compile_kernel(text, target))
        for name, text in texts.items()
        if name in names
    ]
