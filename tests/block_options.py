"""A value that is no default for each option of the blocks. All of them go together."""

BLOCK_OPTIONS = {
    "intermediate_dim": 14, "head_dim": 8, "num_key_value_heads": 1, "window": 4, "position": "rotary",
    "activation": "silu", "gated": True, "use_bias": False,
    "norm": "rms", "norm_placement": "sandwich", "residual": "parallel",
    "norm_epsilon": 1e-3, "dropout": (0.05, 0.15), "kernel_initializer": "he_normal",
}  # fmt: skip
