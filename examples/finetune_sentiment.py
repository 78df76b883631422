"""Fine-tunes a checkpoint of BERT's kind to tell good film reviews from bad ones, on the 6,920 sentences of SST-2.

    python examples/finetune_sentiment.py --checkpoint DIR          # all weights
    python examples/finetune_sentiment.py --checkpoint DIR --lora   # a LoRA adapter and a new head, the rest frozen
    python examples/finetune_sentiment.py "a warm film"             # how probably this is praise

The checkpoint is a Hugging Face folder, or a repository of the Hub (pip install '.[examples,hub]'). How it is fine-
tuned was chosen by these dev sentences, so another thousand would have a slightly lower accuracy.
"""

import argparse
import json
import pathlib
import re

import data
import keras
import numpy as np
import tensorflow as tf
from classify_sentiment import ADDRESS, FILES, read

import keras_txf as txf

HUB = "sentence-transformers/all-MiniLM-L6-v2"
LONGEST = 64  # tokens
TARGETS = ("*/attention/*", "*/feed_forward/*")  # of the adapter
RANK = 8  # of it, unless --rank says otherwise
HIDDEN = 0.1  # share of the tokens, in training


def main():
    options = parse_options()
    if options.text is None:
        train(options)
    model, tokenizer = data.load(options.out, "sentiment", "tokenizer")
    tokenizer = keras.saving.deserialize_keras_object(json.loads(tokenizer))
    examples = ("a warm and funny film", "a dull, pretentious mess", "not a bad film at all")
    for text in examples if options.text is None else [options.text]:
        [logits] = model.predict(tokenizer([text]), verbose=0)
        print(f"{keras.ops.softmax(logits)[1]:6.1%} positive: {text}")


def train(options):
    keras.utils.set_random_seed(options.seed)
    print("Loading a checkpoint and training it on film reviews; the first step compiles for some seconds.", flush=True)
    paths = data.find(options.data, ADDRESS, FILES)
    folder = txf.checkpoints.find(options.checkpoint or HUB)
    tokenizer = txf.text.from_checkpoint(folder, length=LONGEST)
    training, dev = (batches(paths[name], tokenizer, options) for name in ("train.tsv", "dev.tsv"))
    model = build(folder, options)
    # Batches come in order of length unless they are shuffled themselves. R-Drop reads each example twice: without
    # it and the hidden tokens the model soon knows the sentences by heart.
    shuffled = training.shuffle(len(training)).map(lambda ids, labels: twice(hide(ids, tokenizer), labels))
    dev = dev.map(twice)
    steps = options.epochs * len(training)
    rate = txf.training.warmup_cosine(
        options.rate or (1e-3 if options.lora else 1e-4), max(1, steps // 10), max(2, steps)
    )
    loss = txf.training.RDrop(pad_id=None, strength=2.0)
    # Of all weights, what is kept is their moving average: what they learn by heart in the last steps counts less.
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.01, use_ema=not options.lora, ema_momentum=0.995)
    model.compile(optimizer, loss, metrics=["accuracy"])
    model.fit(shuffled, epochs=options.epochs, shuffle=False, validation_data=dev, callbacks=[data.log(options.out)])
    data.save(model, options.out, "sentiment", tokenizer=json.dumps(keras.saving.serialize_keras_object(tokenizer)))
    adapter = pathlib.Path(options.out) / "adapter.safetensors"
    adapter.unlink(missing_ok=True)  # of an earlier training
    if options.lora:
        txf.training.save_adapter(model, adapter, "sentiment")
    data.report(options.out, f"Dev accuracy {model.evaluate(dev, verbose=0)[1]:.4f}")


def build(folder, options):
    # The mean of all tokens is what sentence embeddings are made of; the head on it is new.
    head = dict(pooling="mean", head=None, head_dropout=0.1)
    model = txf.checkpoints.load(folder, "sequence_classification", num_classes=2, **head)
    if options.lora:
        rank = RANK if options.rank is None else options.rank
        txf.training.add_adapter(model, "sentiment", rank, alpha=2 * rank, dropout=0.1, targets=TARGETS)
    trained = sum(np.prod(variable.shape, dtype=int) for variable in model.trainable_variables)
    print(f"{trained:,} weights are trained, {trained / model.count_params():.2%} of all.")
    return model


def twice(ids, labels):
    """What R-Drop reads: the same examples under two draws of dropout."""
    return tf.concat([ids, ids], axis=0), tf.concat([labels, labels], axis=0)


def hide(ids, tokenizer):
    special = tokenizer.special_tokens
    mask = next((id for token, id in special.items() if "mask" in token.lower()), tokenizer.pad_id)
    ordinary = tf.reduce_all(ids[..., None] != list(special.values()), axis=-1)
    hidden = tf.logical_and(tf.random.uniform(tf.shape(ids)) < HIDDEN, ordinary)
    return tf.where(hidden, mask, ids)


def natural(words):
    """A sentence as the checkpoint has read such: not "it 's dull , is n't it" but "it's dull, isn't it"."""
    return re.sub(r" (n't|'(s|re|ve|ll|d|m)|[,.;:!?])(?= |$)", r"\1", " ".join(words))


def batches(path, tokenizer, options):
    """In batches of like lengths."""
    sentences, labels = read(path)
    examples = txf.text.classification((list(map(natural, sentences)), labels), tokenizer, num_classes=2)
    examples = examples.cache().shuffle(len(labels), seed=options.seed)
    return txf.text.counted(txf.text.batch_by_length(examples, options.batch, LONGEST, tokenizer.pad_id).cache())


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", help="a sentence to judge; without it, train")
    parser.add_argument("--checkpoint", metavar="DIR", help=f"folder, or repository of the Hub ({HUB})")
    parser.add_argument("--data", metavar="DIR", help="folder with train.tsv and dev.tsv (default: download them)")
    parser.add_argument("--out", metavar="DIR", default="runs/finetune_sentiment", help="%(default)s")
    parser.add_argument("--lora", action="store_true", help="train an adapter beside frozen weights")
    parser.add_argument("--rank", type=data.positive, help=f"of the adapter (default: {RANK})")
    parser.add_argument("--epochs", type=data.positive, default=5, help="default: %(default)s")
    parser.add_argument(
        "--batch", type=data.positive, default=1024, help="tokens a batch, padding included (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, help="highest learning rate (default: 0.0001, with --lora 0.001)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.text is not None:
        data.refuse_training_options(
            parser, options, "checkpoint", "data", "lora", "rank", "epochs", "batch", "rate", "seed"
        )
    if options.rank is not None and not options.lora:
        parser.error("argument --rank: without --lora there is no adapter")
    return options


if __name__ == "__main__":
    main()
