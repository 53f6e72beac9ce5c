"""Kernel text (LLVM IR) to machine code, one kernel or many.

The only place that drives LLVM. Compiles in worker processes, because LLVM's binding holds one
lock for a whole process, and looks in the kernel cache first. What the code means is the
generators' business; link joins the objects.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import queue
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures

import llvmlite.binding as llvm

from castiron import errors
from castiron.compiler import target as targets
from castiron.compiler.codegen import elf_objects, kernel_cache, worker
from castiron.machine import cpus

Progress = Callable[[int, int], None]

# Starting a worker costs about as much as compiling this much text in place.
_SMALL_TEXT_CHARS = 800_000

_PASS_METHODS = {
    "adce": "add_aggressive_dce_pass",
    "dce": "add_dead_code_elimination_pass",
    "dse": "add_dead_store_elimination_pass",
    "gvn": "add_new_gvn_pass",
    "instcombine": "add_instruction_combine_pass",
    "jump-threading": "add_jump_threading_pass",
    "lcssa": "add_lcssa_pass",
    "loop-rotate": "add_loop_rotate_pass",
    "loop-simplify": "add_loop_simplify_pass",
    "loop-unroll": "add_loop_unroll_pass",
    "reassociate": "add_reassociate_pass",
    "sccp": "add_sccp_pass",
    "simplifycfg": "add_simplify_cfg_pass",
    "sink": "add_sinking_pass",
    "sroa": "add_sroa_pass",
}
_LEVELS = {"O1": 1, "O2": 2, "O3": 3}
_PASSES = re.compile(r"^;\s*passes:(.*)$", re.MULTILINE)
_INLINE_ASSEMBLY = re.compile(r"\bcall\b[^\n@]*\basm\b")
_DEFINE = re.compile(r"^define\b.*\{[^\n{}]*$", re.MULTILINE)


def compile_kernel(text: str, target: targets.Target) -> bytes:
    """The object file of one kernel text, in this process.

    The text may ask for mid-level passes in a comment line `; passes: sroa,instcombine` (names
    as LLVM spells them, or O1, O2, O3 for a whole pipeline); without one there are none. Every
    function is compiled position-independent and with "no-builtins", so that a loop never
    becomes a call. Same text and target, same bytes. Raises BuildError with LLVM's words.
    """
    machine = _machine_for(target)
    with _module_of(text, target) as module:
        _run_passes(module, machine, requested_passes(text))
        return bytes(machine.emit_object(module))


def emit_assembly(text: str, target: targets.Target) -> str:
    """The assembly text of one kernel, through exactly the steps of `compile_kernel`."""
    machine = _machine_for(target)
    with _module_of(text, target) as module:
        _run_passes(module, machine, requested_passes(text))
        return str(machine.emit_assembly(module))


def requested_passes(text: str) -> tuple[str, ...]:
    """Pass names from the text's `; passes:` line; BuildError for one that is not known."""
    found = _PASSES.search(text)
    if not found:
        return ()
    names = tuple(name.strip() for name in found[1].split(",") if name.strip())
    unknown = [name for name in names if name not in _PASS_METHODS and name not in _LEVELS]
    if unknown:
        known = ", ".join((*_LEVELS, *_PASS_METHODS))
        raise errors.BuildError(
            f"kernel {kernel_name(text)}: expected passes among {known}; "
            f"found {', '.join(unknown)}. Correct the kernel's `; passes:` line."
        )
    return names


def kernel_name(text: str) -> str:
    """The first function `text` defines for others, for messages; "?" if it defines none."""
    names = re.findall(r"^define (?!internal|private)[^@]*@\"?([^\s\"(]+)", text, re.MULTILINE)
    return names[0] if names else "?"


@functools.cache
def _machine_for(target: targets.Target) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # Inline assembly in an object needs the native parser; without it LLVM aborts the process.
    llvm.initialize_native_asmparser()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=2, reloc="pic", codemodel="small"
    )


def _module_of(text: str, target: targets.Target) -> llvm.ModuleRef:
    if target.architecture != platform.machine() and _INLINE_ASSEMBLY.search(text):
        raise errors.BuildError(
            f"kernel {kernel_name(text)}: expected no inline assembly when building for "
            f"{target.name} on {platform.machine()}; found a `call ... asm`. "
            "LLVM would abort the process: print an intrinsic or machine words instead."
        )
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(_without_builtins(text), context)
        module.triple = target.triple
        module.data_layout = str(_machine_for(target).target_data)
        module.verify()
    except RuntimeError as fault:
        raise errors.BuildError(
            f"kernel {kernel_name(text)}: expected valid LLVM IR for {target.name}; "
            f"LLVM found: {str(fault).strip()}. This is a fault of the kernel's generator."
        ) from fault
    return module


def _without_builtins(text: str) -> str:
    return _DEFINE.sub(lambda found: _mark_define(found[0]), text)


def _mark_define(line: str) -> str:
    if "no-builtins" in line:
        return line
    end = _parameters_end(line)
    addressed = re.match(r"\s*(?:local_)?unnamed_addr\b", line[end:])
    end += addressed.end() if addressed else 0
    return f'{line[:end]} nounwind "no-builtins"{line[end:]}'


def _parameters_end(line: str) -> int:
    """Position just after the parenthesis that closes the parameter list."""
    depth = 0
    for position in range(line.index("@"), len(line)):
        depth += {"(": 1, ")": -1}.get(line[position], 0)
        if depth == 0 and line[position] == ")":
            return position + 1
    return line.index("{")


def _run_passes(
    module: llvm.ModuleRef, machine: llvm.TargetMachine, names: tuple[str, ...]
) -> None:
    for name in names:
        options = llvm.create_pipeline_tuning_options(_LEVELS.get(name, 2))
        builder = llvm.create_pass_builder(machine, options)
        if name in _LEVELS:
            builder.getModulePassManager().run(module, builder)
            continue
        manager = llvm.create_new_module_pass_manager()
        getattr(manager, _PASS_METHODS[name])()
        manager.run(module, builder)


def compile_kernels(
    texts: list[str],
    target: targets.Target,
    progress: Progress | None = None,
    workers: int | None = None,
    cache: kernel_cache.KernelCache | None = None,
) -> list[elf_objects.KernelObject]:
    """The parsed objects of `texts`, in order; equal texts are compiled once.

    `progress(done, total)` counts distinct texts, cached ones included. `workers` is the number
    of processes (0: none, compile here; None: the CPU budget if there is enough to compile,
    else 0). `cache` defaults to the user's. The first kernel that fails raises its
    BuildError and stops the rest.
    """
    store = cache if cache is not None else kernel_cache.KernelCache.default()
    keys = [kernel_cache.key(text, target, llvm.llvm_version_info) for text in texts]
    distinct = dict(zip(keys, texts, strict=True))
    found = {key: store.get(key) for key in distinct}
    ready = {key: parsed for key, parsed in found.items() if parsed is not None}
    missing = {key: text for key, text in distinct.items() if key not in ready}
    report = progress or _ignore
    report(len(ready), len(distinct))
    count = _fitting_workers(missing) if workers is None else min(workers, len(missing))
    compiled = _compile_in_processes(missing, target, count) if count else _here(missing, target)
    for key, packed in compiled:
        ready[key] = store.put(key, packed)
        report(len(ready), len(distinct))
    store.trim()
    return [ready[key] for key in keys]


def _ignore(done: int, total: int) -> None:
    """Progress nobody asked for."""


def _fitting_workers(texts: dict[str, str]) -> int:
    count = min(cpus.cpu_budget().cpus, len(texts))
    is_small = sum(map(len, texts.values())) <= _SMALL_TEXT_CHARS
    return 0 if count < 2 or is_small else count


def _here(texts: dict[str, str], target: targets.Target) -> Iterator[tuple[str, bytes]]:
    for key, text in texts.items():
        yield key, _compile_packed(text, target)


def _compile_in_processes(
    texts: dict[str, str], target: targets.Target, count: int
) -> Iterator[tuple[str, bytes]]:
    """(key, packed object) of each text, as they are finished."""
    idle: queue.SimpleQueue[worker.Worker] = queue.SimpleQueue()

    def compile_one(text: str) -> bytes:
        one = idle.get()
        try:
            return one.compile(text, target, kernel_name(text))
        finally:
            idle.put(one)

    with contextlib.ExitStack() as stack:
        for _ in range(count):
            idle.put(stack.enter_context(worker.Worker()))
        pool = stack.enter_context(futures.ThreadPoolExecutor(count))
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        # Longest first, so that no worker is left alone with a big one at the end.
        order = sorted(texts, key=lambda key: (-len(texts[key]), key))
        waiting = {pool.submit(compile_one, texts[key]): key for key in order}
        for done in futures.as_completed(waiting):
            yield waiting[done], done.result()


def _compile_packed(text: str, target: targets.Target) -> bytes:
    return elf_objects.pack(elf_objects.parse(compile_kernel(text, target)))


def serve_parent() -> None:
    """Compile what the parent process sends, until it closes the pipe (see worker)."""
    worker.serve(_compile_packed, sys.stdin.buffer, sys.stdout.buffer)


def names_of(objects: Iterable[elf_objects.KernelObject]) -> list[str]:
    """Every exported function of `objects`, in order."""
    return [name for parsed in objects for name in parsed.exported()]
