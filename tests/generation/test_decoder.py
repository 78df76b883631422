"""`Decoder`: its logits, for prompts and for one or several tokens, equal the model's logits for the whole sequence."""

import keras
import numpy as np
import pytest

import keras_txf as txf

IDS = np.array([[5, 3, 8, 2, 9, 4, 6, 7], [7, 2, 4, 4, 1, 3, 8, 8]], "int32")


def models():
    keras.utils.set_random_seed(2)
    yield txf.models.decoder_generator(10, 2, 16, 2, position="rotary", window=3)
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = keras.layers.Embedding(10, 16)(ids)
    x = keras.layers.Conv1D(16, 3, padding="causal")(keras.layers.GRU(16, return_sequences=True)(x))
    yield keras.Model(ids, keras.layers.Dense(10)(txf.layers.EncoderBlock(2, causal=True)(x)))


@pytest.mark.parametrize("number", range(2))
def test_steps_of_one_and_of_several_tokens(number):
    model = [*models()][number]
    decoder = txf.generation.Decoder(model, tokens=3)
    whole = keras.ops.convert_to_numpy(model(IDS))
    padded = np.pad(IDS[:, :3], ((0, 0), (2, 0)))
    logits, state = decoder.prefill(padded, length=10, attention_mask=padded > 0)
    found = [logits[:, None]]
    for first, last in ((3, 4), (4, 7), (7, 8)):
        logits, state = decoder.step(IDS[:, first:last], state)
        found.append(logits)
    found = np.concatenate([keras.ops.convert_to_numpy(x) for x in found], axis=1)
    np.testing.assert_allclose(found, whole[:, 2:], atol=1e-5)
    with pytest.raises(ValueError, match="at most 0 tokens a row, by tokens=3 of the decoder and length=10"):
        decoder.step(IDS[:, :1], state)
    with pytest.raises(ValueError, match="`ids` must have the 2 rows of the state; received 1"):
        decoder.step(IDS[:1, :1], state)
    with pytest.raises(ValueError, match=r"`attention_mask` must have the shape of the ids, \(2, 8\)"):
        decoder.prefill(IDS, length=10, attention_mask=IDS[:, :3] > 0)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow traces for unknown lengths")
def test_a_graph_for_an_unknown_number_of_tokens_raises_an_error():
    import tensorflow as tf

    decoder = txf.generation.Decoder(next(models()), tokens=3)
    _, state = decoder.prefill(IDS[:, :3], length=10)
    step = tf.function(decoder.step).get_concrete_function
    with pytest.raises(ValueError, match=r"`ids` must have a known number of tokens a row; received shape \(2, None\)"):
        step(tf.TensorSpec((2, None), "int32"), state)
