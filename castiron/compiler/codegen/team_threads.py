"""LLVM IR text of the team: how a step is forked, claimed in chunks, joined, and waited for.

The forking thread publishes a step in the team block (`executable/abi.py`) and takes part in it
itself, so a run is complete even if no worker ever comes. Waits spin for a bounded time inside
a run and then sleep in a futex; between runs nobody spins. Printed into one module with the
step walker, by `threads.py`; `runtime/team.py` owns the block and the threads.
"""

from __future__ import annotations

from castiron.compiler.codegen import machine, words
from castiron.executable import abi

WORKER = "castiron_worker"
STOP = "castiron_team_stop"
ENTRY_POINTS = (WORKER, STOP)

_WAIT_BITSET = 9 | 128  # private futex; each worker waits on a bit of its own
_WAKE_BITSET = 10 | 128
_WAIT = 0 | 128
_WAKE = 1 | 128
_MOST_CHUNKS_SHIFT = 24  # a fork is cut into at most 2**24 chunks and one, which fits i32


def team_text(to: machine.Machine) -> str:
    """Return the team's functions as LLVM IR text, without a module header."""
    run = [_acquire(to), _release(to), _fork(to), _take_part(to), _run_chunk(to), _join(to)]
    placing = [_place(to), _keep_off(to)]
    return "\n".join([*run, *placing, _worker(to), _watch(to), _sleep(to), _stop(to)])


def _acquire(to: machine.Machine) -> str:
    """Print the function that returns the threads this run may use; above 1 it owns the team."""
    body = f"""entry:
{words.load("%wanted", "%ctx", abi.CTX_THREADS)}
  %many = icmp sgt i64 %wanted, 1
  %present = icmp ne ptr %team, null
  %asks = and i1 %many, %present
  br i1 %asks, label %size, label %alone
size:
{words.load("%most", "%team", abi.TEAM_SIZE)}
  %less = icmp ult i64 %wanted, %most
  %threads = select i1 %less, i64 %wanted, i64 %most
  %useful = icmp ugt i64 %threads, 1
  br i1 %useful, label %try, label %alone
try:
{words.address("%busy", "%team", abi.TEAM_BUSY)}
  %threads.word = trunc i64 %threads to i32
  %pair = cmpxchg ptr %busy, i32 0, i32 %threads.word acq_rel monotonic
  %owned = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %owned, label %own, label %refused
own:
{words.load("%scratch", "%ctx", abi.CTX_SCRATCH)}
{words.load("%stride", "%ctx", abi.CTX_SCRATCH_STRIDE)}
{words.store("i64 %scratch", "%team", abi.TEAM_SCRATCH, "to.scratch")}
{words.store("i64 %stride", "%team", abi.TEAM_SCRATCH_STRIDE, "to.stride")}
  ret i64 %threads
refused:
{words.count("%team", abi.TEAM_REFUSED, "refused")}
  br label %alone
alone:
  ret i64 1"""
    return to.define("internal i64 @castiron_acquire(ptr %ctx, ptr %team)", body)


def _release(to: machine.Machine) -> str:
    """Print the function that ends what `castiron_acquire` began."""
    body = f"""entry:
  %shared = icmp ugt i64 %threads, 1
  br i1 %shared, label %free, label %leave
free:
{words.address("%busy", "%team", abi.TEAM_BUSY)}
  store atomic i32 0, ptr %busy release, align 4
  br label %leave
leave:
  ret void"""
    return to.define("internal void @castiron_release(ptr %team, i64 %threads)", body)


def _fork(to: machine.Machine) -> str:
    """Print the function that publishes a step, wakes who sleeps, takes part, and joins.

    The claim word says by itself who may take what is left, so a worker that comes late finds
    nothing to do and is not waited for. Marks of workers that are being woken are taken away,
    so that the next fork, which may come before they run, does not call the system again.
    """
    body = f"""entry:
{words.load("%kernel", "%record", abi.STEP_KERNEL)}
{words.load("%units", "%record", abi.STEP_UNITS)}
{words.load("%asked", "%record", abi.STEP_GRAIN)}
  %least = lshr i64 %units, {_MOST_CHUNKS_SHIFT}
  %small = icmp ult i64 %asked, %least
  %grain = select i1 %small, i64 %least, i64 %asked
  %padded = add i64 %units, %grain
  %last = sub i64 %padded, 1
  %chunks = udiv i64 %last, %grain
{words.store("i64 %kernel", "%team", abi.TEAM_KERNEL, "to.kernel")}
{words.store("ptr %args", "%team", abi.TEAM_ARGS, "to.args")}
{words.store("i64 %units", "%team", abi.TEAM_UNITS, "to.units")}
{words.store("i64 %grain", "%team", abi.TEAM_GRAIN, "to.grain")}
{words.store("i64 %chunks", "%team", abi.TEAM_CHUNKS, "to.chunks")}
{words.load("%forks", "%team", abi.TEAM_FORKS)}
  %forks.new = add i64 %forks, 1
  store i64 %forks.new, ptr %forks.at, align 8
{words.address("%pending", "%team", abi.TEAM_PENDING)}
  %chunks.word = trunc i64 %chunks to i32
  store atomic i32 %chunks.word, ptr %pending monotonic, align 4
  %few = icmp ult i64 %chunks, %threads
  %parts = select i1 %few, i64 %chunks, i64 %threads
  %parts.high = shl i64 %parts, 32
  %offer = or i64 %parts.high, %chunks
{words.address("%claim", "%team", abi.TEAM_CLAIM)}
  store atomic i64 %offer, ptr %claim release, align 8
{words.address("%epoch", "%team", abi.TEAM_EPOCH)}
  %epoch.old = atomicrmw add ptr %epoch, i32 1 seq_cst
{words.address("%asleep.at", "%team", abi.TEAM_ASLEEP)}
  %asleep = load atomic i64, ptr %asleep.at seq_cst, align 8
  %others = sub i64 64, %parts
  %called = lshr i64 -2, %others
  %called.even = and i64 %called, -2
  %sleepers = and i64 %asleep, %called.even
  %none = icmp eq i64 %sleepers, 0
  br i1 %none, label %work, label %wake
wake:
  call void @castiron_place(ptr %team)
  %awake = xor i64 %sleepers, -1
  %asleep.old = atomicrmw and ptr %asleep.at, i64 %awake seq_cst
  %bits.high = lshr i64 %sleepers, 32
  %bits.both = or i64 %sleepers, %bits.high
  %bits = and i64 %bits.both, 4294967295
  %epoch.word = ptrtoint ptr %epoch to i64
  %woken = {to.syscall(to.futex, "%epoch.word", _WAKE_BITSET, abi.MAX_THREADS, 0, 0, "%bits")}
{words.count("%team", abi.TEAM_WAKES, "wakes")}
  br label %work
work:
  call void @castiron_take_part(ptr %team, i64 0)
  call void @castiron_join(ptr %team)
  ret void"""
    signature = "@castiron_fork(ptr %team, i64 %threads, ptr %record, ptr %args)"
    return to.define(f"internal void {signature}", body)


def _take_part(to: machine.Machine) -> str:
    """Print the function that claims and runs chunks until none is left for this thread.

    A chunk count above zero in the claim word proves that the step is still in progress, and a
    successful claim keeps it so until the chunk is reported: no epoch has to be compared.
    """
    body = f"""entry:
{words.address("%claim", "%team", abi.TEAM_CLAIM)}
  br label %look
look:
  %done = phi i32 [ 0, %entry ], [ %done.next, %work ]
  %fresh = load atomic i64, ptr %claim acquire, align 8
  br label %try
try:
  %seen = phi i64 [ %fresh, %look ], [ %actual, %take ]
  %left = and i64 %seen, 4294967295
  %parts = lshr i64 %seen, 32
  %some = icmp ne i64 %left, 0
  %mine = icmp ult i64 %index, %parts
  %may = and i1 %some, %mine
  br i1 %may, label %take, label %over
take:
  %wish = sub i64 %seen, 1
  %pair = cmpxchg ptr %claim, i64 %seen, i64 %wish acq_rel acquire
  %actual = extractvalue {{ i64, i1 }} %pair, 0
  %got = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %got, label %work, label %try
work:
  call void @castiron_run_chunk(ptr %team, i64 %index, i64 %left)
  %done.next = add i32 %done, 1
  br label %look
over:
  %idle = icmp eq i32 %done, 0
  br i1 %idle, label %leave, label %report
report:
{words.address("%pending", "%team", abi.TEAM_PENDING)}
  %before = atomicrmw sub ptr %pending, i32 %done seq_cst
  %last = icmp eq i32 %before, %done
  br i1 %last, label %check, label %leave
check:
{words.address("%joining.at", "%team", abi.TEAM_JOINING)}
  %joining = load atomic i32, ptr %joining.at seq_cst, align 4
  %waits = icmp ne i32 %joining, 0
  br i1 %waits, label %wake, label %leave
wake:
  %pending.word = ptrtoint ptr %pending to i64
  %woken = {to.syscall(to.futex, "%pending.word", _WAKE, 1)}
  br label %leave
leave:
  ret void"""
    return to.define("internal void @castiron_take_part(ptr %team, i64 %index)", body)


def _run_chunk(to: machine.Machine) -> str:
    """Print the function that runs the claimed chunk, the first of the `left` last ones."""
    body = f"""entry:
{words.load("%kernel", "%team", abi.TEAM_KERNEL, "ptr")}
{words.load("%args", "%team", abi.TEAM_ARGS, "ptr")}
{words.load("%units", "%team", abi.TEAM_UNITS)}
{words.load("%grain", "%team", abi.TEAM_GRAIN)}
{words.load("%chunks", "%team", abi.TEAM_CHUNKS)}
{words.load("%scratch", "%team", abi.TEAM_SCRATCH, "ptr")}
{words.load("%stride", "%team", abi.TEAM_SCRATCH_STRIDE)}
  %chunk = sub i64 %chunks, %left
  %begin = mul i64 %chunk, %grain
  %full = add i64 %begin, %grain
  %short = icmp ult i64 %units, %full
  %end = select i1 %short, i64 %units, i64 %full
  %skip = mul i64 %stride, %index
  %own = getelementptr i8, ptr %scratch, i64 %skip
  call void %kernel(ptr %args, i64 %begin, i64 %end, ptr %own)
  ret void"""
    signature = "@castiron_run_chunk(ptr %team, i64 %index, i64 %left)"
    return to.define(f"internal void {signature}", body)


def _join(to: machine.Machine) -> str:
    """Print the function that waits until every claimed chunk is reported: spin, then sleep."""
    body = f"""entry:
{words.address("%pending", "%team", abi.TEAM_PENDING)}
{words.load("%budget", "%team", abi.TEAM_SPIN_TICKS)}
  %start = {to.ticks}
  br label %spin
spin:
  %open = load atomic i32, ptr %pending acquire, align 4
  %joined = icmp eq i32 %open, 0
  br i1 %joined, label %leave, label %patient
patient:
  %now = {to.ticks}
  %spent = sub i64 %now, %start
  %again = icmp ult i64 %spent, %budget
  br i1 %again, label %pause, label %doze
pause:
  {to.pause}
  br label %spin
doze:
{words.address("%joining", "%team", abi.TEAM_JOINING)}
  %awake = atomicrmw xchg ptr %joining, i32 1 seq_cst
{words.count("%team", abi.TEAM_JOIN_SLEEPS, "sleeps")}
  %pending.word = ptrtoint ptr %pending to i64
  br label %look
look:
  %value = load atomic i32, ptr %pending seq_cst, align 4
  %none = icmp eq i32 %value, 0
  br i1 %none, label %wakened, label %wait
wait:
  %expected = zext i32 %value to i64
  %status = {to.syscall(to.futex, "%pending.word", _WAIT, "%expected")}
  br label %look
wakened:
  store atomic i32 0, ptr %joining monotonic, align 4
  br label %leave
leave:
  ret void"""
    return to.define("internal void @castiron_join(ptr %team)", body)


def _place(to: machine.Machine) -> str:
    """Print the function that keeps sleeping workers off the CPU of the thread that forks.

    Left alone the kernel likes to wake a worker where its waker runs, and there it waits for
    the end of the very run it was to speed up. Asked before a wake only, and acted upon only
    when the forking thread has moved.
    """
    body = f"""entry:
  %cpu.at = alloca i32, align 8
{words.load("%places", "%team", abi.TEAM_PLACES)}
  %wanted = icmp ne i64 %places, 0
  br i1 %wanted, label %ask, label %leave
ask:
  %cpu.word = ptrtoint ptr %cpu.at to i64
  %status = {to.syscall(to.getcpu, "%cpu.word")}
  %cpu = load volatile i32, ptr %cpu.at, align 8
{words.address("%kept.off", "%team", abi.TEAM_FORKER_CPU)}
  %last = load atomic i32, ptr %kept.off acquire, align 4
  %moved = icmp ne i32 %cpu, %last
  %counted = icmp ult i32 %cpu, {abi.TEAM_CPUS_WORDS * 64}
  %act = and i1 %moved, %counted
  br i1 %act, label %move, label %leave
move:
  store atomic i32 %cpu, ptr %kept.off release, align 4
  call void @castiron_keep_off(ptr %team, i32 %cpu)
  br label %leave
leave:
  ret void"""
    return to.define("internal void @castiron_place(ptr %team)", body)


def _keep_off(to: machine.Machine) -> str:
    """Print the function that allows each worker every CPU of the process but one."""
    count = abi.TEAM_CPUS_WORDS
    body = f"""entry:
  %mask = alloca [{count} x i64], align 8
{words.address("%cpus", "%team", abi.TEAM_CPUS)}
{words.load("%size", "%team", abi.TEAM_SIZE)}
  %all = load [{count} x i64], ptr %cpus, align 8
  store volatile [{count} x i64] %all, ptr %mask, align 8
  %place = lshr i32 %cpu, 6
  %word.at = getelementptr i64, ptr %mask, i32 %place
  %word = load volatile i64, ptr %word.at, align 8
  %within = and i32 %cpu, 63
  %shift = zext i32 %within to i64
  %bit = shl i64 1, %shift
  %others = xor i64 %bit, -1
  %rest = and i64 %word, %others
  store volatile i64 %rest, ptr %word.at, align 8
  %mask.word = ptrtoint ptr %mask to i64
{words.address("%ids", "%team", abi.TEAM_THREAD_IDS)}
  br label %next
next:
  %index = phi i64 [ 1, %entry ], [ %index.next, %skip ]
  %more = icmp ult i64 %index, %size
  br i1 %more, label %worker, label %leave
worker:
  %id.at = getelementptr i64, ptr %ids, i64 %index
  %id = load atomic i64, ptr %id.at acquire, align 8
  %begun = icmp ne i64 %id, 0
  br i1 %begun, label %set, label %skip
set:
  %status = {to.syscall(to.sched_setaffinity, "%id", count * 8, "%mask.word")}
  br label %skip
skip:
  %index.next = add i64 %index, 1
  br label %next
leave:
  ret void"""
    return to.define("internal void @castiron_keep_off(ptr %team, i32 %cpu)", body)


def _worker(to: machine.Machine) -> str:
    """Print `castiron_worker(team, index)`: the whole life of a compute thread, 1 <= index."""
    body = f"""entry:
  %id = {to.syscall(to.gettid)}
{words.address("%ids", "%team", abi.TEAM_THREAD_IDS)}
  %id.at = getelementptr i64, ptr %ids, i64 %index
  store atomic i64 %id, ptr %id.at release, align 8
{words.address("%kept.off", "%team", abi.TEAM_FORKER_CPU)}
  store atomic i32 -1, ptr %kept.off release, align 4
{words.address("%epoch", "%team", abi.TEAM_EPOCH)}
{words.address("%stop.at", "%team", abi.TEAM_STOP)}
  br label %look
look:
  %seen = load atomic i32, ptr %epoch acquire, align 4
  call void @castiron_take_part(ptr %team, i64 %index)
  %stop = load atomic i32, ptr %stop.at acquire, align 4
  %stays = icmp eq i32 %stop, 0
  br i1 %stays, label %wait, label %leave
wait:
  %worth = call i1 @castiron_watch(ptr %team, i64 %index)
  br i1 %worth, label %look, label %sleep
sleep:
  call void @castiron_sleep(ptr %team, i64 %index, i32 %seen)
  br label %look
leave:
{words.count("%team", abi.TEAM_LEFT, "left")}
  ret void"""
    return to.define(f"dso_local void @{WORKER}(ptr %team, i64 %index)", body)


def _watch(to: machine.Machine) -> str:
    """Print the bounded spin of a worker: true when there is something to claim.

    It spins only for a run in progress that has a place for this worker; between runs it
    returns false at once.
    """
    body = f"""entry:
{words.address("%claim", "%team", abi.TEAM_CLAIM)}
{words.address("%busy", "%team", abi.TEAM_BUSY)}
{words.load("%budget", "%team", abi.TEAM_SPIN_TICKS)}
  %index.word = trunc i64 %index to i32
  %start = {to.ticks}
  br label %spin
spin:
  %seen = load atomic i64, ptr %claim acquire, align 8
  %left = and i64 %seen, 4294967295
  %parts = lshr i64 %seen, 32
  %some = icmp ne i64 %left, 0
  %mine = icmp ult i64 %index, %parts
  %work = and i1 %some, %mine
  br i1 %work, label %leave, label %running
running:
  %threads = load atomic i32, ptr %busy monotonic, align 4
  %placed = icmp ult i32 %index.word, %threads
  %now = {to.ticks}
  %spent = sub i64 %now, %start
  %early = icmp ult i64 %spent, %budget
  %again = and i1 %placed, %early
  br i1 %again, label %pause, label %leave
pause:
  {to.pause}
  br label %spin
leave:
  ret i1 %work"""
    return to.define("internal i1 @castiron_watch(ptr %team, i64 %index)", body)


def _sleep(to: machine.Machine) -> str:
    """Print the sleep of a worker until the epoch is no longer the one it saw.

    The worker sets its bit before the kernel compares the epoch; the forking thread changes the
    epoch before it reads the bits. Whichever comes second sees the other: no wake-up is lost.
    """
    body = f"""entry:
{words.address("%asleep", "%team", abi.TEAM_ASLEEP)}
{words.address("%epoch", "%team", abi.TEAM_EPOCH)}
  %bit = shl i64 1, %index
  %others = xor i64 %bit, -1
  %place = and i64 %index, 31
  %channel = shl i64 1, %place
  %expected = zext i32 %seen to i64
  %epoch.word = ptrtoint ptr %epoch to i64
  %set = atomicrmw or ptr %asleep, i64 %bit seq_cst
{words.count("%team", abi.TEAM_SLEEPS, "sleeps")}
  %status = {to.syscall(to.futex, "%epoch.word", _WAIT_BITSET, "%expected", 0, 0, "%channel")}
  %unset = atomicrmw and ptr %asleep, i64 %others seq_cst
  ret void"""
    signature = "@castiron_sleep(ptr %team, i64 %index, i32 %seen)"
    return to.define(f"internal void {signature}", body)


def _stop(to: machine.Machine) -> str:
    """Print `castiron_team_stop(team)`: let all workers return. Runs go on alone after it."""
    body = f"""entry:
{words.address("%stop", "%team", abi.TEAM_STOP)}
{words.address("%epoch", "%team", abi.TEAM_EPOCH)}
  store atomic i32 1, ptr %stop seq_cst, align 4
  %epoch.old = atomicrmw add ptr %epoch, i32 1 seq_cst
  %epoch.word = ptrtoint ptr %epoch to i64
  %woken = {to.syscall(to.futex, "%epoch.word", _WAKE, abi.MAX_THREADS)}
  ret void"""
    return to.define(f"dso_local void @{STOP}(ptr %team)", body)
