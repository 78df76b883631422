"""Scenes of handwritten digits, questions about them, and the answers by rule."""

import numpy as np

NOTHING = 10  # the class of an empty quarter
PLACES = ("top left", "top right", "bottom left", "bottom right")
KINDS = ("what is at", "how many", "which is the largest", "read")
WORDS = sorted({"nothing", "?", ".", *"0123456789", *" ".join((*KINDS, *PLACES)).split()})


def make_scenes(images, labels, count, seed):
    """Scenes of one to four digits, each somewhere in its quarter.

    Args:
        images: digits, float (N, 8, 8, 1), with -1 as the background.
        labels: int (N,).
        count: number of scenes.
        seed: a number or text; the same seed gives the same scenes.

    Returns:
        Scenes, float (count, 24, 24, 1), and the digit in each quarter, int (count, 4), `NOTHING` where it is empty.
    """
    random = generator(seed)
    chosen, shifts = random.integers(len(images), size=(count, 4)), random.integers(5, size=(count, 4, 2))
    is_empty = random.permuted(np.tile(np.arange(4), (count, 1)), axis=1) >= random.integers(1, 5, (count, 1))
    canvas = np.full((count, 4, 12, 12, 1), -1, "float32")
    for scene, quarter in np.argwhere(~is_empty):
        top, left = shifts[scene, quarter]
        canvas[scene, quarter, top : top + 8, left : left + 8] = images[chosen[scene, quarter]]
    scenes = canvas.reshape(count, 2, 2, 12, 12, 1).swapaxes(2, 3).reshape(count, 24, 24, 1)
    return scenes, np.where(is_empty, NOTHING, labels[chosen])


def generator(seed):
    return np.random.default_rng([*str(seed).encode()])


def quarters(scenes):
    """The quarters of scenes, (4 N, 12, 12, 1)."""
    return scenes.reshape(-1, 2, 12, 2, 12, 1).swapaxes(2, 3).reshape(-1, 12, 12, 1)


def ask(digits, seed):
    """A question for each scene. In half of the questions "how many" the scene has the digit for certain."""
    random, questions = generator(seed), []
    for row in digits:
        kind = random.choice(KINDS)
        counted = random.choice(row[row < NOTHING]) if random.random() < 0.5 else random.integers(10)
        detail = {"what is at": f" {random.choice(PLACES)}", "how many": f" {counted}"}.get(kind, "")
        questions.append(f"{kind}{detail} ?")
    return questions


def answer(question, digits):
    """The answer by rule, from the digit in each quarter."""
    found = digits[digits < NOTHING]
    if question.startswith("what is at"):
        found = [digits[PLACES.index(question[11:-2])]]
    elif question.startswith("how many"):
        found = [np.sum(found == int(question.split()[2]))]
    elif question.startswith("which"):
        found = [max(found, default=NOTHING)]
    return " ".join([*("nothing" if one == NOTHING else str(one) for one in found), "."])
