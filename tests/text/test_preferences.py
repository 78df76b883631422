"""Examples of preferences: the bytes of prompts and answers, and a policy that learns from the batches."""

import keras
import numpy as np
import pytest
from refusals import refused

import keras_txf as txf
from keras_txf.text.lazy_imports import tf

COLUMNS = (["ab", "x", ""], ["c", "yzzz", "q"], ["de", "w", "é"])
TEMPLATE = txf.text.ChatTemplate(
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)
BYTES = txf.text.ByteTokenizer(end="</s>")


def row_of(prompt, answer, template, width):
    """The ids of a padded row, and the mask of its answer, as lists."""
    before, end = (prompt, [BYTES.token_to_id("</s>")]) if template is None else (f"u{prompt}a", [])
    before, after = ([byte + 3 for byte in text.encode()] for text in (before, answer))
    padding = [0] * (width - len(before + after + end))
    return before + after + end + padding, [False] * len(before) + [True] * len(after + end) + [False] * len(padding)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("template, in_memory", [(None, False), (TEMPLATE, True)])
def test_rows_are_the_prompt_with_each_answer(template, in_memory):
    data = COLUMNS if in_memory else tf.data.Dataset.from_tensor_slices(COLUMNS)
    found = txf.text.preferences(data, BYTES, template).as_numpy_iterator()
    longest = [5, 6, 3] if template is None else [6, 7, 4]
    for pair, width, prompt, *answers in zip(found, longest, *COLUMNS, strict=True):
        ids, masks = zip(*(row_of(prompt, answer, template, width) for answer in answers))
        assert pair["token_ids"].tolist() == [*ids] and pair["answer_mask"].tolist() == [*masks]
        assert (pair["token_ids"].dtype, pair["answer_mask"].dtype) == ("int32", "bool")


@pytest.mark.slow
def test_long_rows_are_truncated_and_a_pair_without_an_answer_is_left_out():
    columns = (["x", "yyyyy"], ["pq", "p"], ["rst", "r"])
    for side, expected in (("right", ["xpq", "xrs"]), ("left", ["pq", "st", "yp", "yr"])):
        tokenizer = txf.text.ByteTokenizer(end="</s>", truncation_side=side)
        pairs = [*txf.text.preferences(columns, tokenizer, max_length=3).as_numpy_iterator()]
        assert [tokenizer.detokenize(ids) for pair in pairs for ids in pair["token_ids"]] == expected
    nothing_before = (["", "a"], ["p", "q"], ["rs", ""])  # no model predicts "p", and an empty answer has no token
    assert not [*txf.text.preferences(nothing_before, txf.text.ByteTokenizer())]


@pytest.mark.slow
def test_a_policy_learns_from_batches():
    policy = txf.models.decoder_generator(BYTES.vocab_size, 1, 8, 2, dropout=0.0)
    pairs = txf.training.preference_model(policy)
    data = txf.text.counted(txf.text.preferences(COLUMNS, BYTES))
    reference = pairs.predict(data.padded_batch(2), verbose=0)
    assert reference[..., 1].tolist() == [[2, 3], [5, 2], [1, 2]]  # with the end, without a row's first token
    batches = tf.data.Dataset.zip(data, tf.data.Dataset.from_tensor_slices(reference)).padded_batch(2)
    pairs.compile(keras.optimizers.Adam(0.01), txf.training.PreferenceLoss())
    losses = pairs.fit(batches, epochs=2, shuffle=False, verbose=0).history["loss"]
    assert losses[1] < losses[0] and pairs.evaluate(batches, verbose=0) < np.log(2)


def test_other_data_raises_value_errors():
    refused(lambda: txf.text.preferences((["a"], ["b"]), BYTES), ["prompt, chosen, rejected"])
    refused(lambda: txf.text.preferences(COLUMNS, "bytes"), ["`tokenizer`", "'bytes'"])
    refused(lambda: txf.text.preferences(COLUMNS, BYTES, "template"), ["`template` must be a ChatTemplate or None"])
