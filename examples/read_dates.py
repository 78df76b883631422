"""Reads dates as people write them in 72 languages: an encoder-decoder, trained in two minutes on two cores.

python examples/read_dates.py                         # train, and see how well it reads
python examples/read_dates.py "samedi 3 mars 2018"    # 2018-03-03
python examples/read_dates.py --model lstm --out runs/lstm   # a recurrent model of as many parameters
"""

import argparse
import datetime
import pathlib

import baselines
import data
import dates
import keras
import numpy as np
from matplotlib.figure import Figure

import keras_txf as txf

LONGEST = 32  # characters; one text in a hundred has more, and stays out
ANSWER = "_>0123456789-"  # by id: padding, the start, and what ISO dates consist of, ten characters each
BATCH = 64
SURE = 0.95  # a date with a character less probable than this is not given


def main():
    options = parse_options()
    if needs_training(options):
        train(options)
    if options.text is not None:
        model, characters = data.load(options.out, "dates", "characters")
        try:
            print(read_date(options.text, model, characters))
        except ValueError as error:
            raise SystemExit(f"error: cannot read {options.text!r}: {error}.") from None


def needs_training(options):
    return options.text is None or not (options.out / "characters.txt").exists()


def train(options):
    print(f"Writing dates, training a model for {options.out}; the first step compiles a while.", flush=True)
    keras.utils.set_random_seed(options.seed)
    training, held_out = dates.make_pairs(options.pairs, LONGEST, options.seed)
    characters = "".join(sorted({character for _, text, _ in training for character in text}))
    model = baselines.build(options.model, build(characters), num_layers=1, bidirectional=True, dropout=0.0)
    steps = options.epochs * -(-len(training) // BATCH)
    rate = txf.training.warmup_cosine(2e-3, warmup_steps=steps // 10 + 1, total_steps=steps + 2)
    model.compile(keras.optimizers.Adam(rate), txf.training.TokenCrossEntropy(), metrics=[txf.training.TokenAccuracy()])
    validation = encode(held_out[:1000], characters)
    history = model.fit(
        *encode(training, characters),
        BATCH,
        options.epochs,
        validation_data=validation,
        callbacks=[data.log(options.out)],
    ).history
    data.save(model, options.out, "dates", characters=characters)
    draw_training(history, options.out / "training.png")
    if options.model == "transformer" or "-" in options.model:
        draw_attention("samedi 3 mars 2018", model, characters, options.out / "attention.png")
    report(held_out, read([text for _, text, _ in held_out], model, characters), options.out)


def build(characters, **options):
    # Rotary positions tell how far apart two characters are: copying is learned in half the time.
    return txf.models.encoder_decoder(
        len(characters) + 1, len(ANSWER), num_layers=2, num_decoder_layers=1, dim=96, num_heads=4,
        position="rotary", norm_placement="pre", dropout=0.0, **options,
    )  # fmt: skip


def encode(pairs, characters):
    """Inputs and targets of the model."""
    answers = np.array([[ANSWER.index(character) for character in f">{date}"] for *_, date in pairs])
    return txf.training.teacher_forcing(encode_texts([text for _, text, _ in pairs], characters), answers)


def encode_texts(texts, characters):
    """Ids (B, LONGEST); a character that no training text has gets none."""
    rows = [[characters.index(character) + 1 for character in text if character in characters] for text in texts]
    return keras.utils.pad_sequences(rows, LONGEST, padding="post")


def read(texts, model, characters):
    """The model's answers: ten characters each, if all is well a date."""
    sources = encode_texts(texts, characters)
    batches = [model.generate(sources[i : i + 500], max_new_tokens=10) for i in range(0, len(texts), 500)]
    return ["".join(ANSWER[i] for i in ids) for ids in np.concatenate(batches)]


def report(pairs, answers, out):
    """Prints ten answers, the languages with the most mistakes, and the share of right answers."""
    right = np.array([answer == str(date) for (*_, date), answer in zip(pairs, answers)])
    for (_, text, date), answer in zip(pairs[:10], answers):
        print(f"{text:{LONGEST}} {answer} {'right' if answer == str(date) else f'wrong: {date}'}")
    languages = np.array([language for language, *_ in pairs])
    shares = sorted((right[languages == language].mean(), language) for language in set(languages))
    print("Weakest languages: " + ", ".join(f"{language} {share:.1%}" for share, language in shares[:8]))
    data.report(out, f"Exact match on {len(pairs)} texts of held-out dates: {right.mean():.2%}")


def read_date(text, model, characters):
    """The date that a text means; a ValueError says why there is none, or none to be sure of."""
    text = dates.clean(text)
    unknown = sorted(set(text) - set(characters))
    if not text or unknown:
        raise ValueError(f"the model has never seen {' '.join(unknown) or 'an empty text'}")
    if len(text) > LONGEST:
        raise ValueError(f"{len(text)} characters are more than the {LONGEST} that the model has seen")
    if dates.is_ambiguous(text):
        raise ValueError("3/4/2018 is in April or in March; write the name of the month")
    answer = read([text], model, characters)[0]
    try:
        date = datetime.date.fromisoformat(answer)
    except ValueError:
        raise ValueError(f"the model answered {answer!r}, which is no date") from None
    if not {date.year, date.day} <= dates.figures(text):
        raise ValueError(f"the answer {date} has another year or day")
    inputs, targets = encode([(None, text, date)], characters)
    probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(model(inputs)))
    sure = np.take_along_axis(probabilities, targets[..., None], axis=-1).min()
    if sure < SURE:
        raise ValueError(f"the answer {date} has a character of {sure:.0%} probability")
    return date


def draw_training(history, path):
    axes = Figure(layout="constrained").subplots()
    epochs = range(1, len(history["loss"]) + 1)
    axes.semilogy(epochs, history["loss"], "o-", label="training dates, mean of the epoch")
    axes.semilogy(epochs, history["val_loss"], "o-", label="held-out dates, after the epoch")
    axes.set(xlabel="epoch", ylabel="cross-entropy of a character", xticks=epochs)
    axes.legend()
    axes.figure.savefig(path)


def draw_attention(text, model, characters, path):
    """Where the decoder looked in the text for each character of its answer, the heads' mean."""
    [answer] = read([text], model, characters)
    scores = txf.visualize.attention_scores(model, encode([(None, text, answer)], characters)[0])
    cross = [name for name in scores if "cross_attention" in name]
    txf.visualize.plot_attention(scores, list(answer), list(text), layers=cross, heads="mean").savefig(path)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", help="the date to read; without it, train a model")
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, default="runs/read_dates", help="%(default)s")
    parser.add_argument(
        "--pairs", type=data.positive, default=26000, help="texts, a tenth of them held out (default: 26000)"
    )
    parser.add_argument("--epochs", type=data.positive, default=4, help="(default: 4)")
    parser.add_argument("--model", choices=baselines.MODELS, default="transformer", help="(default: transformer)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not needs_training(options):
        data.refuse_training_options(parser, options, "pairs", "epochs", "model", "seed")
    return options


if __name__ == "__main__":
    main()
