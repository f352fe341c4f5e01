"""What a person sees while an arm runs: state, latency, limits hit, the last hold and intervention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from embodied_rl.real_robot.deploy.episodes import Episode
from embodied_rl.real_robot.ros2.preflight import Check

_COLOURS = {"running": "bold green", "human": "bold cyan", "holding": "bold yellow", "e-stopped": "bold white on red"}


def dashboard(status: Mapping[str, Any], episodes: Sequence[Episode], note: str, ignored: str = "") -> Table:
    """The bridge's status as a table.

    Args:
        status: What the bridge publishes on ~/status; empty before the first.
        episodes: Those that are over.
        note: The last line.
        ignored: What was heard and left out, if anything.
    """
    table = Table(show_header=False, title="embodied-rl deploy", expand=True)
    table.add_column(style="bold", width=14)
    table.add_column()
    if not status:
        table.add_row("bridge", "not heard yet")
        return table
    state = str(status["state"])
    table.add_row("state", Text(f" {state} ", style=_COLOURS.get(state, "bold")) + Text(f"  {status['mode']}"))
    table.add_row("instruction", Text(status["instruction"]))  # no markup: whatever words somebody publishes
    counts = f"{status['answers']} answers, {status['unused']} not used, {status['errors']} errors"
    table.add_row("policy", Text(f"{status['policy']}; {counts}"))
    table.add_row("answers", f"{_times(status['answer_ms'])}; {status['delay_steps']} control steps late")
    acting = "" if status["acting"] is None else f", {status['acting']:.0%} of them with an action"
    table.add_row("control", f"tick {_times(status['tick_ms'])}; step every {_times(status['step_ms'])}{acting}")
    flows = [f"{name} {flow['rate_hz']:.0f} Hz, {flow['age_ms']:.0f} ms" for name, flow in status["flows"].items()]
    table.add_row("inputs", Text("; ".join(flows)))
    table.add_row("gate", Text(_counts(status["outcomes"]) + _hit(status["reasons"])))
    faults = status["faults"]
    table.add_row("faults", Text("; ".join(faults) or "none", style="yellow" if faults else ""))
    if status["warnings"]:
        table.add_row("warnings", Text("; ".join(status["warnings"]), style="yellow"))
    last = f", last: {status['last_hold']}" if status["last_hold"] else ""
    table.add_row("holds", Text(f"{status['holds']}{last}"))
    table.add_row("takeovers", _interventions(status))
    if status["detector"] is not None:
        table.add_row("detector", Text(f"{status['detector']['name']}; {_alarms(status['detector']['alarms'])}"))
    if status["recording"] is not None:
        table.add_row("recording", _recording(status["recording"]))
    if episodes and status["mode"] == "live":
        won = sum(episode.success for episode in episodes)
        table.add_row("episodes", f"{won} of {len(episodes)} succeeded")
    if ignored:
        table.add_row("not read", Text(ignored, style="yellow"))
    if note:
        table.add_row("", Text(note, style="dim"))
    return table


def _alarms(decisions: Sequence[int]) -> str:
    return f"alarm at decision {', '.join(map(str, decisions))}" if decisions else "no alarm in this episode"


def _recording(recording: Mapping[str, Any]) -> Text:
    lost = f", {recording['dropped']} events lost" if recording["dropped"] else ""
    words = f"{recording['file']}{lost}" + (f": {recording['problem']}" if recording["problem"] else "")
    return Text(words, style="bold red" if recording["problem"] else "yellow" if lost else "")


def checklist(checks: Sequence[Check]) -> Table:
    """The checks before the arm is armed."""
    table = Table(title="before the arm is armed")
    for column in ("check", "", "found"):
        table.add_column(column)
    for check in checks:
        mark = Text("ok", style="green") if check.passed else Text("NO", style="bold red")
        table.add_row(Text(check.name), mark, Text(check.detail))
    return table


def _times(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['p50']:.0f} ms ({spread['p99']:.0f} at p99)"


def _counts(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "no command yet"


def _hit(reasons: Mapping[str, int]) -> str:
    most = sorted(reasons.items(), key=lambda item: -item[1])[:4]
    return "; limits hit: " + ", ".join(f"{kind} {count}" for kind, count in most) if most else ""


def _interventions(status: Mapping[str, Any]) -> str:
    count, since_s = status["interventions"], status["since_intervention_s"]
    return f"{count}, the last {since_s:.0f} s ago" if count and since_s is not None else "none"
