"""Tokens per second of our tokenizers beside those of Hugging Face, `sentencepiece` and KerasHub, and of training.

Training is padded, bucketed, packed, or KerasHub's recipe: see text_training.py.

Of the tokenizers: the same lines and vocabularies for each, batch after batch, in one run, in turn; medians. Ours and
KerasHub's run in a `tf.function`, as in `tf.data`; the others are called from Python. All may use every core. "same" is
the share of lines with Hugging Face's ids.

    pip install keras-hub 'keras_txf[tensorflow,text]' transformers
    python benchmarks/text.py --data DIR        # a folder with text, a sentence a line, gzipped or not
    python benchmarks/text.py --data DIR --part training        # with `train.en` and `train.de`
"""

import argparse
import gzip
import io
import json
import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_hub
import sentencepiece
import tensorflow as tf
import text_training
import tokenizers
import transformers
from timing import interleaved

import keras_txf as txf


def read_lines(folder, pattern, most):
    lines = []
    for path in sorted(pathlib.Path(folder).glob(pattern)):
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            lines += [line.rstrip("\n") for line in file]
    if not lines:
        raise SystemExit(f"no lines in {pattern} of {folder}")
    return lines[:most]


def in_graph(tokenizer, batches):
    function = tf.function(tokenizer.tokenize, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
    tensors = [tf.constant(batch) for batch in batches]
    return lambda: sum((function(batch).to_list() for batch in tensors), []), lambda: [
        function(batch) for batch in tensors
    ]


def by_package(tokenizer, batches):
    def ids():
        found = (tokenizer.encode_batch_fast(batch, add_special_tokens=False) for batch in batches)
        return [row.ids for rows in found for row in rows]

    return ids, lambda: [tokenizer.encode_batch_fast(batch, add_special_tokens=False) for batch in batches]


def by_sentencepiece(tokenizer, batches):
    return lambda: sum(map(tokenizer.encode, batches), []), lambda: [tokenizer.encode(batch) for batch in batches]


def word_piece(lines, size, batches):
    ours = txf.text.WordPieceTokenizer.train(lines, size)
    vocabulary = [ours.id_to_token(id) for id in range(ours.vocab_size)]
    theirs = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({token: id for id, token in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    theirs.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    hub = keras_hub.tokenizers.WordPieceTokenizer(vocabulary, lowercase=True, strip_accents=True)
    return {
        "keras_txf": in_graph(ours, batches),
        "Hugging Face": by_package(theirs, batches),
        "KerasHub": in_graph(hub, batches),
    }


def pieces(lines, size, batches, kind, file, options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / file).write_bytes(model.getvalue())
        (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
        ours = txf.text.from_checkpoint(folder)
        theirs = transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer
    package = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    hub = keras_hub.tokenizers.SentencePieceTokenizer(model.getvalue())
    return {
        "keras_txf": in_graph(ours, batches),
        "Hugging Face": by_package(theirs, batches),
        "sentencepiece": by_sentencepiece(package, batches),
        "KerasHub": in_graph(hub, batches),
    }


def unigram(lines, size, batches):
    return pieces(lines, size, batches, "T5Tokenizer", "spiece.model", dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1))


def bpe(lines, size, batches):
    options = dict(
        model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False
    )
    return pieces(lines, size, batches, "LlamaTokenizer", "tokenizer.model", options)


def byte_pairs(lines, size, batches):
    ours = txf.text.BytePairTokenizer.train(lines, size)
    definition = ours.get_config()["definition"]
    model = json.loads(definition)["model"]
    merges = [" ".join(pair) for pair in model["merges"]]
    hub = keras_hub.tokenizers.BytePairTokenizer(model["vocab"], merges)
    theirs = tokenizers.Tokenizer.from_str(definition)
    return {
        "keras_txf": in_graph(ours, batches),
        "Hugging Face": by_package(theirs, batches),
        "KerasHub": in_graph(hub, batches),
    }


def utf8_bytes(lines, size, batches):
    hub = keras_hub.tokenizers.ByteTokenizer(lowercase=False)
    return {"keras_txf": in_graph(txf.text.ByteTokenizer(), batches), "KerasHub": in_graph(hub, batches)}


def characters(lines, size, batches):
    hub = keras_hub.tokenizers.UnicodeCodepointTokenizer(lowercase=False)
    return {
        "keras_txf": in_graph(txf.text.CharacterTokenizer.train(lines), batches),
        "KerasHub": in_graph(hub, batches),
    }


KINDS = {
    "WordPiece": word_piece,
    "unigram": unigram,
    "BPE": bpe,
    "byte-level BPE": byte_pairs,
    "bytes": utf8_bytes,
    "characters": characters,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--part", nargs="+", default=["tokenizers", "training"], choices=["tokenizers", "training"])
    parser.add_argument("--pattern", default="train.en*", help="names of the files")
    parser.add_argument("--target-pattern", default="train.de*", help="names of the files with the translations")
    parser.add_argument("--lines", type=int, default=29000)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--kind", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="of training, in each repeat")
    parser.add_argument("--pairs", type=int, default=256, help="a step of training: 256 are about 7,500 tokens")
    parser.add_argument("--dropout", type=float, default=0.1, help="of our blocks")
    arguments = parser.parse_args()
    lines = read_lines(arguments.data, arguments.pattern, arguments.lines)
    if "tokenizers" in arguments.part:
        compare_tokenizers(lines, arguments)
    if "training" in arguments.part:
        targets = read_lines(arguments.data, arguments.target_pattern, arguments.lines)
        text_training.main(
            lines, targets, arguments.vocab_size, arguments.dropout, arguments.pairs, arguments.steps, arguments.repeats
        )


def compare_tokenizers(lines, arguments):
    batches = [lines[start : start + arguments.batch] for start in range(0, len(lines), arguments.batch)]
    print(
        f"{len(lines)} lines, {sum(map(len, lines))} characters, batches of {arguments.batch}, medians of "
        f"{arguments.repeats}"
    )
    print(f"{'kind':16}{'contender':15}{'tokens':>9}{'ms':>9}{'tokens/s':>13}{'ratio':>8}{'same':>8}")
    for kind in arguments.kind:
        contenders = KINDS[kind](lines, arguments.vocab_size, batches)
        ids = {name: answer() for name, (answer, _) in contenders.items()}
        medians = interleaved({name: run for name, (_, run) in contenders.items()}, arguments.repeats, warmup=1)
        reference = ids.get("Hugging Face")
        for name, seconds in medians.items():
            tokens = sum(map(len, ids[name]))
            same = sum(map(list.__eq__, ids[name], reference)) / len(lines) if reference else None
            print(
                f"{kind:16}{name:15}{tokens:9}{1e3 * seconds:9.1f}{tokens / seconds:13,.0f}"
                f"{seconds / medians['keras_txf']:8.2f}{'' if same is None else f'{same:.1%}':>8}",
                flush=True,
            )


if __name__ == "__main__":
    main()
