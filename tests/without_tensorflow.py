"""What a user without TensorFlow does on JAX or PyTorch; test_install.py runs it. Prints the errors of all the rest."""

import importlib.machinery
import json
import pathlib
import sys
import tempfile


class Finder(importlib.machinery.PathFinder):
    """Finds TensorFlow no longer, as if it were not installed."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.split(".")[0] in ("tensorflow", "tensorflow_text")
        return None if hidden else super().find_spec(name, path, target)


if __name__ == "__main__":  # before Keras is imported
    sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder

import keras  # noqa: E402
import numpy as np  # noqa: E402

import keras_txf as txf  # noqa: E402

GOLDEN = pathlib.Path(__file__).parent / "checkpoints" / "golden"
SMALL = dict(num_layers=1, dim=8, num_heads=2, dropout=0.0)
IDS = np.random.default_rng(0).integers(1, 11, (6, 5)).astype("int32")
TEXTS, LABELS = ["a film", "a play"], [0, 1]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]


def trains_and_generates(folder):
    model = txf.models.decoder_generator(11, **SMALL)
    metrics = [txf.training.TokenAccuracy(), txf.training.Perplexity()]
    optimizer = keras.optimizers.Adam(txf.training.warmup_cosine(1e-2, 2, 8))
    model.compile(optimizer, txf.training.TokenCrossEntropy(), metrics=metrics)
    resume = txf.training.Resume(folder / "resume.npz")
    history = model.fit(*txf.training.shift_labels(IDS), batch_size=3, epochs=2, callbacks=[resume], verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    answers = model.generate([[3, 4], [5]], max_new_tokens=3)
    beams = model.generate([[3, 4], [5]], 3, txf.generation.Beam(2))
    assert answers.shape == beams.shape == (2, 5)
    model.save(folder / "model.keras")
    again = keras.models.load_model(folder / "model.keras")
    np.testing.assert_array_equal(again.generate([[3, 4], [5]], max_new_tokens=3), answers)


def adapts_and_looks_inside(folder):
    model = txf.models.encoder_classifier(11, num_classes=3, **SMALL)
    txf.training.add_adapter(model, rank=2)
    txf.training.save_adapter(model, folder / "adapter.safetensors")
    txf.training.load_adapter(model, folder / "adapter.safetensors", "another")
    scores = txf.visualize.attention_scores(model, IDS)
    assert scores["encoder_0/attention"].shape == (6, 2, 5, 5)
    txf.visualize.view_attention(scores, list("abcde"), path=folder / "attention.html")


def reads_and_writes_checkpoints(folder):
    model = txf.checkpoints.load(GOLDEN / "gpt2")
    txf.checkpoints.save(model, folder / "gpt2")
    inputs = np.load(GOLDEN / "gpt2" / "expected.npz")
    ours = keras.ops.convert_to_numpy(model(inputs["inputs"]))
    np.testing.assert_allclose(ours[inputs["real"]], inputs["logits"][inputs["real"]], atol=1e-4)


def holds_vocabularies(folder):
    assert txf.text.ByteTokenizer().vocab_size > 256
    assert txf.text.CharacterTokenizer.train(TEXTS).token_to_id("a") > 1
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "ByT5Tokenizer"}))
    assert txf.text.from_checkpoint(folder).special_tokens["</s>"] == 1


def errors():
    """A use of everything that needs TensorFlow, by name: the message of its error."""
    text, tasks, tokenizer = txf.text, txf.tasks, txf.text.ByteTokenizer(end="</s>")
    uses = {
        "call": lambda: tokenizer(TEXTS), "tokenize": lambda: tokenizer.tokenize("a"),
        "detokenize": lambda: tokenizer.detokenize([5]), "word pieces": lambda: text.WordPieceTokenizer(WORDS),
        "training of word pieces": lambda: text.WordPieceTokenizer.train(TEXTS, 20),
        "training of sentence pieces": lambda: text.SentencePieceTokenizer.train(TEXTS, 20),
        "next_token": lambda: text.next_token(TEXTS, tokenizer, 8),
        "classification": lambda: text.classification((TEXTS, LABELS), tokenizer, num_classes=2),
        "sentence_pairs": lambda: text.sentence_pairs((TEXTS, TEXTS, LABELS), tokenizer, num_classes=2),
        "contrastive_pairs": lambda: text.contrastive_pairs((TEXTS, TEXTS), tokenizer),
        "preferences": lambda: text.preferences((TEXTS, TEXTS, TEXTS), tokenizer),
        "instruction": lambda: text.instruction((TEXTS, TEXTS), tokenizer),
        "token_classification": lambda: text.token_classification(([["a"]], [["x"]]), tokenizer, ["x", "y"]),
        "token_ids": lambda: text.token_ids(TEXTS, tokenizer),
        "pack": lambda: text.pack(TEXTS, 5), "counted": lambda: text.counted(TEXTS),
        "bucket_lengths": lambda: text.bucket_lengths(TEXTS),
        "TextClassifier": lambda: tasks.TextClassifier.from_scratch(TEXTS, LABELS, **SMALL),
        "TextEmbedder": lambda: tasks.TextEmbedder.from_scratch(TEXTS, TEXTS, tokenizer=tokenizer, **SMALL).encode("a"),
        "TextGenerator": lambda: tasks.TextGenerator.from_scratch(TEXTS, tokenizer=tokenizer, **SMALL).generate("a"),
    }  # fmt: skip
    for name, use in uses.items():
        try:
            use()
        except ImportError as error:
            yield name, str(error)
        else:
            yield name, None


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for work in (trains_and_generates, adapts_and_looks_inside, reads_and_writes_checkpoints, holds_vocabularies):
            folder = pathlib.Path(temporary) / work.__name__
            folder.mkdir()
            work(folder)
    print(json.dumps(dict(errors())))
