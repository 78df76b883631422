"""The tasks of compare_models.py: dates that are read, captions that are translated."""

import gzip
import types

import baselines
import data
import dates
import numpy as np
import read_dates
import tensorflow as tf
import translate

import keras_txf as txf

SLICE = 500  # validation examples of each


def dates_task(options):
    training, held_out = dates.make_pairs(600 if options.quick else 26000, read_dates.LONGEST, seed=1)
    characters = "".join(sorted({character for _, text, _ in training for character in text}))

    def rows(pairs):
        return tf.data.Dataset.from_tensor_slices(read_dates.encode(pairs, characters))

    def build(kind):
        return baselines.build(kind, read_dates.build(characters), num_layers=1, bidirectional=True, dropout=0.0)

    def score(model):
        answers = read_dates.read([text for _, text, _ in held_out], model, characters)
        return {"exact match": float(np.mean([answer == str(date) for (*_, date), answer in zip(held_out, answers)]))}

    return types.SimpleNamespace(
        build=build, score=score, loss=txf.training.TokenCrossEntropy(), length=10,
        training=rows(training).shuffle(len(training)).batch(read_dates.BATCH).prefetch(2),
        target_tokens=10 * len(training), validation=rows(held_out[:SLICE]).batch(SLICE),
        sources=read_dates.encode_texts([text for _, text, _ in held_out[:64]], characters),
    )  # fmt: skip


def translate_task(options):
    paths = data.find(options.data, translate.ADDRESS, translate.FILES)
    lines = {name: gzip.open(path, "rt", encoding="utf-8") for name, path in paths.items()}
    texts = {name: [translate.spaced(line) for line in file] for name, file in lines.items()}
    english, german = (
        translate.tokenizer(translate.frequent(texts[f"train.{language}.gz"])) for language in ("en", "de")
    )
    train, val, test = (
        (translate.rows(english, texts[f"{name}.en.gz"]), translate.rows(german, texts[f"{name}.de.gz"]))
        for name in ("train", "val", "test_2016_flickr")
    )
    references = texts["test_2016_flickr.de.gz"][:200]

    def score(model):
        import sacrebleu  # only here

        perplexity = model.evaluate(translate.batches(*val), verbose=0, return_dict=True)["perplexity"]
        answers = model.generate(test[0][:200], translate.LONGEST, stop_ids=translate.STOP, start_id=translate.START)
        answers = german.detokenize(answers)
        bleu = sacrebleu.corpus_bleu(answers, [references], tokenize="none", force=True).score  # of words
        return {"perplexity": perplexity, "BLEU": bleu}

    return types.SimpleNamespace(
        build=lambda kind: translate.build(english, german, types.SimpleNamespace(dim=128, model=kind), 2), score=score,
        loss=txf.training.TokenCrossEntropy(label_smoothing=0.1), length=15, sources=test[0][:64],
        training=txf.text.counted(translate.batches(*train, shuffle=True)),
        target_tokens=sum(len(ids) + 1 for ids in train[1]),
        validation=txf.text.counted(translate.batches(*(side[:SLICE] for side in val))),
    )  # fmt: skip


TASKS = {"dates": (dates_task, 0.95, 60), "translate": (translate_task, 0.5, 100)}  # data, goal, seconds
