"""Answers questions about stories: an encoder-decoder that cites the facts, one after the other, up to the place.

    python examples/answer_questions.py                         # train, and see how many answers are exact
    python examples/answer_questions.py "The key is in the box. Ben took the box. Ben went to the hall. Where is the
    key?"

The stories are made here, see stories.py: as many as one likes. Those of the validation and of the final score are not
trained on, and those of the score have had no say in how this trains.
"""

import argparse
import pathlib
import re

import data
import keras
import numpy as np
import stories
from matplotlib.figure import Figure

import keras_txf as txf

BATCH, EPOCHS = 16, 10
SOURCE, ANSWER = 88, 32  # tokens, at most


def main():
    options = parse_options()
    if needs_training(options):
        train(options)
    if options.text is not None:
        model, vocabulary = data.load(options.out, "answers", "vocabulary")
        try:
            print(answer_text(options.text, model, make_tokenizer(vocabulary.splitlines())))
        except ValueError as error:
            raise SystemExit(f"error: cannot answer {options.text!r}: {error}.") from None


def needs_training(options):
    return options.text is None or not (options.out / "vocabulary.txt").exists()


def train(options):
    print(f"Making stories, training a model for {options.out}; the first step compiles a while.", flush=True)
    keras.utils.set_random_seed(options.seed)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *stories.WORDS]
    tokenizer = make_tokenizer(vocabulary)
    held_out = stories.make_stories(1000, seed=0)
    training = stories.make_stories(options.stories, options.seed, taboo={story for story, *_ in held_out})
    model = build(tokenizer.vocab_size, options.dim)
    rate = txf.training.warmup_cosine(options.rate, warmup_steps=max(1, options.steps // 40), total_steps=options.steps)
    model.compile(
        keras.optimizers.Adam(rate, beta_2=0.98, clipnorm=1.0),
        txf.training.TokenCrossEntropy(),
        metrics=[txf.training.TokenAccuracy()],
    )
    fresh = stories.make_stories(1000, "fresh", taboo={story for story, *_ in held_out + training})
    history = model.fit(
        make_batches(training, tokenizer).repeat(), epochs=EPOCHS, steps_per_epoch=-(-options.steps // EPOCHS),
        validation_data=make_batches(held_out, tokenizer), shuffle=False, callbacks=[data.log(options.out)],
    ).history  # fmt: skip
    data.save(model, options.out, "answers", vocabulary="\n".join(vocabulary))
    draw_training(history, options.out / "training.png")
    chain = next(example for example in held_out if example[3] == 3 and "so" in example[2].split())
    draw_attention(chain, model, tokenizer, options.out / "attention.png")
    report(fresh, answer(fresh, model, tokenizer), options.out)


def make_tokenizer(vocabulary):
    return txf.text.WordPieceTokenizer(vocabulary, start="[CLS]", end="[SEP]")


def make_batches(examples, tokenizer):
    shapes = {"source_ids": [SOURCE], "target_ids": [ANSWER]}, [ANSWER]
    return encode(examples, tokenizer).cache().shuffle(len(examples)).padded_batch(BATCH, shapes).prefetch(2)


def encode(examples, tokenizer):
    return txf.text.question_answering([list(column) for column in zip(*examples)][:3], tokenizer)


def build(vocab_size, dim, **options):
    # The encoder's words look at those of their own sentence, more or less; the decoder's go from fact to fact. The
    # sinusoids tell the last of several places.
    return txf.models.encoder_decoder(
        vocab_size, vocab_size, num_layers=2, num_decoder_layers=3, dim=dim, num_heads=4, position="rotary",
        position_encoding="sinusoidal", norm_placement="pre", dropout=0.0, encoder_options=dict(window=6), **options,
    )  # fmt: skip


def answer(examples, model, tokenizer):
    """The model's answers, texts."""
    sources = [inputs["source_ids"] for inputs, _ in encode(examples, tokenizer).as_numpy_iterator()]
    sources = keras.utils.pad_sequences(sources, padding="post")
    ends = dict(start_id=tokenizer.token_to_id("[CLS]"), stop_ids=tokenizer.token_to_id("[SEP]"))
    batches = [
        model.generate(sources[i : i + 500], max_new_tokens=ANSWER, padded=False, **ends)
        for i in range(0, len(sources), 500)
    ]
    return [tokenizer.detokenize(ids) for batch in batches for ids in batch]


def report(examples, answers, out):
    """Prints ten answers, and the shares of those that are exact, fact by fact."""
    right = np.array([example[2] == text for example, text in zip(examples, answers)])
    facts = np.array([example[3] for example in examples])
    for (story, question, expected, _), text, exact in list(zip(examples, answers, right))[:10]:
        print(f"{story} {question}\n  {text} ({'right' if exact else f'wrong: {expected}'})")
    for number in sorted(set(facts)):
        print(f"{number} of the story's facts: {right[facts == number].mean():.1%} exact")
    data.report(out, f"Exact answers on {len(examples)} fresh stories: {right.mean():.2%}")


def answer_text(text, model, tokenizer):
    """The answer to the question that ends a text; a ValueError says why there is none."""
    words = re.findall(r"[^\W_]+|[^\w\s]", text.lower())
    unknown = sorted(set(words) - set(stories.WORDS))
    if unknown:
        raise ValueError(f"the stories know no {', '.join(unknown)}; they know {' '.join(stories.WORDS)}")
    story, dot, question = " ".join(words).rpartition(" . ")
    asked = re.fullmatch(r"where is (?:the )?(\w+) \?", question)
    if not asked or not story:
        raise ValueError("it must be a story, and end with a question such as 'Where is the key?'")
    if asked[1] not in ("everyone", *story.split()):
        raise ValueError(f"the story says nothing of {asked[1]}")
    [found] = answer([(story + dot.rstrip(), question, "")], model, tokenizer)
    return found


def draw_training(history, path):
    axes = Figure(layout="constrained").subplots()
    epochs = range(1, len(history["loss"]) + 1)
    axes.semilogy(epochs, history["loss"], "o-", label="training stories, mean of the epoch")
    axes.semilogy(epochs, history["val_loss"], "o-", label="held-out stories, after the epoch")
    axes.set(xlabel="epoch", ylabel="cross-entropy of a token", xticks=epochs)
    axes.legend()
    axes.figure.savefig(path)


def draw_attention(example, model, tokenizer, path):
    """Where the decoder's last block looked in the story for each word of its answer, the heads' mean."""
    scored = build(tokenizer.vocab_size, model.get_layer("encoder_0").output.shape[-1], return_attention_scores=True)
    scored.set_weights(model.get_weights())
    ((inputs, targets),) = encode([example], tokenizer).batch(1)
    scores = keras.ops.convert_to_numpy(scored(inputs)["decoder_cross_attention_scores_1"])[0].mean(axis=0)
    axes = Figure(figsize=(14, 4), layout="constrained").subplots()
    axes.imshow(scores, cmap="Blues", aspect="auto")
    words, answer = ([tokenizer.id_to_token(int(i)) for i in ids[0]] for ids in (inputs["source_ids"], targets))
    axes.set_xticks(range(len(words)), words, rotation=90)
    axes.set_yticks(range(len(answer)), answer)
    axes.set(xlabel="question and story", ylabel="answer")
    axes.figure.savefig(path)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", help="a story and a question; without it, train a model")
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, default="runs/answer_questions", help="%(default)s")
    parser.add_argument("--stories", type=data.positive, default=100_000, help="to train on (default: 100000)")
    parser.add_argument("--steps", type=data.positive, default=5000, help="default: 5000")
    parser.add_argument("--dim", type=data.positive, default=64, help="default: 64")
    parser.add_argument("--rate", type=float, default=3e-3, help="the highest (default: 0.003)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not needs_training(options):
        data.refuse_training_options(parser, options, "stories", "steps", "dim", "rate", "seed")
    return options


if __name__ == "__main__":
    main()
