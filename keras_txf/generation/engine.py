"""Generation with a cache, compiled: what `generate` of every generative model runs on."""

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.generation.compilers import compiled
from keras_txf.generation.decoding import make_decoder
from keras_txf.generation.samplers import get_sampler


class Engine:
    """The decode loop of one model, compiled once for each sampler and each bucket of lengths.

    Args:
        prefill, step: the model's two functional models, see `models.stepping`.
        ids_name: the name of their token ids.
        pad_id: of the model, or None.
    """

    def __init__(self, prefill, step, ids_name, pad_id):
        self.prefill, self.step = prefill, step
        self.ids_name, self.pad_id = ids_name, pad_id
        self._decoders = {}

    def generate(self, prompts, max_new_tokens, sampler, stop_ids, seed, **inputs):
        """Continues each prompt.

        Args:
            prompts: list of lists of ids, none empty.
            max_new_tokens: at most this many tokens for each.
            sampler: see `samplers`.
            stop_ids: an id or several; a row ends with the first it produces.
            seed: None draws one.
            inputs: what else the prefill model takes.

        Returns:
            The new tokens, a list of lists.
        """
        checks.positive_integer("max_new_tokens", max_new_tokens)
        sampler = get_sampler(sampler)
        if sampler not in self._decoders:
            decoder = make_decoder(self.prefill, self.step, self.ids_name, self.pad_id, sampler)
            self._decoders[sampler] = compiled(decoder, self.prefill.variables)
        width, new = bucket(max(map(len, prompts))), bucket(max_new_tokens)
        ids, visible = left_padded(prompts, width, new, self.pad_id)
        stop_ids = np.atleast_1d([] if stop_ids is None else stop_ids).astype("int32")
        stop_ids = np.concatenate([stop_ids, np.full(bucket(len(stop_ids), 4) - len(stop_ids), -1, "int32")])
        arguments = (
            {**inputs, self.ids_name: ids, "visible": visible},
            np.full((len(prompts), new), self.pad_id or 0, "int32"),
            np.array(max_new_tokens, "int32"),
            stop_ids,
            keras.random.SeedGenerator(seed).state.value,
        )
        results = self._decoders[sampler](*keras.tree.map_structure(ops.convert_to_tensor, arguments))
        tokens, lengths = map(ops.convert_to_numpy, results)
        return [row[:length].tolist() for row, length in zip(tokens, lengths)]


def left_padded(prompts, width, new, pad_id):
    """Ids (B, width), padded on the left, and where they are real, (B, width + new)."""
    ids = np.full((len(prompts), width), pad_id or 0, "int32")
    visible = np.zeros((len(prompts), width + new), "bool")
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = prompt
        visible[row, width - len(prompt) : width] = [token != pad_id for token in prompt]  # a start may be padding
    return ids, visible


def bucket(length, smallest=32):
    """The next of a few lengths, at most a quarter above: a compiled function serves them all."""
    step = max(smallest, 2 ** (int(length).bit_length() - 3))
    return max(1, -(-length // step)) * step
