"""Rules: patterns of models, actions, and what is hidden or forbidden."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from castiron import errors
from castiron.server import status
from castiron.server.security import rights

ALPHABET = st.text("ab*", max_size=8)


@given(ALPHABET, st.text("ab", max_size=12))
def test_a_pattern_fits_as_the_same_regular_expression_does(pattern: str, name: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert rights.fits(pattern, name) == (re.fullmatch(expression, name, re.DOTALL) is not None)


def test_only_the_star_is_special_and_case_counts() -> None:
    assert rights.fits("resnet-*", "resnet-50")
    for pattern, name in (("a?c", "abc"), ("[ab]", "a"), ("A", "a"), ("a.c", "abc"), ("a", "a\n")):
        assert not rights.fits(pattern, name)


def test_a_long_hostile_pattern_takes_no_time() -> None:
    assert not rights.fits("a*" * 120 + "b", "a" * 60_000)


def grant(*rules: tuple[list[str], list[str]]) -> rights.Grant:
    claim = [{"models": models, "actions": actions} for models, actions in rules]
    return rights.Grant("someone", rights.rules_of(claim))


def test_rules_add_up_and_do_not_mix() -> None:
    found = grant((["a*"], ["infer"]), (["b"], ["metadata"]))
    assert found.allows("abc", "infer") and found.allows("b", "metadata")
    for model, action in (("abc", "metadata"), ("b", "infer"), ("b", "admin"), ("c", "infer")):
        assert not found.allows(model, action)
    assert [found.sees(model) for model in ("abc", "b", "c")] == [True, True, False]
    assert not found.allows_all("infer")
    assert grant((["x", "*"], ["infer"])).allows_all("infer")


def test_what_is_not_named_is_not_there_and_what_is_named_may_be_forbidden() -> None:
    found = grant((["a"], ["infer"]))
    found.require("a", "infer")
    with pytest.raises(errors.ModelNotFound, match="model 'b' is not served here"):
        found.require("b", "infer")
    with pytest.raises(status.Refusal) as refused:
        found.require("a", "metadata")
    assert refused.value.code == 403
    assert b'error="insufficient_scope"' in refused.value.headers[0][1]


def test_no_claim_is_no_right() -> None:
    claims: list[Any] = [None, []]
    for claim in claims:
        assert not rights.Grant("someone", rights.rules_of(claim)).sees("a")


def test_many_models_asked_for_are_not_remembered_without_end() -> None:
    found = grant((["*"], ["infer"]))
    for number in range(5000):
        assert found.allows(f"m{number}", "infer")
        assert not found.allows(f"m{number}", "admin")
    assert len(found._known) < 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["models", "actions", "x"]), inner, max_size=3)
    ),
)


@given(JSON)
def test_any_claim_is_read_or_refused(claim: object) -> None:
    try:
        rules = rights.rules_of(claim)
    except rights.RightsFault:
        return
    assert all(rule.actions <= set(rights.ACTIONS) for rule in rules)
