"""Damaged files of tokenizers load as in Hugging Face's and Google's packages, or raise an error with their name."""

import functools
import json
import random

import mutations
import numpy as np
import pytest
import sentencepiece
import tokenizers
from text_cases import learnt, piece_model

from keras_txf import text

LINES = ["The quick brown fox", "naïve dogs, ÄÖÜ! 狗和 zzz", ""]


@functools.cache
def sound():
    """The files of a folder for each type of tokenizer, as bytes."""
    word_piece = learnt("WordPiece")
    words = [word_piece.id_to_token(id) for id in range(word_piece.vocab_size)]
    added = {str(len(words)): {"content": "[A]", "special": True}, "0": {"content": "[PAD]", "special": True}}
    bert = {
        "tokenizer_class": "BertTokenizer", "do_lower_case": True, "strip_accents": None,
        "tokenize_chinese_chars": True, "cls_token": "[CLS]", "sep_token": {"content": "[SEP]"}, "pad_token": "[PAD]",
        "unk_token": "[UNK]", "mask_token": "[MASK]", "additional_special_tokens": ["[A]"],
        "added_tokens_decoder": added,
    }  # fmt: skip
    llama = {
        "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "legacy": False,
        "bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None,
    }  # fmt: skip
    fast = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}
    pieces = [("<unk>", 0.0), ("a", -1.0), ("▁the", -2.0), ("é", -3.5)]
    unigram = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, False))
    normalizers = tokenizers.normalizers
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    unigram.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    unigram.decoder = tokenizers.decoders.Metaspace()
    unigram.add_special_tokens(["<pad>", "<s>", "</s>"])
    template = {"single": "<s> $A </s>", "special_tokens": [("<s>", 5), ("</s>", 6)]}
    unigram.post_processor = tokenizers.processors.TemplateProcessing(**template)
    files = {
        "bert": {"vocab.txt": "\n".join(words) + "\n", "tokenizer_config.json": bert,
                 "added_tokens.json": {"[A]": len(words)},
                 "tokenizer.json": {"normalizer": {"type": "BertNormalizer", "lowercase": True,
                                                   "strip_accents": None}}},
        "t5": {"spiece.model": piece_model(vocab_size=200, pad_id=0, eos_id=1, unk_id=2, bos_id=-1),
               "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer", "extra_ids": 7, "eos_token": "</s>",
                                         "pad_token": "<pad>"}},
        "llama": {"tokenizer.model": piece_model(vocab_size=480, model_type="bpe", byte_fallback=True),
                  "tokenizer_config.json": llama},
        "byt5": {"tokenizer_config.json": {"tokenizer_class": "ByT5Tokenizer", "extra_ids": 9},
                 "config.json": {"model_type": "t5"}},
        "byte pairs": {"tokenizer.json": learnt("byte pairs").get_config()["definition"],
                       "tokenizer_config.json": fast},
        "unigram": {"tokenizer.json": unigram.to_str(), "tokenizer_config.json": fast},
    }  # fmt: skip
    return {kind: {name: as_bytes(content) for name, content in folder.items()} for kind, folder in files.items()}


def as_bytes(content):
    content = json.dumps(content) if isinstance(content, dict) else content
    return content if isinstance(content, bytes) else content.encode()


def reference(folder, name):
    """The ids of LINES by the file's own package, without special tokens; None if only that package raises."""
    if name == "tokenizer.json":
        package = tokenizers.Tokenizer.from_file(str(folder / name))
        package.no_padding(), package.no_truncation()
        package.encode_special_tokens = True
        return [found.ids for found in package.encode_batch(LINES, add_special_tokens=False)]
    try:
        package = sentencepiece.SentencePieceProcessor(model_proto=(folder / name).read_bytes())
    except RuntimeError as error:
        assert "precompiled_charsmap is invalid" in str(error)  # the package is newer than TensorFlow's, and stricter
        return None
    return package.encode(LINES)


def load_broken_files(base, kind, number, seed):
    """Returns how many of `number` broken folders load."""
    draw, loaded, folder = random.Random(f"{kind} {seed}"), 0, base / kind
    folder.mkdir(exist_ok=True)
    files = sound()[kind]
    for _ in range(number):
        for name, content in files.items():
            (folder / name).write_bytes(content)
        broken = draw.choice([*files, *[name for name in files if name != "tokenizer_config.json"] * 2])
        damages = [*mutations.BYTES, *[mutations.edit_text] * 12] if broken.endswith(".json") else mutations.BYTES
        content = draw.choice(damages)(draw, files[broken])
        (folder / broken).write_bytes(content)
        try:
            tokenizer = text.from_checkpoint(folder)
        except ValueError as error:
            message = str(error)
            assert broken in message and "\n" not in message and len(message) < 2000, message
            continue
        loaded += 1
        ids = tokenizer(LINES)
        assert 0 <= np.min(ids.values) and np.max(ids.values) < tokenizer.vocab_size
        tokenizer.detokenize(ids, skip_special_tokens=False)
        if kind in ("byte pairs", "unigram", "llama"):
            right = reference(folder, next(iter(files)))
            assert right is None or tokenizer.tokenize(LINES).to_list() == right, content
    return loaded


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "t5", "llama", "byt5", "byte pairs", "unigram"])
def test_broken_folders(kind, tmp_path):
    assert 10 < load_broken_files(tmp_path, kind, 200, seed=2) < 190


def test_rules_of_characters_that_lost_a_part_raise(tmp_path):
    """Google's package raises too. TensorFlow's kernels would drop the texts of these rules."""
    content = piece_model(vocab_size=200)
    path, middle = tmp_path / "spiece.model", len(content) // 2  # the rules fill most of the file
    path.write_bytes(content[:middle] + bytes(4096) + content[middle + 4096 :])
    with pytest.raises((OSError, RuntimeError)):
        sentencepiece.SentencePieceProcessor(model_file=str(path))
    with pytest.raises(ValueError, match="spiece.model"):
        text.SentencePieceTokenizer.from_file(path)
