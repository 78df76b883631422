"""Llama, Mistral, Qwen 2 and 3, SmolLM 3, Gemma 1 to 3.

Pre-norm decoders with RMS norms, rotary positions, grouped-query attention and gated feed-forward networks.
"""

import math

from keras_txf import models
from keras_txf.checkpoints.families.rotary import positions, windows
from keras_txf.checkpoints.family import Family, Task, decoder_tasks, for_both, sizes
from keras_txf.checkpoints.weight_map import projections

BODY = {
    "embedding/token": "embed_tokens",
    **projections("decoder_{i}/attention", "layers.{i}.self_attn"),
    "decoder_{i}/attention/query_norm": "layers.{i}.self_attn.q_norm",
    "decoder_{i}/attention/key_norm": "layers.{i}.self_attn.k_norm",
    "decoder_{i}/attention_norm": "layers.{i}.input_layernorm",
    "decoder_{i}/feed_forward/gate": "layers.{i}.mlp.gate_proj",
    "decoder_{i}/feed_forward/intermediate": "layers.{i}.mlp.up_proj",
    "decoder_{i}/feed_forward/output": "layers.{i}.mlp.down_proj",
    "decoder_{i}/feed_forward_norm": "layers.{i}.post_attention_layernorm",
    "decoder_norm": "norm",
}
SANDWICH = {
    **BODY,
    "decoder_{i}/attention_post_norm": "layers.{i}.post_attention_layernorm",
    "decoder_{i}/feed_forward_norm": "layers.{i}.pre_feedforward_layernorm",
    "decoder_{i}/feed_forward_post_norm": "layers.{i}.post_feedforward_layernorm",
}


def options(c, base=10000.0, pad_id=None, epsilon="rms_norm_eps", **rotary):
    number, heads = c("num_hidden_layers"), c("num_attention_heads")
    kinds, bases = ["full_attention"] * number, {"full_attention": c("rope_theta", base)}
    return {
        **sizes(c),
        "num_key_value_heads": c("num_key_value_heads", None) or heads,
        "head_dim": c("head_dim", None),
        "intermediate_dim": c("intermediate_size"),
        "activation": c.activation("hidden_act", "silu"),
        "gated": True,
        "use_bias": False,
        "norm": "rms",
        "norm_placement": "pre",
        "norm_epsilon": c(epsilon, 1e-6),
        "dropout": 0.0,
        "attention_dropout": c("attention_dropout", 0.0),
        "position": positions(c, kinds, bases, **rotary),
        "position_encoding": None,
        "max_length": c("max_position_embeddings"),
        "pad_id": c.pad_id_of_decoder(pad_id),
        "scale_embedding": False,
    }


def llama(c):
    return {**options(c), "attention_bias": c("attention_bias", False), "feed_forward_bias": c("mlp_bias", False)}


def mistral(c):
    c.not_read("attention_bias", False)
    c.not_read("mlp_bias", False)
    return {**options(c), "window": c("sliding_window", 4096)}


def layered(c, number, kinds):
    """Returns the window of each block by `layer_types`; None in all blocks if `use_sliding_window` is False."""
    kinds, window = c.each("layer_types", number, kinds), c("sliding_window", 4096)
    return windows(kinds, window if c("use_sliding_window", False) else None)


def qwen2(c):
    number, plain = c("num_hidden_layers"), c("max_window_layers", 28)
    kinds = ["sliding_attention" if i >= plain else "full_attention" for i in range(number)]
    if c("layer_types", None) is None and not c("use_sliding_window", False):
        kinds = ["full_attention"] * number
    return {**options(c), "attention_bias": True, "attention_output_bias": False, "window": layered(c, number, kinds)}


def qwen3(c):
    bias = c("attention_bias", False)
    return {
        **qwen2(c),
        "head_dim": c("head_dim", 128),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "qk_norm": True,
    }


def smollm3(c):
    number, every = c("num_hidden_layers"), c("no_rope_layer_interval", 4)
    used = c.each("no_rope_layers", number, [(i + 1) % every != 0 for i in range(number)])
    wide = c("use_sliding_window", False)
    kinds = ["sliding_attention" if wide and not use else "full_attention" for use in used]
    return {
        **options(c, 2000000.0, 128004, used=list(map(bool, used))),
        "attention_bias": c("attention_bias", False),
        "feed_forward_bias": c("mlp_bias", False),
        "window": layered(c, number, kinds),
    }


def gemma(c):
    """Gemma 1: transformers 5 reads `hidden_act` alone, and earlier versions `hidden_activation`."""
    name = c("hidden_act", "gelu_pytorch_tanh")
    if name == "gelu":  # in the first files "gelu" means the tanh approximation
        name = "gelu_pytorch_tanh"
    c.only("hidden_activation", None, name, hint=c.ignore_hint(["hidden_activation"]))
    return {**gemma_parts(c), "activation": c.as_activation("hidden_act", name)}


def gemma_parts(c, *attends):
    """What all Gemmas have; `attends` holds further values of `use_bidirectional_attention`."""
    c.only("use_bidirectional_attention", None, False, *attends)
    return {
        **options(c, pad_id=0),
        "head_dim": c("head_dim", 256),
        "attention_bias": c("attention_bias", False),
        "scale_embedding": True,
        "norm": "rms_zero_centered",
    }


def gemma2(c, *attends):
    number, name = c("num_hidden_layers"), c("hidden_activation", None) or "gelu_pytorch_tanh"
    c.not_read("hidden_act", *dict.fromkeys([name, "gelu"]))
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(number)]
    return {
        **gemma_parts(c, *attends),
        "activation": c.as_activation("hidden_activation", name),
        "norm_placement": "sandwich",
        "window": windows(c.each("layer_types", number, kinds), c("sliding_window", 4096)),
        "scale": 1 / math.sqrt(c("query_pre_attn_scalar", 256)),
        "logit_soft_cap": c("attn_logit_softcapping", 50.0),
        "final_logit_soft_cap": c("final_logit_softcapping", 30.0),
    }


def gemma3(c):
    c.not_read("attn_logit_softcapping")
    number, every = c("num_hidden_layers"), c("sliding_window_pattern", None) or 6
    kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(number)]
    kinds = c.each("layer_types", number, kinds)
    bases = {"full_attention": c("rope_theta", 1000000.0), "sliding_attention": c("rope_local_base_freq", 10000.0)}
    window = c("sliding_window", 4096)
    both = {}
    if c("use_bidirectional_attention", None):  # EmbeddingGemma: `sliding_window` is the width of both sides together
        both, window = {"causal": False}, window and window // 2 + 1
    return {
        **gemma2(c, True),
        **both,
        "window": windows(kinds, window),
        "position": positions(c, kinds, bases),
        "qk_norm": "head_zero_centered",
        "logit_soft_cap": None,
        "final_logit_soft_cap": c("final_logit_softcapping", None),
    }


def family(name, options, body=BODY, neutral=(), own=None, renamed=None, **heads):
    """Returns a family; `name` is the prefix of its language model's class, `own` of its other classes."""
    task = Task(f"{name}ForCausalLM", models.decoder_generator, {"logits": "lm_head"})
    return Family(
        options,
        for_both(body),
        decoder_tasks(own or name, task, **heads),
        "model.",
        (r".*rotary_emb\.inv_freq",),
        neutral=neutral,
        renamed=renamed or {},
        other_prefix="transformer.",  # in the question-answering classes of Llama, Qwen and SmolLM 3
    )


FAMILIES = {
    "llama": family("Llama", llama),
    "mistral": family("Mistral", mistral),
    "qwen2": family("Qwen2", qwen2),
    "qwen3": family("Qwen3", qwen3),
    "smollm3": family("SmolLM3", smollm3, neutral=("max_window_layers",), pad_id=128004),
    "gemma": family("Gemma", gemma, BODY, pad_id=0),
    "gemma2": family("Gemma2", gemma2, SANDWICH, neutral=("sliding_window_size",), pad_id=0),
    "gemma3_text": family(
        "Gemma3", gemma3, SANDWICH, ("_sliding_window_pattern",), "Gemma3Text", tokens=None, pad_id=0
    ),
}
