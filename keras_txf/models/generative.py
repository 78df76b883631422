"""The model classes: functional Keras models, with `generate` on the two that generate."""

import math
import weakref

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.generation.engine import Engine, bucket
from keras_txf.generation.prompts import check_stop_ids, prompt_lists
from keras_txf.layers import PositionalEmbedding
from keras_txf.layers.options import register
from keras_txf.models.stepping import prefill_model, refuse_packed, step_model


@register
class ContextDecoder(keras.Model):
    """A decoder whose context brings a mask. Its logits carry the mask of the target ids, if any."""

    def __call__(self, inputs, *args, **kwargs):
        # Keras refuses arrays beside tensors, and a context is a tensor where ids are an array.
        def convert(x):
            return ops.convert_to_tensor(x) if isinstance(x, np.ndarray) else x

        return super().__call__(keras.tree.map_structure(convert, inputs), *args, **kwargs)

    def compute_mask(self, inputs, previous_mask=None):
        return None


@register
class Generator(keras.Model):
    """A decoder-only language model."""

    def generate(self, prompt_ids, max_new_tokens=64, sampler="greedy", stop_ids=None, seed=None):
        """Continues each prompt.

        Args:
            prompt_ids: token ids: lists of unequal lengths, or an array (B, T) padded on either side.
                Padding is left out wherever it stands.
            max_new_tokens: at most this many tokens are appended to each prompt.
            sampler: "greedy", "sampling" (temperature 1), `txf.generation.Sampling(temperature)`, or a
                function of logits, float32 (B, V), and a seed for `keras.random`, made of `keras.ops`,
                that returns ids (B,).
            stop_ids: a token id or several; a row ends with the first that it produces.
            seed: the same seed gives the same tokens. Default: another one each time.

        Returns:
            NumPy int32 (B, longest): prompts and what follows them, padded on the right.

        Raises:
            ValueError: no prompt or an empty one, ids outside the vocabulary, more tokens than the
                model has positions.
        """
        embedding = _embedding(self, "embedding")
        prompts = prompt_lists("prompt_ids", prompt_ids, embedding.pad_id, embedding.vocab_size)
        if not all(prompts):
            raise ValueError("`prompt_ids` must hold at least one token in each prompt; received an empty one.")
        _check_length(embedding, max(map(len, prompts)), max_new_tokens)
        check_stop_ids(stop_ids, embedding.vocab_size)
        refuse_packed(self)
        new = _engine(self, embedding.pad_id).generate(prompts, max_new_tokens, sampler, stop_ids, seed)
        return _padded([prompt + row for prompt, row in zip(prompts, new, strict=True)], embedding.pad_id)


@register
class Seq2Seq(keras.Model):
    """An encoder-decoder."""

    def generate(self, source_ids, max_new_tokens=64, sampler="greedy", stop_ids=None, seed=None, start_id=1):
        """Answers each source.

        Args:
            source_ids: token ids: lists of unequal lengths, or an array (B, S) padded on either side.
            max_new_tokens: at most this many tokens are generated for each source.
            sampler, stop_ids, seed: see `Generator.generate`.
            start_id: the token that every target begins with in training.

        Returns:
            NumPy int32 (B, longest): the answers without the start token, padded on the right.

        Raises:
            ValueError: no source, ids outside the vocabulary, more tokens than the model has positions.
        """
        source, target = _embedding(self, "source_embedding"), _embedding(self, "target_embedding")
        sources = prompt_lists("source_ids", source_ids, source.pad_id, source.vocab_size)
        _check_length(target, 1, max_new_tokens)
        check_stop_ids(stop_ids, target.vocab_size)
        checks.id_below("start_id", start_id, target.vocab_size)
        refuse_packed(self)
        width = max(1, *map(len, sources))
        if source.pad_id is None and any(len(row) != width for row in sources):
            raise ValueError("`source_ids` must be of one length, since the model has pad_id=None.")
        if source.pad_id is not None:
            width = max(width, min(bucket(width), source.max_length or math.inf))
        padded = _padded(sources, source.pad_id, width)
        starts = [[start_id]] * len(sources)
        engine = _engine(self, target.pad_id)
        new = engine.generate(starts, max_new_tokens, sampler, stop_ids, seed, source_ids=padded)
        return _padded(new, target.pad_id)


def _embedding(model, name):
    names = [layer.name for layer in model.layers if isinstance(layer, PositionalEmbedding)]
    return model.get_layer(name if name in names else "embedding")


def _padded(rows, pad_id, width=0):
    width = max(width, *map(len, rows))
    return np.array([row + [pad_id or 0] * (width - len(row)) for row in rows], "int32")


_ENGINES = weakref.WeakKeyDictionary()


def _engine(model, pad_id):
    """The model's engine, made anew where its variables are others: after `quantize` or `enable_lora`."""
    variables, engine = _ENGINES.get(model, ([], None))
    if len(variables) != len(model.variables) or any(a is not b for a, b in zip(variables, model.variables)):
        ids_name = "target_ids" if isinstance(model, Seq2Seq) else "token_ids"
        engine = Engine(prefill_model(model), step_model(model), ids_name, pad_id)
        _ENGINES[model] = model.variables, engine
    return engine


def _check_length(embedding, length, new):
    checks.positive_integer("max_new_tokens", new)
    if embedding.max_length is not None and length + new > embedding.max_length:
        raise ValueError(
            f"The model has max_length={embedding.max_length} positions; received {length} prompt tokens "
            f"and max_new_tokens={new}."
        )
