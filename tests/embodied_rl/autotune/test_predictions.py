"""What is predicted is what happens: probes, rollout and learner are the real ones, and only their time is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.autotune.costs import Cost, Costs
from embodied_rl.autotune.outcomes import Outcome, Outlook
from embodied_rl.autotune.probe import IN_TURN, SIDE_BY_SIDE
from embodied_rl.autotune.search import Choice, predict
from embodied_rl.autotune.simulate import play
from embodied_rl.autotune.tune import Tuning, space_of, tune, work_of
from embodied_rl.autotune.virtual import Machine
from embodied_rl.autotune.virtual_learner import VirtualLearner
from embodied_rl.autotune.work import Work
from embodied_rl.config.train import TrainConfig
from embodied_rl.learner.batches import split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.rng import philox
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.rollout.groups import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.config import PipelinedConfig, SerialConfig
from embodied_rl.scheduler.serial import SerialScheduler
from embodied_rl.types import EpisodeSpec, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from tests.embodied_rl.scheduler.counted import Counted, CountedEnv, CountedPolicy, Counter

TASKS = {"plan": range(64)}  # the episodes of `play`
COSTS = Costs(
    simulate=Cost("cpu", 0.02, 0.01),
    act=Cost("all cores", 0.005, 0.03),
    learn=Cost("cpu", 0.006, 0.2),
    servers={"cpu": 1},
    learn_call=0.05,
    evaluate=Cost("cpu", 0.002, 0.01),
)
GRPO = GRPOConfig(group_size=4, epochs=2)
PPO = PPOConfig(bootstrap_truncated=False)
BY_ROWS = LearnerConfig(lr=1e-9, minibatch_size=20, microbatch_size=8)
BY_GROUPS = LearnerConfig(lr=1e-9, minibatch_size=None, minibatch_groups=2, microbatch_size=8)


def length(spec: EpisodeSpec) -> int:
    return 2 + spec.seed % 7


def won(spec: EpisodeSpec) -> bool:
    """In some groups always, in others never, in others at times: dynamic sampling has something to do."""
    return bool(philox(7, spec.episode_id).random() < (0.0, 0.5, 1.0)[spec.group % 3])


def config_of(algorithm: AlgorithmConfig, learner: LearnerConfig) -> TrainConfig:
    episodes = 5 * make_algorithm(algorithm).group_size
    return TrainConfig(
        algorithm=algorithm,
        learner=learner,
        rollout=RolloutConfig(episodes_per_iteration=episodes),
        device="cpu",
        num_threads=1,
    )


def true_work(config: TrainConfig, worlds: int) -> Work:
    """An iteration, its episodes known."""
    algorithm = make_algorithm(config.algorithm)
    groups = config.rollout.groups(algorithm.group_size)
    return Work(
        worlds,
        groups,
        algorithm.group_size,
        length,
        config.learner.microbatch_size,
        algorithm.success_rate_range,
        algorithm.max_oversampling,
        won,
        algorithm.epochs,
        config.learner.minibatch_groups,
        config.learner.minibatch_size,
        algorithm.part_weight is not None,
        config.learner.recompute_old_log_probs,
    )


def collector_of(config: TrainConfig, counted: Counted, policy: CountedPolicy, worlds: int) -> Collector:
    algorithm = make_algorithm(config.algorithm)
    return Collector(
        CountedEnv(worlds, counted, length, won),
        policy,
        GroupQueue(
            EpisodeSampler(0, TASKS, algorithm.group_size),
            groups=config.rollout.groups(algorithm.group_size),
            success_rate_range=algorithm.success_rate_range,
            max_oversampling=algorithm.max_oversampling,
        ),
        Profiler(),
    )


@pytest.mark.parametrize(
    ("algorithm", "learner"),
    [
        (GRPO, BY_ROWS),
        (GRPO, BY_GROUPS),
        (GRPO, replace(BY_ROWS, recompute_old_log_probs=True)),
        (replace(GRPO, success_rate_range=None, epochs=1), replace(BY_ROWS, minibatch_size=500, microbatch_size=64)),
        (PPO, BY_ROWS),
        (PPO, BY_GROUPS),
    ],
)
def test_a_serial_run_takes_what_is_predicted(
    algorithm: AlgorithmConfig, learner: LearnerConfig, tmp_path: Path
) -> None:
    """The real loop, its time counted: rollout with groups that are dropped, all epochs, micro-batches and steps."""
    config, counted = config_of(algorithm, learner), Counted(COSTS, Counter())
    policy = CountedPolicy(counted)
    scheduler = SerialScheduler(collector_of(config, counted, policy, worlds=6))
    learns = Learner(policy, make_algorithm(algorithm), learner, seed=0, dump_dir=tmp_path)
    rows, began = 0, 0.0
    with counted.steps():
        for batch in scheduler.batches(0, 4):
            learns.update(batch)
            scheduler.publish(learns.version)
            began = counted.time.seconds if batch.version == 0 else began
            rows += len(batch) if batch.version else 0
    predicted = play(COSTS, true_work(config, worlds=6), SerialConfig(), warm_up=1, measured=3)
    assert predicted.rows == rows > 0
    assert predicted.seconds == pytest.approx(counted.time.seconds - began)


def batch_of(config: TrainConfig) -> RolloutBatch:
    counted = Counted(COSTS, Counter())
    return collector_of(config, counted, CountedPolicy(counted), worlds=6).collect(0)


@pytest.mark.parametrize("algorithm", [GRPO, replace(GRPO, epochs=1), PPO, replace(PPO, epochs=1)])
@pytest.mark.parametrize("groups", [1, 2, 9])
@pytest.mark.parametrize("microbatch", [3, 8, 64])
def test_an_update_that_begins_early_takes_what_is_predicted(
    algorithm: AlgorithmConfig, groups: int, microbatch: int, tmp_path: Path
) -> None:
    """Group by group: what is done when a group comes, and what is left for the end."""
    options = replace(BY_GROUPS, minibatch_groups=groups, microbatch_size=microbatch)
    config, counted = config_of(algorithm, options), Counted(COSTS, Counter())
    batch, machine = batch_of(config), Machine(COSTS)
    learner = Learner(CountedPolicy(counted), make_algorithm(algorithm), options, seed=0, dump_dir=tmp_path)
    paper = VirtualLearner(machine, true_work(config, worlds=6), lambda: False, streams=True)
    sizes = [len(group) for group in split_groups(batch)]
    with counted.steps():
        for group in split_groups(batch):
            learner.accumulate(group)
            paper.add(len(group))
            assert machine.clock.now == pytest.approx(counted.time.seconds)
        early = counted.time.seconds
        learner.update(batch)
        paper.update(sizes)
    assert machine.clock.now == pytest.approx(counted.time.seconds)
    if make_algorithm(algorithm).epochs > 1:
        assert counted.time.seconds - early >= COSTS.learn.row * len(batch)  # the second pass waits for the last row


@pytest.mark.parametrize("overlap", ["stream", "async"])
def test_groups_are_dropped_and_replaced_alike_under_every_scheduler(overlap: str) -> None:
    """Rows that are trained on are the serial run's; the pipeline gives dropped groups up early, serial does not."""
    work = replace(true_work(config_of(GRPO, BY_GROUPS), worlds=6), groups=4)
    serial = play(COSTS, work, SerialConfig(), warm_up=0, measured=4)
    assert 0 < serial.rows < 4 * 4 * 4 * 8
    pipelined = PipelinedConfig(env_groups=3, mode="async" if overlap == "async" else "on_policy")
    assert play(COSTS, work, pipelined, warm_up=0, measured=4).rows == serial.rows
    kept = play(COSTS, replace(work, keep=None), SerialConfig(), warm_up=0, measured=4)
    assert serial.seconds_per_row > 1.2 * kept.seconds_per_row
    none = play(COSTS, replace(work, won=lambda spec: False), SerialConfig(), warm_up=0, measured=1)
    assert none.rows == 0
    free = replace(COSTS, learn=Cost("cpu", 0.0), learn_call=0.0)
    thrice = play(free, replace(work, groups=12, keep=None), SerialConfig(), warm_up=0, measured=1)
    assert none.seconds_per_row == none.seconds >= thrice.seconds


def probed(config: TrainConfig, costs: Costs, cores: int, worlds: int = 16) -> Tuning:
    counted = Counted(costs, Counter())
    with counted.steps():
        return tune(
            config, CountedEnv(worlds, counted, length, won), CountedPolicy(counted), TASKS, cores, now=counted.time
        )


def test_probes_recover_every_cost() -> None:
    found = probed(config_of(GRPO, BY_ROWS), COSTS, cores=2)
    for placement, act in ((IN_TURN, "all cores"), (SIDE_BY_SIDE, "cpu")):
        model = found.costs[placement]
        assert model.evaluate is not None
        assert COSTS.evaluate is not None
        for cost, true in (
            (model.simulate, COSTS.simulate),
            (model.act, COSTS.act),
            (model.learn, COSTS.learn),
            (model.evaluate, COSTS.evaluate),
        ):
            assert (cost.row, cost.fixed) == pytest.approx((true.row, true.fixed))
        assert model.learn_call == pytest.approx(COSTS.learn_call)
        assert (model.act.device, model.learn.device) == (act, "cpu")
    assert len(found.probes.outcomes) == 16


@pytest.mark.parametrize(("call", "microbatch"), [(0.0, 16), (0.05, 64)])
def test_a_plan_that_knows_probes_only_is_within_a_tenth_of_the_best(call: float, microbatch: int) -> None:
    """`tune` sees a simulator and a policy whose costs nobody told it, and outcomes of one wave; the grid is played
    with the true ones. Small micro-batches are chosen only where a call costs nothing."""
    config = config_of(replace(GRPO, epochs=1), replace(BY_ROWS, microbatch_size=64))
    costs = replace(COSTS, learn_call=call, evaluate=Cost("cpu", 0.002))
    found = probed(config, costs, cores=4)
    truth = {
        name: replace(
            costs,
            act=replace(costs.act, device=model.act.device),
            servers=model.servers,
            learners=model.learners,
            steppers=model.steppers,
        )
        for name, model in found.costs.items()
    }

    def goes(choice: Choice) -> bool:
        return (choice.placement == IN_TURN) != isinstance(choice.scheduler, PipelinedConfig)

    space = space_of(config, truth, 16, make_algorithm(config.algorithm).group_size, goes)
    work = replace(work_of(config, make_algorithm(config.algorithm), 16, found.probes), length=length, won=won)
    seconds = {choice: predict(space, work, choice).seconds_per_row for choice in space.all()}
    assert seconds[found.found.choice] <= 1.1 * min(seconds.values())
    assert found.found.choice.microbatch == microbatch


def test_log_probs_that_are_computed_again_are_planned_for_under_stream_too() -> None:
    """The chosen config is one that a run takes, and evaluating all rows costs what it costs."""
    again = probed(config_of(GRPO, replace(BY_ROWS, recompute_old_log_probs=True)), COSTS, cores=2)
    plain = probed(config_of(GRPO, BY_ROWS), COSTS, cores=2)
    assert isinstance(again.config.scheduler, PipelinedConfig)
    assert again.config.scheduler.mode == "on_policy"
    again.config.check()
    assert again.found.played.seconds_per_row > plain.found.played.seconds_per_row


def test_an_outlook_is_like_what_was_seen() -> None:
    """Success rates of groups, and lengths that go with how an episode ended."""
    seen = [Outcome(group, 9 - 6 * (group > 0), group > 0) for group in range(3) for _ in range(8)]
    outlook, sampler = Outlook(seen, seed=3), EpisodeSampler(0, TASKS, 8)
    groups = [sampler.next_group() for _ in range(300)]
    rates = [sum(map(outlook.won, group)) / 8 for group in groups]
    assert sum(rates) / 300 == pytest.approx(2 / 3, abs=0.08)
    assert sum(rate in (0, 1) for rate in rates) > 150  # most groups are hard or easy for all of their episodes
    assert all(outlook.length(spec) == (3 if outlook.won(spec) else 9) for group in groups for spec in group)
    again = Outlook(seen, seed=3)
    assert [again.won(spec) for spec in groups[5]] == [outlook.won(spec) for spec in groups[5]]
    always = Outlook([Outcome(0, 4, True)])
    assert {always.length(spec) for spec in groups[0]} == {4}
