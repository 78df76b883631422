"""Much English, few translations: an encoder learns English as a masked language model, then to translate into German.

    python examples/pretrain_encoder.py                     # pretrain; train two translators; BLEU of both
    python examples/pretrain_encoder.py "A [MASK] runs in the snow."

Multi30k: all of its 29,000 English captions, and the German of the first 3,000. One translator begins with the
pretrained encoder and one from scratch; all else is the same. Needs pip install '.[examples]'.
"""

import argparse
import gzip
import pathlib

import data
import keras
import numpy as np
from matplotlib.figure import Figure
from translate import ADDRESS, FILES

import keras_txf as txf

WORDS = dict(start="[CLS]", end="[SEP]", length=48)
BATCH_TOKENS = 2048


def main():
    options = parse_options()
    if options.text is not None:
        model, vocabulary = data.load(options.out, "english", "vocabulary")
        tokenizer = txf.text.WordPieceTokenizer(vocabulary.split("\n"), special_tokens_in_text="keep", **WORDS)
        print(*guesses(options.text, model, tokenizer), sep="\n")
        return
    print("Training a vocabulary, then a masked language model, whose first step compiles a while.", flush=True)
    paths = data.find(options.data, ADDRESS, FILES)
    texts = {
        name[:-3]: [line.rstrip("\n") for line in gzip.open(path, "rt", encoding="utf-8")]
        for name, path in paths.items()
    }
    english = txf.text.WordPieceTokenizer.train(texts["train.en"], vocab_size=4000, **WORDS)
    pretrained = pretrain(texts["train.en"], english, options)
    data.save(pretrained, options.out, "english", vocabulary="\n".join(english.get_config()["vocabulary"]))
    german = txf.text.WordPieceTokenizer.train(
        texts["train.de"][: options.pairs], vocab_size=4000, strip_accents=False, **WORDS
    )
    histories = {}
    for name, beginning in (("from scratch", None), ("pretrained", pretrained)):
        print(f"Translating, {name}:")
        log = data.log(options.out, name.replace(" ", "_"))
        histories[name], scores = translate(texts, english, german, beginning, options, log)
        data.report(options.out, f"BLEU {scores['bleu']:.2f}, chrF {scores['chrf']:.2f} on test 2016, {name}")
    draw(histories, pathlib.Path(options.out) / "translation.png")


def pretrain(texts, tokenizer, options):
    keras.utils.set_random_seed(options.seed)
    ids = txf.text.token_ids(texts, tokenizer).cache()
    examples = txf.text.mask_tokens(ids.shuffle(len(texts)), tokenizer, rate=0.2)
    model = txf.models.masked_language_model(tokenizer.vocab_size, dropout=0.1, **encoder_options(options))
    lengths, loss = txf.text.bucket_lengths(ids), txf.training.TokenCrossEntropy()
    fit(model, examples, lengths, options.pretraining_epochs, loss, data.log(options.out, "pretraining"))
    return model


def translate(texts, english, german, pretrained, options, log):
    """The history of `fit`, and the scores on test 2016."""
    keras.utils.set_random_seed(options.seed)
    model = txf.models.encoder_decoder(
        english.vocab_size, german.vocab_size, dropout=0.3, share_embeddings=False, **encoder_options(options)
    )
    if pretrained is not None:
        begin_with(model, pretrained)
    training, validation = (
        txf.text.translation((texts[f"{name}.en"][:count], texts[f"{name}.de"][:count]), english, german).cache()
        for name, count in (("train", options.pairs), ("val", None))
    )
    lengths = txf.text.bucket_lengths(training.concatenate(validation))
    loss = txf.training.TokenCrossEntropy(label_smoothing=0.1)
    held_out = txf.text.counted(txf.text.batch_by_length(validation, BATCH_TOKENS, lengths))
    history = fit(model, training.shuffle(options.pairs), lengths, options.epochs, loss, log, held_out)
    sources = [ids[ids != english.pad_id] for ids in english(texts["test_2016_flickr.en"]).numpy()]
    ends = dict(max_new_tokens=48, start_id=german.token_to_id("[CLS]"), stop_ids=german.token_to_id("[SEP]"))
    for source, ids in zip(texts["test_2016_flickr.en"], model.generate(sources[:3], padded=False, **ends)):
        print(f"{source}\n  {german.detokenize(ids)}")
    scores = txf.training.GenerationScores(
        sources, texts["test_2016_flickr.de"], german, lowercase=True, prefix="", **ends
    )
    return history, scores.score(model)


def begin_with(model, pretrained):
    """The translator's encoder takes the weights of the masked language model's."""
    for layer in pretrained.layers:
        name = "source_embedding" if layer.name == "embedding" else layer.name
        if name.startswith(("source", "encoder")):
            model.get_layer(name).set_weights(layer.get_weights())


def encoder_options(options):
    return dict(
        num_layers=3, dim=options.dim, num_heads=4, intermediate_dim=2 * options.dim, norm_placement="pre",
        position="rotary",
    )  # fmt: skip


def fit(model, examples, lengths, epochs, loss, log, validation=None):
    batches = txf.text.counted(txf.text.batch_by_length(examples, BATCH_TOKENS, lengths).prefetch(2))
    steps = epochs * len(batches)
    rate = txf.training.warmup_cosine(2e-3, warmup_steps=max(1, steps // 10), total_steps=max(2, steps))
    metrics = [txf.training.TokenAccuracy(), txf.training.Perplexity()]
    model.compile(keras.optimizers.AdamW(rate, weight_decay=0.01, clipnorm=1.0), loss, metrics=metrics)
    return model.fit(batches, epochs=epochs, shuffle=False, validation_data=validation, callbacks=[log]).history


def guesses(text, model, tokenizer, count=5):
    """What may stand at each [MASK] of a text, with the probabilities, a line each."""
    ids = tokenizer([text]).numpy()
    probabilities = keras.ops.convert_to_numpy(keras.ops.softmax(model(ids)))[0]
    places = np.flatnonzero(ids[0] == tokenizer.token_to_id("[MASK]"))
    if not len(places):
        raise SystemExit(f"error: there is no [MASK] in {text!r}, or it stands after {tokenizer.length} tokens.")
    lines = []
    for place in places:
        best = np.argsort(-probabilities[place])[:count]
        lines.append(", ".join(f"{tokenizer.id_to_token(int(i))} {probabilities[place, i]:.0%}" for i in best))
    return lines


def draw(histories, path):
    axes = Figure(layout="constrained").subplots()
    for name, history in histories.items():
        perplexities = history["val_perplexity"]
        axes.semilogy(range(1, len(perplexities) + 1), perplexities, label=name)
    axes.set(xlabel="epoch", ylabel="perplexity of a German token, validation")
    axes.legend()
    axes.figure.savefig(path)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", help="an English caption with a [MASK] to guess; without it, train")
    parser.add_argument("--data", metavar="DIR", help="folder with Multi30k's .gz files (default: download them)")
    parser.add_argument("--out", metavar="DIR", default="runs/pretrain_encoder", help="%(default)s")
    parser.add_argument("--pairs", type=data.positive, default=3000, help="translated captions (default: 3000)")
    parser.add_argument(
        "--pretraining-epochs", type=data.positive, default=12, help="passes over the captions (default: 12)"
    )
    parser.add_argument("--epochs", type=data.positive, default=30, help="passes over the pairs (default: 30)")
    parser.add_argument("--dim", type=data.positive, default=128, help="width of the model (default: 128)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.text is not None:
        data.refuse_training_options(parser, options, "data", "pairs", "pretraining_epochs", "epochs", "dim", "seed")
    return options


if __name__ == "__main__":
    main()
