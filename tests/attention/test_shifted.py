"""A mask over keys whose beginning is gone is the whole mask without those columns."""

from __future__ import annotations

import pytest
import torch

from headwise.attention import Mask
from headwise.attention.masks import Region
from headwise.attention.shifted import shifted

S = 9
TABLE = torch.rand(2, 3, 4, S, generator=torch.Generator().manual_seed(6)) < 0.5
MASKS: dict[str, Mask] = {
    "causal": Mask.causal(),
    "window": Mask.window(3),
    "lengths": Mask.lengths(torch.tensor([7, 3])),
    "table": Mask.keep(TABLE),
    "hidden table": Mask.hide(TABLE[:, :, :1]),
    "prefix": Mask.prefix(4),
    "prefixes": Mask.prefix(torch.tensor([6, 1])),
    "documents": Mask.documents(torch.arange(S) // 4),
    "and": Mask.window(4) & Mask.lengths(torch.tensor([7, 6])) & Mask.keep(TABLE),
    "or": Mask.window(2) | Mask.lengths(torch.tensor([5, 3])),
    "not": ~(Mask.causal() & Mask.lengths(torch.tensor([7, 3]))),
    "of no rule": Mask.causal() | ~Mask.causal(),
}


@pytest.mark.parametrize("first", [0, 1, 2, 5])
@pytest.mark.parametrize("name", MASKS)
def test_it_is_the_whole_mask_without_its_first_columns(name: str, first: int) -> None:
    mask, T, keys = MASKS[name], 4, S - first
    short = shifted(mask, first)
    short.check(T, keys, B=2, H=3)
    whole = mask.to_tensor(T, S).expand(2, 3, T, S)[..., first:]
    assert torch.equal(short.to_tensor(T, keys).expand_as(whole), whole)
    assert torch.equal((~short).to_tensor(T, keys).expand_as(whole), ~whole)
    assert short.varies_by_head() == mask.varies_by_head()
    assert short.device == mask.device
    region = Region(0, T, 0, keys, keys - T)
    crop = short.crop(region)
    outside = whole.clone()
    outside[..., crop.row : crop.row + crop.rows, crop.key : crop.key + crop.keys] = False
    assert not outside.any()
    assert not short.hides_nothing(region) or whole.all()
    if short.is_causal(region):
        assert torch.equal(whole, torch.ones(T, keys, dtype=torch.bool).tril().expand_as(whole))


def test_it_says_what_was_dropped() -> None:
    mask = shifted(Mask.causal() & Mask.lengths(torch.tensor([7, 3])), 5)
    assert "the first t[b] keys of its sequence b (t holds 2 lengths)" in repr(mask)
    assert "(counting the 5 keys that were dropped)" in repr(mask)


def test_it_counts_the_dropped_keys_when_sizes_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"shape \(2, 3, 4, 9\) for scores with B=2, H=3, T=4, S=8"):
        shifted(Mask.keep(TABLE), 5).check(4, 3, B=2, H=3)
