"""`summary` names masks after inputs, and is the same after `generate`, for a second model and for a loaded one."""

import importlib.util

import keras
import pytest

import keras_txf as txf

SIZES = dict(num_layers=1, dim=8, num_heads=2)
MODELS = {
    "encoder": (lambda: txf.models.encoder(11, **SIZES), ["padding_mask"]),
    "masked": (lambda: txf.models.masked_language_model(11, **SIZES), ["padding_mask", "(None, None, 8)"]),
    "generator": (lambda: txf.models.decoder_generator(11, **SIZES), ["tied_logits", "(None, None, 8)"]),
    "pair": (lambda: txf.models.encoder_decoder(11, 12, **SIZES), ["source_padding_mask", "tied_logits"]),
    "shared": (lambda: txf.models.encoder_decoder(11, 11, share_embeddings="tokens", start_id=2, **SIZES),
               ["source_padding_mask_2", "source_joined_padding_mask", "encoder_embedded"]),
    "recurrent": (lambda: txf.models.recurrent_encoder_decoder(11, 12, 1, 8), ["source_padding_mask"]),
}  # fmt: skip


def summary(model):
    lines = []
    model.summary(line_length=150, print_fn=lines.append)
    return "\n".join(lines).partition("\n")[2]  # without the name of the model, which has a number


@pytest.mark.long
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("make, words", MODELS.values(), ids=MODELS)
def test_a_summary_is_the_same_each_time(make, words, tmp_path):
    model = make()
    first = summary(model)
    assert all(word in first for word in words) and "not_equal" not in first
    if importlib.util.find_spec("pydot"):
        assert keras.utils.model_to_dot(model, show_shapes=True).get_nodes()
    if hasattr(model, "generate"):
        model.generate([[3, 4]], max_new_tokens=2)
    assert summary(model) == first == summary(make())
    model.save(tmp_path / "model.keras")
    assert summary(keras.models.load_model(tmp_path / "model.keras")) == first
