"""Folders as they are published: `generate` with their own settings."""

import json

import numpy as np
import pytest
from checkpoint_cases import Case, bart, llama

import keras_txf as txf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

SOURCES = np.random.default_rng(3).integers(6, 50, (3, 7))
SUMMARIES = dict(  # the settings of bart-large-cnn, with shorter lengths
    num_beams=3, length_penalty=2.0, max_length=11, min_length=6, no_repeat_ngram_size=3, early_stopping=True,
    forced_bos_token_id=0, forced_eos_token_id=2, decoder_start_token_id=2, bos_token_id=0, eos_token_id=2,
    pad_token_id=1,
)  # fmt: skip
TRANSLATIONS = dict(  # the settings of opus-mt: the padding token is forbidden and begins an answer
    num_beams=3, max_length=9, bad_words_ids=[[60]], eos_token_id=0, forced_eos_token_id=0, pad_token_id=60,
    decoder_start_token_id=60, renormalize_logits=False,
)  # fmt: skip
CHAT = dict(
    repetition_penalty=1.3, eos_token_id=[2, 17, 33], max_new_tokens=9, min_new_tokens=4, suppress_tokens=[5, 7],
    bos_token_id=1, pad_token_id=0,
)  # fmt: skip
MARIAN = bart(pad_token_id=60, eos_token_id=0, decoder_start_token_id=60)
CASES = [
    (Case("bart", "bart", "BartForConditionalGeneration", bart()), SUMMARIES, False),
    (Case("old-bart", "bart", "BartForConditionalGeneration", bart()), SUMMARIES, True),
    (Case("marian", "marian", "MarianMTModel", MARIAN), TRANSLATIONS, False),
    (Case("llama", "llama", "LlamaForCausalLM", llama()), CHAT, False),
]


@pytest.mark.parametrize("case, settings, old", CASES, ids=[row[0].name for row in CASES])
def test_generate_without_being_told(case, settings, old, tmp_path):
    model = case.model()
    model.generation_config = transformers.GenerationConfig(**settings)
    model.save_pretrained(tmp_path)
    if old:  # as files of 2021 have it
        (tmp_path / "generation_config.json").unlink()
        values = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**values, **settings}))
    loaded = type(model).from_pretrained(tmp_path).eval()
    sources = torch.tensor(SOURCES)
    with torch.no_grad():
        expected = loaded.generate(sources, attention_mask=torch.ones_like(sources)).numpy()
    expected = expected[:, 1:] if model.config.is_encoder_decoder else expected
    ours = txf.checkpoints.load(tmp_path)
    np.testing.assert_array_equal(ours.generate(SOURCES), expected)
    txf.checkpoints.save(ours, tmp_path / "saved")
    back = type(model).from_pretrained(tmp_path / "saved").eval().generate(sources, attention_mask=sources * 0 + 1)
    np.testing.assert_array_equal(back.numpy()[:, -expected.shape[1] :], expected)
