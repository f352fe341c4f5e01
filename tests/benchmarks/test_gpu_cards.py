"""The one-GPU cards of docs/scale.md: the table is what the file of counts gives, and the counts are the policies'."""

from __future__ import annotations

from dataclasses import replace

import pytest

from embodied_rl.autotune.memory import GIB
from embodied_rl.benchmarks.lab.gpu_cards import CARDS, PAGE, POLICIES, batch, count, main, read, table, written
from embodied_rl.errors import UserError


def test_the_committed_table_is_what_the_command_writes() -> None:
    page, counted = PAGE.read_text(encoding="utf-8"), read()
    assert set(counted) <= set(POLICIES)
    assert written(page, table(counted)) == page
    first = next(iter(counted))
    other = counted | {first: replace(counted[first], weights=counted[first].weights + GIB)}
    assert written(page, table(other)) != page


def test_what_a_card_says_fits() -> None:
    for name, each in read().items():
        for gib in CARDS:
            rows, envs = batch(each, gib)
            assert rows == 0 or rows & (rows - 1) == 0, name
            if rows and envs:
                assert each.total(rows, envs) <= gib * GIB, name


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UserError, match="unknown policy 'pi1'"):
        main(["pi1"])


def test_weights_and_gradients_are_those_of_the_policy_today(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest of them, without its passes, which take a minute."""
    monkeypatch.setattr("embodied_rl.policies.memory.peak_bytes", lambda policy, rows, *, train: 0)
    found, filed = count("SmolVLA"), read()["SmolVLA"]
    assert (found.weights, found.gradients, found.cache_row) == (filed.weights, filed.gradients, filed.cache_row)
    assert found.row != filed.row
