"""The functions that `export` traces, called directly: tags, scores of pairs and seeds."""

import drawing
import keras
import numpy as np
import pytest
from refusals import refused
from text_cases import learnt

import keras_txf as txf
from keras_txf.text import serving
from keras_txf.text.lazy_imports import tf

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports from TensorFlow")
TAGS = ["O", "B-X", "I-X"]


def test_a_word_has_the_tag_of_its_first_token():
    tokenizer = learnt("unigram", length=12)
    model = drawing.randomize(txf.models.token_classifier(tokenizer.vocab_size, 3, 1, 16, 2), seed=1)
    found = serving.tagger(model, tokenizer, TAGS)(tf.constant(["foxes", ""]))
    probabilities = drawing.array(keras.ops.softmax(model(tokenizer(["foxes"]))))[0, 0]
    assert found["word"].numpy().tolist() == [[b"foxes"], [b""]]
    assert found["tag"].numpy().tolist() == [[TAGS[probabilities.argmax()].encode()], [b""]]
    drawing.assert_same(found["score"].numpy(), [[probabilities.max()], [0]])


def test_a_pair_has_a_score():
    tokenizer = learnt("unigram", start="<s>", end="</s>")
    options = dict(token_type_ids=True, token_types=2)
    model = drawing.randomize(txf.models.encoder_classifier(tokenizer.vocab_size, 1, 1, 16, 2, **options), seed=1)
    found = serving.pair_classifier(model, tokenizer, separator="</s>")(
        tf.constant(["dogs", "a"]), tf.constant(["foxes", "b"])
    )
    for index, (first, second) in enumerate([("dogs", "foxes"), ("a", "b")]):
        first, second = ([*tokenizer.tokenize(text).numpy(), tokenizer.token_to_id("</s>")] for text in (first, second))
        ids = np.array([[tokenizer.token_to_id("<s>"), *first, *second]])
        types = np.array([[0] * (len(first) + 1) + [1] * len(second)])
        logits = drawing.array(model({"token_ids": ids, "token_type_ids": types}))
        drawing.assert_same(found["logits"].numpy()[index], logits[0])
        drawing.assert_same(found["score"].numpy()[index], 1 / (1 + np.exp(-logits[0, 0])))


def test_texts_are_padded_to_the_longest_of_a_request_where_the_model_hides_padding():
    """100,000 columns would take the memory of the machine. A model by hand may see padding, and gets all of it."""
    texts, tokenizer = tf.constant(["foxes", "a"]), learnt("unigram", length=100_000)
    model = drawing.randomize(txf.models.encoder_classifier(tokenizer.vocab_size, 3, 1, 16, 2), seed=1)
    found = serving.classifier(model, tokenizer)(texts)["logits"]
    drawing.assert_same(found.numpy()[1:], drawing.array(model(learnt("unigram")(["a"]).to_tensor())))

    tokenizer = learnt("unigram", length=7)
    ids = keras.Input((None,), dtype="int32")
    x = keras.ops.mean(txf.layers.PositionalEmbedding(tokenizer.vocab_size, 8)(ids), axis=1)
    model = keras.Model(ids, keras.layers.Dense(3, name="logits")(x))
    drawing.assert_same(
        serving.classifier(model, tokenizer)(texts)["logits"].numpy(), drawing.array(model(tokenizer(texts)))
    )


def test_seeds():
    fixed, other = serving._seed(3), serving._seed(None)
    assert fixed().numpy().tolist() == fixed().numpy().tolist() and fixed().shape == other().shape == (2,)
    assert other().numpy().tolist() != other().numpy().tolist()


def test_an_export_leaves_other_folders_alone(tmp_path):
    model, tokenizer = txf.models.encoder_classifier(260, 2, 1, 8, 2), txf.text.ByteTokenizer(length=4)
    (tmp_path / "mine").write_text("mine")
    for overwrite, words in (
        (True, "holds no SavedModel: remove it yourself"),
        (False, "exists: overwrite=True replaces"),
    ):
        refused(lambda: txf.text.export(model, tokenizer, tmp_path, overwrite=overwrite), [words])
    assert (tmp_path / "mine").read_text() == "mine"
