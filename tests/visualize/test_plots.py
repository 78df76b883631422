"""Pictures show the values of their arguments, and bad arguments raise errors."""

import sys

import keras
import numpy as np
import pytest

import keras_txf as txf
from keras_txf.ops.positions import alibi_slopes
from keras_txf.visualize import attention_rollout, plot_attention, plot_attention_on_image, plot_history, plot_positions

pytest.importorskip("matplotlib")

RNG = np.random.default_rng(3)


def weights(*shape):
    values = RNG.random(shape)
    return values / values.sum(axis=-1, keepdims=True)


SCORES = {
    "encoder_0/attention": weights(2, 3, 5, 5), "decoder_0/attention": weights(2, 3, 4, 4),
    "decoder_0/cross_attention": weights(2, 2, 4, 5),
}  # fmt: skip
TOKENS, SOURCE = ["<s>", "ein", "$Hund"], ["a", "dog", "and", "cat", "."]


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def drawn(axes):
    return np.asarray(axes.images[-1].get_array())


def test_attention_shows_the_weights_of_each_layer_and_head():
    figure = plot_attention(SCORES, TOKENS, SOURCE, example=1)
    assert figure._repr_png_().startswith(b"\x89PNG")  # for notebooks
    *panels, bar = figure.axes
    assert len(panels) == 3 + 3 + 2 and bar.get_ylabel() == "weight"
    expected = [(name, head) for name, maps in SCORES.items() for head in range(maps.shape[1])]
    for axes, (name, head) in zip(panels, expected):
        queries = SOURCE if name.startswith("encoder") else TOKENS
        keys = TOKENS if name == "decoder_0/attention" else SOURCE
        assert labels(axes.xaxis) == [key.replace("$", r"\$") for key in keys]
        assert labels(axes.yaxis) == ([query.replace("$", r"\$") for query in queries] if head == 0 else [])
        assert axes.get_title(loc="left") == (f"{name}\nhead 0" if head == 0 else f"head {head}")
        np.testing.assert_array_equal(drawn(axes), SCORES[name][1, head, : len(queries), : len(keys)])
    assert {axes.images[0].get_clim() for axes in panels} == {(0, max(drawn(axes).max() for axes in panels))}


def test_attention_of_some_layers_and_heads():
    panels = plot_attention(SCORES, layers="encoder_0/attention", heads=[2, 0]).axes[:-1]
    assert [axes.get_title(loc="left").splitlines()[-1] for axes in panels] == ["head 2", "head 0"]
    np.testing.assert_array_equal(drawn(panels[0]), SCORES["encoder_0/attention"][0, 2])
    assert labels(panels[0].xaxis) == list("01234")
    [axes, _] = plot_attention(SCORES, layers=["decoder_0/attention"], heads="mean").axes
    np.testing.assert_allclose(drawn(axes), SCORES["decoder_0/attention"][0].mean(axis=0))
    assert len(plot_attention(SCORES, heads=1).axes) == 3 + 1


def overlap(axis):
    """How far labels reach into the next, in pixels."""
    axis.get_figure().draw_without_rendering()
    boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
    return max(below.y1 - above.y0 for above, below in zip(boxes, boxes[1:]))


@pytest.mark.drawn(3)
@pytest.mark.parametrize("heads, count, height, shown, pixels", [
    (12, 60, 3, 12, 0), (1, 30, 6, 30, 1), (1, 200, 6, 34, 1),
])  # fmt: skip
def test_many_heads_and_tokens_fit_a_screen_and_labels_do_not_overlap(heads, count, height, shown, pixels):
    words = [f"word{i}" for i in range(count)]
    figure = plot_attention({"encoder_0/attention": weights(1, heads, count, count)}, words)
    assert figure.get_figwidth() < 24 and figure.get_figheight() < height
    axis = figure.axes[0].yaxis
    assert overlap(axis) <= pixels and len(labels(axis)) == shown and labels(axis)[0] == "word0"


@pytest.mark.parametrize("arguments, message", [
    ({"layers": "encoder_1/attention"}, "`layers` must be of \\['encoder_0/attention'.*received 'encoder_1/attention'"),
    ({"layers": []}, "`layers` must name at least one"), ({"heads": "sum"}, "`heads` must be indices.*received 'sum'"),
    ({"heads": 3}, "`heads` must be .*'encoder_0/attention' has heads 0 to 2; received 3"),
    ({"tokens": [*"abcde"], "source_tokens": [*"abcde"]}, "`tokens` .* from 1 to 4 .* 'decoder_0/.* 4 queries; .* 5"),
    ({"tokens": list("abcd")}, "`source_tokens` must be given with `tokens`"), ({"scores": {}}, "`scores` must be a d"),
    ({"source_tokens": list("abcdef")}, "`source_tokens` must be from 1 to 5 strings.*received 6"),
    ({"example": 2}, "`example` must be an integer from 0 to 1; received 2"),
    ({"scores": {"encoder_0/attention": np.ones((3, 4, 4))}}, "must have shape .batch, heads, queries, keys."),
])  # fmt: skip
def test_bad_arguments_of_attention_raise_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot_attention(**{"scores": SCORES, **arguments})


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install 'keras_txf\[visualize\]'"):
        plot_attention(SCORES)


def test_rollout_equals_a_loop():
    layers = [weights(2, 3, 5, 5) for _ in range(4)]
    expected = np.stack([np.eye(5)] * 2)
    for row, layer in np.ndindex(2, 4):
        following = np.zeros((5, 5))
        for i in range(5):
            mixed = [sum(layers[layer][row, head, i, j] for head in range(3)) / 3 + (i == j) for j in range(5)]
            for k in range(5):
                following[i, k] = sum(mixed[j] / sum(mixed) * expected[row, j, k] for j in range(5))
        expected[row] = following
    np.testing.assert_allclose(attention_rollout(layers), expected, rtol=1e-12)
    named = attention_rollout({f"layer_{i}": layer for i, layer in enumerate(layers)})
    np.testing.assert_array_equal(named, attention_rollout(layers))


@pytest.mark.parametrize("scores", [[], "maps", [weights(1, 1, 4, 5)], [weights(1, 1, 4, 4), weights(1, 1, 5, 5)]])
def test_bad_arguments_of_rollout_raise_errors(scores):
    with pytest.raises(ValueError, match="`scores` must be"):
        attention_rollout(scores)


@pytest.mark.parametrize("class_token", [True, False])
def test_attention_on_images(class_token):
    count = 6 + class_token
    scores = {f"encoder_{i}/attention": weights(2, 3, count, count) for i in range(2)}
    images = RNG.normal(size=(2, 4, 9, 3))
    figure = plot_attention_on_image(images, scores, (2, 3), layers="encoder_1/attention", heads=[2])
    assert [axes.get_title() for axes in figure.axes[:3]] == ["image", "rollout", "encoder_1/attention\nhead 2"]
    for row in range(2):
        image, rollout, own = figure.axes[3 * row : 3 * row + 3]
        expected = (images[row] - images[row].min()) / (images[row].max() - images[row].min())
        np.testing.assert_allclose(drawn(image), expected, atol=1e-12)
        for axes, maps in ((rollout, attention_rollout(scores)[row]), (own, scores["encoder_1/attention"][row, 2])):
            heat = maps[0, 1:] if class_token else maps.mean(axis=0)
            patches = drawn(axes)[::2, ::3]
            np.testing.assert_allclose(patches.ravel(), heat)
            np.testing.assert_array_equal(drawn(axes)[1::2, 2::3], patches)  # a patch has one colour
    [_, second, _] = plot_attention_on_image(images[1], scores, (2, 3), example=1).axes
    np.testing.assert_array_equal(drawn(second), drawn(figure.axes[4]))
    assert len(plot_attention_on_image(images[0], scores, (2, 3), rollout=False).axes) == 1


@pytest.mark.parametrize("shape, message", [
    ((4, 9, 3), "`patch_size` must divide"), ((4, 8, 3), "`scores` must be over the 8 patches"),
    ((4, 6, 2), "`image` must have one channel or three"), ((4, 6), "`image` must have shape"),
    ((3, 4, 6, 1), "`image` must have at most the 2 rows"),
])  # fmt: skip
def test_bad_arguments_of_attention_on_images_raise_errors(shape, message):
    with pytest.raises(ValueError, match=message):
        plot_attention_on_image(np.zeros(shape), {"encoder_0/attention": weights(2, 3, 7, 7)}, patch_size=2)


def test_positions_that_are_added():
    layer = txf.layers.PositionalEmbedding(None, 6, position_encoding="learned", max_length=5)
    layer(np.array([[1, 2, 3]]))
    figure = plot_positions(layer)
    table = keras.ops.convert_to_numpy(layer.position.embeddings)
    np.testing.assert_allclose(drawn(figure.axes[0]), table)
    norms = np.linalg.norm(table, axis=1)
    np.testing.assert_allclose(drawn(figure.axes[1]), table @ table.T / norms / norms[:, None], atol=1e-6)
    waves = drawn(plot_positions("sinusoidal", length=7, dim=4).axes[0])
    np.testing.assert_allclose(waves[:, 2], np.sin(np.arange(7) / 100), atol=1e-6)


def test_rotary_positions():
    figure = plot_positions(txf.layers.Rotary(base=100.0, fraction=0.5), length=5, dim=8)
    angles = np.arange(5)[:, None] * np.array([1, 0.1])
    np.testing.assert_allclose(drawn(figure.axes[0]), np.cos(angles))
    np.testing.assert_allclose(drawn(figure.axes[1]), np.cos(angles[:, None] - angles[None]).mean(axis=-1))


def test_biases():
    figure = plot_positions("alibi", length=4, num_heads=3, head=1)
    lines = figure.axes[0].lines
    assert len(lines) == 3
    for line, slope in zip(lines, alibi_slopes(3)):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(-3, 4))
        np.testing.assert_allclose(line.get_ydata(), -slope * np.abs(np.arange(-3, 4)))
    layer = txf.layers.RelativeBias(num_heads=2, num_buckets=8, max_distance=6)
    layer.build()
    layer.embeddings.assign(RNG.normal(size=(8, 2)))
    figure = plot_positions(layer, length=3, head=1)
    matrix = keras.ops.convert_to_numpy(layer.bias(np.arange(3), np.arange(3)))[0]
    np.testing.assert_array_equal(drawn(figure.axes[1]), matrix[1])
    assert figure.axes[0].lines[0].get_ydata()[3] == matrix[0, 1, 2]  # distance 1
    lines = [line.get_ydata() for line in plot_positions("relative", length=64, num_heads=2).axes[0].lines]
    assert [len(set(line)) for line in lines] == [27, 27]  # of 0 to 7 one each, two of 8 to 63: T5's 32 buckets


@pytest.mark.parametrize("arguments, message", [
    ({"layer": "cosine"}, "`layer` must be a Positional.*'rotary', 'alibi', 'relative'.*'cosine'"),
    ({"layer": keras.layers.Dense(3)}, "`layer` must be a PositionalEmbedding, .* received <Dense"),
    ({"layer": "alibi", "head": 8}, "`head` must be an integer from 0 to 7; received 8"),
    ({"layer": "rotary", "dim": 5}, "`dim` . fraction must be even"),
    ({"layer": txf.layers.PositionalEmbedding(9, 4, position_encoding=None)}, "position_encoding=None"),
    ({"layer": txf.layers.PositionalEmbedding(9, 4, max_length=5), "length": 6}, "`length` .* from 1 to 5; received 6"),
    ({"layer": "sinusoidal", "length": 0}, "`length` must be"),
])  # fmt: skip
def test_bad_arguments_of_positions_raise_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot_positions(**arguments)


def test_history_of_fit_and_of_its_csv(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x, y = RNG.normal(size=(8, 3)), RNG.normal(size=(8, 1))
    log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    history = model.fit(x, y, epochs=3, verbose=0, validation_split=0.5, callbacks=[log])
    for source in (history, history.history, tmp_path / "log.csv", str(tmp_path / "log.csv")):
        panels = {axes.get_title(): axes for axes in plot_history(source).axes}
        assert set(panels) == {"loss", "mae"}
        assert panels["loss"].get_yscale() == "log" and panels["mae"].get_yscale() == "linear"
        for name, axes in panels.items():
            for line, key in zip(axes.lines, (name, f"val_{name}"), strict=True):
                assert line.get_xdata().tolist() == [1, 2, 3]
                np.testing.assert_allclose(line.get_ydata(), history.history[key], rtol=1e-6)


def test_history_with_gaps_and_losses_below_zero(tmp_path):
    (tmp_path / "log.csv").write_text("epoch,loss,lonely\n4,-1.5,NA\n5,-2.0,0.5\n", encoding="utf-8")
    loss, lonely = plot_history(tmp_path / "log.csv").axes
    assert loss.get_yscale() == "linear" and loss.lines[0].get_xdata().tolist() == [5, 6]
    np.testing.assert_array_equal(lonely.lines[0].get_ydata(), [np.nan, 0.5])
    for bad in ({}, {"loss": []}, 3):
        with pytest.raises(ValueError, match="`history` must"):
            plot_history(bad)
