"""Run-time code for the tests of this folder, and contexts of runs written by hand.

`compile_code` gives the functions of `codegen/threads.py` and a few small kernels as addresses,
through LLVM's JIT; nothing is linked or written to a file. `Run` builds a context with its step
records. Also used by scripts that the tests start in processes of their own.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import llvmlite.binding as llvm

from castiron.compiler.codegen import threads
from castiron.executable import abi
from castiron.runtime import team

# args: out, visits, factor, ticks per unit, scratch log. out[u] = u * factor, visits[u] += 1,
# and the scratch address of whoever did it goes to log[u].
_KERNELS = """
define void @fill(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %out = load ptr, ptr %args
  %visits.at = getelementptr i64, ptr %args, i64 1
  %visits = load ptr, ptr %visits.at
  %log.at = getelementptr i64, ptr %args, i64 2
  %log = load ptr, ptr %log.at
  %factor.at = getelementptr i64, ptr %args, i64 3
  %factor = load i64, ptr %factor.at
  %ticks.at = getelementptr i64, ptr %args, i64 4
  %ticks = load i64, ptr %ticks.at
  br label %unit
unit:
  %u = phi i64 [ %begin, %entry ], [ %u.next, %write ]
  %more = icmp slt i64 %u, %end
  br i1 %more, label %start, label %leave
start:
  %from = call i64 @llvm.readcyclecounter()
  br label %wait
wait:
  %now = call i64 @llvm.readcyclecounter()
  %spent = sub i64 %now, %from
  %early = icmp ult i64 %spent, %ticks
  br i1 %early, label %wait, label %write
write:
  %value = mul i64 %u, %factor
  %out.at = getelementptr i64, ptr %out, i64 %u
  store i64 %value, ptr %out.at
  %visit.at = getelementptr i64, ptr %visits, i64 %u
  %old = atomicrmw add ptr %visit.at, i64 1 monotonic
  %own.at = getelementptr ptr, ptr %log, i64 %u
  store ptr %scratch, ptr %own.at
  %u.next = add i64 %u, 1
  br label %unit
leave:
  ret void
}

; args: arrived, wanted, ticks at most, scratch log. Waits in one unit until `wanted` units have
; begun, so all of them must be in hand at once; the log tells who came and stays 0 if none did.
define void @meet(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %arrived = load ptr, ptr %args
  %log.at = getelementptr i64, ptr %args, i64 1
  %log = load ptr, ptr %log.at
  %wanted.at = getelementptr i64, ptr %args, i64 2
  %wanted = load i64, ptr %wanted.at
  %ticks.at = getelementptr i64, ptr %args, i64 3
  %ticks = load i64, ptr %ticks.at
  %mine = atomicrmw add ptr %arrived, i64 1 seq_cst
  %from = call i64 @llvm.readcyclecounter()
  br label %wait
wait:
  call void @llvm.x86.sse2.pause()
  %here = load atomic i64, ptr %arrived seq_cst, align 8
  %all = icmp uge i64 %here, %wanted
  br i1 %all, label %met, label %patient
patient:
  %now = call i64 @llvm.readcyclecounter()
  %spent = sub i64 %now, %from
  %early = icmp ult i64 %spent, %ticks
  br i1 %early, label %wait, label %leave
met:
  %own.at = getelementptr ptr, ptr %log, i64 %begin
  store ptr %scratch, ptr %own.at
  br label %leave
leave:
  ret void
}

; copies out[0..units) of step one to its own operand: what a later step reads of an earlier one
define void @copy(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
entry:
  %to = load ptr, ptr %args
  %from.at = getelementptr i64, ptr %args, i64 1
  %from = load ptr, ptr %from.at
  br label %unit
unit:
  %u = phi i64 [ %begin, %entry ], [ %u.next, %write ]
  %more = icmp slt i64 %u, %end
  br i1 %more, label %write, label %leave
write:
  %source = getelementptr i64, ptr %from, i64 %u
  %value = load i64, ptr %source
  %target = getelementptr i64, ptr %to, i64 %u
  store i64 %value, ptr %target
  %u.next = add i64 %u, 1
  br label %unit
leave:
  ret void
}

define void @nothing(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
  ret void
}

define void @crash(ptr %args, i64 %begin, i64 %end, ptr %scratch) {
  store volatile i64 1, ptr inttoptr (i64 8 to ptr)
  ret void
}

; void job(ptr): counts to see that every argument was run once, in order
define void @append(ptr %record) {
  %log = load ptr, ptr %record
  %value.at = getelementptr i64, ptr %record, i64 1
  %value = load i64, ptr %value.at
  %count = load i64, ptr %log
  %next = add i64 %count, 1
  store i64 %next, ptr %log
  %at = getelementptr i64, ptr %log, i64 %next
  store i64 %value, ptr %at
  ret void
}
"""
KERNELS = ("fill", "meet", "copy", "nothing", "crash", "append")


@functools.cache
def compile_code() -> dict[str, int]:
    """Addresses of the run-time functions and of the kernels above, valid for ever."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    module = llvm.parse_assembly(threads.run_text("x86_64") + _KERNELS)
    module.verify()
    machine = llvm.Target.from_default_triple().create_target_machine(
        opt=2, reloc="pic", codemodel="small"
    )
    jit = llvm.create_mcjit_compiler(module, machine)
    jit.finalize_object()
    _KEPT.append(jit)
    return {name: jit.get_function_address(name) for name in (*threads.ENTRY_POINTS, *KERNELS)}


_KEPT: list[object] = []  # machine code stays mapped as long as its compiler lives


@dataclass(slots=True)
class Step:
    """One step record; operands are (region, byte offset)."""

    kernel: int
    units: int
    grain: int
    operands: Sequence[tuple[int, int]] = ()
    params: Sequence[int] = ()

    def words(self) -> list[int]:
        """The record as the ABI lays it out."""
        pairs = [word for pair in self.operands for word in pair]
        size = abi.STEP_HEADER_WORDS + len(pairs) + len(self.params)
        counts = [len(self.operands), len(self.params)]
        return [self.kernel, size, self.units, self.grain, *counts, *pairs, *self.params]


@dataclass(slots=True)
class Run:
    """A context whose memory is owned by arrays of this object."""

    bases: list[int]
    steps: list[Step]
    team: int = 0
    threads: int = 1
    scratch: int = 0
    stride: int = 0
    crash: int = 0
    times: int = 0
    kept: list[array.array[int]] = field(default_factory=list)

    def address(self) -> int:
        """Write the context; return the argument of `castiron_run`."""
        words = [0] * abi.CTX_WORDS
        words[abi.CTX_BASES] = self._keep(self.bases)
        words[abi.CTX_STEPS] = self._keep([word for step in self.steps for word in step.words()])
        words[abi.CTX_NUM_STEPS] = len(self.steps)
        words[abi.CTX_TEAM] = self.team
        words[abi.CTX_THREADS] = self.threads
        words[abi.CTX_SCRATCH] = self.scratch
        words[abi.CTX_SCRATCH_STRIDE] = self.stride
        words[abi.CTX_CRASH] = self.crash
        words[abi.CTX_TIMES] = self.times
        return self._keep(words)

    def _keep(self, words: list[int]) -> int:
        self.kept.append(array.array("q", words))
        return self.kept[-1].buffer_info()[0]


class Held:
    """A run that ends when it is let go, or by itself after 20 s."""

    def __init__(self) -> None:
        code = compile_code()
        self._arrived, log = Words(1), Words(1)
        ticks = int(20e6 * team.ticks_per_us(code))
        step = Step(code["meet"], 1, 0, [(0, 0), (1, 0)], [2, ticks])
        self._run = Run([self._arrived.address, log.address], [step])
        self._run.kept += [self._arrived.values, log.values]
        self.address = self._run.address()

    def let_go(self) -> None:
        """End it."""
        self._arrived.values[0] = 2


class Words:
    """`count` i64 words of memory for kernels, as a list of numbers and an address."""

    def __init__(self, count: int, value: int = 0) -> None:
        self.values = array.array("q", [value]) * count
        self.address: int = self.values.buffer_info()[0]


def cpu_s(name: str) -> float:
    """Processor time of this process's threads whose name begins so."""
    found = 0.0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if (task / "comm").read_text().startswith(name):
                found += int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def run_function() -> ctypes._FuncPointer:
    """`castiron_run` as a function of Python that gives the interpreter lock away."""
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(compile_code()[threads.RUN])
