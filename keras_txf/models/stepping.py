"""The two functional models that generation is made of: one reads a prompt, one reads one token more."""

import functools

import keras
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers import DecoderBlock, EncoderBlock
from keras_txf.layers.caching import Prefill, PromptPlaces, Step, StepPlaces, cache_shapes
from keras_txf.layers.options import register
from keras_txf.models.checked_model import CheckedModel
from keras_txf.models.recurrent_stepping import ContextMask, find_decoder, logits_of, prefill_tensors, step_tensors
from keras_txf.ops.masks import padding_positions


def prefill_model(model, width=1, return_hidden_states=False):
    """Builds the model that reads prompts: it shares all weights, and returns the cache that `step_model` takes.

    The sequences of a batch stand side by side in L columns: prompts of P, padded on the left, and what will follow.

    Args:
        model: from `decoder_generator`, `encoder_decoder` or `recurrent_encoder_decoder`.
        width: that of the `step_model`.
        return_hidden_states: also return what the logits are made of.

    Returns:
        A functional `keras.Model`. Inputs, by name: `token_ids` (of an encoder-decoder `target_ids` and
        `source_ids`), int (B, P), and `visible`, bool (B, L), True at the real tokens of the prompts.
        Outputs: `logits` (B, V) of the next token, and for each block `decoder_0_key`, `decoder_0_value`,
        ..., (B · key-value heads, C, head dim), the heads of a sequence one after the other, where C is L,
        or no more than the block's window; for a width above one the keys are (B · key-value heads, head
        dim, C). With a context also `decoder_0_context_key`, ...; on request `hidden_states` (B, P, D). Of a recurrent
        decoder the cache is `decoder_states` (B, P, width of all states and of the outputs), with attention beside `context` and
        `context_keys`.

    Raises:
        ValueError: another model, or one built with packed=True.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> prefill, step = txf.models.prefill_model(model), txf.models.step_model(model)
    >>> visible = np.array([[True, True, True, False, False]])
    >>> known = prefill({"token_ids": np.array([[5, 6, 7]]), "visible": visible})
    >>> known["decoder_1_key"].shape
    (4, 5, 8)
    """
    checks.positive_int32("width", width)
    checks.boolean("return_hidden_states", return_hidden_states)
    if _is_recurrent(model):
        inputs, outputs, hidden = prefill_tensors(model)
        outputs |= {"hidden_states": hidden} if return_hidden_states else {}
        return CheckedModel(inputs, {"logits": logits_of(model, hidden[:, -1:])[:, 0], **outputs}, name=f"{model.name}_prefill")
    parts = Parts(model)
    inputs = _inputs(parts, None, (None,))
    ids, visible = inputs[parts.ids_name], inputs["visible"]
    call = {}
    if parts.encoder is not None:
        source_ids = inputs["source_ids"] = keras.Input((None,), dtype="int32", name="source_ids")
        call["context"] = parts.encoder.call(source_ids)
        call["context_mask"] = parts.context_mask(source_ids)
    places = functools.cache(lambda window: PromptPlaces(window, name=f"places_{window or 'all'}")(ids, visible))
    x = parts.embed(ids, visible)
    outputs = {}
    for block in parts.blocks:
        layer = Prefill(block, width, name=f"{block.name}_prefill", dtype=block.dtype_policy)
        x, *cache = layer(x, visible, *places(block.attention.window), **call)
        outputs.update(zip(cache_names(block), cache, strict=True))
    if return_hidden_states:
        x = outputs["hidden_states"] = parts.finish(x)
        logits = parts.logits(x[:, -1:])
    else:
        logits = parts.logits(parts.finish(x[:, -1:]))
    return CheckedModel(inputs, {"logits": logits[:, 0], **outputs}, name=f"{model.name}_prefill")


def step_model(model, width=1, return_hidden_states=False):
    """Builds the model that reads one token more: it shares all weights, and can be exported.

    With a `width` of W above one it reads W tokens of each sequence at once, each of which has its own
    mask over the columns: the beams of a search, or candidates to choose from. They lie in W columns, and
    share a place in the sequence. What they have in common, such as the prompt, is kept once.

    Args:
        model: from `decoder_generator`, `encoder_decoder` or `recurrent_encoder_decoder`.
        width: how many tokens of each sequence a step reads.
        return_hidden_states: also return what the logits are made of.

    Returns:
        A functional `keras.Model`. Inputs, by name: `token_ids` or `target_ids`, int (B, W); `visible`,
        bool (B, L), True at the real tokens up to this one, or (B, W, L) for a width above one; `index`,
        int (1,), its column, or the first of W; what `prefill_model` or the last step returned; of an
        encoder-decoder `source_ids`; for a width above one `prompt_length`, int (1,), the number P of
        columns before the first step's. P and L - P must then be multiples of W.
        Outputs: `logits` (B, V), or (B, W, V), and the cache, with the new columns; on request
        `hidden_states` (B, W, D).

    Raises:
        ValueError: another model, or one built with packed=True.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> step = txf.models.step_model(model)
    >>> sorted(tensor.name for tensor in step.inputs)[:3]
    ['decoder_0_key', 'decoder_0_value', 'decoder_1_key']
    """
    checks.positive_int32("width", width)
    checks.boolean("return_hidden_states", return_hidden_states)
    if _is_recurrent(model):
        inputs, outputs, hidden = step_tensors(model, width)
        outputs |= {"hidden_states": hidden} if return_hidden_states else {}
        logits = logits_of(model, hidden)
        outputs["logits"] = logits[:, 0] if width == 1 else logits
        return CheckedModel(inputs, outputs, name=f"{model.name}_step")
    parts = Parts(model)
    inputs = _inputs(parts, width, (None,) if width == 1 else (width, None))
    visible = inputs["visible"]
    index = inputs["index"] = keras.Input(batch_shape=(1,), dtype="int32", name="index")
    where = {}
    if width > 1:
        where["prompt_length"] = keras.Input(batch_shape=(1,), dtype="int32", name="prompt_length")
        inputs.update(where)
    call = {}
    if parts.encoder is not None and parts.source_embedding.pad_id is not None:
        inputs["source_ids"] = keras.Input((None,), dtype="int32", name="source_ids")
        call["context_mask"] = parts.context_mask(inputs["source_ids"])
    places = {}
    x = parts.embed(inputs[parts.ids_name], visible, step=True)
    outputs = {}
    for block in parts.blocks:
        cache = _cache_inputs(block, width)
        inputs.update(cache)
        window, _, value, *_ = block.attention.window, *cache.values()
        if window not in places:
            layer = StepPlaces(window, width, name=f"places_{window or 'all'}")
            places[window] = layer(visible, index, value, **where)
        layer = Step(block, name=f"{block.name}_step", dtype=block.dtype_policy)
        x, *new = layer(x, index, *places[window], *cache.values(), **call)
        outputs.update(zip(cache, new))  # the context's stay as they are
    x = parts.finish(x)
    if return_hidden_states:
        outputs["hidden_states"] = x
    logits = parts.logits(x)
    outputs["logits"] = logits[:, 0] if width == 1 else logits
    return CheckedModel(inputs, outputs, name=f"{model.name}_step")


def _is_recurrent(model):
    return isinstance(model, keras.Model) and getattr(model, "inputs", None) and find_decoder(model) is not None


def refuse_packed(model):
    if any("segment_ids" in tensor.name for tensor in model.inputs):
        raise ValueError("`generate` and `prefill_model` need a `model` built with packed=False; its weights are the same.")


class Parts:
    """What a generative model from a builder consists of, found by the names that the builders give."""

    def __init__(self, model):
        functional = isinstance(model, keras.Model) and getattr(model, "inputs", None)  # None of a model without a graph
        has_blocks = functional and any(isinstance(layer, DecoderBlock) for layer in model.layers)
        if not has_blocks or any(tensor.name == "context" for tensor in model.inputs):
            received = model.name if isinstance(model, keras.Model) else model
            raise ValueError(
                f"`model` must come from `decoder_generator`, `encoder_decoder` or `recurrent_encoder_decoder`; received {short_repr(received)}."
            )
        refuse_packed(model)
        layers = {layer.name: layer for layer in model.layers}
        self.blocks = [layer for layer in model.layers if isinstance(layer, DecoderBlock)]
        self.norm = layers.get("decoder_norm")
        self.head = layers.get("logits")
        self.embedding = layers.get("target_embedding") or layers["embedding"]
        self.position_embedding = layers.get("target_position_embedding")
        self.embedding_norm = layers.get("decoder_embedding_norm")
        self.embedding_projection = layers.get("decoder_embedding_projection")
        self.logit_adjustment = layers.get("logit_adjustment")
        encoders = [layer for layer in model.layers if isinstance(layer, EncoderBlock)]
        self.source_embedding = (layers.get("source_embedding") or layers["embedding"]) if encoders else None
        self.encoder = None
        if encoders:
            last = layers.get("encoder_norm") or encoders[-1]
            output = keras.tree.flatten(last.output)[0]
            self.encoder = keras.Model(model.input["source_ids"], output, name="encoder")
        self.ids_name = "target_ids" if encoders else "token_ids"

    def embed(self, ids, visible, step=False):
        """Embeds tokens by their positions: each row counts its real ones."""
        own = self.position_embedding or self.embedding
        positions = {}
        if own.encoding is not None or own.max_length is not None:
            positions["positions"] = (StepPositions if step else PromptPositions)(name="positions")(ids, visible)
        if self.position_embedding is None:
            x = self.embedding(ids, **positions)
        else:
            x = [self.embedding(ids), self.position_embedding(ids, **positions)]
            x = keras.layers.Add(dtype=self.embedding.dtype_policy, name="sum_with_positions")(x)
        for layer in (self.embedding_norm, self.embedding_projection):
            x = x if layer is None else layer(x)
        return x

    def finish(self, x):
        """The last block's output as the logits need it."""
        return x if self.norm is None else self.norm(x)

    def logits(self, x):
        logits = self.embedding(x, reverse=True) if self.head is None else self.head(x)
        return logits if self.logit_adjustment is None else self.logit_adjustment(logits)

    def context_mask(self, source_ids):
        pad_id = self.source_embedding.pad_id
        return None if pad_id is None else ContextMask(pad_id, name="context_mask")(source_ids)


@register
class PromptPositions(keras.layers.Layer):
    """Positions of a prompt's tokens among the real ones of their row, (B, P)."""

    def call(self, ids, visible):
        return padding_positions(visible[:, : ops.shape(ids)[1]])


@register
class StepPositions(keras.layers.Layer):
    """Positions of a step's tokens among the real ones that each may see, (B, W)."""

    def call(self, ids, visible):
        counts = ops.sum(ops.cast(visible, "int32"), axis=-1, keepdims=len(visible.shape) == 2)
        return ops.maximum(counts - 1, 0)


def cache_names(block):
    names = [f"{block.name}_key", f"{block.name}_value"]
    return names + [f"{block.name}_context_key", f"{block.name}_context_value"][: 2 * block.cross_attention]


def _inputs(parts, length, visible_shape):
    return {
        parts.ids_name: keras.Input((length,), dtype="int32", name=parts.ids_name),
        "visible": keras.Input(visible_shape, dtype="bool", name="visible"),
    }


def _cache_inputs(block, width):
    return {
        name: keras.Input(shape, dtype=block.compute_dtype, name=name)
        for name, shape in zip(cache_names(block), cache_shapes(block, width), strict=True)
    }
