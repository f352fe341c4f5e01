"""`embodied-rl collect SUITE --out DIR`: record demonstrations of a scripted expert, or of a policy."""

from __future__ import annotations

import shlex

from embodied_rl.cli.parse import parse, value_of, with_tasks
from embodied_rl.cli.suites import as_positional
from embodied_rl.config.collect import CollectCommand
from embodied_rl.errors import UserError
from embodied_rl.factory.made_for import import_modules_of
from embodied_rl.utils.output import try_output


def main(argv: list[str]) -> int:
    """Run the command; 0 when the dataset is written, 130 when Ctrl-C stopped it."""
    import_modules_of(value_of(argv, "--expert"))
    command = parse(CollectCommand, as_positional(with_tasks(argv)), "collect")
    try_output("--out", command.out)
    if command.out.exists():
        raise UserError(f"{command.out} already exists; choose another --out or remove it")
    from embodied_rl.jobs.collect import run  # torch and the simulator, only now

    return 0 if run(command, shlex.join(["embodied-rl", "collect", *argv])) else 130
