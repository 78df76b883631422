"""The two functional models that generation is made of: one reads a prompt, one reads one token more."""

import keras
from keras import ops

from keras_txf.layers import DecoderBlock, EncoderBlock, PositionalEmbedding
from keras_txf.layers.caching import Prefill, Step
from keras_txf.layers.options import register


def prefill_model(model):
    """Builds the model that reads prompts: it shares all weights, and returns the cache that `step_model` takes.

    The sequences of a batch stand side by side in L columns: prompts of P, padded on the left, and what will follow.

    Args:
        model: from `decoder_generator` or `encoder_decoder`.

    Returns:
        A functional `keras.Model`. Inputs, by name: `token_ids` (of an encoder-decoder `target_ids` and
        `source_ids`), int (B, P), and `visible`, bool (B, L), True at the real tokens of the prompts.
        Outputs: `logits` (B, V) of the next token, and for each block `decoder_0_key`, `decoder_0_value`,
        ..., (B, key-value heads, L or the block's window, head dim); with a context also
        `decoder_0_context_key`, ...

    Raises:
        ValueError: another model, or one built with packed=True.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> prefill, step = txf.models.prefill_model(model), txf.models.step_model(model)
    >>> visible = np.array([[True, True, True, False, False]])
    >>> known = prefill({"token_ids": np.array([[5, 6, 7]]), "visible": visible})
    >>> known["decoder_1_key"].shape
    (1, 4, 5, 8)
    """
    parts = Parts(model)
    inputs = _inputs(parts, None)
    ids, visible = inputs[parts.ids_name], inputs["visible"]
    call = {}
    if parts.encoder is not None:
        source_ids = inputs["source_ids"] = keras.Input((None,), dtype="int32", name="source_ids")
        call["context"] = parts.encoder(source_ids)
        call["context_mask"] = parts.context_mask(source_ids)
    x = parts.embed(ids, visible)
    outputs = {}
    for block in parts.blocks:
        x, *cache = Prefill(block, name=f"{block.name}_prefill", dtype=block.dtype_policy)(x, visible, **call)
        outputs.update(zip(cache_names(block), cache, strict=True))
    return keras.Model(inputs, {"logits": parts.logits(x), **outputs}, name=f"{model.name}_prefill")


def step_model(model):
    """Builds the model that reads one token more: it shares all weights, and can be exported.

    Args:
        model: from `decoder_generator` or `encoder_decoder`.

    Returns:
        A functional `keras.Model`. Inputs, by name: `token_ids` or `target_ids`, int (B, 1); `visible`,
        bool (B, L), True at the real tokens up to this one; `index`, int (1,), its column; what
        `prefill_model` or the last step returned; and, of an encoder-decoder, `source_ids`.
        Outputs: `logits` (B, V) and the cache, with one column more.

    Raises:
        ValueError: another model, or one built with packed=True.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> step = txf.models.step_model(model)
    >>> sorted(tensor.name for tensor in step.inputs)[:3]
    ['decoder_0_key', 'decoder_0_value', 'decoder_1_key']
    """
    parts = Parts(model)
    inputs = _inputs(parts, 1)
    visible = inputs["visible"]
    index = inputs["index"] = keras.Input(batch_shape=(1,), dtype="int32", name="index")
    call = {}
    if parts.encoder is not None and parts.source_embedding.pad_id is not None:
        inputs["source_ids"] = keras.Input((None,), dtype="int32", name="source_ids")
        call["context_mask"] = parts.context_mask(inputs["source_ids"])
    x = parts.embed(inputs[parts.ids_name], visible, index)
    outputs = {}
    for block in parts.blocks:
        cache = {name: _cache_input(name, block) for name in cache_names(block)}
        inputs.update(cache)
        x, *new = Step(block, name=f"{block.name}_step", dtype=block.dtype_policy)(
            x, visible, index, *cache.values(), **call
        )
        outputs.update(zip(cache, new))  # the context's stay as they are
    return keras.Model(inputs, {"logits": parts.logits(x), **outputs}, name=f"{model.name}_step")


def refuse_packed(model):
    if any("segment_ids" in tensor.name for tensor in model.inputs):
        raise ValueError("`generate` needs a model built with packed=False; its weights are the same.")


class Parts:
    """What a generative model from a builder consists of, found by the names that the builders give."""

    def __init__(self, model):
        refuse_packed(model)
        has_blocks = any(isinstance(layer, DecoderBlock) for layer in model.layers)
        if not has_blocks or any(tensor.name == "context" for tensor in model.inputs):
            raise ValueError(
                f"`model` must come from `decoder_generator` or `encoder_decoder`; received {model.name!r}."
            )
        layers = {layer.name: layer for layer in model.layers}
        self.blocks = [layer for layer in model.layers if isinstance(layer, DecoderBlock)]
        self.norm = layers.get("decoder_norm")
        self.head = layers.get("logits")
        self.embedding = layers.get("target_embedding") or layers["embedding"]
        encoders = [layer for layer in model.layers if isinstance(layer, EncoderBlock)]
        self.source_embedding = (layers.get("source_embedding") or layers["embedding"]) if encoders else None
        self.encoder = None
        if encoders:
            last = layers.get("encoder_norm") or encoders[-1]
            output = keras.tree.flatten(last.output)[0]
            self.encoder = keras.Model(model.input["source_ids"], output, name="encoder")
        self.ids_name = "target_ids" if encoders else "token_ids"

    def embed(self, ids, visible, index=None):
        """Embeds the columns `index`, by default the first: each row counts its real tokens."""
        if self.embedding.encoding is None:
            return self.embedding(ids)
        return self.embedding(ids, positions=TokenPositions(name="positions")(ids, visible, index))

    def logits(self, x):
        """(B, V) after the last column."""
        x = x[:, -1:]
        if self.norm is not None:
            x = self.norm(x)
        x = self.embedding(x, reverse=True) if self.head is None else self.head(x)
        return x[:, 0]

    def context_mask(self, source_ids):
        pad_id = self.source_embedding.pad_id
        return None if pad_id is None else ops.not_equal(source_ids, pad_id)


@register
class TokenPositions(keras.layers.Layer):
    """Positions of the columns `index`, by default the first, among the real tokens of each row: (B, columns)."""

    def call(self, ids, visible, index=None):
        index = ops.arange(ops.shape(ids)[1]) if index is None else index
        counts = ops.maximum(ops.cumsum(ops.cast(visible, "int32"), axis=1) - 1, 0)
        return ops.take(counts, index, axis=1)


def cache_names(block):
    names = [f"{block.name}_key", f"{block.name}_value"]
    return names + [f"{block.name}_context_key", f"{block.name}_context_value"][: 2 * block.cross_attention]


def _inputs(parts, length):
    return {
        parts.ids_name: keras.Input((length,), dtype="int32", name=parts.ids_name),
        "visible": keras.Input((None,), dtype="bool", name="visible"),
    }


def _cache_input(name, block):
    layer = block.cross_attention_layer if "context" in name else block.attention
    heads = layer.num_key_value_heads or layer.num_heads
    head_dim = layer.key.kernel.shape[-1] // heads
    return keras.Input((heads, None, head_dim), dtype=layer.compute_dtype, name=name)
