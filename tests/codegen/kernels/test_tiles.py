"""Strips keep their accumulators in registers: no spill inside a loop, at any height."""

from __future__ import annotations

import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, loop, spills
from castiron.compiler.codegen.kernels import tiles


@pytest.mark.parametrize("target", targets.ALL, ids=lambda item: item.name)
@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
def test_the_tallest_strips_do_not_spill(target: targets.Target, nested: bool) -> None:
    for vectors in range(1, tiles.widest(target) + 1):
        module = loop.Module(target)
        micro = tiles.Micro(nested=nested, has_bias=True)
        width = tiles.Width(vectors)
        rows = tiles.most_rows(target, vectors)
        function = tiles.strip(module, micro, width, rows)
        caller = module.kernel("caller")
        args = [caller.argument(caller.params[0], n, t) for n, t in enumerate(function.signature)]
        caller.call(function, args)
        caller.return_()
        assembly = assemble.emit_assembly(module.text(), target)
        found = spills.count_in_assembly(assembly, target, function.name)
        assert found == 0, f"{function.name} on {target.name}"
