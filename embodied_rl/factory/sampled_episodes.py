"""Opens views of a simulator for other projects' trainers."""

from __future__ import annotations

from embodied_rl.errors import UserError
from embodied_rl.factory.custom import TaskEnv
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import EpisodeSpec


class SampledEpisodes:
    """`sim.views.isaacgym.Episodes` from the training states of a simulator, in an order that `seed` fixes."""

    def __init__(self, env: TaskEnv, seed: int) -> None:
        if not hasattr(env, "train_states"):
            raise UserError(f"{type(env).__name__} has no train_states: a view draws its episodes from them.")
        self._sampler = EpisodeSampler(seed, env.train_states)

    def start(self) -> EpisodeSpec:
        """The next episode."""
        return self._sampler.next_group(closed=1)[0]

    def finish(self, spec: EpisodeSpec) -> None:
        """`spec` ended or was given up."""
        self._sampler.finish(spec)

    def requeue(self, spec: EpisodeSpec) -> EpisodeSpec:
        """What to run in place of `spec`: another episode where it broke its simulator five times.

        Raises:
            UserError: More than a quarter of the episodes, or of the initial states, did.
        """
        if (again := self._sampler.requeue(spec)) is not None:
            return again
        self._sampler.finish(spec)
        self._sampler.broken.add(0, [(spec.task, spec.init_state)])
        self._sampler.broken.check(self._sampler.position, ())
        return self.start()
