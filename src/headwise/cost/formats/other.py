"""Decoders that are not of Llama's outline: GPT-2 and its kin, OPT, and DeepSeek's latent attention."""

from __future__ import annotations

from headwise.cost.architecture import Architecture, Attention, FeedForward, Latent, Layer, head_width
from headwise.cost.formats.fields import Fields

_ALL = frozenset("qkvo")


def gpt2(fields: Fields) -> Architecture:
    """GPT-2, and GPT-BigCode, which may share one key/value head among all queries (`multi_query`)."""
    fields.refuse("add_cross_attention", False, "cross attention is not counted")
    d_model, n_head = fields.count("n_embd"), fields.count("n_head")
    width = head_width(d_model, n_head, None)
    shared = fields.model_type == "gpt_bigcode" and fields.flag("multi_query", True)
    attention = Attention(n_head, 1 if shared else n_head, width, width, biases=_ALL)
    part = FeedForward(fields.count("n_inner", 4 * d_model), gated=False, bias=True)
    positions = fields.count("n_positions")
    return Architecture(
        name=fields.model_type,
        d_model=d_model,
        layers=(Layer(attention, part, 4 * d_model),) * fields.layers("n_layer"),
        vocab_size=fields.count("vocab_size"),
        tied=fields.flag("tie_word_embeddings", True),
        positions=positions,
        norm="layer",
        final_norm_parameters=2 * d_model,
        context=positions,
    )


def gptj(fields: Fields) -> Architecture:
    """GPT-J: rotary, one norm per layer, biases in the feed-forward part and the output layer only."""
    d_model, n_head = fields.count("n_embd"), fields.count("n_head")
    width = head_width(d_model, n_head, None)
    part = FeedForward(fields.count("n_inner", 4 * d_model), gated=False, bias=True)
    return Architecture(
        name=fields.model_type,
        d_model=d_model,
        layers=(Layer(Attention(n_head, n_head, width, width), part, 2 * d_model),)
        * fields.layers("n_layer"),
        vocab_size=fields.count("vocab_size"),
        tied=fields.flag("tie_word_embeddings", False),
        head_bias=True,
        norm="layer",
        final_norm_parameters=2 * d_model,
        rotary=True,
        context=fields.maybe("n_positions"),
    )


def opt(fields: Fields) -> Architecture:
    """OPT: learned positions, of which the first two rows are never looked up."""
    d_model, n_head = fields.count("hidden_size"), fields.count("num_attention_heads")
    fields.refuse("word_embed_proj_dim", d_model, "embeddings of another width are not counted")
    fields.refuse("do_layer_norm_before", True, "norms after each part are not counted")
    fields.refuse("_remove_final_layer_norm", False, "a missing last norm is not counted")
    width = head_width(d_model, n_head, None)
    bias, affine = fields.flag("enable_bias", True), fields.flag("layer_norm_elementwise_affine", True)
    attention = Attention(n_head, n_head, width, width, biases=_ALL if bias else frozenset())
    part = FeedForward(fields.count("ffn_dim"), gated=False, bias=bias)
    norm = 2 * d_model if affine else 0
    context = fields.count("max_position_embeddings")
    return Architecture(
        name=fields.model_type,
        d_model=d_model,
        layers=(Layer(attention, part, 2 * norm),) * fields.layers("num_hidden_layers"),
        vocab_size=fields.count("vocab_size"),
        tied=fields.flag("tie_word_embeddings", True),
        positions=context + 2,
        norm="layer",
        final_norm_parameters=norm,
        context=context,
    )


def deepseek(fields: Fields) -> Architecture:
    """DeepSeek-V2 and -V3: latent attention, and experts after the first dense layers."""
    fields.refuse("mlp_bias", False, "biases in some feed-forward parts only are not counted")
    d_model, n_layer = fields.count("hidden_size"), fields.layers("num_hidden_layers")
    n_head, d_rope = fields.count("num_attention_heads"), fields.count("qk_rope_head_dim")
    latent = Latent(fields.count("kv_lora_rank"), d_rope, fields.stated("q_lora_rank"))
    norms = latent.rank + (latent.query_rank or 0)
    bias = fields.flag("attention_bias", False)
    attention = Attention(
        n_head,
        n_head,
        fields.count("qk_nope_head_dim") + d_rope,
        fields.count("v_head_dim"),
        biases=frozenset("o") if bias else frozenset(),
        latent=latent,
        extra=norms + (norms + d_rope if bias else 0),
    )
    width = fields.count("moe_intermediate_size")
    experts = FeedForward(
        width,
        routed=True,
        n_expert=fields.count("n_routed_experts"),
        n_active=fields.count("num_experts_per_tok"),
        d_shared=width * fields.count("n_shared_experts", least=0),
    )
    dense = FeedForward(fields.count("intermediate_size"))
    first = fields.count("first_k_dense_replace", least=0)
    return Architecture(
        name=fields.model_type,
        d_model=d_model,
        layers=tuple(Layer(attention, dense if i < first else experts, 2 * d_model) for i in range(n_layer)),
        vocab_size=fields.count("vocab_size"),
        tied=fields.flag("tie_word_embeddings", False),
        norm="rms",
        final_norm_parameters=d_model,
        rotary=True,
        context=fields.maybe("max_position_embeddings"),
        notes=("Layers that predict further tokens (MTP) are not counted.",)
        if fields.values.get("num_nextn_predict_layers")
        else (),
    )
