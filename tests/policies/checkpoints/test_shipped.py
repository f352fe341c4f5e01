"""Which policy of the package a suite begins with."""

from __future__ import annotations

from pathlib import Path

import pytest

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints import shipped


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("nano", "libero_spatial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    monkeypatch.setattr(shipped, "_folder", lambda: tmp_path)
    return tmp_path


def test_a_suite_begins_with_its_own_policy(two: Path) -> None:
    assert shipped.shipped_for("tabletop_goal") == "shipped"
    assert shipped.shipped_for("libero_spatial") == "shipped:libero_spatial"
    assert shipped.shipped_for("libero_spatial_swap") == shipped.require_shipped_for("libero_spatial")
    assert shipped.shipped_for("libero_90") is None
    assert shipped.shipped_for("libero_10_lan") is None
    assert shipped.shipped_folder("shipped") == two / "nano"
    assert shipped.shipped_folder("shipped:libero_spatial") == two / "libero_spatial"


def test_a_suite_without_one_is_refused(two: Path) -> None:
    with pytest.raises(
        UserError, match=r"no policy for 'libero_10' ships.*: shipped \(.*\), shipped:libero_spatial\.$"
    ):
        shipped.shipped_folder("shipped:libero_10")
    with pytest.raises(UserError, match=r"no policy for libero_10_lan ships.* \(--checkpoint\).* collect libero_10"):
        shipped.require_shipped_for("libero_10_lan")


@pytest.mark.parametrize(("name", "is_one"), [("shipped", True), ("shipped:x", True), ("ship", False), ("a/b", False)])
def test_names_of_shipped_policies(name: str, is_one: bool) -> None:
    assert shipped.is_shipped(name) is is_one
