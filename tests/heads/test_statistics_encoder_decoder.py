"""Statistics of a model that reads two texts, as the documents tell how to get them."""

from __future__ import annotations

import math

import torch
import transformers as hf

from headwise.heads import AttentionCall, StatisticsCollector, observe
from headwise.hub import TokenBatch, attention_layers


def test_each_kind_of_layer_is_given_the_tokens_it_reads() -> None:
    torch.manual_seed(0)
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))
    }
    config = hf.BartConfig(vocab_size=40, d_model=16, max_position_embeddings=32, **sides)
    model = hf.BartForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.3)
    model.set_attn_implementation("eager")

    def batch(ids: list[int]) -> TokenBatch:
        tokens = torch.tensor([ids])
        return TokenBatch(tokens, tokens >= 0, tokens == 2, tokens == 7)

    source, target = batch([5, 7, 9, 11, 2]), batch([2, 8, 7])
    collector = StatisticsCollector(attention_layers(model))

    def look(call: AttentionCall) -> None:
        if call.layer.cross:
            collector.update(call, target, source)
        else:
            collector.update(call, target if call.layer.causal else source)

    with torch.no_grad(), observe(model, look):
        found = model(source.ids, decoder_input_ids=target.ids, output_attentions=True)
    table = collector.result().table.set_index(["layer", "head"])
    kinds = (found.encoder_attentions, found.decoder_attentions, found.cross_attentions)
    for layer, (weights, keys) in enumerate(zip(kinds, (source, target, source), strict=True)):
        for head in range(2):
            A, row = weights[0][0, head].double(), table.loc[layer, head]
            assert math.isclose(row["entropy"], torch.special.entr(A).sum(-1).mean(), rel_tol=1e-5)
            assert math.isclose(row["first"], A[:, 0].mean(), rel_tol=1e-5)
            sees = A[2:] if layer == 1 else A  # the decoder's comma is its last token
            assert math.isclose(row["punctuation"], sees[:, keys.punctuation[0]].sum(-1).mean(), rel_tol=1e-5)
            assert math.isnan(row["previous"]) == (layer == 2)
