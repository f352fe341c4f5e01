"""`train` and `eval` with every kind of policy, from our folders and from published ones, on a stand-in simulator."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from embodied_rl.cli import main
from embodied_rl.config.policies import OpenVLAConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import load_policy, prepare_policy, save_policy
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.openvla import hf_format
from embodied_rl.policies.openvla.checkpoint import adapt_policy
from embodied_rl.policies.openvla.checkpoint import load_policy as load_openvla
from embodied_rl.policies.openvla.hf_format import LoadOptions
from embodied_rl.policies.openvla_oft.config import preset as oft_preset
from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy
from embodied_rl.policies.pi0.config import preset as pi0_preset
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.preprocessing import images
from embodied_rl.policies.smolvla.config import preset as smolvla_preset
from embodied_rl.policies.smolvla.policy import SmolVLAPolicy
from embodied_rl.telemetry.metrics import read_metrics
from embodied_rl.types import ChunkResult
from tests.embodied_rl.cli.test_cli_eval import TASKS, World, world
from tests.embodied_rl.stand_in import StandIn
from tests.policies.published_files import INSTRUCTIONS, SIZE, originals, published_state, tiny_7b, write_folder

__all__ = ["world"]
KEY = "libero_goal_no_noops"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints in our own layout, by kind; pi0.5 has two. Tests must not change them."""
    root = tmp_path_factory.mktemp("kinds")
    fresh = {
        "openvla_oft": OpenVLAOFTPolicy.fresh(oft_preset("nano"), INSTRUCTIONS),
        "pi0": Pi0Policy.fresh(pi0_preset("nano"), INSTRUCTIONS, flow=FlowSettings(num_inference_steps=4)),
        "pi05": Pi0Policy.fresh(pi0_preset("nano_pi05"), INSTRUCTIONS, flow=FlowSettings(num_inference_steps=4)),
        "smolvla": SmolVLAPolicy.fresh(smolvla_preset("nano"), INSTRUCTIONS, flow=FlowSettings(num_inference_steps=4)),
    }
    for name, policy in fresh.items():
        save_policy(policy, root / name, {"seed": 0})
    return {name: root / name for name in fresh}


@pytest.fixture(autouse=True)
def _small_towers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published config.json names its towers and not their widths."""
    monkeypatch.setattr(hf_format, "openvla_7b", tiny_7b)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small OpenVLA in the published layout, as others write it."""
    folder = tmp_path_factory.mktemp("published") / "openvla-small"
    write_folder(folder, published_state(originals()))
    return folder


def _info(run: Path) -> dict[str, Any]:
    (info,) = json.loads((run / "run.json").read_text())
    return info


def train_words(checkpoint: Path, run: Path, kind: str, algorithm: str, *more: str, tasks: int = 2) -> list[str]:
    small = [
        "--policy",
        kind,
        "--algorithm",
        algorithm,
        "--suite",
        "tabletop_object",
        "--tasks",
        *(task.partition("/")[2] for task in TASKS[:tasks]),
        "--policy.checkpoint",
        str(checkpoint),
        "--output",
        str(run),
        "--iterations",
        "1",
        "--env.num-envs",
        "4",
        "--rollout.episodes-per-iteration",
        "8",
        "--evaluation.states-per-task",
        "1",
        "--checkpoint.every",
        "1",
        "--videos",
        "0",
        "--num-threads",
        "1",
    ]
    chosen = {
        "grpo": ["--algorithm.group-size", "4", "--algorithm.success-rate-range", "None"],
        "ppo": ["--algorithm.critic-warmup-iterations", "0"],
    }
    return ["train", "tabletop", *small, *chosen[algorithm], *more]


@pytest.fixture
def mixed_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second episode succeeds, whatever the policy does, so that each group has contrast."""
    run = StandIn.step

    def step(self: StandIn, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        odd = torch.tensor([self.specs[env_id].episode_id % 2 for env_id in env_ids])
        actions = actions.clone()
        actions[:, -1, 0] = 2 * odd - 1
        return run(self, env_ids, actions)

    monkeypatch.setattr(StandIn, "step", step)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("name", ["openvla_oft", "pi0", "pi05", "smolvla"])
@pytest.mark.usefixtures("stand_in", "mixed_success")
def test_every_kind_trains_and_is_evaluated(
    name: str, algorithm: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    kind, run = name.replace("pi05", "pi0"), tmp_path / "run"
    assert main(train_words(folders[name], run, kind, algorithm)) == 0
    resolved = yaml.safe_load((run / "config.yaml").read_text())
    assert (resolved["policy"]["name"], resolved["algorithm"]["name"]) == (kind, algorithm)
    assert _info(run)["policy"]["family"] == kind
    (trained,) = [row for row in read_metrics(run / "metrics.jsonl") if "train/steps" in row]
    assert trained["train/steps"] >= 1
    before, after = (load_policy(path).state_dict() for path in (folders[name], run / "checkpoints/iter-000001/policy"))
    assert [key for key in before if not before[key].equal(after[key])]
    report = tmp_path / "figures.json"
    assert (
        main(
            [
                "eval",
                "--checkpoint",
                str(run),
                "--suite",
                "tabletop_object",
                "--states-per-task",
                "1",
                "--json",
                str(report),
            ]
        )
        == 0
    )
    evaluated, trained_one = json.loads(report.read_text())["policy"], _info(run)["policy"]
    same = ("family", "parameters", "chunk_len", "denoising_steps", "unnorm_key")
    assert [evaluated[name] for name in same] == [trained_one[name] for name in same]


@pytest.mark.parametrize(("name", "algorithm"), [("pi0", "ppo"), ("pi0", "grpo"), ("smolvla", "ppo")])
@pytest.mark.usefixtures("stand_in", "mixed_success")
def test_a_run_of_a_flow_policy_trains_adapters_only_and_resumes(
    name: str, algorithm: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert main(train_words(folders[name], run, name, algorithm, "--policy.lora-rank", "2")) == 0
    newest = run / "checkpoints/iter-000001/policy"
    assert not (newest / "model.safetensors").exists()
    before, after = (load_policy(path).model.state_dict() for path in (folders[name], newest))
    moved = {
        key for key, value in after.items() if not value.equal(before.get(key.replace(".base_layer.", "."), -value))
    }
    assert any(".lora_B." in key for key in moved)
    assert not [key for key in moved if key.startswith(("vision", "language", "expert")) and ".lora_" not in key]
    assert main(["train", "--resume", str(run), "--iterations", "2"]) == 0
    assert (run / "checkpoints/iter-000002/policy/lora_adapter").is_dir()


@pytest.mark.parametrize("scheduler", ["serial", "pipelined"])
@pytest.mark.usefixtures("stand_in", "mixed_success")
def test_prefixes_are_kept_from_rollout_to_update(scheduler: str, folders: dict[str, Path], tmp_path: Path) -> None:
    more = ["--policy.train-expert-only", "--policy.prefix-cache-gib", "0.5", "--scheduler", scheduler]
    if scheduler == "pipelined":
        more += ["--learner.minibatch-size", "None", "--learner.minibatch-groups", "4"]
    assert main(train_words(folders["pi0"], tmp_path / "run", "pi0", "ppo", *more)) == 0
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "prefix/found" in row]
    assert rows
    assert all(row["prefix/found"] > 0 and row["prefix/missed"] == 0 for row in rows)
    assert _info(tmp_path / "run")["policy"]["prefix_cache_bytes"] == 2**29


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy.prefix-cache-gib", "1"], "add --policy.train-expert-only"),
        (["--policy.train-expert-only", "--policy.prefix-cache-gib", "-1"], "must not be negative"),
        (
            ["--policy.train-expert-only", "--policy.prefix-cache-gib", "1", "--scheduler", "ray"],
            "--scheduler serial or",
        ),
        (
            [
                "--policy.train-expert-only",
                "--policy.prefix-cache-gib",
                "1",
                "--learner.num-processes",
                "2",
                "--learner.fsdp",
            ],
            "a sharded copy learns",
        ),
        (
            [
                "--policy.train-expert-only",
                "--policy.prefix-cache-gib",
                "1",
                "--scheduler",
                "pipelined",
                "--scheduler.act-device",
                "cuda:1",
            ],
            "leave one of the two out",
        ),
    ],
)
def test_prefixes_are_not_kept_in_vain(
    words: list[str], message: str, folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train_words(folders["pi0"], tmp_path / "run", "pi0", "grpo", *words)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


PUBLISHED = {
    "openvla": ("openvla", []),
    "lora": (
        "openvla",
        [
            "--policy.lora-rank",
            "2",
            "--policy.dtype",
            "bfloat16",
            "--policy.gradient-checkpointing",
            "--learner.recompute-old-log-probs",
        ],
    ),
    "oft": ("openvla_oft", ["--policy.variant", "rlinf"]),
}


@pytest.mark.parametrize("case", PUBLISHED)
@pytest.mark.usefixtures("stand_in")
def test_a_published_folder_trains_and_goes_on(case: str, published: Path, tmp_path: Path) -> None:
    kind, more = PUBLISHED[case]
    run = tmp_path / "run"
    assert main(train_words(published, run, kind, "grpo", "--policy.unnorm-key", KEY, *more)) == 0
    info = _info(run)
    assert info["policy"]["unnorm_key"] == KEY
    simulator = info["simulator"]
    assert [simulator[name] for name in ("cameras", "image_height", "image_width")] == [1, SIZE, SIZE]
    resolved = run / "config.yaml"
    resolved.write_text(resolved.read_text().replace("iterations: 1", "iterations: 2"))
    assert main(["train", "--resume", str(run)]) == 0
    assert read_metrics(run / "metrics.jsonl")[-1]["step"] == 2


@pytest.mark.usefixtures("stand_in")
def test_an_export_says_everything_itself(published: Path, tmp_path: Path) -> None:
    assert (
        main(
            [
                "export",
                "--checkpoint",
                str(published),
                "--policy",
                "openvla",
                "--unnorm-key",
                KEY,
                "--out",
                str(tmp_path / "ours"),
            ]
        )
        == 0
    )
    assert main(train_words(tmp_path / "ours", tmp_path / "run", "openvla", "ppo")) == 0
    assert _info(tmp_path / "run")["policy"]["unnorm_key"] == KEY


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["openvla"], "choose one with the option unnorm-key. Available: bridge_orig, libero_goal_no_noops"),
        (["openvla_oft", "--policy.unnorm-key", KEY], "choose its variant, one of official, simplevla, rlinf"),
        (["openvla_oft", "--policy.film", "True"], "choose that too, with --policy.variant"),
        (["openvla", "--policy.unnorm-key", "libero"], "libero_goal_no_noops"),
        (["pi0", "--policy.preset", "pi0_base"], "published"),
        (["smolvla", "--policy.tokenizer", "tokenizer.json"], "holds architecture 'openvla', not 'smolvla'"),
        (["smolvla"], "not 'smolvla': choose the matching --policy"),
    ],
)
@pytest.mark.usefixtures("stand_in")
def test_what_a_published_folder_lacks_is_one_line(
    words: list[str], message: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, *more = words
    assert main(train_words(published, tmp_path / "run", kind, "grpo", *more)) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_policy_is_opened_as_what_it_is(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    smolvla = ["--checkpoint", str(folders["smolvla"]), "--out", str(folders["smolvla"].parent / "exported")]
    for words, message in (
        (["--preset", "pi0_base"], "--preset does not apply"),
        (["--layout", "openpi"], "--layout openpi is for pi0"),
        (["--unnorm-key", "x"], "no statistics of 'x'. Known: default"),
        (["--cameras", "a", "b"], "has its own: not written"),
        (["--layout", "native", "--cameras", "a", "b"], "--layout native has none: leave it out"),
    ):
        assert main(["export", *smolvla, *words]) == 2
        assert message in capsys.readouterr().err
    for kind, other in (("pi0", "smolvla"), ("smolvla", "pi0")):
        for words in (["train", "tabletop", "--policy.checkpoint"], ["eval", "tabletop", "--checkpoint"]):
            assert main([*words, str(folders[other]), "--policy", kind]) == 2
            said = capsys.readouterr().err
            assert f"holds architecture '{other}', not '{kind}': choose the matching --policy" in said


@pytest.mark.parametrize("kind", ["openvla_oft", "pi0", "smolvla", "act"])
def test_kinds_that_do_not_ship_say_how_to_get_one(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tabletop", "--policy", kind]) == 2
    assert f"embodied-rl sft --policy {kind}" in capsys.readouterr().err


def test_a_benchmark_takes_every_kind_and_crops_once(
    world: type[World], folders: dict[str, Path], published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["eval", "tabletop", "--suite", "object", "--states-per-task", "1", "--videos", "0"]
    pi0 = [*command, "--checkpoint", str(folders["pi0"]), "--output", str(tmp_path / "pi0"), "--protocol", "openpi"]
    assert main(pi0) == 0
    deviations = json.loads((tmp_path / "pi0" / "report.json").read_text())["deviations"]
    assert not [line for line in deviations if "gripper" in line]
    smolvla = [*command, "--checkpoint", str(folders["smolvla"]), "--output", str(tmp_path / "smolvla")]
    assert (
        main([*smolvla, "--protocol", "lerobot", "--efficient.visual-tokens", "8", "--efficient.denoise-reuse", "2"])
        == 0
    )
    deviations = json.loads((tmp_path / "smolvla" / "report.json").read_text())["deviations"]
    assert deviations == ["picture side: 64 (the protocol's policies: 256)"]

    cropped: list[int] = []
    crop = images.center_crop_tf
    monkeypatch.setattr(images, "center_crop_tf", lambda *words: (cropped.append(1), crop(*words))[1])
    chosen = [*command, "--checkpoint", str(published), "--unnorm-key", KEY, "--protocol", "simplevla"]
    oft = ["--policy", "openvla_oft", "--variant", "rlinf", "--output", str(tmp_path / "oft")]
    assert main([*chosen, *oft]) == 0
    assert not cropped, "it crops itself"
    assert main([*chosen, "--policy", "openvla", "--output", str(tmp_path / "whole")]) == 0
    assert cropped, "by the protocol"


def test_an_evaluation_is_not_resumed_with_other_adapters(
    world: type[World], published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def adapted(shift: float) -> None:
        policy = load_openvla(published, LoadOptions(architecture="openvla", unnorm_key=KEY))
        adapt_policy(policy, published, 2)
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                if ".lora_B." in name:
                    parameter.add_(shift)
        save_policy(policy, tmp_path / "lora", {})

    adapted(0.01)
    command = ["eval", "tabletop", "--suite", "object", "--states-per-task", "1", "--videos", "0"]
    output = tmp_path / "out"
    assert main([*command, "--checkpoint", str(tmp_path / "lora"), "--output", str(output)]) == 0
    assert main(["eval", "--resume", str(output)]) == 0
    adapted(0.02)
    capsys.readouterr()
    assert main(["eval", "--resume", str(output)]) == 2
    said = capsys.readouterr().err
    assert "was begun with weights" in said
    assert said.count("\n") == 1


def test_a_corrupt_checkpoint_is_neither_evaluated_nor_exported(
    world: type[World], folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(folders["pi0"], tmp_path / "pi0")
    data = bytearray((folder / "model.safetensors").read_bytes())
    for place in range(len(data) - 4000, len(data), 4):
        data[place] ^= 1  # low bits: every number stays finite
    (folder / "model.safetensors").write_bytes(data)
    suite = ["--suite", "tabletop_object", "--states-per-task", "1"]
    for words in (
        ["eval", "tabletop", "--suite", "object", "--checkpoint", str(folder), "--output", str(tmp_path / "out")],
        ["eval", "--checkpoint", str(folder), *suite],
        ["export", "--checkpoint", str(folder), "--out", str(tmp_path / "exported"), "--layout", "native"],
        ["train", "tabletop", "--policy", "pi0", "--policy.checkpoint", str(folder), "--output", str(tmp_path / "run")],
    ):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "is corrupt (model.safetensors has changed" in said
        assert said.count("\n") == 1
    assert not (tmp_path / "exported").exists()
    assert not (tmp_path / "run").exists()


def test_a_small_policy_is_exported_in_our_own_layout(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind, folder in folders.items():
        assert main(["export", "--checkpoint", str(folder), "--out", str(tmp_path / kind / "published")]) == 2
        assert "--layout native" in capsys.readouterr().err
        native = tmp_path / kind / "native"
        assert main(["export", "--checkpoint", str(folder), "--out", str(native), "--layout", "native"]) == 0
        before, after = load_policy(folder).state_dict(), load_policy(native).state_dict()
        assert all(tensor.equal(after[name]) for name, tensor in before.items())


def test_an_other_rank_than_the_checkpoints_is_refused(published: Path, tmp_path: Path) -> None:
    policy = load_openvla(published, LoadOptions(architecture="openvla", unnorm_key=KEY))
    adapt_policy(policy, published, 2)
    for rank in (0, 4):
        with pytest.raises(UserError, match=r"has LoRA adapters of rank 2, and --policy\.lora-rank is"):
            prepare_policy(policy, OpenVLAConfig(lora_rank=rank), tmp_path)
    prepare_policy(policy, OpenVLAConfig(lora_rank=2), tmp_path)
