"""LLVM IR text of `castiron_run`, which walks the steps of a run, and of the module around it.

`run_text` prints one module with the entry points named in ENTRY_POINTS, for x86-64 and AArch64.
Nothing here depends on a model. The team is printed by `team_threads.py`, the lane by
`lane_threads.py`, what differs between machines by `machine.py`.
"""

from __future__ import annotations

from castiron.compiler.codegen import lane_threads, machine, team_threads, words
from castiron.executable import abi

RUN = "castiron_run"
TICKS = "castiron_ticks"
ENTRY_POINTS = (RUN, TICKS, *team_threads.ENTRY_POINTS, *lane_threads.ENTRY_POINTS)


def run_text(architecture: str) -> str:
    """Return the module for `architecture`, "x86_64" or "aarch64", as LLVM IR text.

    Every function is `dso_local` or internal and no symbol is undefined, so that it links into
    a flat image as it is.
    """
    to = machine.named(architecture)
    run = [to.header, _run(to), _time_step(to), _step(to), _fill_args(to), _ticks(to)]
    return "\n".join([*run, team_threads.team_text(to), lane_threads.lane_text(to)])


def _run(to: machine.Machine) -> str:
    """Print `castiron_run(ctx)`: acquire the team if wanted, walk the steps, let the team go.

    The number of steps is read before each, so that a run is stopped by setting it to 0.
    """
    body = f"""entry:
  %args = alloca [{abi.MAX_ARGS} x i64], align 64
{words.load("%bases", "%ctx", abi.CTX_BASES, "ptr")}
{words.load("%first", "%ctx", abi.CTX_STEPS, "ptr")}
{words.load("%team", "%ctx", abi.CTX_TEAM, "ptr")}
{words.load("%crash", "%ctx", abi.CTX_CRASH, "ptr")}
  %threads = call i64 @castiron_acquire(ptr %ctx, ptr %team)
  %told = icmp ne ptr %crash, null
  br label %next
next:
  %step = phi i64 [ 0, %entry ], [ %step.next, %go ]
  %record = phi ptr [ %first, %entry ], [ %record.next, %go ]
{words.load("%steps", "%ctx", abi.CTX_NUM_STEPS)}
  %more = icmp ult i64 %step, %steps
  br i1 %more, label %begin, label %finish
begin:
  call void @castiron_fill_args(ptr %args, ptr %record, ptr %bases)
  br i1 %told, label %tell, label %go
tell:
  store volatile i64 %step, ptr %crash, align 8
  br label %go
go:
  call void @castiron_time_step(ptr %ctx, i64 %step, i64 %threads, ptr %record, ptr %args)
{words.load("%words", "%record", abi.STEP_WORDS)}
  %record.next = getelementptr i64, ptr %record, i64 %words
  %step.next = add i64 %step, 1
  br label %next
finish:
  br i1 %told, label %untell, label %release
untell:
  store volatile i64 {abi.NO_STEP}, ptr %crash, align 8
  br label %release
release:
  call void @castiron_release(ptr %team, i64 %threads)
  ret void"""
    return to.define(f"dso_local void @{RUN}(ptr %ctx)", body)


def _time_step(to: machine.Machine) -> str:
    """Print the function that runs a step and, if asked, adds its ticks to its counter."""
    body = f"""entry:
{words.load("%times", "%ctx", abi.CTX_TIMES, "ptr")}
  %timed = icmp ne ptr %times, null
  br i1 %timed, label %time, label %plain
plain:
  call void @castiron_step(ptr %ctx, i64 %threads, ptr %record, ptr %args)
  ret void
time:
  %started = {to.ticks}
  call void @castiron_step(ptr %ctx, i64 %threads, ptr %record, ptr %args)
  %now = {to.ticks}
  %spent = sub i64 %now, %started
  %time.at = getelementptr i64, ptr %times, i64 %step
  %time.old = load i64, ptr %time.at, align 8
  %time.new = add i64 %time.old, %spent
  store i64 %time.new, ptr %time.at, align 8
  ret void"""
    signature = "@castiron_time_step(ptr %ctx, i64 %step, i64 %threads, ptr %record, ptr %args)"
    return to.define(f"internal void {signature}", body)


def _step(to: machine.Machine) -> str:
    """Print the function that runs a step: forked when it is worth it, else by one plain call."""
    body = f"""entry:
{words.load("%units", "%record", abi.STEP_UNITS)}
{words.load("%grain", "%record", abi.STEP_GRAIN)}
  %divisible = icmp sgt i64 %grain, 0
  %large = icmp sgt i64 %units, %grain
  %several = and i1 %divisible, %large
  %shared = icmp ugt i64 %threads, 1
  %forks = and i1 %several, %shared
  br i1 %forks, label %fork, label %alone
alone:
{words.load("%kernel", "%record", abi.STEP_KERNEL, "ptr")}
{words.load("%scratch", "%ctx", abi.CTX_SCRATCH, "ptr")}
  call void %kernel(ptr %args, i64 0, i64 %units, ptr %scratch)
  ret void
fork:
{words.load("%team", "%ctx", abi.CTX_TEAM, "ptr")}
  call void @castiron_fork(ptr %team, i64 %threads, ptr %record, ptr %args)
  ret void"""
    signature = "@castiron_step(ptr %ctx, i64 %threads, ptr %record, ptr %args)"
    return to.define(f"internal void {signature}", body)


def _fill_args(to: machine.Machine) -> str:
    """Print the function that turns a step record into the argument words of its kernel."""
    body = f"""entry:
{words.load("%operands", "%record", abi.STEP_NUM_OPERANDS)}
{words.load("%params", "%record", abi.STEP_NUM_PARAMS)}
{words.address("%pairs", "%record", abi.STEP_HEADER_WORDS)}
  br label %operand
operand:
  %i = phi i64 [ 0, %entry ], [ %i.next, %address ]
  %i.more = icmp ult i64 %i, %operands
  br i1 %i.more, label %address, label %rest
address:
  %pair = getelementptr [2 x i64], ptr %pairs, i64 %i
  %region = load i64, ptr %pair, align 8
{words.load("%offset", "%pair", 1)}
  %base.at = getelementptr i64, ptr %bases, i64 %region
  %base = load i64, ptr %base.at, align 8
  %pointer = add i64 %base, %offset
  %arg.at = getelementptr i64, ptr %args, i64 %i
  store i64 %pointer, ptr %arg.at, align 8
  %i.next = add i64 %i, 1
  br label %operand
rest:
  %source = getelementptr [2 x i64], ptr %pairs, i64 %operands
  %target = getelementptr i64, ptr %args, i64 %operands
  br label %param
param:
  %j = phi i64 [ 0, %rest ], [ %j.next, %copy ]
  %j.more = icmp ult i64 %j, %params
  br i1 %j.more, label %copy, label %leave
copy:
  %value.at = getelementptr i64, ptr %source, i64 %j
  %value = load i64, ptr %value.at, align 8
  %param.at = getelementptr i64, ptr %target, i64 %j
  store i64 %value, ptr %param.at, align 8
  %j.next = add i64 %j, 1
  br label %param
leave:
  ret void"""
    return to.define("internal void @castiron_fill_args(ptr %args, ptr %record, ptr %bases)", body)


def _ticks(to: machine.Machine) -> str:
    """Print `castiron_ticks()`: the clock that CTX_TIMES and the spin budgets are counted in."""
    body = f"""entry:
  %now = {to.ticks}
  ret i64 %now"""
    return to.define(f"dso_local i64 @{TICKS}()", body)
