"""Statistics of a model that reads two texts."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing

from headwise.heads import AttentionCall, HeadStatistics, StatisticsCollector, observe, pair_statistics
from headwise.hub import TokenBatch, attention_layers

WORDS = ["<pad>", "<s>", "</s>", ",", *(f"w{i}" for i in range(36))]


def bart(**more: Any) -> Any:
    torch.manual_seed(0)
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", 1), ("attention_heads", 2), ("ffn_dim", 16))
    }
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = hf.BartConfig(vocab_size=40, d_model=16, max_position_embeddings=8, **(sides | ends | more))
    model = hf.BartForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        parameter.data.normal_(0.0, 0.3)
    model.set_attn_implementation("eager")
    return model


def words() -> Any:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=","))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def test_each_kind_of_layer_is_given_the_tokens_it_reads() -> None:
    model = bart()

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


def test_pairs_of_different_lengths_count_as_they_do_alone() -> None:
    model, tokenizer = bart(), words()
    pairs = [("w1 , w2 w3 w4", "w5 w6"), ("w7", "w8 , w9 w10 , w11")]
    found = pair_statistics(model, tokenizer, pairs)
    queries, entropy, comma = [0.0] * 3, torch.zeros(3, 2), torch.zeros(3, 2)
    for source, target in ([5, 3, 6, 7, 8, 2], [2, 9, 10]), ([11, 2], [2, 12, 3, 13, 14, 3, 15]):
        given = {"input_ids": torch.tensor([source]), "decoder_input_ids": torch.tensor([target])}
        with torch.no_grad():
            seen = model(**given, output_attentions=True)
        kinds = (seen.encoder_attentions, seen.decoder_attentions, seen.cross_attentions)
        for layer, (weights, keys) in enumerate(zip(kinds, (source, target, source), strict=True)):
            queries[layer] += weights[0].shape[2]
            entropy[layer] += torch.special.entr(weights[0][0]).sum(dim=(1, 2))
            comma[layer] += weights[0][0][:, :, torch.tensor(keys) == 3].sum(dim=(1, 2))
    table = found.table
    assert table["entropy"].tolist() == pytest.approx(
        [float(e) / n for row, n in zip(entropy, queries, strict=True) for e in row], rel=1e-5
    )
    of = found.counts["punctuation"].tolist()
    assert [mass * n for mass, n in zip(table["punctuation"], of, strict=True)] == pytest.approx(
        comma.flatten().tolist(), rel=1e-5
    )
    assert not model.training
    both = HeadStatistics.merge(*(pair_statistics(model, tokenizer, [pair]) for pair in pairs))
    pd.testing.assert_frame_equal(both.table, table, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("pairs", "error", "says"),
    [
        ([], ValueError, "there are no texts"),
        ("w1", TypeError, "pairs must be a list of pairs of texts, got str"),
        (["w1"], TypeError, "pair 0 must be two texts, got 'w1'"),
        ([("w1", 3)], TypeError, "pair 0 must be two texts"),
        ([("w1", "")], ValueError, "the second text of pair 0 is empty"),
        ([("", "w1")], ValueError, "text 0 is empty"),
        ([("w1 " * 9, "w1")], ValueError, "text 0 has 10 tokens.*at most 8"),
        ([("w1", "w1 " * 9)], ValueError, "text 0 has 10 tokens.*at most 8"),
    ],
)
def test_what_are_no_pairs_is_refused(pairs: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        pair_statistics(bart(), words(), pairs)


def test_a_model_that_reads_no_pairs_is_refused() -> None:
    for model in (bart().get_encoder(), None):
        with pytest.raises(ValueError, match="model must be an encoder–decoder of transformers, got"):
            pair_statistics(model, words(), [("w1", "w2")])
    with pytest.raises(ValueError, match="decoder_start_token_id is not set"):
        pair_statistics(bart(decoder_start_token_id=None), words(), [("w1", "w2")])
