"""Layers that put vectors, such as those of an image, among the embedded tokens of a decoder.

Legend: B batch, T length, S number of vectors, D model dim.
"""

from typing import Unpack

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.serialization import register
from keras_txf.ops.masks import first_real, padding_positions, real_tokens
from keras_txf.ops.tensors import insert_before, nan_unless, take_columns


@register
class InsertVectors(Layer):
    """Replaces the embedded placeholder tokens of each row by vectors, in their order.

    Use it between the embedding and the first block of a decoder. `txf.models.image_text_generator` does so with the
    vectors of images. A row may have fewer placeholders than vectors, or none: it then does not read the other vectors.

    Args:
        placeholder_id: the token that stands for a vector. `generate` never selects it.
        group_size: number of vectors that belong together, such as the patches of an image: the number of placeholders
            in a row must be a multiple.

    Call arguments:
        inputs: float (B, T, D), the embedded tokens.
        ids: int (B, T), the tokens.
        vectors: float (B, S, D).
        cache: a `Cache`, which decoding passes. It holds how many vectors each row has read.

    Returns:
        (B, T, D).

    Raises:
        ValueError: vectors of another width or number of rows (one row counts for all); a row with more placeholders
            than vectors, or with a part of a group. Inside a compiled function, where nothing can raise an error, the
            row is NaN instead.

    Reference:
        [Visual Instruction Tuning](https://arxiv.org/abs/2304.08485), LLaVA.

    Example:

    >>> ids = np.array([[9, 9, 5, 6], [5, 6, 7, 8]])  # 9 stands for a vector
    >>> embedded, vectors = keras.random.normal((2, 4, 32)), keras.random.normal((2, 2, 32))
    >>> txf.layers.InsertVectors(placeholder_id=9)(embedded, ids, vectors).shape
    (2, 4, 32)
    """

    def __init__(self, placeholder_id: int, group_size: int = 1, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.placeholder_id = checks.id_below("placeholder_id", placeholder_id)
        self.group_size = checks.size("group_size", group_size)
        self.supports_masking = True
        self.autocast = False  # autocast would round ids of a float dtype

    def build(self, inputs_shape, ids_shape=None, vectors_shape=None):
        pass

    def call(self, inputs, ids, vectors, cache=None):
        self._check_call(inputs, ids, vectors)
        inputs, vectors = (ops.cast(x, self.compute_dtype) for x in (inputs, vectors))
        is_vector = ops.equal(ids, self.placeholder_id)
        used = None
        if cache is not None:
            if cache.mask is not None:  # columns of padding may hold earlier tokens
                is_vector = ops.logical_and(is_vector, cache.mask)
            inputs, is_vector, vectors = cache.split(inputs), cache.split(is_vector), cache.repeat(vectors)
            used = cache.read_state("used", ops.zeros_like(ids[:, :1], "int32"))
        count = ops.cumsum(ops.cast(is_vector, "int32"), axis=1)
        count = count if used is None else count + used
        last, number = count[:, -1:], ops.shape(vectors)[1]  # a vector more than S, so that S may be 0
        vectors = ops.pad(vectors, ((0, 0), (0, 1), (0, 0)))
        index = ops.where(is_vector, ops.clip(count - 1, 0, number), number)
        found = ops.take_along_axis(vectors, index[..., None], axis=1)
        outputs = ops.where(is_vector[..., None], found, inputs)
        valid = ops.logical_and(last <= number, ops.equal(last % self.group_size, 0))
        outputs = outputs + nan_unless(valid, outputs.dtype)[..., None]
        if cache is None:
            return outputs
        cache.write_state("used", last)
        return cache.join(outputs)

    def compute_output_spec(self, inputs, ids, vectors, cache=None):
        self._check_call(inputs, ids, vectors)
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def _check_call(self, inputs, ids, vectors):
        checks.rank("inputs", inputs, (3, "(batch, length, dim)"))
        checks.rank("ids", ids, (2, "(batch, length)"))
        checks.integers("ids", ids)
        checks.broadcasts("ids", ids, *inputs.shape[:2])
        checks.rank("vectors", vectors, (3, "(batch, number, dim)"))
        checks.broadcasts("vectors", vectors, inputs.shape[0], *vectors.shape[1:2], inputs.shape[-1])
        values = checks.concrete(ids)
        if values is not None and vectors.shape[1] is not None:
            self.check_counts(np.sum(values == self.placeholder_id, axis=1), vectors.shape[1])

    def check_counts(self, counts, number):
        """Raises ValueError for a row with more placeholders than vectors, or with a part of a group.

        Args:
            counts: number of placeholders in each row.
            number: number of vectors of each row; None: unknown.
        """
        for row, count in enumerate(counts):
            if count % self.group_size or (number is not None and count > number):
                most = "" if number is None else f", at most {number}"
                raise ValueError(
                    f"`ids` must hold the placeholder {self.placeholder_id} once for each vector of an image: a "
                    f"multiple of `group_size`, {self.group_size}, in each row{most}; received {count} in row {row}."
                )


@register
class JoinImages(Layer):
    """Joins the vectors of all images of a row.

    Call arguments:
        vectors: float (B n, P, D), the vectors of each image.
        images: float (B, n, height, width, channels), of which the layer reads the shape.

    Returns:
        (B, n P, D).
    """

    def build(self, vectors_shape, images_shape=None):
        pass

    def call(self, vectors, images):
        _, size, dim = vectors.shape
        batch, number, *_ = ops.shape(images)
        return ops.reshape(vectors, (batch, number * size, dim))

    def compute_output_spec(self, vectors, images):
        _, size, dim = vectors.shape
        batch, number, *_ = images.shape
        return keras.KerasTensor((batch, None if number is None else number * size, dim), self.compute_dtype)


@register
class InsertBefore(Layer):
    """Puts vectors directly before the first real token of each row.

    Call arguments:
        inputs: the vectors (B, S, ...) and the tokens (B, T, ...), of any dtype, in a list.
        real: bool (B, T), True at the real tokens; None: no token is padding.

    Returns:
        (B, S + T, ...), of the dtype of the tokens.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking, self.autocast = True, False

    def check_argument(self, name, value):
        return value  # `inputs` is a list of tensors

    def build(self, inputs_shape, real_shape=None):
        pass

    def call(self, inputs, real=None):
        vectors, tokens = inputs
        if real is None:
            return ops.concatenate([ops.cast(vectors, tokens.dtype), tokens], axis=1)
        return insert_before(vectors, tokens, first_real(real))

    def compute_output_spec(self, inputs, real=None):
        vectors, tokens = inputs
        sizes = vectors.shape[1], tokens.shape[1]
        length = None if None in sizes else sum(sizes)
        return keras.KerasTensor((*tokens.shape[:1], length, *tokens.shape[2:]), tokens.dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return None


@register
class DropBefore(Layer):
    """Drops the vectors directly before the first real token of each row, which `InsertBefore` put there.

    Args:
        number: number S of vectors in each row.

    Call arguments:
        inputs: (B, S + T, ...).
        real: bool (B, S + T), True at the vectors and at the real tokens; None: no token is padding.

    Returns:
        (B, T, ...).
    """

    def __init__(self, number, **kwargs):
        super().__init__(**kwargs)
        self.number, self.supports_masking, self.autocast = number, True, False

    def build(self, inputs_shape, real_shape=None):
        pass

    def call(self, inputs, real=None):
        if real is None:
            return inputs[:, self.number :]
        columns = ops.arange(ops.shape(inputs)[1] - self.number, dtype="int32")[None]
        return take_columns(inputs, ops.where(columns < first_real(real)[:, None], columns, columns + self.number))

    def compute_output_spec(self, inputs, real=None):
        batch, length, *rest = inputs.shape
        return keras.KerasTensor((batch, None if length is None else length - self.number, *rest), inputs.dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return None


@register
class PrefixMask(Layer):
    """The mask of the first tokens of each row, for the `bidirectional_mask` of an attention.

    Args:
        pad_id: the token that does not count; None: all count.

    Call arguments:
        ids: int (B, T), the tokens.
        prefix_length: int (B,), the number of first tokens.
        positions: int (T,) or (B, T); default: how many tokens stand before each. Decoding passes those of new tokens.

    Returns:
        bool (B, T).
    """

    def __init__(self, pad_id=None, **kwargs):
        super().__init__(**kwargs)
        self.pad_id, self.autocast = pad_id, False

    def build(self, ids_shape, prefix_length_shape=None):
        pass

    def call(self, ids, prefix_length, positions=None):
        checks.broadcasts("prefix_length", prefix_length, ids.shape[0])
        if positions is None:
            positions = padding_positions(real_tokens(ids, self.pad_id))
        positions = ops.broadcast_to(positions, ops.shape(ids))
        return ops.less(positions, ops.cast(prefix_length, "int32")[:, None])

    def compute_output_spec(self, ids, prefix_length, positions=None):
        return keras.KerasTensor(ids.shape, "bool")
