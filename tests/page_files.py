"""The small files that the pages' code finds where it runs: data, and checkpoints with random weights.

`python tests/page_files.py PAGE` runs the code of a page in the folder that it is called in.
"""

import builtins
import json
import pathlib
import re
import sys
import warnings

import keras
from chat_cases import PUBLISHED, TOKENS, tokenizer_folder
from folders import BERT, LLAMA, tensors, write
from journey_files import write_journey_files

import keras_txf as txf

GOOD = ["A moving film.", "What a fine cast!", "Warm, clever and quick.", "I laughed twice; I cried once."]
BAD = ["A waste of time.", "Dull from start to end.", "The plot makes no sense.", "I left before it was over."]
ENGLISH = ["a dog runs", "two dogs run", "a man sleeps", "two men sleep", "a bird sings", "two birds sing"]
GERMAN = ["ein Hund läuft", "zwei Hunde laufen", "ein Mann schläft", "zwei Männer schlafen", "ein Vogel singt",
          "zwei Vögel singen"]  # fmt: skip


def write_files(folder: pathlib.Path):
    """Writes what any page may read."""
    rows = [("text", "label"), *((text, "positive") for text in GOOD * 8), *((text, "negative") for text in BAD * 5)]
    (folder / "reviews.csv").write_text("".join(f'"{text}",{label}\n' for text, label in rows))
    pairs = list(zip(ENGLISH, GERMAN)) * 6
    (folder / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in [("source", "target"), *pairs]))
    (folder / "train.en").write_text("".join(f"{a}\n" for a, _ in pairs))
    (folder / "train.de").write_text("".join(f"{b}\n" for _, b in pairs))
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in [*GOOD, *BAD, *ENGLISH] * 4))
    (folder / "squad.json").write_text(json.dumps(squad()))
    encoder(folder / "minilm")
    chat_model(folder / "smollm")
    write_journey_files(folder)


def squad():
    """Questions in SQuAD's format, whose answers are the first two words of texts."""
    paragraphs = []
    for text in GOOD + BAD:
        answer = {"text": " ".join(text.split()[:2]), "answer_start": 0}
        paragraphs.append({"context": text, "qas": [{"question": "How does it begin?", "answers": [answer]}]})
    return {"version": "1.1", "data": [{"title": "films", "paragraphs": paragraphs}]}


def encoder(folder):
    """A BERT of random weights with the vocabulary of the reviews: what `transformers` writes, but small."""
    tokenizer = txf.text.WordPieceTokenizer.train([*GOOD, *BAD, *ENGLISH] * 2, 200)
    sizes = {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 64, "type_vocab_size": 2}
    config = BERT | sizes | {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    write(folder, config, _small(config))
    (folder / "vocab.txt").write_text(
        "".join(f"{token}\n" for token in map(tokenizer.id_to_token, range(tokenizer.vocab_size)))
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))


def chat_model(folder):
    """A Llama of random weights with a tokenizer of byte pairs and a chat template."""
    tokenizer_folder(folder, PUBLISHED["qwen2_5"])
    tokenizer = txf.text.from_checkpoint(folder)
    config = LLAMA | {"vocab_size": tokenizer.vocab_size, "max_position_embeddings": 512, "hidden_size": 32}
    ends = {"bos": TOKENS["bos_token"], "eos": TOKENS["eos_token"], "pad": TOKENS["pad_token"]}
    config |= {f"{name}_token_id": tokenizer.token_to_id(token) for name, token in ends.items()}
    write(folder, config | {"intermediate_size": 48}, _small(config | {"intermediate_size": 48}))


def _small(config):
    return {name: array * 0.05 for name, array in tensors(config).items()}


def run_page(page):
    """Runs its blocks one after the other. An error names the line of the page; a warning is an error, as in tests."""
    keras.utils.set_random_seed(7)
    text, names = page.read_text(), {"__name__": "page"}
    warnings.simplefilter("error")
    settings = (pathlib.Path(__file__).parents[1] / "setup.cfg").read_text()
    for message, category in re.findall(r"^    ignore:(.*):(\w+)$", settings, flags=re.M):
        warnings.filterwarnings("ignore", message, getattr(builtins, category))
    for match in re.finditer(r"^```python\n(.*?)^```", text, flags=re.S | re.M):
        lines_before = text[: match.start(1)].count("\n")
        exec(compile("\n" * lines_before + match[1], page, "exec"), names)


if __name__ == "__main__":
    run_page(pathlib.Path(sys.argv[1]))
