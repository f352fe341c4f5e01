"""The learning curve as a PNG: success, or the mean return, against training episodes, with 95 % bands."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embodied_rl.errors import UserError


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


def draw_curve(curve: Curve, title: str) -> bytes:
    """The picture as PNG bytes. Raises UserError without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("the learning curve needs matplotlib: pip install 'embodied-rl[report]'.") from error
    figure = Figure(figsize=(7, 4), layout="constrained")  # no pyplot: no global state, safe in any thread
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if curve.rollout:
        axes.plot(curve.rollout_episodes, curve.rollout, color="#9aa5b1", label="training rollouts (sampled)")
    if curve.held_out:
        rate, low, high = zip(*curve.held_out, strict=True)
        axes.fill_between(curve.held_out_episodes, low, high, color="#1f6feb", alpha=0.18, linewidth=0)
        axes.plot(curve.held_out_episodes, rate, "o-", color="#1f6feb", label="held-out states (95 % band)")
    axes.set(xlabel="training episodes", ylabel="mean return" if curve.by_return else "success rate")
    if not curve.by_return:
        axes.set(ylim=(-0.02, 1.02))
    axes.set_title(title, fontsize="medium", parse_math=False)
    axes.grid(alpha=0.25)
    if curve.rollout or curve.held_out:
        axes.legend(loc="lower right", frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    return picture.getvalue()
