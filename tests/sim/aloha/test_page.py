"""What docs/aloha.md shows in Python, and what an evaluation of ALOHA says of itself."""

from __future__ import annotations

import mujoco
import pytest

from embodied_rl.config.env import AlohaConfig
from embodied_rl.factory.suites import load
from embodied_rl.jobs.fingerprint import fingerprint
from tests.sim.aloha.there import needs_aloha
from tests.test_docs_snippets import ROOT, snippets

pytestmark = [needs_aloha(), pytest.mark.process]


def test_the_pages_snippet_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = snippets(ROOT / "docs" / "aloha.md")
    exec(snippet, {})
    assert capsys.readouterr().out.strip() == snippet.partition("#")[2].strip()


def test_an_evaluation_is_stamped_with_whose_scenes_it_ran() -> None:
    said = fingerprint(load("aloha_transfer_cube", (), AlohaConfig()), AlohaConfig(), "", "cpu", "", None)["simulator"]
    assert said.startswith(f"gym-aloha 0.1.5, mujoco {mujoco.__version__}, renderer auto, step_reward")
