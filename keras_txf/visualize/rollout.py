"""What an image model looks at: attention rollout, and maps of attention over the image."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.visualize.plots import as_text, chosen_heads, chosen_layers, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def attention_rollout(scores: dict[str, Any] | Sequence[Any]) -> np.ndarray:
    """Follows attention through all layers: how much of each input is in each output.

    Each layer's weights are the mean of its heads, half of them, with half of the identity for the residual connection.
    The product of all layers is the rollout. It is a heuristic: it knows nothing of the values, the feed-forwards and
    the norms.

    Args:
        scores: dict of layer names -> weights (B, N, T, T), or a list of weights, the first layer's first. B batch, N
            heads, T tokens. Self-attention alone.

    Returns:
        NumPy float64 (B, T, T): row for each output, column for each input; rows sum to 1.

    Raises:
        ValueError: no layers, or weights of other shapes than the first layer's up to the heads.

    Reference:
        [Quantifying Attention Flow in Transformers](https://arxiv.org/abs/2005.00928), section 3.

    Example:

    >>> first, second = np.array([[[[1, 0], [1, 0]]]]), np.array([[[[0, 1], [0, 1]]]])
    >>> txf.visualize.attention_rollout([first, second])[0].tolist()
    [[0.75, 0.25], [0.5, 0.5]]
    """
    layers = list(scores.values()) if isinstance(scores, dict) else scores
    if not isinstance(layers, (list, tuple)) or not layers:
        raise ValueError(f"`scores` must be a dict or list of weights (B, N, T, T); received {short_repr(scores)}.")
    rollout = None
    for layer in layers:
        weights = as_floats("scores", layer)
        checks.rank("scores", weights, (4, "(batch, heads, tokens, tokens)"))
        batch, _, queries, keys = weights.shape
        if queries != keys or (rollout is not None and rollout.shape != (batch, queries, keys)):
            raise ValueError(
                "`scores` must be of self-attention over one sequence, (B, N, T, T), leave cross-attention out; "
                f"received shape {weights.shape}."
            )
        mixed = weights.mean(axis=1) + np.eye(queries)
        mixed /= mixed.sum(axis=-1, keepdims=True)
        rollout = mixed if rollout is None else mixed @ rollout
    return rollout


def plot_attention_on_image(
    image: Any,
    scores: dict[str, Any],
    patch_size: int | tuple[int, int],
    rollout: bool = True,
    layers: str | Sequence[str] | None = None,
    heads: int | str | Sequence[int] | None = "mean",
    example: int = 0,
) -> "Figure":
    """Draws images, and what a vision transformer looks at in them, as heat maps over the patches.

    With a class token the maps are its attention to the patches; without one they are the mean over all patches that
    attend.
    Each map has its own scale of colours, from the least to the most that a patch gets.

    Args:
        image: (height, width, channels) floats, or a batch of them, (B, height, width, channels): then a row for each.
            One channel or three; they are stretched to the range of colours.
        scores: dict of layer names -> weights (B, N, T, T), as `attention_scores` returns it. T is the number of
            patches, row by row from the top left, and one more for a class token, which stands first.
        patch_size: height and width of a patch in pixels, a pair or one number for both.
        rollout: whether the second picture is `attention_rollout` of all layers.
        layers: name or list of names of layers whose own attention is drawn as well. Default none.
        heads: of those layers: "mean", index or list of indices, or None: all.
        example: the row of the batch of `scores`, where `image` is a single one.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: patches that do not divide the image or do not fit T, a layer, head or example that is not there.
        ImportError: matplotlib is not installed.

    Reference:
        [An Image is Worth 16x16 Words](https://arxiv.org/abs/2010.11929), appendix D.7.

    Example:

    >>> scores = {"encoder_0/attention": np.full((1, 2, 5, 5), 1 / 5)}  # or attention_scores(model, images)
    >>> figure = txf.visualize.plot_attention_on_image(np.zeros((8, 8, 1)), scores, patch_size=4)
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['image', 'rollout']
    """
    images = as_floats("image", image)
    checks.rank("image", images, (3, "(height, width, channels)"), (4, "(batch, height, width, channels)"))
    if images.shape[-1] not in (1, 3):
        raise ValueError(f"`image` must have one channel or three; received shape {images.shape}.")
    everything = chosen_layers(scores, None)
    if not len(images):
        raise ValueError("`image` must hold at least one image; received none.")
    batch = len(next(iter(everything.values())))
    if images.ndim == 3:
        images, examples = images[None], [checks.integer_between("example", example, 0, batch - 1)]
    elif len(images) > batch:
        raise ValueError(f"`image` must not be more than the {batch} rows of `scores`; received {len(images)}.")
    else:
        examples = range(len(images))
    grid = _patches(images.shape[1:3], checks.pair("patch_size", patch_size), everything)
    columns = [("rollout", attention_rollout(everything))] if checks.boolean("rollout", rollout) else []
    for name, weights in everything.items():  # `heads` is judged even where no layer's own attention is drawn
        chosen_heads(name, weights.swapaxes(0, 1), heads)
    for name, weights in ({} if layers is None else chosen_layers(scores, layers)).items():
        of_heads = chosen_heads(name, weights.swapaxes(0, 1), heads)
        columns += [(f"{name}\n{title}", maps) for title, maps in of_heads.items()]
    figure = new_figure(1.9 * (1 + len(columns)) + 0.6, 1.9 * len(images) + 0.6)
    from matplotlib.cm import ScalarMappable  # after `new_figure`, which says where matplotlib is not installed

    axes = figure.subplots(len(images), 1 + len(columns), squeeze=False)
    for row, picture, number in zip(axes, images, examples):
        span = picture.max() - picture.min()
        picture = (picture - picture.min()) / (span or 1)
        for panel in row:
            panel.set_axis_off()
            dim = 1 if panel is row[0] else 0.3  # under a map, where light and dark would change its colours
            shade = 0.5 + dim * (picture - 0.5)
            panel.imshow(shade[..., 0] if shade.shape[-1] == 1 else shade, cmap="gray", vmin=0, vmax=1)
        for panel, (_, maps) in zip(row[1:], columns):
            heat = maps[number][0, 1:] if maps.shape[-1] > grid[0] * grid[1] else maps[number].mean(axis=0)
            patch = [pixels // patches for pixels, patches in zip(picture.shape, grid)]
            heat = np.kron(heat.reshape(grid), np.ones(patch))
            drawn = panel.imshow(heat, cmap="inferno", alpha=0.75)
    for panel, title in zip(axes[0], ["image", *(title for title, _ in columns)]):
        panel.set_title(as_text(title), fontsize=8)
    if columns:
        bar = figure.colorbar(
            ScalarMappable(cmap=drawn.cmap), ax=axes, alpha=0.75, shrink=min(1.0, 2 / len(images)), fraction=0.04
        )
        bar.set_ticks([0, 1], labels=["least", "most"], fontsize=7)
        bar.set_label("weight in its map", fontsize=7)
    return figure


def as_floats(name, value):
    """A tensor, an array or nested lists as float64."""
    checks.number_tensor(name, value)  # which on JAX would round float64 to float32
    return np.asarray(ops.convert_to_numpy(value), "float64")


def _patches(size, patch_size, scores):
    """Rows and columns of patches."""
    if any(pixels % patch for pixels, patch in zip(size, patch_size)):
        raise ValueError(f"`patch_size` must divide the height and width of `image`; received {patch_size} and {size}.")
    rows, columns = (pixels // patch for pixels, patch in zip(size, patch_size))
    for name, weights in scores.items():
        if weights.shape[2] != weights.shape[3] or weights.shape[3] - rows * columns not in (0, 1):
            raise ValueError(
                f"`scores` must be over the {rows * columns} patches of the image, and perhaps a class token; "
                f"received shape {weights.shape} for {short_repr(name)}."
            )
    return rows, columns
