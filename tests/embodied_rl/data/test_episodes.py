"""The store of episodes: read back bit for bit, added once, seen by key, whole or not there; a valid LeRobot v3 set."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from embodied_rl.data import video
from embodied_rl.data.columns import STEP_COLUMNS, StepColumns, chunk_transitions, step_columns
from embodied_rl.data.episodes import EpisodeInfo, EpisodeStore, open_store
from embodied_rl.data.layout import DECISION, DONE, INTERVENTION, REWARD, SUCCESS, DatasetSpec, Episode
from embodied_rl.data.lerobot import join, load
from embodied_rl.errors import UserError
from tests.embodied_rl.data.conftest import SPEC, make_episode

INFO = EpisodeInfo("toy/push", 3, 7, success=1, ends_in_success=1, policy="abc")


def filled(key: int, length: int = 6, *, success: bool = True) -> Episode:
    """Decisions of 4 control steps; paid at the end."""
    last = np.arange(length) == length - 1
    columns = {
        REWARD: np.where(last & success, 1.0, 0.0).astype(np.float32),
        DONE: last,
        SUCCESS: last & success,
        INTERVENTION: np.zeros(length, bool),
        DECISION: (np.arange(length) // 4).astype(np.int32),
    }
    return replace(make_episode(key, length), columns=columns, executed=make_episode(key, length).action.copy())


def test_read_back_equals_what_was_added_bit_for_bit(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path, SPEC)
    episodes = [filled(key, 5 + key) for key in range(3)]
    for episode in reversed(episodes):
        assert store.add(episode, INFO)
    data = store.at(3)
    np.testing.assert_array_equal(data.images[:], np.concatenate([episode.images for episode in episodes]))
    np.testing.assert_array_equal(data.state, np.concatenate([episode.state for episode in episodes]))
    np.testing.assert_array_equal(data.action, np.concatenate([episode.action for episode in episodes]))
    assert data.starts.tolist() == [0, 5, 11, 18]
    assert not data.pushed.any()
    for name, values in zip(STEP_COLUMNS, (data.columns.reward, data.columns.done, data.columns.success), strict=False):
        np.testing.assert_array_equal(values, np.concatenate([episode.columns[name] for episode in episodes]))


def test_an_episode_is_added_once_and_gives_way_to_another_policys(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path, SPEC)
    assert store.add(filled(4), INFO)
    assert not store.add(filled(4, 9), replace(INFO, seed=8))
    assert len(store.at(1).images) == 6
    assert store.add(filled(4, 9), replace(INFO, policy="newer"))
    assert len(store.at(1).images) == 9
    assert store.keys() == [4]
    assert store.info(4) == replace(INFO, policy="newer")


def test_later_keys_are_unseen_whatever_came_first(tmp_path: Path) -> None:
    one, two = EpisodeStore(tmp_path / "one", SPEC), EpisodeStore(tmp_path / "two", SPEC)
    for store, order in ((one, (0, 1, 2)), (two, (2, 0, 1))):
        for key in order:
            store.add(filled(key, 5 + key), replace(INFO, success=key % 2, ends_in_success=key % 2))
    seen = [store.at(2) for store in (one, two)]
    assert [data.starts.tolist() for data in seen] == [[0, 5, 11]] * 2
    assert [data.success.tolist() for data in seen] == [[False, True]] * 2  # failures are kept, and marked
    np.testing.assert_array_equal(seen[0].images[:], seen[1].images[:])
    with pytest.raises(UserError, match="has 3 episodes, 4 are needed"):
        one.at(4)


def test_a_store_is_opened_as_it_was_made_and_refuses_others(tmp_path: Path) -> None:
    EpisodeStore(tmp_path, SPEC, {"demonstrations": "aa"}).add(filled(0), INFO)
    assert open_store(tmp_path).at(1).camera_names == ["agentview", "wrist"]
    with pytest.raises(UserError, match=r"another demonstrations \(aa, here bb\): put back what it was begun with"):
        EpisodeStore(tmp_path, SPEC, {"demonstrations": "bb"})
    with pytest.raises(UserError, match="another image size"):
        EpisodeStore(tmp_path, replace(SPEC, image_size=32), {"demonstrations": "aa"})
    with pytest.raises(UserError, match="holds no episodes"):
        open_store(tmp_path / "nowhere")


def test_without_cameras_numbers_are_kept_all_the_same(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path, replace(SPEC, cameras=()))
    store.add(replace(filled(0), images=filled(0).images[:, :0]), INFO)
    assert store.at(1).images.shape == (6, 0, 16, 16, 3)


def test_an_export_is_a_lerobot_set_with_the_columns_that_others_know(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "store", SPEC)
    for key in (0, 1):
        store.add(filled(key, success=key == 1), replace(INFO, success=key, ends_in_success=key))
    assert store.export(tmp_path / "day1", {"command": "test"}) == 2
    features = json.loads((tmp_path / "day1/meta/info.json").read_text())["features"]
    assert {name: features[name]["dtype"] for name in STEP_COLUMNS} == STEP_COLUMNS
    data, table = load(tmp_path / "day1"), pq.read_table(next((tmp_path / "day1/data").rglob("*.parquet")))
    assert data.success.tolist() == [False, True]
    assert table[REWARD].to_pylist() == [0.0] * 11 + [1.0]
    np.testing.assert_array_equal(data.images[:], store.at(2).images[:])
    np.testing.assert_array_equal(data.columns.decision, store.at(2).columns.decision)
    rows = pq.read_table(next((tmp_path / "day1/meta/episodes").rglob("*.parquet"))).to_pylist()
    assert [row["embodied_rl/success"] for row in rows] == [0, 1]
    assert {(row["embodied_rl/source"], row["embodied_rl/policy"]) for row in rows} == {("policy", "abc")}
    assert store.keys() == [0, 1]
    assert not list(tmp_path.glob("*.partial"))
    with pytest.raises(UserError, match="already exists"):
        store.export(tmp_path / "day1", {})


def test_what_a_data_set_does_not_say_is_neutral(dataset: Path) -> None:
    data = load(dataset)
    columns = step_columns(pa.table({}), data.starts, np.array([True, False, True, True, True]))
    assert columns.reward[data.starts[1:] - 1].tolist() == [1, 0, 1, 1, 1]
    assert columns.done.sum() == 5
    assert columns.reward.sum() == 4
    assert not columns.human.any()
    assert columns.decision[:7].tolist() == [0, 1, 2, 3, 4, 0, 1]
    np.testing.assert_array_equal(data.columns.done, columns.done)


def test_columns_of_other_makers_are_read_as_far_as_they_are_numbers() -> None:
    table = pa.table(
        {
            REWARD: pa.array([[0.0], [2.0], [1.0]], pa.list_(pa.float64())),
            DONE: pa.array([0, 0, 1]),
            SUCCESS: pa.array(["no", "no", "yes"]),
            INTERVENTION: pa.array([True, None, False]),
        }
    )
    columns = step_columns(table, np.array([0, 3]), np.array([True]))
    assert columns.reward.tolist() == [0.0, 2.0, 1.0]
    assert columns.done.tolist() == columns.success.tolist() == [False, False, True]
    assert not columns.human.any()


def test_transitions_are_rows_of_frames() -> None:
    """Two episodes: chunks of 2, 2 and 1 control steps, then one of 2 with a person in its second step."""
    columns = StepColumns(
        reward=np.array([0, 1, 2, 0, 4, 0, 1], np.float32),
        done=np.zeros(7, bool),
        success=np.zeros(7, bool),
        human=np.array([0, 0, 0, 0, 0, 0, 1], bool),
        decision=np.array([0, 0, 1, 1, 2, 0, 0], np.int32),
    )
    found = chunk_transitions(columns, np.array([0, 5, 7]), gamma=0.5)
    assert found.row.tolist() == [0, 2, 4, 5]
    assert found.steps.tolist() == [2, 2, 1, 2]
    assert found.reward.tolist() == [0.5, 2.0, 4.0, 0.5]
    assert found.discount.tolist() == [0.25, 0.25, 0.0, 0.0]
    assert found.next_row.tolist() == [2, 4, -1, -1]
    assert found.human.tolist() == [False, False, False, True]


KILLED = """
import signal, sys
from pathlib import Path
from embodied_rl.data import writer
from embodied_rl.data.episodes import EpisodeStore
from tests.embodied_rl.data.test_episodes import INFO, SPEC, filled
store = EpisodeStore(Path(sys.argv[1]), SPEC)
store.add(filled(0), INFO)
writer.pq.write_table = lambda *a: (print("half", flush=True), signal.pause())
store.add(filled(1), INFO)
"""


@pytest.mark.process
def test_a_kill_in_the_middle_of_an_episode_leaves_the_others(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        process.send_signal(signal.SIGKILL)
    store = open_store(tmp_path)
    assert store.keys() == [0]
    assert store.add(filled(1), INFO)
    np.testing.assert_array_equal(store.at(2).images[6:], filled(1).images)


def test_a_video_that_lost_frames_is_one_line(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path, DatasetSpec(("agentview",), 16, SPEC.state_names, SPEC.action_names))
    store.add(replace(filled(0), images=filled(0).images[:, :1]), INFO)
    video.write_lossless(tmp_path / "episodes/000000.agentview.mp4", filled(0).images[:4, 0], 20)
    with pytest.raises(UserError, match="has 4 frames, its episode 6"):
        store.at(1)


def test_an_end_that_nobody_judged_is_no_failure(tmp_path: Path) -> None:
    """Nor is that of a success's first part, before a hold; a success by a person's help is one."""
    store = EpisodeStore(tmp_path / "store", SPEC)
    ends = [(1, 1), (0, 0), (-1, 0), (1, 0), (0, 1)]
    for key, (success, well) in enumerate(ends):
        store.add(filled(key, success=bool(well)), replace(INFO, success=success, ends_in_success=well))
    store.export(tmp_path / "day1", {"command": "test"})
    for data in (store.at(5), load(tmp_path / "day1"), join([load(tmp_path / "day1")] * 2)):
        assert data.judged.tolist() == [True, True, False, False, True] * (len(data) // 5)
        assert data.success.tolist() == [True, False, False, False, True] * (len(data) // 5)
