"""The run of `toys.serial` over Ray's workers, and a stand-in for Ray that runs them in this process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS, Collectives
from embodied_rl.scheduler.base import Callbacks
from embodied_rl.scheduler.config import RayConfig
from embodied_rl.scheduler.make import make_scheduler
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.profiler import Profiler
from tests.embodied_rl.scheduler.far import DyingFactory, LostFactory, ToyFactory
from tests.embodied_rl.scheduler.toys import Outcome, Setup, Streaming, assert_same_rows
from tests.toy import ToyEnv, ToyPolicy


def train(
    setup: Setup,
    folder: Path,
    factory: ToyFactory | LostFactory | DyingFactory,
    config: RayConfig | None = None,
    *,
    at: dict[int, Callable[[], None]] | None = None,
    look: Callable[[RolloutBatch, ToyPolicy], None] | None = None,
    ess: Callable[[], float] | None = None,
    say: Callable[[str], None] = print,
    ranks: Collectives = SINGLE_PROCESS,
) -> Outcome:
    """Train with two workers. at: what happens when that many episodes have ended; look: before each update, with the
    policy that is to be updated; ess: in place of the learner's. ranks: have the two workers together."""
    config = config or RayConfig(workers=2)
    policy, heard = ToyPolicy(seed=ranks.rank), list[int]()
    sampler, learner = setup.parts(policy, folder, ranks)
    due = dict(at or {})

    def poll() -> None:
        for count in [count for count in due if len(heard) >= count]:
            due.pop(count)()

    batches, metrics, states = [], [], []
    with (
        closing(learner),
        closing(
            make_scheduler(
                config,
                ToyEnv(factory.env_ids),
                Streaming(learner, ess),
                sampler,
                Profiler(),
                Callbacks(
                    on_episode=lambda result: heard.append(result.spec.episode_id),
                    check_interrupt=poll,
                    remote=factory,
                    log=say,
                ),
                groups=setup.groups,
            )
        ) as scheduler,
    ):
        for batch in scheduler.batches(0, setup.iterations):
            batches.append(batch)
            if look is not None:
                look(batch, policy)
            metrics.append(learner.update(batch))
            scheduler.publish(learner.version)
            states.append(scheduler.sampler_state())
    return Outcome(batches, policy.state_dict(), metrics, sampler, heard, states)


def assert_same_run(far: Outcome, near: Outcome) -> None:
    for one, two in zip(far.batches, near.batches, strict=True):
        assert not len(one) or (one.row_version is not None and bool((one.row_version == one.version).all()))
        assert_same_rows(one, two)
    for name, tensor in near.weights.items():
        assert torch.equal(far.weights[name], tensor), name
    ledger = far.sampler.counts
    assert (ledger.issued, len(ledger.outstanding)) == (ledger.finished, 0)
    assert max(Counter(far.episodes).values()) == 1  # no episode counted twice


@dataclass
class Witness:
    """Checks before each update, as `look`, that rows are of the weights that they name and at most `most` updates old.

    worst: updates that rows lacked at most, by batch. mixed: episodes in the middle of which the weights changed.
    """

    most: int
    worst: list[int] = field(default_factory=list)
    mixed: int = 0
    _weights: list[dict[str, Tensor]] = field(default_factory=list)

    def __call__(self, batch: RolloutBatch, policy: ToyPolicy) -> None:
        self._weights.append({name: tensor.clone() for name, tensor in policy.state_dict().items()})
        assert batch.version == len(self._weights) - 1
        assert batch.row_version is not None
        assert int(batch.row_version.max()) <= batch.version
        self.worst.append(batch.version - int(batch.row_version.min()))
        assert self.worst[-1] <= self.most
        acted = ToyPolicy()
        for version, weights in enumerate(self._weights):
            acted.load_state_dict(weights)
            rows = batch.row_version == version
            with torch.no_grad():
                out = acted.evaluate(batch.images, batch.proprio, batch.instruction, batch.replay)
            torch.testing.assert_close(out.log_prob[rows], batch.log_prob[rows], rtol=0, atol=1e-6)
            assert not torch.isclose(out.log_prob[~rows], batch.log_prob[~rows], rtol=0, atol=1e-6).all(dim=1).any()
        for episode in range(len(batch.episodes)):
            self.mixed += len(batch.row_version[batch.episode == episode].unique()) > 1


class LostError(Exception):
    """Ray's own error: the actor or its node is gone."""


class FailedError(LostError):
    """The actor's code raised."""


@dataclass(eq=False)
class Ref:
    """An answer, or one that never comes (`there` is false)."""

    value: Any = None
    error: Exception | None = None
    there: bool = True


@dataclass
class Actor:
    """The `number`-th actor that was asked for. calls: names and arguments, in order."""

    ray: FakeRay
    number: int
    make: Callable[[], Any]
    made: Any = None
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return _Bound(lambda *args: self.ask(name, args))

    def ask(self, name: str, args: tuple[Any, ...]) -> Ref:
        """Carry out a call at once."""
        self.calls.append((name, args))
        fate = self.ray.fate(self, name)
        if fate is not None:
            return fate
        self.made = self.made or self.make()
        return Ref(getattr(self.made, name)(*(arg.value if isinstance(arg, Ref) else arg for arg in args)))


@dataclass
class _Bound:
    remote: Callable[..., Any]


class FakeRay:
    """Enough of the module `ray`. fate: what a call answers in place of the actor (None: the actor does)."""

    def __init__(self, fate: Callable[[Actor, str], Ref | None] = lambda actor, name: None) -> None:
        self.fate = fate
        self.actors: list[Actor] = []
        self.alive = True
        self.exceptions = self
        self.RayTaskError, self.RayError = FailedError, LostError

    def remote(self, cls: Callable[..., Any]) -> Any:
        """As `ray.remote` of a class; options are taken and forgotten."""

        def start(*args: Any) -> Actor:
            self.actors.append(Actor(self, len(self.actors), lambda: cls(*args)))
            return self.actors[-1]

        bound = _Bound(start)
        bound.options = lambda **options: bound  # type: ignore[attr-defined]
        return bound

    def put(self, value: Any) -> Ref:
        return Ref(value)

    def get(self, refs: Ref | Sequence[Ref]) -> Any:
        if not isinstance(refs, Ref):
            return [self.get(ref) for ref in refs]
        assert refs.there, "this would wait for ever"
        if refs.error is not None:
            raise refs.error
        return refs.value

    def wait(self, refs: Sequence[Ref], *, num_returns: int, timeout: float) -> tuple[list[Ref], list[Ref]]:
        there = [ref for ref in refs if ref.there][:num_returns]
        if not there:
            time.sleep(min(timeout, 0.01))
        return there, [ref for ref in refs if ref not in there]

    def kill(self, actor: Actor) -> None:
        pass

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": False}, {"Alive": self.alive}]
