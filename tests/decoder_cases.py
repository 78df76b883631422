"""Families of decoders: options away from their defaults, for `checkpoint_cases`."""

IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
YARN = dict(
    rope_type="yarn", rope_theta=500.0, factor=3.0, original_max_position_embeddings=8, beta_fast=16.0, beta_slow=2.0
)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=700.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=3.0,
    original_max_position_embeddings=16,
)  # fmt: skip
PARTIAL = dict(rope_type="linear", rope_theta=300.0, factor=2.5, partial_rotary_factor=0.6)


def neox(**options):
    """With layer norms, and heads 10 wide."""
    sizes = dict(
        vocab_size=61, hidden_size=40, num_hidden_layers=3, num_attention_heads=4, intermediate_size=36,
        max_position_embeddings=64, layer_norm_eps=1e-2, **IDS,
    )  # fmt: skip
    return {**sizes, **options}


def rms(**options):
    """With RMS norms, and heads 6 wide in groups."""
    sizes = dict(
        vocab_size=61, hidden_size=24, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=40, max_position_embeddings=64, rms_norm_eps=1e-2, **IDS,
    )  # fmt: skip
    return {**sizes, **options}


GPTJ = dict(vocab_size=61, n_embd=40, n_layer=3, n_head=4, n_positions=26, rotary_dim=6, layer_norm_epsilon=1e-2, **IDS)
FALCON = dict(
    vocab_size=61, hidden_size=40, num_hidden_layers=3, num_attention_heads=4, ffn_hidden_size=36,
    max_position_embeddings=64, layer_norm_epsilon=1e-2, **IDS,
)  # fmt: skip
BLOOM = dict(vocab_size=61, hidden_size=30, n_layer=3, n_head=3, layer_norm_epsilon=1e-2, **IDS)
DECODERS = [
    ("gpt_neox", "plain", "GPTNeoXForCausalLM", neox(
        rope_parameters=dict(rope_type="default", rope_theta=50.0, partial_rotary_factor=0.6),
    )),
    ("gpt_neox", "sequential", "GPTNeoXForCausalLM", neox(
        use_parallel_residual=False, attention_bias=False, hidden_act="gelu_new", rope_parameters=PARTIAL,
        tie_word_embeddings=True,
    )),
    ("gptj", "plain", "GPTJForCausalLM", GPTJ),
    ("gptj", "narrow", "GPTJForCausalLM", {
        **GPTJ, "n_inner": 36, "activation_function": "relu", "pad_token_id": None, "rotary_dim": 10,
        "tie_word_embeddings": True,
    }),
    ("phi", "plain", "PhiForCausalLM", neox(num_key_value_heads=2, partial_rotary_factor=0.6)),
    ("phi", "stretched", "PhiForCausalLM", neox(
        hidden_act="relu", rope_parameters=PARTIAL, tie_word_embeddings=True, pad_token_id=None,
    )),
    ("falcon", "groups", "FalconForCausalLM", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", "one-norm", "FalconForCausalLM", {
        **FALCON, "new_decoder_architecture": True, "num_kv_heads": 1, "num_ln_in_parallel_attn": 1, "bias": True,
        "activation": "relu", "tie_word_embeddings": False,
    }),
    ("falcon", "multi-query", "FalconForCausalLM", {**FALCON, "bias": True, "ffn_hidden_size": None}),
    ("falcon", "sequential", "FalconForCausalLM", {
        **FALCON, "multi_query": False, "parallel_attn": False,
        "rope_parameters": dict(rope_type="linear", rope_theta=300.0, factor=2.5),
    }),
    ("cohere", "plain", "CohereForCausalLM", neox(num_key_value_heads=2, logit_scale=0.3)),
    ("cohere", "biased", "CohereForCausalLM", neox(
        attention_bias=True, hidden_act="gelu", tie_word_embeddings=False, rope_parameters=LLAMA3, head_dim=8,
    )),
    ("stablelm", "plain", "StableLmForCausalLM", neox(num_key_value_heads=2, partial_rotary_factor=0.6)),
    ("stablelm", "parallel", "StableLmForCausalLM", neox(
        num_key_value_heads=4, use_parallel_residual=True, use_qkv_bias=True, hidden_act="gelu",
        tie_word_embeddings=True, rope_parameters=PARTIAL,
    )),
    ("bloom", "plain", "BloomForCausalLM", BLOOM),
    ("bloom", "untied", "BloomForCausalLM", {
        **BLOOM, "hidden_size": 24, "n_head": 4, "tie_word_embeddings": False, "pad_token_id": None,
    }),
    ("phi3", "plain", "Phi3ForCausalLM", rms()),
    ("phi3", "window", "Phi3ForCausalLM", rms(
        hidden_size=40, sliding_window=4, hidden_act="gelu", tie_word_embeddings=True, partial_rotary_factor=0.4,
    )),
    ("starcoder2", "plain", "Starcoder2ForCausalLM", rms(sliding_window=4, norm_epsilon=1e-2)),
    ("starcoder2", "unbiased", "Starcoder2ForCausalLM", rms(
        use_bias=False, hidden_act="silu", tie_word_embeddings=False, rope_parameters=YARN, norm_epsilon=1e-3,
    )),
    ("olmo2", "plain", "Olmo2ForCausalLM", rms()),
    ("olmo2", "biased", "Olmo2ForCausalLM", rms(
        attention_bias=True, num_key_value_heads=4, tie_word_embeddings=True, rope_parameters=LLAMA3, pad_token_id=3,
    )),
    ("granite", "plain", "GraniteForCausalLM", rms(
        embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=1.5,
    )),
    ("granite", "biased", "GraniteForCausalLM", rms(
        attention_bias=True, mlp_bias=True, tie_word_embeddings=True, residual_multiplier=0.3, logits_scaling=0.7,
    )),
]  # fmt: skip
