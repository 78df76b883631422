"""Folders that `resize_vocabulary` has given tokens, as transformers reads them."""

import numpy as np
import pytest
from text_cases import folder_of, learnt, piece_model

import keras_txf as txf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

SIZES = dict(
    hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, max_position_embeddings=40,
    initializer_range=0.3,
)  # fmt: skip
OF_T5 = dict(d_model=8, d_ff=12, d_kv=4, num_layers=2, num_heads=2, decoder_start_token_id=0, initializer_factor=3.0)
NEW, TEXTS = ["<drug>", "[Dose]"], ["the <drug> fox", "fox<drug>s [Dose]", "<drug>", "a [dose] dogs.[Dose]"]


def files(kind):
    if kind == "bert":
        words = learnt("WordPiece")
        return {"vocab.txt": "".join(words.id_to_token(id) + "\n" for id in range(words.vocab_size)),
                "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "do_lower_case": True}}  # fmt: skip
    if kind == "t5":
        model = piece_model(vocab_size=200, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
        return {"spiece.model": model, "tokenizer_config.json": {"tokenizer_class": "T5Tokenizer"}}
    return {"tokenizer.json": learnt("byte pairs").get_config()["definition"],
            "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>"}}  # fmt: skip


@pytest.mark.parametrize("kind, spare, make", [
    ("bert", 0, lambda size: transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=size, **SIZES))),
    ("t5", 28, lambda size: transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=size, **OF_T5))),
    ("llama", 1, lambda size: transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=size, **SIZES))),
])  # fmt: skip
def test_both_read_the_same_tokens_and_logits(kind, spare, make, tmp_path):
    transformers.set_seed(0)
    folder = folder_of(tmp_path, files(kind))
    size = txf.text.from_checkpoint(folder).vocab_size
    model = make(size + spare)
    model.save_pretrained(folder)
    ours, tokenizer = txf.checkpoints.load(folder), txf.text.from_checkpoint(folder)
    ours, tokenizer = txf.checkpoints.resize_vocabulary(ours, tokenizer, NEW)
    txf.checkpoints.save(ours, tmp_path / "new")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert theirs.convert_tokens_to_ids(NEW) == list(map(tokenizer.token_to_id, NEW)) == [size, size + 1]
    expected = [theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
    assert tokenizer.tokenize(TEXTS).to_list() == expected
    back = type(model).from_pretrained(tmp_path / "new").eval()
    assert back.config.vocab_size == max(size + 2, size + spare)
    ids = np.array([[5, 6, size, size + 1, 7]])
    more = {"decoder_input_ids": torch.tensor(ids)} if kind == "t5" else {}
    with torch.no_grad():
        logits = back(input_ids=torch.tensor(ids), **more).logits.numpy()
    found = ours.predict({"source_ids": ids, "target_ids": ids} if more else ids, verbose=0)
    np.testing.assert_allclose(found, logits, rtol=1e-4, atol=1e-4)
