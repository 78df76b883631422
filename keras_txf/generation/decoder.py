"""Decoder: decoding step by step, for a user's own loop."""

from typing import Any

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.functional_graph import is_functional
from keras_txf.checks import short_repr
from keras_txf.generation.decoding.graph_decoder import GraphDecoder
from keras_txf.layers.cache_kinds import cache_kind
from keras_txf.layers.token_input import token_input
from keras_txf.ops.masks import real_tokens
from keras_txf.ops.tensors import batch_size, nan_unless


class Decoder:
    """Reads prompts, then one or several tokens at a time, each token once: for your own decoding loop.

    A step does not change a state but returns a new one, so two answers can continue from one state, and a step can be
    tried and dropped. Both methods run in a `tf.function` or under `jax.jit`. The state is a nested dict of tensors.

    Args:
        model: a model that generates, such as a model of `decoder_generator`, or a model that `generative` takes.
        tokens: the most tokens of each row that a step may read. The cache of a window has room for them.
        cache: see `generate`. A cache that drops tokens needs tokens=1.

    Raises:
        ValueError: a layer that cannot decode, see `generative`.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> decoder = txf.generation.Decoder(model, tokens=3)
    >>> logits, state = decoder.prefill(np.array([[0, 5, 6], [7, 8, 9]]), length=16)
    >>> ids = ops.argmax(logits, axis=-1)[:, None]
    >>> logits, state = decoder.step(ids, state)  # one token of each row
    >>> logits, state = decoder.step(np.array([[4, 2, 3], [1, 1, 2]]), state)  # three in order
    >>> logits.shape
    (2, 3, 100)
    """

    def __init__(self, model: keras.Model, tokens: int = 1, cache: Any = None):
        if not is_functional(model):
            raise ValueError(f"`model` must be a functional keras.Model; received {short_repr(model)}.")
        kind, self._max_tokens = cache_kind(cache), checks.size("tokens", tokens)
        if self._max_tokens > 1 and not kind.keeps_all:
            raise ValueError(
                f"`tokens` must be 1 for a `cache` that drops tokens; received {self._max_tokens} and {kind}."
            )
        self._decoder = GraphDecoder(model, kind=kind)
        self._tokens = token_input(model, self._decoder.ids_name)

    def _token_ids(self, name, ids):
        checks.rank(name, ids, (2, "(batch, length)"))
        checks.token_ids(name, ids, self._tokens.vocab_size)
        if ids.shape[1] == 0:
            raise ValueError(f"`{name}` must have at least one token a row; received shape {tuple(ids.shape)}.")
        return ops.cast(ids, "int32")

    def prefill(self, inputs: Any, length: int, attention_mask: Any = None) -> tuple[Any, dict[str, Any]]:
        """Reads prompts.

        Args:
            inputs: token ids, int (B, P), padded on the left; or a dict of all inputs of the model by their names.
            length: L, the most columns of the prompts and the tokens after them.
            attention_mask: bool (B, P), True at real tokens; default: all tokens except the model's padding.

        Returns:
            Logits (B, V) of the next token, and the state.

        Raises:
            ValueError: inputs that differ from the model's, prompts longer than `length` or padded on the right.
        """
        ids_name, names = self._decoder.ids_name, set(self._decoder.inputs)
        inputs = dict(inputs) if isinstance(inputs, dict) else {ids_name: inputs}
        if not names <= set(inputs) <= names | set(self._decoder.feature_masks):
            raise ValueError(f"`inputs` must be {short_repr(sorted(names))}; received {short_repr(sorted(inputs))}.")
        inputs = {name: checks.tensor(name, x) for name, x in inputs.items()}
        ids = self._token_ids(ids_name, inputs[ids_name])
        prompt = checks.size("length", length) and ids.shape[1]
        if prompt is None or prompt > length:
            raise ValueError(
                f"`length` must be at least the length of the prompts; received {length} and {prompt} columns."
            )
        if attention_mask is None:
            attention_mask = real_tokens(ids, self._tokens.pad_id)
        else:
            attention_mask = checks.tensor("attention_mask", attention_mask)
            checks.mask("attention_mask", attention_mask, (2, "(batch, columns)"))
            if tuple(attention_mask.shape) != tuple(ids.shape):
                raise ValueError(
                    f"`attention_mask` must have the shape of the ids, {tuple(ids.shape)}; received "
                    f"{tuple(attention_mask.shape)}."
                )
        real = ops.cast(attention_mask, "bool")
        last = checks.concrete(real[:, -1])
        if last is not None and not last.all():
            raise ValueError(
                "`attention_mask` must be True in the last column: prompts are padded on the left; received "
                f"{short_repr(last.tolist())} there."
            )
        outputs, cache, constant = self._decoder.prefill(inputs, real)
        state = {
            "cache": self._padded(cache, batch_size(ids), prompt, length),
            "constant": constant,
            "attention_mask": ops.pad(real, ((0, 0), (0, length - prompt))),
            "column": ops.full((), prompt, "int32"),
        }
        return outputs["logits"], state

    def _padded(self, cache, rows, prompt, length):
        if self._max_tokens == 1:
            return self._decoder.pad(cache, length)
        shift, last = ops.zeros((rows,), "int32"), prompt + self._max_tokens - 2
        return self._decoder.move(cache, shift, last, length, self._max_tokens)

    def step(self, ids: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Reads the next tokens of each row.

        Args:
            ids: int (B, T), in their order, without padding. T must be known when a function is traced.
            state: the state of `prefill` or of another step.

        Returns:
            Logits (B, T, V) of the token after each of the tokens, and the new state.

        Raises:
            ValueError: more tokens than `tokens`, or more than `length` has room for. A compiled function does not know
                the number, and returns logits of NaN instead.
        """
        if not isinstance(state, dict) or not {"cache", "constant", "attention_mask", "column"} <= set(state):
            raise ValueError(f"`state` must come from `prefill` or from another step; received {short_repr(state)}.")
        ids, column, real = self._token_ids("ids", checks.tensor("ids", ids)), state["column"], state["attention_mask"]
        if None not in (ids.shape[0], real.shape[0]) and ids.shape[0] != real.shape[0]:
            raise ValueError(f"`ids` must have the {real.shape[0]} rows of the state; received {ids.shape[0]}.")
        tokens, length = ids.shape[1], real.shape[1]
        if tokens is None:
            raise ValueError(
                "`ids` must have a known number of tokens a row; received shape "
                f"{tuple(ids.shape)}. Trace a function for each number, without reduce_retracing."
            )
        end = column + tokens
        known = checks.concrete(end)
        room = self._max_tokens if known is None else min(self._max_tokens, length - int(known) + tokens)
        if tokens > room:
            raise ValueError(
                f"`ids` must have at most {room} tokens a row, by tokens={self._max_tokens} of the decoder and length="
                f"{length} of the state; received {tokens}."
            )
        columns = ops.arange(length, dtype="int32")
        real = ops.logical_or(real, ops.logical_and(columns >= column, columns < end))
        new = ops.ones_like(ids, "bool")
        outputs, cache = self._decoder.read(ids, real, new, column, state["cache"], state["constant"])
        logits = outputs["logits"] + nan_unless(end <= length, outputs["logits"].dtype)
        return logits, {**state, "cache": cache, "attention_mask": real, "column": end}
