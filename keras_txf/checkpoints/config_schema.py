"""Checks of the value of each key of a `config.json`, which run before a builder fails on a wrong value."""

from keras_txf import checks
from keras_txf.checks import short_repr

# No checkpoint has sizes near these limits, and no machine has the memory for a larger model.
LARGEST_SIZE = 2**24
MOST_BLOCKS = 2**12
MOST_EXPERTS = 2**12


def size(name, value, most=LARGEST_SIZE):
    if checks.positive_integer(name, value) > most:
        raise ValueError(f"`{name}` must be at most {most}; received {short_repr(value)}.")


def size_or_zero(name, value):
    if value != 0 or isinstance(value, bool):
        size(name, value)


def number_or_zero(name, value):
    if value != 0 or isinstance(value, bool):
        checks.positive_number(name, value)


def id_or_none(name, value):
    if value != -1:
        checks.id_below(name, value)


def size_or_none(name, value):
    if value != -1:
        size_or_zero(name, value)


def blocks(name, value):
    size(name, value, MOST_BLOCKS)


def experts(name, value):
    size(name, value, MOST_EXPERTS)


def experts_or_zero(name, value):
    size_or_zero(name, value)
    if value:
        experts(name, value)


def sizes(name, value):
    if not isinstance(value, list) or not value:
        raise ValueError(f"`{name}` must be a list of sizes; received {short_repr(value)}.")
    for one in value:
        size(name, one)


def size_or_sizes(name, value):
    (sizes if isinstance(value, list) else size)(name, value)


def whole_numbers(name, value):
    if not isinstance(value, list):
        raise ValueError(f"`{name}` must be a list of numbers of blocks; received {short_repr(value)}.")
    for number in value:
        checks.id_below(name, number)


def sides(name, value):
    for side in checks.pair(name, value):
        size(name, side)


def text(name, value):
    if not isinstance(value, str):
        raise ValueError(f"`{name}` must be a string; received {short_repr(value)}.")


def texts(name, value):
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise ValueError(f"`{name}` must be a list of strings; received {short_repr(value)}.")


def text_or_texts(name, value):
    (text if isinstance(value, str) else texts)(name, value)


def flags(name, value):
    if not isinstance(value, list) or not all(isinstance(x, (bool, int)) for x in value):
        raise ValueError(f"`{name}` must be a list of true and false, or of 1 and 0; received {short_repr(value)}.")


def negative(name, value):
    if not isinstance(value, int) or isinstance(value, bool) or value >= 0:
        raise ValueError(f"`{name}` must be one negative integer; received {short_repr(value)}.")


def mapping(name, value):
    if not isinstance(value, dict):
        raise ValueError(f"`{name}` must be a JSON object; received {short_repr(value)}.")


KEYS = {
    size: (
        "vocab_size", "decoder_vocab_size", "hidden_size", "dim", "n_embd", "d_model", "embedding_size",
        "word_embed_proj_dim", "num_attention_heads", "n_heads", "n_head", "num_heads", "encoder_attention_heads",
        "decoder_attention_heads", "num_key_value_heads", "head_dim", "d_kv", "intermediate_size", "hidden_dim",
        "n_inner", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings",
        "original_max_position_embeddings", "n_positions", "relative_attention_num_buckets",
        "relative_attention_max_distance", "local_attention", "global_attn_every_n_layers", "no_rope_layer_interval",
        "sliding_window_pattern", "num_channels", "num_labels", "rotary_dim", "num_kv_heads", "num_ln_in_parallel_attn",
        "ffn_hidden_size", "n_embed", "num_hidden_groups", "mlp_ratio", "moe_intermediate_size",
        "shared_expert_intermediate_size", "num_experts_per_tok", "decoder_sparse_step", "num_mel_bins",
        "max_source_positions", "max_target_positions", "projection_dim", "projection_size", "kv_lora_rank",
        "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_shared_experts", "n_group",
        "topk_group", "mm_tokens_per_image", "scale_factor", "conv_L_cache", "block_multiple_of",
        "linear_num_key_heads", "linear_key_head_dim", "linear_num_value_heads", "linear_value_head_dim",
        "linear_conv_kernel_dim", "full_attention_interval", "mamba_n_heads", "mamba_d_state", "mamba_d_conv",
        "mamba_expand", "mamba_n_groups", "intermediate_size_mlp", "interleave_moe_layer_step", "floor_scale",
        "num_conv_pos_embeddings", "num_conv_pos_embedding_groups", "classifier_proj_size", "task_type_vocab_size",
        "conv_pos_kernel_size",
    ),
    sizes: ("conv_kernel", "conv_stride"),
    size_or_sizes: ("conv_dim",),
    size_or_zero: (
        "type_vocab_size", "max_window_layers", "sliding_window", "conv_kernel_size", "num_register_tokens",
        "first_k_dense_replace", "shared_intermediate_size", "num_dense_layers", "attention_chunk_size",
    ),
    number_or_zero: ("layer_scale_init_value",),
    blocks: (
        "num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_decoder_layers", "encoder_layers",
        "decoder_layers",
    ),
    experts: ("num_experts", "n_routed_experts"),
    experts_or_zero: ("num_local_experts",),
    whole_numbers: ("mlp_only_layers", "full_attn_idxs", "moe_layers"),
    negative: ("vision_feature_layer",),
    sides: ("image_size", "patch_size"),
    checks.rate: (
        "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "activation_dropout",
        "classifier_dropout", "seq_classif_dropout", "resid_pdrop", "attn_pdrop", "embedding_dropout", "mlp_dropout",
        "dropout_rate", "hidden_dropout", "embd_pdrop", "residual_dropout", "classifier_dropout_prob", "drop_path_rate",
        "qa_dropout", "cls_dropout", "feat_proj_dropout", "final_dropout",
    ),
    checks.positive_number: (
        "layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "norm_eps", "rope_theta", "rope_local_base_freq",
        "global_rope_theta", "local_rope_theta", "query_pre_attn_scalar", "attn_logit_softcapping",
        "final_logit_softcapping", "rotary_emb_base", "norm_epsilon", "embedding_multiplier", "residual_multiplier",
        "attention_multiplier", "logits_scaling", "logit_scale", "layerscale_value", "swiglu_limit",
        "routed_scaling_factor", "block_ffn_dim_multiplier", "attn_scale",
    ),
    checks.finite_number: ("router_aux_loss_coef",),
    checks.fraction: ("partial_rotary_factor", "rotary_pct"),
    checks.boolean: (
        "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "do_layer_norm_before", "enable_bias",
        "_remove_final_layer_norm", "attention_bias", "mlp_bias", "norm_bias", "decoder_bias", "classifier_bias",
        "qkv_bias", "use_sliding_window", "scale_embedding", "share_encoder_decoder_embeddings", "tie_word_embeddings",
        "scale_decoder_outputs", "use_parallel_residual", "new_decoder_architecture", "multi_query", "parallel_attn",
        "bias", "use_bias", "use_qkv_bias", "use_swiglu_ffn", "token_dropout", "emb_layer_norm_before",
        "use_relative_position_bias", "use_shared_relative_position_bias", "use_absolute_position_embeddings",
        "use_mean_pooling", "query_bias", "key_bias", "value_bias", "proj_bias", "use_gated_mlp", "qk_layernorm",
        "use_qk_norm", "use_bidirectional_attention", "norm_topk_prob", "output_router_logits", "relative_attention",
        "position_biased_input", "share_att_key", "legacy", "rope_interleave", "multimodal_projector_bias", "conv_bias",
        "block_auto_adjust_ff_dim", "use_expert_bias", "mamba_conv_bias", "mamba_proj_bias", "attn_temperature_tuning",
        "attention_out_bias", "do_stable_layer_norm", "feat_proj_layer_norm", "use_task_id",
    ),
    checks.id_below: ("decoder_start_token_id", "mask_token_id", "bos_token_id", "image_token_id", "image_token_index"),
    id_or_none: ("pad_token_id",),
    size_or_none: ("max_relative_positions", "position_buckets"),
    text: (
        "model_type", "hidden_act", "activation", "activation_function", "hidden_activation", "feed_forward_proj",
        "classifier_activation", "classifier_pooling", "position_embedding_type", "norm_rel_ebd", "conv_act",
        "pooler_hidden_act", "topk_method", "projector_hidden_act", "vision_feature_select_strategy",
        "feat_extract_norm", "feat_extract_activation",
    ),
    texts: ("architectures", "layer_types"),
    text_or_texts: ("pos_att_type",),
    flags: ("no_rope_layers",),
    mapping: (
        "rope_parameters", "rope_scaling", "id2label", "text_config", "vision_config", "text_config_dict",
        "vision_config_dict", "encoder", "decoder",
    ),
}  # fmt: skip
VALUE_CHECKS = {key: check for check, keys in KEYS.items() for key in keys}
# Keys for which null means None, and a missing key means the default.
NULL = {
    "pad_token_id", "sliding_window", "head_dim", "attn_logit_softcapping", "final_logit_softcapping", "q_lora_rank",
    "attention_chunk_size",
}  # fmt: skip
