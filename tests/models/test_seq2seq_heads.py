"""Classes and spans of an encoder-decoder: its states, on targets that are shifted by hand, and a head in NumPy."""

import numpy as np
import pytest
from keras import ops

import keras_txf as txf

SIZES = dict(num_layers=1, dim=8, num_heads=2, dropout=0.0)
IDS = np.array([[5, 2, 7, 8, 2, 4], [9, 6, 2, 0, 0, 0], [3, 5, 6, 7, 0, 0]])  # the end token is 2, padding 0
SHIFTED = {  # start token -> what the decoder reads
    3: np.array([[3, 5, 2, 7, 8, 2], [3, 9, 6, 2, 0, 0], [3, 3, 5, 6, 7, 0]]),
    None: np.array([[4, 5, 2, 7, 8, 2], [2, 9, 6, 2, 0, 0], [7, 3, 5, 6, 7, 0]]),
    0: np.array([[0, 5, 2, 7, 8, 2], [0, 9, 6, 2, 0, 0], [0, 3, 5, 6, 7, 0]]),
}
BUILD = txf.models.encoder_decoder_classifier


def states(model, start_id, **options):
    """The decoder's states of `encoder_decoder` with the weights of `model`, on targets that are shifted by hand."""
    pair = txf.models.encoder_decoder(11, 11, **SIZES, start_id=start_id, return_hidden_states=True, **options)
    known = {weight.path: weight for weight in model.weights}
    for weight in pair.weights:
        weight.assign(known[weight.path])
    found = pair({"source_ids": IDS, "target_ids": SHIFTED[start_id]})["decoder_hidden_states_1"]
    return ops.convert_to_numpy(found).astype("float64")


def dense(layer, x):
    return x @ ops.convert_to_numpy(layer.kernel).astype("float64") + ops.convert_to_numpy(layer.bias)


@pytest.mark.parametrize("start_id, end_id, places",
                         [(3, 2, [4, 2, 3]), (None, None, [5, 2, 3]), (0, 2, [4, 2, 3])])  # fmt: skip
def test_logits_come_from_the_state_at_the_last_end_token(start_id, end_id, places):
    model = BUILD(11, 3, **SIZES, start_id=start_id, end_id=end_id, head="tanh")
    pooled = states(model, start_id)[np.arange(3), places]
    hidden = np.tanh(dense(model.get_layer("head"), pooled))
    expected = dense(model.get_layer("logits"), hidden)
    np.testing.assert_allclose(ops.convert_to_numpy(model(IDS)), expected, atol=1e-5)


def test_spans_come_from_the_states_of_real_tokens():
    options = dict(position_encoding="learned", max_length=9, share_embeddings="tokens")
    model = BUILD(11, None, **SIZES, spans=True, start_id=3, **options)
    expected = np.where((IDS != 0)[..., None], dense(model.get_layer("logits"), states(model, 3, **options)), -32768)
    found = model(IDS)
    for name, column in (("start_logits", 0), ("end_logits", 1)):
        np.testing.assert_allclose(ops.convert_to_numpy(found[name]), expected[..., column], atol=1e-5)


@pytest.mark.parametrize("options, words", [
    (dict(num_classes=3, spans=True), "`num_classes` must be None with spans=True; received 3"),
    (dict(num_classes=None), "`num_classes` must be a positive integer; received None"),
    (dict(num_classes=3, end_id=11), "`end_id` must be"),
    (dict(num_classes=3, share_embeddings=None), "`share_embeddings` must be one of"),
    (dict(num_classes=3, decoder_options={"pad_id": 4}), "`decoder_options` must have no other `pad_id`"),
])  # fmt: skip
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        BUILD(11, **SIZES, **options)
