"""Looks at what "it" attends to in a sentence encoder: "it" is the animal that was tired, or the street that was wide.

    python examples/look_at_attention.py --checkpoint DIR                     # both sentences, side by side
    python examples/look_at_attention.py --checkpoint DIR "A cat sat down, for it was old." --word it

Writes a page of all heads for the browser, and a picture of a few. Attention says where a head reads, not what a model
understands. The checkpoint is a Hugging Face folder, or a repository of the Hub (pip install '.[examples,hub]').
"""

import argparse
import pathlib

import numpy as np

import keras_txf as txf

HUB = "sentence-transformers/all-MiniLM-L6-v2"
SENTENCE = "The animal didn't cross the street because it was too {}."
ENDINGS = ("tired", "wide")
NOUNS = ("animal", "street")
HEAD = "{} head {}"  # its layer, its number
ROWS = 5  # heads in a table
MAPS = 4  # heads in a picture


def main():
    options = parse_options()
    print(f"Loading {options.checkpoint}, and reading its attention.", flush=True)
    try:
        folder = txf.checkpoints.find(options.checkpoint)
    except (
        Exception
    ) as error:  # of a folder that is not there, which is taken for a name on the Hub, and of the network
        raise SystemExit(
            f"error: --checkpoint {options.checkpoint} is no folder, and the Hub did not give it: "
            f"{str(error).splitlines()[0]}"
        ) from None
    model, tokenizer = txf.checkpoints.load(folder, "encoder"), txf.text.from_checkpoint(folder)
    both = {ending: SENTENCE.format(ending) for ending in ENDINGS}
    texts = both if options.text is None else {"sentence": options.text}
    found = {name: read(text, model, tokenizer) for name, text in texts.items()}
    looks = [(tokens, look(tokens, scores, options.word)) for tokens, scores in found.values()]
    _, scores = next(iter(found.values()))
    heads = [(layer, head) for layer, weights in scores.items() for head in range(weights.shape[1])]
    if options.text is None:
        highest = compare(looks, heads, options.word)
    else:
        highest = report(*looks, heads, options.word, tokenizer.special_tokens)
    order = [heads[i] for i in np.argsort(-highest, kind="stable")]
    layer, _ = order[0]
    drawn = [head for other, head in order if other == layer][:MAPS]
    for name, (tokens, scores) in found.items():
        draw(options.out / name, tokens, scores, layer, drawn)


def read(text, model, tokenizer):
    """The tokens of a text, and the weights of all layers, each (1, N, T, T)."""
    ids = tokenizer(text).numpy()
    return [tokenizer.id_to_token(int(id)) for id in ids], txf.visualize.attention_scores(model, ids[None])


def position(tokens, word):
    """Where a word stands; tokenizers of byte pairs and of SentencePiece mark the space before it."""
    plain = [token.lstrip("Ġ▁").lower() for token in tokens]
    if word.lower() not in plain:
        raise SystemExit(f'error: "{word}" is not one of the tokens {" ".join(tokens)}.')
    return plain.index(word.lower())


def look(tokens, scores, word):
    """The weights of one word on all tokens, (heads of all layers, T)."""
    return np.concatenate([weights[0, :, position(tokens, word)] for weights in scores.values()])


def compare(looks, heads, word):
    """Prints the heads that attend most to the nouns, and that change most. Returns the highest weight of each."""
    pairs = [[weights[:, position(tokens, noun)] for tokens, weights in looks] for noun in NOUNS]
    for noun, pair in zip(NOUNS, pairs):
        table(f'weight of "{word}" on "{noun}"', heads, *pair, np.max(pair, axis=0))
    first, second = NOUNS
    tired, wide = np.subtract(*pairs)
    table(f'on "{first}" minus on "{second}"', heads, tired, wide, abs(wide - tired))
    follow, oppose = ((sign * tired > 0) & (sign * wide < 0) for sign in (1, -1))
    rule = f'attend more to "{first}" when it is {ENDINGS[0]} and to "{second}" when it is {ENDINGS[1]}'
    print(f"{follow.sum()} of {len(heads)} heads {rule}; {oppose.sum()} do the opposite.")
    return np.max(pairs, axis=(0, 1))


def table(title, heads, tired, wide, order):
    """Prints the heads in descending `order`, and the mean of all."""
    print(f"{title:32}" + "".join(f"{name:>8}" for name in (*ENDINGS, "change")))
    rows = [(HEAD.format(*heads[i]), tired[i], wide[i]) for i in np.argsort(-order, kind="stable")[:ROWS]]
    for name, *pair in (*rows, (f"mean of all {len(heads)} heads", tired.mean(), wide.mean())):
        print(f"  {name:30}{pair[0]:8.3f}{pair[1]:8.3f}{pair[1] - pair[0]:+8.3f}")
    print()


def report(look, heads, word, special):
    """Prints the highest weights of one sentence. Returns each head's highest weight."""
    tokens, weights = look
    others = [i for i, token in enumerate(tokens) if token not in special and i != position(tokens, word)]
    if not others:
        raise SystemExit(f'error: the sentence has no other token than "{word}".')
    print(f'"{word}" attends most to these, special tokens and itself left out:')
    order = np.argsort(-weights[:, others], axis=None, kind="stable")[: 2 * ROWS]
    for head, i in zip(*np.unravel_index(order, (len(heads), len(others)))):
        print(f"  {HEAD.format(*heads[head]):30}{weights[head, others[i]]:8.3f}  {tokens[others[i]]}")
    return weights[:, others].max(axis=1)


def draw(path, tokens, scores, layer, heads):
    txf.visualize.view_attention(scores, tokens, path=path.with_suffix(".html"))
    txf.visualize.plot_attention(scores, tokens, layers=layer, heads=heads).savefig(path.with_suffix(".png"))
    print(f"Wrote {path}.html and {path}.png.")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", help="a sentence to look at (default: the two about the animal)")
    parser.add_argument("--checkpoint", metavar="DIR", default=HUB, help="folder, or name on the Hub (%(default)s)")
    parser.add_argument("--word", default="it", help="whose attention is printed (default: %(default)s)")
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, default="runs/look_at_attention", help="%(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
