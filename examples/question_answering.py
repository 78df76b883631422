"""Answers questions with a part of a text: extractive question answering, on SQuAD's paragraphs.

    python examples/question_answering.py --checkpoint DIR          # train, and see how many answers are right
    python examples/question_answering.py --data FILE --test FILE   # files of yours in SQuAD's format, 1.1 or 2.0
    python examples/question_answering.py "Who built it?" text.txt  # the three best answers in a text

The data are the English part of XQuAD (Artetxe et al. 2020, https://github.com/google-deepmind/xquad, CC BY-SA 4.0):
1,190 questions that people asked about 240 paragraphs of 48 articles of Wikipedia, taken from SQuAD's development set.
The articles are split, not the questions: no paragraph of a held-out article is trained on. 1,000 questions are few;
SQuAD's training set, a file for --data, has 87,599.

The scores are those of SQuAD's script: exact match, and F1 of the words. Beside them stand those of the sentence that
shares the most words with the question, which needs no model. The last epoch is scored, and no epoch chosen.
"""

import argparse
import json
import pathlib
import re
import sys

import data
import keras

import keras_txf as txf

ADDRESS = "https://raw.githubusercontent.com/google-deepmind/xquad/master"
FILES = {"xquad.en.json": "e4c57d1c9143aaa1c5d265ba5987a65f4e69528d2a98f29d6e75019b10344f29"}
HELD_OUT = 6  # each sixth article, where there is no --test
LONGEST = 256  # tokens of a window
KEYS = ("text", "answer_start")


def main():
    options = parse_options()
    folder = pathlib.Path(options.out) / "answerer"
    if options.question is None:
        train(options, folder)
        return
    if not (folder / "task.json").is_file():
        sys.exit(f"error: {folder} lacks task.json, written when a training ends: train a model first.")
    text = options.file.read_text(encoding="utf-8")
    show(txf.tasks.QuestionAnswerer.load(folder), options.question, text)


def train(options, folder):
    keras.utils.set_random_seed(options.seed)
    print("Reading questions and training; the first step compiles for some seconds.", flush=True)
    training, held = split(options)
    answerer = build(options, training)
    answerer.fit(
        *training, validation_data=held, epochs=options.epochs, batch_size=options.batch, learning_rate=options.rate,
        seed=options.seed, callbacks=[data.log(options.out)], verbose=2,
    )  # fmt: skip
    answerer.save(folder)
    scores = answerer.evaluate(*held)
    baseline = txf.training.answer_scores([answers["text"] for answers in held[2]], nearest_sentences(*held[:2]))
    data.write(pathlib.Path(options.out) / "scores.json", json.dumps(scores, indent=1))
    data.report(
        options.out,
        f"Exact match {scores['exact_match']:.4f}, F1 {scores['f1']:.4f} on {len(held[0]):,} held-out questions, "
        f"trained on {len(training[0]):,} (the nearest sentence: {baseline['exact_match']:.4f}, {baseline['f1']:.4f})",
    )
    show(answerer, held[0][0], held[1][0])


def split(options):
    """The columns to train on, and those to score."""
    path = options.data or data.find(None, ADDRESS, FILES)["xquad.en.json"]
    articles = read(path)
    if options.test is not None:
        return columns(articles), columns(read(options.test))
    if len(articles) < HELD_OUT:
        sys.exit(f"error: {path} has {len(articles)} articles, each {HELD_OUT}th is held out: pass --test FILE.")
    held = articles[HELD_OUT - 1 :: HELD_OUT]
    return columns([article for article in articles if article not in held]), columns(held)


def read(path):
    """The articles of a file in SQuAD's format."""
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["data"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"error: {path} is no file in SQuAD's format ({type(error).__name__}: {error}).")


def columns(articles):
    """Questions, contexts, and answers with their places."""
    rows = [
        (item["question"], paragraph["context"], {key: [one[key] for one in item["answers"]] for key in KEYS})
        for article in articles
        for paragraph in article["paragraphs"]
        for item in paragraph["qas"]
    ]
    return tuple(map(list, zip(*rows)))


def build(options, training):
    answered = all(answers["text"] for answers in training[2])
    common = dict(max_length=LONGEST, null_threshold=None if answered else 0.0)  # of SQuAD 2.0 some have no answer
    if options.checkpoint is not None:
        return txf.tasks.QuestionAnswerer.from_checkpoint(options.checkpoint, **common)
    return txf.tasks.QuestionAnswerer.from_scratch(
        *training[:2], num_layers=options.layers, dim=options.dim, position="rotary", position_encoding=None,
        norm_placement="pre", dropout=0.2, **common,
    )  # fmt: skip


def nearest_sentences(questions, contexts):
    """The sentence of each context that shares the most words with the question, without words of three letters."""
    sentences = [re.split(r"(?<=[.!?])\s+", context) for context in contexts]
    asked = map(words, questions)
    return [max(parts, key=lambda one: len(known & words(one))) for known, parts in zip(asked, sentences)]


def words(text):
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 3}


def show(answerer, question, context):
    print(question)
    for answer in answerer.predict(question, context, k=3):
        print("{start:5d}-{end:<5d} {score:6.1%}  {text}".format(**answer))


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?", help="a question to answer; without it, train a model")
    parser.add_argument("file", nargs="?", type=pathlib.Path, help="the text file that answers it")
    parser.add_argument("--data", metavar="FILE", help="in SQuAD's format, to train on (default: download XQuAD)")
    parser.add_argument("--test", metavar="FILE", help="the same, to score (default: each sixth article of --data)")
    parser.add_argument("--out", metavar="DIR", default="runs/question_answering", help="%(default)s")
    parser.add_argument("--checkpoint", metavar="DIR", help="encoder to begin with (default: from nothing)")
    parser.add_argument("--epochs", type=data.positive, default=4, help="%(default)s")
    parser.add_argument("--batch", type=data.positive, default=16, help="windows a batch (%(default)s)")
    parser.add_argument("--rate", type=float, default=2e-4, help="highest learning rate (%(default)s)")
    parser.add_argument("--layers", type=data.positive, default=4, help="without a checkpoint (%(default)s)")
    parser.add_argument("--dim", type=data.positive, default=128, help="without a checkpoint (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.question is not None:
        names = ("data", "test", "checkpoint", "epochs", "batch", "rate", "layers", "dim", "seed")
        data.refuse_training_options(parser, options, *names)
        if options.file is None or not options.file.is_file():
            parser.error(f"expected a text file that answers the question, got {options.file}")
    return options


if __name__ == "__main__":
    main()
