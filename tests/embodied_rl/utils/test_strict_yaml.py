"""The one reader of YAML: what a plain one would silently read otherwise is refused, with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied_rl.config.train import TrainConfig, dump_yaml, load_yaml
from embodied_rl.errors import UserError
from embodied_rl.utils.strict_yaml import read_mapping


def test_what_a_run_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(TrainConfig()))
    assert load_yaml(path) == TrainConfig()


def test_an_empty_file_names_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("# nothing yet\n")
    assert read_mapping(path) == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nlearner: {lr: 0.1}\nseed: 2\n", "x.yaml line 3: the key seed occurs twice: remove one."),
        ("a: {b: 1, b: 2}", "x.yaml line 1: the key b occurs twice"),
        ("a: &one 1\nb: *one\n", "line 1: anchors and aliases (& and *) are not read"),
        ("a: {<<: {b: 1}}", "the key << is not read: write the keys out"),
        ("seed: 0100", "0100 would be read to another base"),
        ("minutes: 1:40", "1:40 would be read to another base"),
        ("a: " + "[" * 30 + "]" * 30, "more than 20 deep"),
        ("a: [", "x.yaml is not valid YAML"),
        ("a: !!python/name:os.system x", "x.yaml is not valid YAML"),
        ("- 1", "x.yaml must hold keys and values"),
        ("a: 1\n---\na: 2\n", "x.yaml is not valid YAML"),
        ('"a\\nb": 1', "holds what cannot be printed"),
    ],
)
def test_what_could_be_meant_otherwise_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_mapping(path, "x.yaml")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    with pytest.raises(UserError, match=f"cannot read {path}: No such file"):
        read_mapping(path)
    path.write_bytes(b"a: \xff")
    with pytest.raises(UserError, match=f"{path} is not valid YAML"):
        read_mapping(path)
    path.write_text("# " + "x" * (1 << 20))
    with pytest.raises(UserError, match="more than 1 MiB"):
        read_mapping(path)
