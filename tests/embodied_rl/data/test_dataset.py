"""The LeRobot v3 dataset: what is written is read back exactly, by others too, and a kill leaves nothing broken."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from embodied_rl.data import layout, video, writer
from embodied_rl.data.layout import DatasetSpec, Episode
from embodied_rl.data.lerobot import fingerprint, load
from embodied_rl.errors import UserError

CAMERA = "observation.images.agentview"


def test_round_trip_is_exact(dataset: Path, episodes: list[Episode]) -> None:
    data = load(dataset)
    assert data.cameras == (CAMERA, "observation.images.wrist")
    assert data.instruction == [episode.instruction for episode in episodes for _ in episode.images]
    np.testing.assert_array_equal(data.starts, np.cumsum([0, 5, 8, 11, 14, 17]))
    np.testing.assert_array_equal(data.images[:], np.concatenate([episode.images for episode in episodes]))
    np.testing.assert_array_equal(data.state, np.concatenate([episode.state for episode in episodes]))
    np.testing.assert_array_equal(data.action, np.concatenate([episode.action for episode in episodes]))


def test_round_trip_over_many_files(
    spec: DatasetSpec, tmp_path: Path, episodes: list[Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "CHUNK_FILES", 2)
    out = tmp_path / "many"
    partial = writer.begin(out, {})
    for episode in episodes:
        writer.add_episode(partial, spec, episode)
    writer.finalize(out, spec, {}, data_mb=0.001, video_mb=0.025)
    assert len(list(out.glob("data/*/*.parquet"))) > 2
    assert sorted(p.name for p in out.glob("data/*"))[:2] == ["chunk-000", "chunk-001"]
    assert 1 < len(list(out.glob(f"videos/{CAMERA}/*/*.mp4"))) < 5  # some files hold several episodes
    np.testing.assert_array_equal(load(out).images[:], np.concatenate([episode.images for episode in episodes]))


def test_info_follows_the_documented_schema(spec: DatasetSpec, dataset: Path) -> None:
    info = json.loads((dataset / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert info["fps"] == 20
    assert info["robot_type"] == "panda"
    assert (info["total_episodes"], info["total_frames"], info["total_tasks"]) == (5, 55, 2)
    assert info["splits"] == {"train": "0:5"}
    assert info["chunks_size"] == 1000
    assert info["data_path"] == "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    assert info["video_path"] == "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    features = info["features"]
    assert set(features) == {
        CAMERA,
        "observation.images.wrist",
        "observation.state",
        "action",
        "executed_action",
        "timestamp",
        "frame_index",
        "episode_index",
        "index",
        "task_index",
    }
    for feature in features.values():
        assert set(feature) >= {"dtype", "shape", "names"}
    assert features[CAMERA]["shape"] == [16, 16, 3]
    assert features[CAMERA]["names"] == ["height", "width", "channels"]
    assert features[CAMERA]["info"]["video.codec"] == "h264"
    assert features[CAMERA]["info"]["video.fps"] == 20
    assert features["action"] == {"dtype": "float32", "shape": [7], "names": list(spec.action_names)}
    assert features["timestamp"] == {"dtype": "float32", "shape": [1], "names": None}
    assert info["embodied_rl"] == {"renderer": "none"}


def test_others_can_read_it_with_plain_parquet_and_av(dataset: Path, episodes: list[Episode]) -> None:
    """Find the frame of episode 3 as LeRobot does: from its row in meta/episodes, by file index and timestamp."""
    rows = {
        row["episode_index"]: row
        for row in pq.read_table(dataset / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    }
    row = rows[3]
    assert (row["length"], row["dataset_from_index"], row["dataset_to_index"]) == (14, 24, 38)
    assert row["tasks"] == ["push cube 1"]
    assert row["embodied_rl/seed"] == 3
    assert row[f"videos/{CAMERA}/from_timestamp"] == pytest.approx(24 / 20)
    assert row[f"videos/{CAMERA}/to_timestamp"] == pytest.approx(38 / 20)
    place = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
    table = pq.read_table(dataset / layout.DATA_PATH.format(**place)).slice(24, 14)
    np.testing.assert_allclose(np.array(table["action"].to_pylist()), episodes[3].action)
    np.testing.assert_allclose(np.array(table["executed_action"].to_pylist()), episodes[3].executed)
    assert table["frame_index"].to_pylist() == list(range(14))
    assert set(table["episode_index"].to_pylist()) == {3}
    assert table["index"].to_pylist() == list(range(24, 38))
    np.testing.assert_allclose(table["timestamp"].to_numpy(), np.arange(14) / 20, atol=1e-6)
    wanted = row[f"videos/{CAMERA}/from_timestamp"] + 6 / 20
    with av.open(str(dataset / layout.VIDEO_PATH.format(video_key=CAMERA, chunk_index=0, file_index=0))) as container:
        stream = container.streams.video[0]
        container.seek(int(wanted / stream.time_base), stream=stream)
        frame = next(f for f in container.decode(stream) if abs(f.time - wanted) < 1e-4)
    np.testing.assert_array_equal(frame.to_ndarray(format="rgb24"), episodes[3].images[6, 0])


def test_tasks_are_indexed_by_instruction_for_pandas(dataset: Path) -> None:
    table = pq.read_table(dataset / "meta/tasks.parquet")
    assert dict(zip(table["task"].to_pylist(), table["task_index"].to_pylist(), strict=True)) == {
        "push cube 0": 0,
        "push cube 1": 1,
    }
    assert json.loads(table.schema.metadata[b"pandas"])["index_columns"] == ["task"]


def test_preview_plays_in_browsers(tmp_path: Path) -> None:
    video.write_preview(tmp_path / "p.mp4", np.zeros((3, 32, 64, 3), np.uint8), 20)
    with av.open(str(tmp_path / "p.mp4")) as container:
        assert container.streams.video[0].codec_context.pix_fmt == "yuv420p"


def test_episode_of_wrong_shape_or_nan_is_refused(
    tmp_path: Path, spec: DatasetSpec, new_episode: Callable[[int, int], Episode]
) -> None:
    partial = writer.begin(tmp_path / "d", {})
    bad = new_episode(0, 4)
    bad.action[2, 1] = np.nan
    with pytest.raises(ValueError, match="non-finite"):
        writer.add_episode(partial, spec, bad)
    short = new_episode(0, 4)
    short.state = short.state[:3]
    with pytest.raises(ValueError, match="state must be"):
        writer.add_episode(partial, spec, short)
    assert writer.stored(partial) == (set(), {})


def test_existing_output_and_other_plan_are_refused(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="already exists"):
        writer.begin(dataset, {"suite": "toy"})
    writer.begin(tmp_path / "next", {"noise": 0.1})
    writer.begin(tmp_path / "next", {"noise": 0.1})
    with pytest.raises(UserError, match="other settings"):
        writer.begin(tmp_path / "next", {"noise": 0.2})


def test_nothing_collected_is_an_error(spec: DatasetSpec, tmp_path: Path) -> None:
    writer.begin(tmp_path / "d", {})
    with pytest.raises(UserError, match="no successful episode"):
        writer.finalize(tmp_path / "d", spec, {})


def test_damaged_dataset_is_reported(dataset: Path) -> None:
    path = dataset / layout.VIDEO_PATH.format(video_key=CAMERA, chunk_index=0, file_index=0)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="damaged"):
        load(dataset)
    path.unlink()
    with pytest.raises(UserError, match="damaged"):
        load(dataset)
    with pytest.raises(UserError, match="embodied-rl collect"):
        load(dataset.parent / "nowhere")


def test_fingerprint_sees_every_byte(dataset: Path) -> None:
    before = fingerprint(dataset)
    assert before == fingerprint(dataset)
    stats = dataset / "meta/stats.json"
    stats.write_text(stats.read_text().replace("0", "1", 1))
    assert fingerprint(dataset) != before


_ADD_FOREVER = """
import sys
from pathlib import Path
import numpy as np
from embodied_rl.data import writer
from embodied_rl.data.layout import DatasetSpec, Episode
spec = DatasetSpec(("agentview",), 16, ("s",), ("a",))
for key in range(10_000):
    numbers = np.full((6, 1), key, np.float32)
    writer.add_episode(Path(sys.argv[1]), spec, Episode(
        key, "push", np.full((6, 1, 16, 16, 3), key % 256, np.uint8), numbers, numbers, numbers))
    if key == 2:
        print("three", flush=True)
"""


@pytest.mark.process
def test_kill_while_writing_leaves_a_resumable_folder(tmp_path: Path) -> None:
    out = tmp_path / "killed"
    partial = writer.begin(out, {"n": 1})
    process = subprocess.Popen([sys.executable, "-c", _ADD_FOREVER, str(partial)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "three\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert not out.exists()
    with pytest.raises(UserError, match="not finished"):
        load(out)
    kept, _ = writer.stored(writer.begin(out, {"n": 1}))
    assert kept >= {0, 1, 2}
    writer.finalize(out, DatasetSpec(("agentview",), 16, ("s",), ("a",)), {})
    data = load(out)
    np.testing.assert_array_equal(data.images[::6][:, 0, 0, 0, 0], sorted(kept))
    np.testing.assert_array_equal(data.action[::6, 0], sorted(kept))
    assert not partial.exists()


def test_kill_while_finalizing_leaves_a_resumable_folder(
    spec: DatasetSpec, tmp_path: Path, episodes: list[Episode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop just before the rename: no output yet; the next finalize makes what an undisturbed one makes."""
    results = []
    for name, stop in (("calm", False), ("stopped", True)):
        out = tmp_path / name
        partial = writer.begin(out, {})
        for episode in episodes:
            writer.add_episode(partial, spec, episode)
        if stop:
            with monkeypatch.context() as patch:

                def killed(_root: Path) -> None:
                    raise KeyboardInterrupt

                patch.setattr(writer, "_sync", killed)
                with pytest.raises(KeyboardInterrupt):
                    writer.finalize(out, spec, {})
            assert not out.exists()
            assert (partial / "dataset/meta/info.json").exists()
        writer.finalize(out, spec, {})
        results.append(fingerprint(out))
    assert results[0] == results[1]
