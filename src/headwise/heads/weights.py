"""The weights of chosen heads of a call: the one place where they are formed.

Letters: B batch, T queries, S keys; h heads chosen, t queries chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.attention.chosen import chosen_weights
from headwise.attention.functional import checked_request
from headwise.attention.request import WeightsOf
from headwise.heads.seam import AttentionCall


def weights_of(call: AttentionCall, which: WeightsOf) -> Tensor:
    """Return the weights (B, h, t, S) of these heads and queries, float32 or wider."""
    wide = torch.promote_types(call.q.dtype, torch.float32)
    request, picked = checked_request(
        call.q.to(wide),
        call.k.to(wide),
        call.v.to(wide),
        mask=call.mask,
        bias=call.bias,
        scale=call.scale,
        dropout=0.0,
        offset=None,
        softcap=call.softcap,
        sink=call.sink,
        gate=None,
        return_weights=which,
    )
    if picked is None:
        raise RuntimeError("a WeightsOf was given but not resolved")
    return chosen_weights(request, *picked, keys=call.k.shape[2])
