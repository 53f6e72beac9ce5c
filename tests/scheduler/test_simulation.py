"""Thousands of random lanes with random work, in virtual time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies

from tests.scheduler import simulator

PER_CASE = 1000


@pytest.mark.parametrize("block", range(10))
def test_ten_thousand_random_simulations_hold_every_rule(block: int) -> None:
    for seed in range(block * PER_CASE, (block + 1) * PER_CASE):
        simulation = simulator.random_simulation(seed)
        try:
            simulation.run()
            simulation.check_results()
        except AssertionError as fault:
            fault.add_note(f"random_simulation({seed})")
            raise


@settings(max_examples=60, deadline=None)
@given(strategies.integers(min_value=100_000), strategies.integers(1, 80))
def test_longer_simulations_hold_them_too(seed: int, count: int) -> None:
    simulation = simulator.random_simulation(seed, count)
    simulation.run()
    simulation.check_results()
