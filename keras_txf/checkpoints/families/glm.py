"""GLM 4 in three classes of transformers: Llama with half of each head rotated; with further norms; with experts."""

from keras_txf.checkpoints.families import llama
from keras_txf.checkpoints.families.deepseek import DEEPSEEK_MOE, deepseek_family, sigmoid_router, with_deepseek_moe
from keras_txf.checkpoints.families.llama import family
from keras_txf.checkpoints.families.llama_kin import PHI3
from keras_txf.checkpoints.weight_map import projections

GLM = {**PHI3, **projections("decoder_{i}/attention", "layers.{i}.self_attn")}
GLM4 = {
    **GLM,
    "decoder_{i}/attention_post_norm": "layers.{i}.post_self_attn_layernorm",
    "decoder_{i}/feed_forward_post_norm": "layers.{i}.post_mlp_layernorm",
}
PAD = 151329  # by default this token is padding and ends texts


def options(c, **how):
    """Returns the options of every model of GLM: those of Llama, and biases of queries, keys and values alone."""
    return {
        **llama.options(c, fraction=0.5, **how),
        "attention_bias": c("attention_bias", True),
        "attention_output_bias": False,
    }


def glm(c):
    found = options(c, pad_id=PAD, interleaved=True)
    if c.end_id(None) is None and found["pad_id"] == PAD:
        found["pad_id"] = None
    return found


def glm4(c):
    return {**glm(c), "norm_placement": "sandwich"}


def glm4_moe(c):
    found = {**options(c), "attention_bias": c("attention_bias", False), "qk_norm": c("use_qk_norm", False)}
    top_k, dense = c("num_experts_per_tok", 8), c("first_k_dense_replace", 1)
    return with_deepseek_moe(c, found, top_k, dense, **sigmoid_router(c, 1, 1))


FAMILIES = {
    "glm": family("Glm", glm, GLM, pad_id=PAD),
    "glm4": family("Glm4", glm4, GLM4, pad_id=PAD),
    "glm4_moe": deepseek_family("Glm4Moe", glm4_moe, body=DEEPSEEK_MOE, further="46|92", sequences=False, tokens=None),
}
