"""One form for weights and labels, and clear refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from headwise.report.maps import attention_maps, check_scale

EYE = np.eye(2)


def test_every_form_of_weights_gives_the_same_maps(causal_weights: Callable) -> None:
    weights = causal_weights(2, 3, 4)
    forms = [
        weights,
        torch.tensor(weights),
        list(weights),
        [layer[None] for layer in weights],
        [torch.tensor(layer[None], requires_grad=True) for layer in weights],
    ]
    for form in forms:
        maps = attention_maps(form, list("abcd"))
        assert len(maps.layers) == 2
        for layer, expected in zip(maps.layers, weights, strict=True):
            np.testing.assert_allclose(layer, expected, atol=1e-7)


def test_one_layer_and_one_head_may_come_without_their_axes() -> None:
    assert attention_maps(np.stack([EYE, EYE]), list("ab")).layers[0].shape == (2, 2, 2)
    assert attention_maps(EYE, list("ab")).layers[0].tolist() == [[[1, 0], [0, 1]]]


def test_bfloat16_weights_are_taken(causal_weights: Callable) -> None:
    weights = torch.tensor(causal_weights(1, 2, 50)).bfloat16()
    np.testing.assert_array_equal(attention_maps(weights, ["x"] * 50).layers[0], weights[0].float().numpy())


def test_layers_may_have_different_numbers_of_heads() -> None:
    maps = attention_maps([np.stack([EYE]), np.stack([EYE, EYE])], list("ab"))
    assert maps.select() == [(0, 0), (1, 0), (1, 1)]
    assert maps.select(head=1) == [(1, 1)]
    assert maps.select(layer=1) == [(1, 0), (1, 1)]
    assert maps.select(layer=0, head=0) == [(0, 0)]


def test_blank_labels_are_made_visible_and_stay_apart() -> None:
    texts = ["\n", "\n\n", " ", "  ", "\t", "\u00a0", "\u200b", "", "<s>"]
    maps = attention_maps(np.eye(9), texts)
    assert maps.queries[:5] == ("⏎", "⏎⏎", "␣", "␣␣", "⇥")
    assert maps.queries[8] == "<s>"
    assert len(set(maps.queries)) == 9
    assert all(text.strip() for text in maps.queries)
    assert attention_maps(np.eye(9), maps.queries).queries == maps.queries, "labels already visible stay"


def test_cross_attention_has_labels_of_its_own() -> None:
    maps = attention_maps(np.full((2, 3), 1 / 3), list("ab"), key_labels=list("xyz"))
    assert (maps.queries, maps.keys) == (("a", "b"), ("x", "y", "z"))
    assert maps.visible.shape == (2, 3)
    assert maps.visible.all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "no layer"),
        ([EYE], r"layer 0 must have shape \(H, T, S\).*got \(2, 2\)"),
        (np.ones((2, 3, 1, 2, 2)), "got ndarray with 5 axes"),
        ("weights", "got str"),
        ([np.stack([[EYE], [EYE]])], r"\(1, H, T, S\) for one sequence, got \(2, 1, 2, 2\)"),
        ([EYE[None], np.eye(3)[None]], r"layer 0 has \(2, 2\), layer 1 \(3, 3\)"),
        (np.ones((1, 0, 2, 2)), "layer 0 are empty"),
        (np.array([[np.nan, 1], [0, 1]]), "layer 0 hold NaN"),
        (np.array([[3.0, -1.0], [0, 1]]), "smallest weight of -1 and a largest sum of 2"),
        (np.array([[3.0, 1.0], [0, 1]]), "largest sum of 4; draw weights after the softmax"),
    ],
)
def test_what_cannot_be_attention_is_refused(weights: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attention_maps(weights, list("ab"))


def test_labels_must_be_one_per_token() -> None:
    with pytest.raises(ValueError, match="labels must have one text per token, 2 of them, got 3"):
        attention_maps(EYE, list("abc"))
    with pytest.raises(ValueError, match="key_labels must have one text per token, 2 of them, got 1"):
        attention_maps(EYE, list("ab"), key_labels=["a"])


def test_weight_on_a_hidden_key_is_a_leak_and_refused() -> None:
    with pytest.raises(ValueError, match="layer 0 gives weight 0.5 to a key that `visible` hides"):
        attention_maps(np.full((2, 2), 0.5), list("ab"), visible=np.tri(2, dtype=bool))
    with pytest.raises(ValueError, match=r"visible must have shape \(T, S\) = \(2, 2\), got \(3, 3\)"):
        attention_maps(EYE, list("ab"), visible=np.ones((3, 3)))


def test_layers_and_heads_out_of_range_are_refused_with_the_range() -> None:
    maps = attention_maps([np.stack([EYE]), np.stack([EYE, EYE])], list("ab"))
    with pytest.raises(ValueError, match="layer=2 does not exist; the layers are 0 … 1"):
        maps.select(layer=2)
    with pytest.raises(ValueError, match="layer=-1 does not exist"):
        maps.select(layer=-1)
    with pytest.raises(ValueError, match="head=2 does not exist; the heads are 0 … 1"):
        maps.select(head=2)
    with pytest.raises(
        ValueError, match="head=1 does not exist in layer 0; there is 1 of the heads, number 0"
    ):
        maps.select(layer=0, head=1)


def test_an_unknown_scale_is_refused() -> None:
    check_scale("sqrt")
    with pytest.raises(ValueError, match="scale must be one of linear, sqrt; got 'log'"):
        check_scale("log")  # type: ignore[arg-type]
