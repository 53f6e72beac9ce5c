"""The run-time functions of AArch64, run for real under an emulator.

A program without a C library starts a worker and a lane as threads of its own, sends runs
through the lane whose step ends only when both threads are in it, and leaves with status 42.
Needs `aarch64-linux-gnu-ld` and `qemu-aarch64-static`.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, lane_threads, machine, team_threads, threads
from castiron.executable import abi

RUNS = 200
_CLONE_THREAD = 0x50F00  # VM, FS, FILES, SIGHAND, THREAD, SYSVSEM
_CLONE, _EXIT, _EXIT_GROUP, _EVENTFD, _READ = 220, 93, 94, 19, 63
_STACK_BYTES = 1 << 16


def call(number: int, *args: int | str) -> str:
    """A system call of AArch64."""
    return machine.named("aarch64").syscall(number, *args)


def at(name: str, base: str, offset: int) -> str:
    """The address `offset` bytes into a global."""
    return f"  {name} = getelementptr i8, ptr {base}, i64 {offset}"


def put(label: str, base: str, word: int, value: str) -> str:
    """Store a value with its type into a word of a global."""
    return f"{at(f'%{label}', base, word * 8)}\n  store {value}, ptr %{label}"


def start(label: str, stack: str, entry: str, after: str) -> str:
    """Start a thread that calls `entry` on a stack of its own, and go on at `after`."""
    return f"""
{at(f"%{label}.top", stack, _STACK_BYTES)}
  %{label}.word = ptrtoint ptr %{label}.top to i64
  %{label}.id = {call(_CLONE, _CLONE_THREAD, f"%{label}.word")}
  %{label}.new = icmp eq i64 %{label}.id, 0
  br i1 %{label}.new, label %{label}.live, label %{after}
{label}.live:
  {entry}
  %{label}.gone = {call(_EXIT, 0)}
  unreachable
{after}:"""


def memory_and_kernel() -> str:
    """What the program works on, and a kernel that ends when both threads are in it."""
    step = [0, 6, 2, 1, 0, 0]  # kernel, words, units, grain, operands, params
    step_words = ", ".join(f"i64 {word}" for word in step)
    return f"""
@team = internal global [{abi.TEAM_WORDS} x i64] zeroinitializer, align 128
@lane = internal global [{abi.LANE_BYTES} x i8] zeroinitializer, align 128
@ctx = internal global [{abi.CTX_WORDS} x i64] zeroinitializer, align 64
@step = internal global [{len(step)} x i64] [{step_words}], align 64
@arrived = internal global i64 0
@stacks = internal global [{2 * _STACK_BYTES} x i8] zeroinitializer, align 64
@told = internal global i64 0

define void @meet(ptr %args, i64 %begin, i64 %end, ptr %scratch) #0 {{
entry:
  %old = atomicrmw add ptr @arrived, i64 1 seq_cst
  %even = and i64 %old, -2
  %both = add i64 %even, 2
  br label %wait
wait:
  %here = load atomic i64, ptr @arrived seq_cst, align 8
  %met = icmp uge i64 %here, %both
  br i1 %met, label %leave, label %wait
leave:
  ret void
}}
"""


def setting_up() -> str:
    """Fill the blocks and start both threads; what follows is in block `next`."""
    return f"""
{put("size", "@team", abi.TEAM_SIZE, "i64 2")}
{put("spin", "@team", abi.TEAM_SPIN_TICKS, "i64 1000")}
{put("kernel", "@step", abi.STEP_KERNEL, "ptr @meet")}
{put("steps", "@ctx", abi.CTX_STEPS, "ptr @step")}
{put("count", "@ctx", abi.CTX_NUM_STEPS, "i64 1")}
{put("crew", "@ctx", abi.CTX_TEAM, "ptr @team")}
{put("threads", "@ctx", abi.CTX_THREADS, "i64 2")}
  %eventfd = {call(_EVENTFD, 0, 0)}
{at("%fd", "@lane", abi.LANE_EVENTFD)}
  store i64 %eventfd, ptr %fd
  %run = ptrtoint ptr @{threads.RUN} to i64
  %ctx = ptrtoint ptr @ctx to i64
  %told = ptrtoint ptr @told to i64
{at("%second", "@stacks", _STACK_BYTES)}
{start("one", "@stacks", f"call void @{team_threads.WORKER}(ptr @team, i64 1)", "started")}
{start("two", "%second", f"call void @{lane_threads.WORKER}(ptr @lane)", "next")}"""


def program() -> str:
    """The text of the program: send all runs, wait until all are told, stop, check the count."""
    return f"""{threads.run_text("aarch64")}
{memory_and_kernel()}
define void @_start() #0 {{
entry:
{setting_up()}
  %sent = phi i32 [ 0, %started ], [ %sent.next, %send ], [ %sent, %drain ]
  %more = icmp ult i32 %sent, {RUNS}
  br i1 %more, label %send, label %drain
send:
  %status = call i32 @{lane_threads.SUBMIT}(ptr @lane, i64 %run, i64 %ctx)
  %sent.next = add i32 %sent, 1
  br label %next
drain:
  %got = {call(_READ, "%eventfd", "%told", 8)}
  %done = call i32 @{lane_threads.DRAIN}(ptr @lane)
  %all = icmp eq i32 %done, {RUNS}
  br i1 %all, label %stop, label %next
stop:
  call void @{lane_threads.STOP}(ptr @lane)
  call void @{team_threads.STOP}(ptr @team)
{at("%lane.left", "@lane", abi.LANE_LEFT)}
{at("%team.left", "@team", abi.TEAM_LEFT * 8)}
  br label %wait
wait:
  %left.one = load atomic i32, ptr %lane.left seq_cst, align 4
  %left.two = load atomic i64, ptr %team.left seq_cst, align 8
  %wide = zext i32 %left.one to i64
  %left = add i64 %wide, %left.two
  %gone = icmp eq i64 %left, 2
  br i1 %gone, label %check, label %wait
check:
  %arrived = load i64, ptr @arrived
  %right = icmp eq i64 %arrived, {2 * RUNS}
  %code = select i1 %right, i64 42, i64 1
  %over = {call(_EXIT_GROUP, "%code")}
  unreachable
}}
"""


def test_a_team_and_a_lane_of_aarch64_work_under_an_emulator(tmp_path: Path) -> None:
    linker = shutil.which("aarch64-linux-gnu-ld")
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if linker is None or emulator is None:
        pytest.skip("aarch64-linux-gnu-ld and qemu-aarch64 are not installed; they run this test")
    compiled = tmp_path / "program.o"
    compiled.write_bytes(assemble.compile_kernel(program(), targets.named("aarch64")))
    built = tmp_path / "program"
    subprocess.run([linker, "-static", "-o", built, compiled], check=True)
    for _ in range(3):
        process = subprocess.run([emulator, built], timeout=60, check=False)
        assert process.returncode == 42
