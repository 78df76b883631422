"""Beam search, its sequences and scores, and greedy decoding, against Hugging Face's `generate` on the same weights."""

import functools

import numpy as np
import pytest
import torch
import transformers
from parity.test_transformers_decoders import GPT2, gelu_tanh, gpt2_state
from parity.weights import attention_table, block_table, copy_weights, numbered, randomize, state_of

from keras_txf.generation import Beam, ForbiddenTokens, MinimumLength, NoRepeatNgrams, RepetitionPenalty
from keras_txf.models import decoder_generator, encoder_decoder

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("uncompiled")]

VOCAB, DIM, HEADS, WIDTH, LAYERS, MAX_LENGTH, NEW = 23, 12, 3, 20, 2, 40, 9
PROMPTS = [[5, 22, 7, 3, 9], [17, 4], [12, 2, 8, 8]]


def padded(rows, left):
    width = max(map(len, rows))
    return np.array([[0] * (width - len(row)) + row if left else row + [0] * (width - len(row)) for row in rows])


@functools.cache
def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_embd=DIM, n_head=HEADS, n_layer=LAYERS, n_inner=WIDTH, n_positions=MAX_LENGTH,
        attn_implementation="eager", bos_token_id=None, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    theirs = randomize(transformers.GPT2LMHeadModel(config), seed=2)
    ours = decoder_generator(
        VOCAB, LAYERS, DIM, HEADS, intermediate_dim=WIDTH, norm_placement="pre", activation=gelu_tanh,
        position_encoding="learned", max_length=MAX_LENGTH, scale_embedding=False, pad_id=None,
    )  # fmt: skip
    copy_weights(gpt2_state(state_of(theirs)), ours.weights, GPT2)
    return ours, theirs


@pytest.mark.parametrize("stop_ids", [None, [6], [6, 4, 11]], ids=str)
@pytest.mark.parametrize(
    "num_beams, length_penalty, early_stopping",
    [(1, 1.0, False), (1, 2.0, "never"), (2, 1.0, False), (5, 1.0, False), (5, 0.0, "never"), (5, 2.0, "never"),
     (5, -1.0, "never"), (5, 0.5, True), (5, 3.0, False)],
)  # fmt: skip
def test_beam_search_of_gpt2(num_beams, length_penalty, early_stopping, stop_ids):
    compare(*gpt2(), num_beams, length_penalty, early_stopping, stop_ids)


@pytest.mark.parametrize("num_beams", [1, 4])
@pytest.mark.parametrize("processor, options", [
    (NoRepeatNgrams(2), dict(no_repeat_ngram_size=2)),
    (RepetitionPenalty(1.3), dict(repetition_penalty=1.3)),
    (MinimumLength(4), dict(min_new_tokens=4)),
    (ForbiddenTokens([3, 4]), dict(suppress_tokens=[3, 4])),
], ids=lambda x: type(x).__name__)  # fmt: skip
def test_processors_in_a_search(processor, options, num_beams):
    compare(*gpt2(), num_beams, 1.0, False, [6], [processor], **options)


def marian_block(kind):
    """The table of one block of Marian's encoder or decoder."""
    table = block_table(
        attention_table("block/attention", "self_attn"), "self_attn_layer_norm",
        {"intermediate": "fc1", "output": "fc2"}, "final_layer_norm",
    )  # fmt: skip
    if kind == "decoder":
        table |= attention_table("block/cross_attention", "encoder_attn")
        table["block/cross_attention_norm"] = "encoder_attn_layer_norm"
    return numbered(table, f"{kind}_*", f"model.{kind}.layers.*")


MARIAN = {
    "source_embedding/token": "model.shared", "source_embedding/position": "model.encoder.embed_positions",
    "target_embedding/token": "model.decoder.embed_tokens",
    "target_embedding/position": "model.decoder.embed_positions", **marian_block("encoder"), **marian_block("decoder"),
}  # fmt: skip


@functools.cache
def marian():
    config = transformers.MarianConfig(
        vocab_size=VOCAB, d_model=DIM, encoder_layers=LAYERS, decoder_layers=LAYERS, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=WIDTH, decoder_ffn_dim=WIDTH, scale_embedding=True,
        max_position_embeddings=MAX_LENGTH, attn_implementation="eager", pad_token_id=0, bos_token_id=None,
        eos_token_id=None, forced_eos_token_id=None, decoder_start_token_id=1,
    )  # fmt: skip
    theirs = randomize(transformers.MarianMTModel(config), seed=3)
    ours = encoder_decoder(
        VOCAB, VOCAB, LAYERS, DIM, HEADS, intermediate_dim=WIDTH, activation="gelu", position_encoding="learned",
        max_length=MAX_LENGTH, share_embeddings=False, decoder_options={"pad_id": None},
    )  # fmt: skip
    state = state_of(theirs)
    state["model.decoder.embed_tokens.weight"] = state["model.shared.weight"]
    copy_weights(state, ours.weights, MARIAN)
    return ours, theirs


@pytest.mark.parametrize("stop_ids", [None, [6, 4]], ids=str)
@pytest.mark.parametrize(
    "num_beams, length_penalty, early_stopping", [(1, 1.0, False), (4, 0.6, False), (4, 0.0, True)]
)
def test_beam_search_of_marian(num_beams, length_penalty, early_stopping, stop_ids):
    compare(*marian(), num_beams, length_penalty, early_stopping, stop_ids)


def compare(ours, theirs, num_beams, length_penalty, early_stopping, stop_ids, processors=None, **options):
    result = ours.generate(
        PROMPTS, NEW, Beam(num_beams, length_penalty, early_stopping), stop_ids, num_return_sequences=num_beams,
        return_scores=True, padded=False, processors=processors,
    )  # fmt: skip
    seq2seq = isinstance(ours.input, dict)
    ids = padded(PROMPTS, left=not seq2seq)
    start = 1 if seq2seq else ids.shape[1]
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
