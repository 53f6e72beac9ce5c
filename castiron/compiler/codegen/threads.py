"""LLVM IR text of the functions that run an executable: the step walker, the team, the lane.

`run_text` prints one module with the entry points named in ENTRY_POINTS, for x86-64 and AArch64.
The memory they work on is laid out in `executable/abi.py`; `runtime/team.py` and
`runtime/lane.py` fill it and enter the workers. Nothing here depends on a model. The lane's half
is printed by `lane_threads.py`, what differs between machines by `machine.py`.
"""

from __future__ import annotations

from castiron.compiler.codegen import lane_threads, machine
from castiron.executable import abi

RUN = "castiron_run"
WORKER = "castiron_worker"
TEAM_STOP = "castiron_team_stop"
TICKS = "castiron_ticks"
ENTRY_POINTS = (RUN, WORKER, TEAM_STOP, TICKS, *lane_threads.ENTRY_POINTS)

_WAIT_BITSET = 9 | 128  # private futex; each worker waits on a bit of its own
_WAKE_BITSET = 10 | 128
_WAIT = 0 | 128
_WAKE = 1 | 128
_MOST_CHUNKS_SHIFT = 24  # a fork is cut into at most 2**24 + 1 chunks, which fits i32 counts


def run_text(architecture: str) -> str:
    """Return the module for `architecture`, "x86_64" or "aarch64", as LLVM IR text.

    Every function is `dso_local` and free of undefined symbols, so it links into a flat image.
    """
    chosen = machine.named(architecture)
    parts = [
        chosen.header,
        _run(chosen),
        _time_step(chosen),
        _step(chosen),
        _fill_args(chosen),
        _acquire(chosen),
        _fork(chosen),
        _take_part(chosen),
        _run_chunk(chosen),
        _join(chosen),
        _worker(chosen),
        _watch(chosen),
        _sleep(chosen),
        _team_stop(chosen),
        _ticks(chosen),
        lane_threads.lane_text(chosen),
    ]
    return "\n".join(parts)


def _word(name: str, base: str, index: int) -> str:
    """Return the instruction that puts the address of word `index` of `base` into `name`."""
    return f"  {name} = getelementptr i64, ptr {base}, i64 {index}"


def _load(name: str, base: str, index: int, kind: str = "i64") -> str:
    """Return the instructions that load word `index` of `base` into `name`."""
    return f"{_word(f'{name}.at', base, index)}\n  {name} = load {kind}, ptr {name}.at, align 8"


def _store(value: str, base: str, index: int, label: str) -> str:
    """Return the instructions that store `value` (with its type) to word `index` of `base`."""
    return f"{_word(f'%{label}.at', base, index)}\n  store {value}, ptr %{label}.at, align 8"


def _count(team: str, index: int, label: str) -> str:
    """Return the instructions that add one to a counter which several threads share."""
    return (
        f"{_word(f'%{label}.count', team, index)}\n"
        f"  %{label}.old = atomicrmw add ptr %{label}.count, i64 1 monotonic"
    )


def _run(to: machine.Machine) -> str:
    """Print `castiron_run(ctx)`: acquire the team if wanted, walk the steps, let the team go."""
    body = f"""entry:
  %args = alloca [{abi.MAX_ARGS} x i64], align 64
{_load("%bases", "%ctx", abi.CTX_BASES, "ptr")}
{_load("%first", "%ctx", abi.CTX_STEPS, "ptr")}
{_load("%steps", "%ctx", abi.CTX_NUM_STEPS)}
{_load("%team", "%ctx", abi.CTX_TEAM, "ptr")}
{_load("%crash", "%ctx", abi.CTX_CRASH, "ptr")}
  %threads = call i64 @castiron_acquire(ptr %ctx, ptr %team)
  %told = icmp ne ptr %crash, null
  br label %next
next:
  %step = phi i64 [ 0, %entry ], [ %step.next, %go ]
  %record = phi ptr [ %first, %entry ], [ %record.next, %go ]
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
{_load("%words", "%record", abi.STEP_WORDS)}
  %record.next = getelementptr i64, ptr %record, i64 %words
  %step.next = add i64 %step, 1
  br label %next
finish:
  br i1 %told, label %untell, label %release
untell:
  store volatile i64 {abi.NO_STEP}, ptr %crash, align 8
  br label %release
release:
  %shared = icmp ugt i64 %threads, 1
  br i1 %shared, label %free, label %leave
free:
{_word("%busy", "%team", abi.TEAM_BUSY)}
  store atomic i32 0, ptr %busy release, align 4
  br label %leave
leave:
  ret void"""
    return to.define(f"dso_local void @{RUN}(ptr %ctx)", body)


def _time_step(to: machine.Machine) -> str:
    """Print the function that runs a step and, if asked, adds its ticks to its counter."""
    body = f"""entry:
{_load("%times", "%ctx", abi.CTX_TIMES, "ptr")}
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
{_load("%units", "%record", abi.STEP_UNITS)}
{_load("%grain", "%record", abi.STEP_GRAIN)}
  %divisible = icmp sgt i64 %grain, 0
  %large = icmp sgt i64 %units, %grain
  %several = and i1 %divisible, %large
  %shared = icmp ugt i64 %threads, 1
  %forks = and i1 %several, %shared
  br i1 %forks, label %fork, label %alone
alone:
{_load("%kernel", "%record", abi.STEP_KERNEL, "ptr")}
{_load("%scratch", "%ctx", abi.CTX_SCRATCH, "ptr")}
  call void %kernel(ptr %args, i64 0, i64 %units, ptr %scratch)
  ret void
fork:
{_load("%team", "%ctx", abi.CTX_TEAM, "ptr")}
  call void @castiron_fork(ptr %team, i64 %threads, ptr %record, ptr %args)
  ret void"""
    signature = "@castiron_step(ptr %ctx, i64 %threads, ptr %record, ptr %args)"
    return to.define(f"internal void {signature}", body)


def _fill_args(to: machine.Machine) -> str:
    """Print the function that turns a step record into the argument words of its kernel."""
    body = f"""entry:
{_load("%operands", "%record", abi.STEP_NUM_OPERANDS)}
{_load("%params", "%record", abi.STEP_NUM_PARAMS)}
{_word("%pairs", "%record", abi.STEP_HEADER_WORDS)}
  br label %operand
operand:
  %i = phi i64 [ 0, %entry ], [ %i.next, %address ]
  %i.more = icmp ult i64 %i, %operands
  br i1 %i.more, label %address, label %rest
address:
  %pair = getelementptr [2 x i64], ptr %pairs, i64 %i
  %region = load i64, ptr %pair, align 8
{_load("%offset", "%pair", 1)}
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


def _acquire(to: machine.Machine) -> str:
    """Print the function that returns the threads this run may use; above 1 it owns the team."""
    body = f"""entry:
{_load("%wanted", "%ctx", abi.CTX_THREADS)}
  %many = icmp sgt i64 %wanted, 1
  %present = icmp ne ptr %team, null
  %asks = and i1 %many, %present
  br i1 %asks, label %size, label %alone
size:
{_load("%most", "%team", abi.TEAM_SIZE)}
  %less = icmp ult i64 %wanted, %most
  %threads = select i1 %less, i64 %wanted, i64 %most
  %useful = icmp ugt i64 %threads, 1
  br i1 %useful, label %try, label %alone
try:
{_word("%busy", "%team", abi.TEAM_BUSY)}
  %threads.word = trunc i64 %threads to i32
  %pair = cmpxchg ptr %busy, i32 0, i32 %threads.word acq_rel monotonic
  %owned = extractvalue {{ i32, i1 }} %pair, 1
  br i1 %owned, label %own, label %refused
own:
{_load("%scratch", "%ctx", abi.CTX_SCRATCH)}
{_load("%stride", "%ctx", abi.CTX_SCRATCH_STRIDE)}
{_store("i64 %scratch", "%team", abi.TEAM_SCRATCH, "to.scratch")}
{_store("i64 %stride", "%team", abi.TEAM_SCRATCH_STRIDE, "to.stride")}
  ret i64 %threads
refused:
{_count("%team", abi.TEAM_REFUSED, "refused")}
  br label %alone
alone:
  ret i64 1"""
    return to.define("internal i64 @castiron_acquire(ptr %ctx, ptr %team)", body)


def _fork(to: machine.Machine) -> str:
    """Print the function that publishes a step, wakes who sleeps, takes part, and joins.

    The claim word says by itself who may take what is left, so a worker that comes late finds
    nothing to do and is not waited for.
    """
    body = f"""entry:
{_load("%kernel", "%record", abi.STEP_KERNEL)}
{_load("%units", "%record", abi.STEP_UNITS)}
{_load("%asked", "%record", abi.STEP_GRAIN)}
  %least = lshr i64 %units, {_MOST_CHUNKS_SHIFT}
  %small = icmp ult i64 %asked, %least
  %grain = select i1 %small, i64 %least, i64 %asked
  %padded = add i64 %units, %grain
  %last = sub i64 %padded, 1
  %chunks = udiv i64 %last, %grain
{_store("i64 %kernel", "%team", abi.TEAM_KERNEL, "to.kernel")}
{_store("ptr %args", "%team", abi.TEAM_ARGS, "to.args")}
{_store("i64 %units", "%team", abi.TEAM_UNITS, "to.units")}
{_store("i64 %grain", "%team", abi.TEAM_GRAIN, "to.grain")}
{_store("i64 %chunks", "%team", abi.TEAM_CHUNKS, "to.chunks")}
{_load("%forks", "%team", abi.TEAM_FORKS)}
  %forks.new = add i64 %forks, 1
  store i64 %forks.new, ptr %forks.at, align 8
{_word("%pending", "%team", abi.TEAM_PENDING)}
  %chunks.word = trunc i64 %chunks to i32
  store atomic i32 %chunks.word, ptr %pending monotonic, align 4
  %few = icmp ult i64 %chunks, %threads
  %parts = select i1 %few, i64 %chunks, i64 %threads
  %parts.high = shl i64 %parts, 32
  %offer = or i64 %parts.high, %chunks
{_word("%claim", "%team", abi.TEAM_CLAIM)}
  store atomic i64 %offer, ptr %claim release, align 8
{_word("%epoch", "%team", abi.TEAM_EPOCH)}
  %epoch.old = atomicrmw add ptr %epoch, i32 1 seq_cst
{_word("%asleep.at", "%team", abi.TEAM_ASLEEP)}
  %asleep = load atomic i64, ptr %asleep.at seq_cst, align 8
  %others = sub i64 64, %parts
  %called = lshr i64 -2, %others
  %called.even = and i64 %called, -2
  %sleepers = and i64 %asleep, %called.even
  %none = icmp eq i64 %sleepers, 0
  br i1 %none, label %work, label %wake
wake:
  %bits.high = lshr i64 %sleepers, 32
  %bits.both = or i64 %sleepers, %bits.high
  %bits = and i64 %bits.both, 4294967295
  %epoch.word = ptrtoint ptr %epoch to i64
  %woken = {to.syscall(to.futex, "%epoch.word", _WAKE_BITSET, abi.MAX_THREADS, 0, 0, "%bits")}
{_count("%team", abi.TEAM_WAKES, "wakes")}
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
{_word("%claim", "%team", abi.TEAM_CLAIM)}
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
{_word("%pending", "%team", abi.TEAM_PENDING)}
  %before = atomicrmw sub ptr %pending, i32 %done seq_cst
  %last = icmp eq i32 %before, %done
  br i1 %last, label %check, label %leave
check:
{_word("%joining.at", "%team", abi.TEAM_JOINING)}
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
{_load("%kernel", "%team", abi.TEAM_KERNEL, "ptr")}
{_load("%args", "%team", abi.TEAM_ARGS, "ptr")}
{_load("%units", "%team", abi.TEAM_UNITS)}
{_load("%grain", "%team", abi.TEAM_GRAIN)}
{_load("%chunks", "%team", abi.TEAM_CHUNKS)}
{_load("%scratch", "%team", abi.TEAM_SCRATCH, "ptr")}
{_load("%stride", "%team", abi.TEAM_SCRATCH_STRIDE)}
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
{_word("%pending", "%team", abi.TEAM_PENDING)}
{_load("%budget", "%team", abi.TEAM_SPIN_TICKS)}
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
{_word("%joining", "%team", abi.TEAM_JOINING)}
  %awake = atomicrmw xchg ptr %joining, i32 1 seq_cst
{_count("%team", abi.TEAM_JOIN_SLEEPS, "sleeps")}
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


def _worker(to: machine.Machine) -> str:
    """Print `castiron_worker(team, index)`: the whole life of a compute thread, 1 <= index."""
    body = f"""entry:
{_word("%epoch", "%team", abi.TEAM_EPOCH)}
{_word("%stop.at", "%team", abi.TEAM_STOP)}
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
{_count("%team", abi.TEAM_LEFT, "left")}
  ret void"""
    return to.define(f"dso_local void @{WORKER}(ptr %team, i64 %index)", body)


def _watch(to: machine.Machine) -> str:
    """Print the bounded spin of a worker: true when there is something to claim.

    It spins only for a run in progress that has a place for this worker; between runs it
    returns false at once.
    """
    body = f"""entry:
{_word("%claim", "%team", abi.TEAM_CLAIM)}
{_word("%busy", "%team", abi.TEAM_BUSY)}
{_load("%budget", "%team", abi.TEAM_SPIN_TICKS)}
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
{_word("%asleep", "%team", abi.TEAM_ASLEEP)}
{_word("%epoch", "%team", abi.TEAM_EPOCH)}
  %bit = shl i64 1, %index
  %others = xor i64 %bit, -1
  %place = and i64 %index, 31
  %channel = shl i64 1, %place
  %expected = zext i32 %seen to i64
  %epoch.word = ptrtoint ptr %epoch to i64
  %set = atomicrmw or ptr %asleep, i64 %bit seq_cst
{_count("%team", abi.TEAM_SLEEPS, "sleeps")}
  %status = {to.syscall(to.futex, "%epoch.word", _WAIT_BITSET, "%expected", 0, 0, "%channel")}
  %unset = atomicrmw and ptr %asleep, i64 %others seq_cst
  ret void"""
    signature = "@castiron_sleep(ptr %team, i64 %index, i32 %seen)"
    return to.define(f"internal void {signature}", body)


def _team_stop(to: machine.Machine) -> str:
    """Print `castiron_team_stop(team)`: let all workers return. Runs go on alone after it."""
    body = f"""entry:
{_word("%stop", "%team", abi.TEAM_STOP)}
{_word("%epoch", "%team", abi.TEAM_EPOCH)}
  store atomic i32 1, ptr %stop seq_cst, align 4
  %epoch.old = atomicrmw add ptr %epoch, i32 1 seq_cst
  %epoch.word = ptrtoint ptr %epoch to i64
  %woken = {to.syscall(to.futex, "%epoch.word", _WAKE, abi.MAX_THREADS)}
  ret void"""
    return to.define(f"dso_local void @{TEAM_STOP}(ptr %team)", body)


def _ticks(to: machine.Machine) -> str:
    """Print `castiron_ticks()`: the clock that CTX_TIMES and the spin budgets are counted in."""
    body = f"""entry:
  %now = {to.ticks}
  ret i64 %now"""
    return to.define(f"dso_local i64 @{TICKS}()", body)
