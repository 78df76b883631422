"""TextEmbedder on the body of a decoder: the vector of the last token, when texts end with the padding token."""

import json

import folders
import keras
import numpy as np
import pytest
import tokenizers
from chat_cases import tokenizer_folder

import keras_txf as txf

TEXTS = ["a dog", "a dog sees two cats at the sea", "x"]


def write(folder, extra=5, **config):
    """A folder like Qwen 3's embedder: a decoder, a tokenizer that ends texts with padding, last-token pooling."""
    tokenizer_folder(folder, pad_token="</s>", eos_token="</s>")
    kernel = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = kernel.token_to_id("</s>")
    template = {"single": "$A </s>", "pair": "$A </s> $B </s>", "special_tokens": [("</s>", end)]}
    kernel.post_processor = tokenizers.processors.TemplateProcessing(**template)
    kernel.save(str(folder / "tokenizer.json"))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    sizes = {"vocab_size": kernel.get_vocab_size() + extra, "max_position_embeddings": 64}
    values = folders.LLAMA | {"architectures": ["LlamaModel"], **sizes}
    arrays = {name.removeprefix("model."): array * 0.05 for name, array in folders.tensors(values).items()}
    del arrays["lm_head.weight"]
    folders.write(folder, values | {"eos_token_id": end, **config}, arrays)
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
    # The state of the end token, without padding and without the package's pooling.
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
