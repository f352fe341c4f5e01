"""Writes docs/reference/cli.md and docs/reference/config.md: `python -m embodied_rl.cli.reference`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from embodied_rl.cli import COMMANDS
from embodied_rl.cli.help import EXAMPLES, Option, options
from embodied_rl.config.train import KINDS, TrainConfig, selectable

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reference"
CLASSES = {
    "view": "embodied_rl.cli.view:ViewCommand",
    "demo": "embodied_rl.cli.demo:DemoCommand",
    "eval": "embodied_rl.jobs.eval_request:BenchmarkCommand",
    "leaderboard": "embodied_rl.cli.leaderboard:LeaderboardCommand",
    "watch": "embodied_rl.cli.watch:WatchCommand",
    "explain": "embodied_rl.cli.explain:ExplainCommand",
    "collect": "embodied_rl.config.collect:CollectCommand",
    "sft": "embodied_rl.config.sft:SftCommand",
    "export": "embodied_rl.cli.export:ExportCommand",
    "serve": "embodied_rl.cli.serve:ServeCommand",
    "deploy": "embodied_rl.cli.deploy:DeployCommand",
    "plan": "embodied_rl.config.plan:PlanCommand",
    "bench": "embodied_rl.cli.bench:BenchCommand",
    "doctor": "embodied_rl.jobs.checks:DoctorConfig",
}
"""The dataclass of each command's options; `train` has the config's, `assets` has its own parser."""
FURTHER = {
    "export": {"export RECORDING": "embodied_rl.cli.export_recording:ExportRecordingCommand"},
    "runs": {
        f"runs {name.lower()}": f"embodied_rl.cli.runs:{name}{'Runs' if name == 'Export' else ''}Command"
        for name in ("List", "Show", "Compare", "Rerun", "Export")
    },
    "reward": {f"reward {name.lower()}": f"embodied_rl.cli.reward:{name}RewardCommand" for name in ("Train", "Card")},
    "doctor": {"doctor libero": "embodied_rl.jobs.checks:LiberoDoctorConfig"},
}
"""Forms of a command that have options of their own."""
_NOTE = "<!-- Made by `python -m embodied_rl.cli.reference`: change the texts in the code, then run it again. -->\n"
_OF_THE_MACHINE = {"workers": "one a CPU core"}
"""Defaults that differ from machine to machine."""


def cli_page() -> str:
    """Every command with its options and examples."""
    parts = [
        _NOTE,
        "# Command line\n",
        "Every command explains itself with `--help`; `--help-all` adds expert options.\n",
    ]
    for name, summary in COMMANDS.items():
        parts.append(f"## `embodied-rl {name}`\n\n{summary[0].upper()}{summary[1:]}.\n")
        parts.append("```sh\n" + "\n".join(f"{line}  # {text}" for line, text in EXAMPLES[name]) + "\n```\n")
        if name in CLASSES:
            parts += _tables(options_class(name))
        for title, dotted in FURTHER.get(name, {}).items():
            parts.append(f"### `embodied-rl {title}`\n\n{_first(named(dotted))}\n")
            parts += _tables(named(dotted))
    parts.append(
        "The options of `train` are the keys of its [configuration](config.md), written `--learner.lr 1e-4`.\n"
    )
    return "\n".join(parts)


def options_class(command: str) -> type:
    """The dataclass of a command's options."""
    return named(CLASSES[command])


def named(dotted: str) -> type:
    """The class of a name such as 'package.module:Class'."""
    module, _, name = dotted.partition(":")
    return getattr(importlib.import_module(module), name)


def config_page() -> str:
    """Every key of a run's config.yaml, for every kind of policy, algorithm and scheduler."""
    base = TrainConfig()
    parts = [
        _NOTE,
        "# Configuration\n",
        "A run writes its whole configuration to `config.yaml`, and `--config FILE` reads one; keys that a file leaves "
        "out keep the recipe's values. On the command line `lr` of `learner` is `--learner.lr`. Defaults below are "
        "those of the classes: a recipe changes some. `*` marks what only `--help-all` shows.\n",
    ]
    for title, text, rows in options(base):
        if title not in KINDS:
            heading = "Top level" if title == "options" else f"`{title}`"
            parts.append(f"## {heading}\n\n{text}{text and chr(10) * 2}{_table(rows, f'{title}.')}")
            continue
        for kind in selectable(title):
            cls = KINDS[title][kind]
            parts.append(f"## `{title}`, `name: {kind}`\n\n{_first(cls)}\n\n{_table(_rows(title, cls), f'{title}.')}")
    return "\n".join(parts)


def write() -> None:
    """Write both pages."""
    DOCS.mkdir(parents=True, exist_ok=True)
    (DOCS / "cli.md").write_text(cli_page(), encoding="utf-8")
    (DOCS / "config.md").write_text(config_page(), encoding="utf-8")


def _tables(cls: type) -> Iterator[str]:
    for title, text, rows in options(cls):
        heading = "" if title == "options" else f"**{title.rstrip('.')}**{': ' if text else ''}{text}\n\n"
        yield heading + _table(rows, "")


def _rows(part: str, cls: Any) -> list[Option]:
    return [dataclasses.replace(row, name=f"{part}.{row.name}") for _, _, rows in options(cls()) for row in rows]


def _table(rows: Sequence[Option], prefix: str) -> str:
    """prefix: what is cut off the names, which are then keys of a YAML file; '': they are options."""
    head = "| key | type | default | |\n|---|---|---|---|" if prefix else "| option | default | |\n|---|---|---|"
    lines = [head]
    for row in rows:
        default = _OF_THE_MACHINE.get(row.name, f"`{row.default}`" if row.default else "")
        key = f"`{row.name.removeprefix(prefix).replace('-', '_')}`{'*' if row.expert else ''}"
        cells = (key, row.value or "on|off", default, row.text) if prefix else (f"`{row.flag}`", default, row.text)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _first(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


if __name__ == "__main__":
    write()
