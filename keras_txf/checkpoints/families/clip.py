"""CLIP, MetaCLIP 2 and SigLIP: an encoder of images and an encoder of texts, alone or together."""

import dataclasses

from keras_txf import models
from keras_txf.checkpoints.families.vit import ONE_VECTOR, patch, square
from keras_txf.checkpoints.family import Family, Task, classes, encoder_task, sizes
from keras_txf.checkpoints.weight_map import ONE_ROW, OUT_PROJ, Tensor, as_tensor, projections, stacked
from keras_txf.layers import AttentionPooling

TOWER = {
    "embedding/class_token": Tensor("embeddings.class_embedding"),
    "embedding/token": "embeddings.token_embedding",
    "embedding/position": "embeddings.position_embedding",
    "encoder_embedding_norm": "pre_layrnorm",
    **projections("encoder_{i}/attention", "encoder.layers.{i}.self_attn", OUT_PROJ),
    "encoder_{i}/attention_norm": "encoder.layers.{i}.layer_norm1",
    "encoder_{i}/feed_forward/intermediate": "encoder.layers.{i}.mlp.fc1",
    "encoder_{i}/feed_forward/output": "encoder.layers.{i}.mlp.fc2",
    "encoder_{i}/feed_forward_norm": "encoder.layers.{i}.layer_norm2",
}
TEXTS = {**TOWER, "encoder_norm": "final_layer_norm"}
CLIP_HEAD = {
    "image_projection": "visual_projection",
    "text_projection": "text_projection",
    "logits/logit_scale": Tensor("logit_scale"),
}
POOLING = "vision_model.head"
PARTS = [f"image_pooling/attention/{part}" for part in ("query", "key", "value")]
SIGLIP_HEAD = {
    "text_projection": "text_model.head",
    "logits/logit_scale": Tensor("logit_scale", other=ONE_ROW),
    "logits/logit_bias": Tensor("logit_bias", other=ONE_ROW),
    "image_pooling/query": Tensor(f"{POOLING}.probe", other=ONE_VECTOR),
    **stacked(f"{POOLING}.attention.in_proj_weight", [f"{part}/kernel" for part in PARTS]),
    **stacked(f"{POOLING}.attention.in_proj_bias", [f"{part}/bias" for part in PARTS]),
    "image_pooling/attention/output": f"{POOLING}.attention.out_proj",
    "image_pooling/norm": f"{POOLING}.layernorm",
    "image_pooling/feed_forward/intermediate": f"{POOLING}.mlp.fc1",
    "image_pooling/feed_forward/output": f"{POOLING}.mlp.fc2",
}
# Keys of the pair of towers, keys of `generate`, and keys without an effect.
OF_TOWERS = (
    "projection_dim", "projection_size", "vision_use_head", "pad_token_id", "decoder_start_token_id", "dropout"
)  # fmt: skip


def images_table(c):
    return {**TOWER, **patch(c, "embeddings.patch_embedding"), "encoder_norm": "post_layernorm"}


def of_pair(prefix, tower, rows):
    """Returns the rows of a tower in the class of a pair; `prefix` is the prefix of our paths."""
    rows = {path: as_tensor(row) for path, row in rows.items()}
    return {f"{prefix}{path}": dataclasses.replace(row, name=f"{tower}_model.{row.name}") for path, row in rows.items()}


def pair_table(c):
    return {**of_pair("image_", "vision", images_table(c.part("vision_config"))), **of_pair("text_", "text", TEXTS)}


def tower(c):
    return {
        **sizes(c, vocab_size=None),
        "intermediate_dim": c("intermediate_size"),
        "activation": c.activation("hidden_act"),
        "norm_placement": "pre",
        "norm_epsilon": c("layer_norm_eps", 1e-5),
        "dropout": 0.0,
        "attention_dropout": c("attention_dropout", 0.0),
    }


def images(c):
    return {
        **tower(c),
        "image_size": square(c, "image_size", 224),
        "patch_size": square(c, "patch_size", 16),
        "channels": c("num_channels", 3),
        "drop_remainder": True,
        "class_token": False,
    }


def clip_images(c):
    return {**images(c), "class_token": True, "patch_bias": False, "embedding_norm": True, "final_norm": False}


def texts(c):
    return {
        **tower(c),
        "vocab_size": c("vocab_size"),
        "position_encoding": "learned",
        "max_length": c("max_position_embeddings"),
        "scale_embedding": False,
        "pad_id": None,
        "causal": False,
    }


def clip_texts(c):
    return {**texts(c), "causal": True}


SHARED = ("num_layers", "dim", "num_heads", "image_size", "patch_size", "channels")  # arguments of the builder


def pair(c, images, texts):
    """Returns the options of both towers; `images` and `texts` are the functions that read a tower's options."""
    parts = c.part("vision_config"), c.part("text_config")
    image_options, text_options = images(parts[0]), texts(parts[1])
    for part in parts:
        part.check_all_known((*OF_TOWERS, "tie_word_embeddings"))
    shared = {name: image_options.pop(name) for name in SHARED}
    vocab_size = text_options.pop("vocab_size")
    return {**shared, "vocab_size": vocab_size, "image_options": image_options, "text_options": text_options}


def end_token(c):
    """Returns the token whose state represents a text. In older files 2 stands for the last token of the vocabulary."""
    end = c.end_id(49407)
    return c("vocab_size") - 1 if end == 2 else end


def text_width(c):
    return c("projection_size", None) or c("hidden_size")


def clip(c):
    found = pair(c, clip_images, clip_texts)
    found["image_options"]["final_norm"] = True  # the projection reads the normed class token
    return {**found, "projection_dim": c("projection_dim", 512), "end_id": end_token(c.part("text_config"))}


def metaclip(c):
    return {**clip(c), "end_id": c.part("text_config").end_id(49407)}  # here 2 is an ordinary id


def siglip(c):
    found = pair(c, images, texts)
    c.part("vision_config").only("vision_use_head", True)
    widths = {name: found["image_options"][name] for name in ("intermediate_dim", "activation", "norm_epsilon")}
    return {
        **found,
        "image_pooling": AttentionPooling(found["num_heads"], **widths, name="image_pooling"),
        "image_projection": False,
        "projection_dim": text_width(c.part("text_config")),
        "projection_bias": True,
        "max_logit_scale": None,
        "logit_bias": 0.0,
    }


def image_classifier(clazz, image_options, pooling):
    """Returns the task of an image classifier: the tower of images, with the config.json of a pair."""

    def rows(c):
        part = c.part("vision_config")
        unused = () if image_options(part).get("final_norm", True) else ("encoder_norm",)
        body = {path: row for path, row in images_table(part).items() if path not in unused}
        return {**of_pair("", "vision", body), "logits": "classifier"}

    def options(c):
        return {"pooling": pooling, **image_options(c.part("vision_config"))}

    task = classes(f"{clazz}ForImageClassification", models.image_classifier, rows, options)
    others = (r"text_model\..*", r"(visual|text)_projection\..*", r"logit_(scale|bias)")
    return dataclasses.replace(task, convert=lambda options: {}, ignore=others)


def families(name, clazz, image_options, text_options, pair_options, head, kept, pooling):
    """Returns the families of a pair and of each of its towers."""
    buffers = (r"(.*\.)?position_ids",)
    dual = {
        "dual_encoder": Task(f"{clazz}Model", models.dual_encoder, head),
        "image_classification": image_classifier(clazz, image_options, pooling),
    }
    of_tower = tuple(rf"vision_model\.{pattern}" for pattern in kept)
    image = {"image_encoder": Task(f"{clazz}VisionModel", models.image_encoder, whole=False)}
    text = {"encoder": encoder_task(f"{clazz}TextModel")}
    return {
        name: Family(pair_options, pair_table, dual, "", buffers, of_tower, neutral=("logit_scale_init_value",)),
        f"{name}_vision_model": Family(
            image_options, images_table, image, "vision_model.", buffers, kept, neutral=OF_TOWERS
        ),
        f"{name}_text_model": Family(text_options, TEXTS, text, "text_model.", buffers, kept, neutral=OF_TOWERS),
    }


OF_POOLED = (r"post_layernorm\.(weight|bias)",)
FAMILIES = {
    **families("clip", "CLIP", clip_images, clip_texts, clip, CLIP_HEAD, OF_POOLED, "others"),
    **families("metaclip_2", "MetaClip2", clip_images, clip_texts, metaclip, CLIP_HEAD, OF_POOLED, "others"),
    **families("siglip", "Siglip", images, texts, siglip, SIGLIP_HEAD, (r"head\..*",), "mean"),
}
