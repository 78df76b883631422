"""QuestionAnswerer reads rows, windows and spans as the recipe of transformers does, and writes its folders."""

import numpy as np
import pytest
import torch
import transformers
from parity.test_transformers_tags import byte_pairs, word_piece
from parity.weights import randomize

import keras_txf as txf

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
QUESTIONS = ["Who jumps over the dog?", "What is the fox?", "naïve Straße?"]
CONTEXTS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on. A fox is no dog; dogs aren't foxes.",
    "A fox",
    "naïve façade,  e\u0301te\u0301: the dogs jumped,\nthe foxes slept! 1 + 1 = 2, over and over it jumps again",
]
LENGTH, OVERLAP, LONGEST = 28, 6, 5
SIZES = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
FAMILIES = {
    "bert": (transformers.BertConfig, word_piece, SIZES),
    "electra": (transformers.ElectraConfig, word_piece, {**SIZES, "embedding_size": 12}),
    "distilbert": (transformers.DistilBertConfig, word_piece, dict(dim=16, n_layers=2, n_heads=2, hidden_dim=24)),
    "albert": (transformers.AlbertConfig, word_piece, {**SIZES, "embedding_size": 12}),
    "roberta": (transformers.RobertaConfig, byte_pairs, {**SIZES, "pad_token_id": 1}),
}


def write(folder, family):
    config, make, sizes = FAMILIES[family]
    tokenizer = make()
    tokenizer.save_pretrained(folder)
    config = config(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes)
    model = transformers.AutoModelForQuestionAnswering.from_config(config)
    randomize(model).save_pretrained(folder)  # larger weights than at the beginning: no answer is near another
    return tokenizer


def recipe(folder, tokenizer, question, context):
    """The spans of a context, (score, start, end), the best first: the recipe of Hugging Face's course, in full."""
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    batch = tokenizer(
        question, context, max_length=LENGTH, truncation="only_second", stride=OVERLAP, padding=True,
        return_overflowing_tokens=True, return_offsets_mapping=True, return_tensors="pt",
    )  # fmt: skip
    offsets = batch.pop("offset_mapping").numpy()
    batch.pop("overflow_to_sample_mapping")
    with torch.no_grad():
        logits = model(**batch)
    scores = {}
    for row, places in enumerate(offsets):
        inside = [place for place, kind in enumerate(batch.sequence_ids(row)) if kind == 1]
        inside = [place for place in inside if context[slice(*places[place])].strip()]  # a blank begins no answer
        for first in inside:
            for last in (place for place in inside if first <= place < first + LONGEST):
                part = context[places[first, 0] : places[last, 1]]  # the package leaves some blanks in windows
                span = (
                    int(places[last, 1]) - len(part.lstrip()),
                    int(places[last, 1]) - len(part) + len(part.rstrip()),
                )
                score = float(logits.start_logits[row, first] + logits.end_logits[row, last])
                scores[span] = max(score, scores.get(span, -np.inf))
    null = min(float(row[0] + other[0]) for row, other in zip(logits.start_logits, logits.end_logits))
    return sorted(((score, *span) for span, score in scores.items()), reverse=True), null, len(offsets)


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_of_the_recipe(family, tmp_path):
    tokenizer = write(tmp_path / "old", family)
    options = dict(max_length=LENGTH, overlap=OVERLAP, max_answer_length=LONGEST)
    task = txf.tasks.QuestionAnswerer.from_checkpoint(tmp_path / "old", **options)

    def compare(task, folder):
        most = 0
        for question, context, found in zip(QUESTIONS, CONTEXTS, task.predict(QUESTIONS, CONTEXTS, k=3)):
            spans, null, windows = recipe(folder, tokenizer, question, context)
            most = max(most, windows)
            assert [(one["start"], one["end"]) for one in found] == [(start, end) for _, start, end in spans[:3]]
            scores, expected = [one["score"] for one in found], [np.exp(score) for score, *_ in spans]
            if family == "roberta":  # several tokens within a character are one span of the recipe
                scores, expected = np.divide(scores, scores[0]), np.divide(expected, expected[0])
            else:
                expected = np.divide(expected, sum(expected))
            np.testing.assert_allclose(scores, expected[:3], 1e-3)
            careful = txf.tasks.QuestionAnswerer(
                task.model, task.tokenizer, task.separator, **options, null_threshold=0.0
            )
            assert (careful.predict(question, context)["text"] == "") == (null > spans[0][0])
        assert most > 1

    compare(task, tmp_path / "old")
    task.fit(QUESTIONS, CONTEXTS, ["fox", "A fox", "dogs"], epochs=2, learning_rate=0.003, verbose=0)
    task.save(tmp_path / "new", format="huggingface")
    compare(task, tmp_path / "new")
    again = txf.tasks.QuestionAnswerer.load(tmp_path / "new")
    assert again.get_config() == task.get_config()
    compare(again, tmp_path / "new")
