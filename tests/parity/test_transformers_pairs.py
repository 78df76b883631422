"""Pairs of texts are read as the tokenizer of each family in transformers reads them: token types and separators."""

import json

import numpy as np
import pytest
import torch
import transformers
from parity.test_transformers_tags import byte_pairs, word_piece
from parity.weights import randomize

import keras_txf as txf

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
FIRST = ["The dog sleeps on.", "A fox"]
SECOND = ["dogs", "The foxes slept over the lazy dog!"]
SIZES = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24)
LETTERS = [(f"▁{letter}", -2.0) for letter in "TATdsotlfa"] + [(letter, -3.0) for letter in "abdefghlnoprstvwxyz.!"]


def pieces(*special):
    return [*((token, 0.0) for token in special), *dict(LETTERS).items()]


def bert_like(name):
    words = word_piece().get_vocab()
    if name == "MPNetTokenizer":
        special = {"[CLS]": "<s>", "[SEP]": "</s>", "[PAD]": "<pad>", "[MASK]": "<mask>"}
        words = {special.get(word, word): number for word, number in words.items()}
    return getattr(transformers, name)(vocab=words)


def roberta_like(name):
    made = byte_pairs()
    definition = json.loads(made.backend_tokenizer.to_str())["model"]
    words, merges = definition["vocab"], [tuple(pair) for pair in definition["merges"]]
    if name == "DebertaTokenizer":
        special = {"<s>": "[CLS]", "</s>": "[SEP]", "<pad>": "[PAD]", "<mask>": "[MASK]", "<unk>": "[UNK]"}
        words = {special.get(word, word): number for word, number in words.items()}
    return getattr(transformers, name)(vocab=words, merges=merges)


def unigram(name):
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    if name == "AlbertTokenizer":
        special = ("<pad>", "<unk>", *special[2:])
    if name in ("XLMRobertaTokenizer", "CamembertTokenizer"):
        special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    return getattr(transformers, name)(vocab=pieces(*special))


BART = dict(d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
            encoder_ffn_dim=24, decoder_ffn_dim=24)  # fmt: skip
DISTILBERT = dict(dim=16, n_layers=1, n_heads=2, hidden_dim=24)
CASES = {  # name -> family, class of the tokenizer, what makes it, options of the model
    "bert": ("bert", "BertTokenizer", bert_like, SIZES),
    "electra": ("electra", "BertTokenizer", bert_like, {**SIZES, "embedding_size": 12}),
    "distilbert": ("distilbert", "BertTokenizer", bert_like, DISTILBERT),
    "nomic_bert": ("nomic_bert", "BertTokenizer", bert_like, {**SIZES, "type_vocab_size": 2}),
    "mpnet": ("mpnet", "MPNetTokenizer", bert_like, SIZES),
    "albert": ("albert", "AlbertTokenizer", unigram, {**SIZES, "embedding_size": 12}),
    "albert, words of BERT": ("albert", "BertTokenizer", bert_like, {**SIZES, "embedding_size": 12}),
    "deberta, all of type 0": ("deberta", "DebertaTokenizer", roberta_like, {**SIZES, "type_vocab_size": 2}),
    "deberta, no types": ("deberta", "DebertaTokenizer", roberta_like, {**SIZES, "relative_attention": True}),
    "deberta-v2": ("deberta-v2", "DebertaV2Tokenizer", unigram, {**SIZES, "type_vocab_size": 2}),
    "deberta-v2, no types": ("deberta-v2", "DebertaV2Tokenizer", unigram, SIZES),
    "roberta": ("roberta", "RobertaTokenizer", roberta_like, {**SIZES, "type_vocab_size": 2}),
    "xlm-roberta": ("xlm-roberta", "XLMRobertaTokenizer", unigram, SIZES),
    "camembert": ("camembert", "CamembertTokenizer", unigram, SIZES),
    "gte": ("gte", "XLMRobertaTokenizer", unigram, SIZES),
    "modernbert": ("modernbert", "BertTokenizer", bert_like, SIZES),
    "bart": ("bart", "RobertaTokenizer", roberta_like, BART),
}
DEBERTA = dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_biased_input=False)


@pytest.mark.parametrize("name", CASES)
def test_pairs(name, tmp_path):
    family, clazz, make, options = CASES[name]
    options = {**options, **(DEBERTA if "deberta" in family else {})}
    tokenizer = make(clazz)
    pad = tokenizer.pad_token_id
    config = transformers.AutoConfig.for_model(
        family, vocab_size=len(tokenizer), max_position_embeddings=120, pad_token_id=pad,
        bos_token_id=tokenizer.cls_token_id, eos_token_id=tokenizer.sep_token_id, cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id, **options,
    )  # fmt: skip
    model = randomize(transformers.AutoModelForSequenceClassification.from_config(config))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    task = txf.tasks.PairClassifier.from_checkpoint(tmp_path)
    # Transformers 5 leaves ALBERT's token types out unless they are asked for; 4 gave them.
    asked = {"return_token_type_ids": True} if clazz == "AlbertTokenizer" else {}
    batch = tokenizer(FIRST, SECOND, padding=True, return_tensors="pt", **asked)
    inputs = task.inputs(FIRST, SECOND)
    typed = isinstance(inputs, dict)
    theirs = "token_type_ids" in batch and batch["token_type_ids"].any()  # all of type 0 are as none
    assert typed == bool(theirs and (getattr(config, "type_vocab_size", 0) or 0) > 1)
    np.testing.assert_array_equal(inputs["token_ids"] if typed else inputs, batch["input_ids"])
    if typed:
        np.testing.assert_array_equal(inputs["token_type_ids"], batch["token_type_ids"])
    elif "token_type_ids" in batch:  # of a model without a table for them
        del batch["token_type_ids"]
    with torch.no_grad():
        expected = model(**batch).logits.softmax(-1)
    np.testing.assert_allclose(task.predict(FIRST, SECOND, return_probabilities=True), expected, atol=1e-4)


def test_tokenizer_config_json_overrides_the_class(tmp_path):
    tokenizer = word_piece()
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **SIZES)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "model_input_names": ["input_ids", "attention_mask"]}))
    assert "token_type_ids" not in transformers.AutoTokenizer.from_pretrained(tmp_path)("a", "b")
    assert not isinstance(txf.tasks.PairClassifier.from_checkpoint(tmp_path).inputs("a", "b"), dict)
