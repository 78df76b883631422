"""image_text_generator: an encoder of images and a decoder, joined to a language model that reads images.

Legend: B batch, T length, V vocabulary, n images of a row, P vectors of an image.
"""

import functools
from typing import Any

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.functional_graph import is_functional, layers_called_on, mask_of, node_of, nodes, run_graph
from keras_txf.checks import short_repr
from keras_txf.generation.decoding.trial import DECODE_IN_GRAPH
from keras_txf.layers import PositionalEmbedding
from keras_txf.layers.base import call_parameters
from keras_txf.layers.features import AttachMask
from keras_txf.layers.heads import LogitAdjustment
from keras_txf.layers.placeholders import DropBefore, InsertBefore, InsertVectors, JoinImages, PrefixMask
from keras_txf.layers.projections import Projection
from keras_txf.layers.token_input import (
    inputs_by_name,
    known_target,
    logits_of,
    one_token,
    padding_token,
    target_name,
    token_input,
)
from keras_txf.models import stack
from keras_txf.models.generative import Generator

BIDIRECTIONAL = (None, "images", "prefix")
EMBEDDINGS = (PositionalEmbedding, keras.layers.Embedding)


def image_text_generator(
    image_encoder: keras.Model,
    decoder: keras.Model,
    placeholder_id: int | None = None,
    projection: Any = None,
    bidirectional: str | None = None,
    name: str | None = None,
) -> Generator:
    """Joins an encoder of images and a decoder to a language model that reads images, with `generate`.

    A projection makes the vectors of an image as wide as the embedded tokens. The vectors stand before the tokens
    (placeholder_id=None), or where placeholder tokens stand: P placeholders for each image, in any number of places.
    The new model shares the layers and weights of both models, which may be loaded, frozen or adapted before.

    Inputs are a dict of the decoder's inputs, such as `token_ids`, int (B, T), and `images`: float (B, height, width,
    channels) without placeholders, and (B, n, height, width, channels) with placeholders. Rows with fewer images than
    n, or with text alone, have any finite numbers, such as zeros, for the missing images.

    Args:
        image_encoder: a model of images that returns vectors (B, P, width), such as `image_encoder`'s; P must be known.
        decoder: a model with `generate`, such as `decoder_generator`'s or `generative`'s. The vectors of images replace
            or precede the outputs of its embedding of tokens, and receive no positions from that embedding. Its padding
            is the embedding's `pad_id`, or the n of `keras.ops.not_equal(ids, n)`.
        placeholder_id: the token that stands for a vector of an image; None: each row has one image, before its tokens.
        projection: a layer, or a list of layers one after another, from the vectors (B, P, width) to (B, any P, width
            of the embedded tokens); the model uses them as they are. Default: a Dense layer, `image_projection`.
        bidirectional: which tokens see each other in both directions: "images": the vectors of an image (Gemma 3);
            "prefix": the image and the first `prefix_length` tokens of a row, a further input, int (B,), which counts
            placeholders (PaliGemma); in `generate` the default is the whole prompt. None: all tokens are causal
            (LLaVA). With "images" another token must stand between the placeholders of two images.
        name: name of the model; default: the name of the function, with a number from the second model on.

    Returns:
        A functional `keras.Model` with `generate`, whose argument `inputs` takes the images. The logits are (B, T, V),
        without the columns of an image before the tokens; hidden states and attention scores have these columns.

    Raises:
        ValueError: an encoder of another output or unknown P, a decoder without one embedding of tokens, a placeholder
            that is the padding token or outside the vocabulary, a projection of another width. A call raises it
            for a row with a part of an image's placeholders; inside `fit` the loss is NaN instead.

    Reference:
        [Visual Instruction Tuning](https://arxiv.org/abs/2304.08485), LLaVA;
        [PaliGemma](https://arxiv.org/abs/2407.07726) for the prefix that sees itself.

    Example:

    >>> encoder = txf.models.image_encoder(image_size=24, patch_size=8, num_layers=2, dim=16, num_heads=4)
    >>> decoder = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> model = txf.models.image_text_generator(encoder, decoder)
    >>> images = np.random.rand(2, 24, 24, 3).astype("float32")
    >>> model({"token_ids": np.array([[5, 6, 7], [5, 8, 0]]), "images": images}).shape
    (2, 3, 100)
    >>> model.generate([[5, 6], [5]], max_new_tokens=4, inputs={"images": images}).shape
    (2, 6)
    """
    checks.one_of("bidirectional", bidirectional, BIDIRECTIONAL)
    _check_decoder(decoder, placeholder_id)
    inputs = {key: keras.Input(x.shape[1:], dtype=x.dtype, name=key) for key, x in inputs_by_name(decoder).items()}
    decoder_inputs = dict(inputs) if isinstance(decoder.input, dict) else next(iter(inputs.values()))
    embedding = _token_embedding(decoder)
    inputs["images"], vectors = _vectors_of_images(image_encoder, embedding, projection, placeholder_id is not None)
    if bidirectional == "prefix":
        inputs["prefix_length"] = keras.Input((), dtype="int32", name="prefix_length")
    ids = inputs[target_name(decoder)]
    calls = _DecoderCalls(decoder, embedding, ids, inputs["images"], vectors, placeholder_id, bidirectional)
    calls.see_both_ways(bidirectional, inputs.get("prefix_length"))
    outputs = run_graph(decoder, decoder_inputs, calls.call, standardize=False)
    return stack.make_model(inputs, calls.finish(outputs), name, "image_text_generator", Generator)


def _check_decoder(decoder, placeholder_id):
    if not is_functional(decoder) or known_target(decoder) is None or len(logits_of(decoder).shape) != 3:
        raise ValueError(
            "`decoder` must be a functional keras.Model of token ids with logits (batch, length, vocabulary), such as "
            f"`decoder_generator`'s; received {short_repr(decoder)}."
        )
    tokens = token_input(decoder, target_name(decoder))
    taken = sorted({"images", "prefix_length"} & {*inputs_by_name(decoder)})
    if taken:
        raise ValueError(f"`decoder` must have no input of the name {short_repr(taken[0])}, which the new model has.")
    if placeholder_id is None and len(inputs_by_name(decoder)) > 1:
        raise ValueError(
            "`decoder` must have no input other than token ids if images stand before the tokens; received the inputs "
            f"{short_repr(sorted(inputs_by_name(decoder)))}. Pass a `placeholder_id`."
        )
    if placeholder_id is not None:
        checks.id_below("placeholder_id", placeholder_id, tokens.vocab_size)
        if placeholder_id == tokens.pad_id:
            raise ValueError(f"`placeholder_id` must not be the padding token; received {placeholder_id}.")


def _token_embedding(decoder):
    """The one layer of a decoder that embeds its tokens."""
    layers = layers_called_on(decoder, inputs_by_name(decoder)[target_name(decoder)])
    found = [x for x in layers if isinstance(x, EMBEDDINGS) and getattr(x, "vocab_size", 0) is not None]
    if len(found) != 1:
        raise ValueError(
            "`decoder` must embed its tokens by one PositionalEmbedding or keras.layers.Embedding; received "
            f"{len(found)} such layers."
        )
    return found[0]


def _vectors_of_images(image_encoder, embedding, projection, has_placeholders):
    """The input of images, and the projected vectors (B, P, width), or (B n, P, width) with placeholders."""
    output = getattr(image_encoder, "output", None)
    shape = getattr(output, "shape", ())
    if not is_functional(image_encoder) or len(image_encoder.inputs) != 1 or len(shape) != 3 or shape[1] is None:
        raise ValueError(
            "`image_encoder` must be a functional keras.Model with one input and one output (batch, vectors, width) of "
            "a known number of vectors, such as `txf.models.image_encoder`'s with an `image_size`; received "
            f"{short_repr(image_encoder)} with an output of shape {shape}."
        )
    [tensor] = image_encoder.inputs
    width = embedding.dim if isinstance(embedding, PositionalEmbedding) else embedding.output_dim
    if projection is None:
        projection = Projection(width, dtype=embedding.dtype_policy, name="image_projection")
    layers = projection if isinstance(projection, (list, tuple)) else [projection]
    if not all(isinstance(layer, keras.layers.Layer) for layer in layers):
        raise ValueError(
            f"`projection` must be a layer or a list of layers, or None; received {short_repr(projection)}."
        )
    shape = tuple(tensor.shape[1:])
    images = rows = keras.Input((None, *shape) if has_placeholders else shape, dtype=tensor.dtype, name="images")
    if has_placeholders:
        rows = ops.reshape(images, (-1, *shape))
    vectors = functools.reduce(lambda x, layer: layer(x), layers, image_encoder(rows))
    if len(vectors.shape) != 3 or vectors.shape[1] is None or vectors.shape[2] != width:
        raise ValueError(
            f"`projection` must return vectors (batch, number, {width}) of a known number, which the `image_encoder` "
            f"determines; received {vectors.shape}."
        )
    return images, vectors


class _DecoderCalls:
    """Calls the layers of a decoder on symbols, with the vectors of images among the embedded tokens.

    Args:
        decoder: the decoder.
        embedding: its layer that embeds tokens.
        ids: the new symbol of its token ids.
        images: the symbol of the images.
        vectors: float (B, P, width), or (B n, P, width) with placeholders.
        placeholder_id, bidirectional: see `image_text_generator`.
    """

    def __init__(self, decoder, embedding, ids, images, vectors, placeholder_id, bidirectional):
        self.embedding, self.head, self.placeholder_id = embedding, _head_of(decoder), placeholder_id
        self.ids, self.images, self.vectors, self.policy = ids, images, vectors, embedding.dtype_policy
        self.before = 0 if placeholder_id is not None else vectors.shape[1]  # vectors before the tokens
        self.needs_padding = bool(self.before) or bidirectional == "prefix"
        self.pad_id = padding_token(decoder, target_name(decoder)) if self.needs_padding else None
        self.real = None if self.pad_id is None else ops.not_equal(ids, self.pad_id)
        self.padding = None if self.real is None else self._behind_image(self.real, "image_and_padding")
        self.mask = None
        self.is_cut = self.is_embedded = False

    def see_both_ways(self, kind, prefix_length):
        """Makes the mask of the vectors and tokens that see each other both ways, bool (B, T) or (B, P + T)."""
        if kind is None:
            return
        if kind == "prefix":
            mask = PrefixMask(self.pad_id, dtype=self.policy, name="prefix_mask")(self.ids, prefix_length)
        elif self.before:
            mask = ops.zeros_like(self.ids, dtype="bool")
        else:
            mask = ops.equal(self.ids, self.placeholder_id)
        self.mask = self._behind_image(mask, "image_and_bidirectional_mask")

    def _behind_image(self, mask, name=None):
        """A mask (B, T) of tokens, with True for the vectors before them."""
        if not self.before:
            return mask
        insert = InsertBefore(dtype=self.policy, name=name)
        return insert([ops.ones_like(self.vectors[..., 0], dtype="bool"), mask], real=self.real)

    def call(self, layer, *args, **kwargs):
        reads_ids = any(x is self.ids for x in keras.tree.flatten((args, kwargs)))
        if layer is self.embedding and reads_ids:
            if self.is_embedded:
                raise ValueError(
                    f"`decoder` must embed its tokens once; its layer {short_repr(layer.name)} is called on them again."
                )
            self.is_embedded = True
            return self._embed(layer(*args, **kwargs))
        if self.needs_padding and reads_ids and type(layer).__name__ == "NotEqual":
            self._check_padding([x for x in keras.tree.flatten((args, kwargs)) if x is not self.ids])
            return self._behind_image(layer(*args, **kwargs))
        if self.needs_padding and reads_ids:
            raise ValueError(
                "`decoder` must read its tokens by one embedding, and by `keras.ops.not_equal(ids, pad_id)` for its "
                "padding, if images stand before the tokens or a prefix sees itself; its layer "
                f"{short_repr(layer.name)} reads them too."
            )
        if self.before and layer is self.head and (kwargs.get("reverse") or isinstance(layer, keras.layers.Dense)):
            self.is_cut = True
            return layer(self._tokens(args[0]), *args[1:], **kwargs)
        parameters = call_parameters(type(layer))
        if self.mask is not None and ("cache" in parameters or isinstance(layer, DECODE_IN_GRAPH)):
            mixer = getattr(layer, "attention", layer)  # of a block
            if "bidirectional_mask" not in call_parameters(type(mixer)):
                raise ValueError(
                    "`bidirectional` needs attention with an argument `bidirectional_mask` in all blocks of the "
                    f"decoder; its layer {short_repr(layer.name)} has {type(mixer).__name__}, without such an argument."
                )
            kwargs["bidirectional_mask"] = self.mask
        return layer(*args, **kwargs)

    def _check_padding(self, tokens):
        """Raises ValueError for a comparison that `padding_token` does not see: in a model within the decoder."""
        if one_token(tokens) != self.pad_id:
            raise ValueError(
                "`decoder` must compare its tokens with the padding token in its own graph, not in a model within it."
            )

    def _embed(self, x):
        if not self.before:
            vectors = JoinImages(dtype=self.policy, name="image_vectors")(self.vectors, self.images)
            number = self.vectors.shape[1]
            insert = InsertVectors(self.placeholder_id, number, dtype=self.policy, name="insert_images")
            return insert(x, self.ids, vectors)
        has_mask = mask_of(x) is not None
        x = InsertBefore(dtype=self.policy, name="insert_image")([self.vectors, x], real=self.real)
        return self._with_mask(x, self.padding, "image_and_tokens") if has_mask else x

    def _tokens(self, x):
        """The columns of the tokens, without the vectors before them."""
        has_mask = mask_of(x) is not None
        x = DropBefore(self.before, dtype=self.policy, name="drop_image")(x, real=self.padding)
        return self._with_mask(x, self.real, "tokens") if has_mask else x

    def _with_mask(self, x, mask, name):
        return AttachMask(dtype=self.policy, name=name)([x, mask])

    def finish(self, outputs):
        """The outputs of the decoder, with logits of the tokens alone."""
        if not self.before or self.is_cut:
            return outputs
        if isinstance(outputs, dict):
            return {**outputs, "logits": self._tokens(outputs["logits"])}
        return self._tokens(outputs)


def _head_of(decoder):
    """The layer that makes the logits of a model and nothing else; None: they are cut after the last call."""
    tensor = logits_of(decoder)
    while True:
        node = node_of(tensor)
        layer = node.operation
        if node.arguments.kwargs.get("reverse"):
            return layer
        if isinstance(layer, keras.layers.Dense):
            calls = sum(node.operation is layer for node in nodes(decoder))
            return layer if calls == 1 else None
        if not isinstance(layer, LogitAdjustment):
            return None
        [tensor] = node.input_tensors
