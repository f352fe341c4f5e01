"""What `--help` shows and hides, and that the reference pages are those of the code."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Iterator

import pytest

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.cli import COMMANDS, main, reference
from embodied_rl.cli.help import EXAMPLES, Option, field_texts, help_text, options
from embodied_rl.cli.parse import flag_words, flags
from embodied_rl.cli.select import select
from embodied_rl.config.train import KINDS, TrainConfig, selectable
from embodied_rl.jobs.eval_request import BenchmarkCommand

PARTS = ("policy", "algorithm", "scheduler")


def kinds_of_runs() -> Iterator[tuple[str, ...]]:
    """Benchmark, policy, algorithm, scheduler: each of their names at least once; parts do not see each other."""
    names = [selectable("policy"), *(list(KINDS[part]) for part in PARTS[1:])]
    for index in range(max(map(len, names), default=0)):
        policy, algorithm, scheduler = (of_part[index % len(of_part)] for of_part in names)
        if algorithm in ("imitate", "steer"):  # they store their episodes, and run in turn
            scheduler = "serial"
        if policy == "mlp":  # its recipes have one algorithm
            yield "gymnasium", policy, "ppo", scheduler
        else:
            yield "tabletop", policy, algorithm, scheduler


MOST = 45
"""Options that a newcomer is shown."""


def shown(words: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    assert main(words.split()) == 0
    return set(re.findall(r"^  --([a-z0-9.-]+)", capsys.readouterr().out.partition("\noptions:")[2], re.MULTILINE))


def experts(source: object) -> set[str]:
    return {row.name for _, _, rows in options(source) for row in rows if row.expert}


@pytest.mark.parametrize(("benchmark", *PARTS), list(kinds_of_runs()))
def test_help_of_train_is_bounded_and_help_all_is_whole(
    benchmark: str, policy: str, algorithm: str, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"train {benchmark} --policy {policy} --algorithm {algorithm} --scheduler {scheduler}"
    few = shown(f"{words} --help", capsys)
    assert 25 < len(few) <= MOST
    config = select(words.split()[1:]).config
    assert config is not None
    assert not few & experts(config)
    known = {flag[2:] for flag in flags(config) if ".no-" not in flag and not flag.startswith("--no-")}
    assert shown(f"{words} --help-all", capsys) == known


def test_no_combination_shows_more_than_a_newcomer_can_read() -> None:
    """The most of each part together: the test above renders a few of the combinations."""

    def few(rows: Iterable[Option]) -> int:
        return sum(not row.expert for row in rows)

    most = sum(few(rows) for title, _, rows in options(TrainConfig()) if title not in PARTS)
    for part in PARTS:
        of_kinds = [[row for _, _, rows in options(KINDS[part][kind]()) for row in rows] for kind in selectable(part)]
        most += max(map(few, of_kinds))
    assert 25 < most <= MOST


def test_help_of_eval_shows_how_frames_are_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    few = shown("eval libero --help", capsys)
    hidden = experts(BenchmarkCommand())
    assert few & hidden == {"env.render-quality"} == shown("eval --help", capsys) & hidden
    assert "env.render-quality" not in shown("eval metaworld --help", capsys), "its tasks have a state and no pictures"


def test_hidden_options_are_accepted() -> None:
    words = "tabletop --learner.betas 0.8 0.9 --algorithm.value-clip 0.3 --algorithm.no-bootstrap-truncated"
    config = select(words.split()).config
    assert config is not None
    assert config.learner.betas == (0.8, 0.9)
    assert isinstance(config.algorithm, PPOConfig)
    assert config.algorithm.value_clip == 0.3
    assert not config.algorithm.bootstrap_truncated


def test_an_option_of_another_name_is_told_its_name_of_today(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tabletop", "--reward.alone"]) == 2
    assert capsys.readouterr().err == "embodied-rl: error: --reward.alone is --reward.replace-env-reward now.\n"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_help_has_examples_of_options_that_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    text = capsys.readouterr().out
    for line, _ in EXAMPLES[name]:
        assert line in text
        assert shlex.split(line)[:2] == ["embodied-rl", name]
        if name in reference.CLASSES:
            known = flags(reference.options_class(name)) | {"--resume"}
            known |= {
                flag for dotted in reference.FURTHER.get(name, {}).values() for flag in flags(reference.named(dotted))
            }
            assert set(flag_words(shlex.split(line))) <= known


@pytest.mark.parametrize("line", [line for line, _ in EXAMPLES["train"]])
def test_the_examples_of_train_are_understood(line: str) -> None:
    assert select(shlex.split(line)[2:])


@pytest.mark.parametrize("name", sorted(reference.CLASSES))
def test_a_sections_title_ends_in_a_colon_alone(name: str) -> None:
    shown = help_text(reference.options_class(name), name, everything=True)
    assert [line for line in shown.splitlines() if line.endswith(".:")] == []


def test_help_fits_80_columns(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        long = [line for line in capsys.readouterr().out.splitlines() if len(line) > 80]
        assert not long


def test_every_option_says_what_it_does() -> None:
    for source in [TrainConfig, *(cls for kinds in KINDS.values() for cls in kinds.values())]:
        missing = {item.name for item in dataclasses.fields(source)} - set(field_texts(source))
        assert missing <= {
            "env",
            "reward",
            "policy",
            "algorithm",
            "rollout",
            "learner",
            "scheduler",
            "evaluation",
            "checkpoint",
            "guard",
        }


@pytest.mark.parametrize(("name", "text"), [("cli.md", reference.cli_page), ("config.md", reference.config_page)])
def test_the_reference_is_up_to_date(name: str, text: object) -> None:
    assert callable(text)
    written = (reference.DOCS / name).read_text(encoding="utf-8")
    assert written == text(), "run: python -m embodied_rl.cli.reference"
