"""Stop strings end texts and rows of ids, in all forms of an answer."""

import functools

import numpy as np
import pytest

import keras_txf as txf
from keras_txf.generation import Beam, Sampling

LINES = ["größer über äöü the cat sat", "ßüß äöü größe on the mat"] * 8
ASKED = ["the cat", "über äöü größe on"]
OPTIONS = dict(max_new_tokens=12, sampler=Sampling(2.0), seed=3)
TOKENIZERS = {
    "bytes": functools.partial(txf.text.ByteTokenizer, start="<pad>"),
    "byte pairs": functools.partial(txf.text.BytePairTokenizer.train, LINES, 280),
    "pieces": functools.partial(txf.text.SentencePieceTokenizer.train, LINES, 40, start="<s>"),
    "words": functools.partial(txf.text.WordPieceTokenizer.train, LINES, 60, start="[CLS]"),
}


@functools.cache
def task(tokenizer, name="TextGenerator"):
    tokenizer = TOKENIZERS[tokenizer](end="[SEP]" if tokenizer == "words" else "</s>")
    build, sides = ("decoder_generator", 1) if name == "TextGenerator" else ("encoder_decoder", 2)
    model = getattr(txf.models, build)(*[tokenizer.vocab_size] * sides, num_layers=1, dim=8, num_heads=2, dropout=0.0)
    return getattr(txf.tasks, name)(model, tokenizer)


@functools.cache
def free_texts(tokenizer, name):
    return task(tokenizer, name).generate(ASKED, **OPTIONS)


@pytest.mark.parametrize(
    "length", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name, tokenizer", [
    ("TextGenerator", "byte pairs"), ("TextGenerator", "pieces"),
    *(pytest.param(name, tokenizer, marks=pytest.mark.slow) for name in ("TextGenerator", "TextToText")
      for tokenizer in TOKENIZERS if name == "TextToText" or tokenizer in ("bytes", "words")),
])  # fmt: skip
def test_a_text_ends_before_the_first_stop_string(tokenizer, name, length, uncompiled):
    generate, free = functools.partial(task(tokenizer, name).generate, ASKED, **OPTIONS), free_texts(tokenizer, name)
    random = np.random.default_rng(length)
    parts = [part[random.integers(len(part)) :][:length] for text in free for part in text.split("\ufffd") if part]
    stops = random.permutation(parts)[:2].tolist()
    ends = [min([text.find(stop) for stop in stops if stop in text], default=len(text)) for text in free]
    expected = [text[:end] for text, end in zip(free, ends)]
    assert generate(stop_strings=stops) == expected != free
    pieces = generate(stop_strings=tuple(stops), stream=True)
    assert ["".join(row) for row in zip(*pieces)] == expected
    if name == "TextGenerator" and length == 3:
        whole, cut = (generate(return_prompt=True, stop_strings=strings) for strings in (None, stops))
        assert cut == [text[: len(text) - len(all_) + len(kept)] for text, all_, kept in zip(whole, free, expected)]


@pytest.mark.slow
def test_a_row_of_ids_ends_with_the_token_that_ends_the_stop_string(uncompiled):
    generator = task("byte pairs")
    model, tokenizer, prompts = generator.model, generator.tokenizer, [[5, 30, 8], [70]]
    options = dict(
        max_new_tokens=20, sampler=Sampling(), seed=1, num_return_sequences=3, padded=False, return_scores=True
    )
    free = model.generate(prompts, **options)
    new = [row[len(prompt) :] for prompt, rows in zip(prompts, free.ids) for row in rows]
    stop = tokenizer.detokenize(new[0][9:12]).replace("\ufffd", "")
    lengths = [next((n for n in range(1, 21) if stop in tokenizer.detokenize(row[:n])), 20) for row in new]
    assert min(lengths) < 20
    for reader in (tokenizer, tokenizer.detokenize, lambda ids: tokenizer.detokenize(ids)):
        found = model.generate(prompts, stop_strings=stop, tokenizer=reader, **options)
        assert [len(row) for rows in found.log_probs for row in rows] == lengths
    for rows, all_rows, prompt in ((found.ids, free.ids, True), (found.log_probs, free.log_probs, False)):
        for index in range(6):
            length = lengths[index] + prompt * len(prompts[index // 3])
            assert rows[index // 3][index % 3] == all_rows[index // 3][index % 3][:length]
    np.testing.assert_allclose(found.scores.ravel(), [sum(row) for rows in found.log_probs for row in rows], rtol=1e-5)


@pytest.mark.parametrize("options, message", [
    (dict(stop_strings=[""]), "`stop_strings` must be a string or a list of strings, none of them empty"),
    (dict(stop_strings=3), "`stop_strings` must be .*received 3"), (dict(stop_strings="\ufffd"), "`stop_strings` must"),
    (dict(stop_strings=["\ud800"]), "`stop_strings` must"), (dict(tokenizer=len), "`tokenizer` must not be given"),
    (dict(stop_strings="a", sampler=Beam(2)), "`stop_strings` does not go with a beam search.*received"),
])  # fmt: skip
def test_bad_stop_strings(options, message):
    with pytest.raises(ValueError, match=message):
        task("bytes").generate("a", **options)


@pytest.mark.parametrize("options, message", [
    (dict(stop_strings="a"), "`tokenizer` must be given with `stop_strings`"),
    (dict(tokenizer=txf.text.ByteTokenizer), "`tokenizer` must be a tokenizer"), (dict(tokenizer=3), "received 3"),
    (dict(stop_strings="a", tokenizer=list), "`tokenizer` must be"),
    (dict(stop_strings="a", tokenizer=lambda ids: ids), "`tokenizer` must return a string"),
])  # fmt: skip
def test_bad_tokenizers(options, message, uncompiled):
    with pytest.raises(ValueError, match=message):
        task("bytes").model.generate([[5]], 2, **options)
