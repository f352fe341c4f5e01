"""What runs of LIBERO-plus: an episode of each of its tasks, and one of each unperturbed task beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embodied_rl.rng import EpisodeStream, philox
from embodied_rl.rollout.sampler import numbered_specs
from embodied_rl.sim.libero.install.install import is_usable
from embodied_rl.sim.libero.plus import noise
from embodied_rl.sim.libero.plus.catalogue import INSTALL, catalogue_digest, read_catalogue
from embodied_rl.sim.libero.plus.names import DIMENSIONS, PlusName
from embodied_rl.sim.libero.plus.tasks import PlusTasks, noise_number
from embodied_rl.sim.libero.tasks import LiberoTask, load_task
from embodied_rl.sim.perturb import Variant
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.utils.cache_dir import cache_dir
from embodied_rl.utils.suites import LIBERO_PLUS

if TYPE_CHECKING:
    from embodied_rl.factory.tasks import SuiteTask

_STATE = 0
"""LIBERO's initial state that LIBERO-plus' tasks begin in."""


@dataclass(frozen=True, slots=True)
class PlusPlan:
    """What runs of LIBERO-plus.

    Args:
        specs: episodes in the order of their ids.
        variants: what each shows and tells the policy, by id.
        left_out: how many tasks of each dimension can't run, by what they lack.
        digest: SHA-256 of what is installed.
    """

    specs: list[EpisodeSpec]
    variants: dict[int, Variant]
    left_out: dict[str, dict[str, int]]
    digest: str

    def dimension(self, episode: int) -> str | None:
        """What is perturbed in an episode; None: nothing."""
        return self.variants[episode].drawn[LIBERO_PLUS]["dimension"]

    def degrade(self, spec: EpisodeSpec, step: int, frames: Array) -> None:
        """Add an episode's sensor noise to what its cameras see, in place: to `agentview` alone, as the official code.

        frames: uint8 [V, 256, 256, 3], row 0 at the top; the official ones are upside down.
        """
        if number := noise_number(self.variants[spec.episode_id].drawn):
            draws = philox(spec.seed, EpisodeStream.SENSOR_NOISE, step)
            frames[0] = noise.add_noise(frames[0, ::-1], number, draws)[::-1]


def make_plus_plan(
    scenes: Sequence[SuiteTask], suite: str, *, seed: int, count: int | None, official_words: bool
) -> PlusPlan:
    """The episodes.

    Args:
        scenes: tasks of LIBERO's that are changed.
        suite: theirs.
        seed: of the evaluation.
        count: so many tasks of each dimension; None: all.
        official_words: as of `PlusTasks`.

    Raises:
        UserError: LIBERO-plus is not installed.
    """
    root = cache_dir() / "libero"
    catalogue = read_catalogue(root)
    bases = {task.name.partition("/")[2]: task for task in _official(scenes)}
    named = [name for name in catalogue.tasks(suite) if name.base in bases]
    lacking = {name.name: _lacking(root, suite, name) for name in named}
    wanted = _spread([name for name in named if not lacking[name.name]], count)
    left_out: dict[str, Counter[str]] = {}
    for name in named:
        if lacking[name.name]:
            left_out.setdefault(name.dimension, Counter())[lacking[name.name]] += 1
    rows: list[tuple[LiberoTask, PlusName | None]] = [(task, None) for task in bases.values()]
    rows += [(bases[name.base], name) for name in wanted]
    specs = numbered_specs([(task.name, _STATE) for task, _ in rows], seed)
    made = {task.name: PlusTasks(task, catalogue, official_words=official_words) for task in bases.values()}
    variants = {}
    for spec, (task, name) in zip(specs, rows, strict=True):
        maker, number = made[task.name], spec.episode_id
        if name is None:
            variants[number] = maker.unperturbed(number)
        elif name.dimension == "layout":
            variants[number] = maker.layout(load_task(root, _exported(suite, name), task.era), name, number)
        else:
            variants[number] = maker.variant(name, number)
    counts = {dimension: dict(left_out[dimension]) for dimension in DIMENSIONS if dimension in left_out}
    return PlusPlan(specs, variants, counts, catalogue_digest(root))


def _lacking(root: Path, suite: str, name: PlusName) -> str:
    """What a task lacks here; '' where it can run."""
    if name.needs or name.dimension != "layout":
        return name.needs
    return "" if is_usable(root, _exported(suite, name)) else f"an export ({INSTALL} --suites {suite})"


def _exported(suite: str, name: PlusName) -> str:
    return f"{suite}_layout/{name.name}"


def _official(scenes: Sequence[SuiteTask]) -> list[LiberoTask]:
    return [task for task in scenes if isinstance(task, LiberoTask)]


def _spread(names: Sequence[PlusName], count: int | None) -> list[PlusName]:
    """So many names of each dimension, evenly spread over the official list; in its order."""
    if count is None:
        return list(names)
    by_dimension: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        by_dimension.setdefault(name.dimension, []).append(place)
    chosen: set[int] = set()
    for places in by_dimension.values():
        chosen |= {places[i * len(places) // min(count, len(places))] for i in range(min(count, len(places)))}
    return [names[place] for place in sorted(chosen)]
