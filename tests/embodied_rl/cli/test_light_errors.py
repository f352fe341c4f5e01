"""What is wrong with the words of a command is said before anything heavy is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from embodied_rl.cli import COMMANDS
from tests.embodied_rl.test_imports import ROOT

HEAVY = ("torch", "numba", "scipy", "transformers", "matplotlib", "ray")
ACTIONS = ("runs", "reward")
"""Commands whose first word is an action: they are also called without one, and with one and an unknown option."""
WORDS = [["nonsense"], *([name, "--nonsense"] for name in COMMANDS)]
WORDS += [words for name in ACTIONS for words in ([name], [name, "nonsense"])]
WORDS += [["runs", action, "--nonsense"] for action in ("list", "show", "compare", "rerun", "export")]
WORDS += [["train"], ["train", "nonsense"], ["train", "tabletop", "--nonsense"], ["bench"], ["assets"]]
PROGRAM = """
import json, sys
from embodied_rl.cli import main
for words in json.loads(sys.argv[1]):
    code = main(words)
    print(json.dumps([code, [name for name in json.loads(sys.argv[2]) if name in sys.modules]]))
"""


@pytest.mark.process
def test_wrong_words_are_refused_before_heavy_imports() -> None:
    """One after another in one process: what brings something heavy is the first line that names it."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(WORDS), json.dumps(HEAVY)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = dict(zip(map(" ".join, WORDS), map(json.loads, done.stdout.splitlines()), strict=True))
    assert {words: said for words, said in found.items() if said != [2, []]} == {}
    assert done.stderr.count("embodied-rl: error:") == len(WORDS)
