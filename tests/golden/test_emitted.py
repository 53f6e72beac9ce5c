"""The emitted LLVM text is what it was; see ``emitted.py`` for how to accept a change."""

from __future__ import annotations

import pytest

from castiron.compiler import target as targets
from castiron.compiler.codegen import assemble
from tests.golden import emitted


def test_every_graph_emits_on_every_target_what_it_emitted_before() -> None:
    known = emitted.DIGESTS.read_text().splitlines()
    changed = [line.rsplit(" ", 1)[0] for line in emitted.digests() if line not in known]
    assert changed == [], "if that was meant, run python -m tests.golden.emitted"
    assert len(known) == len(emitted.MODELS) * len(targets.ALL)


@pytest.mark.parametrize("model, target", emitted.WHOLE)
def test_whole_texts_are_what_they_were(model: str, target: str) -> None:
    kept = emitted.whole_path(model, target).read_text()
    assert "".join(emitted.texts(model, target)) == kept


@pytest.mark.parametrize("model, target", emitted.WHOLE)
def test_whole_texts_are_short_enough_to_read_and_compile(model: str, target: str) -> None:
    (text,) = emitted.texts(model, target)
    assert len(text.splitlines()) < 250
    (found,) = assemble.compile_kernels([text], targets.named(target), workers=0)
    assert len(found.exported()) == 1
