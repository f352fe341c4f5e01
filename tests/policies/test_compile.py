"""Compiled acting equals eager acting, with the weights that the policy has now; off, nothing of it is there."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.policies import compile
from embodied_rl.policies.compile import Compiled, need_compiler, next_power, pad_rows
from embodied_rl.policies.efficient import VisualPruner
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.openvla import compile as vla_parts
from embodied_rl.policies.openvla import decode
from embodied_rl.policies.openvla.config import nano
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.pi0 import compile as pi0_parts
from embodied_rl.policies.pi0.config import gemma
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.smolvla.policy import SmolVLAPolicy
from embodied_rl.rng import DecisionRng
from embodied_rl.scheduler.pipeline.replica import copy_weights, replicate
from embodied_rl.types import ActOutput, Observation
from tests.policies import oft_policies, pi0_models, smolvla_models

AnyPolicy = OpenVLAPolicy | Pi0Policy
ROOT = Path(__file__).parents[2]
PARTS = [(pi0_parts, "_DENOISE"), *[(vla_parts, name) for name in ("_PATCHES", "_SLOTS", "_PREFILL", "_STEP")]]
PI0 = ("pi0", "pi05", "pi0_noise")
KINDS = (*PI0, "smolvla", "oft", "oft_film", "openvla")


def make(kind: str, layers: int = 1) -> AnyPolicy:
    """One layer everywhere: compiling takes time."""
    if kind in PI0:
        flow = FlowSettings(exploration="flow_noise" if kind == "pi0_noise" else "flow_sde", num_inference_steps=3)
        expert = replace(gemma(0, 16, layers, 4, 8, 20), condition_dim=16 if kind == "pi05" else 0)
        like = "pi05_no_state" if kind == "pi05" else "pi0"
        return pi0_models.tiny_policy(like, flow, decoder=gemma(320, 24, layers, 4, 8, 40), expert=expert)
    if kind == "smolvla":
        return smolvla_models.tiny_policy(FlowSettings(num_inference_steps=3))
    if kind.startswith("oft"):
        film = kind == "oft_film"
        base = oft_policies.config(film)
        return oft_policies.policy(
            decoder=replace(base.decoder, layers=layers),
            featurizer=replace(base.featurizer, depth=layers),
            fused_featurizer=replace(base.fused_featurizer, depth=layers),
            film=film,
        )
    config = nano(
        image_size=32, vision_dim=32, vision_depth=1, dim=64, layers=layers, mlp_dim=96, text_vocab=64, chunk_len=1
    )
    policy = OpenVLAPolicy.fresh(config, oft_policies.INSTRUCTIONS)
    pi0_models.randomise(policy, 1)
    return policy


def look(policy: AnyPolicy, rows: int, seed: int = 0) -> Observation:
    """Prompts of different lengths, the longest among them."""
    if isinstance(policy, SmolVLAPolicy):
        return smolvla_models.observation(rows, seed)
    if isinstance(policy, Pi0Policy):
        return pi0_models.observation(rows, seed)
    config, draw = policy.config, np.random.default_rng(seed)
    shape = (rows, config.num_cameras, config.image_size, config.image_size, 3)
    proprio = draw.standard_normal((rows, config.proprio_dim)).astype(np.float32)
    words = [oft_policies.INSTRUCTIONS[row % 3] for row in range(rows)]
    return Observation.from_numpy(draw.integers(0, 256, shape, dtype=np.uint8), proprio, words)


def act(policy: AnyPolicy, obs: Observation, on: bool, mode: Any = "sample") -> ActOutput:
    policy.compiled = on
    rows = np.arange(len(obs.instruction))
    return policy.act(obs, DecisionRng(rows + 7, rows), mode)


def check_same(one: ActOutput, two: ActOutput) -> None:
    np.testing.assert_allclose(one.actions, two.actions, rtol=0, atol=1e-5)
    torch.testing.assert_close(one.log_prob, two.log_prob, rtol=0, atol=1e-5)
    assert one.replay.keys() == two.replay.keys()
    for key, value in one.replay.items():
        torch.testing.assert_close(value, two.replay[key], rtol=0, atol=1e-5)
    assert (one.value is None) == (two.value is None)
    if one.value is not None:
        torch.testing.assert_close(one.value, two.value, rtol=0, atol=1e-5)


def graphs() -> int:
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def as_on_a_gpu(patch: pytest.MonkeyPatch) -> None:
    """Pad, and compile the steps too."""
    for module in (compile, decode):
        patch.setattr(module, "uses_graphs", lambda device: True)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Every part anew, to be run by what the test puts in place of `_compile`; nothing is kept for other tests."""
    for module, name in PARTS:
        monkeypatch.setattr(module, name, Compiled(getattr(module, name).part))
    return monkeypatch


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    """The compiler starts no processes of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
        yield


@pytest.mark.process
@pytest.mark.parametrize("kind", ["pi0", "oft"])
def test_really_compiled_it_is_the_same_policy(kind: str) -> None:
    """One compilation for several sizes of a batch, new weights, a replica, and another thread."""
    policy = make(kind)
    policy.with_value = True
    before = graphs()
    obs = look(policy, 3)
    old = act(policy, obs, True)
    made = graphs() - before
    assert made > 0
    check_same(old, act(policy, obs, False))
    for rows, mode in ((5, "sample"), (4, "greedy")):
        check_same(*(act(policy, look(policy, rows), on, mode) for on in (True, False)))
    # recorded by compiled code, recomputed by the learner
    out = policy.evaluate(obs.images, obs.proprio, obs.instruction, old.replay)
    ratio = (out.log_prob.detach() - old.log_prob).exp()
    assert float((ratio - 1).abs().max()) < 1e-2 * LearnerConfig().ratio_tolerance
    # weights that change in place, as an optimiser changes them, count at once
    replica = replicate(policy)
    pi0_models.randomise(policy, 5)
    new = act(policy, obs, True)
    check_same(new, act(policy, obs, False))
    assert float((new.actions - old.actions).abs().max()) > 1e-3
    check_same(act(replica, obs, True), old)
    copy_weights(policy, replica)
    found: list[ActOutput] = []
    thread = threading.Thread(target=lambda: found.append(act(replica, obs, True)))
    thread.start()
    thread.join()
    check_same(found[0], new)
    assert graphs() - before == made


@pytest.mark.parametrize("kind", ["pi05", "pi0_noise", "oft_film", "openvla"])
def test_traced_it_is_the_same_policy(kind: str, fresh: pytest.MonkeyPatch) -> None:
    """What the compiler is given, without its kernels: no more graphs for the next decision."""
    if kind == "openvla":  # its steps are compiled on a GPU only
        as_on_a_gpu(fresh)
    fresh.setattr(compile, "_compile", lambda part, device: torch.compile(part, backend="aot_eager", fullgraph=True))
    policy = make(kind)
    policy.with_value = True
    check_same(*(act(policy, look(policy, 5), on) for on in (True, False)))
    before = graphs()
    pi0_models.randomise(policy, 5)
    check_same(*(act(policy, look(policy, 7), on, "greedy") for on in (True, False)))
    assert graphs() == before


@pytest.mark.parametrize("kind", KINDS)
def test_padded_as_cuda_graphs_need_it(kind: str, fresh: pytest.MonkeyPatch) -> None:
    """Few shapes, results of the rows that are there, and none that the next call overwrites."""
    as_on_a_gpu(fresh)
    shapes: set[tuple[Any, ...]] = set()
    static: dict[Any, tuple[Tensor, ...]] = {}

    def capture(part: compile.Part, device: str) -> compile.Part:
        def replay(module: nn.Module, *tensors: Tensor | None) -> tuple[Tensor, ...]:
            """As a CUDA graph: results always in the same memory."""
            given = [None if tensor is None else tensor.clone() for tensor in tensors]
            key = part, *(None if tensor is None else tuple(tensor.shape) for tensor in tensors)
            shapes.add(key)
            found = part(module, *tensors)
            for one, two in zip(tensors, given, strict=True):
                assert one is two is None or torch.equal(one, two), "changed what it was given"  # type: ignore[arg-type]
            held = static.setdefault(key, tuple(tensor.clone() for tensor in found))
            for old, new in zip(held, found, strict=True):
                old.copy_(new)
            return held

        return replay

    fresh.setattr(compile, "_compile", capture)
    policy = make(kind)
    policy.with_value = True
    kept = []
    for rows in (5, 8, 6, 7):
        obs = look(policy, rows, seed=rows)
        kept.append((act(policy, obs, True), act(policy, obs, False)))
        if rows == 5:
            first = len(shapes)
    for one, two in kept:
        check_same(one, two)
    assert len(shapes) == first
    # one row, and so the shortest of the prompts
    check_same(*(act(policy, look(policy, 1), on) for on in (True, False)))
    assert len(shapes) > first


def test_visual_tokens_may_be_left_out_too(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(compile, "_compile", lambda part, device: part)
    for kind in ("pi0", "oft", "openvla"):
        policy = make(kind)
        if isinstance(policy, Pi0Policy):
            policy.model.pruner = VisualPruner(policy.model.language, 0, 8, 3)
        else:
            policy.model.pruner = VisualPruner(policy.model.language_model.model, 1, 8, 3)
        check_same(*(act(policy, look(policy, 3), on) for on in (True, False)))


@pytest.mark.process
def test_off_nothing_of_the_compiler_is_imported() -> None:
    program = (
        "import sys\nfrom tests.policies.test_compile import act, look, make\n"
        "for kind in ('pi0', 'oft', 'openvla'):\n    policy = make(kind)\n    act(policy, look(policy, 2), False)\n"
        "assert 'torch._dynamo' not in sys.modules and 'torch._inductor' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


def test_a_policy_that_is_compiled_can_be_copied() -> None:
    policy = make("oft")
    policy.compiled = True
    assert copy.deepcopy(policy).compiled


@pytest.mark.parametrize("old", [True, False])
def test_graphs_outside_the_main_thread(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.11 looks for its own things in the thread's locals, and finds none but in the main thread."""
    from torch._inductor import cudagraph_trees as trees

    if old:
        monkeypatch.delattr(trees, "_initialize_tls", raising=False)
    elif not hasattr(trees, "_initialize_tls"):
        monkeypatch.setattr(trees, "_initialize_tls", None, raising=False)

    def look() -> list[bool]:
        compile._graphs_in_this_thread()
        first = trees.local.__dict__.get("tree_manager_containers")
        compile._graphs_in_this_thread()  # keeps what is there
        locks = trees.local.__dict__.get("tree_manager_locks")
        kept = first is not None and first is trees.local.tree_manager_containers
        return [kept, locks is not None and not locks[0].locked()]

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(look).result() == [old, old]


def test_padding() -> None:
    assert [next_power(count) for count in (1, 2, 3, 4, 5, 8, 9, 64)] == [1, 2, 4, 4, 8, 8, 16, 64]
    three = torch.arange(6).view(3, 2)
    padded = pad_rows(three, 4)
    assert padded is not None
    assert padded.tolist() == [[0, 1], [2, 3], [4, 5], [4, 5]]
    assert pad_rows(three, 3) is three
    assert pad_rows(None, 4) is None


def test_without_a_compiler_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    need_compiler("cpu")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"^compiling needs a C\+\+ compiler, .*apt install g\+\+.*--policy\.compile"):
        need_compiler("cpu")
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(compile, "find_spec", lambda name: None)
    need_compiler("cpu")
    with pytest.raises(UserError, match=r"^compiling for a GPU needs triton: pip install triton"):
        need_compiler("cuda")


def test_what_cannot_be_compiled_is_one_line() -> None:
    def part(module: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
        return (x if float(x.sum()) > 0 else -x,)

    with pytest.raises(UserError, match=r"^torch\.compile failed \(.*\): act without it") as found:
        Compiled(part)(nn.Identity(), torch.ones(2, 3))
    assert "\n" not in str(found.value)
