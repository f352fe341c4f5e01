"""Data sets of others: odd ones are read rightly, damaged and hostile ones are refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.config.sft import SftCommand
from embodied_rl.data.actions import fit_actions
from embodied_rl.data.frames import Frames
from embodied_rl.data.lerobot import Demonstrations, load
from embodied_rl.errors import UserError
from embodied_rl.jobs import sft_data
from embodied_rl.utils.console import LastingConsole
from tests.embodied_rl.data.by_hand import STEP, ByHand, make

NTSC = 30_000 / 1001


def _check_rows(data: Demonstrations) -> None:
    """Every row must have the image that was written for it, in every camera."""
    levels = np.asarray(data.images[:]).mean(axis=(2, 3, 4)) / STEP
    assert np.abs(levels - np.arange(len(data.images))[:, None]).max() < 0.4


@pytest.mark.parametrize(
    "changes",
    [
        {"fps": 12.5, "lengths": (40, 5, 3)},
        {"fps": NTSC, "lengths": (40, 5, 3)},
        {"fps": 0.5, "lengths": (3, 4)},
        {"encoder": {"bf": "3", "g": "7"}},
        {"encoder": {"g": "250"}, "lengths": (50,)},
        {"declared": [3, 64, 64]},
        {"sizes": {"agentview": (48, 64)}},
        {"sizes": {"agentview": (48, 64)}, "declared": [3, 48, 64]},
        {"kind": "image"},
        {"kind": "image", "declared": [3, 64, 64]},
        {"lengths": (9, 0, 8)},
        {"actions": 1, "scalar": True},
        {"lists": True, "dtype": "float64"},
        {"columns": {"timestamp": pa.array([[t / 20] for n in (9, 7, 8) for t in range(n)])}},
    ],
)
def test_odd_but_right(tmp_path: Path, changes: dict[str, Any]) -> None:
    data = load(make(tmp_path / "d", **changes))
    lengths = [n for n in changes.get("lengths", (9, 7, 8)) if n]
    np.testing.assert_array_equal(np.diff(data.starts), lengths)
    assert data.action.shape == (sum(lengths), changes.get("actions", 7))
    _check_rows(data)


def test_each_frame_has_its_own_instruction(tmp_path: Path) -> None:
    words = ["open it", "close it"]
    data = load(make(tmp_path / "d", lengths=(9, 9, 9), instructions=words, tasks=[[0] * 2 + [1] * 7] * 3))
    assert data.instruction == (["open it"] * 2 + ["close it"] * 7) * 3
    assert load(make(tmp_path / "e", rows={"tasks": []})).instruction == ["pick up the soup can"] * 24


def _with(column: str, row: int, value: float, width: int = 7) -> dict[str, Any]:
    numbers = np.zeros((24, width), np.float32)
    numbers[row] = value
    return {"columns": {column: pa.array(numbers.tolist())}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (_with("action", 11, np.nan), "'action' is not finite in 1 frame, first in frame 2 of episode 1"),
        (_with("action", 11, np.inf) | {"executed": True}, "'action' is not finite"),
        (_with("executed_action", 0, np.nan) | {"executed": True}, "'executed_action' is not finite"),
        (_with("observation.state", 3, -np.inf, 8), r"'observation.state' is not finite"),
        ({"info": {"data_path": "../x"}}, "leads out of the data set"),
        ({"info": {"data_path": "/etc/passwd"}}, "leads out of the data set"),
        ({"info": {"video_path": "{video_key}/../../{file_index}"}}, "leads out of the data set"),
        ({"info": {"data_path": "{chunk_index.__class__}"}}, "is no path with"),
        ({"info": {"data_path": "{chunk_index:9999999999d}"}}, "is no path with"),
        ({"info": {"data_path": "{"}}, "damaged"),
        ({"info": {"fps": 0}}, "fps must be"),
        ({"info": {"fps": "20"}}, "fps must be"),
        ({"info": {"fps": float("nan")}}, "fps must be"),
        ({"info": {"fps": 10}}, "9 frames at 10 a second"),
        ({"info": {"features": []}}, "features"),
        ({"info": {"features": {"action": {}, "observation.state": {}}}}, "no cameras"),
        ({"info": {"embodied_rl": 3}}, "must be an object"),
        ({"info": {"codebase_version": "v1.6"}}, "this reads v3.0, v2.0, v2.1"),
        ({"info": {"codebase_version": "v2.1"}}, "episodes.jsonl is missing"),
        ({"rows": {"length": 10**15}}, "whole number|data rows"),
        ({"rows": {"episode_index": 0}}, "one episode_index"),
        ({"rows": {"videos/observation.images.wrist/from_timestamp": -1.0}}, "time in seconds"),
        ({"lengths": (0, 0)}, "no frames"),
        ({"instructions": ["  "]}, "has no text"),
        ({"declared": [100_000, 100_000, 3]}, "correct the shape"),
        ({"declared": [100_000, 100_000, 3], "kind": "image"}, "correct the shape"),
        ({"declared": [64, 64, 1]}, "no colour camera: agentview .one channel"),
        ({"sizes": {"agentview": (64, 64), "wrist": (32, 32)}}, "share one image size"),
        ({"columns": {"task_index": pa.array([5] * 24)}}, "task_index 5"),
        ({"columns": {"action": pa.array([[1.0]] * 12 + [[1.0, 2.0, 3.0]] * 12)}}, "different lengths"),
        ({"columns": {"action": pa.array(["x"] * 24)}}, "must hold numbers"),
        ({"columns": {"action": pa.array([None] + [[1.0] * 7] * 23)}}, "lacks numbers|different lengths"),
        ({"columns": {"timestamp": pa.array([0.0] * 24)}}, "two rows are at one frame"),
    ],
)
def test_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load(make(tmp_path / "d", **changes))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_frames_stay_within_their_budget_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodied_rl.data.frames._BLOCK_BYTES", 2 * 64 * 64 * 3)
    images = load(make(tmp_path / "d", encoder={"g": "5", "bf": "2"})).images
    assert isinstance(images, Frames)
    whole = images[:]
    rng = np.random.default_rng(0)
    for budget in (0, 5 * 64 * 64 * 3, 10**9):
        images.cache_bytes = budget
        for _ in range(8):
            rows = rng.integers(0, len(images), 6)
            np.testing.assert_array_equal(images[rows], whole[rows])
            assert images.kept_bytes <= max(budget, 0) or budget > whole.nbytes
    assert images.shape == whole.shape


def test_cameras_come_in_the_order_that_is_asked_for(tmp_path: Path) -> None:
    root = make(tmp_path / "d", sizes={"wrist": (64, 64), "agentview": (64, 64)})
    assert load(root).camera_names == ["wrist", "agentview"]
    assert load(root, ("agentview", "observation.images.wrist")).camera_names == ["agentview", "wrist"]
    with pytest.raises(UserError, match="Did you mean 'wrist'"):
        load(root, ("wrists",))
    with pytest.raises(UserError, match="twice"):
        load(root, ("wrist", "wrist"))


def _sft(root: Path, *words: str) -> tuple[str, ...]:
    command = SftCommand(data=(str(root),), out=root / "out", cameras=tuple(words))
    (chosen,) = sft_data._cameras(command, [root])
    assert [place for place, _ in chosen] == list(range(len(chosen)))
    return tuple(name for _, name in chosen)


def test_sft_maps_cameras_by_name_or_asks(tmp_path: Path) -> None:
    def named(*names: str) -> Path:
        root = tmp_path / "-".join(names)
        return make(root, sizes=dict.fromkeys(names, (16, 16)))

    assert _sft(named("robot0_eye_in_hand", "agentview")) == ("agentview", "robot0_eye_in_hand")
    assert _sft(named("wrist_image", "image")) == ("image", "wrist_image")
    assert _sft(named("top")) == ("top",)
    odd = named("image2", "image")
    with pytest.raises(UserError, match="--cameras image2 image"):
        _sft(odd)
    assert _sft(odd, "image", "image2") == ("image", "image2")
    with pytest.raises(UserError, match="keep its order"):
        _sft(tmp_path / "robot0_eye_in_hand-agentview", "robot0_eye_in_hand", "agentview")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"info": {"video.is_depth_map": True}}, "depth map"),
        ({"video_info": {"video.is_depth_map": True}}, "depth map"),
        ({"info": {"is_depth_map": True}}, "depth map"),
        ({"info": {"video.channels": 1}}, "one channel"),
        ({"info": {"video.pix_fmt": "gray12le"}}, "one channel"),
        ({"shape": [16, 16, 1]}, "one channel"),
        ({"shape": [1, 16, 16]}, "one channel"),
        ({"name": "front_depth"}, "by its name: depth"),
        ({"name": "frontDepth"}, "by its name: depth"),
        ({"name": "wrist.Segmentation"}, "by its name: segmentation"),
    ],
)
def test_pictures_without_colours_are_no_cameras(tmp_path: Path, entry: dict[str, Any], reason: str) -> None:
    entry = dict(entry)
    name = entry.pop("name", "second")
    root = make(tmp_path / "d", sizes=dict.fromkeys((name, "top"), (16, 16)))
    info = json.loads((root / "meta/info.json").read_text())
    key = f"observation.images.{name}"
    info["features"][key] |= entry
    (root / "meta/info.json").write_text(json.dumps(info))
    data = load(root)
    assert data.camera_names == ["top"]
    assert data.no_cameras == {key: reason}
    if reason == "depth map":
        with pytest.raises(UserError, match="depth map, no colour camera"):
            load(root, (name,))
    elif "shape" not in entry:
        assert load(root, (name,)).camera_names == [name]  # a person says that it is one
    del info["features"]["observation.images.top"]
    (root / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match=f"no colour camera: {name} .{reason}"):
        load(root)


def _rate(root: Path, fps: float | None, capsys: pytest.CaptureFixture[str]) -> tuple[float, str]:
    command = SftCommand(data=(str(root),), out=root / "out", fps=fps)
    return sft_data._control_rate(command, str(root), load(root), LastingConsole()), capsys.readouterr().out


def test_another_rate_than_the_simulators_must_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ten, thirty, right = (make(tmp_path / str(fps), fps=fps) for fps in (10, 30, 20.04))
    assert _rate(right, None, capsys) == (20.04, "20.04 actions a second, as the simulator\n")
    for root, words in ((ten, "has 10 frames.*too fast"), (thirty, "has 30 frames.*too slow")):
        with pytest.raises(UserError, match=words):
            _rate(root, None, capsys)
    assert _rate(ten, 20, capsys) == (20, "20 actions a second (--fps; info.json says 10), as the simulator\n")
    rate, line = _rate(ten, 10, capsys)
    assert (rate, line) == (10, "10 actions a second; the simulator takes 20: eval and train will refuse this policy\n")
    assert _rate(right, 10, capsys)[0] == 10  # the stamp of a data set may be wrong either way


def test_actions_in_other_units_are_refused_or_mended(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="lies beyond -1 to 1"):
        fit_actions(load(make(tmp_path / "degrees", scale=90.0)), "auto")
    data = load(make(tmp_path / "zero_one", gripper=(0.0, 1.0)))
    with pytest.raises(UserError, match="--gripper one_opens or one_closes"):
        fit_actions(data, "auto")
    before = data.action.copy()
    assert fit_actions(data, "signed") == []
    np.testing.assert_array_equal(data.action, before)
    fit_actions(data, "one_opens")
    np.testing.assert_array_equal(data.action[:, -1], 1 - 2 * before[:, -1])
    with pytest.raises(UserError, match="for numbers from 0 to 1"):
        fit_actions(data, "one_closes")
    few = load(make(tmp_path / "few", lengths=(150,), sizes={"a": (16, 16)}))
    (said,) = fit_actions(few, "auto")
    assert said == "7 actions in [-1, 1], the last the gripper's, -1 open and 1 closed: --gripper none if it is a joint"
    assert fit_actions(few, "signed") == []
    few.action[3, 2] = 1.5
    assert "action 2 lies beyond" in fit_actions(few, "auto")[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("fuzz") / "whole", ByHand(sizes={"a": (16, 16), "hand": (16, 16)}))


_JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.just([]),
    st.just({}),
    st.lists(st.integers(-3, 200), max_size=4),
    st.sampled_from(["../x", "{x}", "{0}", "video", "image", "\0", "v3.0"]),
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in _paths(item, (*path, key)))]


def _changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _changed(value[path[0]], path[1:], new)
    return copy


@settings(max_examples=150, deadline=None)
@given(data=st.data(), what=st.sampled_from(["info", "episodes", "tasks", "rows"]), junk=_JUNK)
def test_whatever_is_changed_gives_right_rows_or_one_line(
    whole: Path, data: st.DataObject, what: str, junk: Any
) -> None:
    """One value of the metadata or the data is replaced by another of any type."""
    root = whole.with_name("changed")
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(whole, root)
    names = {"episodes": "meta/episodes/chunk-000/file-000", "tasks": "meta/tasks", "rows": "data/chunk-000/file-000"}
    if what == "info":
        path = root / "meta/info.json"
        info = json.loads(path.read_text())
        path.write_text(json.dumps(_changed(info, data.draw(st.sampled_from(_paths(info))), junk)))
    else:
        file = root / f"{names[what]}.parquet"
        table = pq.read_table(file)
        name = data.draw(st.sampled_from(table.column_names))
        values = table[name].to_pylist()
        values[data.draw(st.integers(0, len(values) - 1))] = junk
        try:
            column = pa.array(values)
        except (pa.ArrowException, OverflowError, TypeError):  # of mixed types: then all are replaced
            try:
                column = pa.array([junk] * len(values))
            except OverflowError:
                return
        table = table.set_column(table.column_names.index(name), name, column)
        try:
            pq.write_table(table, file)
        except pa.ArrowException:  # parquet has no such type
            return
    refusal = ""
    try:
        found = load(root)
        levels = found.images[:]
    except UserError as error:
        refusal = str(error)
    else:
        assert len(levels) == 24
        assert np.isfinite(found.action).all()
        assert np.isfinite(found.state).all()
        _check_rows(found)
    assert "\n" not in refusal
