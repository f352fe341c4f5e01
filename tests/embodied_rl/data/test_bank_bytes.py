"""The start bank of a collection is the same file, whoever collected which episode after which."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from embodied_rl.config.train import EnvConfig
from embodied_rl.data import collect, start_bank, writer
from embodied_rl.data.layout import DatasetSpec
from embodied_rl.factory.demonstrations import open_bench
from embodied_rl.sim.libero.protocol import NATIVE
from embodied_rl.sim.tabletop import load_suite

TASKS = load_suite("tabletop_object")[:1]
PIXELS = 16
CONFIG = EnvConfig(renderer="raycast", render_quality="fast")


def collected(out: Path, dealt: Sequence[Sequence[int]]) -> bytes:
    """The bank that is collected where worker w runs the attempts `dealt[w]`, one after the other."""
    attempts = collect.plan({TASKS[0].name: range(3)}, 3, seed=4)
    partial = writer.begin(out, {})
    for keys in dealt:
        with ExitStack() as stack:
            bench = stack.enter_context(open_bench(TASKS, CONFIG, NATIVE, PIXELS, snapshots=True))
            spec = DatasetSpec(bench.env.info.cameras, PIXELS, tuple("abcdefgh"), tuple("abcdefg"))
            for key in keys:
                episode, reason = collect.record(bench, attempts[key], 0.02)
                assert reason == ""
                assert episode is not None
                writer.add_episode(partial, spec, episode)
    writer.finalize(out, spec, {})
    return (out / start_bank.FILE).read_bytes()


def test_the_bank_does_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    one = collected(tmp_path / "one", [[0, 1, 2]])
    assert collected(tmp_path / "two", [[0, 2], [1]]) == one
    assert collected(tmp_path / "other-way-round", [[2, 1, 0]]) == one
