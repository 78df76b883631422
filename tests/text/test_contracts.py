"""The contract of every tokenizer: shapes, options, special tokens, tf.data, files."""

import keras
import numpy as np
import pytest
from text_cases import LEARN, START_AND_END, learnt

import keras_txf as txf
from keras_txf.text.lazy_imports import tf

TEXTS = ["The fox sleeps.", "", "dogs", "läuft die Straße 狗 和"]
every_kind = pytest.mark.parametrize("kind", LEARN)
on_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="models with strings need TensorFlow"
)


def rows(kind, texts=TEXTS):
    """The ids of each text, tokenized alone."""
    return [learnt(kind).tokenize(text).numpy().tolist() for text in texts]


def array(tensor):
    return keras.ops.convert_to_numpy(tensor)


@every_kind
def test_ids_of_any_shape(kind):
    tokenizer, ids = learnt(kind), rows(kind)
    assert ids[0] and ids[1] == [] and all(row for row in ids[2:])
    assert tokenizer.tokenize(TEXTS).to_list() == ids
    assert tokenizer.tokenize(np.array(TEXTS)).to_list() == ids
    assert tokenizer.tokenize([]).to_list() == []
    assert tokenizer.tokenize([TEXTS[:2], TEXTS[2:]]).to_list() == [ids[:2], ids[2:]]
    assert tokenizer.tokenize(tf.reshape(tf.constant(TEXTS), (1, 2, 2))).to_list() == [[ids[:2], ids[2:]]]
    assert tokenizer.tokenize([TEXTS[:1], [], TEXTS[1:]]).to_list() == [ids[:1], [], ids[1:]]
    assert tokenizer.tokenize(TEXTS).dtype == tf.int32


@every_kind
def test_text_of_any_shape(kind):
    tokenizer = learnt(kind)
    ids = tokenizer.tokenize(TEXTS)
    texts = tokenizer.detokenize(ids)
    assert [tokenizer.tokenize(text).numpy().tolist() for text in texts] == ids.to_list()
    assert tokenizer.detokenize(ids.to_list()) == texts
    assert tokenizer.detokenize([ids.to_list()[:1], [], ids.to_list()[1:]]) == [texts[:1], [], texts[1:]]
    assert [tokenizer.detokenize(row) for row in ids.to_list()] == texts
    padded = learnt(kind, length="longest")(TEXTS)
    assert tokenizer.detokenize(padded) == texts  # a tensor of the backend
    assert tokenizer.detokenize(array(padded)[None]) == [texts]


@every_kind
@pytest.mark.parametrize("padding_side, truncation_side", [("right", "left"), ("left", "right")])
def test_length_start_and_end(kind, padding_side, truncation_side):
    start, end = START_AND_END[kind]
    options = dict(start=start, end=(end, end), padding_side=padding_side, truncation_side=truncation_side)
    tokenizer = learnt(kind, **options, length=7)
    first, last = tokenizer.token_to_id(start), tokenizer.token_to_id(end)
    expected = []
    for row in rows(kind):
        row = [first, *(row[:4] if truncation_side == "right" else row[-4:]), last, last]
        padding = [tokenizer.pad_id] * (7 - len(row))
        expected.append(padding + row if padding_side == "left" else row + padding)
    found = tokenizer(TEXTS)
    assert keras.ops.is_tensor(found) and array(found).dtype == "int32"
    assert array(found).tolist() == expected
    assert array(tokenizer([TEXTS])).tolist() == [expected]
    assert [array(tokenizer(text)).tolist() for text in TEXTS] == expected
    assert tokenizer([TEXTS[:1], TEXTS[1:]]).to_list() == [expected[:1], expected[1:]]
    assert learnt(kind, start=start)(TEXTS).to_list() == [[first, *row] for row in rows(kind)]
    longest = max(map(len, rows(kind)))
    assert array(learnt(kind, length="longest")(TEXTS)).shape == (len(TEXTS), longest)


@every_kind
def test_vocabulary(kind):
    tokenizer = learnt(kind)
    tokens = [tokenizer.id_to_token(id) for id in range(tokenizer.vocab_size)]
    assert [tokenizer.token_to_id(token) for token in tokens] == list(range(tokenizer.vocab_size))
    assert tokenizer.pad_id == 0 == tokenizer.special_tokens[tokens[0]]
    assert tokenizer.unk_id is None or tokens[tokenizer.unk_id] in tokenizer.special_tokens


@every_kind
def test_special_tokens_in_text(kind):
    plain, keep = learnt(kind), learnt(kind, special_tokens_in_text="keep")
    special = [token for token in plain.special_tokens if plain.special_tokens[token] != plain.unk_id]
    text = "The fox " + "".join(special) + "dogs" + " ".join(special)
    escaped = plain.tokenize(text).numpy().tolist()
    assert not set(escaped) & {plain.special_tokens[token] for token in special}
    ids = keep.tokenize([text, "fox", *special]).to_list()
    special_ids = [plain.special_tokens[token] for token in special]
    assert [id for id in ids[0] if keep.id_to_token(id) in special] == special_ids * 2
    assert ids[1] == plain.tokenize("fox").numpy().tolist()
    assert ids[2:] == [[id] for id in special_ids]
    shown = keep.detokenize(ids[0], skip_special_tokens=False)
    assert keep.tokenize(shown).numpy().tolist() == ids[0]
    assert not any(token in keep.detokenize(ids[0]) for token in special)
    damaged = [b"fox\xffdog", b"\xff\xfe fox \xff"]
    assert keep.tokenize(damaged).to_list() == plain.tokenize(damaged).to_list()


@every_kind
def test_config(kind):
    options = dict(length=5, start=START_AND_END[kind][0], special_tokens_in_text="keep", padding_side="left")
    tokenizer = learnt(kind, **options)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(tokenizer))
    assert type(again) is type(tokenizer)
    assert again.get_config() == tokenizer.get_config()
    assert array(again(TEXTS)).tolist() == array(tokenizer(TEXTS)).tolist()
    assert again.special_tokens == tokenizer.special_tokens


@pytest.mark.slow
@every_kind
def test_in_a_dataset(kind):
    ragged, dense = learnt(kind), learnt(kind, length=6)
    texts = tf.data.Dataset.from_tensor_slices(TEXTS)
    assert [ids.numpy().tolist() for ids in texts.map(ragged)] == rows(kind)
    batch = next(iter(texts.batch(3).map(ragged)))
    assert batch.to_list() == rows(kind)[:3]
    batches = texts.batch(2).map(dense)
    assert batches.element_spec.shape == (None, 6)
    assert np.concatenate([ids.numpy() for ids in batches]).tolist() == array(dense(TEXTS)).tolist()
    back = next(iter(texts.batch(4).map(ragged).map(ragged.detokenize))).numpy()
    assert [text.decode() for text in back] == ragged.detokenize(ragged.tokenize(TEXTS))
    unknown = tf.function(dense, input_signature=[tf.TensorSpec([None, None], tf.string)])(tf.constant([TEXTS]))
    assert unknown.numpy().tolist() == [array(dense(TEXTS)).tolist()]


@on_tensorflow
@pytest.mark.drawn(3)
@every_kind
def test_in_a_model_and_its_file(kind, tmp_path):
    tokenizer = learnt(kind, length=6)
    text = keras.Input((), dtype="string")
    hidden = txf.layers.PositionalEmbedding(tokenizer.vocab_size, 4)(tokenizer(text))
    model = keras.Model(text, keras.layers.GlobalAveragePooling1D()(hidden))
    assert model.layers[1].output.shape == (None, 6) and model.layers[1].output.dtype == "int32"
    expected = model.predict(tf.constant(TEXTS), verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(tf.constant(TEXTS), verbose=0), expected)


@on_tensorflow
def test_a_new_seed_takes_no_kernel_away():
    tokenizer = learnt("unigram")
    before = tokenizer.tokenize(TEXTS).to_list()
    keras.utils.set_random_seed(3)
    assert tokenizer.tokenize(TEXTS).to_list() == before


@on_tensorflow
def test_ragged_into_a_model():
    tokenizer = learnt("characters")
    text = keras.Input((), dtype="string")
    ids = tokenizer(text)
    assert ids.shape == (None, None) and ids.ragged
    lengths = keras.layers.Lambda(lambda ids: ids.row_lengths(), output_shape=())(ids)
    assert keras.Model(text, lengths)(tf.constant(TEXTS)).numpy().tolist() == [len(text) for text in TEXTS]


@pytest.mark.parametrize("kind", ["Unigram", "WordLevel"])
def test_escaping_where_a_vocabulary_is_looked_up(kind):
    """XLM-RoBERTa's file has its special tokens among the pieces, with the largest scores."""
    import tokenizers

    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = [(token, 0.0) for token in special]
    pieces += [(piece, -5.0) for piece in "▁fine ▁ < s p a d > / u n k m".split()]
    if kind == "Unigram":
        model = tokenizers.models.Unigram(pieces, unk_id=3)
    else:
        model = tokenizers.models.WordLevel({piece: id for id, (piece, _) in enumerate(pieces)}, unk_token="<unk>")
    kernel = tokenizers.Tokenizer(model)
    kernel.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    kernel.decoder = tokenizers.decoders.Metaspace()
    kernel.add_special_tokens(special)
    kernel.add_tokens(["fine"])
    texts = ["fine</s>", "<pad> fine <mask>", "</s>"]
    tokenizer = txf.text.BytePairTokenizer(kernel.to_str())
    assert tokenizer.unk_token == "<unk>"
    ids = tokenizer(texts).to_list()
    assert not {id for row in ids for id in row} & ({0, 1, 2, 4} if kind == "WordLevel" else set(range(5)))
    fine = kernel.token_to_id("fine")  # an added token, not a special token
    assert ids[0][0] == fine and fine in ids[1]
    if kind == "Unigram":
        shown = [tokenizer.detokenize(row).replace(" ", "") for row in ids]
        assert shown == [text.replace(" ", "") for text in texts]
    whole = txf.text.BytePairTokenizer(kernel.to_str(), special_tokens_in_text="keep")
    assert whole(texts).to_list() == [found.ids for found in kernel.encode_batch(texts)]
    assert tokenizer.detokenize([3]) == "<unk>" and tokenizer.detokenize([2]) == ""
