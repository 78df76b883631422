"""The decode loop: read the prompt once, then one token after the other, until every row has stopped.

Legend: B batch, P prompt length, N new tokens, L = P + N columns, V vocabulary.
"""

import keras
from keras import ops


def make_decoder(prefill, step, ids_name, pad_id, choose):
    """The loop as one function of tensors, ready to be compiled.

    Args:
        prefill, step: the two models of `models.stepping`.
        ids_name: the name of their token ids.
        pad_id: of the model, or None.
        choose: function of logits, float32 (B, V), and a seed for `keras.random`, that returns ids (B,).

    Returns:
        Function of `inputs`, the dict that `prefill` takes; `tokens`, int (B, N), full of what stands
        after the end; `limit`, int (), how many of the N are wanted; `stop_ids`, int (any,); `seed`,
        int (2,). It returns the tokens, int (B, N), and how many of them each row has, int (B,).
    """
    changing = set(step.output) - {"logits"}
    constant = {tensor.name for tensor in step.inputs} - changing - {ids_name, "visible", "index"}

    def decode(inputs, tokens, limit, stop_ids, seed):
        read = dict(prefill(inputs, training=False))
        fixed = {name: {**inputs, **read}[name] for name in constant}
        prompt_length = ops.shape(inputs[ids_name])[1]
        after_the_end = tokens[:, 0]

        def append(logits, count, tokens, visible, lengths, running):
            token = ops.cast(choose(ops.cast(logits, "float32"), StepSeed(seed, count)), "int32")
            token = ops.where(running, token, after_the_end)
            real = ops.ones_like(running) if pad_id is None else ops.not_equal(token, pad_id)
            tokens = ops.slice_update(tokens, (0, count), token[:, None])
            visible = ops.slice_update(visible, (0, prompt_length + count), real[:, None])
            lengths = lengths + ops.cast(running, "int32")
            stopped = ops.any(ops.equal(token[:, None], stop_ids[None]), axis=1)
            return token, count + 1, tokens, visible, lengths, ops.logical_and(running, ops.logical_not(stopped))

        def wanted(token, count, tokens, visible, lengths, running, cache):
            return ops.logical_and(count < limit, ops.any(running))

        def body(token, count, tokens, visible, lengths, running, cache):
            column = ops.reshape(prompt_length + count - 1, (1,))
            place = {ids_name: token[:, None], "visible": visible, "index": column}
            outputs = dict(step({**fixed, **cache, **place}, training=False))
            state = append(outputs.pop("logits"), count, tokens, visible, lengths, running)
            return *state, outputs

        rows = ops.zeros_like(after_the_end)
        state = append(read["logits"], ops.zeros((), "int32"), tokens, inputs["visible"], rows, rows == 0)
        state = ops.while_loop(wanted, body, (*state, {name: read[name] for name in changing}))
        return state[2], state[4]

    return decode


class StepSeed(keras.random.SeedGenerator):
    """The seed of one step, as Keras takes it: a tensor, so that a compiled loop has no state to keep."""

    def __init__(self, seed, count):
        self.value = seed + ops.cast(ops.stack([ops.zeros_like(count), count]), seed.dtype)

    def next(self, ordered=True):
        return self.value
