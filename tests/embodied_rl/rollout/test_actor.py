"""Acting in parts on several threads: the same outputs, side by side, or half of them while others are busy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from embodied_rl.policies.openvla.config import nano
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policy import ActMode, PolicyTraits
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.actor import MIN_ROWS, ParallelActor
from embodied_rl.types import ActOutput, EvalOutput, Observation
from embodied_rl.utils.threads import CoreBudget, set_torch_threads

LONG = 900.0


class Seen(nn.Module):
    """Notes the rows of each call; `replay` tells each row's number and which random number it drew."""

    chunk_len = action_dim = terms_per_step = 1
    with_value = True
    traits = PolicyTraits(acts_in_parts=True)

    def __init__(self, *, parameter: bool = True, value: bool = True) -> None:
        super().__init__()
        if parameter:
            self.weight = nn.Parameter(torch.zeros(1))
        self.value = value
        self.calls: list[int] = []
        self.running = self.most = 0
        self.together: threading.Barrier | None = None
        self.lock = threading.Lock()

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        with self.lock:
            self.calls.append(len(obs.instruction))
            self.running += 1
            self.most = max(self.most, self.running)
        if self.together is not None:
            self.together.wait(LONG)
        threading.Event().wait(0.01)
        with self.lock:
            self.running -= 1
        row, draw = obs.proprio, torch.from_numpy(rng.uniform(1))
        return ActOutput(obs.proprio[:, :, None], row, row[:, 0] if self.value else None, {"draw": draw})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        raise AssertionError("nobody learns here")

    def sft_loss(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        actions: Tensor,
        drop_action_history: Tensor | None = None,
        action_mask: Tensor | None = None,
    ) -> Tensor:
        raise AssertionError("nobody learns here")


def _inputs(rows: int) -> tuple[Observation, DecisionRng]:
    number = np.arange(rows)
    images = np.zeros((rows, 1, 2, 2, 3), np.uint8)
    return Observation.from_numpy(images, number[:, None].astype(np.float32), [""] * rows), DecisionRng(
        number, number + 1
    )


def test_parts_run_side_by_side_and_are_joined_in_order() -> None:
    policy, (obs, rng) = Seen(), _inputs(3 * MIN_ROWS + 5)
    policy.together = threading.Barrier(3)  # breaks unless three wait at a time
    with closing(ParallelActor(policy, 4 * MIN_ROWS, 3)) as actor:
        out = actor.act(obs, rng, "sample")
    assert sorted(policy.calls) == [17, 18, 18]
    assert torch.equal(out.log_prob, obs.proprio)
    assert out.value is not None
    assert torch.equal(out.value, obs.proprio[:, 0])
    assert torch.equal(out.actions[:, 0], obs.proprio)
    assert torch.equal(out.replay["draw"], torch.from_numpy(rng.uniform(1)))


def test_while_others_are_busy_the_same_parts_follow_each_other() -> None:
    policy, inputs = Seen(value=False), _inputs(2 * MIN_ROWS)
    cores = CoreBudget()
    with closing(ParallelActor(policy, 2 * MIN_ROWS, 2, cores)) as actor, cores.at_work("learner"):
        assert actor.act(*inputs, "sample").value is None
    assert policy.calls == [MIN_ROWS, MIN_ROWS]
    assert policy.most == 1


@pytest.mark.parametrize(
    ("policy", "rows", "threads"),
    [(Seen(), 2 * MIN_ROWS - 1, 4), (Seen(), 2 * MIN_ROWS, 1), (Seen(parameter=False), 2 * MIN_ROWS, 4)],
)
def test_few_rows_one_thread_and_no_weights_are_one_call(policy: Seen, rows: int, threads: int) -> None:
    inputs = _inputs(rows)
    with closing(ParallelActor(policy, 2 * MIN_ROWS, threads)) as actor:
        actor.act(*inputs, "sample")
    assert policy.calls == [rows]


def test_a_policy_that_does_not_say_so_is_not_cut_up() -> None:
    policy, inputs = Seen(), _inputs(2 * MIN_ROWS)
    policy.traits = PolicyTraits()  # type: ignore[misc]
    with closing(ParallelActor(policy, 2 * MIN_ROWS, 2)) as actor:
        actor.act(*inputs, "sample")
    assert policy.calls == [2 * MIN_ROWS]


def test_a_compiled_policy_is_called_once() -> None:
    policy, inputs = Seen(), _inputs(2 * MIN_ROWS)
    policy.traits = PolicyTraits(acts_in_parts=True, compiled=True)  # type: ignore[misc]
    with closing(ParallelActor(policy, 2 * MIN_ROWS, 2)) as actor:
        actor.act(*inputs, "sample")
    assert policy.calls == [2 * MIN_ROWS]


def test_an_error_in_a_part_is_raised() -> None:
    class Broken(Seen):
        def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
            if obs.proprio[0, 0] > 0:
                raise ValueError("the second part")
            return super().act(obs, rng, mode)

    with closing(ParallelActor(Broken(), 2 * MIN_ROWS, 2)) as actor, pytest.raises(ValueError, match="the second part"):
        actor.act(*_inputs(2 * MIN_ROWS), "sample")


@pytest.fixture
def mode(request: pytest.FixtureRequest) -> Iterator[None]:
    """What something that ran before has left in the caller's thread."""
    threads, flush = request.param
    torch.set_num_threads(threads)
    torch.set_flush_denormal(flush)
    yield
    torch.set_num_threads(1)
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("mode", [(1, False), (2, False), (3, False), (1, True)], indirect=True, ids=str)
@pytest.mark.usefixtures("mode")
def test_threads_that_have_time_or_not_change_no_bit() -> None:
    """The same parts whoever takes them; and they are what the policy says of those rows alone."""
    policy = OpenVLAPolicy.fresh(nano(image_size=32, vision_dim=32, dim=64, text_vocab=64, chunk_len=2), ["do it"])
    policy.with_value = True
    config, generator, rows = policy.config, np.random.default_rng(0), 2 * MIN_ROWS + 7
    shape = (rows, config.num_cameras, config.image_size, config.image_size, 3)
    proprio = generator.standard_normal((rows, config.proprio_dim)).astype(np.float32)
    obs = Observation.from_numpy(generator.integers(0, 256, shape, dtype=np.uint8), proprio, ["do it"] * rows)
    rng = DecisionRng(np.arange(rows), np.zeros(rows, np.int64))
    outs = []
    for busy in (False, True):
        cores = CoreBudget()
        if busy:
            cores.begin("learner")
        with closing(ParallelActor(policy, rows, 2, cores)) as actor:
            outs.append(actor.act(obs, rng, "sample"))
    one, two = outs
    half = rows // 2
    first = policy.act(obs.rows(slice(0, half)), DecisionRng(rng.seed[:half], rng.decision[:half]), "sample")
    assert torch.equal(one.log_prob[:half], first.log_prob)
    assert torch.equal(one.log_prob, two.log_prob)
    assert torch.equal(one.replay["tokens"], two.replay["tokens"])
    assert torch.equal(one.actions, two.actions)
    assert one.value is not None
    assert two.value is not None
    assert torch.equal(one.value, two.value)


@pytest.mark.parametrize("mode", [(1, True)], indirect=True, ids=str)
@pytest.mark.usefixtures("mode")
def test_every_thread_counts_denormal_numbers() -> None:
    """The product is one; it is 0 in a thread that flushes them, and threads inherit that."""

    class Tiny(Seen):
        def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
            out = super().act(obs, rng, mode)
            return replace(out, log_prob=torch.full_like(out.log_prob, 1e-30) * 1e-10)

    rows = 2 * MIN_ROWS
    with closing(ParallelActor(Tiny(), rows, 2)) as actor:
        found = actor.act(*_inputs(rows), "sample").log_prob
    assert (found.view(torch.int32) != 0).all()  # by its bits: to this thread it is still equal to 0
    set_torch_threads(1)
    assert (Tiny().act(*_inputs(1), "sample").log_prob > 0).all()
