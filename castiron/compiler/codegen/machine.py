"""What the text of the run-time functions needs to know of an instruction set: clock, pause, calls.

Two tables of text, one for x86-64 and one for AArch64, used by `threads.py` and
`lane_threads.py`. It is no description of a compile target; that is `compiler/target.py`.
"""

from __future__ import annotations

import dataclasses

SYSCALL = "castiron_syscall"
# The system call of AArch64 as machine code, since its assembler is absent from an LLVM built
# for another machine: mov x8,x0; mov x0,x1; ... mov x5,x6; svc 0; ret.
AARCH64_SYSCALL_WORDS = (
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
_NUM_SYSCALL_ARGS = 6


@dataclasses.dataclass(frozen=True, slots=True)
class Machine:
    """Text fragments of one instruction set.

    `header` opens a module; `ticks` is a call that yields an i64 which counts time, `pause` a
    call that tells the core it is waiting. The other fields are numbers of system calls.
    """

    header: str
    ticks: str
    pause: str
    futex: int
    write: int
    gettid: int
    getcpu: int
    sched_setaffinity: int

    def define(self, signature: str, body: str) -> str:
        """Return a function of that signature, aligned, without unwind data or library calls."""
        return f"define {signature} #0 align 64 {{\n{body}\n}}\n"

    def syscall(self, number: int, *args: int | str) -> str:
        """Return the call of system call `number`; missing arguments are zero."""
        padded = [*args, *[0] * (_NUM_SYSCALL_ARGS - len(args))]
        listed = ", ".join(f"i64 {value}" for value in (number, *padded))
        return f"call i64 @{SYSCALL}({listed})"


def named(architecture: str) -> Machine:
    """Return the machine called `architecture`: "x86_64" or "aarch64"."""
    if architecture == "x86_64":
        return _x86_64()
    if architecture == "aarch64":
        return _aarch64()
    raise ValueError(f"expected x86_64 or aarch64, found {architecture!r} as an architecture")


_ATTRIBUTES = 'attributes #0 = { nounwind "frame-pointer"="all" "no-builtins" }'


def _x86_64() -> Machine:
    registers = "={rax},0,{rdi},{rsi},{rdx},{r10},{r8},{r9}"
    clobbers = "~{rcx},~{r11},~{memory},~{dirflag},~{fpsr},~{flags}"
    args = "i64 %a, i64 %b, i64 %c, i64 %d, i64 %e, i64 %f"
    header = f"""target triple = "x86_64-unknown-linux-gnu"
{_ATTRIBUTES}
declare i64 @llvm.readcyclecounter()
declare void @llvm.x86.sse2.pause()

define internal i64 @{SYSCALL}(i64 %number, {args}) #0 {{
  %status = call i64 asm sideeffect "syscall", "{registers},{clobbers}"(i64 %number, {args})
  ret i64 %status
}}
"""
    return Machine(
        header=header,
        ticks="call i64 @llvm.readcyclecounter()",
        pause="call void @llvm.x86.sse2.pause()",
        futex=202,
        write=1,
        gettid=186,
        getcpu=309,
        sched_setaffinity=203,
    )


def _aarch64() -> Machine:
    words = ", ".join(f"i32 {word}" for word in AARCH64_SYSCALL_WORDS)
    count = len(AARCH64_SYSCALL_WORDS)
    header = f"""target triple = "aarch64-unknown-linux-gnu"
{_ATTRIBUTES}
declare i64 @llvm.read_volatile_register.i64(metadata)
declare void @llvm.aarch64.hint(i32)

@{SYSCALL} = internal constant [{count} x i32] [{words}], section ".text", align 64
!0 = !{{!"cntvct_el0"}}
"""
    return Machine(
        header=header,
        ticks="call i64 @llvm.read_volatile_register.i64(metadata !0)",
        pause="call void @llvm.aarch64.hint(i32 1)",
        futex=98,
        write=64,
        gettid=178,
        getcpu=168,
        sched_setaffinity=122,
    )
