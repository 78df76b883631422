"""Translates English captions into German: an encoder-decoder on words, Multi30k's 29,000 pairs.

    python examples/translate.py                                             # train, and see how well it translates
    python examples/translate.py "A dog runs in the snow." --view page.html  # and show what attended to what
    python examples/translate.py --model gru-additive --out runs/gru         # a recurrent model of as many parameters

Plain lower-cased words: a word that occurs less than three times is unknown, and stays unknown in the answer.
"""

import argparse
import collections
import gzip
import re

import baselines
import data
import keras
import numpy as np
import tensorflow as tf

import keras_txf as txf

ADDRESS = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
FILES = {
    "train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    "test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
}
SPECIAL_TOKENS = ["<pad>", "<start>", "<stop>", "<unknown>"]
PAD, START, STOP, UNKNOWN = range(4)
SEEN = 3  # the least number of occurrences of a word of the vocabulary in the training text
LONGEST = 40  # tokens of a translation
BATCH_TOKENS = 1500  # target words a batch, padding included
BOUNDARIES = (10, 13, 16, 20, 26)  # target lengths at which batches change


def main():
    options = parse_options()
    if options.text is None:
        return train(options)
    model, *texts = data.load(options.out, "translate", "english", "german")
    english, german = (tokenizer(text.split("\n")) for text in texts)
    source = spaced(options.text)
    [answer] = translate([source], model, english, german, options)
    print(answer)
    if options.view is not None:
        view(options.view, source, answer, model, english, german)


def train(options):
    keras.utils.set_random_seed(options.seed)
    print("Reading Multi30k and training a translator; the first step compiles for some seconds.", flush=True)
    paths = data.find(options.data, ADDRESS, FILES)
    texts = {name: [spaced(line) for line in gzip.open(path, "rt", encoding="utf-8")] for name, path in paths.items()}
    english, german = (tokenizer(frequent(texts[f"train.{language}.gz"])) for language in ("en", "de"))

    def pairs(name):
        return rows(english, texts[f"{name}.en.gz"]), rows(german, texts[f"{name}.de.gz"])

    training, validation = map(txf.text.counted, (batches(*pairs("train"), shuffle=True), batches(*pairs("val"))))
    model, log = build(english, german, options, len(training) * options.epochs), data.log(options.out)
    model.fit(training, epochs=options.epochs, shuffle=False, validation_data=validation, callbacks=[log])
    words = {name: "\n".join(of.get_config()["vocabulary"]) for name, of in (("english", english), ("german", german))}
    data.save(model, options.out, "translate", **words)
    sources, references = texts["test_2016_flickr.en.gz"][:6], texts["test_2016_flickr.de.gz"][:6]
    for source, reference, answer in zip(sources, references, translate(sources, model, english, german, options)):
        print(f"\nEnglish    {source}\nreference  {reference}\nmodel      {answer}")
    _, accuracy, perplexity = model.evaluate(validation, verbose=0)
    print()
    data.report(options.out, f"Validation perplexity {perplexity:.2f}, word accuracy {accuracy:.3f}")


def translate(sentences, model, english, german, options):
    sources, beams = rows(english, sentences), txf.generation.Beam(options.beams)
    return german.detokenize(model.generate(sources, LONGEST, beams, stop_ids=STOP, start_id=START))


def view(path, source, answer, model, english, german):
    """Writes a page of all attention weights. A German word is the step that chose it, having read the one before."""
    words = [*answer.split(), SPECIAL_TOKENS[STOP]][:LONGEST]
    [target_ids] = rows(german, [" ".join(words[:-1])])
    inputs = {"source_ids": rows(english, [source]), "target_ids": [[START, *target_ids]]}
    try:
        txf.visualize.view_attention(txf.visualize.attention_scores(model, inputs), words, source.split(), path)
    except ValueError as error:  # no attention in the model, or a path that cannot be written to
        raise SystemExit(f"error: --view: {error}") from None


def build(english, german, options, steps):
    model = txf.models.encoder_decoder(
        english.vocab_size, german.vocab_size, num_layers=3, dim=options.dim, num_heads=4,
        intermediate_dim=2 * options.dim, norm_placement="pre", position="rotary", dropout=0.2, share_embeddings=False,
    )  # fmt: skip
    model = baselines.build(options.model, model, num_layers=1, bidirectional=True, dropout=0.2)
    rate = txf.training.warmup_cosine(2e-3, warmup_steps=max(1, steps // 10), total_steps=max(2, steps))
    loss = txf.training.TokenCrossEntropy(label_smoothing=0.1)
    metrics = [txf.training.TokenAccuracy(), txf.training.Perplexity()]
    model.compile(keras.optimizers.Adam(rate, beta_2=0.98), loss, metrics=metrics)
    return model


def tokenizer(vocabulary):
    """One token for each word: without pieces of words in the vocabulary, WordPiece splits none."""
    return txf.text.WordPieceTokenizer(
        vocabulary, strip_accents=False, special_tokens=SPECIAL_TOKENS, pad_token=SPECIAL_TOKENS[PAD],
        unk_token=SPECIAL_TOKENS[UNKNOWN], special_tokens_in_text="keep",
    )  # fmt: skip


def frequent(sentences):
    """The vocabulary of a text, special tokens first and then the most frequent words."""
    counts = collections.Counter(word for sentence in sentences for word in sentence.split())
    return [*SPECIAL_TOKENS, *(word for word, count in counts.most_common() if count >= SEEN)]


def rows(tokenizer, sentences):
    """The ids of each sentence, lists of int."""
    return tokenizer.tokenize(sentences).to_list()


def spaced(line):
    """The words and signs of a line in lower case, with spaces between; "Flugbegleiter_in" is one word."""
    return " ".join(re.findall(r"\w+|[^\w\s]", line.lower().replace("_", "")))


def batches(sources, targets, shuffle=False):
    """Padded batches of sentences of like length, as inputs and targets for `fit`."""
    targets = [[START, *target, STOP] for target in targets]

    def generate():
        for i in np.random.permutation(len(sources)) if shuffle else range(len(sources)):
            yield sources[i], targets[i]

    ids = tf.TensorSpec((None,), "int32")
    dataset = tf.data.Dataset.from_generator(generate, output_signature=(ids, ids))
    sizes = [BATCH_TOKENS // length for length in (*BOUNDARIES, 45)]
    dataset = dataset.bucket_by_sequence_length(lambda source, target: tf.size(target), BOUNDARIES, sizes)
    return dataset.map(txf.training.teacher_forcing).prefetch(2)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", help="an English sentence to translate; without it, train a model")
    parser.add_argument("--data", metavar="DIR", help="folder with Multi30k's .gz files (default: download them)")
    parser.add_argument("--out", metavar="DIR", default="runs/translate", help="%(default)s")
    parser.add_argument("--epochs", type=data.positive, default=6, help="passes over the training pairs (default: 6)")
    parser.add_argument("--dim", type=data.positive, default=128, help="width of the model (default: 128)")
    parser.add_argument("--beams", type=data.positive, default=4, help="of the search for a translation (default: 4)")
    parser.add_argument("--model", choices=baselines.MODELS, default="transformer", help="(default: transformer)")
    parser.add_argument("--view", metavar="FILE", help="page of attention; a German word is the step that chose it")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.text is not None:
        data.refuse_training_options(parser, options, "data", "epochs", "dim", "model", "seed")
    elif options.view is not None:
        parser.error("argument --view: is for a sentence to translate")
    return options


if __name__ == "__main__":
    main()
