"""Vectorised draws have the bits of one NumPy generator a row, whatever else is in the batch."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from embodied_rl import rng as rng_module
from embodied_rl.rng import DECISIONS, DataStream, DecisionRng, EpisodeStream, FixedSeed, RunStream, TwinStream, philox
from embodied_rl.types import Array

COUNTS = (1, 2, 7, 8, 9, 28, 128)
LARGEST = 2**63 - 1
WORDS = st.one_of(st.integers(0, 3), st.integers(0, LARGEST), st.sampled_from([2**32 - 1, 2**32, LARGEST]))


def by_row(seed: Array, decision: Array, count: int, normal: bool) -> Array:
    rows = [philox(int(s), int(d), int(normal)) for s, d in zip(seed, decision, strict=True)]
    return np.stack([(r.standard_normal if normal else r.random)(count, dtype=np.float32) for r in rows])


def bits(values: Array) -> Array:
    assert values.dtype == np.float32
    return values.view(np.uint32)


def draw(seed: Array, decision: Array, count: int, normal: bool) -> Array:
    rng = DecisionRng(seed, decision)
    return rng.normal(count) if normal else rng.uniform(count)


@pytest.mark.parametrize("normal", [False, True])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_keys_give_the_bits_of_numpys_generators(data: st.DataObject, normal: bool) -> None:
    rows = data.draw(st.integers(1, 80))
    seed, decision = (data.draw(arrays(np.int64, rows, elements=WORDS)) for _ in range(2))
    count = data.draw(st.integers(0, 140))
    np.testing.assert_array_equal(
        bits(draw(seed, decision, count, normal)), bits(by_row(seed, decision, count, normal))
    )


@pytest.mark.parametrize("normal", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_many_rows_with_every_step_of_the_ziggurat(count: int, normal: bool) -> None:
    """Enough rows that wedges, rejections and the tail of the normal distribution all occur."""
    random = np.random.default_rng(count)
    seed, decision = random.integers(0, LARGEST, 3000), random.integers(0, 2000, 3000)
    drawn = draw(seed, decision, count, normal)
    np.testing.assert_array_equal(bits(drawn), bits(by_row(seed, decision, count, normal)))
    assert not normal or count < 28 or np.abs(drawn).max() > 3.66, "no draw from the tail: the test shows nothing"


@pytest.mark.parametrize("normal", [False, True])
def test_a_row_is_the_same_alone_and_in_a_batch(normal: bool) -> None:
    seed, decision = np.arange(200), np.arange(200) % 7
    together = draw(seed, decision, 9, normal)
    for part in (slice(0, 1), slice(5, 6), slice(0, 31), slice(40, 140)):
        np.testing.assert_array_equal(bits(draw(seed[part], decision[part], 9, normal)), bits(together[part]))


def test_few_rows_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vectorised path does the work: NumPy draws the tail, about one number in 4,000."""
    left: list[int] = []

    def counted(seeds: Array, decisions: Array, count: int, *, normal: bool) -> Array:
        left.append(len(seeds))
        return by_row(seeds, decisions, count, normal)

    monkeypatch.setattr(rng_module, "_draw_by_row", counted)
    seed = np.arange(4096)
    draw(seed, seed, 7, False)
    draw(seed, seed, 7, True)
    assert len(left) == 1
    assert 0 < left[0] < 60


@pytest.mark.parametrize(("name", "value"), [("_ROUNDS", 9), ("_MARGIN", -(2.0**20)), ("_KEY", 0x5EEC)])
def test_a_broken_generator_is_found(monkeypatch: pytest.MonkeyPatch, name: str, value: float) -> None:
    seed = np.arange(1000)
    expected = [by_row(seed, seed, 28, normal) for normal in (False, True)]
    monkeypatch.setattr(rng_module, name, value)
    drawn = [draw(seed, seed, 28, normal) for normal in (False, True)]
    assert any((bits(a) != bits(b)).any() for a, b in zip(drawn, expected, strict=True))


SOURCES = Path(rng_module.__file__).parents[1]
TABLES = (EpisodeStream, RunStream, DataStream, TwinStream)
BY_HAND = {
    "embodied_rl/rng.py": 1,  # a decision's draws
    "embodied_rl/data/collect.py": 1,  # seeds of a collection's attempts, by task and attempt
    "sim/gymnasium/probe.py": 1,  # by initial state
    "sim/tabletop/initial_states.py": 1,  # seeds of their own, by the suite's hash
    "sim/perturb/visual.py": 1,  # by bodies, under a seed that is drawn for them alone
    "sim/maniskill/tasks.py": 1,  # fixed seeds, which stand for their only streams
    "sim/envpool/tasks.py": 1,
    "sim/metaworld/tasks.py": 1,
    "policies/flow.py": 2,
    "embodied_rl/jobs/verify_export.py": 1,  # what an export is tried on
}


def test_streams_of_one_kind_of_seed_never_meet() -> None:
    """Their first counters differ, and an episode's lie beyond all of its decisions."""
    for table in TABLES:
        assert len(table.__members__) == len(set(map(int, table))), "an alias would be the same stream"
    assert min(EpisodeStream) >= DECISIONS
    assert len(set(FixedSeed)) == len(FixedSeed.__members__)
    numbers = sorted({int(stream) % 2**16 for stream in EpisodeStream} | {1761, 1762, 0x100C, 0x9417, 0xDA27, 0x6BA5})
    rng = DecisionRng(np.full(len(numbers), 7), np.array(numbers))
    drawn = [*rng.uniform(4), *rng.normal(4), *(philox(7, each).random(4, np.float32) for each in EpisodeStream)]
    drawn += [philox(7, each).standard_normal(4, np.float32) for each in EpisodeStream]
    assert len({values.tobytes() for values in drawn}) == len(drawn)


def test_every_stream_is_in_a_table() -> None:
    """No generator is made from a counter that stands somewhere else."""
    names, found = {table.__name__ for table in TABLES}, dict.fromkeys(BY_HAND, 0)
    for folder in ("embodied_rl", "sim", "policies", "real_robot"):
        for path in sorted((SOURCES / folder).glob("**/*.py")):
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not (isinstance(call, ast.Call) and ast.unparse(call.func) in ("philox", "rng.philox")):
                    continue
                stream = ast.unparse(call.args[1]) if len(call.args) > 1 else ""
                if stream.split(".")[0].split("[")[0] not in names:
                    name = str(path.relative_to(SOURCES))
                    assert name in BY_HAND, f"{name}:{call.lineno} draws from no stream of rng.py"
                    found[name] += 1
    assert found == BY_HAND
