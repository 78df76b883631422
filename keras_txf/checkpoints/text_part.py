"""The text model in the folder of a model of texts and images: its part of config.json, and its tensors."""

import dataclasses
import re

from keras_txf.checks import short_repr


@dataclasses.dataclass
class TextPart:
    """The text model in the folders of a `model_type`.

    Args:
        model_type: that of the text model alone.
        architectures: dict of the classes of the whole -> those of the text model.
        keys: keys of the config.json of the whole that the text model's own has not, or has with another value.
        others: what the names of the other tensors begin with.
    """

    model_type: str
    architectures: dict
    keys: tuple
    others: tuple


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
    )
}  # fmt: skip


def text_values(values):
    """Returns the values of the text model's own config.json; `values` themselves where they have no part for images.

    Keys of the whole that are not about images, such as `quantization_config`, are kept.
    """
    part = TEXT_PARTS.get(values.get("model_type")) if isinstance(values.get("model_type"), str) else None
    if part is None:
        return values
    own = values.get("text_config")
    if not isinstance(own, dict):
        raise ValueError(f"config.json must have a JSON object under `text_config`; received {short_repr(own)}.")
    shared = {key: value for key, value in values.items() if key not in part.keys}
    names = values.get("architectures") or list(part.architectures)[:1]
    return {
        "model_type": part.model_type,
        **shared,
        **own,
        "architectures": [part.architectures.get(name, name) for name in names],
        "tie_word_embeddings": values.get("tie_word_embeddings", True),  # that of the whole counts
    }


def text_name(name, kind):
    """Returns the name that a tensor has in a folder of the text model alone; None for a tensor of the rest.

    Args:
        name: in a folder of today, or of transformers before 4.52.
        kind: `model_type` of the folder.
    """
    if kind not in TEXT_PARTS:
        return name
    bare = name.removeprefix("model.")
    if bare.startswith(TEXT_PARTS[kind].others):
        return None
    if bare.startswith("language_model.lm_head."):
        return bare.removeprefix("language_model.")
    return re.sub(r"^language_model\.(model\.)?", "model.", bare)
