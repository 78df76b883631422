"""GPT-NeoX, GPT-J, Phi, Falcon, Cohere 1 and 2, StableLM and BLOOM.

They are decoders with layer norms, most with parallel residuals.
"""

from keras_txf import models
from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.families.rotary import positions, windows
from keras_txf.checkpoints.family import Family, Task, decoder_tasks, for_both, sizes
from keras_txf.checkpoints.weight_map import OUT_PROJ, projections, query_key_value
from keras_txf.layers import Rotary

ONE_NORM = "parallel_one_norm"


def in_blocks(prefix, rows):
    """Returns the rows of a block with a prefix before their names in the checkpoint."""
    return {f"decoder_{{i}}/{ours}": f"{prefix}.{{i}}.{theirs}" for ours, theirs in rows.items()}


NEOX_BLOCK = {
    "attention_norm": "input_layernorm",
    "feed_forward/intermediate": "mlp.dense_h_to_4h",
    "feed_forward/output": "mlp.dense_4h_to_h",
    "feed_forward_norm": "post_attention_layernorm",
}
NEOX = {
    "embedding/token": "embed_in",
    **in_blocks("layers", {**NEOX_BLOCK, "attention/output": "attention.dense"}),
    "decoder_norm": "final_layer_norm",
}
GPTJ = {
    "embedding/token": "wte",
    **projections("decoder_{i}/attention", "h.{i}.attn", OUT_PROJ),
    "decoder_{i}/attention_norm": "h.{i}.ln_1",
    "decoder_{i}/feed_forward/intermediate": "h.{i}.mlp.fc_in",
    "decoder_{i}/feed_forward/output": "h.{i}.mlp.fc_out",
    "decoder_norm": "ln_f",
}
BLOOM = {
    "embedding/token": "word_embeddings",
    "decoder_embedding_norm": "word_embeddings_layernorm",
    **in_blocks("h", {**NEOX_BLOCK, "attention/output": "self_attention.dense"}),
    "decoder_norm": "ln_f",
}
PHI = {
    **llama.BODY,
    "decoder_{i}/attention/output": "layers.{i}.self_attn.dense",
    "decoder_{i}/attention/query_norm": "layers.{i}.self_attn.q_layernorm",
    "decoder_{i}/attention/key_norm": "layers.{i}.self_attn.k_layernorm",
    "decoder_{i}/feed_forward/intermediate": "layers.{i}.mlp.fc1",
    "decoder_{i}/feed_forward/output": "layers.{i}.mlp.fc2",
    "decoder_norm": "final_layernorm",
}
STABLELM = {
    **llama.BODY,
    "decoder_{i}/attention/query_norm": "layers.{i}.self_attn.q_layernorm.norms.{e}",
    "decoder_{i}/attention/key_norm": "layers.{i}.self_attn.k_layernorm.norms.{e}",
}


def neox_table(c):
    return {**NEOX, **query_key_value("layers.{i}.attention.query_key_value", c("num_attention_heads"))}


def falcon_table(c):
    heads, new = c("num_attention_heads"), c("new_decoder_architecture", False)
    old_groups = 1 if c("multi_query", True) else heads
    groups = c("num_kv_heads", None) or heads if new else old_groups
    two_norms = {"attention_norm": "ln_attn", "feed_forward_norm": "ln_mlp"}
    norms = two_norms if new and c("num_ln_in_parallel_attn", None) in (None, 2) else {}
    return {**BLOOM, **in_blocks("h", norms), **query_key_value("h.{i}.self_attention.query_key_value", groups)}


def bloom_table(c):
    return {**BLOOM, **query_key_value("h.{i}.self_attention.query_key_value", bloom_sizes(c)["num_heads"])}


COMMON = {
    "norm": "layer",
    "norm_placement": "pre",
    "norm_bias": True,
    "position_encoding": None,
    "scale_embedding": False,
}


def options(c, activation="gelu", epsilon="layer_norm_eps"):
    """Returns the options of families with Llama's keys and layer norms."""
    return {
        **COMMON,
        **sizes(c),
        "norm_epsilon": c(epsilon, 1e-5),
        "activation": c.activation("hidden_act", activation),
        "dropout": 0.0,
        "attention_dropout": c("attention_dropout", 0.0),
        "max_length": c("max_position_embeddings", 2048),
        "pad_id": c.pad_id_of_decoder(None),
    }


def rotary(c, base, **how):
    return {"position": positions(c, ["full_attention"] * c("num_hidden_layers"), {"full_attention": base}, **how)}


def neox(c):
    base, fraction = c("rotary_emb_base", 10000.0), c("rotary_pct", 0.25)
    # Transformers 4 also wrote both values under these keys, which its class does not read.
    c.not_read("rope_theta", base)
    c.not_read("partial_rotary_factor", fraction)
    return {
        **options(c),
        **rotary(c, base, fraction=fraction),
        "intermediate_dim": c("intermediate_size"),
        "attention_bias": c("attention_bias", True),
        "residual": "parallel" if c("use_parallel_residual", True) else "sequential",
        "dropout": c("hidden_dropout", 0.0),
    }


def gptj(c):
    heads, dim = c("n_head"), c("n_embd")
    return {
        **COMMON,
        **sizes(c, num_layers="n_layer", dim="n_embd", num_heads="n_head"),
        "intermediate_dim": c("n_inner", None),
        "activation": c.activation("activation_function", "gelu_new"),
        "attention_bias": False,
        "residual": ONE_NORM,
        "norm_epsilon": c("layer_norm_epsilon", 1e-5),
        "dropout": c("resid_pdrop", 0.0),
        "embedding_dropout": c("embd_pdrop", 0.0),
        "attention_dropout": c("attn_pdrop", 0.0),
        "position": Rotary(fraction=c("rotary_dim", 64) * heads / dim, interleaved=True, name="rotary"),
        "max_length": c("n_positions", 2048),
        "pad_id": c.pad_id_of_decoder(None),
    }


def phi(c):
    return {
        **options(c, "gelu_new"),
        **rotary(c, c("rope_theta", 10000.0), fraction=0.5),
        "num_key_value_heads": c("num_key_value_heads", None) or c("num_attention_heads"),
        "intermediate_dim": c("intermediate_size"),
        "residual": ONE_NORM,
        "qk_norm": "layer" if c("qk_layernorm", False) else False,
        "dropout": c("resid_pdrop", 0.0),
        "embedding_dropout": c("embd_pdrop", 0.0),
    }


def falcon(c):
    c.only("alibi", False)  # transformers computes its slopes in bfloat16
    for key in ("hidden_dropout", "attention_dropout"):  # rate on the sum of both sublayers, or ignored
        c.only(key, 0.0)
    heads, new, parallel = c("num_attention_heads"), c("new_decoder_architecture", False), c("parallel_attn", True)
    kv_heads, old_kv_heads = c("num_kv_heads", None) or heads, 1 if c("multi_query", True) else heads
    c.only("num_ln_in_parallel_attn", None, 1, *[2] * new)
    if new:
        c.only("parallel_attn", True)
    one_norm = c("num_ln_in_parallel_attn", None) == 1 or not new
    return {
        **options(c, epsilon="layer_norm_epsilon"),
        **rotary(c, c("rope_theta", 10000.0)),
        "num_key_value_heads": kv_heads if new else old_kv_heads,
        "intermediate_dim": c("ffn_hidden_size", None),
        "activation": c.activation("activation", "gelu"),
        "use_bias": c("bias", False),
        "residual": "sequential" if not parallel else ONE_NORM if one_norm else "parallel",
        "attention_dropout": 0.0,
    }


def cohere_options(c):
    return {
        **options(c, "silu"),
        "num_key_value_heads": c("num_key_value_heads", None) or c("num_attention_heads"),
        "intermediate_dim": c("intermediate_size"),
        "gated": True,
        "use_bias": False,
        "norm_bias": False,
        "attention_bias": c("attention_bias", False),
        "residual": ONE_NORM,
        "logit_scale": c("logit_scale", 0.0625),
        "pad_id": c.pad_id_of_decoder(0),
    }


def cohere(c):
    return {
        **cohere_options(c),
        **rotary(c, c("rope_theta", 500000.0), interleaved=True),
        "head_dim": c("head_dim", None),
        "qk_norm": "layer_per_head" if c("use_qk_norm", False) else False,
    }


def cohere2(c):
    width = c("hidden_size") // c("num_attention_heads")
    for key, value in (("use_qk_norm", False), ("head_dim", width), ("position_embedding_type", "rope_gptj"),
                       ("rotary_pct", 1.0)):  # fmt: skip
        c.not_read(key, value)
    number, every, window = c("num_hidden_layers"), c("sliding_window_pattern", 4), c("sliding_window", 4096)
    kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(number)]
    of_blocks = windows(c.each("layer_types", number, kinds), window)
    bases, used = {"full_attention": c("rope_theta", 10000.0)}, [one is not None for one in of_blocks]
    position = positions(c, ["full_attention"] * number, bases, used, interleaved=True)
    return {**cohere_options(c), "window": of_blocks, "position": position}


def stablelm(c):
    c.only("hidden_dropout", 0.0)  # rate of the feed-forward network alone
    return {
        **options(c, "silu"),
        **rotary(c, c("rope_theta", 10000.0), fraction=0.25),
        "num_key_value_heads": c("num_key_value_heads", 32),
        "intermediate_dim": c("intermediate_size"),
        "gated": True,
        "use_bias": False,
        "attention_bias": c("use_qkv_bias", False),
        "attention_output_bias": False,
        "qk_norm": "layer_per_head" if c("qk_layernorm", False) else False,
        "residual": ONE_NORM if c("use_parallel_residual", False) else "sequential",
    }


def bloom_sizes(c):
    """Returns the sizes; `n_embed` of the files of 2022 overrides `hidden_size`."""
    dim = c("hidden_size", 64)
    return {"dim": c("n_embed", None) or dim, "num_heads": c("n_head", 8), "num_layers": c("n_layer", 2)}


def bloom(c):
    c.only("apply_residual_connection_post_layernorm", False)
    return {
        **COMMON,
        **bloom_sizes(c),
        "vocab_size": c("vocab_size"),
        "activation": "gelu_tanh",
        "norm_epsilon": c("layer_norm_epsilon", 1e-5),
        "dropout": c("hidden_dropout", 0.0),
        "embedding_dropout": 0.0,
        "attention_dropout": c("attention_dropout", 0.0),
        "position": "alibi",
        "embedding_norm": True,
        "pad_id": c.pad_id_of_decoder(None),
    }


def family(name, options, body, prefix, neutral=(), head="lm_head", bias=False, **heads):
    renamed = {} if head == "lm_head" else {head: "lm_head"}
    rows, optional = {"logits": head}, {}
    if bias:
        rows["logit_adjustment/bias"] = optional["logit_bias"] = f"{head}.bias"
    task = Task(f"{name}ForCausalLM", models.decoder_generator, rows, optional=optional)
    buffers = (r".*rotary.*\.inv_freq", r".*\.attn(ention)?\.(masked_)?bias")
    return Family(
        options, for_both(body), decoder_tasks(name, task, **heads), prefix, buffers, neutral=neutral, renamed=renamed
    )


FAMILIES = {
    "gpt_neox": family(
        "GPTNeoX", neox, neox_table, "gpt_neox.",
        ("attention_probs_dropout_prob", "hidden_dropout_prob", "classifier_dropout"), "embed_out",
        tokens="classifier",
    ),
    "gptj": family(
        "GPTJ", gptj, GPTJ, "transformer.",
        ("rotary", "scale_attn_weights", "summary_type", "summary_use_proj", "summary_activation",
         "summary_proj_to_labels", "summary_first_dropout"), bias=True, tokens=None,
    ),
    "phi": family("Phi", phi, PHI, "model.", bias=True),
    "falcon": family(
        "Falcon", falcon, falcon_table, "transformer.",
        ("apply_residual_connection_post_layernorm", "ff_factor", "n_head", "n_layer"),  # the last two: early files
        tokens="classifier", rate=0.0,
    ),
    "cohere": family("Cohere", cohere, llama.BODY, "model.", ("model_max_length",), sequences=False, tokens=None),
    "cohere2": family("Cohere2", cohere2, llama.BODY, "model.", sequences=False, tokens=None),
    "stablelm": family("StableLm", stablelm, STABLELM, "model.", rate=0.0),
    "bloom": family(
        "Bloom", bloom, bloom_table, "transformer.",
        ("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi", "skip_bias_add",
         "skip_bias_add_qkv", "seq_length", "slow_but_exact", "n_inner"),
        tokens="classifier", rate=0.0,
    ),
}  # fmt: skip
