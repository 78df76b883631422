"""The text model in the folder of a model of texts and images, such as Gemma 3."""

import dataclasses
import re

from keras_txf.checkpoints.family import IMAGE_TEXT
from keras_txf.checks import short_repr


@dataclasses.dataclass
class TextPart:
    """The text model in the folders of a `model_type`.

    Args:
        model_type: the `model_type` of the text model alone.
        architectures: dict of classes of the whole model -> classes of the text model.
        keys: keys of the whole model's config.json that the text model's config.json lacks, or has with another value.
        others: prefixes of the names of all other tensors.
        is_tied: default of the whole model's `tie_word_embeddings`, which counts before the text model's.
        has_images: whether the whole model can be built, the task `IMAGE_TEXT`.
    """

    model_type: str
    architectures: dict
    keys: tuple
    others: tuple
    is_tied: bool = True
    has_images: bool = True


TEXT_PARTS = {
    "gemma3": TextPart(
        "gemma3_text",
        {
            "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
            "Gemma3ForSequenceClassification": "Gemma3TextForSequenceClassification",
            "Gemma3Model": "Gemma3TextModel",
        },
        ("text_config", "vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index",
         "image_token_index", "architectures", "model_type"),
        ("vision_tower.", "multi_modal_projector."),
    ),
    "qwen3_5": TextPart(
        "qwen3_5_text",
        {
            "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
            "Qwen3_5ForSequenceClassification": "Qwen3_5TextForSequenceClassification",
            "Qwen3_5Model": "Qwen3_5TextModel",
        },
        ("text_config", "vision_config", "image_token_id", "video_token_id", "vision_start_token_id",
         "vision_end_token_id", "language_model_only", "architectures", "model_type"),
        ("visual.",),
        is_tied=False,
        has_images=False,
    ),
    "llama4": TextPart(
        "llama4_text",
        {"Llama4ForConditionalGeneration": "Llama4ForCausalLM"},
        ("text_config", "vision_config", "boi_token_index", "eoi_token_index", "image_token_index", "architectures",
         "model_type"),
        ("vision_model.", "multi_modal_projector."),
        is_tied=False,
        has_images=False,
    ),
}  # fmt: skip


def text_values(values, task=None):
    """Returns the config.json of the text model alone, or `values` themselves if they describe no images.

    `values` are also returned if the task, or without a task the class in the file, is of texts and images. Keys of the
    whole model that are not about images, such as `quantization_config`, are kept.
    """
    part = TEXT_PARTS.get(values.get("model_type")) if isinstance(values.get("model_type"), str) else None
    if part is None:
        return values
    whole = list(part.architectures)[:1]
    names = values.get("architectures") or whole
    if part.has_images and (task == IMAGE_TEXT or task is None and names == whole):
        return values
    own = values.get("text_config")
    if not isinstance(own, dict):
        raise ValueError(f"config.json must have a JSON object under `text_config`; received {short_repr(own)}.")
    shared = {key: value for key, value in values.items() if key not in part.keys}
    return {
        "model_type": part.model_type,
        **shared,
        **own,
        "architectures": [part.architectures.get(name, name) for name in names],
        "tie_word_embeddings": values.get("tie_word_embeddings", part.is_tied),
    }


def text_name(name, kind):
    """Returns the name of a tensor in a folder of the text model alone; None for a tensor of another part.

    Args:
        name: its name in a folder of any version of transformers: the names changed with 4.52.
        kind: `model_type` of the folder. A text model that transformers took out of a whole model keeps its names.
    """
    if kind not in TEXT_PARTS:
        is_text_model = kind in [part.model_type for part in TEXT_PARTS.values()]
        return re.sub(r"^model\.language_model\.", "model.", name) if is_text_model else name
    bare = name.removeprefix("model.")
    if bare.startswith(TEXT_PARTS[kind].others):
        return None
    if bare.startswith("language_model.lm_head."):
        return bare.removeprefix("language_model.")
    return re.sub(r"^language_model\.(model\.)?", "model.", bare)
