"""The server against clients that are well meant: openpi's protocol, batches, seeds, deadlines, health, shutdown."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from embodied_rl.real_robot.server.gate import WrongTokens
from embodied_rl.real_robot.server.images import ImageFitter
from embodied_rl.real_robot.server.observations import Request, read_request
from embodied_rl.types import Array
from tests.real_robot.openpi_like import OpenpiLike, libero_obs
from tests.real_robot.serving import SPEC, Serving, decide_all, decide_one


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with Serving(max_batch_delay_ms=60_000) as running:
        yield running


def expected(seed: int, draws: int, decision: int) -> Array:
    """What the policy alone says to `libero_obs(seed)`."""
    message = libero_obs(seed) | {"seed": draws, "decision": decision}
    return decide_one(read_request(message, SPEC, ImageFitter(size=8)))


def get(port: int, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=900) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metadata_comes_first_and_then_an_answer_a_request(server: Serving) -> None:
    with OpenpiLike(server.port) as client:
        assert client.metadata == {"server": "test"}
        for decision in range(3):  # without a seed: the server's, and the connection's own count
            answer = client.infer(libero_obs(4))
            assert answer["actions"].dtype == np.float32
            assert np.array_equal(answer["actions"], expected(4, 5, decision))
            assert (answer["seed"], answer["decision"]) == (5, decision)
        assert answer["server_timing"].keys() >= {"infer_ms", "queue_ms", "prev_total_ms"}
        assert answer["policy_timing"]["infer_ms"] >= 0
        assert "detector" not in answer, "nobody watches"


def test_what_a_detector_says_of_an_observation_comes_with_its_answer() -> None:
    """Of each request its own; a request of which it says nothing gets no actions, and the others theirs."""

    def watch(request: Request) -> dict[str, object] | str:
        if request.instruction == "dance":
            return "the detector was not calibrated for 'dance'"
        return {"kind": "nearest", "distance": float(request.images[0, 0, 0, 0])}

    with Serving(watch=watch, max_batch_delay_ms=60_000, deadline_ms=600_000) as server:
        clients = [OpenpiLike(server.port) for _ in range(3)]
        obs = [libero_obs(seed) | {"seed": seed} for seed in range(3)]
        obs[1]["prompt"] = "dance"
        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(client.infer, one) for client, one in zip(clients, obs, strict=True)]
        with pytest.raises(RuntimeError, match="not calibrated for 'dance'"):
            asked[1].result()
        for row in (0, 2):
            answer = asked[row].result()
            corner = float(np.asarray(obs[row]["observation/image"])[0, 0, 0])
            assert answer["detector"] == {"kind": "nearest", "distance": corner}
            assert np.array_equal(answer["actions"], expected(row, row, 0))
        assert server.batches == [3]
        for row in (0, 2):
            clients[row].socket.close()
        assert "detector" in clients[1].infer(obs[0]), "the connection goes on"
        clients[1].socket.close()


def test_a_seed_decides_alone(server: Serving) -> None:
    with OpenpiLike(server.port) as client:
        for _ in range(2):
            answer = client.infer(libero_obs(1) | {"seed": 9})
            assert np.array_equal(answer["actions"], expected(1, 9, 0))
        answer = client.infer(libero_obs(1) | {"seed": 9, "decision": 8})
        assert np.array_equal(answer["actions"], expected(1, 9, 8))


def test_an_error_is_one_line_and_the_connection_goes_on(server: Serving) -> None:
    with OpenpiLike(server.port) as client:
        for change, text in (({"x": 1}, "unknown key 'x'"), ({"observation/state": np.zeros(3)}, "has 3 numbers")):
            with pytest.raises(RuntimeError, match=text) as found:
                client.infer(libero_obs(0) | change)
            assert "\n" not in str(found.value)
        client.socket.send("hello")
        assert "one binary message of msgpack" in str(client.socket.recv())
        client.socket.send(b"\xc1")
        assert "not a msgpack message" in str(client.socket.recv())
        assert client.infer(libero_obs(0))["decision"] == 0  # what was refused does not count


def test_four_robots_share_a_call_and_get_what_each_gets_alone(server: Serving) -> None:
    clients = [OpenpiLike(server.port) for _ in range(4)]
    server.batches.clear()
    with ThreadPoolExecutor(4) as pool:
        for round_ in range(5):
            obs = [libero_obs(10 * round_ + robot) | {"seed": robot, "decision": round_} for robot in range(4)]
            answers = list(pool.map(lambda pair: pair[0].infer(pair[1]), zip(clients, obs, strict=True)))
            for robot, answer in enumerate(answers):
                assert np.array_equal(answer["actions"], expected(10 * round_ + robot, robot, round_))
    assert server.batches == [4] * 5
    for client in clients:
        client.socket.close()


def test_one_robot_waits_for_nobody() -> None:
    with Serving(max_batch_delay_ms=1e9) as alone, OpenpiLike(alone.port) as client:
        assert client.infer(libero_obs(0))["server_timing"]["batch_rows"] == 1


def test_a_robot_that_leaves_is_waited_for_no_longer() -> None:
    with Serving(max_batch_delay_ms=1e9) as server, OpenpiLike(server.port) as client:
        other = OpenpiLike(server.port)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.infer, libero_obs(0))
            while not len(server.server._batcher):
                time.sleep(0.01)
            other.socket.close()
            assert answer.result(900)["server_timing"]["batch_rows"] == 1


def test_a_batch_is_never_larger_than_its_limit() -> None:
    with Serving(max_batch=2, max_batch_delay_ms=60_000) as server:
        clients = [OpenpiLike(server.port) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda client: client.infer(libero_obs(0)), clients))
        assert max(server.batches) == 2
        for client in clients:
            client.socket.close()


def test_a_request_that_waited_too_long_is_refused_and_not_acted_upon() -> None:
    started, go_on = threading.Event(), threading.Event()
    seen: list[int] = []

    def slow(requests: Sequence[Request]) -> list[Array | str]:
        seen.extend(request.seed or 0 for request in requests)
        started.set()
        assert go_on.wait(900)
        return decide_all(requests)

    with Serving(slow) as server, OpenpiLike(server.port) as one, OpenpiLike(server.port) as two:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(one.infer, libero_obs(0) | {"seed": 1})
            assert started.wait(900)
            late = pool.submit(two.infer, libero_obs(0) | {"seed": 2, "deadline_ms": 1})
            while not server.server._batcher:  # it is in the queue
                time.sleep(0.01)
            time.sleep(0.01)
            go_on.set()
            assert np.array_equal(first.result(900)["actions"], expected(0, 1, 0))
            with pytest.raises(RuntimeError, match="too late to act"):
                late.result(900)
        assert two.infer(libero_obs(0) | {"seed": 3})["seed"] == 3
        assert seen == [1, 3]
        assert 'requests_total{result="late"} 1' in get(server.port, "/metrics")[1]


def test_what_one_robot_sends_does_not_hurt_the_others() -> None:
    def picky(requests: Sequence[Request]) -> list[Array | str]:
        return ["the policy has no actions" if r.seed == 1 else decide_one(r) for r in requests]

    with Serving(picky, max_batch_delay_ms=60_000) as server:
        clients = [OpenpiLike(server.port) for _ in range(2)]
        with ThreadPoolExecutor(2) as pool:
            bad, good = (pool.submit(c.infer, libero_obs(0) | {"seed": 1 + i}) for i, c in enumerate(clients))
            with pytest.raises(RuntimeError, match="has no actions"):
                bad.result(900)
            assert np.array_equal(good.result(900)["actions"], expected(0, 2, 0))
        for client in clients:
            client.socket.close()


def test_the_token() -> None:
    with Serving(token="s3cret") as server:
        for key in (None, "s3cre", "s3crets", "S3CRET"):
            with pytest.raises(InvalidStatus) as found:
                OpenpiLike(server.port, key)
            assert found.value.response.status_code == 401
            assert b"token" in (found.value.response.body or b"")
        with OpenpiLike(server.port, "s3cret") as client:
            client.infer(libero_obs(0))
        assert get(server.port, "/healthz") == (200, "OK\n")
        assert get(server.port, "/metrics")[0] == 401
        status, page = get(server.port, "/metrics", Authorization="Bearer s3cret")
        assert status == 200
        assert 'refused_total{reason="token"} 5' in page


def test_whoever_tries_tokens_waits_and_the_right_one_is_let_in() -> None:
    """A robot with the token may share its address with somebody who has none; requests without one are no tries."""
    with Serving(token="s3cret", wrong_tokens=3) as server:
        for _ in range(5):
            assert get(server.port, "/metrics")[0] == 401
        for key in ("a", "b", "c"):
            assert get(server.port, "/metrics", Authorization=f"Bearer {key}")[0] == 401
        status, text = get(server.port, "/metrics", Authorization="Bearer d")
        assert status == 429
        assert "wait 60 s" in text
        assert get(server.port, "/metrics", Authorization="Bearer s3cret")[0] == 200
        with OpenpiLike(server.port, "s3cret") as client:
            client.infer(libero_obs(0))
        assert get(server.port, "/metrics", Authorization="Bearer d")[0] == 429, "the right one forgives no other"
        assert get(server.port, "/healthz") == (200, "OK\n")
        assert server.server.metrics.refused["tries"] == 2


def test_wrong_tokens_are_counted_by_address_and_forgotten() -> None:
    now = [0.0]
    wrong = WrongTokens(most=2, within_s=60, clock=lambda: now[0])
    for address in ("10.0.0.1", "2001:db8::1", "::ffff:10.0.0.1", "2001:db8::2%eth0"):
        assert not wrong.too_many(address)
        wrong.add(address)
    for address, many in (("10.0.0.1", True), ("10.0.0.2", False), ("2001:db8::3", True), ("2001:db8:0:1::1", False)):
        assert wrong.too_many(address) == many
    now[0] = 30.0
    wrong.add("10.0.0.1")
    now[0] = 59.9
    assert wrong.too_many("10.0.0.1")
    now[0] = 60.0
    assert not wrong.too_many("10.0.0.1")
    assert not wrong.too_many("2001:db8::1")
    now[0] = 61.0
    wrong.add("10.0.0.1")
    now[0] = 89.9
    assert wrong.too_many("10.0.0.1")
    now[0] = 121.0
    assert not wrong.too_many("10.0.0.1")
    for number in range(5000):
        wrong.add(f"10.1.{number // 256}.{number % 256}")
    assert len(wrong._tries) == 4096


def test_web_pages_and_one_client_too_many_are_turned_away() -> None:
    with Serving(max_clients=1) as server, OpenpiLike(server.port) as client:
        with pytest.raises(InvalidStatus) as found:
            OpenpiLike(server.port, origin="https://somewhere.example")
        assert found.value.response.status_code == 403
        with pytest.raises(InvalidStatus) as found:
            OpenpiLike(server.port)
        assert found.value.response.status_code == 503
        assert b"all 1 places are taken" in (found.value.response.body or b"")
        client.infer(libero_obs(0))


def test_the_metrics_count(server: Serving) -> None:
    before = _samples(get(server.port, "/metrics")[1])
    with OpenpiLike(server.port) as client:
        client.infer(libero_obs(0))
        with pytest.raises(RuntimeError):
            client.infer({})
        page = get(server.port, "/metrics")[1]
    after = _samples(page)
    gained = {name: after[name] - before[name] for name in after if "bytes" not in name}
    assert after["clients"] == 1
    assert gained['requests_total{result="ok"}'] == gained['requests_total{result="error"}'] == 1
    assert gained["connections_total"] == gained["batch_rows_count"] == gained['batch_rows_bucket{le="+Inf"}'] == 1
    assert after["received_bytes_total"] > before["received_bytes_total"] + 2 * 8 * 8 * 3
    kinds = [line for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds)) == 11


def _samples(page: str) -> dict[str, float]:
    rows = [line.rpartition(" ") for line in page.splitlines() if not line.startswith("#")]
    return {name.removeprefix("embodied_rl_serve_"): float(value) for name, _, value in rows}


def test_stopping_answers_what_is_there_and_says_so() -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(requests: Sequence[Request]) -> list[Array | str]:
        started.set()
        assert go_on.wait(900)
        return decide_all(requests)

    with Serving(slow) as server, OpenpiLike(server.port) as busy, OpenpiLike(server.port) as idle:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(busy.infer, libero_obs(0) | {"seed": 1})
            assert started.wait(900)
            server.stop()
            with suppress(OSError):  # refused, once the listening socket is closed
                while get(server.port, "/healthz"):
                    pass
            go_on.set()
            assert np.array_equal(answer.result(900)["actions"], expected(0, 1, 0))
        for client in (busy, idle):
            with pytest.raises(ConnectionClosed, match="the server is shutting down") as found:
                client.socket.recv(timeout=900)
            assert found.value.rcvd is not None
            assert found.value.rcvd.code == 1001
        server.wait()
        assert server.error is None


def test_stopping_does_not_wait_for_a_policy_that_hangs() -> None:
    started, go_on = threading.Event(), threading.Event()

    def hangs(requests: Sequence[Request]) -> list[Array | str]:
        started.set()
        assert go_on.wait(900)
        return decide_all(requests)

    with Serving(hangs, drain_s=0.1) as server, OpenpiLike(server.port) as client:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.infer, libero_obs(0))
            assert started.wait(900)
            server.stop()
            with pytest.raises(RuntimeError, match="stopped before this request was decided"):
                answer.result(900)
        server.wait()
        go_on.set()


def test_an_error_of_the_server_is_in_its_log_and_costs_one_connection(
    server: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(image: Array) -> Array:
        raise ZeroDivisionError("in the pictures")

    with OpenpiLike(server.port) as client, OpenpiLike(server.port) as other:
        with monkeypatch.context() as patch:
            patch.setattr(server.server, "_image", broken)
            with pytest.raises(ConnectionClosed) as found:
                client.infer(libero_obs(0))
        assert found.value.rcvd is not None
        assert found.value.rcvd.code == 1011
        assert "ZeroDivisionError: in the pictures" in caplog.text
        other.infer(libero_obs(0))


def test_a_broken_policy_thread_ends_the_server_loudly() -> None:
    def broken(requests: Sequence[Request]) -> list[Array | str]:
        raise ZeroDivisionError

    with Serving(broken) as server:
        client = OpenpiLike(server.port)
        with pytest.raises(RuntimeError, match="stopped before this request was decided"):
            client.infer(libero_obs(0))
        with pytest.raises(ConnectionClosed, match="shutting down"):
            client.socket.recv(timeout=900)
        server.wait()
        assert isinstance(server.error, ZeroDivisionError)
