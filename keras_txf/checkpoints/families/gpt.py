"""GPT-2 and OPT: decoders with learned positions."""

import math

from keras_txf import models
from keras_txf.checkpoints.families.seq2seq import bart_side
from keras_txf.checkpoints.family import Family, Task, decoder_tasks, for_both, sizes
from keras_txf.checkpoints.weight_map import SAME, Tensor, query_key_value, skip

GPT2 = {  # kernels in its files are (inputs, outputs), like ours
    "embedding/token": "wte",
    "embedding/position": "wpe",
    **query_key_value("h.{i}.attn.c_attn", kernel=SAME),
    "decoder_{i}/attention/output": Tensor("h.{i}.attn.c_proj", SAME),
    "decoder_{i}/attention_norm": "h.{i}.ln_1",
    "decoder_{i}/feed_forward/intermediate": Tensor("h.{i}.mlp.c_fc", SAME),
    "decoder_{i}/feed_forward/output": Tensor("h.{i}.mlp.c_proj", SAME),
    "decoder_{i}/feed_forward_norm": "h.{i}.ln_2",
    "decoder_norm": "ln_f",
}
OPT = {
    "embedding/token": "decoder.embed_tokens",
    "embedding/position": Tensor("decoder.embed_positions", other=skip(2)),
    "embedding/projection": "decoder.project_in",
    "embedding/reverse_projection": "decoder.project_out",
    **bart_side("decoder"),
    "decoder_norm": "decoder.final_layer_norm",
}


def gpt2(c):
    number, dim, heads = c("n_layer"), c("n_embd"), c("n_head")
    scale = 1 / math.sqrt(dim // heads) if c("scale_attn_weights", True) else 1.0
    by_depth = c("scale_attn_by_inverse_layer_idx", False)
    c.only(
        "embd_pdrop", c("resid_pdrop", 0.1)
    )  # the builder has one rate for both keys; no published file has two rates
    return {
        **sizes(c, num_layers="n_layer", dim="n_embd", num_heads="n_head"),
        "intermediate_dim": c("n_inner", None),
        "activation": c.activation("activation_function", "gelu_new"),
        "norm_placement": "pre",
        "norm_epsilon": c("layer_norm_epsilon", 1e-5),
        "scale": [scale / (i + 1) if by_depth else scale for i in range(number)],
        "dropout": c("resid_pdrop", 0.1),
        "attention_dropout": c("attn_pdrop", 0.1),
        "position_encoding": "learned",
        "max_length": c("n_positions", 1024),
        "pad_id": c.pad_id_of_decoder(None),
        "scale_embedding": False,
    }


def opt(c):
    c.only("layer_norm_elementwise_affine", True)
    dim, width, before = c("hidden_size"), c("word_embed_proj_dim", None), c("do_layer_norm_before", True)
    bias, without = c("enable_bias", True), c("_remove_final_layer_norm", False)
    return {
        **sizes(c),
        "intermediate_dim": c("ffn_dim"),
        "activation": c.activation("activation_function", "relu"),
        "attention_bias": bias,
        "feed_forward_bias": bias,
        "norm_placement": "pre" if before else "post",
        "norm_epsilon": 1e-5,
        "final_norm": before and not without,
        "dropout": c("dropout", 0.1),
        "attention_dropout": c("attention_dropout", 0.0),
        "position_encoding": "learned",
        "max_length": c("max_position_embeddings", 2048),
        "token_dim": None if width in (None, dim) else width,
        "pad_id": c.pad_id_of_decoder(1),
        "scale_embedding": False,
    }


def tasks(name, architecture, **heads):
    return decoder_tasks(name, Task(architecture, models.decoder_generator, {"logits": "lm_head"}), **heads)


FAMILIES = {
    "gpt2": Family(
        gpt2,
        for_both(GPT2),
        tasks("GPT2", "GPT2LMHeadModel", tokens="classifier"),
        "transformer.",
        (r"h\.\d+\.attn\.(masked_)?bias",),
        # Keys of another head, and copies of other keys.
        neutral=("reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation",
                 "summary_proj_to_labels", "summary_first_dropout", "n_ctx", "n_special", "predict_special_tokens"),
    ),
    "opt": Family(
        opt,
        for_both(OPT),
        tasks("OPT", "OPTForCausalLM", tokens=None, pad_id=1),
        "model.",
        neutral=("layerdrop", "activation_dropout"),
    ),
}  # fmt: skip
