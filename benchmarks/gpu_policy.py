"""Acting and learning of two networks for `bench gpu`: time, kernels, the GPU's busy share, memory against the plan.

`nano` is the network of the shipped policy, which leaves a large card idle between launches. `loaded` is an OpenVLA-OFT
of about half a billion parameters, whose matrices keep one busy. Weights are random and made on the device.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.autotune.memory import GIB, Mode, Need, need
from embodied_rl.benchmarks.gpu_busy import gpu_busy
from embodied_rl.benchmarks.vla import timed
from embodied_rl.benchmarks.vla_random import decide, fill, make_batch, make_policy, observe
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.off_policy import importance_correction
from embodied_rl.policies.family import TrainingMode, pick
from embodied_rl.policies.nn.vision import ViTConfig
from embodied_rl.policies.openvla import config as openvla
from embodied_rl.policies.openvla import memory
from embodied_rl.policies.openvla.config import OpenVLAModelConfig
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.openvla_oft.config import oft
from embodied_rl.rollout.actor import ParallelActor
from embodied_rl.utils.machine import pick_device

ANY_RATIO = 1e6
"""Ratio tolerance of random weights in bfloat16, whose rounding would stop a run that learns nothing anyway."""


@dataclass(frozen=True, slots=True)
class Network:
    """A network and how it trains. act_rows: decided for at once; learn_rows: of an update; microbatch: of a pass."""

    name: str
    config: OpenVLAModelConfig
    mode: Mode
    act_rows: tuple[int, ...]
    learn_rows: int
    microbatch: int

    def quick(self) -> Network:
        """The same with few rows."""
        return replace(self, act_rows=self.act_rows[:1], learn_rows=4, microbatch=2)


def large_config() -> OpenVLAModelConfig:
    """An OpenVLA-OFT with base-size vision towers and 12 layers of width 2048, chunks of 8 steps, one camera."""
    tower = ViTConfig(image_size=224, patch_size=14, dim=768, depth=12, heads=12, mlp_dim=3072, layer_scale=1e-5)
    decoder = replace(
        openvla.openvla_7b().decoder, vocab_size=8192, dim=2048, layers=8, heads=16, kv_heads=16, mlp_dim=5504
    )
    base = replace(
        openvla.openvla_7b(),
        featurizer=tower,
        fused_featurizer=replace(tower, layer_scale=None),
        decoder=decoder,
        action_token_end=decoder.vocab_size,
        append_token=None,
        gripper_zero_one=False,
    )
    return oft(base, chunk_len=8)


def networks(device: str) -> list[Network]:
    """`nano` and `loaded`; without a GPU `loaded` is OFT's nano preset, which a CPU can carry."""
    nano = Network("nano", openvla.nano(chunk_len=4), _whole("float32"), (1, 32, 128), 256, 64)
    if device == "cpu":
        return [nano, Network("loaded", oft(openvla.nano()), _whole("float32"), (1, 32), 64, 32)]
    mode = Mode(lora_rank=32, dtype="bfloat16", gradient_checkpointing=False)
    return [nano, Network("loaded", large_config(), mode, (1, 8, 32), 64, 32)]


def _whole(dtype: Any) -> Mode:
    return Mode(dtype=dtype, gradient_checkpointing=False)


def open_network(network: Network, device: str, instructions: Sequence[str] = (memory.INSTRUCTION,)) -> OpenVLAPolicy:
    """The random policy on the device, as it trains."""
    policy = make_policy(network.config, network.mode, instructions)
    fill(policy, device)
    return policy


class Bench:
    """A network with its rows and a learner whose optimiser has its state, as in a run."""

    def __init__(self, network: Network, device: str, dumps: Path) -> None:
        self.network, self.device = network, device
        self.plan: Need = _plan(network)
        self.policy = open_network(network, device)
        threads = torch.get_num_threads() if device == "cpu" else 1
        rows = network.learn_rows
        self.actor = ParallelActor(self.policy, max(*network.act_rows, rows), threads)
        self.learner = Learner(
            self.policy,
            make_algorithm(PPOConfig(epochs=1)),
            LearnerConfig(minibatch_size=rows, microbatch_size=network.microbatch, ratio_tolerance=ANY_RATIO),
            seed=0,
            dump_dir=dumps,
            threads=threads,
        )
        obs = observe(network.config, rows)
        self.batch = make_batch(obs, decide(self.actor, obs))
        self.recompute()
        self.learner.update(self.batch)

    def recompute(self) -> None:
        """Make the rows those of the present weights."""
        importance_correction(self.batch, self.policy, self.network.microbatch, all_rows=True)

    def row(self, part: str, rows: int, planned: int, work: Callable[[], Any], repeats: int, **options: Any) -> Any:
        """Measure `work` on so many rows: a row of the table."""
        found = asdict(timed(part, rows, self.device, repeats, work, **options))
        busy = gpu_busy(work)
        more = (
            {"gpu_busy": None, "kernels": None} if busy is None else {"gpu_busy": busy.share, "kernels": busy.kernels}
        )
        del found["part"]
        return {"network": self.network.name} | found | {"planned_gib": planned / GIB} | more

    def close(self) -> None:
        """End the threads."""
        self.actor.close()
        self.learner.close()


def _plan(network: Network) -> Need:
    footprint = memory.measure(network.config, pick(TrainingMode, network.mode))
    return need(network.mode, footprint, memory.cache_bytes(network.config, 2 if network.mode.lora_rank else 4))


def _benches(quick: bool) -> Iterator[Bench]:
    device = pick_device("auto")
    for network in networks(device):
        with (
            tempfile.TemporaryDirectory() as dumps,
            closing(Bench(network.quick() if quick else network, device, Path(dumps))) as bench,
        ):
            yield bench


def act(quick: bool) -> Iterator[dict[str, Any]]:
    """A sampled decision and its value for so many rows, host memory to host memory."""
    for bench in _benches(quick):
        for rows in bench.network.act_rows:
            obs = observe(bench.network.config, rows)
            planned = bench.plan.rollout(rows)
            yield bench.row("act", rows, planned, lambda obs=obs, b=bench: decide(b.actor, obs), 1 if quick else 10)


def update(quick: bool) -> Iterator[dict[str, Any]]:
    """`Learner.update` with PPO: one epoch, one optimiser step."""
    for bench in _benches(quick):
        rows, planned = bench.network.learn_rows, bench.plan.update(bench.network.microbatch)
        yield bench.row(
            "update",
            rows,
            planned,
            lambda b=bench: b.learner.update(b.batch),
            1 if quick else 5,
            before=bench.recompute,
        )
