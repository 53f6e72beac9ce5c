"""Concat and Split of short rows: one pass over all parts, instead of one pass for each.

With many rows (the pixels of a channels-last image) and few bytes of each part in a row, a pass
per part would touch every cache line of the whole several times. Here one unit is one row; the
bytes of every part are known, so that a row is a fixed sequence of loads and stores.
"""

from __future__ import annotations

from collections.abc import Sequence

from castiron.compiler.codegen import step
from castiron.compiler.codegen.kernels import strided
from castiron.compiler.codegen.loop import PTR, Module
from castiron.compiler.target import Target
from castiron.graph.graph import Extent
from castiron.tensor import dim as dims

_MOST_PARTS = 16
_MOST_ROW_BYTES = 4096
_CLAIM_BYTES = 128 << 10


def fits(rows: Extent, sizes_bytes: Sequence[Extent]) -> bool:
    """Whether parts of these many bytes in a row are worth one pass."""
    known = [int(size) for size in sizes_bytes if not isinstance(size, dims.Dim)]
    if rows == 1 or len(known) != len(sizes_bytes) or not 2 <= len(known) <= _MOST_PARTS:
        return False
    return 0 < sum(known) <= _MOST_ROW_BYTES


def join_step(
    name: str, whole: step.Write, parts: Sequence[tuple[step.Read, int]], rows: Extent,
    target: Target,
) -> step.Step:  # fmt: skip
    """``rows`` rows of all parts side by side; each part comes with its bytes in a row."""
    return _row_step(
        name, (whole, [part for part, _ in parts], [n for _, n in parts]), rows, target
    )


def split_step(
    name: str, whole: step.Read, parts: Sequence[tuple[step.Write, int]], rows: Extent,
    target: Target,
) -> step.Step:  # fmt: skip
    """The reverse of ``join_step``."""
    return _row_step(
        name, (whole, [part for part, _ in parts], [n for _, n in parts]), rows, target
    )


_Rows = tuple[step.Read | step.Write, Sequence[step.Read | step.Write], Sequence[int]]


def _row_step(name: str, data: _Rows, rows: Extent, target: Target) -> step.Step:
    whole, parts, sizes = data
    verb = "join" if isinstance(whole, step.Write) else "split"
    symbol = f"{verb}_{'_'.join(map(str, sizes))}"
    return step.Step(
        name=name,
        kernel=step.Kernel(symbol, _text(symbol, verb == "join", sizes, target)),
        operands=(whole, *parts),
        params=(),
        units=rows,
        grain=max(1, _CLAIM_BYTES // sum(sizes)),
        bytes_moved=dims.mul(rows, 2 * sum(sizes)),
    )


def _text(symbol: str, is_join: bool, sizes: Sequence[int], target: Target) -> str:
    module = Module(target)
    f = module.kernel(symbol)
    args, begin, end, _ = f.params
    total = sum(sizes)
    starts = [f.offset(f.argument(args, 0, PTR), begin * total)]
    for n, size in enumerate(sizes):
        starts.append(f.offset(f.argument(args, 1 + n, PTR), begin * size))
    with f.loop(begin, end, carry=starts) as row:
        whole, *parts = row.carried
        at = 0
        for part, size in zip(parts, sizes, strict=True):
            piece = f.offset(whole, at)
            to, source = (piece, part) if is_join else (part, piece)
            strided.move_bytes(f, to, source, size)
            at += size
        moved = [f.offset(part, size) for part, size in zip(parts, sizes, strict=True)]
        row.update([f.offset(whole, total), *moved])
    f.return_()
    return module.text()
