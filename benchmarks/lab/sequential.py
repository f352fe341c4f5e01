"""Does the leaderboard's test keep its error rate, and how many episodes does it save?

`python -m embodied_rl.benchmarks.lab.sequential` simulates success and failure, with no simulator: each initial state
has a difficulty that all policies share. It prints, for each case, how often a comparison of two equal policies was
decided, how often a real difference was found (also by the same test with one look at the end), and which share of the
fixed design's episodes was run. A second table does the same over training seeds. It exits with 1 if an error rate is
above the level (by more than chance: its Wilson interval lies above) where the test promises it, or if more than 0.7
of the episodes were run where two policies are 10 points apart.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
import tyro

from embodied_rl.evaluation.adastop import ComparisonPlan, ComparisonState, compare, compare_seeds, seed_looks
from embodied_rl.evaluation.intervals import wilson
from embodied_rl.rng import philox
from embodied_rl.types import Array

LIMIT = 0.7
"""Share of the fixed design's episodes that a clear difference may need."""


@dataclass(frozen=True, slots=True)
class Case:
    """Policies by their true success, and how many initial states each may run."""

    name: str
    rates: tuple[float, ...]
    states: int

    def equal(self, first: int, second: int) -> bool:
        """Whether neither of two policies is better."""
        return self.rates[first] == self.rates[second]


CASES = (
    Case("two equal", (0.8, 0.8), 250),
    Case("three equal", (0.6, 0.6, 0.6), 250),
    Case("six equal", (0.9,) * 6, 500),
    Case("two equal, one better", (0.6, 0.6, 0.8), 250),
    Case("three equal, three better", (0.6, 0.6, 0.6, 0.75, 0.75, 0.75), 500),
    Case("10 points", (0.8, 0.9), 250),
    Case("10 points, low", (0.45, 0.55), 500),
    Case("20 points", (0.6, 0.8), 250),
    Case("start, GRPO, PPO", (0.59, 0.78, 0.88), 250),
)


@dataclass(frozen=True, slots=True)
class SeedCase:
    """Recipes by the mean success of their training seeds.

    Args:
        name: of the case.
        rates: mean success of each recipe's seeds.
        spreads: standard deviation of a seed's true success, of each recipe.
        seeds: of each recipe.
        states: evaluated ones of each seed.
    """

    name: str
    rates: tuple[float, ...]
    spreads: tuple[float, ...]
    seeds: int
    states: int = 250

    def equal(self, first: int, second: int) -> bool:
        """Whether two recipes' means are the same."""
        return self.rates[first] == self.rates[second]

    @property
    def promised(self) -> bool:
        """Whether the test promises its level: recipes of one mean are alike in every way."""
        return len(set(self.spreads)) == 1


SEED_CASES = (
    SeedCase("two equal, 5 seeds", (0.8, 0.8), (0.08, 0.08), 5),
    SeedCase("two equal, 10 seeds", (0.8, 0.8), (0.08, 0.08), 10),
    SeedCase("equal means, one unstable", (0.7, 0.7), (0.02, 0.2), 10),
    SeedCase("four equal, 10 seeds", (0.7,) * 4, (0.08,) * 4, 10),
    SeedCase("two equal, one better", (0.6, 0.6, 0.85), (0.08,) * 3, 10),
    SeedCase("10 points, 10 seeds", (0.75, 0.85), (0.05, 0.05), 10),
    SeedCase("20 points, 10 seeds", (0.65, 0.85), (0.08, 0.08), 10),
    SeedCase("20 points, 5 seeds", (0.65, 0.85), (0.08, 0.08), 5),
)


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Simulate comparisons of policies, to see error rate, power and cost of the leaderboard's test."""

    simulations: int = 2000
    """Of each case."""
    level: float = 0.05
    """Family-wise error rate that the test promises."""
    looks: int = 5
    """Looks at the data."""
    draws: int = 2000
    """Random sign vectors, or permutations; new ones in each simulation."""
    correlation: float = 0.5
    """How much of a state's difficulty all policies share."""
    json: Path | None = None
    """File for the figures."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one case.

    Args:
        case: its name.
        error: share of simulations in which equal ones were told apart; None where none are equal.
        power: share of the real differences that were found; None where there are none.
        power_fixed: the same with one look at the end.
        used: share of the fixed design's episodes, or training seeds.
    """

    case: str
    error: float | None
    power: float | None
    power_fixed: float | None
    used: float


def outcomes(case: Case, correlation: float, seed: int) -> dict[str, Array]:
    """Success of each policy in each state, float64 [states]; of equal marginal rates whatever the correlation."""
    draw = philox(seed, 21)
    shared = draw.standard_normal(case.states)
    found = {}
    for number, rate in enumerate(case.rates):
        own = draw.standard_normal(case.states)
        skill = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
        found[str(number)] = (skill < NormalDist().inv_cdf(rate)).astype(np.float64)
    return found


def episodes_used(state: ComparisonState, plan: ComparisonPlan, names: list[str]) -> int:
    """Episodes of all policies together: each runs until its last comparison is decided."""
    total = 0
    for name in names:
        ends = [
            plan.looks[-1] if row.look is None else plan.looks[row.look - 1]
            for row in state.comparisons
            if name in (row.first, row.second)
        ]
        total += max(ends)
    return total


def seed_scores(case: SeedCase, seed: int) -> dict[str, Array]:
    """Success of each training seed of each recipe on the states, float64 [seeds]."""
    draw = philox(seed, 22)
    found = {}
    for number, (rate, spread) in enumerate(zip(case.rates, case.spreads, strict=True)):
        weight = rate * (1 - rate) / spread**2 - 1  # of a beta distribution with this mean and spread
        true = draw.beta(rate * weight, (1 - rate) * weight, case.seeds)
        found[str(number)] = draw.binomial(case.states, true) / case.states
    return found


def simulate(case: Case, given: Simulation) -> Figures:
    """One case, as often as asked."""
    looks = tuple(case.states * (look + 1) // given.looks for look in range(given.looks))
    return _repeat(case, given, looks, lambda seed: outcomes(case, given.correlation, seed), compare)


def simulate_seeds(case: SeedCase, given: Simulation) -> Figures:
    """One case over training seeds, as often as asked."""
    looks = seed_looks(case.seeds, None, given.level)
    return _repeat(case, given, looks, lambda seed: seed_scores(case, seed), compare_seeds)


def _repeat(
    case: Case | SeedCase,
    given: Simulation,
    looks: tuple[int, ...],
    draw: Callable[[int], dict[str, Array]],
    test: Callable[[dict[str, Array], ComparisonPlan], ComparisonState],
) -> Figures:
    pairs = list(itertools.combinations(range(len(case.rates)), 2))
    same = [case.equal(*pair) for pair in pairs]
    errors = found = found_fixed = used = 0
    for seed in range(given.simulations):
        data = draw(seed)
        plan = ComparisonPlan(looks=looks, level=given.level, draws=given.draws, seed=seed)
        state, fixed = test(data, plan), test(data, replace(plan, looks=looks[-1:]))
        errors += any(row.look is not None for row, equal in zip(state.comparisons, same, strict=True) if equal)
        found += sum(_right(state, number, case, pair) for number, pair in enumerate(pairs))
        found_fixed += sum(_right(fixed, number, case, pair) for number, pair in enumerate(pairs))
        used += episodes_used(state, plan, list(data))
    real = (len(same) - sum(same)) * given.simulations
    return Figures(
        case.name,
        errors / given.simulations if any(same) else None,
        found / real if real else None,
        found_fixed / real if real else None,
        used / (given.simulations * looks[-1] * len(case.rates)),
    )


def _right(state: ComparisonState, number: int, case: Case | SeedCase, pair: tuple[int, int]) -> bool:
    """Whether a real difference was found, with its right sign."""
    first, second = (case.rates[index] for index in pair)
    return state.comparisons[number].verdict == ("better" if first > second else "worse") and first != second


def failures(figures: Figures, case: Case | SeedCase, level: float, simulations: int) -> list[str]:
    """What this case was to show and did not."""
    said = []
    promised = isinstance(case, Case) or case.promised
    if figures.error is not None and promised and wilson(round(figures.error * simulations), simulations)[0] > level:
        said.append(f"{case.name}: error rate {figures.error:.4f} is above {level}")
    if figures.error is None and isinstance(case, Case) and figures.used > LIMIT:
        said.append(f"{case.name}: {figures.used:.2f} of the fixed design's episodes were run")
    return said


def main(given: Simulation) -> int:
    """Print the tables; 1 if something is not as promised."""
    rows, said = [], []
    for cases, unit in ((CASES, "episodes"), (SEED_CASES, "seeds")):
        print(f"{'case':<28}{'error':>8}{'power':>8}{'fixed':>8}{unit:>10}")
        for case in cases:
            row = simulate(case, given) if isinstance(case, Case) else simulate_seeds(case, given)
            rows.append(row)
            said += failures(row, case, given.level, given.simulations)
            cells = ("" if value is None else f"{value:.3f}" for value in (row.error, row.power, row.power_fixed))
            print(f"{case.name:<28}" + "".join(f"{cell:>8}" for cell in cells) + f"{row.used:>10.2f}", flush=True)
    if given.json is not None:
        options = {name: value for name, value in asdict(given).items() if name != "json"}
        figures = {"options": options, "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print("\n".join(said))
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Simulation)))
