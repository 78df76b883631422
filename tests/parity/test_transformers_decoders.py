"""Decoder-only families of transformers are options of decoder_generator: hidden states and logits agree."""

import functools

import keras
import numpy as np
import pytest
import torch
import transformers
from parity.weights import attention_table, block_table, close, copy_weights, numbered, randomize, state_of

from keras_txf.layers import Rotary
from keras_txf.models import decoder_generator

pytestmark = pytest.mark.parity

VOCAB, DIM, HEADS, HEAD_DIM, WIDTH, LAYERS, MAX_LENGTH = 29, 12, 4, 6, 20, 2, 11
# One row padded on the left, one on the right; 0 is the padding.
IDS = np.array([[0, 0, 5, 28, 7, 3, 9], [1, 17, 4, 4, 12, 2, 0]], "int32")
REAL = IDS != 0

gelu_tanh = functools.partial(keras.activations.gelu, approximate=True)


def their_config(cls, **options):
    return cls(vocab_size=VOCAB, attn_implementation="eager", pad_token_id=0, use_cache=False, **options)


def of_llama(**options):
    """What the configurations of Llama and its heirs have in common."""
    return dict(
        hidden_size=DIM, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=2, head_dim=HEAD_DIM,
        intermediate_size=WIDTH, max_position_embeddings=64, **options,
    )  # fmt: skip


OUR_LLAMA = dict(
    num_heads=HEADS, head_dim=HEAD_DIM, num_key_value_heads=2, norm="rms", norm_placement="pre", norm_epsilon=1e-5,
    activation="silu", gated=True, use_bias=False, scale_embedding=False, tie_embeddings=False,
)  # fmt: skip
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)

GATED = {"gate": "mlp.gate_proj", "intermediate": "mlp.up_proj", "output": "mlp.down_proj"}
LLAMA_BLOCK = block_table(
    attention_table("block/attention", "self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")), "input_layernorm", GATED,
    "post_attention_layernorm",
)  # fmt: skip
LLAMA_ENDS = {"embedding/token": "model.embed_tokens", "decoder_norm": "model.norm", "logits": "lm_head"}
LLAMA = {**LLAMA_ENDS, **numbered(LLAMA_BLOCK, "decoder_*", "model.layers.*")}
QWEN3 = LLAMA | {
    "decoder_*/attention/query_norm": "model.layers.*.self_attn.q_norm",
    "decoder_*/attention/key_norm": "model.layers.*.self_attn.k_norm",
}
GEMMA2 = LLAMA | {
    "decoder_*/attention_post_norm": "model.layers.*.post_attention_layernorm",
    "decoder_*/feed_forward_norm": "model.layers.*.pre_feedforward_layernorm",
    "decoder_*/feed_forward_post_norm": "model.layers.*.post_feedforward_layernorm",
}
GPT2 = {
    "embedding/token": "transformer.wte", "embedding/position": "transformer.wpe", "decoder_norm": "transformer.ln_f",
    **numbered(block_table(attention_table("block/attention", "attn", ("q", "k", "v", "c_proj")), "ln_1",
                           {"intermediate": "mlp.c_fc", "output": "mlp.c_proj"}, "ln_2"), "decoder_*",
               "transformer.h.*"),
}  # fmt: skip
MPT = {
    "embedding/token": "transformer.wte", "decoder_norm": "transformer.norm_f",
    **numbered(block_table(attention_table("block/attention", "attn", ("q", "k", "v", "out_proj")), "norm_1",
                           {"intermediate": "ffn.up_proj", "output": "ffn.down_proj"}, "norm_2"), "decoder_*",
               "transformer.blocks.*"),
}  # fmt: skip


def split(state, fused):
    """Their fused projection, such as `Wqkv`, as three."""
    parts = {}
    for name, array in state.items():
        if fused in name:
            for letter, part in zip("qkv", np.split(array, 3)):
                parts[name.replace(fused, letter)] = part
        else:
            parts[name] = array
    return parts


def gpt2_state(state):
    """Its linear layers are transposed convolutions."""
    transposed = {name: array.T if "c_" in name and array.ndim == 2 else array for name, array in state.items()}
    return split(transposed, "c_attn")


def gemma_state(state):
    """Its norms multiply by 1 + weight."""
    return {name: array + 1 if "norm" in name else array for name, array in state.items()}


# Their class, their configuration, our options, table, how their weights are to be read.
DECODERS = {
    "gpt2": (transformers.GPT2LMHeadModel,
             their_config(transformers.GPT2Config, n_embd=DIM, n_layer=LAYERS, n_head=3, n_inner=WIDTH,
                          n_positions=MAX_LENGTH),
             dict(num_heads=3, norm_placement="pre", activation=gelu_tanh, position_encoding="learned",
                  max_length=MAX_LENGTH, scale_embedding=False), GPT2, gpt2_state),
    "llama": (transformers.LlamaForCausalLM,
              their_config(transformers.LlamaConfig, rms_norm_eps=1e-5,
                           **of_llama(rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3})),
              OUR_LLAMA | dict(position=Rotary(500000.0, scaling={"type": "llama3", **LLAMA3})), LLAMA, dict),
    "mistral": (transformers.MistralForCausalLM,
                their_config(transformers.MistralConfig, rms_norm_eps=1e-5, **of_llama(sliding_window=3)),
                OUR_LLAMA | dict(position="rotary", window=3), LLAMA, dict),
    "qwen3": (transformers.Qwen3ForCausalLM, their_config(transformers.Qwen3Config, rms_norm_eps=1e-6, **of_llama()),
              OUR_LLAMA | dict(position="rotary", qk_norm=True, norm_epsilon=1e-6), QWEN3, dict),
    "gemma2": (transformers.Gemma2ForCausalLM,
               their_config(transformers.Gemma2Config, rms_norm_eps=1e-6, query_pre_attn_scalar=9,
                            attn_logit_softcapping=2.0, final_logit_softcapping=None,
                            hidden_activation="gelu_pytorch_tanh", layer_types=["sliding_attention", "full_attention"],
                            **of_llama(sliding_window=3)),
               OUR_LLAMA | dict(position="rotary", norm_placement="sandwich", norm_epsilon=1e-6, scale=1 / 3,
                                logit_soft_cap=2.0, activation=gelu_tanh, window=[3, None], scale_embedding=True,
                                tie_embeddings=True), GEMMA2, gemma_state),
    "mpt": (transformers.MptForCausalLM,
            their_config(transformers.MptConfig, d_model=DIM, n_heads=3, n_layers=LAYERS, expansion_ratio=4,
                         max_seq_len=MAX_LENGTH),
            dict(num_heads=3, norm_placement="pre", activation="gelu", use_bias=False, position="alibi",
                 scale_embedding=False, intermediate_dim=4 * DIM), MPT, functools.partial(split, fused="Wqkv")),
}  # fmt: skip


@pytest.mark.parametrize("family", DECODERS)
def test_decoders(family):
    cls, config, options, table, read = DECODERS[family]
    theirs = randomize(cls(config))
    options = {"intermediate_dim": WIDTH, **options}
    ours = decoder_generator(VOCAB, LAYERS, DIM, return_hidden_states=True, **options)
    copy_weights(read(state_of(theirs)), ours.weights, table)
    # Position 0 is the first real token for us; for rotary and ALiBi only distances count.
    positions = {"position_ids": torch.from_numpy(REAL.cumsum(1) - 1).clamp(0)} if family == "gpt2" else {}
    expected = theirs(
        torch.from_numpy(IDS).long(),
        attention_mask=torch.from_numpy(REAL).long(),
        output_hidden_states=True,
        **positions,
    )
    outputs = ours(IDS)
    for depth, hidden in enumerate(expected.hidden_states):
        close(outputs[f"hidden_states_{depth}"], hidden, where=REAL)
    close(outputs["logits"], expected.logits, where=REAL)
