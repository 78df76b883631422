"""Sinks, parallel residuals, layer scale, qk_norm="full" and shared blocks equal those of transformers' modules."""

import drawing
import keras
import numpy as np
import pytest
import torch
import transformers

import keras_txf as txf

pytestmark = pytest.mark.parity

X = np.random.default_rng(1).normal(size=(2, 5, 12)).astype("float32")


def randomised(module):
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return module.eval()


def assign_all(layer, values):
    """Each weight of a layer from a tensor of PyTorch; kernels are turned."""
    left = dict(values)
    for weight in layer.weights:
        path = weight.path.removeprefix(f"{layer.name}/")
        if "seed" not in path:
            value = left.pop(path)
            weight.assign((value.T if path.endswith("kernel") else value).detach().numpy())
    assert not left, left


def projection(name, module):
    return {f"{name}/kernel": module.weight, **({} if module.bias is None else {f"{name}/bias": module.bias})}


def norm(name, module):
    return {f"{name}/gamma": module.weight, f"{name}/beta": module.bias}


def test_sinks_are_those_of_gpt_oss():
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention

    config = transformers.GptOssConfig(
        hidden_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=6, layer_types=["full_attention"],
        num_hidden_layers=1, attention_dropout=0.0,
    )  # fmt: skip
    config._attn_implementation = "eager"
    theirs = randomised(GptOssAttention(config, 0))
    ours = txf.layers.MultiHeadSelfAttention(4, head_dim=6, num_key_value_heads=2, causal=True, sinks=True)
    ours(X)
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    values = {
        key: value for name, own in names.items() for key, value in projection(name, getattr(theirs, own)).items()
    }
    assign_all(ours, {**values, "sinks": theirs.sinks})
    unrotated = torch.ones(1, 5, 3), torch.zeros(1, 5, 3)
    mask = torch.where(torch.ones(5, 5, dtype=torch.bool).tril(), 0.0, -torch.inf)[None, None]
    expected = theirs(torch.tensor(X), position_embeddings=unrotated, attention_mask=mask)[0]
    drawing.assert_same(ours(X), expected.detach().numpy(), 1e-5)


def test_the_norm_over_all_heads_is_that_of_olmo_2():
    from transformers.models.olmo2.modeling_olmo2 import Olmo2Attention

    config = transformers.Olmo2Config(hidden_size=12, num_attention_heads=3, num_key_value_heads=1, rms_norm_eps=1e-6)
    config._attn_implementation = "eager"
    theirs = randomised(Olmo2Attention(config, 0))
    ours = txf.layers.MultiHeadSelfAttention(3, num_key_value_heads=1, causal=True, qk_norm="full", use_bias=False)
    ours(X)
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    values = {
        key: value for name, own in names.items() for key, value in projection(name, getattr(theirs, own)).items()
    }
    values |= {"query_norm/scale": theirs.q_norm.weight, "key_norm/scale": theirs.k_norm.weight}
    assign_all(ours, values)
    unrotated = torch.ones(1, 5, 4), torch.zeros(1, 5, 4)
    mask = torch.where(torch.ones(5, 5, dtype=torch.bool).tril(), 0.0, -torch.inf)[None, None]
    expected = theirs(torch.tensor(X), position_embeddings=unrotated, attention_mask=mask)[0]
    drawing.assert_same(ours(X), expected.detach().numpy(), 1e-5)


def test_a_parallel_residual_is_that_of_gpt_neox():
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXLayer

    config = transformers.GPTNeoXConfig(
        hidden_size=12, num_attention_heads=3, intermediate_size=20, hidden_act="gelu", use_parallel_residual=True,
        layer_norm_eps=1e-5,
    )  # fmt: skip
    config._attn_implementation = "eager"
    theirs = randomised(GPTNeoXLayer(config, 0))
    ours = txf.layers.DecoderBlock(
        3, intermediate_dim=20, activation="gelu", norm_placement="pre", residual="parallel", norm_epsilon=1e-5
    )
    ours(X)
    values = {
        **norm("attention_norm", theirs.input_layernorm), **norm("feed_forward_norm", theirs.post_attention_layernorm),
        **projection("attention/output", theirs.attention.dense),
        **projection("feed_forward/intermediate", theirs.mlp.dense_h_to_4h),
        **projection("feed_forward/output", theirs.mlp.dense_4h_to_h),
    }  # fmt: skip
    fused = theirs.attention.query_key_value  # queries, keys and values of a head stand side by side
    for i, name in enumerate(("query", "key", "value")):
        values[f"attention/{name}/kernel"] = fused.weight.reshape(3, 3, 4, 12)[:, i].reshape(12, 12)
        values[f"attention/{name}/bias"] = fused.bias.reshape(3, 3, 4)[:, i].reshape(12)
    assign_all(ours, values)
    unrotated = torch.ones(1, 5, 4), torch.zeros(1, 5, 4)
    mask = torch.where(torch.ones(5, 5, dtype=torch.bool).tril(), 0.0, -torch.inf)[None, None]
    expected = theirs(torch.tensor(X), attention_mask=mask, position_embeddings=unrotated)
    expected = expected[0] if isinstance(expected, tuple) else expected
    drawing.assert_same(ours(X), expected.detach().numpy(), 1e-5)


def test_layer_scale_is_that_of_dinov2():
    from transformers.models.dinov2.modeling_dinov2 import Dinov2Layer

    config = transformers.Dinov2Config(
        hidden_size=12, num_attention_heads=3, mlp_ratio=2, hidden_act="gelu", layer_norm_eps=1e-5
    )
    config._attn_implementation = "eager"
    theirs = randomised(Dinov2Layer(config))
    ours = txf.layers.EncoderBlock(
        3, intermediate_dim=24, activation="gelu", norm_placement="pre", layer_scale=1.0, norm_epsilon=1e-5
    )
    ours(X)
    query, key, value, output, first, second = [m for m in theirs.modules() if isinstance(m, torch.nn.Linear)]
    values = {
        **norm("attention_norm", theirs.norm1), **norm("feed_forward_norm", theirs.norm2),
        **projection("attention/query", query), **projection("attention/key", key),
        **projection("attention/value", value), **projection("attention/output", output),
        **projection("feed_forward/intermediate", first), **projection("feed_forward/output", second),
        "attention_scale/gamma": theirs.layer_scale1.lambda1, "feed_forward_scale/gamma": theirs.layer_scale2.lambda1,
    }  # fmt: skip
    assign_all(ours, values)
    expected = theirs(torch.tensor(X))
    expected = expected[0] if isinstance(expected, tuple) else expected
    drawing.assert_same(ours(X), expected.detach().numpy(), 1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_shared_blocks_are_those_of_albert(groups):
    config = transformers.AlbertConfig(
        vocab_size=11, embedding_size=8, hidden_size=12, num_hidden_layers=5, num_hidden_groups=groups,
        num_attention_heads=3, intermediate_size=20, hidden_act="gelu", max_position_embeddings=7, type_vocab_size=2,
        layer_norm_eps=1e-5,
    )  # fmt: skip
    theirs = randomised(transformers.AlbertModel(config, add_pooling_layer=False))
    ours = txf.models.encoder(
        11, 5, 12, 3, intermediate_dim=20, activation="gelu", position_encoding="learned", max_length=7, token_types=2,
        embedding_dim=8, embedding_norm=True, scale_embedding=False, pad_id=None, share_blocks=groups,
        token_type_ids=True,
    )  # fmt: skip
    tables = theirs.embeddings
    values = {
        "embedding/token/embeddings": tables.word_embeddings.weight,
        "embedding/position/embeddings": tables.position_embeddings.weight,
        "embedding/token_type/embeddings": tables.token_type_embeddings.weight,
        **norm("encoder_embedding_norm", tables.LayerNorm),
        **projection("encoder_embedding_projection", theirs.encoder.embedding_hidden_mapping_in),
    }
    for i, group in enumerate(theirs.encoder.albert_layer_groups):
        layer = group.albert_layers[0]
        own = {
            **projection("attention/query", layer.attention.query), **projection("attention/key", layer.attention.key),
            **projection("attention/value", layer.attention.value),
            **projection("attention/output", layer.attention.dense),
            **norm("attention_norm", layer.attention.LayerNorm),
            **norm("feed_forward_norm", layer.full_layer_layer_norm),
            **projection("feed_forward/intermediate", layer.ffn), **projection("feed_forward/output", layer.ffn_output),
        }  # fmt: skip
        values.update({f"encoder_{i}/{name}": value for name, value in own.items()})
    assign_all(ours, values)
    ids, types = np.array([[3, 4, 5, 6], [7, 1, 2, 9]]), np.array([[0, 0, 1, 1], [0, 1, 1, 1]])
    expected = theirs(torch.tensor(ids), token_type_ids=torch.tensor(types)).last_hidden_state
    inputs = dict(zip(sorted(ours.input, key=lambda name: "type" in name), (ids, types)))
    drawing.assert_same(keras.ops.convert_to_numpy(ours(inputs)), expected.detach().numpy(), 1e-5)
