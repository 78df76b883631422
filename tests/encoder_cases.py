"""Rows of `checkpoint_cases.CASES`: encoders, encoder-decoders and images beyond the first of each kind."""

from case_sizes import BART, BERT, DISTILBERT, FIVE, LLAMA, T5, VIT, WHISPER

ALBERT = {**BERT, "embedding_size": 10, "num_hidden_layers": 4, "num_hidden_groups": 2}
ESM = {
    **BERT, "pad_token_id": 1, "mask_token_id": 13, "position_embedding_type": "rotary", "emb_layer_norm_before": False,
    "token_dropout": True, "hidden_dropout_prob": 0.0,
}  # fmt: skip
OBLONG = {"image_size": (8, 12), "patch_size": (2, 4), "num_channels": 2, "hidden_act": "gelu_new"}
DINOV2 = {**{key: value for key, value in VIT.items() if key != "intermediate_size"}, "mlp_ratio": 2}
CLIP_IMAGES = {**VIT, "hidden_act": "gelu", "intermediate_size": 36, "num_hidden_layers": 2}
CLIP_TEXTS = {
    **BERT,
    "hidden_act": "silu",
    "hidden_size": 20,
    "num_attention_heads": 5,
    "eos_token_id": 55,
    "pad_token_id": 3,
}
CLIP = {"vision_config": CLIP_IMAGES, "text_config": CLIP_TEXTS, "projection_dim": 14}
SIGLIP = {
    "vision_config": {**CLIP_IMAGES, "image_size": 14, "num_channels": 2},  # 4 does not divide 14
    "text_config": {**CLIP_TEXTS, "projection_size": 24, "pad_token_id": None},
}
DINOV3 = {**VIT, "num_hidden_layers": 2, "hidden_size": 32, "num_register_tokens": 3}
SIDE = dict(
    **LLAMA,
    head_dim=10,
    sliding_window=3,
    query_pre_attn_scalar=20,
    attn_logit_softcapping=2.0,
    final_logit_softcapping=3.0,
)
SIDES = {
    "encoder": {**SIDE, "num_hidden_layers": 2},
    "decoder": {**SIDE, "num_key_value_heads": 1, "sliding_window": 2, "intermediate_size": 44},
    "decoder_start_token_id": 1,
}
LINEAR = dict(rope_type="linear", rope_theta=300.0, factor=2.5)

DEBERTA = {
    **BERT, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 9,
    "position_biased_input": False,
}  # fmt: skip
DEBERTA3 = {
    **DEBERTA, "max_relative_positions": 19, "position_buckets": 4, "share_att_key": True, "norm_rel_ebd": "layer_norm",
}  # fmt: skip
CONVOLVED = {**DEBERTA3, "conv_kernel_size": 5, "conv_act": "gelu"}

MODERNBERT = dict(
    vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
    max_position_embeddings=64, local_attention=6, norm_eps=1e-2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    cls_token_id=1, sep_token_id=2,
)  # fmt: skip
SPANS = [
    ("bert", "BertForQuestionAnswering", {**BERT, "type_vocab_size": 3, "hidden_act": "relu"}),
    ("roberta", "RobertaForQuestionAnswering", {**BERT, "pad_token_id": 3}),
    ("xlm-roberta", "XLMRobertaForQuestionAnswering", {**BERT, "type_vocab_size": 1}),
    ("camembert", "CamembertForQuestionAnswering", BERT),
    ("mpnet", "MPNetForQuestionAnswering", BERT),
    ("electra", "ElectraForQuestionAnswering", {**BERT, "embedding_size": 10}),
    ("albert", "AlbertForQuestionAnswering", ALBERT),
    ("distilbert", "DistilBertForQuestionAnswering", {**DISTILBERT, "pad_token_id": 4, "qa_dropout": 0.3}),
    ("modernbert", "ModernBertForQuestionAnswering", {**MODERNBERT, "classifier_bias": True}),
    ("deberta", "DebertaForQuestionAnswering", {**DEBERTA, "pos_att_type": "c2p"}),
    ("deberta-v2", "DebertaV2ForQuestionAnswering", {**DEBERTA3, "pos_att_type": "c2p"}),
]

ROWS = [
    ("camembert", "masked", "CamembertForMaskedLM", {**BERT, "pad_token_id": 1, "type_vocab_size": 1}),
    ("camembert", "untied", "CamembertForMaskedLM", {**BERT, "tie_word_embeddings": False, "hidden_act": "relu"}),
    ("camembert", "classes", "CamembertForSequenceClassification", {**BERT, **FIVE, "classifier_dropout": 0.3}),
    ("camembert", "tokens", "CamembertForTokenClassification", {**BERT, **FIVE}),
    ("camembert", "encoder", "CamembertModel", {**BERT, "pad_token_id": 3}),
    ("albert", "masked", "AlbertForMaskedLM", ALBERT),
    ("albert", "untied", "AlbertForMaskedLM", {
        **BERT, "embedding_size": 24, "hidden_act": "relu", "tie_word_embeddings": False, "type_vocab_size": 3,
        "pad_token_id": 5,
    }),
    ("albert", "classes", "AlbertForSequenceClassification", {**ALBERT, **FIVE, "num_hidden_groups": 4}),
    ("albert", "tokens", "AlbertForTokenClassification", {**ALBERT, **FIVE}),
    ("albert", "encoder", "AlbertModel", ALBERT),
    ("nomic_bert", "masked", "NomicBertForMaskedLM", BERT),
    ("nomic_bert", "stretched", "NomicBertForMaskedLM", {
        **BERT, "head_dim": 10, "hidden_act": "gelu", "type_vocab_size": 3, "pad_token_id": 5,
        "rope_parameters": LINEAR,
    }),
    ("nomic_bert", "classes", "NomicBertForSequenceClassification", {**BERT, **FIVE}),
    ("nomic_bert", "tokens", "NomicBertForTokenClassification", {**BERT, **FIVE}),
    ("nomic_bert", "encoder", "NomicBertModel", BERT),
    ("gte", "masked", "GteForMaskedLM", BERT),
    ("gte", "untied", "GteForMaskedLM", {
        **BERT, "tie_word_embeddings": False, "type_vocab_size": 0, "hidden_act": "silu", "rope_parameters": LINEAR,
        "pad_token_id": 4,
    }),
    ("gte", "classes", "GteForSequenceClassification", {**BERT, **FIVE, "classifier_dropout": 0.3}),
    ("gte", "tokens", "GteForTokenClassification", {**BERT, **FIVE, "type_vocab_size": 3}),
    ("gte", "encoder", "GteModel", BERT),
    ("eurobert", "masked", "EuroBertForMaskedLM", LLAMA),
    ("eurobert", "biased", "EuroBertForMaskedLM", {
        **LLAMA, "attention_bias": True, "mlp_bias": True, "head_dim": 10, "hidden_act": "gelu", "pad_token_id": 5,
        "rope_parameters": LINEAR,
    }),
    ("eurobert", "tied", "EuroBertForMaskedLM", {**LLAMA, "tie_word_embeddings": True, "mlp_bias": True}),
    ("eurobert", "bare", "EuroBertForMaskedLM", {**LLAMA, "tie_word_embeddings": True}),
    ("eurobert", "late", "EuroBertForSequenceClassification", {**LLAMA, **FIVE}),
    ("eurobert", "first", "EuroBertForSequenceClassification", {**LLAMA, **FIVE, "classifier_pooling": "bos"}),
    ("eurobert", "mean", "EuroBertForSequenceClassification", {**LLAMA, **FIVE, "classifier_pooling": "mean"}),
    ("eurobert", "tokens", "EuroBertForTokenClassification", {**LLAMA, **FIVE}),
    ("eurobert", "encoder", "EuroBertModel", LLAMA),
    ("deberta", "masked", "DebertaForMaskedLM", DEBERTA),
    ("deberta", "biased", "DebertaForMaskedLM", {
        **DEBERTA, "max_relative_positions": -1, "position_biased_input": True, "type_vocab_size": 3,
        "hidden_act": "relu", "tie_word_embeddings": False, "pad_token_id": 5, "pos_att_type": "p2c",
    }),
    ("deberta", "plain", "DebertaForMaskedLM", {**BERT, "legacy": False}),
    ("deberta", "classes", "DebertaForSequenceClassification", {
        **DEBERTA, **FIVE, "pooler_hidden_act": "silu", "cls_dropout": 0.3,
    }),
    ("deberta", "tokens", "DebertaForTokenClassification", {**DEBERTA, **FIVE}),
    ("deberta", "encoder", "DebertaModel", DEBERTA),
    ("deberta-v2", "masked", "DebertaV2ForMaskedLM", CONVOLVED),
    ("deberta-v2", "untied", "DebertaV2ForMaskedLM", {
        **DEBERTA3, "share_att_key": False, "norm_rel_ebd": "none", "position_biased_input": True, "type_vocab_size": 3,
        "hidden_act": "relu", "tie_word_embeddings": False, "pad_token_id": 5,
    }),
    ("deberta-v2", "third", "DebertaV2ForMaskedLM", {**DEBERTA3, "legacy": False, "max_relative_positions": -1}),
    ("deberta-v2", "near", "DebertaV2ForMaskedLM", {
        **DEBERTA3, "position_buckets": -1, "max_relative_positions": 6, "pos_att_type": "p2c",
    }),
    ("deberta-v2", "classes", "DebertaV2ForSequenceClassification", {
        **CONVOLVED, **FIVE, "pooler_hidden_act": "tanh", "conv_kernel_size": 3, "conv_act": "tanh",
    }),
    ("deberta-v2", "tokens", "DebertaV2ForTokenClassification", {**DEBERTA3, **FIVE, "share_att_key": False}),
    ("deberta-v2", "encoder", "DebertaV2Model", {**DEBERTA3, "position_buckets": 6}),
    ("esm", "masked", "EsmForMaskedLM", ESM),
    ("esm", "learned", "EsmForMaskedLM", {
        **ESM, "position_embedding_type": "absolute", "emb_layer_norm_before": True, "pad_token_id": 3,
        "tie_word_embeddings": False,
    }),
    ("esm", "classes", "EsmForSequenceClassification", {**ESM, **FIVE, "token_dropout": False, "rope_theta": 50.0}),
    ("esm", "tokens", "EsmForTokenClassification", {**ESM, **FIVE, "emb_layer_norm_before": True}),
    ("esm", "encoder", "EsmModel", {**ESM, "mask_token_id": 25}),
    ("mt5", "gated", "MT5ForConditionalGeneration", T5),
    ("mt5", "relu", "MT5ForConditionalGeneration", {
        **T5, "feed_forward_proj": "relu", "pad_token_id": 3, "decoder_start_token_id": 3,
    }),
    ("umt5", "gated", "UMT5ForConditionalGeneration", T5),
    ("umt5", "silu", "UMT5ForConditionalGeneration", {
        **T5, "feed_forward_proj": "gated-silu", "num_decoder_layers": 1, "tie_word_embeddings": False,
        "pad_token_id": 3, "decoder_start_token_id": 4,
    }),
    ("mbart", "plain", "MBartForConditionalGeneration", {**BART, "decoder_start_token_id": 5}),
    ("mbart", "scaled", "MBartForConditionalGeneration", {
        **BART, "scale_embedding": True, "activation_function": "relu", "decoder_start_token_id": 4, "pad_token_id": 3,
    }),
    ("pegasus", "plain", "PegasusForConditionalGeneration", BART),
    ("pegasus", "scaled", "PegasusForConditionalGeneration", {
        **BART, "scale_embedding": True, "activation_function": "silu", "decoder_start_token_id": 4, "pad_token_id": 3,
    }),
    ("m2m_100", "plain", "M2M100ForConditionalGeneration", BART),
    ("m2m_100", "odd", "M2M100ForConditionalGeneration", {
        **BART, "d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 5, "scale_embedding": False,
        "activation_function": "gelu", "decoder_start_token_id": 4,
    }),
    ("whisper", "plain", "WhisperForConditionalGeneration", WHISPER),
    ("whisper", "untied", "WhisperForConditionalGeneration", {
        **WHISPER, "activation_function": "relu", "tie_word_embeddings": False, "max_source_positions": 8,
        "pad_token_id": 2, "num_mel_bins": 7,
    }),
    ("deit", "distilled", "DeiTForImageClassificationWithTeacher", {**VIT, **FIVE}),
    ("deit", "classes", "DeiTForImageClassification", {**VIT, **FIVE, **OBLONG, "qkv_bias": False}),
    ("deit", "encoder", "DeiTModel", VIT),
    ("dinov2", "classes", "Dinov2ForImageClassification", {**DINOV2, **FIVE, "drop_path_rate": 0.25}),
    ("dinov2", "gated", "Dinov2ForImageClassification", {
        **DINOV2, **FIVE, "use_swiglu_ffn": True, "mlp_ratio": 3, "patch_size": (2, 4), "num_channels": 2,
        "qkv_bias": False, "use_mask_token": False,
    }),
    ("dinov2", "encoder", "Dinov2Model", {**DINOV2, "hidden_act": "silu", "layerscale_value": 0.5}),
    ("dinov2_with_registers", "classes", "Dinov2WithRegistersForImageClassification", {
        **DINOV2, **FIVE, "num_register_tokens": 3, "drop_path_rate": 0.25,
    }),
    ("dinov2_with_registers", "gated", "Dinov2WithRegistersForImageClassification", {
        **DINOV2, **FIVE, "use_swiglu_ffn": True, "mlp_ratio": 3, "patch_size": (2, 4), "num_channels": 2,
        "qkv_bias": False, "num_register_tokens": 1,
    }),
    ("dinov2_with_registers", "encoder", "Dinov2WithRegistersModel", {
        **DINOV2, "hidden_act": "silu", "layerscale_value": 0.5, "num_register_tokens": 2,
    }),
    ("dinov3_vit", "plain", "DINOv3ViTModel", DINOV3),
    ("dinov3_vit", "gated", "DINOv3ViTModel", {
        **DINOV3, "use_gated_mlp": True, "hidden_act": "silu", "mlp_bias": False, "image_size": (8, 12),
        "patch_size": (2, 4), "num_channels": 2, "rope_theta": 30.0, "layerscale_value": 0.5, "drop_path_rate": 0.25,
        "proj_bias": False, "num_register_tokens": 1,
    }),
    ("dinov3_vit", "keys", "DINOv3ViTModel", {
        **DINOV3, "query_bias": False, "value_bias": False, "key_bias": True, "pos_embed_rescale": None,
    }),
    ("beit", "classes", "BeitForImageClassification", {
        **VIT, **FIVE, "use_relative_position_bias": True, "drop_path_rate": 0.25,
    }),
    ("beit", "shared", "BeitForImageClassification", {
        **VIT, **FIVE, "use_shared_relative_position_bias": True, "use_absolute_position_embeddings": True,
        "use_mean_pooling": False, "use_mask_token": True, "layer_scale_init_value": 0.0, "hidden_act": "silu",
    }),
    ("beit", "encoder", "BeitModel", {**VIT, "use_relative_position_bias": True, "num_channels": 2}),
    ("beit", "normed", "BeitModel", {**VIT, "use_mean_pooling": False, "use_absolute_position_embeddings": True}),
    ("clip", "pair", "CLIPModel", CLIP),
    ("clip", "older", "CLIPModel", {
        **CLIP, "text_config": {**CLIP_TEXTS, "eos_token_id": 2, "num_hidden_layers": 1, "attention_dropout": 0.2},
    }),
    ("clip", "classes", "CLIPForImageClassification", {**CLIP, **FIVE}),
    ("metaclip_2", "classes", "MetaClip2ForImageClassification", {**CLIP, **FIVE}),
    ("siglip", "classes", "SiglipForImageClassification", {**SIGLIP, **FIVE}),
    ("clip_vision_model", "body", "CLIPVisionModel", {**CLIP_IMAGES, "num_channels": 2}),
    ("clip_text_model", "body", "CLIPTextModel", CLIP_TEXTS),
    ("metaclip_2", "pair", "MetaClip2Model", {**CLIP, "text_config": {**CLIP_TEXTS, "eos_token_id": 2}}),
    ("metaclip_2_vision_model", "body", "MetaClip2VisionModel", {**CLIP_IMAGES, "attention_dropout": 0.1}),
    ("metaclip_2_text_model", "body", "MetaClip2TextModel", CLIP_TEXTS),
    ("siglip", "pair", "SiglipModel", SIGLIP),
    ("siglip_vision_model", "body", "SiglipVisionModel", {**CLIP_IMAGES, "image_size": 14}),
    ("siglip_vision_model", "headless", "SiglipVisionModel", {**CLIP_IMAGES, "vision_use_head": False}),
    ("siglip_text_model", "body", "SiglipTextModel", {**CLIP_TEXTS, "pad_token_id": None}),
    ("bert", "pretraining", "BertForPreTraining", {**BERT, "hidden_act": "relu", "type_vocab_size": 3}),
    ("bert", "pretraining-untied", "BertForPreTraining", {**BERT, "tie_word_embeddings": False}),
    ("bart", "classes", "BartForSequenceClassification", {
        **BART, **FIVE, "classifier_dropout": 0.3, "activation_function": "relu", "scale_embedding": True,
    }),
    ("bart", "spans", "BartForQuestionAnswering", {**BART, "pad_token_id": 3, "decoder_start_token_id": 4}),
    ("mbart", "classes", "MBartForSequenceClassification", {**BART, **FIVE, "eos_token_id": 5}),
    ("mbart", "spans", "MBartForQuestionAnswering", BART),
    ("t5", "classes", "T5ForSequenceClassification", {**T5, **FIVE, "feed_forward_proj": "gated-silu"}),
    ("t5", "spans", "T5ForQuestionAnswering", {**T5, "decoder_start_token_id": 3}),
    ("t5", "tokens", "T5ForTokenClassification", {**T5, **FIVE, "classifier_dropout": 0.3}),
    ("mt5", "classes", "MT5ForSequenceClassification", {**T5, **FIVE, "pad_token_id": 3}),
    ("umt5", "spans", "UMT5ForQuestionAnswering", {**T5, "eos_token_id": 4}),
    ("umt5", "tokens", "UMT5ForTokenClassification", {**T5, **FIVE, "is_encoder_decoder": False}),
    ("t5", "encoder", "T5EncoderModel", {**T5, "feed_forward_proj": "gated-gelu"}),
    ("mt5", "encoder", "MT5EncoderModel", {**T5, "pad_token_id": 3}),
    ("umt5", "encoder", "UMT5EncoderModel", {**T5, "is_encoder_decoder": False}),
    ("t5gemma", "plain", "T5GemmaForConditionalGeneration", SIDES),
    ("t5gemma", "wide", "T5GemmaForConditionalGeneration", {
        "encoder": {
            **SIDE, "hidden_size": 28, "vocab_size": 53, "rope_parameters": LINEAR, "attn_logit_softcapping": None,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"], "attention_bias": True,
            "pad_token_id": 5,
        },
        "decoder": {**SIDE, "num_hidden_layers": 2, "hidden_activation": "silu", "final_logit_softcapping": None,
            "pad_token_id": 5,
        },
        "tie_word_embeddings": False, "pad_token_id": 5, "decoder_start_token_id": 4,
    }),
    ("t5gemma", "encoder", "T5GemmaEncoderModel", {**SIDES, "is_encoder_decoder": False}),
    ("electra", "discriminator", "ElectraForPreTraining", {**BERT, "embedding_size": 10, "hidden_act": "relu"}),
    *((family, "spans", architecture, options) for family, architecture, options in SPANS),
]  # fmt: skip
