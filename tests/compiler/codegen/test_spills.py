"""Spills: counted where a tile is too big for its target, zero where it fits."""

from __future__ import annotations

import pytest

from castiron import errors
from castiron.compiler import target as targets
from castiron.compiler.codegen import spills

AVX512, AVX2, BASELINE, AARCH64 = targets.ALL


def tile_text(num_sums: int, lanes: int) -> str:
    """A loop that keeps `num_sums` vectors alive from turn to turn."""
    vector = f"<{lanes} x float>"
    indices = range(num_sums)
    joins = "\n".join(
        f"  %s{i} = phi {vector} [ zeroinitializer, %entry ], [ %t{i}, %loop ]" for i in indices
    )
    steps = "\n".join(
        f"""\
  %p{i} = getelementptr {vector}, ptr %row, i64 {i}
  %v{i} = load {vector}, ptr %p{i}, align 4
  %m{i} = fmul contract {vector} %v{i}, %w
  %t{i} = fadd contract {vector} %s{i}, %m{i}"""
        for i in indices
    )
    ends = "\n".join(
        f"""\
  %o{i} = getelementptr {vector}, ptr %y, i64 {i}
  store {vector} %t{i}, ptr %o{i}, align 4"""
        for i in indices
    )
    return f"""
define dso_local void @tile(ptr noalias %x, ptr noalias %y, i64 %k) nounwind {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
{joins}
  %row = getelementptr [{num_sums} x {vector}], ptr %x, i64 %i
  %b = getelementptr {vector}, ptr %y, i64 %i
  %w = load {vector}, ptr %b, align 4
{steps}
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %k
  br i1 %more, label %loop, label %done
done:
{ends}
  ret void
}}
"""


@pytest.mark.parametrize("target", targets.ALL, ids=lambda target: target.name)
def test_a_tile_that_fits_has_no_spills(target: targets.Target) -> None:
    text = tile_text(target.num_vector_registers - 8, target.vector_lanes_f32)
    assert spills.count_vector_spills(text, target, "tile") == 0


@pytest.mark.parametrize("target", targets.ALL, ids=lambda target: target.name)
def test_a_tile_too_big_for_the_registers_is_counted(target: targets.Target) -> None:
    text = tile_text(target.num_vector_registers + 6, target.vector_lanes_f32)
    assert spills.count_vector_spills(text, target, "tile") >= 12


def test_a_spill_outside_of_loops_does_not_count() -> None:
    assembly = """
tile:
\tvmovaps\t%zmm0, -64(%rsp)
.LBB0_1:
\tvaddps\t(%rsi,%rax), %zmm1, %zmm1
\tincq\t8(%rsp)
\tjb\t.LBB0_1
\tvmovaps\t-64(%rsp), %zmm0
\tretq
.Lfunc_end0:
"""
    assert spills.count_in_assembly(assembly, AVX512, "tile") == 0
    looped = assembly.replace("(%rsi,%rax)", "-64(%rsp)")
    assert spills.count_in_assembly(looped, AVX512, "tile") == 1


def test_a_function_that_is_not_there_is_an_error() -> None:
    with pytest.raises(errors.BuildError, match="expected a function other; found none"):
        spills.count_vector_spills(tile_text(2, 8), AVX2, "other")
