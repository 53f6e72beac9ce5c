"""Strips keep their accumulators in registers: no spill inside a loop, at any height."""

from __future__ import annotations

import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble, loop, spills
from castiron.compiler.codegen.kernels import tiles, winograd
from tests.codegen.kernels.windows import Windows


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


@pytest.mark.parametrize("count", [16, 40])
def test_depthwise_tiles_of_nine_taps_do_not_spill(count: int) -> None:
    target = targets.named("avx512")
    for strides in ((1, 1), (2, 2)):
        case = Windows((1, 8, 8, count), count, group=count, strides=strides)
        text = case.lowered(target).steps[0].kernel.text
        assert spills.count_vector_spills(text, target, "tile_2x4") == 0


@pytest.mark.parametrize("target", [t for t in targets.ALL if t.num_vector_registers == 32])
def test_input_transforms_do_not_spill(target: targets.Target) -> None:
    for outputs in (2, 4):
        module = loop.Module(target)
        function = winograd.input_function(module, outputs)
        caller = module.kernel("caller")
        args = [caller.argument(caller.params[0], n, t) for n, t in enumerate(function.signature)]
        caller.call(function, args)
        caller.return_()
        text = module.text()
        assert spills.count_vector_spills(text, target, function.name) == 0


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 13, 49])
def test_the_heights_of_strips_differ_by_at_most_one(rows: int) -> None:
    for target in targets.ALL:
        cut = tiles.strips(target, tiles.Width(1), [rows])
        assert max(cut.heights) - min(cut.heights) <= 1
        assert max(cut.heights) <= cut.tallest
