"""`embodied-rl doctor`: what this machine can run, with which renderer and why, and what to do about the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields

from embodied_rl.cli.parse import parse
from embodied_rl.errors import UserError
from embodied_rl.jobs.checks import CheckResult, DoctorConfig


def main(argv: list[str]) -> int:
    """Run `embodied-rl doctor`, or `embodied-rl doctor libero`; 1 where something must be done first, else 0."""
    if argv[:1] == ["libero"]:
        from embodied_rl.cli import doctor_libero

        return doctor_libero.main(argv[1:])
    config = parse(DoctorConfig, argv, "doctor")
    if config.policy is not None:
        from embodied_rl.jobs.check_policy import check_policy

        return report(check_policy(config), "this policy can", as_json=config.json)
    for field in fields(config):
        if field.name != "json" and getattr(config, field.name) != field.default:
            raise UserError(f"--{field.name.replace('_', '-')} describes a policy: name it with --policy.")
    from embodied_rl.jobs.doctor import check_machine

    return report(check_machine(), "training can", as_json=config.json)


def report(results: Sequence[CheckResult], subject: str, *, as_json: bool = False) -> int:
    """Print check results; 1 when something must be done first, else 0. subject: what can run then, with its verb."""
    if as_json:
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        _print_table(results, subject)
    return 1 if any(result.state == "problem" for result in results) else 0


def _print_table(results: Sequence[CheckResult], subject: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "note": "yellow", "problem": "bold red"}
    table = Table("what", "state", "found", "what to do")
    for column in table.columns:
        column.overflow = "fold"  # paths are wrapped, not cut
    for row in results:
        state = Text(row.state, style=colours[row.state])
        table.add_row(Text(row.name), state, Text(row.found), Text(row.advice))
    console = Console()
    console.print(table)
    problems = [row.name for row in results if row.state == "problem"]
    console.print(Text(f"{subject}not run yet: {', '.join(problems)}" if problems else f"{subject} run"))
