"""Files of each family in the forms that they are published in, and those that describe another model."""

import re

import keras
import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN, answers, changed_folder, expected, parts
from folders import write
from refusals import refused
from safetensors.numpy import load_file

import keras_txf as txf

load = txf.checkpoints.load


def outputs(folder, family):
    """Those of the model of a folder, the logits first."""
    return answers(load(folder), expected(family)[0])


def same(folder, family):
    for one, other in zip(outputs(folder, family), outputs(GOLDEN / family, family), strict=True):
        np.testing.assert_array_equal(one, other)


FULL, SLIDING = "full_attention", "sliding_attention"
BASES = {FULL: {"rope_theta": 50.0, "rope_type": "default"}, SLIDING: {"rope_theta": 7.0, "rope_type": "default"}}
OLDER = [  # what files of today say, and what older ones did: of keys by other names, or of none
    ("llama", {"rope_parameters": BASES[FULL]}, {"rope_parameters": ..., "rope_theta": 50.0}),
    ("llama", {"rope_parameters": {**BASES[FULL], "rope_type": "linear", "factor": 4.0}},
     {"rope_parameters": ..., "rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    ("llama", {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "mlp_bias": ...},
        {"rope_parameters": ...}),
    ("gemma2", {"layer_types": [SLIDING, FULL], "sliding_window": 2}, {"layer_types": ..., "sliding_window": 2}),
    ("gemma3_text", {"layer_types": [SLIDING, FULL], "rope_parameters": BASES},
     {"layer_types": [SLIDING, FULL], "rope_parameters": ..., "rope_theta": 50.0, "rope_local_base_freq": 7.0}),
    ("gemma3_text", {"layer_types": [SLIDING, FULL], "_sliding_window_pattern": ...},
     {"layer_types": ..., "_sliding_window_pattern": ..., "sliding_window_pattern": 2}),
    ("modernbert", {"rope_parameters": BASES},
        {"rope_parameters": ..., "global_rope_theta": 50.0, "local_rope_theta": 7.0}),
    ("modernbert", {"layer_types": [FULL, FULL]}, {"layer_types": ..., "global_attn_every_n_layers": 1}),
    ("modernbert", {"layer_types": [FULL, SLIDING]}, {"layer_types": ...}),
    ("modernbert-decoder", {"sliding_window": 2}, {"sliding_window": ..., "local_attention": 4}),
    ("smollm3", {"no_rope_layers": [1, 0]}, {"no_rope_layers": ..., "no_rope_layer_interval": 2}),
    ("smollm3", {"no_rope_layers": [1, 1]}, {"no_rope_layers": ...}),
    ("gemma3_text", {"layer_types": [SLIDING, FULL], "_sliding_window_pattern": ...},
     {"layer_types": ..., "_sliding_window_pattern": 6, "sliding_window_pattern": 2}),
    ("gpt_neox", {"rope_parameters": {**BASES[FULL], "partial_rotary_factor": 1.0}},
     {"rope_parameters": ..., "rotary_emb_base": 50.0, "rotary_pct": 1.0}),
    ("phi", {"rope_parameters": {**BASES[FULL], "partial_rotary_factor": 0.5}},
     {"rope_parameters": ..., "rope_theta": 50.0}),
    ("granitemoehybrid", {}, {"layer_types": ..., "layers_block_type": ["mamba", "attention"]}),
    ("llama4_text", {}, {"layer_types": ..., "moe_layers": ...}),
    ("bloom", {"n_embed": 8}, {"hidden_size": ..., "n_embed": 8, "n_head": ..., "num_attention_heads": 2}),
    ("qwen3_moe", {}, {"num_local_experts": ..., "num_experts": 3}),
    ("deberta-v2", {}, {"pos_att_type": "p2c|c2p"}),
    ("gpt2", {}, {"n_embd": ..., "hidden_size": 8, "n_head": ..., "num_attention_heads": 2, "n_layer": ...,
                  "num_hidden_layers": 2, "n_positions": ..., "max_position_embeddings": 26}),
    # The other name counts where a file has both.
    ("bart", {"encoder_attention_heads": 1}, {"num_attention_heads": 1, "hidden_size": 8, "num_hidden_layers": 12}),
]  # fmt: skip
AS_BEFORE = [2, 8, 11, 14, 15, 16, 17, 18, 19, 20]  # rows that say what the file of the tests says


@pytest.mark.slow
@pytest.mark.parametrize("row", range(len(OLDER)))
def test_older_files_are_the_same_model(row, tmp_path):
    family, new, old = OLDER[row]
    folders = changed_folder(family, tmp_path / "new", **new), changed_folder(family, tmp_path / "old", **old)
    found, again, before = (outputs(folder, family)[0] for folder in (*folders, GOLDEN / family))
    np.testing.assert_array_equal(again, found)
    assert np.allclose(before, found, atol=1e-6) == (row in AS_BEFORE)


PUBLISHED = [  # what published files say besides, which changes nothing
    ("bert", {"_num_labels": 9, "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
              "pooler_num_fc_layers": 3, "pooler_size_per_head": 128, "pooler_type": "first_token_transform",
              "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}),
    ("bert", {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0"}}),
    ("gpt2", {"_num_labels": 1, "n_special": 0, "predict_special_tokens": True}),
    ("marian", {"_num_labels": 3}), ("bart", {"_num_labels": 3}),
    ("qwen2", {"use_mrope": False}), ("qwen3", {"_attn_implementation_autoset": True}),
    ("llama", {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"kv_cache_dtype": {}},
               "unsloth_fixed": True, "unsloth_version": "2024.9"}),
    ("gemma2", {"sliding_window_size": 4096}),
    ("gemma", {"hidden_act": "gelu", "hidden_activation": None}),
    ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}),
    ("modernbert", {"position_embedding_type": "sans_pos", "is_causal": False}),
    ("modernbert-decoder", {"classifier_pooling": "mean", "layer_norm_eps": 1e-5, "reference_compile": True,
                            "position_embedding_type": "sans_pos", "is_causal": True, "sparse_prediction": False}),
    ("gpt_neox", {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "is_decoder": False}),
    ("gpt_neox", {"rotary_emb_base": 10000, "rope_theta": 10000.0, "rotary_pct": 0.25, "partial_rotary_factor": 0.25}),
    ("mistral", {"attention_bias": False, "mlp_bias": False}), ("gte", {"position_embedding_type": "rope"}),
    ("gptj", {"rotary": True, "scale_attn_weights": True, "summary_type": "cls_index"}),
    ("falcon", {"apply_residual_connection_post_layernorm": False, "ff_factor": 4}),
    ("bloom", {"attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "masked_softmax_fusion": True,
               "n_inner": None, "offset_alibi": 100, "pretraining_tp": 4, "seq_length": 2048, "skip_bias_add": True,
               "skip_bias_add_qkv": False, "slow_but_exact": False, "n_embed": 8, "num_attention_heads": 2}),
    ("granitemoehybrid", {"normalization_function": "rmsnorm", "mamba_d_head": "auto", "mamba_chunk_size": 256}),
    ("cohere2", {"use_qk_norm": False, "head_dim": 4}),
    ("llava", {"pad_token_id": 32001, "vocab_size": 32064}),
    ("cohere", {"model_max_length": 131072}), ("phi3", {"embd_pdrop": 0.0, "original_max_position_embeddings": 4096}),
    ("gpt_oss", {"initial_context_length": 4096, "experts_per_token": 4}),
    ("lfm2", {"block_dim": 8, "block_ff_dim": 12, "block_mlp_init_scale": 1.0, "block_norm_eps": 0.01,
              "block_use_swiglu": True, "conv_dim": 8, "conv_dim_out": 8, "conv_use_xavier_init": True, "num_heads": 2,
              "tie_embedding": True, "use_pos_enc": True, "intermediate_size": ...}),
    ("qwen3_next", {"use_sliding_window": False, "full_attention_interval": 4}),
    ("qwen3_5_text", {"attn_output_gate": True, "mamba_ssm_dtype": "float32", "mlp_only_layers": [],
                      "mtp_num_hidden_layers": 1, "output_gate_type": "swish"}),
    ("deberta", {"padding_idx": 0}), ("deberta-v2", {"attention_head_size": 4, "conv_groups": 1}),
    # Keys of a head that the file does not have.
    ("deberta-v2", {"pooler_hidden_size": 64, "pooler_dropout": 0.1, "pooler_hidden_act": "snake"}),
    ("albert", {"gap_size": 0, "net_structure_type": 0, "down_scale_factor": 1, "num_memory_blocks": 0,
                "layers_to_keep": []}),
    ("mbart", {"add_bias_logits": False, "add_final_layer_norm": True, "normalize_before": True,
               "normalize_embedding": True, "static_position_embeddings": False, "num_hidden_layers": 12}),
    ("pegasus", {"add_bias_logits": False, "add_final_layer_norm": True, "normalize_before": True,
                 "normalize_embedding": False, "static_position_embeddings": True, "extra_pos_embeddings": 1}),
    ("hubert", {"add_adapter": False, "tdnn_dim": [512, 1500], "codevector_dim": 256}),
    ("wav2vec2", {"hidden_dropout_prob": 0.1, "gradient_checkpointing": False, "pad_token_id": 29}),
    ("eurobert", {"bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>", "pad_token": "<pad>",
                  "clf_pooling": "mean", "layer_norm_eps": 1e-5, "auto_map": {"AutoModel": "modeling_eurobert.Model"}}),
]  # fmt: skip


@pytest.mark.drawn(6)
@pytest.mark.parametrize("family, keys", PUBLISHED)
def test_keys_of_published_files(family, keys, tmp_path):
    same(changed_folder(family, tmp_path, **keys), family)


FRAMES = {"architectures": ["Wav2Vec2ForAudioFrameClassification"], "num_labels": 3}
CLASSES = {"architectures": ["EuroBertForSequenceClassification"], "num_labels": 3}


@pytest.mark.parametrize("family, changes, words", [
    ("granitemoehybrid", {"layer_types": ["mamba", "conv"]}, ["'layer_types'", "['conv']"]),
    ("gemma", {"hidden_act": "gelu", "hidden_activation": "gelu"}, ["'hidden_activation'", "tanh", "ignore"]),
    ("gemma2", {"hidden_act": "relu"}, ["'hidden_act'", "relu"]),
    ("granitemoehybrid", {"hidden_act": "gelu"}, ["'hidden_act'", "gelu"]),
    ("granitemoehybrid", {"mamba_d_head": 7}, ["'mamba_d_head'", "7"]),
    ("granitemoehybrid", {"time_step_limit": [0.1, 1.0]}, ["'time_step_limit'", "0.1"]),
    ("llama4_text", {"layer_types": ["full_attention", "chunked_attention"]}, ["`layer_types`", "chunked_attention"]),
    ("llama4_text", {"router_jitter_noise": 0.1}, ["'router_jitter_noise' in"]),
    ("qwen2", {"use_mrope": True}, ["config.json must have 'use_mrope' in"]),
    ("llama", {"rope_interleaved": True}, ["config.json must have 'rope_interleaved' in"]),
    ("bert", {"position_embedding_type": "relative_key"}, ["config.json must have 'position_embedding_type' in"]),
    ("stablelm", {"hidden_dropout": 0.1}, ["'hidden_dropout' in"]), ("falcon", {"alibi": True}, ["'alibi' in"]),
    ("falcon", {"parallel_attn": False}, ["'parallel_attn' in"]),
    ("falcon", {"attention_dropout": 0.1}, ["'attention_dropout' in"]),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, ["'apply_residual_connection_post_layernorm' in"]),
    ("phi3", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, ["'longrope' in Phi-3"]),
    ("olmoe", {"clip_qkv": 8.0}, ["'clip_qkv' in"]),
    ("mixtral", {"router_jitter_noise": 0.1}, ["'router_jitter_noise' in"]),
    ("deberta", {"talking_head": True}, ["'talking_head' in"]),
    ("deberta", {"pos_att_type": ["c2p", "p2p"]}, ["'pos_att_type' in"]),
    ("deberta", {"pos_att_type": ...}, ["`content_to_position` or `position_to_content`"]),
    ("deberta", {"relative_attention": False}, ["'pos_att_type' in"]),
    ("deberta-v2", {"embedding_size": 6}, ["'embedding_size' in"]),
    ("deberta-v2", {"conv_groups": 2}, ["'conv_groups' in"]),
    ("deberta-v2", {"legacy": False, "tie_word_embeddings": False}, ["'tie_word_embeddings' in"]),
    ("gpt_oss", {"swiglu_alpha": 1.5}, ["'swiglu_alpha' in"]),
    ("gpt_oss", {"rope_parameters": ...}, ["'rope_parameters' or 'rope_scaling'"]),
    ("lfm2", {"layer_types": ["conv", "mamba"]}, ["'layer_types' of ['full_attention', 'conv']", "['mamba']"]),
    ("lfm2", {"architectures": ["Lfm2BidirectionalModel"]}, ["both ways", "ignore=['architectures']"]),
    ("lfm2", {"block_use_swiglu": False}, ["'block_use_swiglu'", "ignore="]),
    ("lfm2_moe", {"layer_types": ...}, ["'layer_types'", "None"]),
    ("qwen3_next", {"hidden_act": "gelu"}, ["'hidden_act' in"]),
    ("qwen3_5_text", {"output_gate_type": "sigmoid"}, ["'output_gate_type' in"]),
    ("esm", {"is_folding_model": True}, ["'is_folding_model'"]), ("esm", {"pad_token_id": None}, ["`pad_token_id`"]),
    ("albert", {"inner_group_num": 2}, ["'inner_group_num'"]),
    ("albert", {"num_hidden_layers": 3}, ["`num_hidden_groups`", "divide", "3"]),
    ("m2m_100", {"pad_token_id": 0}, ["'pad_token_id'"]),
    ("mbart", {"normalize_before": False}, ["'normalize_before'"]),
    ("pegasus", {"static_position_embeddings": False}, ["'static_position_embeddings'"]),
    ("dinov2", {"image_size": [12, 8]}, ["`image_size`", "square"]),
    ("dinov3_vit", {"num_register_tokens": 0}, ["`num_register_tokens`", "at least 1"]),
    ("dinov3_vit", {"value_bias": False}, ["'value_bias'", "False"]),
    ("beit", {"image_size": [12, 8]}, ["`image_size`", "square"]),
    ("dinov2_with_registers", {"num_register_tokens": 0}, ["`num_register_tokens`", "0"]),
    ("beit", {"use_shared_relative_position_bias": True}, ["use_shared_relative_position_bias", "both"]),
    ("eurobert", {**CLASSES, "classifier_pooling": "max"}, ["'classifier_pooling'", "'max'"]),
    ("eurobert", {**CLASSES, "clf_pooling": "mean"}, ["'clf_pooling'", "['late', None]", "ignore=['clf_pooling']"]),
    ("gpt_neox", {"rope_theta": 500.0}, ["'rope_theta'", "[10000.0, None]", "500.0", "ignore=['rope_theta']"]),
    ("gpt_neox", {"partial_rotary_factor": 0.5}, ["'partial_rotary_factor'", "0.25", "0.5"]),
    ("deepseek_v3", {"is_causal": False}, ["'is_causal'", "ignore=['is_causal']"]),
    ("qwen2", {"is_causal": False}, ["'causal_lm'", "`is_causal`", "task='encoder'"]),
    ("wav2vec2", {"add_adapter": True}, ["'add_adapter'", "True"]),
    ("wav2vec2", {"adapter_attn_dim": 16}, ["'adapter_attn_dim'", "16"]),
    ("wav2vec2", {"num_feat_extract_layers": 4}, ["'num_feat_extract_layers'", "[3]", "4"]),
    ("wav2vec2", {"conv_stride": [3, 2]}, ["`strides`", "3", "[3, 2]"]),
    ("wav2vec2", {"conv_kernel": 3}, ["`conv_kernel`", "list of sizes", "3"]),
    ("wav2vec2", {"feat_extract_norm": "batch"}, ["'feat_extract_norm'", "'batch'"]),
    ("wav2vec2", {**FRAMES, "use_weighted_layer_sum": True}, ["'use_weighted_layer_sum'", "True"]),
    ("hubert", {"add_adapter": True}, ["'add_adapter'", "True"]),
    ("hubert", {"conv_pos_batch_norm": True}, ["'conv_pos_batch_norm'", "True"]),
    ("vit_mae", {"hidden_dropout_prob": 0.1}, ["'hidden_dropout_prob'", "0.1"]),
    ("t5gemma", {"pad_token_id": 3}, ["'pad_token_id'", "3"]),
    ("t5gemma", {"encoder": 3}, ["`encoder`", "JSON object", "3"]),
])  # fmt: skip
def test_models_that_are_not_built_raise_value_error(family, changes, words, tmp_path):
    refused(lambda: load(changed_folder(family, tmp_path, **changes)), ["config.json", *words])


@pytest.mark.parametrize("family, part, changes, words", [
    ("clip", "text_config", {"kv_lora_rank": 4}, ["text_config of config.json", "{'kv_lora_rank': 4}",
                                                  "ignore=['text_config.kv_lora_rank']"]),
    ("clip", "vision_config", {"hidden_size": "wide"}, ["vision_config of config.json", "`hidden_size`", "'wide'"]),
    ("clip", "vision_config", {"image_size": [12, 8]}, ["`image_size`", "12 and 8"]),
    ("siglip", "vision_config", {"vision_use_head": False}, ["vision_config of config.json", "'vision_use_head'"]),
    ("siglip", "text_config", {"num_hidden_layers": 4000}, ["4000 blocks"]),
    ("t5gemma", "encoder", {"kv_lora_rank": 4}, ["encoder of config.json", "kv_lora_rank"]),
    ("t5gemma", "decoder", {"kv_lora_rank": 4}, ["decoder of config.json", "kv_lora_rank"]),
    ("idefics3", "text_config", {"use_resampler": True}, ["'use_resampler'", "ignore=['text_config.use_resampler']"]),
])  # fmt: skip
def test_parts_that_are_not_built_raise_value_error(family, part, changes, words, tmp_path):
    values = {**parts(family)[0][part], **changes}
    refused(lambda: load(changed_folder(family, tmp_path, **{part: values})), words)


@pytest.mark.parametrize("family, name, key", [
    ("deepseek_v3", "model.layers.61.eh_proj.weight", "num_nextn_predict_layers"),
    ("qwen3_5_text", "mtp.layers.0.input_layernorm.weight", "mtp_num_hidden_layers"),
])  # fmt: skip
def test_blocks_that_predict_further_tokens_are_written_back(family, name, key, tmp_path):
    config, tensors = parts(family)
    tensor = np.arange(6, dtype="float16").reshape(2, 3)
    folder = write(tmp_path / "file", {**config, key: 1}, {**tensors, name: tensor})
    txf.checkpoints.save(load(folder), tmp_path / "again")
    np.testing.assert_array_equal(load_file(tmp_path / "again" / "model.safetensors")[name], tensor)


STARRED = "esm.encoder.layer.*.attention.self.rotary_embeddings.inv_freq"


def test_frequencies_of_esm_in_each_block(tmp_path):
    """As in files of before, which also have positions that nothing reads."""
    config, arrays = parts("esm")
    config |= {"classifier_dropout": None, "hidden_act": "gelu"}
    frequencies = arrays.pop(STARRED)
    arrays |= {STARRED.replace("*", str(i)): frequencies for i in range(2)}
    arrays["esm.embeddings.position_embeddings.weight"] = np.zeros((26, 8), "float16")
    arrays["esm.embeddings.position_ids"] = np.arange(26)[None]
    same(write(tmp_path, config, arrays), "esm")
    arrays[STARRED.replace("*", "1")] = np.ones(2, "float16")
    refused(lambda: load(write(tmp_path, config, arrays)), ["layer.1", "differ"])


def test_a_decoder_that_attends_both_ways_is_not_a_language_model(tmp_path):
    config, arrays = parts("gemma3_text")
    folder = write(tmp_path, {**config, "use_bidirectional_attention": True}, arrays)
    refused(lambda: load(folder), ["`use_bidirectional_attention`", "'causal_lm'", "task='encoder'"])
    model = load(folder, "encoder")
    ids = np.array([[5, 6, 7, 8]])
    before, after = (keras.ops.convert_to_numpy(model(one)) for one in (ids, np.array([[5, 6, 7, 9]])))
    assert np.abs(before[:, 0] - after[:, 0]).max() > 1e-3


def test_llama_4_counts_its_chunks_from_the_first_token(tmp_path):
    changes = {"pad_token_id": 0, "attention_chunk_size": 3, "floor_scale": 2, "attn_temperature_tuning": True}
    model = load(changed_folder("llama4_text", tmp_path, **changes))
    ids = np.array([[5, 6, 7, 8, 4, 3, 2]])
    alone, padded = (keras.ops.convert_to_numpy(model(np.pad(ids, ((0, 0), (n, 0))))) for n in (0, 2))
    np.testing.assert_allclose(padded[:, 2:], alone, atol=1e-5)
    assert np.isfinite(padded).all()
    assert np.abs(keras.ops.convert_to_numpy(model(ids[:, 2:])) - alone[:, 2:]).max() > 1e-3


def test_both_heads_of_deit_get_new_classes():
    model = load(GOLDEN / "deit", num_classes=7)
    assert {model.get_layer(name).units for name in ("logits", "distillation_logits")} == {7}
    assert model(expected("deit")[0]).shape[-1] == 7
    alone = load(GOLDEN / "deit", "image_classification", num_classes=4)
    assert "distillation_logits" not in [layer.name for layer in alone.layers]


@pytest.mark.parametrize("family", ["vit", "deit"])
def test_the_token_of_masked_patches_is_passed_over_and_comes_back(family, tmp_path):
    """`ViTForMaskedImageModeling` has it within the body."""
    config, arrays = parts(family)
    arrays = {name: value for name, value in arrays.items() if name.startswith(f"{family}.")}
    arrays |= {f"{family}.embeddings.mask_token": np.ones((1, 1, 8), "float16")}
    arrays |= {"decoder.0.bias": np.ones(3, "float16")}
    folder = write(tmp_path, {**config, "architectures": ["Masked"]}, arrays)
    images = expected(family)[0]
    found, known = (answers(load(one, "image_encoder"), images) for one in (folder, GOLDEN / family))
    np.testing.assert_array_equal(found, known)
    txf.checkpoints.save(load(folder, dtype="auto"), tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(saved[name], array, err_msg=name)


def test_the_decoder_of_a_masked_autoencoder_comes_back(tmp_path):
    config, arrays = parts("vit_mae")
    arrays = {
        **{f"vit.{name}": value for name, value in arrays.items()},
        "decoder.mask_token": np.ones((1, 1, 6), "float16"),
    }
    folder = write(tmp_path, {**config, "architectures": ["ViTMAEForPreTraining"], "mask_ratio": 0.75}, arrays)
    same(folder, "vit_mae")
    txf.checkpoints.save(load(folder, dtype="auto"), tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert saved.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(saved[name], array, err_msg=name)


def test_the_body_and_both_heads_of_a_file_of_deberta_v3(tmp_path):
    """It has no class in config.json, and tensors of the pretraining head under older names."""
    config, arrays = parts("deberta-v2")
    config = {name: value for name, value in config.items() if name not in ("architectures", "legacy")}
    new = "lm_predictions.lm_head."
    arrays = {re.sub(r"^cls\.predictions\.(transform\.)?", new, name): array for name, array in arrays.items()}
    arrays["mask_predictions.dense.weight"] = np.zeros((8, 8), "float16")
    arrays["deberta.embeddings.position_embeddings.weight"] = np.zeros((26, 8), "float16")
    inputs, *_ = expected("deberta-v2")
    folder = write(tmp_path, config, arrays)
    bodies = load(folder), load(GOLDEN / "deberta-v2", "encoder")
    np.testing.assert_array_equal(*(answers(body, inputs) for body in bodies))
    refused(lambda: load(folder, "masked_lm"), ["cls.predictions"])
    logits = answers(load(write(folder, {**config, "legacy": False}, arrays), "masked_lm"), inputs)
    np.testing.assert_array_equal(logits, outputs(GOLDEN / "deberta-v2", "deberta-v2"))


def test_the_first_files_of_clip(tmp_path):
    """An older key of a part has the say where it is not null, and positions are stored as well."""
    config, tensors = parts("clip")
    config |= {"text_config_dict": config["text_config"], "vision_config_dict": None}
    config["text_config"] = {**config["text_config"], "hidden_size": 99, "hidden_act": "relu"}
    tensors |= {f"{side}_model.embeddings.position_ids": np.arange(7)[None] for side in ("text", "vision")}
    same(write(tmp_path, config, tensors), "clip")


def test_a_tower_under_the_names_of_transformers_4(tmp_path):
    """A projection next to the body is ignored."""
    for side in ("vision", "text"):
        config, tensors = parts(f"clip_{side}_model")
        tensors = {f"{side}_model.{name}": tensor for name, tensor in tensors.items()}
        if side == "text":
            tensors["text_projection.weight"] = np.zeros((5, 8), "float16")
            config["architectures"] = ["CLIPTextModelWithProjection"]
        same(write(tmp_path / side, config, tensors), f"clip_{side}_model")


def test_a_model_of_the_builder_is_saved(tmp_path):
    config, _ = parts("clip")
    vision, text = config["vision_config"], config["text_config"]
    texts = dict(
        num_layers=text["num_hidden_layers"], dim=text["hidden_size"], num_heads=text["num_attention_heads"],
        intermediate_dim=text["intermediate_size"], activation="silu", norm_epsilon=text["layer_norm_eps"],
        position_encoding="learned", max_length=text["max_position_embeddings"], scale_embedding=False, pad_id=None,
    )  # fmt: skip
    model = txf.models.dual_encoder(
        vision["image_size"], vision["patch_size"], text["vocab_size"], vision["num_hidden_layers"],
        vision["hidden_size"], vision["num_attention_heads"], config["projection_dim"],
        end_id=text["eos_token_id"], intermediate_dim=vision["intermediate_size"], activation="gelu",
        norm_epsilon=vision["layer_norm_eps"], image_options={"embedding_norm": True, "patch_bias": False},
        text_options=texts,
    )  # fmt: skip
    txf.checkpoints.save(model, tmp_path, config)
    inputs, *_ = expected("clip")
    again = load(tmp_path)
    for before, after in zip(answers(model, inputs), answers(again, inputs), strict=True):
        np.testing.assert_allclose(before, after, atol=1e-6)
    config["projection_dim"] += 1
    refused(lambda: txf.checkpoints.save(model, tmp_path, config), ["`config` must describe the model"])


def test_every_layer_has_the_dtype_of_load():
    model = load(GOLDEN / "siglip", dtype="bfloat16")
    assert {keras.backend.standardize_dtype(weight.dtype) for weight in model.weights} == {"bfloat16"}
    inputs, logits, _ = expected("siglip")
    np.testing.assert_allclose(answers(model, inputs)[0].astype("float32"), logits, atol=0.05)
