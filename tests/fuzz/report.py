"""What a run of the fuzzer found: counts, complaints, memory; the same over both protocols."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """Counts by status and by family, and every complaint with the number of its case."""

    codes: collections.Counter[str] = field(default_factory=collections.Counter)
    families: collections.Counter[str] = field(default_factory=collections.Counter)
    complaints: list[str] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)
    longest_s: float = 0.0
    took_s: float = 0.0

    def text(self) -> str:
        """For people."""
        total = sum(self.families.values())
        rate = total / self.took_s if self.took_s else 0.0
        lines = [f"{total} cases in {self.took_s:.1f} s, {rate:.0f} a second"]
        lines.append(f"the longest took {self.longest_s:.1f} s")
        lines += [f"  {code:>20} {count}" for code, count in sorted(self.codes.items())]
        lines.append("resident MB: " + " ".join(str(size >> 20) for size in self.rss_bytes))
        lines += [f"! {line}" for line in self.complaints[:20]]
        if len(self.complaints) > 20:
            lines.append(f"! and {len(self.complaints) - 20} more")
        return "\n".join(lines)


async def side_by_side(
    numbers: Iterable[int], judged: Callable[[int], Awaitable[None]], most: int
) -> None:
    """Judge the cases of these numbers, so many at a time."""
    waiting = iter(numbers)

    async def work() -> None:
        for number in waiting:
            await judged(number)

    await asyncio.gather(*(work() for _ in range(most)))
