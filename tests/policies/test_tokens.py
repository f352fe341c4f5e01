"""Action tokens, normalisation, prompts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embodied_rl.errors import UserError
from embodied_rl.policies.preprocessing import tokens
from embodied_rl.policies.preprocessing.text import PromptTokenizer, build_prompt, build_word_tokenizer, load_tokenizer

_unit = st.floats(-1.0, 1.0, width=32)
_actions = hnp.arrays(np.float32, hnp.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=7), elements=_unit)


def _published_ids(action: np.ndarray) -> np.ndarray:
    """OpenVLA's rule, written as its paper states it: vocabulary id = 32000 - digitize."""
    return 32000 - np.digitize(np.clip(action, -1.0, 1.0), np.linspace(-1.0, 1.0, 256))


def _published_decode(ids: np.ndarray) -> np.ndarray:
    edges = np.linspace(-1.0, 1.0, 256)
    return ((edges[:-1] + edges[1:]) / 2)[np.clip(32000 - ids - 1, 0, 254)]


@given(_actions)
def test_tokens_are_the_published_ids(actions: np.ndarray) -> None:
    encoded = tokens.encode_actions(actions)
    np.testing.assert_array_equal(encoded.astype(int) + 32000 - 256, _published_ids(actions))
    expected = _published_decode(_published_ids(actions)).astype(np.float32)
    np.testing.assert_array_equal(tokens.decode_tokens(encoded), expected)


@given(_actions)
def test_round_trip_is_within_half_a_bin(actions: np.ndarray) -> None:
    decoded = tokens.decode_tokens(tokens.encode_actions(actions))
    assert np.abs(decoded - actions).max() <= 1 / 255 + 1e-6


def test_hand_worked_bins() -> None:
    np.testing.assert_array_equal(tokens.encode_actions(np.array([-1.0, 0.0, 1.0, -7.0, 7.0])), [255, 128, 0, 255, 0])
    decoded = tokens.decode_tokens(np.array([255, 128, 1, 0]))
    np.testing.assert_allclose(decoded, [-254 / 255, 0.0, 254 / 255, 254 / 255], atol=1e-7)


def test_every_centre_encodes_to_its_token() -> None:
    centres = tokens.token_centres()
    np.testing.assert_array_equal(tokens.encode_actions(centres)[1:], np.arange(1, 256))
    assert centres[0] == centres[1]
    assert (np.diff(centres[1:]) < 0).all()


def _statistics(mask_last: bool = False) -> tokens.Statistics:
    q01 = np.array([-0.5, -0.1, 0.2, -1.0, -1.0, -0.3, 0.0], np.float32)
    mask = np.array([True] * 6 + [mask_last])
    return tokens.Statistics(q01, q01 + np.float32(0.7), mask, np.zeros(8, np.float32), np.ones(8, np.float32))


@given(hnp.arrays(np.float32, (3, 7), elements=_unit))
def test_normalisation_round_trip(normalised: np.ndarray) -> None:
    statistics = _statistics()
    actions = tokens.unnormalise_actions(normalised, statistics)
    np.testing.assert_allclose(tokens.normalise_actions(actions, statistics), normalised, atol=1e-6)
    np.testing.assert_array_equal(actions[:, 6], normalised[:, 6])
    np.testing.assert_allclose(actions[:, 0], 0.5 * (normalised[:, 0] + 1) * 0.7 - 0.5, atol=1e-6)


def test_actions_out_of_range_are_clipped() -> None:
    out = tokens.normalise_actions(np.full((1, 7), 9.0, np.float32), _statistics())
    np.testing.assert_array_equal(out, np.ones((1, 7)))


def test_gripper_pair() -> None:
    env = np.array([[0.1] * 6 + [-1.0], [0.1] * 6 + [1.0]], np.float32)
    openvla = tokens.gripper_from_env(env)
    np.testing.assert_array_equal(openvla[:, 6], [1.0, 0.0])
    np.testing.assert_array_equal(tokens.gripper_to_env(openvla), env)


def test_fit_statistics_survives_constant_dimensions() -> None:
    rng = np.random.default_rng(0)
    actions, proprio = rng.uniform(-1, 1, (2000, 7)), np.zeros((2000, 8))
    actions[:, 2] = 0.25
    statistics = tokens.fit_statistics(actions, proprio)
    np.testing.assert_allclose(statistics.q01[0], -0.98, atol=0.02)
    np.testing.assert_allclose([statistics.q01[2], statistics.q99[2]], [0.249, 0.251], atol=1e-6)
    assert not statistics.mask[6]
    assert statistics.mask[:6].all()
    assert (statistics.proprio_std > 0).all()


def test_a_constant_dimension_un_normalises_to_that_constant() -> None:
    low, high = np.array([0.3, -1.0, 0.0], np.float32), np.array([0.3, 1.0, 1.0], np.float32)
    mask = np.array([True, True, False])
    statistics = tokens.Statistics(low, high, mask, np.zeros(2, np.float32), np.ones(2, np.float32))
    normalised = np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    actions = tokens.unnormalise_actions(normalised, statistics)
    assert (actions[:, 0] == np.float32(0.3)).all()
    again = tokens.normalise_actions(actions + np.array([0.1, 0, 0], np.float32), statistics)
    assert (again[:, 0] == 0).all()
    np.testing.assert_allclose(again[:, 1:], normalised[:, 1:], atol=1e-6)
    entry = tokens.statistics_to_json(statistics)
    assert tokens.statistics_from_json({"k": entry}, "k").q99[0] == np.float32(0.3)
    entry["action"]["q01"][0] = 0.4
    with pytest.raises(UserError, match="q99 must not be below q01"):
        tokens.statistics_from_json({"k": entry}, "k")


def test_statistics_json_round_trip_and_errors() -> None:
    statistics = _statistics()
    data = {"spatial": tokens.statistics_to_json(statistics)}
    back = tokens.statistics_from_json(data, "spatial")
    for name in ("q01", "q99", "mask", "proprio_mean", "proprio_std"):
        np.testing.assert_array_equal(getattr(back, name), getattr(statistics, name))
    with pytest.raises(UserError, match="Did you mean 'spatial'"):
        tokens.statistics_from_json(data, "spatail")
    del data["spatial"]["action"]["q99"]
    with pytest.raises(UserError, match="q99"):
        tokens.statistics_from_json(data, "spatial")


def test_prompt_is_openvlas() -> None:
    assert build_prompt("Pick up the Bowl") == "In: What action should the robot take to pick up the bowl?\nOut:"


def _tokenizer(append: int | None = None) -> PromptTokenizer:
    return PromptTokenizer(build_word_tokenizer(["open the drawer", "Close the top-drawer now"], 32), append)


def test_word_tokenizer_knows_words_in_any_case_and_marks_unknown_ones() -> None:
    tokenizer = _tokenizer()
    assert tokenizer.ids("OPEN the Drawer") == tokenizer.ids("open the drawer")
    words = [tokenizer.tokenizer.id_to_token(i) for i in tokenizer.ids("close the top-shelf")]
    assert words == ["In: What action should the robot take to", "close", "the", "top", "-", "<unk>", "?\nOut:"]


def test_word_tokenizer_does_not_depend_on_order() -> None:
    texts = ["open the drawer", "close the drawer"]
    assert build_word_tokenizer(texts, 32).to_str() == build_word_tokenizer(reversed(texts), 32).to_str()


def test_word_tokenizer_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="3 different words need 8 text tokens, the model has 7"):
        build_word_tokenizer(["one two three"], 7)


def test_batch_pads_after_the_prompt() -> None:
    tokenizer = _tokenizer()
    ids, lengths = tokenizer.batch(["open the drawer", "open"])
    assert lengths.tolist() == [5, 3]
    assert ids[1, :3].tolist() == tokenizer.ids("open")
    assert ids[1, 3:].tolist() == [tokenizer.bos_id] * 2


def test_append_token_only_when_not_last() -> None:
    plain = _tokenizer().ids("open")
    assert _tokenizer(29871).ids("open") == [*plain, 29871]
    assert _tokenizer(plain[-1]).ids("open") == plain


def test_tokenizer_files(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(UserError, match="is missing"):
        load_tokenizer(path)
    path.write_text("{}")
    with pytest.raises(UserError, match="not a tokenizer file"):
        load_tokenizer(path)
    original = _tokenizer()
    original.tokenizer.save(str(path))
    assert PromptTokenizer(load_tokenizer(path), None).ids("open the drawer") == original.ids("open the drawer")
