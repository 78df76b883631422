"""Tasks answer as transformers does: of a folder that transformers wrote, and of one that `save` wrote after `fit`."""

import io
import re

import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from chat_cases import tokenizer_folder
from parity.test_transformers_tags import byte_pairs, word_piece
from parity.weights import randomize
from text_cases import CORPUS

import keras_txf as txf
from keras_txf.generation import ForbiddenTokens

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
FIRST = ["The dog sleeps on.", "A fox", "naïve Straße, the quick brown fox jumps over it and over it again"]
SECOND = ["dogs", "The foxes slept over the lazy dog!", "1 + 1"]
SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
FIT = dict(epochs=1, batch_size=2, verbose=0)
LABELS = ["bad", "fair", "good"]


def bert(folder, cls, **options):
    tokenizer = word_piece()
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **SIZES, **options)
    tokenizer.save_pretrained(folder)
    randomize(cls(config)).save_pretrained(folder)  # larger weights than at the beginning: no answer is near another


def theirs(folder, cls, *texts, **options):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = cls.from_pretrained(folder).eval()
    batch = tokenizer(*texts, padding=True, truncation=True, max_length=20, return_tensors="pt", **options)
    with torch.no_grad():
        return model(**batch), batch, model


def check_twice(task, save_to, old, compare, fit):
    """Compares with the folder that was loaded, and after training with the one that was saved."""
    compare(task, old)
    fit(task)
    task.save(save_to, format="huggingface")
    compare(task, save_to)
    compare(type(task).load(save_to), save_to)


def test_text_classifier(tmp_path):
    cls = transformers.BertForSequenceClassification
    bert(tmp_path / "old", cls, id2label=dict(enumerate(LABELS)))
    task = txf.tasks.TextClassifier.from_checkpoint(tmp_path / "old", max_length=20)
    assert task.labels == LABELS

    def compare(task, folder):
        task.max_length = 20
        expected, _, model = theirs(folder, cls, FIRST)
        found = task.predict(FIRST, return_probabilities=True)
        np.testing.assert_allclose(found, expected.logits.softmax(-1), atol=1e-5)
        assert task.predict(FIRST) == [model.config.id2label[int(i)] for i in expected.logits.argmax(-1)]

    check_twice(task, tmp_path / "new", tmp_path / "old", compare, lambda task: task.fit(FIRST, LABELS, **FIT))


@pytest.mark.parametrize("kind, count, targets", [
    ("multi_label_classification", 3, [["LABEL_0", "LABEL_2"], [], ["LABEL_1"]]),
    ("regression", 1, [3.5, -2.0, 0.25]),
])  # fmt: skip
def test_text_classifier_of_several_labels_or_numbers(kind, count, targets, tmp_path):
    cls = transformers.BertForSequenceClassification
    bert(tmp_path / "old", cls, num_labels=count, problem_type=kind)
    task = txf.tasks.TextClassifier.from_checkpoint(tmp_path / "old", max_length=20)
    rows = targets if count == 1 else [[float(name in one) for name in task.labels] for one in targets]

    def compare(task, folder):
        task.max_length = 20
        output, batch, model = theirs(folder, cls, FIRST)
        assert model.config.problem_type == kind
        expected = output.logits[:, 0] if count == 1 else output.logits.sigmoid()
        np.testing.assert_allclose(task.predict(FIRST, return_probabilities=count > 1), expected, atol=1e-5)
        loss = model(**batch, labels=torch.tensor(rows)).loss.item()
        np.testing.assert_allclose(task.evaluate(FIRST, targets)["loss"], loss, rtol=1e-4)

    check_twice(task, tmp_path / "new", tmp_path / "old", compare, lambda task: task.fit(FIRST, targets, **FIT))


@pytest.mark.parametrize("count", [3, 1], ids=["labels", "score"])
def test_pair_classifier(count, tmp_path):
    cls = transformers.BertForSequenceClassification
    bert(tmp_path / "old", cls, num_labels=count)
    task = txf.tasks.PairClassifier.from_checkpoint(tmp_path / "old", max_length=20)
    targets = [0.0, 0.5, 1.0] if count == 1 else task.labels

    def compare(task, folder):
        task.max_length = 20
        logits = theirs(folder, cls, FIRST, SECOND)[0].logits
        expected = logits.sigmoid()[:, 0] if count == 1 else logits.softmax(-1)
        np.testing.assert_allclose(task.predict(FIRST, SECOND, return_probabilities=True), expected, atol=1e-5)

    check_twice(task, tmp_path / "new", tmp_path / "old", compare, lambda task: task.fit(FIRST, SECOND, targets, **FIT))


def test_token_classifier(tmp_path):
    cls = transformers.BertForTokenClassification
    bert(tmp_path / "old", cls, id2label=dict(enumerate(LABELS)))
    task = txf.tasks.TokenClassifier.from_checkpoint(tmp_path / "old")
    words, tags = [["The", "quick", "foxes"], ["dogs", "naïve", "ÄÖÜ", "jump"]], [["bad", "good", "bad"], ["good"] * 4]

    def compare(task, folder):
        expected, batch, model = theirs(folder, cls, words, is_split_into_words=True)
        assert task.labels == list(model.config.id2label.values()) == LABELS
        for row, found in enumerate(task.predict(words, return_probabilities=True)):
            first = [batch.word_ids(row).index(word) for word in range(len(words[row]))]
            np.testing.assert_allclose(found, expected.logits[row].softmax(-1)[first], atol=1e-5)

    check_twice(task, tmp_path / "new", tmp_path / "old", compare, lambda task: task.fit(words, tags, **FIT))


def test_masked_language_model(tmp_path):
    cls = transformers.BertForMaskedLM
    bert(tmp_path / "old", cls)
    task = txf.tasks.MaskedLanguageModel.from_checkpoint(tmp_path / "old", max_length=20)
    lines = ["the [MASK] sleeps", "A fox is [MASK] dog over the lazy dog"]

    def compare(task, folder):
        task.max_length = 20
        pipeline = transformers.pipeline("fill-mask", model=str(folder), top_k=4, device="cpu")
        for line, found in zip(lines, task.fill(lines, k=4)):
            expected = pipeline(line)
            assert [token for token, _ in found] == [pipeline.tokenizer.decode([one["token"]]) for one in expected]
            np.testing.assert_allclose([score for _, score in found], [one["score"] for one in expected], atol=1e-5)

    check_twice(task, tmp_path / "new", tmp_path / "old", compare, lambda task: task.fit(CORPUS[:4], **FIT))


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_text_embedder(pooling, tmp_path):
    """The vectors of sentence-transformers: the modules of its folder, by hand."""
    bert(tmp_path / "old", transformers.BertModel)
    (tmp_path / "old" / "1_Pooling").mkdir()
    mode = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}[pooling]
    (tmp_path / "old" / "1_Pooling" / "config.json").write_text(f'{{"{mode}": true, "word_embedding_dimension": 16}}')
    task = txf.tasks.TextEmbedder.from_checkpoint(tmp_path / "old", max_length=20)

    def compare(task, folder):
        task.max_length = 20
        states, batch, _ = theirs(folder, transformers.AutoModel, FIRST)
        states, mask = states.last_hidden_state, batch["attention_mask"][..., None]
        pooled = states[:, 0] if pooling == "cls" else (states * mask).sum(1) / mask.sum(1)
        np.testing.assert_allclose(task.encode(FIRST), torch.nn.functional.normalize(pooled), atol=1e-5)

    check_twice(task, tmp_path / "new", tmp_path / "old", compare, lambda task: task.fit(FIRST, SECOND, **FIT))
    for file in ("modules.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        assert (tmp_path / "new" / file).is_file()


def test_text_generator(tmp_path):
    torch.manual_seed(3)
    tokenizer_folder(tmp_path / "old", "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "old")
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), **SIZES, num_key_value_heads=1, max_position_embeddings=40, pad_token_id=0,
        bos_token_id=1, eos_token_id=tokenizer.eos_token_id, initializer_range=0.3,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "old")
    task = txf.tasks.TextGenerator.from_checkpoint(tmp_path / "old", max_length=20)

    def compare(task, folder):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        ours, found = task.tokenizer, task.generate(FIRST[:2], max_new_tokens=8)
        ours = ours.from_config({**ours.get_config(), "end": []})
        for text, answer in zip(FIRST, found):
            ids = torch.tensor([ours([text]).to_list()[0]])
            assert ids[0].tolist() == tokenizer(text)["input_ids"]
            new = model.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
            assert answer == tokenizer.decode(new, skip_special_tokens=True)
            # Theirs finds stop strings in the names of special tokens, and no character of several tokens.
            suppressed = [*ours.special_tokens.values()]
            special = dict(max_new_tokens=8, processors=[ForbiddenTokens(suppressed)])
            free = task.generate(text, **special)
            for stop in {part[i : i + 3] for part in re.findall(r"[!-~]+", free) for i in range(len(part))} - {free}:
                stops = dict(stop_strings=[stop, "never"], max_new_tokens=8)
                row = model.generate(ids, do_sample=False, tokenizer=tokenizer, suppress_tokens=suppressed, **stops)[
                    0
                ].tolist()
                assert task.model.generate(ids, tokenizer=ours, padded=False, **{**special, **stops}) == [row]
                assert task.generate(text, **{**special, **stops}) == free[: free.index(stop)]

    check_twice(task, tmp_path / "new", tmp_path / "old", compare, lambda task: task.fit(FIRST, **FIT))


def t5(folder):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=model, minloglevel=2, hard_vocab_limit=False, vocab_size=200,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "spiece.model").write_bytes(model.getvalue())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer", "extra_ids": 0}')
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=16, d_ff=24, d_kv=8, num_layers=2, num_decoder_layers=2, num_heads=2,
        decoder_start_token_id=0, initializer_factor=1.0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def bart(folder):
    tokenizer = byte_pairs()
    tokenizer.save_pretrained(folder)
    config = transformers.BartConfig(
        vocab_size=len(tokenizer), d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=40, init_std=0.3,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.eos_token_id, forced_eos_token_id=None,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config)


@pytest.mark.parametrize("make", [t5, bart], ids=["t5", "bart"])
def test_text_to_text(make, tmp_path):
    """The model's own token begins an answer: padding for T5, the token that ends a text for BART."""
    torch.manual_seed(3)
    make(tmp_path / "old").save_pretrained(tmp_path / "old")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "old")
    task = txf.tasks.TextToText.from_checkpoint(tmp_path / "old", max_length=20)

    def compare(task, folder):
        task.max_length = 20
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        found = task.generate(FIRST, max_new_tokens=8)
        for text, answer in zip(FIRST, found):
            ids = torch.tensor([tokenizer(text, truncation=True, max_length=20)["input_ids"]])
            new = model.generate(ids, max_new_tokens=8, do_sample=False)[0]
            assert answer == tokenizer.decode(new, skip_special_tokens=True)
        labels = torch.tensor([tokenizer(SECOND[1], truncation=True, max_length=20)["input_ids"]])
        with torch.no_grad():
            loss = model(torch.tensor([tokenizer(FIRST[1])["input_ids"]]), labels=labels).loss
        task.compile(loss=txf.training.TokenCrossEntropy(task.tokenizer.pad_id))
        np.testing.assert_allclose(task.evaluate(FIRST[1:2], SECOND[1:2])["loss"], loss, rtol=1e-4)
        task._is_compiled = False

    check_twice(task, tmp_path / "new", tmp_path / "old", compare, lambda task: task.fit(FIRST, SECOND, **FIT))
