"""A kernel that does nothing but multiply and add in registers: the measure of a core's peak.

Every image carries it under the name ``castiron_peak``; ``profile`` and ``bench`` set the speed of
real kernels beside its own. One unit is ``abi.PEAK_FLOPS_PER_LANE`` operations in every lane.
"""

from __future__ import annotations

from castiron.compiler.codegen.loop import F32, Module, vector
from castiron.compiler.target import Target
from castiron.executable import abi

# Two units of four cycles latency need eight independent chains.
_CHAINS = abi.PEAK_FLOPS_PER_LANE // 2


def peak_text(target: Target) -> str:
    """The module that defines the probe for this target."""
    module = Module(target)
    f = module.kernel(abi.PEAK_SYMBOL)
    args, begin, end, _ = f.params
    type_ = vector(target.vector_lanes_f32, F32)
    place = f.argument(args, 0, "ptr")
    start = f.load(type_, place)
    factor = f.load(type_, place, target.vector_bytes)
    with f.loop(begin, end, carry=[start] * _CHAINS) as loop:
        loop.update([f.fma(chain, factor, start) for chain in loop.carried])
    total = loop.results[0]
    for chain in loop.results[1:]:
        total = total + chain
    f.store(total, place)
    f.return_()
    return module.text()
