"""The learning curve: success, or the mean return, against training episodes, with 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embodied_rl.telemetry.plots import Line, Plot


@dataclass(frozen=True, slots=True)
class Curve:
    """episodes: training episodes before each point. held_out: (rate, low, high); rollout: success while training.

    by_return: both are mean returns, of tasks without a success flag.
    """

    held_out_episodes: list[float]
    held_out: list[tuple[float, float, float]]
    rollout_episodes: list[float]
    rollout: list[float]
    by_return: bool = False


def curve_of(rows: Sequence[Mapping[str, Any]]) -> Curve:
    """Read the curve from the lines of a metrics file.

    A line with `rollout/episodes` adds to the episodes so far; an evaluation on the same line came after that update.
    """
    by_return = not any("eval/success" in row for row in rows) and any("eval/return" in row for row in rows)
    rollout, held_out = ("rollout/reward", "eval/return") if by_return else ("rollout/success", "eval/success")
    curve, seen = Curve([], [], [], [], by_return), 0.0
    for row in rows:
        if row.get("rollout/episodes") is not None:
            seen += row["rollout/episodes"]
            curve.rollout_episodes.append(seen)
            curve.rollout.append(row[rollout])
        if row.get(held_out) is not None:
            curve.held_out_episodes.append(seen)
            curve.held_out.append((row[held_out], row[f"{held_out}_ci_low"], row[f"{held_out}_ci_high"]))
    return curve


def plots_of(rows: Sequence[Mapping[str, Any]]) -> list[Plot]:
    """What a run's page draws: success (or the mean return), and whether the update is sound.

    rows: lines of a metrics file. A quantity that no line has is left out, as a critic's is where there is none.
    """
    curve = curve_of(rows)
    held_out = [(x, *point) for x, point in zip(curve.held_out_episodes, curve.held_out, strict=True)]
    rollout = list(zip(curve.rollout_episodes, curve.rollout, strict=True))
    lines = [Line("held-out states, with 95 % intervals", held_out), Line("training rollouts", rollout, faint=True)]
    title = "Mean return" if curve.by_return else "Success"
    plots = [Plot(title, lines, rates=not curve.by_return, large=True, x_label=_x_label(rows))]
    for name, title, note in _OF_UPDATES:
        points, seen = [], 0.0
        for row in rows:
            seen += row.get("rollout/episodes") or 0.0
            if row.get(name) is not None:
                points.append((seen, row[name]))
        plots.append(Plot(title, [Line(title, points)], note))
    return [plot for plot in plots if any(line.points for line in plot.lines)]


def robot_time(rows: Sequence[Mapping[str, Any]]) -> str:
    """'60 episodes are 7.5 minutes of the robot's time', of training; '' where no line says how long episodes took."""
    minutes = [row["rollout/robot_minutes"] for row in rows if row.get("rollout/robot_minutes") is not None]
    episodes = sum(row.get("rollout/episodes") or 0.0 for row in rows)
    return f"{episodes:.0f} episodes are {sum(minutes):.1f} minutes of the robot's time" if minutes else ""


def _x_label(rows: Sequence[Mapping[str, Any]]) -> str:
    return f"training episodes; {said}" if (said := robot_time(rows)) else Plot("", ()).x_label


_OF_UPDATES = (
    ("train/own_share", "Own successes", "share of them in what is imitated; the rest are demonstrations"),
    ("train/approx_kl", "KL divergence", "how far an update moves the policy; a jump is an update too large"),
    ("train/entropy", "Entropy", "of the actions; near 0 nothing new is tried"),
    (
        "train/explained_variance",
        "Explained variance",
        "of the returns, by the critic; 1 is perfect, below 0 is useless",
    ),
    ("train/value_loss", "Value loss", "the critic's error"),
    ("train/critic_loss", "Critic loss", "squared error of the discounted chance of success, by the chunk critic"),
)
