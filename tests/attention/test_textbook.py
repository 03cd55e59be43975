"""The heads as first taught, against the formula; and what they refuse."""

from __future__ import annotations

import pytest
import torch

from headwise.attention import Head, HeadList


def test_a_head_is_the_formula() -> None:
    head, x = Head(6, 4, block_size=5), torch.randn(2, 5, 6)
    out, weights = head(x, return_weights=True)
    q, k, v = (x @ w.weight.T for w in (head.query, head.key, head.value))
    for b in range(2):
        for i in range(5):
            scores = torch.stack([q[b, i] @ k[b, j] / 2 for j in range(i + 1)])
            probabilities = scores.exp() / scores.exp().sum()
            torch.testing.assert_close(weights[b, i, : i + 1], probabilities)
            assert (weights[b, i, i + 1 :] == 0).all()
            torch.testing.assert_close(out[b, i], probabilities @ v[b, : i + 1])


def test_a_list_joins_its_heads_in_order_and_projects_back() -> None:
    heads, x = HeadList(6, 3, block_size=4), torch.randn(2, 4, 6)
    out, weights = heads(x, return_weights=True)
    pairs = [head(x, return_weights=True) for head in heads.heads]
    joined = torch.cat([pair[0] for pair in pairs], dim=-1)
    torch.testing.assert_close(out, joined @ heads.proj.weight.T + heads.proj.bias)
    assert weights.shape == (2, 3, 4, 4)
    for h, (_, weight) in enumerate(pairs):
        assert torch.equal(weights[:, h], weight)
    assert torch.equal(heads(x), out)


def test_it_has_no_biases_but_in_the_output() -> None:
    names = {name for name, _ in HeadList(6, 2, block_size=4).named_parameters() if name.endswith("bias")}
    assert names == {"proj.bias"}


def test_dropout_follows_train_and_eval_and_is_not_in_the_weights() -> None:
    heads, x = HeadList(64, 2, block_size=8, dropout=0.5), torch.randn(2, 8, 64)
    plainly = HeadList(64, 2, block_size=8)
    plainly.load_state_dict(heads.state_dict())
    assert not torch.equal(heads(x), heads(x))
    assert 0.4 < (heads(x) == 0).float().mean() < 0.6  # after the projection
    assert not torch.equal(heads.heads[0](x), heads.heads[0](x))  # on the weights
    assert torch.equal(heads(x, return_weights=True)[1], plainly(x, return_weights=True)[1])
    heads.eval()
    assert torch.equal(heads(x), heads(x))
    assert torch.equal(heads(x), plainly(x))


def test_more_positions_than_the_block_are_refused() -> None:
    heads = HeadList(4, 2, block_size=3)
    assert heads(torch.randn(1, 3, 4)).shape == (1, 3, 4)
    with pytest.raises(ValueError, match="T=4 positions and block_size is 3"):
        heads(torch.randn(1, 4, 4))


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="d_model=10 is not a multiple of n_head=4; 2 or 5 heads would fit"):
        HeadList(10, 4, block_size=3)
    with pytest.raises(ValueError, match="n_head must be at least 1, got 0"):
        HeadList(4, 0, block_size=3)
    with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
        HeadList(4, 2, block_size=0)
    with pytest.raises(ValueError, match="0 ≤ dropout < 1, got 1"):
        Head(4, 2, 3, dropout=1)
    with pytest.raises(ValueError, match=r"x must be \(B, T, 4\), got shape \(3, 4\)"):
        Head(4, 2, 3)(torch.zeros(3, 4))
