"""A value that is no default for each option of the blocks. All of them go together."""

BLOCK_OPTIONS = {
    "intermediate_dim": 14, "head_dim": 8, "num_key_value_heads": 1, "window": 4, "position": "rotary", "qk_norm": True,
    "logit_soft_cap": 9.0, "sinks": True, "scale": 0.3, "activation": "silu", "gated": True, "use_bias": False,
    "norm": "rms", "norm_placement": "sandwich", "residual": "parallel", "residual_scale": 0.7, "layer_scale": 0.02,
    "norm_epsilon": 1e-3, "dropout": 0.05, "attention_dropout": 0.15, "feed_forward_dropout": 0.25,
    "stochastic_depth": (0.35, 0.45), "kernel_initializer": "he_normal", "attention_bias": True,
    "attention_output_bias": False, "attention_key_bias": False, "feed_forward_bias": True,
    "feed_forward_output_bias": False, "norm_bias": False, "rematerialize": True,
}  # fmt: skip
