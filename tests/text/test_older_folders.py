"""Folders without tokenizer.json: pairs of SentencePiece files, byte pairs, XLM-R's ids, all types of added tokens."""

import json

import pytest
import tokenizers
from drawing import few
from hypothesis import given
from refusals import refused
from text.test_from_checkpoint import GPT2, lines_of, llama_model, of, ours, reference
from text_cases import CORPUS, STRINGS, Named, folder_of, learnt, piece_model

from keras_txf import text

WORDS = "The fox dogs naïve 狗和 ﬁne zzz ! </s> <unk> <mask> <pad> >>fr<< >>xx<< ß жж ж <new> [Low] lowered".split()
TEXTS = lines_of(WORDS)
TARGETS = ["der Fuchs und der Hund groß", "Straßen ж ж und Wörter", *CORPUS]


def byte_pairs(**special):
    kernel = tokenizers.ByteLevelBPETokenizer()
    kernel.train_from_iterator(CORPUS, 330, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"])
    parts = json.loads(kernel._tokenizer.to_str())["model"]
    merges = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in parts["merges"])
    return {"vocab.json": parts["vocab"], "merges.txt": merges}


def marian():
    """The source model does not know the target's ж, which is in the vocabulary of both."""
    source = piece_model(vocab_size=120)
    target = piece_model(TARGETS, vocab_size=150)
    pieces = [text.SentencePieceTokenizer(model) for model in (source, target)]
    tokens = [tokenizer.id_to_token(id) for tokenizer in pieces for id in range(tokenizer.vocab_size)]
    tokens = [token for token in dict.fromkeys(tokens) if token not in ("<s>", "</s>", "<unk>")]
    vocabulary = ["</s>", "<unk>", *tokens[5:], ">>fr<<", "жж", "<pad>"]  # the first five are unknown
    vocabulary = {token: id for id, token in enumerate(dict.fromkeys(vocabulary))}
    return {"source.spm": source, "target.spm": target, "vocab.json": vocabulary}


OPT = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "</s>", "add_bos_token": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    pairs, pair, bert = byte_pairs(), marian(), learnt("WordPiece")
    vocabulary = "".join(bert.id_to_token(id) + "\n" for id in range(bert.vocab_size))
    t5 = piece_model(vocab_size=200, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    size = text.SentencePieceTokenizer(t5).vocab_size
    mask = {"content": "<mask>", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    mask["__type"] = "AddedToken"
    low = {"<new>": bert.vocab_size, "[Low]": bert.vocab_size + 1}
    added_t5 = {str(size): {"content": "<new>", "special": False}, str(size + 1): {"content": "[Low]", "special": True}}
    files = {
        "marian": {**pair, **of("MarianTokenizer")},
        "separate": {**pair, "target_vocab.json": {**pair["vocab.json"], "Hund": len(pair["vocab.json"])},
                     **of("MarianTokenizer", separate_vocabs=True)},
        "opt": {**pairs, **GPT2, "special_tokens_map.json": OPT},
        "dialogpt": {**pairs, "config.json": {"model_type": "gpt2"}, "tokenizer_config.json": {}},
        "roberta": {**pairs, "config.json": {"model_type": "roberta"}},
        "masked": {**pairs, **of("RobertaTokenizer", mask_token=mask, add_prefix_space=True)},
        "xlm": {"sentencepiece.bpe.model": piece_model(vocab_size=200, user_defined_symbols=["<new>"]),
                **of("XLMRobertaTokenizer")},
        "added gpt2": {**pairs, "added_tokens.json": {"<new>": 330, "[Low]": 331}, **GPT2},
        "added bert": {"vocab.txt": vocabulary, "added_tokens.json": low, **of("BertTokenizer")},
        "added cased": {"vocab.txt": vocabulary, "added_tokens.json": low, **of("BertTokenizer", do_lower_case=False)},
        "added t5": {"spiece.model": t5, **of("T5Tokenizer", extra_ids=0, added_tokens_decoder=added_t5)},
        "added llama": {"tokenizer.model": llama_model(), "added_tokens.json": {"<new>": 480, "[Low]": 481},
                        **of("LlamaTokenizer", legacy=False, add_bos_token=True)},
    }  # fmt: skip
    return Named({name: folder_of(tmp_path_factory.mktemp(name), contents) for name, contents in files.items()})


NAMES = ["marian", "separate", "opt", "dialogpt", "roberta", "masked", "xlm"]
ADDED = [f"added {name}" for name in ("gpt2", "bert", "cased", "t5", "llama")]


@pytest.mark.drawn(3)
@few(10)
@given(lines=TEXTS)
@pytest.mark.parametrize("name", NAMES + ADDED)
def test_ids(name, lines, folders):
    if name == "added llama":  # transformers adds no second space before a text that begins with a space
        lines = [line.strip() for line in lines]
    tokenizer, theirs = ours(folders[name]), reference(folders[name])
    assert tokenizer.vocab_size == len(theirs)
    assert tokenizer(lines).to_list() == [theirs.encode(line) for line in lines]


@pytest.mark.slow
@few(15)
@given(lines=STRINGS)
@pytest.mark.parametrize("name", ["marian", "opt", "masked", "xlm"])
def test_any_unicode(name, lines, folders):
    """For the package `sentencepiece` a NUL ends a text."""
    lines = [line for line in lines if name != "marian" or "\0" not in line]
    assert ours(folders[name])(lines).to_list() == [reference(folders[name]).encode(line) for line in lines]


@few(8)
@given(lines=TEXTS)
@pytest.mark.parametrize("name", ["marian", "separate"])
def test_targets_of_marian(name, lines, folders):
    assert ours(folders[name], target=True)(lines).to_list() == reference(folders[name])(text_target=lines)["input_ids"]


@pytest.mark.parametrize("target", [False, True])
def test_texts_of_marian(target, folders):
    tokenizer = text.from_checkpoint(folders["marian"], target=target)
    tokenizer = type(tokenizer).from_config(tokenizer.get_config())
    theirs = reference(folders["marian"])
    for line in ("The fox sleeps", ">>fr<< The dogs  jumped, the foxes", "", "ß der Hund"):
        ids = [id for id in tokenizer(line).numpy().tolist() if id != tokenizer.unk_id]
        assert tokenizer.detokenize(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert tokenizer.detokenize([0, *ids, 0, 0], False) == theirs.decode([0, *ids, 0, 0])
    assert tokenizer.detokenize([tokenizer.unk_id, tokenizer.token_to_id("▁dog")]) == "⁇  dog"


def test_each_side_of_marian_has_pieces_of_its_own(folders):
    source, target = (text.from_checkpoint(folders["marian"], target=side) for side in (False, True))
    assert source("Straßen und Wörter").numpy().tolist() != target("Straßen und Wörter").numpy().tolist()
    assert source("жж").numpy().tolist()[-2] == source.token_to_id("жж")  # not a piece of the source


@pytest.mark.parametrize("name", ADDED)
def test_added_tokens_that_are_not_special_are_text(name, folders):
    tokenizer, theirs = text.from_checkpoint(folders[name]), reference(folders[name])
    tokenizer = type(tokenizer).from_config(tokenizer.get_config())
    added = tokenizer.token_to_id("<new>")
    assert tokenizer.tokenize("a <new>fox<new>").numpy().tolist().count(added) == 2
    assert "<new>" not in tokenizer.special_tokens
    ids = theirs.encode("the <new> dog")
    assert tokenizer.detokenize(ids).split() == theirs.decode(ids, skip_special_tokens=True).split()


def test_added_tokens_of_any_case(folders):
    """As in transformers, a lowercasing tokenizer finds added tokens in the lowercased text."""
    for name, found in (("added bert", True), ("added cased", False)):
        tokenizer = text.from_checkpoint(folders[name])
        assert (tokenizer.token_to_id("[Low]") in tokenizer.tokenize("a [LOW] fox").numpy()) == found


def test_special_tokens_in_a_text_of_marian(folders):
    tokenizer = text.from_checkpoint(folders["marian"])
    ids = tokenizer.tokenize("</s> <pad> <unk>").numpy().tolist()
    assert not {0, tokenizer.pad_id} & {*ids}


def test_added_tokens_with_their_own_rules_raise(folders, tmp_path):
    tokens = {str(learnt("WordPiece").vocab_size): {"content": "<new>", "single_word": True}}
    vocabulary = (folders["added bert"] / "vocab.txt").read_bytes()
    folder = folder_of(tmp_path, {"vocab.txt": vocabulary, **of("BertTokenizer", added_tokens_decoder=tokens)})
    refused(lambda: text.from_checkpoint(folder), ["single_word", "<new>", "tokenizer.json"])


def phi3(folders, folder, **changed):
    """A folder like Phi-3's: the tokens of a chat absorb the line break after them."""
    chat = {"rstrip": True, "special": True}
    tokens = {"2": {"content": "</s>", "rstrip": True, **changed}, "480": {"content": "<|user|>", **chat},
              "481": {"content": "<|end|>", **chat}}  # fmt: skip
    config = of("LlamaTokenizer", legacy=False, add_bos_token=False, added_tokens_decoder=tokens)
    return folder_of(folder, {"tokenizer.model": llama_model(), **config})


CHAT = "<|user|>\nThe fox<|end|>\n"


def test_rules_of_added_tokens_equal_tokenizer_json(folders, tmp_path):
    (tmp_path / "5").mkdir()
    theirs = reference(phi3(folders, tmp_path))
    theirs.save_pretrained(tmp_path / "5")
    refused(lambda: text.from_checkpoint(tmp_path), ["rstrip", "</s>", "tokenizer.json"])
    (tmp_path / "tokenizer.json").write_bytes((tmp_path / "5" / "tokenizer.json").read_bytes())
    tokenizer = text.from_checkpoint(tmp_path, special_tokens_in_text="keep")
    assert tokenizer(CHAT).numpy().tolist() == theirs.encode(CHAT)


def test_rules_of_special_tokens_count_where_texts_have_them(folders, tmp_path):
    folder = phi3(folders, tmp_path, special=True)
    assert isinstance(text.from_checkpoint(folder), text.SentencePieceTokenizer)
    refused(lambda: text.from_checkpoint(folder, special_tokens_in_text="keep"), ["rstrip", "</s>"])
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    refused(lambda: text.from_checkpoint(folder), ["rstrip", "</s>"])


def test_no_space_before_a_text_of_llama(folders, tmp_path):
    for value in (False, True, None):
        (tmp_path / str(value)).mkdir()
        config = of("LlamaTokenizer", add_bos_token=True, add_prefix_space=value)
        folder = folder_of(tmp_path / str(value), {"tokenizer.model": llama_model(), **config})
        assert text.from_checkpoint(folder)("fox dog").numpy().tolist() == reference(folder).encode("fox dog")


def test_bad_arguments(folders):
    refused(lambda: text.from_checkpoint(folders["marian"], target="de"), ["`target`", "de"])
    bert = learnt("WordPiece")
    for tokens, words in ((["[MASK]"], ["special", "[MASK]"]), (["zzz?"], ["`added_tokens`", "zzz?"])):
        refused(lambda: type(bert)(**{**bert.get_config(), "added_tokens": tokens}), words)
    pairs = learnt("byte pairs")
    refused(lambda: type(pairs)(**{**pairs.get_config(), "added_tokens": ["a"]}), ["`definition`", "a"])


def test_no_offsets_of_ids_and_tokens_outside_of_the_model(folders):
    for name, words in (("marian", ["`vocabulary`", "None"]), ("added bert", ["`added_tokens`", "<new>"])):
        refused(lambda: text.from_checkpoint(folders[name]).tokenize_with_offsets(["a fox"]), words)
