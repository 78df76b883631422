"""Families of decoders: options away from their defaults, for `checkpoint_cases`."""

import functools

from case_sizes import FIVE, GPT2, LINEAR, LLAMA, LLAMA3, OPT, YARN, rows

IDS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
FORTY = dict(rope_type="default", rope_theta=300.0, partial_rotary_factor=0.4)
PARTIAL = {**LINEAR, "partial_rotary_factor": 0.6}


neox = functools.partial(  # with layer norms, and heads 10 wide
    dict, vocab_size=61, hidden_size=40, num_hidden_layers=3, num_attention_heads=4, intermediate_size=36,
    max_position_embeddings=64, layer_norm_eps=1e-2, **IDS,
)  # fmt: skip
rms = functools.partial(dict, **LLAMA)  # with RMS norms, and heads 6 wide in groups
GPTJ = dict(vocab_size=61, n_embd=40, n_layer=3, n_head=4, n_positions=26, rotary_dim=6, layer_norm_epsilon=1e-2, **IDS)
FALCON = dict(
    vocab_size=61, hidden_size=40, num_hidden_layers=3, num_attention_heads=4, ffn_hidden_size=36,
    max_position_embeddings=64, layer_norm_epsilon=1e-2, **IDS,
)  # fmt: skip
STARCODER2 = {"norm_epsilon": 1e-2, **{name: value for name, value in rms().items() if name != "rms_norm_eps"}}
BLOOM = dict(vocab_size=61, hidden_size=30, n_layer=3, n_head=3, layer_norm_epsilon=1e-2, **IDS)
GRANITE = dict(embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.2, logits_scaling=1.5)
MAMBA = dict(mamba_n_heads=8, mamba_d_state=5, mamba_d_conv=3, mamba_chunk_size=4)
EXPERTS = dict(num_experts_per_tok=2, router_aux_loss_coef=0.02)
WIDTH = dict(num_experts=4, moe_intermediate_size=16)
QWEN = dict(**WIDTH, shared_expert_intermediate_size=20)
MSCALE = {**YARN, "mscale": 0.9, "mscale_all_dim": 0.6}
LFM2 = {"norm_eps": 1e-2, **{name: value for name, value in rms().items() if name != "rms_norm_eps"}}
DELTA = dict(
    linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=5, linear_value_head_dim=4,
    linear_conv_kernel_dim=3, head_dim=8,
)  # fmt: skip
THIRD = dict(rope_type="default", rope_theta=70.0, partial_rotary_factor=1 / 3)
ROUTED = dict(
    n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=16, n_shared_experts=2, routed_scaling_factor=1.7
)
LATENT = dict(num_key_value_heads=None, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, **ROUTED)
DECODERS = [
    ("gpt_neox", "plain", "GPTNeoXForCausalLM",
     neox(rope_parameters=dict(rope_type="default", rope_theta=50.0, partial_rotary_factor=0.6))),
    ("gpt_neox", "sequential", "GPTNeoXForCausalLM", neox(use_parallel_residual=False, attention_bias=False,
     hidden_act="gelu_new", rope_parameters=PARTIAL, tie_word_embeddings=True)),
    ("gptj", "plain", "GPTJForCausalLM", GPTJ),
    ("gptj", "narrow", "GPTJForCausalLM", {**GPTJ, "n_inner": 36, "activation_function": "relu", "pad_token_id": None,
     "rotary_dim": 10, "tie_word_embeddings": True}),
    ("phi", "plain", "PhiForCausalLM", neox(num_key_value_heads=2, partial_rotary_factor=0.6)),
    ("phi", "stretched", "PhiForCausalLM",
     neox(hidden_act="relu", rope_parameters=PARTIAL, tie_word_embeddings=True, pad_token_id=None, qk_layernorm=True)),
    ("falcon", "groups", "FalconForCausalLM", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", "one-norm", "FalconForCausalLM", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 1,
     "num_ln_in_parallel_attn": 1, "bias": True, "activation": "relu", "tie_word_embeddings": False}),
    ("falcon", "multi-query", "FalconForCausalLM", {**FALCON, "bias": True, "ffn_hidden_size": None}),
    ("falcon", "sequential", "FalconForCausalLM", {**FALCON, "multi_query": False, "parallel_attn": False,
     "rope_parameters": LINEAR}),
    ("cohere", "plain", "CohereForCausalLM", neox(num_key_value_heads=2, logit_scale=0.3)),
    ("cohere", "biased", "CohereForCausalLM",
     neox(attention_bias=True, hidden_act="gelu", tie_word_embeddings=False, rope_parameters=LLAMA3, head_dim=8,
          use_qk_norm=True, num_key_value_heads=2)),
    ("stablelm", "plain", "StableLmForCausalLM", neox(num_key_value_heads=2, partial_rotary_factor=0.6)),
    ("stablelm", "parallel", "StableLmForCausalLM", neox(num_key_value_heads=4, use_parallel_residual=True,
     use_qkv_bias=True, hidden_act="gelu", tie_word_embeddings=True, rope_parameters=PARTIAL, qk_layernorm=True)),
    ("bloom", "plain", "BloomForCausalLM", BLOOM),
    ("bloom", "untied", "BloomForCausalLM",
     {**BLOOM, "hidden_size": 24, "n_head": 4, "tie_word_embeddings": False, "pad_token_id": None}),
    ("phi3", "plain", "Phi3ForCausalLM", rms()),
    ("phi3", "window", "Phi3ForCausalLM",
     rms(hidden_size=40, sliding_window=4, hidden_act="gelu", tie_word_embeddings=True, partial_rotary_factor=0.4)),
    ("starcoder2", "plain", "Starcoder2ForCausalLM", {**STARCODER2, "sliding_window": 4}),
    ("starcoder2", "unbiased", "Starcoder2ForCausalLM",
     {**STARCODER2, "use_bias": False, "hidden_act": "silu", "tie_word_embeddings": False, "rope_parameters": YARN}),
    ("olmo2", "plain", "Olmo2ForCausalLM", rms()),
    ("olmo2", "biased", "Olmo2ForCausalLM",
     rms(attention_bias=True, num_key_value_heads=4, tie_word_embeddings=True, rope_parameters=LLAMA3, pad_token_id=3)),
    ("granite", "plain", "GraniteForCausalLM", rms(**GRANITE)),
    ("granite", "biased", "GraniteForCausalLM",
     rms(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, residual_multiplier=0.3, logits_scaling=0.7)),
    ("lfm2", "adjusted", "Lfm2ForCausalLM", {**LFM2, "full_attn_idxs": [1], "conv_bias": True,
     "block_ffn_dim_multiplier": 1.7, "block_multiple_of": 5}),
    ("lfm2", "plain", "Lfm2ForCausalLM", {**LFM2, "layer_types": ["full_attention", "conv", "conv"],
     "conv_L_cache": 4, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False, "pad_token_id": None,
     "rope_parameters": YARN}),
    ("lfm2_moe", "mixed", "Lfm2MoeForCausalLM", {**LFM2, **WIDTH, "num_experts_per_tok": 2, "num_dense_layers": 1,
     "routed_scaling_factor": 1.7, "layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}),
    ("lfm2_moe", "plain", "Lfm2MoeForCausalLM", {**LFM2, **WIDTH, "num_experts_per_tok": 3, "num_dense_layers": 0,
     "use_expert_bias": False, "norm_topk_prob": False, "tie_word_embeddings": False, "conv_bias": True,
     "layer_types": ["full_attention", "conv", "conv"]}),
    ("qwen3_next", "mixed", "Qwen3NextForCausalLM", rms(**EXPERTS, **QWEN, **{**DELTA, "head_dim": 12},
     mlp_only_layers=[1], rope_parameters=THIRD, full_attention_interval=2)),
    ("qwen3_next", "biased", "Qwen3NextForCausalLM", rms(**EXPERTS, **QWEN, **DELTA, attention_bias=True,
     norm_topk_prob=False, decoder_sparse_step=2, num_hidden_layers=4, tie_word_embeddings=True, pad_token_id=None)),
    ("qwen3_5_text", "mixed", "Qwen3_5ForCausalLM",
     rms(**{**DELTA, "head_dim": 12}, rope_parameters=THIRD, full_attention_interval=2)),
    ("qwen3_5_text", "biased", "Qwen3_5ForCausalLM", rms(**DELTA, attention_bias=True, num_hidden_layers=4,
     tie_word_embeddings=True, pad_token_id=None, rope_parameters={**YARN, "partial_rotary_factor": 0.5})),
    ("mixtral", "plain", "MixtralForCausalLM", rms(**EXPERTS, num_local_experts=4, sliding_window=4)),
    ("mixtral", "narrow", "MixtralForCausalLM", rms(num_local_experts=3, num_experts_per_tok=1, head_dim=10,
     hidden_act="gelu", tie_word_embeddings=True, num_key_value_heads=4, rope_parameters=YARN)),
    ("qwen2_moe", "mixed", "Qwen2MoeForCausalLM", rms(**EXPERTS, **QWEN, norm_topk_prob=True, qkv_bias=False,
     decoder_sparse_step=2, use_sliding_window=True, sliding_window=4, max_window_layers=2, tie_word_embeddings=True)),
    ("qwen2_moe", "plain", "Qwen2MoeForCausalLM", rms(**EXPERTS, **QWEN)),
    ("qwen3_moe", "mixed", "Qwen3MoeForCausalLM", rms(**EXPERTS, **WIDTH, norm_topk_prob=True, attention_bias=True,
     mlp_only_layers=[1], use_sliding_window=True, sliding_window=4, hidden_act="gelu")),
    ("qwen3_moe", "plain", "Qwen3MoeForCausalLM", rms(**EXPERTS, **WIDTH, head_dim=10)),
    ("olmoe", "plain", "OlmoeForCausalLM", rms(**EXPERTS, num_experts=4)),
    ("olmoe", "biased", "OlmoeForCausalLM", rms(num_experts=3, num_experts_per_tok=2, norm_topk_prob=True,
     attention_bias=True, tie_word_embeddings=True, rope_parameters=LLAMA3)),
    ("granitemoe", "plain", "GraniteMoeForCausalLM", rms(**EXPERTS, **GRANITE, num_local_experts=4)),
    ("granitemoe", "biased", "GraniteMoeForCausalLM",
     rms(num_local_experts=3, num_experts_per_tok=1, attention_bias=True, hidden_act="gelu", tie_word_embeddings=True,
         num_key_value_heads=4, rope_parameters=YARN)),
    ("granitemoeshared", "plain", "GraniteMoeSharedForCausalLM",
     rms(**EXPERTS, **GRANITE, num_local_experts=4, shared_intermediate_size=20)),
    ("granitemoeshared", "alone", "GraniteMoeSharedForCausalLM",
     rms(num_local_experts=3, num_experts_per_tok=2, shared_intermediate_size=0, tie_word_embeddings=True)),
    ("granitemoehybrid", "mixed", "GraniteMoeHybridForCausalLM",
     rms(**EXPERTS, **GRANITE, **MAMBA, num_local_experts=4, shared_intermediate_size=20, num_hidden_layers=2,
         layer_types=["linear_attention", "full_attention"], position_embedding_type="rope", mamba_n_groups=2)),
    ("granitemoehybrid", "dense", "GraniteMoeHybridForCausalLM",
     rms(**MAMBA, num_local_experts=0, shared_intermediate_size=20, layer_types=["mamba", "attention", "mamba"],
         position_embedding_type="nope", mamba_expand=3, mamba_proj_bias=True, mamba_conv_bias=False,
         attention_bias=True, tie_word_embeddings=True, pad_token_id=None)),
    ("deepseek_v2", "groups", "DeepseekV2ForCausalLM",
     rms(**LATENT, n_group=4, topk_group=2, topk_method="group_limited_greedy", rope_parameters=MSCALE,
         attention_bias=True, first_k_dense_replace=1, q_lora_rank=14)),
    ("deepseek_v2", "plain", "DeepseekV2ForCausalLM", rms(**LATENT, n_group=1, topk_group=1, first_k_dense_replace=0,
     q_lora_rank=None, hidden_act="gelu", tie_word_embeddings=True)),
    ("deepseek_v3", "groups", "DeepseekV3ForCausalLM",
     rms(**LATENT, n_group=4, topk_group=2, first_k_dense_replace=1, rope_parameters=MSCALE, q_lora_rank=14)),
    ("deepseek_v3", "plain", "DeepseekV3ForCausalLM", rms(**LATENT, n_group=1, topk_group=1, first_k_dense_replace=0,
     rope_interleave=False, q_lora_rank=None, attention_bias=True, norm_topk_prob=False, tie_word_embeddings=True,
     rope_parameters=dict(rope_type="linear", rope_theta=70.0, factor=2.5))),
    ("glm", "plain", "GlmForCausalLM", rms(head_dim=10, rope_parameters=FORTY)),
    ("glm", "unbiased", "GlmForCausalLM",
     rms(head_dim=8, attention_bias=False, hidden_act="gelu", tie_word_embeddings=True, rope_parameters=LINEAR)),
    ("glm4", "plain", "Glm4ForCausalLM", rms(head_dim=10, rope_parameters=FORTY)),
    ("glm4", "unbiased", "Glm4ForCausalLM",
     rms(head_dim=8, attention_bias=False, num_key_value_heads=4, tie_word_embeddings=True, rope_parameters=LINEAR)),
    ("glm4_moe", "groups", "Glm4MoeForCausalLM", rms(**ROUTED, n_group=4, topk_group=2, first_k_dense_replace=1,
     use_qk_norm=True, head_dim=10, rope_parameters=FORTY)),
    ("glm4_moe", "plain", "Glm4MoeForCausalLM", rms(**ROUTED, first_k_dense_replace=0, attention_bias=True, head_dim=8,
     norm_topk_prob=False, tie_word_embeddings=True, rope_parameters=LINEAR)),
    ("llama4_text", "mixed", "Llama4ForCausalLM",
     rms(head_dim=10, num_hidden_layers=2, num_local_experts=4, num_experts_per_tok=2, interleave_moe_layer_step=2,
         intermediate_size_mlp=20, no_rope_layers=[1, 0], attention_chunk_size=4, floor_scale=3, attn_scale=0.7,
         pad_token_id=None, rope_parameters=dict(rope_type="default", rope_theta=70.0))),
    ("llama4_text", "plain", "Llama4ForCausalLM",
     rms(head_dim=8, num_local_experts=3, num_experts_per_tok=1, intermediate_size_mlp=20, moe_layers=[0, 2],
         use_qk_norm=False, attention_bias=True, attn_temperature_tuning=False, no_rope_layer_interval=2,
         attention_chunk_size=3, tie_word_embeddings=True, rope_parameters=LLAMA3)),
    ("gpt_oss", "plain", "GptOssForCausalLM", rms(**EXPERTS, num_local_experts=4, head_dim=10, sliding_window=4,
     swiglu_limit=0.9, rope_parameters={**YARN, "truncate": False})),
    ("gpt_oss", "unbiased", "GptOssForCausalLM", rms(num_local_experts=3, num_experts_per_tok=2, head_dim=8,
     attention_bias=False, tie_word_embeddings=True, layer_types=["full_attention", "sliding_attention",
     "full_attention"], sliding_window=3, rope_parameters=dict(rope_type="default", rope_theta=70.0))),
]  # fmt: skip

REWARD = dict(num_labels=1)
# Heads of decoders, and bodies alone.
HEADS = [
    ("gpt2", "classes", "GPT2ForSequenceClassification", {**GPT2, **FIVE, "pad_token_id": 1}),  # it also ends texts
    *rows("gpt2", "GPT2", "tokens encoder", {**GPT2, "pad_token_id": 0, "activation_function": "relu"}),
    ("opt", "reward", "OPTForSequenceClassification", {**OPT, **REWARD}),
    *rows("opt", "OPT", "encoder", OPT),
    ("llama", "reward", "LlamaForSequenceClassification", rms(**REWARD, attention_bias=True, head_dim=10)),
    *rows("llama", "Llama", "classes", rms(pad_token_id=2)),  # it also ends texts
    *rows("llama", "Llama", "tokens encoder", rms(classifier_dropout=0.3, rope_parameters=LLAMA3)),
    *rows("mistral", "Mistral", "classes tokens encoder", rms(sliding_window=4)),
    *rows("qwen2", "Qwen2", "classes tokens encoder", rms()),
    *rows("qwen3", "Qwen3", "classes encoder", rms(head_dim=10)),
    *rows("smollm3", "SmolLM3", "classes", rms()),
    *rows("gemma", "Gemma", "classes", rms(head_dim=10)),
    *rows("gemma2", "Gemma2", "classes encoder", rms(head_dim=10, sliding_window=4)),
    *rows("gemma3_text", "Gemma3Text", "classes encoder", rms(head_dim=10, sliding_window=4)),
    *rows("phi3", "Phi3", "classes", rms()),
    *rows("starcoder2", "Starcoder2", "classes", STARCODER2),
    *rows("olmo2", "Olmo2", "classes", rms()),
    *rows("granite", "Granite", "encoder", rms(embedding_multiplier=3.0, residual_multiplier=0.4)),
    *rows("gpt_neox", "GPTNeoX", "classes tokens", neox()),
    *rows("gptj", "GPTJ", "classes", GPTJ),
    *rows("phi", "Phi", "tokens", neox(num_key_value_heads=2, partial_rotary_factor=0.6)),
    *rows("falcon", "Falcon", "classes tokens", FALCON),
    *rows("cohere", "Cohere", "encoder", neox(num_key_value_heads=2)),
    *rows("stablelm", "StableLm", "classes", neox(num_key_value_heads=2)),
    *rows("bloom", "Bloom", "classes tokens", BLOOM),
    *rows("lfm2", "Lfm2", "encoder", {**LFM2, "full_attn_idxs": [2], "block_auto_adjust_ff_dim": False}),
    *rows("qwen3_next", "Qwen3Next", "classes tokens", rms(**EXPERTS, **QWEN, **DELTA, num_hidden_layers=4)),
    *rows("qwen3_5_text", "Qwen3_5Text", "classes encoder", rms(**DELTA, num_hidden_layers=4)),
    *rows("mixtral", "Mixtral", "classes", rms(**EXPERTS, num_local_experts=4)),
    *rows("qwen2_moe", "Qwen2Moe", "classes", rms(**EXPERTS, **QWEN)),
    *rows("qwen3_moe", "Qwen3Moe", "encoder", rms(**EXPERTS, num_experts=3, moe_intermediate_size=12, head_dim=10)),
    *rows("olmoe", "Olmoe", "encoder", rms(num_experts=3, num_experts_per_tok=2)),
    *rows("granitemoe", "GraniteMoe", "encoder", rms(**EXPERTS, **GRANITE, num_local_experts=4)),
    *rows("granitemoehybrid", "GraniteMoeHybrid", "encoder",  # all blocks are Mamba2: no cache in transformers
          rms(**MAMBA, **GRANITE, num_local_experts=3, shared_intermediate_size=20, use_cache=False)),
    *rows("deepseek_v2", "DeepseekV2", "classes", rms(**LATENT, q_lora_rank=14)),
    *rows("deepseek_v3", "DeepseekV3", "tokens encoder",
          rms(**LATENT, n_group=2, topk_group=1, first_k_dense_replace=2, q_lora_rank=14)),
    *rows("llama4_text", "Llama4Text", "encoder",
          rms(head_dim=8, num_local_experts=3, intermediate_size_mlp=20, attention_chunk_size=None)),
    *rows("glm", "Glm", "classes", rms(head_dim=8)),
    *rows("glm4", "Glm4", "tokens", rms(head_dim=8)),
    *rows("gpt_oss", "GptOss", "classes", rms(**EXPERTS, num_local_experts=4, head_dim=10, sliding_window=4)),
]  # fmt: skip
