"""The models of train_step.py in Keras: from our builders, and from KerasHub's layers."""

import keras
import numpy as np
from keras import ops

import keras_txf as txf


def ours(size):
    def attention(cls=txf.layers.MultiHeadSelfAttention, **options):
        return cls(size["heads"], dropout=size["dropout"], **options)

    common = dict(
        dim=size["dim"],
        intermediate_dim=4 * size["dim"],
        dropout=size["dropout"],
        position_encoding="learned",
        max_length=size["length"],
    )
    if size["task"] == "classifier":
        common["attention"] = attention()
        return txf.models.encoder_classifier(size["vocab"], 2, size["layers"], activation="relu", **common)
    if size["task"] == "gpt":
        gpt = dict(activation="gelu", norm_placement="pre", pad_id=None, attention=attention(causal=True))
        return txf.models.decoder_generator(size["vocab"], size["layers"], **gpt, **common)
    sides = {
        "encoder_options": {"attention": attention()},
        "decoder_options": {
            "attention": attention(causal=True),
            "cross_attention": attention(txf.layers.CrossAttention),
        },
    }
    sizes = size["vocab"], size["vocab"], size["layers"]
    return txf.models.encoder_decoder(*sizes, activation="relu", **common, **sides)


def keras_hub(size):
    import keras_hub

    layers = keras_hub.layers
    options = dict(intermediate_dim=4 * size["dim"], num_heads=size["heads"], dropout=size["dropout"])
    if size["task"] == "gpt":
        options.update(activation="gelu", normalize_first=True)

    embedding = layers.TokenAndPositionEmbedding(
        size["vocab"], size["length"], size["dim"], mask_zero=size["task"] != "gpt"
    )

    def embed(name):
        ids = keras.Input((size["length"],), dtype="int32", name=name)
        return ids, keras.layers.Dropout(size["dropout"])(embedding(ids))

    if size["task"] == "translator":
        source_ids, context = embed("source_ids")
        for _ in range(size["layers"]):
            context = layers.TransformerEncoder(**options)(context)
        target_ids, x = embed("target_ids")
        for _ in range(size["layers"]):
            x = layers.TransformerDecoder(**options)(x, context)
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        return keras.Model(inputs, embedding.token_embedding(x, reverse=True))
    ids, x = embed("ids")
    block = layers.TransformerDecoder if size["task"] == "gpt" else layers.TransformerEncoder
    for _ in range(size["layers"]):
        x = block(**options)(x)
    if size["task"] == "classifier":
        return keras.Model(ids, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x)))
    return keras.Model(ids, embedding.token_embedding(keras.layers.LayerNormalization()(x), reverse=True))


def data(size):
    """Token ids and labels; of a translator source and target ids, and labels."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, size["vocab"], (size["batch"], size["length"])).astype("int32") for _ in range(3)]
    labels = rng.integers(0, 2, size["batch"]).astype("int32") if size["task"] == "classifier" else ids[2]
    return ids[: 2 if size["task"] == "translator" else 1], labels


def build(library, size, dtype, compiled):
    """Returns a function that takes one step, and the number of parameters."""
    keras.config.set_dtype_policy("mixed_bfloat16" if dtype == "bfloat16" else "float32")
    inputs, labels = data(size)
    if library == "keras_txf" and size["task"] != "classifier":
        loss = txf.training.TokenCrossEntropy(pad_id=None if size["task"] == "gpt" else 0)
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = ours(size) if library == "keras_txf" else keras_hub(size)
    model.compile(keras.optimizers.AdamW(1e-4), loss, jit_compile=compiled)
    inputs, labels = [ops.convert_to_tensor(x) for x in inputs], ops.convert_to_tensor(labels)
    inputs = dict(zip(("source_ids", "target_ids"), inputs)) if len(inputs) == 2 else inputs[0]
    return lambda: float(model.train_on_batch(inputs, labels)), model.count_params()
