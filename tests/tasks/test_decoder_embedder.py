"""TextEmbedder on the body of a decoder: vectors of the last token, where texts end with the token of padding."""

import json

import keras
import numpy as np
import pytest
from chat_cases import tokenizer_folder

import keras_txf as txf
from keras_txf.text import from_checkpoint

TEXTS = ["a dog", "a dog sees two cats at the sea", "x"]


def write(folder, extra=5, **config):
    """A folder as Qwen 3's embedder: a decoder, a tokenizer that ends texts with its padding, pooling of the last."""
    tokenizer_folder(folder, pad_token="</s>", eos_token="</s>")
    path = folder / "tokenizer.json"
    definition = json.loads(path.read_text(encoding="utf-8"))
    end = next(token["id"] for token in definition["added_tokens"] if token["content"] == "</s>")
    special = {"</s>": {"id": "</s>", "ids": [end], "tokens": ["</s>"]}}
    one, other = ({"Sequence": {"id": id, "type_id": 0}} for id in "AB")
    token = {"SpecialToken": {"id": "</s>", "type_id": 0}}
    definition["post_processor"] = {
        "type": "TemplateProcessing", "single": [one, token], "pair": [one, token, other, token],
        "special_tokens": special,
    }  # fmt: skip
    path.write_text(json.dumps(definition), encoding="utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    size = from_checkpoint(folder).vocab_size + extra
    values = {
        "model_type": "llama", "architectures": ["LlamaModel"], "vocab_size": size, "hidden_size": 12,
        "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20, "max_position_embeddings": 64,
        "eos_token_id": end, **config,
    }  # fmt: skip
    keras.utils.set_random_seed(5)
    model = txf.models.encoder(
        size, 2, 12, 3, causal=True, intermediate_dim=20, gated=True, activation="silu", use_bias=False, norm="rms",
        norm_epsilon=1e-6, norm_placement="pre", position="rotary", scale_embedding=False, pad_id=None,
    )  # fmt: skip
    txf.checkpoints.save(model, folder, values)
    return folder, end


@pytest.fixture(params=[{}, {"pad_token_id": "end"}], ids=["no padding", "padding ends texts"], scope="module")
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("decoder")
    made, end = write(path / "first")
    return write(path / "second", pad_token_id=end) if request.param else (made, end)


@pytest.fixture(scope="module")
def task(folder):
    return txf.tasks.TextEmbedder.from_checkpoint(folder[0])


@pytest.mark.drawn(2)
def test_texts_of_a_batch_have_the_vectors_that_each_has_alone(folder, task):
    path, end = folder
    together, alone = task.encode(TEXTS), np.stack([task.encode(text) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    # The state of the end token, without any padding and without the package's pooling.
    body = txf.checkpoints.load(path, pad_id=None)
    for text, vector in zip(TEXTS, together):
        ids = task.tokenizer.tokenize([text]).to_list()[0] + [end]
        state = keras.ops.convert_to_numpy(body(np.array([ids])))[0, -1]
        np.testing.assert_allclose(vector, state / np.linalg.norm(state), atol=1e-5)


@pytest.mark.drawn(2)
def test_it_is_saved_with_its_padding(task, tmp_path):
    for format in ("huggingface", "keras"):
        task.save(tmp_path / format, format=format)
    again = txf.tasks.TextEmbedder.from_checkpoint(tmp_path / "huggingface")
    for other in (again, txf.tasks.TextEmbedder.load(tmp_path / "keras")):
        np.testing.assert_allclose(other.encode(TEXTS), task.encode(TEXTS), atol=1e-6)
    with pytest.raises(ValueError, match="`export` needs a model with the padding of its tokenizer"):
        task.export(tmp_path / "served")


def test_a_vocabulary_without_a_token_to_spare_needs_the_caller_s(tmp_path):
    path, _ = write(tmp_path / "full", extra=0)
    with pytest.raises(ValueError, match="`pad_id` must be a token that no text has"):
        txf.tasks.TextEmbedder.from_checkpoint(path)
    task = txf.tasks.TextEmbedder.from_checkpoint(path, pad_id=0)
    np.testing.assert_allclose(task.encode(TEXTS)[2], task.encode("x"), atol=1e-5)
