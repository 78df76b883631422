"""What an assistant gains, and what caches that take less memory cost, on models trained on a text by characters.

    python benchmarks/decoding.py tinyshakespeare.txt --models FOLDER    # trains for some minutes, once
    python benchmarks/decoding.py tinyshakespeare.txt --models FOLDER

Milliseconds for each new token, one text at a time, medians of calls that take turns. The loss of a cache is that of
held-out text, read token by token: of the first 256 characters, as many as a text of the training has, and of the last
1,024 of 2,048.
"""

import argparse
import pathlib
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

import keras_txf as txf

LENGTH, BATCH, PROMPT, NEW = 256, 16, 64, 256
SIZES = {"model": (4, 256, 4), "assistant": (1, 64, 2)}  # layers, dim, heads
CACHES = {
    "all tokens": None,
    "all tokens, int8": "int8",
    "window of 252": txf.layers.SinkCache.of_size(sinks=0, window=252),
    "4 sinks, window of 248": txf.layers.SinkCache.of_size(sinks=4, window=248),
}


def train(name, ids, vocab_size, steps):
    """A model of a text."""
    layers, dim, heads = SIZES[name]
    keras.utils.set_random_seed(0)
    model = txf.models.decoder_generator(
        vocab_size, layers, dim, heads, position="rotary", norm="rms", norm_placement="pre", dropout=0.0, pad_id=None
    )
    starts = np.random.default_rng(0).integers(0, len(ids) - LENGTH - 1, (steps, BATCH))
    pieces = ids[starts[..., None] + np.arange(LENGTH + 1)]
    data = tf.data.Dataset.from_tensor_slices((pieces[..., :-1], pieces[..., 1:]))
    rate = keras.optimizers.schedules.CosineDecay(0.0, steps, warmup_target=1e-3, warmup_steps=min(100, steps // 10))
    model.compile(keras.optimizers.AdamW(rate, clipnorm=1.0), keras.losses.SparseCategoricalCrossentropy(True))
    model.fit(data, verbose=2)
    return model


def time_assistant(model, assistant, ids, rounds):
    """Milliseconds for each new token, by contender."""
    prompts = [ids[start : start + PROMPT][None] for start in range(0, rounds * PROMPT, PROMPT)]
    samplers = {"greedy": "greedy", "sampling": "sampling"}
    contenders = {(name, tokens): [] for name in samplers for tokens in (0, 2, 4, 6, 8)}
    for number, prompt in enumerate([prompts[0], *prompts]):  # the first call of each compiles
        for (name, tokens), times in contenders.items():
            more = {"assistant": assistant, "draft_tokens": tokens} if tokens else {}
            start = time.perf_counter()
            model.generate(prompt, NEW, samplers[name], seed=number, **more)
            if number:
                times.append((time.perf_counter() - start) / NEW * 1000)
    for (name, tokens), times in contenders.items():
        print(
            f"{name}, {f'an assistant drafts {tokens}' if tokens else 'alone'}: {statistics.median(times):.2f} ms/token"
        )


def losses(model, ids, cache, length):
    """The loss of each token but the first, and the bytes of the cache."""
    decoder = txf.generation.Decoder(model, cache=cache)
    step = tf.function(decoder.step, jit_compile=True)
    logits, state = decoder.prefill(ids[None, :1], length=length)
    found = []
    for token in ids[1:length]:
        found.append(-tf.nn.log_softmax(logits)[0, token])
        logits, state = step(np.array([[token]], "int32"), state)
        logits = logits[:, -1]
    return np.array(found), sum(np.asarray(x).nbytes for x in keras.tree.flatten(state["cache"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--models", type=pathlib.Path, required=True, help="folder of the trained models")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--length", type=int, default=2048, help="characters of held-out text for the caches")
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8")
    letters = sorted(set(text))
    ids = np.array([letters.index(letter) for letter in text], "int32")
    cut = len(ids) * 9 // 10
    options.models.mkdir(exist_ok=True)
    models = {}
    for name in SIZES:
        path = options.models / f"{name}.keras"
        if not path.exists():
            train(name, ids[:cut], len(letters), options.steps).save(path)
        models[name] = keras.models.load_model(path)
    time_assistant(models["model"], models["assistant"], ids[cut:], options.rounds)
    for name, cache in CACHES.items():
        found, size = losses(models["model"], ids[cut:], cache, options.length)
        end = found[-(options.length // 2) :].mean()
        print(f"{name}: loss {found[: LENGTH - 1].mean():.4f} at first, {end:.4f} in the end, {size / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
