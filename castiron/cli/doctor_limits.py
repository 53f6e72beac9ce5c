"""What ``castiron doctor`` reads: the processor, CPUs, memory and other limits of this machine.

``root`` is where ``proc`` and ``sys`` are looked for. Nothing is tried out here; that is
``doctor_trial.py``.
"""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator

from castiron import errors
from castiron.cli.findings import Finding
from castiron.compiler import target
from castiron.machine import cpus, groups, memory
from castiron.server import settings, shares

_TELLING = (
    "sse4_2 avx avx2 fma f16c avx512f avx512bw avx512_vnni avx512_bf16 avx512_fp16 amx_tile asimd "
    "asimddp bf16 sve"
).split()
_MB = 1 << 20
_LEAST_BYTES = 128 * _MB
_LITTLE_BYTES = 512 * _MB
_FEW_FILES, _LEAST_FILES = 256, 48  # beside one for each request in flight
_FEW_PROCESSES = 64
_THP = "/sys/kernel/mm/transparent_hugepage/enabled"
_CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
_PERF = "/proc/sys/kernel/perf_event_paranoid"


def findings(root: str = "/", workers: int = 1) -> Iterator[Finding]:
    """All of them, for a server of so many workers."""
    yield processor(root)
    yield cpu_limits(root, workers)
    yield memory_limits(root, workers)
    yield huge_pages(root)
    yield counters(root)
    yield clock(root)
    yield open_files()
    yield processes(root)


def processor(root: str) -> Finding:
    """The instruction set, and the target that code is made for."""
    info = "\n".join(groups.lines(groups.join(root, "/proc/cpuinfo")))
    flags, machine = target.cpu_flags(info), platform.machine()
    names = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    shown = [word for word in _TELLING if word in flags]
    found = f"{names[0] if names else 'unnamed'}, {machine}, {' '.join(shown) or 'no vectors'}"
    try:
        best = target.best_for(machine, flags)
    except errors.BuildError as fault:
        return Finding("processor", found, "no code can be made for it", str(fault), is_broken=True)
    fitting = [
        each.name for each in target.ALL
        if each.architecture == machine and flags.issuperset(each.required_flags)
    ]  # fmt: skip
    follows = f"code is made for {best.name}; files made for {', '.join(fitting)} run"
    todo = ""
    if best.name == "baseline":
        todo = "if this is a virtual machine, let it see AVX2: code is then several times as fast"
    return Finding("processor", found, follows, todo, values={"target": best.name, "flags": shown})


def cpu_limits(root: str, workers: int) -> Finding:
    """Affinity and every quota; the tightest of them; the threads that follow."""
    limits, budget = cpus.limits(root), cpus.cpu_budget(None, root)
    shown = [f"{each.limit} {each.exact:g}{_at(each.where)}" for each in limits]
    found = f"{os.cpu_count()} CPUs; {'; '.join(shown)}"
    threads = max(1, budget.cpus // workers)
    tightest = f"the tightest is {budget.limit}{_at(budget.where)}"
    by = f" by each of {workers} workers" if workers > 1 else ""
    follows = f"{threads} compute thread{'s' * (threads > 1)}{by}; {tightest}"
    todo = ""
    if workers > budget.cpus:
        todo = f"take no more than {budget.cpus} workers: there is no CPU for the others"
    elif budget.exact < 1:
        todo = (
            "for steady latency allow a whole CPU: who has used up a share waits for the next one"
        )
    values = {"threads": threads, "exact": budget.exact, "limit": budget.limit,
              "where": budget.where}  # fmt: skip
    return Finding("CPUs", found, follows, todo, values=values)


def memory_limits(root: str, workers: int) -> Finding:
    """Every limit, the tightest of them, and the shares that a server takes."""
    limits, limit = memory.limits(root), memory.tightest(root)
    found = "; ".join(f"{each.name} {_size(each.size_bytes)}{_at(each.where)}" for each in limits)
    given = settings.Settings(workers=workers)
    planned = shares.fitted(given, cpus.cpu_budget(None, root), limit)
    arenas_bytes = shares.arenas_bytes(limit, workers)
    follows = (
        f"{_size(planned.memory_budget_bytes)} for models, {_size(arenas_bytes)} for arenas, "
        f"{_size(planned.max_buffered_bytes)} for bodies{' by worker' if workers > 1 else ''}; "
        f"the tightest is {limit.name}{_at(limit.where)}"
    )
    own_bytes, todo = limit.share_bytes(workers), ""
    if own_bytes < _LITTLE_BYTES:
        todo = f"allow {_size(_LITTLE_BYTES)} for each worker: it takes 100 MB before any model"
    values = {"size_bytes": limit.size_bytes, "limit": limit.name, "where": limit.where,
              "models_bytes": planned.memory_budget_bytes, "arenas_bytes": arenas_bytes,
              "bodies_bytes": planned.max_buffered_bytes}  # fmt: skip
    return Finding("memory", found, follows, todo, own_bytes < _LEAST_BYTES, values)


def huge_pages(root: str) -> Finding:
    """Whether arenas may lie in huge pages."""
    words = " ".join(groups.lines(groups.join(root, _THP)))
    chosen = words.partition("[")[2].partition("]")[0]
    if chosen in ("always", "madvise"):
        return Finding("huge pages", chosen, "arenas lie in huge pages")
    todo = f"as root: echo madvise > {_THP}"
    return Finding("huge pages", chosen or "unknown", "arenas lie in small pages: large models "
                   "run a few percent slower", todo)  # fmt: skip


def counters(root: str) -> Finding:
    """What ``castiron profile`` measures by, and whether ``perf`` can look at kernels."""
    info = "\n".join(groups.lines(groups.join(root, "/proc/cpuinfo")))
    paranoid = "".join(groups.lines(groups.join(root, _PERF))[:1]) or "unknown"
    is_steady = platform.machine() != "x86_64" or {"constant_tsc", "nonstop_tsc"} <= (
        target.cpu_flags(info)
    )
    found = (
        f"cycle counter {'steady' if is_steady else 'not steady'}; perf_event_paranoid {paranoid}"
    )
    if not is_steady:
        return Finding("counters", found, "times of castiron profile drift with the frequency",
                       "compare steps of one profile only, not profiles")  # fmt: skip
    is_open = os.geteuid() == 0 or paranoid in ("-1", "0", "1")
    return Finding("counters", found, "castiron profile tells true times; perf record "
                   f"{'sees' if is_open else 'needs rights to see'} kernels by name")  # fmt: skip


def clock(root: str) -> Finding:
    """What a look at the clock costs; every request takes a dozen."""
    source = "".join(groups.lines(groups.join(root, _CLOCK))[:1]) or "unknown"
    is_slow = source in ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
    if not is_slow:
        return Finding("clock", source, "reading it is cheap")
    return Finding("clock", source, "each reading is a call into the kernel; a request takes a dozen",
                   "choose a source that programs read themselves, such as tsc")  # fmt: skip


def open_files() -> Finding:
    """Connections are files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = settings.Settings().max_in_flight + _FEW_FILES
    found = f"{_count(soft)} at once, {_count(hard)} at most"
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return Finding("open files", found, "enough for all requests in flight",
                       values={"soft": soft})  # fmt: skip
    follows = f"about {max(0, soft - _LEAST_FILES)} connections by worker, then none is taken"
    return Finding("open files", found, follows, f"ulimit -n {needed} (or LimitNOFILE=, nofile)",
                   soft <= _LEAST_FILES, {"soft": soft})  # fmt: skip


def processes(root: str) -> Finding:
    """Workers, builders, step processes and all their threads count."""
    found = [("RLIMIT_NPROC", resource.getrlimit(resource.RLIMIT_NPROC)[0], "")]
    for version, folder in groups.folders("pids", root):
        text = "".join(groups.lines(f"{folder}/pids.max")[:1]).strip()
        if text.isdecimal():
            found.append((f"{version} pids.max", int(text), folder))
    bounded = [each for each in found if each[1] != resource.RLIM_INFINITY]
    if not bounded:
        return Finding("processes", "no limit", "workers, builders and step processes can start")
    name, most, where = min(bounded, key=lambda each: each[1])
    shown = f"at most {most}, by {name}{_at(where)}"
    if most >= _FEW_PROCESSES:
        return Finding("processes", shown, "workers, builders and step processes can start")
    return Finding("processes", shown, "a builder or a step process may not start",
                   f"allow {_FEW_PROCESSES}; threads count as processes", most < 16)  # fmt: skip


def _at(where: str) -> str:
    return f" ({where})" if where else ""


def _size(size_bytes: int) -> str:
    if size_bytes < 10 * 1024 * _MB:
        return f"{size_bytes / _MB:.0f} MB"
    return f"{size_bytes / _MB / 1024:.1f} GB"


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
