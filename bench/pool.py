"""Pool: what renting and returning memory costs, against malloc and mmap of the same sizes.

    python -m bench.pool [--rounds 7] [--trace FILE] [--seed 1]

A trace of rents and returns like that of a server (arenas of a few models, some of changing
size, request buffers, now and then an outlier) is recorded to a file once and then played
against each allocator through ctypes: bare, and with every byte written, as a run does.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bench import machine, table
from castiron.runtime import memory, pool

Move = tuple[int, int]  # (slot, bytes to rent there), or (slot, -1): return what the slot holds
NUM_PAIRS = 4000
_TRACE = Path(__file__).resolve().parent.parent / ".cache" / "pool-trace.csv"
_FIXED_ARENAS = (3_145_728, 9_633_792, 802_816)
_REQUEST_BYTES = 614_400


def record(seed: int, num_pairs: int = NUM_PAIRS) -> Iterator[Move]:
    """A trace from a seed: at most six blocks are out at once, and all come back."""
    generator = random.Random(seed)
    rented: list[int] = []
    for slot in range(num_pairs):
        while len(rented) == 6 or (rented and generator.random() < 0.5):
            yield rented.pop(generator.randrange(len(rented))), -1
        yield slot, _size(generator)
        rented.append(slot)
    yield from ((slot, -1) for slot in rented)


def _size(generator: random.Random) -> int:
    chance = generator.random()
    if chance < 0.5:
        return generator.choice(_FIXED_ARENAS)
    if chance < 0.7:
        return 9_400 * generator.randrange(64, 640)
    if chance < 0.995:
        return generator.choice((_REQUEST_BYTES, generator.randrange(4_096, 200_000)))
    return generator.randrange(40_000_000, 60_000_000)


def write(moves: Iterator[Move], path: Path) -> None:
    """Keep a trace as lines of `slot,bytes`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{slot},{size}\n" for slot, size in moves))


def read(path: Path) -> list[Move]:
    """The trace in a file."""
    pairs = (line.split(",") for line in path.read_text().splitlines())
    return [(int(slot), int(size)) for slot, size in pairs]


class Pooled:
    """The pool of castiron."""

    def __init__(self) -> None:
        self._pool = pool.Pool()
        self._blocks: dict[int, pool.Block] = {}

    def rent(self, size: int) -> int:
        """Address of new memory."""
        block = self._pool.rent(size)
        self._blocks[block.address] = block
        return block.address

    def give(self, address: int, size: int) -> None:  # noqa: ARG002  the same for all three
        """Give the memory back."""
        self._blocks.pop(address).give()

    def report(self) -> str:
        """What the pool says of itself after the trace."""
        usage = self._pool.usage()
        return (
            f"pool: high water {usage.high_water / 1e6:.0f} MB, returned "
            f"{usage.returned / 1e6:.0f} MB, {usage.mapped / 1e6:.0f} MB mapped at the end"
        )


class Malloc:
    """malloc and free of the C library."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        self._malloc = libc.malloc
        self._malloc.restype = ctypes.c_void_p
        self._malloc.argtypes = (ctypes.c_size_t,)
        self._free = libc.free
        self._free.argtypes = (ctypes.c_void_p,)

    def rent(self, size: int) -> int:
        """Address of new memory."""
        address: int = self._malloc(size)
        return address

    def give(self, address: int, size: int) -> None:  # noqa: ARG002  the same for all three
        """Give the memory back."""
        self._free(address)


class Mapped:
    """mmap and munmap of the system."""

    def rent(self, size: int) -> int:
        """Address of new memory."""
        return memory.map_private(memory.round_up(size, memory.PAGE_BYTES))

    def give(self, address: int, size: int) -> None:
        """Give the memory back."""
        memory.unmap(address, memory.round_up(size, memory.PAGE_BYTES))


Allocator = Pooled | Malloc | Mapped


def play(moves: Sequence[Move], allocator: Allocator, use: Callable[[int, int], object]) -> float:
    """Mean microseconds for a pair of rent and return, with `use(address, size)` in between."""
    held: dict[int, tuple[int, int]] = {}
    start = time.perf_counter_ns()
    for slot, size in moves:
        if size < 0:
            allocator.give(*held.pop(slot))
        else:
            address = allocator.rent(size)
            use(address, size)
            held[slot] = (address, size)
    return (time.perf_counter_ns() - start) / 500 / len(moves)


def median_pair(moves: Sequence[Move], allocator: Allocator) -> float:
    """Microseconds of the median pair of rent and return; the memory is not used."""
    held: dict[int, tuple[int, int]] = {}
    spent: dict[int, int] = {}
    for slot, size in moves:
        start = time.perf_counter_ns()
        if size < 0:
            allocator.give(*held.pop(slot))
        else:
            held[slot] = (allocator.rent(size), size)
        spent[slot] = spent.get(slot, 0) + time.perf_counter_ns() - start
    return statistics.median(spent.values()) / 1000


def leave(address: int, size: int) -> None:
    """Do not touch the memory."""


def fill(address: int, size: int) -> None:
    """Write every byte."""
    ctypes.memset(address, 1, size)


def report(moves: Sequence[Move], rounds: int) -> str:
    """The table of all allocators, with its heading lines."""
    pooled = Pooled()
    names: dict[str, Allocator] = {"castiron pool": pooled, "malloc": Malloc(), "mmap": Mapped()}
    rows = []
    for name, allocator in names.items():
        middle = min(median_pair(moves, allocator) for _ in range(rounds))
        bare = min(play(moves, allocator, leave) for _ in range(rounds))
        written = min(play(moves, allocator, fill) for _ in range(rounds))
        rows.append([name, f"{middle:.2f}", f"{bare:.2f}", f"{written:.1f}"])
    head = ["rent + return, us for each pair", "median", "mean", "mean, every byte written"]
    lines = [
        *machine.description(),
        f"{len(moves) // 2} pairs, least of {rounds} rounds",
        "the pool's pages are present when it returns, those of the others on the first write",
    ]
    return table.with_heading([*lines, pooled.report()], table.markdown(head, rows))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--trace", type=Path, default=_TRACE)
    parser.add_argument("--seed", type=int, default=1, help="of a trace that is not there yet")
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    chosen = parser.parse_args(arguments)
    if not chosen.trace.exists():
        write(record(chosen.seed), chosen.trace)
    text = report(read(chosen.trace), chosen.rounds)
    print(text)
    if chosen.write:
        table.publish("pool", text)


if __name__ == "__main__":
    main()
