"""Small models of transformers that read images and texts, and what such a model reads."""

import numpy as np
from case_sizes import LLAMA, VIT

PLACEHOLDER = 58
CLIP = {**VIT, "model_type": "clip_vision_model", "hidden_size": 20, "intermediate_size": 28}
SIGLIP = {**CLIP, "model_type": "siglip_vision_model", "image_size": 16, "num_hidden_layers": 2,
          "vision_use_head": False}  # fmt: skip
LLAMA_TEXT = {**LLAMA, "model_type": "llama", "eos_token_id": None}
GEMMA = {**LLAMA_TEXT, "model_type": "gemma", "head_dim": 10, "pad_token_id": 0}
GEMMA3 = {**GEMMA, "model_type": "gemma3_text", "num_hidden_layers": 2, "sliding_window": 5,
          "layer_types": ["sliding_attention", "full_attention"]}  # fmt: skip
IDEFICS = {name: SIGLIP[name] for name in SIGLIP.keys() - {"model_type", "vision_use_head"}}
AT = {"image_token_index": PLACEHOLDER}
ROWS = (
    ("llava", "plain", "LlavaForConditionalGeneration", {**AT, "vision_config": CLIP, "text_config": LLAMA_TEXT}),
    ("llava", "full", "LlavaForConditionalGeneration", {**AT, "vision_config": SIGLIP,
     "multimodal_projector_bias": False, "text_config": {**LLAMA_TEXT, "model_type": "qwen2"},
     "vision_feature_select_strategy": "full", "projector_hidden_act": "silu"}),
    ("paligemma", "plain", "PaliGemmaForConditionalGeneration", {**AT, "vision_config": SIGLIP, "text_config": GEMMA,
     "projection_dim": 24, "hidden_size": 24}),
    ("paligemma", "second", "PaliGemmaForConditionalGeneration", {**AT, "vision_config": SIGLIP, "projection_dim": 24,
     "text_config": {**GEMMA, "model_type": "gemma2", "sliding_window": 6}, "hidden_size": 24}),
    ("gemma3", "plain", "Gemma3ForConditionalGeneration", {**AT, "vision_config": SIGLIP, "text_config": GEMMA3,
     "mm_tokens_per_image": 4, "boi_token_index": 56, "eoi_token_index": 57}),
    # The whole model does not read the cap of its text model.
    ("gemma3", "capped", "Gemma3ForConditionalGeneration", {**AT, "vision_config": SIGLIP, "mm_tokens_per_image": 4,
     "text_config": {**GEMMA3, "final_logit_softcapping": 0.5}, "boi_token_index": 56, "eoi_token_index": 57}),
    ("llava", "gemma2", "LlavaForConditionalGeneration", {**AT, "vision_config": CLIP,
     "text_config": {**GEMMA, "model_type": "gemma2", "sliding_window": 6, "final_logit_softcapping": 0.5}}),
    ("smolvlm", "plain", "SmolVLMForConditionalGeneration", {"image_token_id": PLACEHOLDER, "vision_config": IDEFICS,
     "text_config": LLAMA_TEXT, "scale_factor": 2}),
    ("idefics3", "tied", "Idefics3ForConditionalGeneration", {"image_token_id": PLACEHOLDER, "scale_factor": 4,
     "vision_config": IDEFICS, "text_config": LLAMA_TEXT, "tie_word_embeddings": True}),
)  # fmt: skip


def vectors_of(config):
    """The number of vectors of an image."""
    patches = (config.vision_config.image_size // config.vision_config.patch_size) ** 2
    if hasattr(config, "scale_factor"):
        return patches // config.scale_factor**2
    return getattr(config, "mm_tokens_per_image", patches)


def inputs(config, rng):
    """Two images and a text in the first row, a text and an image in the second: for transformers, and for us."""
    size, number = config.vision_config.image_size, vectors_of(config)
    image, text = [config.image_token_id] * number, rng.integers(6, 50, 9 + number).tolist()
    ids = np.array([[5, *image, 6, *image, *text[:9]], [*text, *image, 7, 8]])
    images = rng.normal(size=(2, 2, size, size, 3)).astype("float32")
    images[1, 1] = 0  # no second image
    pixels = images.transpose(0, 1, 4, 2, 3)
    theirs, ours = {"input_ids": ids}, {"token_ids": ids, "images": images}
    theirs["pixel_values"] = pixels if hasattr(config, "scale_factor") else pixels.reshape(4, 3, size, size)[:3]
    if config.model_type == "paligemma":
        ours["prefix_length"] = np.array([number + 4, ids.shape[1] - 1], "int32")
        theirs["token_type_ids"] = (np.arange(ids.shape[1]) >= ours["prefix_length"][:, None]).astype("int64")
    if config.model_type == "gemma3":
        theirs["token_type_ids"] = (ids == config.image_token_id).astype("int64")
    return theirs, ours


def without_images(model, rows):
    """The other inputs of our model for texts alone."""
    shapes = {tensor.name: tensor.shape for tensor in model.inputs}
    found = {"images": np.zeros((rows, 1, *shapes["images"][2:]), "float32")}
    return {**found, **({"prefix_length": np.zeros(rows, "int32")} if "prefix_length" in shapes else {})}
