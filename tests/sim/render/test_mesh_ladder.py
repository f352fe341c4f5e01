"""Decimated meshes: what a rung may do to the surface and the texture, and how ladders are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.sim.render.mesh import ladder as module
from embodied_rl.sim.render.mesh.decimate import ERRORS, decimate
from embodied_rl.sim.render.mesh.ladder import Ladders, mesh_key

SIDE, HEIGHT = 30, 0.008


def sheet(*, seam: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, normals and texture coordinates [F, 3, *] of a wavy sheet of 20 cm; with a seam the right half of the
    texture lies elsewhere."""
    axis = np.linspace(-0.1, 0.1, SIDE)
    faces = []
    for j in range(SIDE - 1):
        for i in range(SIDE - 1):
            quad = [(axis[i], axis[j]), (axis[i + 1], axis[j]), (axis[i + 1], axis[j + 1]), (axis[i], axis[j + 1])]
            faces += [[quad[k] for k in pick] for pick in ((0, 1, 2), (0, 2, 3))]
    flat = np.array(faces)
    points = np.concatenate([flat, HEIGHT * np.sin(30 * flat[..., :1])], -1).astype(np.float32)
    normals = np.stack(
        [-30 * HEIGHT * np.cos(30 * flat[..., 0]), np.zeros(flat.shape[:2]), np.ones(flat.shape[:2])], -1
    )
    coords = 5 * flat + 0.5
    if seam:
        coords[flat[..., 0].mean(1) > 0] += 3
    return points, normals.astype(np.float32), coords.astype(np.float32)


def test_a_rung_is_smaller_and_stays_near_the_surface() -> None:
    points, normals, coords = sheet()
    ladder = decimate(points, normals, coords)
    counts = [len(rung) for rung in ladder]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] < len(points) / 30
    assert counts[3] < counts[0] / 2
    for error, rung in zip(ERRORS[:4], ladder, strict=False):
        middle = points.reshape(-1, 3)[rung].mean(1)
        gap = middle[:, 2] - HEIGHT * np.sin(30 * middle[:, 0])
        assert np.sqrt((gap**2).mean()) < 2 * error
        assert np.ptp(points.reshape(-1, 3)[rung][..., :2]) == pytest.approx(0.2, abs=4 * error)  # the border stays


def test_no_triangle_crosses_a_seam_of_the_texture() -> None:
    points, normals, coords = sheet(seam=True)
    for rung in decimate(points, normals, coords)[:3]:
        jump = (coords.reshape(-1, 2) - (5 * points.reshape(-1, 3)[:, :2] + 0.5))[rung][..., 0] > 1.5
        assert (jump.all(1) | ~jump.any(1)).all()
        assert jump.any()
        assert not jump.all()


def test_texture_costs_triangles_where_it_would_slide() -> None:
    points, normals, coords = sheet()
    flat = points * (1, 1, 0)
    bent = coords + 0.2 * np.sin(40 * points[..., :2])
    assert len(decimate(flat, normals, bent)[1]) > 4 * len(decimate(flat, normals, coords)[1])
    assert len(decimate(flat, normals, None)[1]) <= 8


def test_ladders_are_made_once_on_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = sheet()
    made = Ladders(tmp_path / "new" / "folder").get(*mesh)
    monkeypatch.setattr(module, "decimate", lambda *_: pytest.fail("made again"))
    read = Ladders(tmp_path / "new" / "folder").get(*mesh)
    assert all(np.array_equal(a, b) for a, b in zip(made, read, strict=True))
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_key_is_of_all_that_a_ladder_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    points, normals, coords = sheet()
    keys = {
        mesh_key(points, normals, coords),
        mesh_key(points, normals, None),
        mesh_key(points + 1e-4, normals, coords),
        mesh_key(points, -normals, coords),
        mesh_key(points, normals, coords + 1e-3),
    }
    monkeypatch.setattr(module, "VERSION", -1)
    assert len(keys | {mesh_key(points, normals, coords)}) == 6


def test_a_damaged_ladder_is_named(tmp_path: Path) -> None:
    mesh = sheet()
    Ladders(tmp_path).get(*mesh)
    path = next(path for path in tmp_path.rglob("*") if path.is_file())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=f"{path.name} is damaged; delete it"):
        Ladders(tmp_path).get(*mesh)


def test_an_empty_rung_is_not_the_one_before(tmp_path: Path) -> None:
    points, normals, coords = sheet()
    crumb = points * 0.02, normals, coords  # smaller than the coarser rungs' errors
    ladder = Ladders(tmp_path).get(*crumb)
    assert len(ladder[0]) > 0
    assert len(ladder[-1]) == 0
    assert [len(rung) for rung in Ladders(tmp_path).get(*crumb)] == [len(rung) for rung in ladder]
