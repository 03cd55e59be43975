"""Separate heads and one cut matrix are the same computation: outputs and gradients agree.

Run: python examples/heads_become_one_matrix.py
"""

import torch

from headwise.attention import HeadList, Mask, MultiHeadAttention

torch.manual_seed(0)
x = torch.randn(2, 10, 32)  # (B, T, D)

textbook = HeadList(d_model=32, n_head=4, block_size=10, dropout=0.0)
fused = MultiHeadAttention.from_heads(textbook)

one, other = textbook(x), fused(x, mask=Mask.causal())
print("largest difference of the outputs:  ", (one - other).abs().max().item())

one.square().sum().backward()
other.square().sum().backward()
stacked = torch.cat([head.query.weight.grad for head in textbook.heads])
print("largest difference of the gradients:", (stacked - fused.q_proj.weight.grad).abs().max().item())
