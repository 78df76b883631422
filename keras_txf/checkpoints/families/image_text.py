"""LLaVA, PaliGemma, Gemma 3, Idefics 3 and SmolVLM: an encoder of images, a projection, a decoder of another family."""

import dataclasses
import re

import keras
import numpy as np

from keras_txf.checkpoints.families import clip, llama
from keras_txf.checkpoints.families.image_text_model import MergePatches, PoolPatches, build
from keras_txf.checkpoints.families.rotary import with_lengths
from keras_txf.checkpoints.family import IMAGE_TEXT, Family, Task
from keras_txf.checkpoints.weight_map import Tensor, Transform, as_tensor
from keras_txf.checks import short_repr
from keras_txf.layers.feed_forward import get_activation
from keras_txf.layers.norms import make_norm
from keras_txf.layers.projections import Projection

TEXTS = llama.FAMILIES
NOT_READ = (  # keys of a part without an effect
    "projection_dim", "vision_use_head", "num_image_tokens", "vocab_size", "projector_hidden_act", "max_image_size",
    "size", "perceiver_config",
)  # fmt: skip
ONE_CLASS = ("smolvlm_vision", "idefics3_vision")  # encoders of images, whatever the file calls them
OF_RESAMPLER = ("use_resampler", "qk_layer_norms")  # options of the code that trained Idefics 3
OF_WHOLE = ("vocab_size", "pad_token_id")  # keys of the whole model, of older versions: those of `text_config` count


def part_of(c, key, default):
    """Returns the `Config` of a part; `default` is its `model_type` if the file names none, or in `ONE_CLASS`."""
    return c.part(key, default if default in ONE_CLASS else c(key).get("model_type", default))


def text_of(c, default):
    """Returns the family and the `Config` of the decoder."""
    part = part_of(c, "text_config", default)
    if part.kind not in TEXTS:
        raise ValueError(f"{part.place} must have a `model_type` of {sorted(TEXTS)}; received {short_repr(part.kind)}.")
    return TEXTS[part.kind], part


def text_options(c, default, has_cap=False):
    """Returns the options of the decoder; `has_cap`: whether the whole model reads `final_logit_softcapping`."""
    family, part = text_of(c, default)
    found = with_lengths(family.options(part))
    found["head_dim"] = found["head_dim"] or found["dim"] // found["num_heads"]
    if not has_cap and "final_logit_soft_cap" in found:
        found["final_logit_soft_cap"] = None
    part("tie_word_embeddings", True)  # the key of the whole model counts
    for key in OF_RESAMPLER:
        part.not_read(key, False)
    part.check_all_known((*family.neutral, *NOT_READ))
    return family.tasks["causal_lm"].convert(found)


def image_options(c, default, layers=None):
    """Returns the options of the encoder of images.

    Args:
        c: the `Config` of the whole model.
        default: `model_type` of the encoder if the file names none.
        layers: index of the hidden states that the decoder reads, such as -2: the blocks after them are not built, and
            there is no final norm. None: the normed output.
    """
    part = part_of(c, "vision_config", default)
    if part.kind not in IMAGES:
        raise ValueError(
            f"{part.place} must have a `model_type` of {sorted(IMAGES)}; received {short_repr(part.kind)}."
        )
    found = IMAGES[part.kind](part)
    part.check_all_known((*clip.OF_TOWERS, "tie_word_embeddings", *NOT_READ))
    if layers is None:
        return {**found, "final_norm": True}
    return {**found, "num_layers": found["num_layers"] + 1 + layers, "final_norm": False}


def smolvlm_images(c):
    found = {**clip.images(c), "activation": c.activation("hidden_act", "gelu_pytorch_tanh")}
    check_buckets(found["image_size"] // found["patch_size"])
    return found


def check_buckets(side):
    """Raises ValueError if transformers, which rounds in float32, gives two of `side` patches in a row one position."""
    bounds = np.arange(1 / side, 1.0, 1 / side).astype("float32")
    places = np.minimum(np.arange(side, dtype="float32") * np.float32(1 / side), np.float32(1 - 1e-6))
    if np.searchsorted(bounds, places, side="right").tolist() != list(range(side)):
        raise ValueError(
            "vision_config of config.json must have a number of patches in a row to which transformers gives different "
            f"positions, such as 27 or 32; received {side}."
        )


IMAGES = {  # model_type of the encoder of images -> its options
    "clip_vision_model": clip.clip_images,
    "siglip_vision_model": clip.images,
    "smolvlm_vision": smolvlm_images,
    "idefics3_vision": smolvlm_images,
}


def table(c, vision, language, tower="vision_tower", text="language_model.model"):
    """Returns the rows of the encoder of images and of the decoder, by the names in files of transformers 5.

    Args:
        c: the `Config` of the whole model.
        vision, language: `model_type`s of the parts if the file names none.
        tower, text: modules of the parts.
    """
    family, part = text_of(c, language)
    images = clip.images_table(part_of(c, "vision_config", vision))
    return {**_within(images, "image_", tower), **_within(family.rows(part), "", text)}


def _within(rows, prefix, module):
    """Returns rows of a part of a model: `prefix` begins our paths, `module` their names."""
    found = {}
    for path, row in rows.items():
        tensor = as_tensor(row)
        inside = dataclasses.replace(tensor, name=f"{module}.{tensor.name}")
        found[f"{prefix}{path}"] = inside.name if isinstance(row, str) else inside
    return found


def own_name(name):
    """Returns the name that transformers 5 writes for a tensor, from a name in a file of any version."""
    name = re.sub(r"^model\.(?=language_model\.|vision_tower\.|multi_modal_projector\.)", "", name)
    name = re.sub(r"^vision_tower\.vision_model\.", "vision_tower.", name)
    name = re.sub(r"^language_model\.(?!model\.|lm_head\.)", "language_model.model.", name)
    return f"language_model.{name}" if name.startswith("lm_head.") else name


def llava(c):
    layer, strategy = c("vision_feature_layer", -2), c("vision_feature_select_strategy", "default")
    c.only("vision_feature_select_strategy", "default", "full")
    image = image_options(c, CLIP, layer)
    blocks = part_of(c, "vision_config", CLIP)("num_hidden_layers")
    if not -blocks <= layer < -1:
        raise ValueError(
            f"config.json must have a number from -2 to {-blocks} as `vision_feature_layer`; received {layer}."
        )
    if strategy == "default" and not image["class_token"]:
        raise ValueError(
            "config.json must have vision_feature_select_strategy='full' for images without a class token; received "
            "'default', which drops the first patch."
        )
    text, use_bias = text_options(c, "llama"), c("multimodal_projector_bias", True)
    activation = get_activation("projector_hidden_act", c.activation("projector_hidden_act", "gelu"))

    first, second = (Projection(text["dim"], use_bias=use_bias, name=f"image_projection_{i}") for i in (1, 2))
    return {
        "image": image,
        "text": text,
        "placeholder_id": c("image_token_index", 32000),
        "projection": [first, keras.layers.Activation(activation, name="image_projection_activation"), second],
        "first": int(strategy == "default"),
    }


def llava_kept(c):
    """Returns patterns of the tensors of images that the decoder does not read: the last blocks, norm and head."""
    number = part_of(c, "vision_config", CLIP)("num_hidden_layers")
    last = "|".join(str(i) for i in range(number + 1 + c("vision_feature_layer", -2), number))
    return (rf"vision_tower\.encoder\.layers\.({last})\..*", r"vision_tower\.(post_layernorm|head)\..*")


def paligemma(c):
    text_of(c, "gemma")[1].values.pop("use_bidirectional_attention", None)  # without an effect: the prefix alone counts
    text = text_options(c, "gemma", has_cap=True)
    if c("projection_dim", 2048) != text["dim"]:
        raise ValueError(
            "config.json must have the `hidden_size` of its `text_config` as `projection_dim`; received "
            f"{short_repr(c('projection_dim'))} and {text['dim']}."
        )
    return {
        "image": image_options(c, SIGLIP),
        "text": text,
        "placeholder_id": c("image_token_index", 256000),
        "projection": [Projection(text["dim"], name="image_projection_1")],
        "bidirectional": "prefix",
    }


def gemma3(c):
    image, text = image_options(c, SIGLIP), text_options(c, "gemma3_text")
    number, vision = c("mm_tokens_per_image", 256), part_of(c, "vision_config", SIGLIP)
    side, kept = image["image_size"] // image["patch_size"], int(number**0.5)
    if kept**2 != number or side % kept:
        raise ValueError(
            "config.json must have a square as `mm_tokens_per_image`, whose side divides the patches in a row; "
            f"received {short_repr(number)} and {side} patches."
        )
    if any(window is not None and window < number for window in text["window"]):
        raise ValueError(
            "config.json must have a `sliding_window` of at least `mm_tokens_per_image`, so that an image sees itself; "
            f"received {min(filter(None, text['window']))} and {number}."
        )
    norm = make_norm("rms_zero_centered", vision("layer_norm_eps", 1e-6), None, "image_projection_norm")
    return {
        "image": image,
        "text": text,
        "placeholder_id": c("image_token_index", 262144),
        "projection": [
            PoolPatches(side // kept, name="image_pooling"),
            norm,
            Projection(text["dim"], use_bias=False, name="image_projection_1"),
        ],
        "bidirectional": "images",
    }


def smolvlm(c):
    image, text, factor = (
        image_options(c, c.values["model_type"] + "_vision"),
        text_options(c, "llama"),
        c("scale_factor", 2),
    )
    side = image["image_size"] // image["patch_size"]
    if side % factor:
        raise ValueError(
            "config.json must have a `scale_factor` that divides the patches in a row; received "
            f"{short_repr(factor)} and {side} patches."
        )
    projection = [
        MergePatches(factor, name="image_patches"),
        Projection(text["dim"], use_bias=False, name="image_projection_1"),
    ]
    return {"image": image, "text": text, "placeholder_id": c("image_token_id", 128257), "projection": projection}


CLIP, SIGLIP = "clip_vision_model", "siglip_vision_model"
ONE_PROJECTION = {"image_projection_1": "multi_modal_projector.linear"}
TWO_PROJECTIONS = {f"image_projection_{i}": f"multi_modal_projector.linear_{i}" for i in (1, 2)}
OF_NO_MODULE = Transform(lambda x: x, lambda x: x)  # a kernel in a class of its own, to which peft adds no adapter
GEMMA3_PROJECTION = {
    "image_projection_norm": "multi_modal_projector.mm_soft_emb_norm",
    "image_projection_1/kernel": Tensor("multi_modal_projector.mm_input_projection_weight", OF_NO_MODULE),
}
CONNECTOR = {"image_projection_1": "connector.modality_projection.proj"}


def family(name, options, rows, vision, language, kept, neutral):
    """Returns a family with the names of LLaVA's tensors; for `vision` and `language` see `table`."""
    task = Task(f"{name}ForConditionalGeneration", build, {"logits": "language_model.lm_head"})
    return Family(
        options,
        lambda c: {**table(c, vision, language), **rows},
        {IMAGE_TEXT: task},
        ignore=(r".*\.(position_ids|inv_freq)",),
        kept=kept,
        neutral=neutral,
        own_name=own_name,
        renamed=RENAMED,
    )


def idefics_family(name, kind):
    task = Task(f"{name}ForConditionalGeneration", build, {"logits": "lm_head"})
    return Family(
        smolvlm,
        lambda c: {**table(c, kind, "llama", "vision_model", "text_model"), **CONNECTOR},
        {IMAGE_TEXT: task},
        "model.",
        (r".*\.(position_ids|inv_freq)",),
        neutral=("_pad_token_id", *OF_WHOLE),
    )


RENAMED = {
    r"language_model\.lm_head": "lm_head",
    r"language_model\.model\.(.*)": r"model.language_model.\1",
    r"(vision_tower|multi_modal_projector)(.*)": r"model.\1\2",
}
TOKENS = ("boi_token_index", "eoi_token_index")
OF_HEAD = (r"vision_tower\.head\..*",)
FAMILIES = {
    "llava": family("Llava", llava, TWO_PROJECTIONS, CLIP, "llama", llava_kept, ("image_seq_length", *OF_WHOLE)),
    "paligemma": family("PaliGemma", paligemma, ONE_PROJECTION, SIGLIP, "gemma", OF_HEAD, ("hidden_size", *OF_WHOLE)),
    "gemma3": family("Gemma3", gemma3, GEMMA3_PROJECTION, SIGLIP, "gemma3_text", OF_HEAD, (*TOKENS, *OF_WHOLE)),
    "smolvlm": idefics_family("SmolVLM", "smolvlm_vision"),
    "idefics3": idefics_family("Idefics3", "idefics3_vision"),
}
