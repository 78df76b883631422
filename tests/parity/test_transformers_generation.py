"""Beam search, its sequences and scores, and greedy decoding, against Hugging Face's `generate` on the same weights."""

import numpy as np
import pytest
import torch
from case_sizes import LLAMA, T5
from checkpoint_cases import Case

import keras_txf as txf
from keras_txf.generation import Beam, ForbiddenTokens, ForcedTokens, MinimumLength, NoRepeatNgrams, RepetitionPenalty

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("uncompiled"), pytest.mark.filterwarnings("ignore")]

NEW = 9
PROMPTS = [[5, 22, 7, 3, 9], [17, 4], [12, 2, 8, 8]]
TOKENS = dict(vocab_size=23, bos_token_id=None, eos_token_id=None, pad_token_id=0)
MODELS = {
    "gpt2": Case("", "gpt2", "GPT2LMHeadModel", dict(TOKENS, n_embd=12, n_head=3, n_layer=2, n_positions=40)),
    "marian": Case("", "marian", "MarianMTModel", dict(
        TOKENS, d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=3,
        encoder_ffn_dim=20, decoder_ffn_dim=20, scale_embedding=True, max_position_embeddings=40,
        forced_eos_token_id=None, decoder_start_token_id=1,
    )),
}  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Our model and theirs, by name."""
    found = {}
    for name, case in MODELS.items():
        folder, theirs = tmp_path_factory.mktemp(name), case.model(seed=2)
        theirs.save_pretrained(folder)
        options = {"pad_id": None} if name == "gpt2" else {}  # theirs sees padding that it has generated
        found[name] = txf.checkpoints.load(folder, **options), theirs
    return found


@pytest.mark.parametrize("stop_ids", [None, [6], [6, 4, 11]], ids=str)
@pytest.mark.parametrize("num_beams, length_penalty, early_stopping", [
    (1, 1.0, False), (1, 2.0, "never"), (2, 1.0, False), (5, 1.0, False), (5, 0.0, "never"), (5, 2.0, "never"),
    (5, -1.0, "never"), (5, 0.5, True), (5, 3.0, False),
])  # fmt: skip
def test_beam_search_of_gpt2(num_beams, length_penalty, early_stopping, stop_ids, models):
    compare(*models["gpt2"], num_beams, length_penalty, early_stopping, stop_ids)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("processor, options", [
    (NoRepeatNgrams(2), dict(no_repeat_ngram_size=2)),
    (RepetitionPenalty(1.3), dict(repetition_penalty=1.3)),
    (MinimumLength(4), dict(min_new_tokens=4)),
    (ForbiddenTokens([3, 4]), dict(suppress_tokens=[3, 4])),
], ids=lambda x: type(x).__name__)  # fmt: skip
def test_processors_in_a_search(processor, options, num_beams, models):
    compare(*models["gpt2"], num_beams, 1.0, False, [6], [processor], **options)


@pytest.mark.parametrize("stop_ids", [None, [6, 4]], ids=str)
@pytest.mark.parametrize(
    "num_beams, length_penalty, early_stopping", [(1, 1.0, False), (4, 0.6, False), (4, 0.0, True)]
)
def test_beam_search_of_marian(num_beams, length_penalty, early_stopping, stop_ids, models):
    no_padding = [ForbiddenTokens([0])]
    compare(*models["marian"], num_beams, length_penalty, early_stopping, stop_ids, no_padding, suppress_tokens=[0])


PADDING = {
    "t5": Case("", "t5", "T5ForConditionalGeneration",
               {**T5, "vocab_size": 23, "num_decoder_layers": 2, "eos_token_id": None}),
    "marian": Case("", "marian", "MarianMTModel", {**MODELS["marian"].options, "decoder_start_token_id": 0}),
    "bart": Case("", "bart", "BartForConditionalGeneration", {**MODELS["marian"].options}),
    "gpt2": MODELS["gpt2"],
    "llama": Case("", "llama", "LlamaForCausalLM", {**LLAMA, **TOKENS}),
}  # fmt: skip


@pytest.mark.parametrize("name", PADDING)
def test_generated_padding_is_a_token(name, tmp_path):
    """Later tokens see it, in a search too, and after a start of several tokens."""
    theirs = PADDING[name].model(seed=2)
    theirs.save_pretrained(tmp_path)
    ours, start = txf.checkpoints.load(tmp_path), theirs.generation_config.decoder_start_token_id
    width = 1 if start is not None else max(map(len, PROMPTS))

    def force(ids, scores):
        """Padding is the third token of an answer."""
        scores[:] = -np.inf if ids.shape[1] == width + 2 else scores
        scores[:, 0] = 0.0 if ids.shape[1] == width + 2 else scores[:, 0]
        return scores

    for num_beams in (1, 3):
        compare(ours, theirs, num_beams, 1.0, False, None, [ForcedTokens({2: 0})], logits_processor=[force])
    if start is not None:
        answers = ours.generate(PROMPTS, NEW, processors=[ForcedTokens({2: 0})])
        for prompt, answer in zip(PROMPTS, answers.tolist()):
            assert ours.generate([prompt], NEW - 5, start_id=[start, *answer[:5]], padded=False) == [answer[5:]]


def compare(ours, theirs, num_beams, length_penalty, early_stopping, stop_ids, processors=(), **options):
    result = ours.generate(
        PROMPTS, NEW, Beam(num_beams, length_penalty, early_stopping), stop_ids, num_return_sequences=num_beams,
        return_scores=True, padded=False, processors=processors,
    )  # fmt: skip
    seq2seq = isinstance(ours.input, dict)
    width = max(map(len, PROMPTS))
    ids = np.zeros((len(PROMPTS), width), "int64")
    for row, prompt in enumerate(PROMPTS):
        ids[row, slice(len(prompt)) if seq2seq else slice(width - len(prompt), width)] = prompt
    start = 1 if seq2seq else width
    with torch.no_grad():
        expected = theirs.generate(
            torch.from_numpy(ids), attention_mask=torch.from_numpy((ids != 0).astype("int64")), max_new_tokens=NEW,
            num_beams=num_beams, num_return_sequences=num_beams, do_sample=False, eos_token_id=stop_ids,
            pad_token_id=0, return_dict_in_generate=True, output_scores=True,
            **options, **({} if num_beams == 1 else dict(length_penalty=length_penalty, early_stopping=early_stopping)),
        )  # fmt: skip
    sequences = expected.sequences.numpy().reshape(len(PROMPTS), num_beams, -1)
    for row, prompt in enumerate(PROMPTS):
        for beam in range(num_beams):
            tokens = result.ids[row][beam][0 if seq2seq else len(prompt) :]
            assert tokens == sequences[row, beam, start:].tolist()[: len(tokens)], (row, beam)
            rest = sequences[row, beam, start + len(tokens) :]
            assert (rest == (stop_ids or [None])[0]).all() or not rest.any()  # what they fill up with
    if num_beams > 1:
        scores = expected.sequences_scores.numpy().reshape(len(PROMPTS), num_beams)
        np.testing.assert_allclose(result.scores, scores, rtol=1e-4, atol=1e-5)
