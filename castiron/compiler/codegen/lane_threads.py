"""LLVM IR text of the native lane: a ring of runs that one native thread works off in order.

Submit and drain are called by the thread that owns the event loop, the worker is entered once
and never comes back before stop. The block is laid out in `executable/abi.py` (byte offsets);
`runtime/lane.py` owns it. Printed into the same module as the team, by `threads.py`.
"""

from __future__ import annotations

from castiron.compiler.codegen import machine
from castiron.executable import abi

WORKER = "castiron_lane_worker"
SUBMIT = "castiron_lane_submit"
DRAIN = "castiron_lane_drain"
STOP = "castiron_lane_stop"
ENTRY_POINTS = (WORKER, SUBMIT, DRAIN, STOP)

_WAIT = 0 | 128  # private futex
_WAKE = 1 | 128


def lane_text(to: machine.Machine) -> str:
    """Return the lane's functions as LLVM IR text, without a module header."""
    parts = [_submit(to), _call(to), _worker(to), _watch(to), _sleep(to), _finish(to)]
    return "\n".join([*parts, _drain(to), _wake(to), _stop(to)])


def _at(name: str, offset: int) -> str:
    """Return the instruction that puts the address of byte `offset` of the lane into `name`."""
    return f"  {name} = getelementptr i8, ptr %lane, i64 {offset}"


def _slot(counter: str) -> str:
    """Return the instructions that put the two words of ring place `counter` into %fn, %arg."""
    return f"""{_at("%ring", abi.LANE_RING)}
  %place = and i32 {counter}, {abi.LANE_CAPACITY - 1}
  %fn.at = getelementptr [2 x i64], ptr %ring, i32 %place
  %arg.at = getelementptr i64, ptr %fn.at, i64 1"""


def _count(offset: int, label: str) -> str:
    """Return the instructions that add one to a counter only the worker writes."""
    return f"""{_at(f"%{label}.at", offset)}
  %{label}.old = load i64, ptr %{label}.at, align 8
  %{label}.new = add i64 %{label}.old, 1
  store i64 %{label}.new, ptr %{label}.at, align 8"""


def _submit(to: machine.Machine) -> str:
    """Print `castiron_lane_submit(lane, function, argument)`: 0, or -1 when the ring is full."""
    body = f"""entry:
{_at("%head.at", abi.LANE_HEAD)}
{_at("%tail.at", abi.LANE_TAIL)}
  %head = load atomic i32, ptr %head.at monotonic, align 4
  %tail = load atomic i32, ptr %tail.at acquire, align 4
  %waiting = sub i32 %head, %tail
  %full = icmp eq i32 %waiting, {abi.LANE_CAPACITY}
  br i1 %full, label %refuse, label %write
refuse:
  ret i32 -1
write:
{_slot("%head")}
  store i64 %function, ptr %fn.at, align 8
  store i64 %argument, ptr %arg.at, align 8
  %head.new = add i32 %head, 1
  store atomic i32 %head.new, ptr %head.at seq_cst, align 4
  call void @castiron_lane_wake(ptr %lane)
  ret i32 0"""
    signature = f"@{SUBMIT}(ptr %lane, i64 %function, i64 %argument)"
    return to.define(f"dso_local i32 {signature}", body)


def _wake(to: machine.Machine) -> str:
    """Print the function that wakes the worker if it sleeps or is about to.

    Taking the sleeper's mark away makes the kernel refuse a wait that has not begun yet, so
    neither a run nor a stop can fall between the worker's last look and its sleep.
    """
    body = f"""entry:
{_at("%asleep.at", abi.LANE_ASLEEP)}
  %asleep = load atomic i32, ptr %asleep.at seq_cst, align 4
  %sleeps = icmp ne i32 %asleep, 0
  br i1 %sleeps, label %take, label %leave
take:
  %mark = atomicrmw xchg ptr %asleep.at, i32 0 seq_cst
  %asleep.word = ptrtoint ptr %asleep.at to i64
  %woken = {to.syscall(to.futex, "%asleep.word", _WAKE, 1)}
  br label %leave
leave:
  ret void"""
    return to.define("internal void @castiron_lane_wake(ptr %lane)", body)


def _worker(to: machine.Machine) -> str:
    """Print `castiron_lane_worker(lane)`: the whole life of the lane's thread.

    Stop is obeyed only when the ring is empty, so to stop is to drain.
    """
    body = f"""entry:
{_at("%stop.at", abi.LANE_STOP)}
{_at("%head.at", abi.LANE_HEAD)}
{_at("%tail.at", abi.LANE_TAIL)}
  br label %look
look:
  %stop = load atomic i32, ptr %stop.at seq_cst, align 4
  %head = load atomic i32, ptr %head.at seq_cst, align 4
  %tail = load atomic i32, ptr %tail.at monotonic, align 4
  %empty = icmp eq i32 %head, %tail
  br i1 %empty, label %idle, label %work
work:
  call void @castiron_lane_call(ptr %lane, i32 %tail)
  %tail.new = add i32 %tail, 1
  call void @castiron_lane_finish(ptr %lane, i32 %tail.new)
  br label %look
idle:
  %stays = icmp eq i32 %stop, 0
  br i1 %stays, label %watch, label %leave
watch:
  %worth = call i1 @castiron_lane_watch(ptr %lane, i32 %tail)
  br i1 %worth, label %look, label %sleep
sleep:
  call void @castiron_lane_sleep(ptr %lane, i32 %tail)
  br label %look
leave:
{_at("%left.at", abi.LANE_LEFT)}
  store atomic i32 1, ptr %left.at release, align 4
  ret void"""
    return to.define(f"dso_local void @{WORKER}(ptr %lane)", body)


def _call(to: machine.Machine) -> str:
    """Print the function that runs ring place `tail`, told in LANE_CURRENT while it lasts."""
    body = f"""entry:
{_at("%current.fn", abi.LANE_CURRENT)}
{_at("%current.arg", abi.LANE_CURRENT + 8)}
{_slot("%tail")}
  %function = load ptr, ptr %fn.at, align 8
  %argument = load ptr, ptr %arg.at, align 8
  store volatile ptr %function, ptr %current.fn, align 8
  store volatile ptr %argument, ptr %current.arg, align 8
  call void %function(ptr %argument)
  store volatile ptr null, ptr %current.fn, align 8
  store volatile ptr null, ptr %current.arg, align 8
  ret void"""
    return to.define("internal void @castiron_lane_call(ptr %lane, i32 %tail)", body)


def _finish(to: machine.Machine) -> str:
    """Print the function that publishes the new tail and tells the loop, unless it is told."""
    body = f"""entry:
  %one = alloca i64, align 8
{_at("%tail.at", abi.LANE_TAIL)}
{_at("%told.at", abi.LANE_TOLD)}
{_at("%eventfd.at", abi.LANE_EVENTFD)}
  store atomic i32 %tail, ptr %tail.at seq_cst, align 4
  %told = atomicrmw xchg ptr %told.at, i32 1 seq_cst
  %first = icmp eq i32 %told, 0
  br i1 %first, label %tell, label %leave
tell:
  store i64 1, ptr %one, align 8
  %one.word = ptrtoint ptr %one to i64
  %eventfd = load i64, ptr %eventfd.at, align 8
  %written = {to.syscall(to.write, "%eventfd", "%one.word", 8)}
{_count(abi.LANE_WRITES, "writes")}
  br label %leave
leave:
  ret void"""
    return to.define("internal void @castiron_lane_finish(ptr %lane, i32 %tail)", body)


def _watch(to: machine.Machine) -> str:
    """Print the bounded spin of an idle worker: true when a run has come."""
    body = f"""entry:
{_at("%head.at", abi.LANE_HEAD)}
{_at("%budget.at", abi.LANE_SPIN_TICKS)}
  %budget = load i64, ptr %budget.at, align 8
  %start = {to.ticks}
  br label %spin
spin:
  %head = load atomic i32, ptr %head.at acquire, align 4
  %come = icmp ne i32 %head, %tail
  br i1 %come, label %leave, label %patient
patient:
  %now = {to.ticks}
  %spent = sub i64 %now, %start
  %early = icmp ult i64 %spent, %budget
  br i1 %early, label %pause, label %leave
pause:
  {to.pause}
  br label %spin
leave:
  ret i1 %come"""
    return to.define("internal i1 @castiron_lane_watch(ptr %lane, i32 %tail)", body)


def _sleep(to: machine.Machine) -> str:
    """Print the sleep of the worker: mark it asleep, look once more, wait on the mark."""
    body = f"""entry:
{_at("%asleep.at", abi.LANE_ASLEEP)}
{_at("%stop.at", abi.LANE_STOP)}
{_at("%head.at", abi.LANE_HEAD)}
  %asleep.word = ptrtoint ptr %asleep.at to i64
  %mark = atomicrmw xchg ptr %asleep.at, i32 1 seq_cst
  %head = load atomic i32, ptr %head.at seq_cst, align 4
  %stop = load atomic i32, ptr %stop.at seq_cst, align 4
  %empty = icmp eq i32 %head, %tail
  %stays = icmp eq i32 %stop, 0
  %waits = and i1 %empty, %stays
  br i1 %waits, label %wait, label %wakened
wait:
{_count(abi.LANE_SLEEPS, "sleeps")}
  %status = {to.syscall(to.futex, "%asleep.word", _WAIT, 1)}
  br label %wakened
wakened:
  store atomic i32 0, ptr %asleep.at seq_cst, align 4
  ret void"""
    return to.define("internal void @castiron_lane_sleep(ptr %lane, i32 %tail)", body)


def _drain(to: machine.Machine) -> str:
    """Print `castiron_lane_drain(lane)`: allow the next tell, then return the runs finished.

    In this order, with a full barrier between: a run that finishes after the count is read
    finds the mark gone and tells the loop again.
    """
    body = f"""entry:
{_at("%told.at", abi.LANE_TOLD)}
{_at("%tail.at", abi.LANE_TAIL)}
  %told = atomicrmw xchg ptr %told.at, i32 0 seq_cst
  %tail = load atomic i32, ptr %tail.at seq_cst, align 4
  ret i32 %tail"""
    return to.define(f"dso_local i32 @{DRAIN}(ptr %lane)", body)


def _stop(to: machine.Machine) -> str:
    """Print `castiron_lane_stop(lane)`: the worker leaves once the ring is empty."""
    body = f"""entry:
{_at("%stop.at", abi.LANE_STOP)}
  store atomic i32 1, ptr %stop.at seq_cst, align 4
  call void @castiron_lane_wake(ptr %lane)
  ret void"""
    return to.define(f"dso_local void @{STOP}(ptr %lane)", body)
