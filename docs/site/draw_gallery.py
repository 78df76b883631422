"""Draws the pictures of docs/gallery.md: `python docs/site/draw_gallery.py [RUNS]`.

The bars show numbers that the page names. The other pictures show what trained models do; the folder RUNS holds them
(default: runs, where `examples/classify_digits.py`, `read_dates.py` and `read_scenes.py` write them). Without it they stay
as they are.
"""

import pathlib
import sys

import keras_txf as txf  # before Keras, to keep TensorFlow's start-up lines away

# isort: split
import numpy as np
from matplotlib import pyplot

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "gallery"
OURS, OTHER = "#4c72b0", "#b3b3b3"
BARS = {  # picture -> the quantity, and for each row its measured numbers, as they stand on the page
    "characters": (
        "validation cross-entropy of a character (lower is better)",
        {"nanoGPT": ["1.88"], "learned positions": ["1.817"], "rotary, 1,300 steps": ["1.810"],
         "rotary, 2,000 steps": ["1.719"]},
    ),
    "multi30k": (
        "BLEU on Multi30k, test 2016 (higher is better)",
        {"published": ["41.02"], "this package": ["41.66"], "and its own translations": ["42.15"],
         "and once more": ["42.59"]},
    ),
    "pretraining": (
        "BLEU after 3,000 pairs (higher is better)",
        {"from scratch": ["13.72", "12.77"], "pretrained encoder": ["18.49", "17.47"]},
    ),
    "forecast": (
        "mean absolute error, cars an hour (lower is better)",
        {"the week before": ["237.2"], "LSTM": ["194.5", "195.3", "195.3"], "Transformer": ["188.3", "189.8", "186.6"]},
    ),
    "questions": (
        "F1 of the answers (higher is better)",
        {"nearest sentence": ["0.1561"], "fine-tuned MiniLM": ["0.5366"]},
    ),
    "similarity": (
        "Spearman on STS-B dev (higher is better)",
        {"cross-encoder": ["85.95", "85.84"], "vectors as they are": ["86.72"], "fine-tuned vectors": ["87.23"]},
    ),
}  # fmt: skip


def main(runs="runs"):
    runs = ROOT / runs
    pyplot.rcParams.update({"font.size": 9, "savefig.dpi": 200, "axes.spines.top": False, "axes.spines.right": False})
    FOLDER.mkdir(exist_ok=True)
    for name, (quantity, rows) in BARS.items():
        save(bars(quantity, rows), name)
    sys.path.insert(0, str(ROOT / "examples"))
    for draw, folder in ((digits, "classify_digits"), (dates, "read_dates"), (scenes, "read_scenes")):
        if (runs / folder).is_dir():
            save(draw(runs / folder), draw.__name__)


def save(figure, name):
    figure.savefig(FOLDER / f"{name}.png", facecolor="white", pil_kwargs={"optimize": True})
    pyplot.close(figure)
    print(f"Wrote {name}.png.")


def bars(quantity, rows):
    """A bar for each row, as long as the mean of its numbers, which stand beside it."""
    figure, axes = pyplot.subplots(figsize=(4.2, 0.7 + 0.36 * len(rows)), layout="constrained")
    for place, (name, texts) in enumerate(reversed(rows.items())):
        values = np.array(texts, "float")
        axes.barh(place, values.mean(), color=OURS if place == 0 else OTHER, height=0.62)
        axes.text(values.max() * 1.02, place, "  ".join(texts), va="center", fontsize=8.5)
    longest = max(np.array(texts, "float").max() for texts in rows.values())
    axes.set_yticks(range(len(rows)), [*reversed(rows)])
    axes.set_xlim(0, longest * 1.42)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(length=0)
    axes.set_title(quantity, fontsize=9, loc="right")
    return figure


def digits(folder):
    """Six held-out digits, what the model reads, and where it looks."""
    import classify_digits
    import keras

    model = keras.saving.load_model(folder / "transformer.keras")
    _, (images, labels) = classify_digits.load(seed=1)
    chosen = images[[np.flatnonzero(labels == digit)[0] for digit in (0, 2, 3, 5, 8, 9)]]
    answers = np.array(model.predict(chosen, verbose=0)).argmax(-1)
    rollout = txf.visualize.attention_rollout(txf.visualize.attention_scores(model, chosen))
    looked = np.array(rollout).mean(axis=-2)[..., -16:].reshape(-1, 4, 4)
    figure, axes = pyplot.subplots(2, 6, figsize=(4.2, 1.75), layout="constrained")
    for place, column in enumerate(axes.T):
        column[0].imshow(chosen[place, ..., 0], cmap="gray_r")
        column[0].set_title(f"reads {answers[place]}", fontsize=9)
        column[1].imshow(looked[place], cmap="Blues")
        for axis in column:
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
    axes[0, 0].set_ylabel("image", fontsize=8)
    axes[1, 0].set_ylabel("looks at", fontsize=8)
    return figure


def scenes(folder):
    """Two scenes of held-out digits for each kind of question, and the model's answers."""
    import classify_digits
    import keras
    import read_scenes
    from scenes import KINDS, answer, ask, make_scenes

    model = keras.saving.load_model(folder / "scenes.keras")
    _, held_out = classify_digits.split(seed=1)
    images, truth = make_scenes(*held_out, 40, "gallery")
    questions = np.array(ask(truth, "gallery"))
    chosen = np.array([np.flatnonzero(np.char.startswith(questions, kind))[:2] for kind in KINDS]).T.ravel()
    images, questions, truth = images[chosen], questions[chosen].tolist(), truth[chosen]
    found = read_scenes.read(model, questions, images)
    with pyplot.rc_context({"axes.spines.top": True, "axes.spines.right": True}):
        return read_scenes.draw(images, questions, found, [answer(*pair) for pair in zip(questions, truth)])


def dates(folder):
    """Which characters of a text the decoder read for each character of its answer."""
    import data
    import read_dates

    model, characters = data.load(folder, "dates", "characters")
    text = "samedi 3 mars 2018"
    [answer] = read_dates.read([text], model, characters)
    inputs, _ = read_dates.encode([(None, text, answer)], characters)
    scores = txf.visualize.attention_scores(model, inputs)
    [cross] = [np.array(part)[0].mean(0) for name, part in scores.items() if "cross_attention" in name]
    figure, axes = pyplot.subplots(figsize=(4.2, 2.6), layout="constrained")
    axes.imshow(cross[: len(answer), : len(text)], cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(text)), list(text))
    axes.set_yticks(range(len(answer)), list(answer))
    axes.set(xlabel="the text", ylabel="the answer")
    axes.tick_params(length=0)
    return figure


if __name__ == "__main__":
    main(*sys.argv[1:2])
