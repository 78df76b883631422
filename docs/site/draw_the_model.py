"""Draws the pictures of docs/tutorials/the_model.md: `python docs/site/draw_the_model.py [FOLDER]`, in half a minute.

Each map of weights, masks or positions shows numbers that the layers compute. The last picture is of a model that the
script trains.
"""

import pathlib
import sys

import keras_txf as txf  # before Keras, to keep TensorFlow's start-up lines away

# isort: split
import keras
import numpy as np
from matplotlib import pyplot
from matplotlib.patches import FancyBboxPatch

FOLDER = pathlib.Path(__file__).parents[1] / "pictures"
BLUE, GREEN, RED, GRAY = "#4c72b0", "#55a868", "#c44e52", "#8c8c8c"


def main(folder=FOLDER, steps=1200):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pyplot.rcParams.update({"font.size": 10, "figure.dpi": 100, "savefig.dpi": 100})
    for draw in (parts, attention, masks, positions, blocks, teacher_forcing):
        save(draw(), folder / f"{draw.__name__}.png")
    save(trained(steps), folder / "trained.png")


def save(figure, path):
    figure.savefig(path, facecolor="white")
    pyplot.close(figure)
    print(f"Wrote {path.name}.")


def numbers(axes, values, title, rows=None, columns=None, limit=None):
    """A matrix as colours with its numbers in the cells."""
    limit = np.abs(values).max() if limit is None else limit
    axes.imshow(values, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="equal")
    for (row, column), value in np.ndenumerate(values):
        color = "white" if abs(value) > 0.7 * limit else "black"
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=color)
    axes.set_title(title, fontsize=10)
    axes.set_xticks(range(values.shape[1]), columns or [""] * values.shape[1], rotation=45, fontsize=8)
    axes.set_yticks(range(values.shape[0]), rows or [""] * values.shape[0], fontsize=8)
    axes.tick_params(length=0)


def parts():
    """A model as a row of places, and below each place the parts that fit into it."""
    places = [
        ("embedding", ["PositionalEmbedding", "PatchEmbedding", "AudioEmbedding", "your layer"]),
        ("attention", ["MultiHeadSelfAttention", "LatentAttention", "GatedDeltaNet", "your layer"]),
        ("feed-forward", ["FeedForward", "MixtureOfExperts", "your layer"]),
        ("head", ["pooling + classes", "tied vocabulary", "spans, tags", "your layer"]),
    ]
    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    axes.set(xlim=(-0.1, 8.1), ylim=(0.4, 4.7))
    axes.set_axis_off()
    axes.add_patch(FancyBboxPatch((2.0, 3.05), 4.0, 1.2, boxstyle="round,pad=0.06", fc="#eef2f8", ec=GRAY, ls="--"))
    axes.text(4.0, 4.45, "EncoderBlock or DecoderBlock, N times", ha="center", fontsize=11, color="#444444")
    for column, (place, names) in enumerate(places):
        left, color = 2.0 * column + 0.08, BLUE if column in (1, 2) else GREEN
        axes.add_patch(FancyBboxPatch((left, 3.25), 1.8, 0.65, boxstyle="round,pad=0.04", fc=color, ec="none"))
        axes.text(left + 0.9, 3.57, place, ha="center", va="center", color="white", fontsize=13, weight="bold")
        if column:
            axes.annotate("", (left, 3.57), (left - 0.2, 3.57), arrowprops={"arrowstyle": "-|>", "color": "#444444"})
        for row, name in enumerate(names):
            own = name == "your layer"
            style = {"fc": "white", "ec": RED if own else color, "ls": "--" if own else "-"}
            axes.add_patch(FancyBboxPatch((left, 2.42 - 0.6 * row), 1.8, 0.36, boxstyle="round,pad=0.04", **style))
            axes.text(left + 0.9, 2.6 - 0.6 * row, name, ha="center", va="center", fontsize=10, color=style["ec"])
    return figure


def attention():
    """Queries and keys become weights, weights and values the output: one head of a real layer."""
    words = ["the", "dog", "saw", "it"]
    keras.utils.set_random_seed(4)
    layer = txf.layers.MultiHeadSelfAttention(num_heads=1, use_bias=False, output_projection=False)
    x = keras.random.normal((1, 4, 4), seed=2)
    output, weights = layer(x, return_attention_scores=True)
    query, key, value = (np.array(part(x))[0] * 1.0 for part in (layer.query, layer.key, layer.value))
    query, key, value = (part.reshape(4, -1) for part in (query, key, value))
    scores, weights = query @ key.T / np.sqrt(query.shape[1]), np.array(weights)[0, 0]
    np.testing.assert_allclose(weights @ value, np.array(output)[0].reshape(4, -1), atol=1e-5)
    figure, axes = pyplot.subplots(1, 6, figsize=(10.5, 2.4), layout="constrained", width_ratios=[1, 1, 1, 1, 1, 1])
    titles = ["queries Q", "keys K", r"$Q K^T / \sqrt{H}$", "softmax of each row", "values V", "output: weights · V"]
    parts = [query, key, scores, weights, value, weights @ value]
    for place, (axis, title, part) in enumerate(zip(axes, titles, parts)):
        square = place in (2, 3)
        numbers(axis, part, title, words, words if square else None, 1.0 if place == 3 else None)
    return figure


def masks():
    """What each query, a row, may attend to."""
    from keras_txf.ops.masks import combine_masks

    places = np.arange(8)
    real, segments = places[None] < 6, np.array([[1, 1, 1, 2, 2, 3, 3, 3]])
    shown = {
        "padding: two of eight": combine_masks(places, places, key_padding=real),
        "causal": combine_masks(places, places, causal=True),
        "causal, window=3": combine_masks(places, places, causal=True, window=3),
        "packed: three segments": combine_masks(places, places, query_segments=segments, key_segments=segments),
    }
    figure, axes = pyplot.subplots(1, 4, figsize=(10, 2.9), layout="constrained")
    for axis, (title, mask) in zip(axes, shown.items()):
        mask = np.broadcast_to(np.array(mask)[0, 0], (8, 8))
        axis.imshow(mask, cmap="Blues", vmin=0, vmax=1.4)
        axis.set(title=title, xlabel="keys", ylabel="queries", xticks=range(8), yticks=range(8))
        axis.set_xticks(np.arange(-0.5, 8), minor=True)
        axis.set_yticks(np.arange(-0.5, 8), minor=True)
        axis.grid(which="minor", color="white", linewidth=1.5)
        axis.tick_params(which="both", length=0)
    return figure


def positions():
    """Four ways to tell a model the order."""
    from keras_txf.ops.positions import sinusoid

    figure, axes = pyplot.subplots(1, 4, figsize=(11, 3), layout="constrained")
    table = np.array(sinusoid(np.arange(64), 64))
    axes[0].imshow(table, cmap="RdBu_r", aspect="auto")
    axes[0].set(title="sinusoids, added once", xlabel="feature", ylabel="position")
    rotary, vector = txf.layers.Rotary(), np.ones((1, 128, 1, 64), "float32")
    turned = np.array(rotary.rotate(vector, np.arange(128)))[0, :, 0]
    axes[1].plot(turned @ turned[0] / 64, color=BLUE)
    axes[1].set(title="rotary: query · key", xlabel="distance", ylabel="for two equal vectors")
    bias = np.array(txf.layers.ALiBi(num_heads=4)(np.arange(64), np.arange(64)))[0]
    for head, color in zip(range(4), (BLUE, GREEN, RED, GRAY)):
        axes[2].plot(np.arange(64), bias[head, 63, ::-1], color=color, label=f"head {head}")
    axes[2].set(title="ALiBi: added to scores", xlabel="distance")
    axes[2].legend(fontsize=8)
    from keras_txf.ops.positions import relative_buckets

    distance = np.arange(-64, 65)
    axes[3].step(distance, np.array(relative_buckets(distance, True, 32, 128)), color=BLUE)
    axes[3].set(title="T5: a bias a bucket", xlabel="distance", ylabel="bucket")
    return figure


def box(axes, x, y, text, color, width=2.0, height=0.5):
    shape = FancyBboxPatch(
        (x - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.03", facecolor=color, alpha=0.25,
        edgecolor=color, linewidth=1.2,
    )  # fmt: skip
    axes.add_patch(shape)
    axes.text(x, y, text, ha="center", va="center", fontsize=9, zorder=5)


def arrow(axes, start, end, color="black", curve=0.0):
    style = {"arrowstyle": "-|>", "color": color, "lw": 1.1, "connectionstyle": f"arc3,rad={curve}"}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def stack(axes, title, rows):
    """Boxes from the bottom to the top; `rows` are (text, color, residual from how many boxes below or None)."""
    for place, (text, color, residual) in enumerate(rows):
        y = 0.9 * place
        box(axes, 0, y, text, color)
        if place:
            arrow(axes, (0, y - 0.62), (0, y - 0.28))
        if residual:
            low = y - 0.9 * residual - 0.45
            axes.plot([0, 1.35, 1.35, 1.05], [low - 0.02, low - 0.02, y, y], color=GRAY, lw=1.1)
            arrow(axes, (1.2, y), (1.02, y), GRAY)
    arrow(axes, (0, -0.75), (0, -0.28))
    top = 0.9 * (len(rows) - 1)
    arrow(axes, (0, top + 0.28), (0, top + 0.75))
    axes.set(xlim=(-1.5, 1.7), ylim=(-0.9, 5.5), title=title)
    axes.axis("off")


def blocks():
    """The residual stream, and what stands on it."""
    figure, axes = pyplot.subplots(1, 3, figsize=(9.5, 4.6), layout="constrained")
    norm, add = ("norm", GRAY), ("+", "black")
    attend, network = ("self-attention", BLUE), ("feed-forward", GREEN)
    stack(axes[0], 'EncoderBlock, "post"', [(*attend, None), (*add, 1), (*norm, None), (*network, None), (*add, 1),
                                            (*norm, None)])  # fmt: skip
    stack(axes[1], 'EncoderBlock, "pre"', [(*norm, None), (*attend, None), (*add, 2), (*norm, None), (*network, None),
                                           (*add, 2)])  # fmt: skip
    first, cross = ("causal self-attention", BLUE), ("cross-attention", RED)
    rows = [(*first, None), (*add, 1), (*cross, None), (*add, 1), (*network, None), (*add, 1)]
    stack(axes[2], 'DecoderBlock, "post", norms left out', rows)
    axes[2].annotate("context of\nthe encoder", xy=(-1.03, 1.8), xytext=(-1.45, 3.1), fontsize=8.5, ha="center",
                     arrowprops={"arrowstyle": "-|>", "color": RED})  # fmt: skip
    axes[2].set_xlim(-2.1, 1.7)
    return figure


def teacher_forcing():
    """Inputs and targets of a decoder in training, and the loop of inference."""
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 2.9), layout="constrained")
    target = ["START", "ein", "Hund", "läuft", "END"]
    for axis, title in zip(axes, ["training: all positions at once", "inference: token by token"]):
        axis.set(xlim=(-0.7, 3.7), ylim=(-0.6, 2.6), title=title)
        axis.axis("off")
        box(axis, 1.5, 1.0, "", BLUE, 4.1, 0.5)
        axis.text(-0.45, 1.0, "decoder", va="center", fontsize=9)
    for place in range(4):
        for axis, color in ((axes[0], "black"), (axes[1], "black" if place == 0 else RED)):
            axis.text(place, 0, target[place], ha="center", va="center", fontsize=10, color=color)
            axis.text(place, 2, target[place + 1], ha="center", va="center", fontsize=10)
            arrow(axis, (place, 0.2), (place, 0.7))
            arrow(axis, (place, 1.3), (place, 1.8))
    for place in range(3):
        arrow(axes[1], (place + 0.2, 1.85), (place + 0.85, 0.18), RED)
    axes[0].text(-0.65, 0.35, "target_ids", fontsize=8, color=GRAY)
    axes[0].text(-0.65, 2.3, "targets", fontsize=8, color=GRAY)
    return figure


def trained(steps):
    """Cross-attention of a model that has learnt to reverse a sequence."""
    keras.utils.set_random_seed(1)
    source = np.random.default_rng(1).integers(3, 30, (steps * 32, 8))
    target = np.pad(source[:, ::-1], ((0, 0), (1, 1)), constant_values=[(0, 0), (1, 2)])
    inputs, targets = txf.training.teacher_forcing(source, target)
    model = txf.models.encoder_decoder(30, 30, num_layers=1, dim=64, num_heads=2, norm_placement="pre", dropout=0.0)
    model.compile(keras.optimizers.Adam(3e-3), txf.training.TokenCrossEntropy())
    history = model.fit(inputs, targets, batch_size=32, epochs=1, verbose=0)
    print(f"The model that reverses: mean loss {history.history['loss'][0]:.3f}.")
    one = {name: value[:1] for name, value in inputs.items()}
    scores = np.array(txf.visualize.attention_scores(model, one)["decoder_0/cross_attention"])[0]
    figure, axes = pyplot.subplots(1, 2, figsize=(7, 3.4), layout="constrained")
    for head, axis in enumerate(axes):
        axis.imshow(scores[head], cmap="Blues", vmin=0, vmax=1)
        axis.set(title=f"head {head}", xlabel="source", ylabel="what comes next")
        axis.set_xticks(range(8), one["source_ids"][0])
        axis.set_yticks(range(9), [*targets[0][:8], "END"])
        axis.tick_params(length=0)
    return figure


if __name__ == "__main__":
    main(*sys.argv[1:2])
