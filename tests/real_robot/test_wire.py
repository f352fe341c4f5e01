"""The encoding: what openpi writes, back and forth, and nothing that costs more than its bytes."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embodied_rl.real_robot.client.wire import MAX_LIST, MAX_PARTS, WireError, pack, short, unpack
from tests.real_robot.openpi_like import decode, encode

ARRAYS = hnp.arrays(
    st.sampled_from(["|b1", "|u1", "<i2", "<i8", ">i4", "<f2", "<f4", "<f8"]), hnp.array_shapes(min_dims=0, max_dims=4)
)


@settings(max_examples=60)
@given(array=ARRAYS)
def test_arrays_come_back_and_openpis_encoding_is_ours(array: np.ndarray[Any, Any]) -> None:
    message = {"a": array, "n": [1, "x", None, 2.5]}
    for bytes_, read in ((pack(message), unpack), (encode(message), unpack), (pack(message), decode)):
        back = read(bytes_)
        assert back["n"] == message["n"]
        assert back["a"].dtype == array.dtype
        assert back["a"].tobytes() == array.tobytes()
        assert back["a"].shape == array.shape


def test_scalars_and_text_keys_are_read() -> None:
    assert unpack(pack({"x": np.float32(0.5)}))["x"] == np.float32(0.5)
    text_keys = {"__ndarray__": True, "data": b"\x01\x02", "dtype": "|u1", "shape": [2]}
    assert unpack(msgpack.packb(text_keys) or b"").tolist() == [1, 2]


@pytest.mark.parametrize("value", [np.array([None]), np.zeros(2, complex), np.array(["a"]), object(), {1j}, 2**80])
def test_what_is_no_plain_data_is_not_sent(value: Any) -> None:
    with pytest.raises(WireError, match="cannot be sent"):
        pack({"x": value})


def _array(**changes: Any) -> bytes:
    fields = {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<f4", b"shape": [2]}
    return msgpack.packb(fields | {key.encode(): value for key, value in changes.items()}) or b""


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not a msgpack message"),
        (b"\x80\x80", "not a msgpack message"),
        (b"\xc1", "not a msgpack message"),
        (b"\xdd\xff\xff\xff\xff", "not a msgpack message"),
        (b"\x81\xc0\x01", "not a msgpack message"),
        (b"\x91" * 100_000, "not a msgpack message"),
        (msgpack.packb(msgpack.ExtType(4, b"code")) or b"", "not a msgpack message"),
        (_array(dtype="|O"), "only booleans"),
        (_array(dtype="f4,f4"), "only booleans"),
        (_array(dtype="<U2"), "only booleans"),
        (_array(shape=[3]), "8 bytes of data"),
        (_array(shape=[2**62, 4, 2**62]), "8 bytes of data"),
        (_array(shape=[-1, -2]), "a list of up to"),
        (_array(shape=[True, 2]), "a list of up to"),
        (_array(shape=[2] * 9), "a list of up to"),
        (_array(data="12345678"), "a str of data"),
    ],
)
def test_other_bytes_are_refused_in_one_line(data: bytes, text: str) -> None:
    with pytest.raises(WireError, match=text) as found:
        unpack(data)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 300


@settings(max_examples=300)
@given(data=st.binary(max_size=200) | st.builds(lambda a, b: b"\x82" + a + b, st.binary(max_size=60), st.binary()))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(WireError):
        unpack(data)


def test_a_message_cannot_grow_in_memory() -> None:
    lists = b"\xdc\x04\x00" + (b"\xdc\x04\x00" + b"\x90" * 1024) * 1024
    assert MAX_LIST == 1024
    tracemalloc.start()
    with pytest.raises(WireError, match=f"more than {MAX_PARTS} lists"):
        unpack(lists)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < len(lists)


def test_a_line_stays_one_short_line() -> None:
    assert short("a\nb\x00c\u2028d\x1b[31m") == "a b?c d?[31m"
    assert len(short("x" * 10_000)) == 120
