"""The data of docs/journeys: a user's files, small."""

import numpy as np
import pandas

TICKETS = {
    "question": ["How do I change my address?", "Where is my order?", "Can I pay by card?", "When do you open?"],
    "complaint": ["My order came late again.", "The box was broken.", "Nobody answers the phone."],
    "outage": ["The site is down.", "I cannot log in, the site shows an error."],
}
NAMES = {"Ada Lovelace": "PER", "Grace Hopper": "PER", "Paris": "LOC", "New York": "LOC", "Alan Turing": "PER"}
STORY = ["The fox ran over the hill.", "The hen saw the fox.", "A dog slept by the door.", "The fox ran from the dog."]
QUESTIONS = {"who sings": "a bird", "who barks": "a dog", "who swims": "a fish", "who hunts": "a cat"}


def write_journey_files(folder):
    counts = zip(TICKETS.items(), (40, 25, 5))
    rows = [(text, label) for (label, texts), n in counts for text in texts * (n // len(texts))]
    _csv(folder / "tickets.csv", [("text", "label"), *rows])
    pandas.DataFrame(rows, columns=["text", "label"]).to_parquet(folder / "tickets.parquet")
    with open(folder / "train.conll", "w") as file:
        for name, kind in [*NAMES.items()] * 8:
            tagged = (f"{word} {'I' if i else 'B'}-{kind}\n" for i, word in enumerate(name.split()))
            file.write("".join(["I O\nsaw O\n", *tagged, ". O\n\n"]))
    (folder / "book").mkdir()
    for chapter in range(3):
        (folder / "book" / f"{chapter}.txt").write_text(" ".join(STORY * 10))
    hours, random = np.arange(24 * 60), np.random.default_rng(1)
    warmth = 10 + 5 * np.sin(hours / 90) + random.normal(0, 0.5, len(hours))
    load = 50 + 12 * np.sin(hours * np.pi / 12) + 6 * np.sin(hours * np.pi / 84) - warmth
    load += random.normal(0, 1, len(hours))
    np.savetxt(folder / "load.csv", np.stack([load, warmth], 1), "%.2f", ",", header="load,temperature", comments="")
    _images(folder / "squares", random)
    verbs = ["finds", "hides", "carries", "paints"]
    things = ["a red box", "an old coat", "the last letter", "a small boat"]
    lines = [f"person {n} {verb} {thing}" for n in range(625) for verb in verbs for thing in things]
    (folder / "sentences.txt").write_text("".join(f"{line}\n" for line in lines))  # 10,000
    pairs = [(question, answer, int(answer == right)) for question, right in QUESTIONS.items()
             for answer in QUESTIONS.values()]  # fmt: skip
    _csv(folder / "answers.csv", [("question", "answer", "fits"), *pairs * 10])
    _csv(folder / "instructions.csv", [("prompt", "response"), *((f"{q}?", f"{a}.") for q, a in QUESTIONS.items())])


def _csv(path, rows):
    path.write_text("".join(",".join(f'"{value}"' for value in row) + "\n" for row in rows))


def _images(folder, random):
    """Small pictures with a square of the colour that the folder of the class is named for."""
    from PIL import Image

    for channel, name in enumerate(["red", "green"]):
        (folder / name).mkdir(parents=True)
        for number in range(64):
            picture = random.integers(0, 90, (32, 32, 3), "uint8")
            y, x = random.integers(0, 22, 2)
            picture[y : y + 10, x : x + 10, channel] = 230
            Image.fromarray(picture).save(folder / name / f"{number}.png")
