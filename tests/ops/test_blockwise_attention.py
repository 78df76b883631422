"""Attention in blocks against PyTorch in float64 on whole logits: values and gradients, with every option.

Legend: B batch, T query length, S key length, N heads, K key-value heads, H head dim.
"""

import keras
import numpy as np
import pytest
from drawing import array, assert_same, few, fused_backend, gradient, normal
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

import keras_txf as txf
from keras_txf.backend import compilers
from keras_txf.ops import attention as kernel
from keras_txf.ops.attention import WeightDropout
from keras_txf.ops.blockwise_attention import blockwise_attention
from keras_txf.ops.masks import AttentionMask
from keras_txf.ops.positions import PositionBias

B, T, N, H = 2, 13, 4, 6
RNG = np.random.default_rng(5)
PADDING = np.arange(T) < np.array([[T], [9]])
SEGMENTS = np.sort(RNG.integers(0, 3, (B, T)), axis=1).astype("int32")
EXPLICIT = {shape: RNG.random(shape) < 0.4 for shape in ((T, T), (B, T, T), (B, 1, T, T), (B, N, T, T))}
RUNS = np.array([[0, 0, 1, 1, 1, 1, 0, 0, 0, 2, 2, 2, 3], [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 2, 2]], "int32")
EXPLICIT[B, N, T, T][0, 1, 3] = False  # a query that sees nothing
POSITIONS = {
    None: None, "rotary": txf.layers.Rotary(), "alibi": txf.layers.ALiBi(N),  # rotary adds no bias
    "relative": txf.layers.RelativeBias(N, num_buckets=8, max_distance=9),
}  # fmt: skip
POSITIONS["relative"].build()


OPTIONS = st.fixed_dictionaries({
    "kv_heads": st.sampled_from([1, 2, N]), "causal": st.booleans(), "window": st.sampled_from([None, 1, 3, 20]),
    "padding": st.booleans(), "segments": st.booleans(), "explicit": st.sampled_from([None, *EXPLICIT]),
    "prefix": st.sampled_from([None, np.array([7, 3])]), "runs": st.booleans(),
    "position": st.sampled_from(list(POSITIONS)), "position_ids": st.sampled_from(["(T,)", "(B, T)"]),
    "soft_cap": st.sampled_from([None, 1.5]), "sinks": st.booleans(),
    "blocks": st.sampled_from([(4, 5), (13, 13), (16, 3), (1, 8)]),
})  # fmt: skip


def reference(arrays, mask, position, positions, soft_cap, upstream):
    """The outputs and the gradients of the arrays, by PyTorch in float64."""
    torch = pytest.importorskip("torch")
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
    query, key, value, *others = leaves
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    logits = query @ key.transpose(-1, -2)
    if soft_cap is not None:
        logits = soft_cap * torch.tanh(logits / soft_cap)
    if isinstance(position, txf.layers.RelativeBias):
        buckets = np.array(ops.convert_to_numpy(position.rows(positions, positions)))
        logits = logits + others.pop()[torch.tensor(buckets).long()].permute(0, 3, 1, 2)
    elif isinstance(position, txf.layers.ALiBi):
        logits = logits + torch.tensor(array(position(positions, positions)))
    logits = logits if mask is None else logits.masked_fill(~torch.tensor(mask), -torch.inf)
    if others:
        sink = others.pop()[None, :, None, None].expand(*logits.shape[:3], 1)
        logits = torch.cat([logits, sink], dim=-1)
    weights = torch.nan_to_num(torch.softmax(logits, dim=-1))[..., : key.shape[2]]
    output = weights @ value
    total = (output * torch.tensor(upstream)).sum()
    return output.detach().numpy(), [x.numpy() for x in torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize("examples", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_outputs_and_gradients_are_those_of_whole_logits(examples):
    few(examples)(given(OPTIONS)(check))()


def check(drawn):
    padding, segments = (x if drawn[name] else None for name, x in (("padding", PADDING), ("segments", SEGMENTS)))
    explicit, prefix = EXPLICIT.get(drawn["explicit"]), drawn["prefix"]
    runs = RUNS if drawn["runs"] else None
    masks = padding, segments, segments, explicit
    mask = AttentionMask(drawn["causal"], drawn["window"], *masks, None, prefix, runs, runs)
    whole = mask.whole(T, T)
    position = POSITIONS[drawn["position"]]
    positions = np.arange(T, dtype="int32")
    positions = positions if drawn["position_ids"] == "(T,)" else np.stack([positions, 3 + positions])
    arrays = [normal(B, heads, T, H, seed=heads) for heads in (N, drawn["kv_heads"], drawn["kv_heads"])]
    arrays[2] = -arrays[2]
    arrays += [normal(N, seed=7)] if drawn["sinks"] else []
    learned = drawn["position"] == "relative"
    if learned:
        arrays.append(normal(8, N, seed=9))
    upstream = normal(B, N, T, H, seed=8)

    def output_of(*tensors):
        bias = None if position is None else PositionBias(position, positions, positions)
        if learned:
            bias.weights = tensors[-1]
        return blockwise_attention(
            *tensors[:3], mask, bias, drawn["soft_cap"], None, True,
            tensors[3] if drawn["sinks"] else None, drawn["blocks"],
        )  # fmt: skip

    expected, gradients = reference(
        arrays, None if whole is None else ops.convert_to_numpy(whole), position, positions, drawn["soft_cap"], upstream
    )
    assert_same(output_of(*map(ops.convert_to_tensor, arrays)), expected, 1e-5)
    ends = np.cumsum([x.size for x in arrays])[:-1].tolist()

    def total(flat):  # the gradients of all arrays at once
        tensors = (ops.reshape(part, x.shape) for part, x in zip(ops.split(flat, ends), arrays))
        return ops.sum(output_of(*tensors) * ops.convert_to_tensor(upstream))

    found = np.split(gradient(total, np.concatenate([x.ravel() for x in arrays])), ends)
    for one, other in zip(found, gradients):
        assert_same(one, other.ravel(), 3e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_queries_whose_window_holds_no_block_of_keys_give_zeros(causal):
    """More queries than keys: the last ones see none, and no block of keys is computed for them."""
    query, key, value = normal(1, 2, 9, 3), normal(1, 2, 2, 3, seed=2), normal(1, 2, 2, 3, seed=3)
    mask = AttentionMask(causal, window=2)
    seen = ops.convert_to_numpy(mask.whole(9, 2))

    def output_of(tensor):
        others = map(ops.convert_to_tensor, (key, value))
        return blockwise_attention(tensor, *others, mask, zero_empty_rows=True, block_lengths=(2, 2))

    expected, (of_query, _, _) = reference((query, key, value), seen, None, None, None, np.ones((1, 2, 9, 3)))
    assert not expected[:, :, 4:].any()
    assert_same(output_of(ops.convert_to_tensor(query)), expected)
    assert_same(gradient(lambda x: ops.sum(output_of(x)), query), of_query)


def test_dropout_repeats_its_masks_in_the_backward_pass():
    """The output is linear in the values: their gradient is the sum of what each output has of them."""
    query, key, value, upstream = (ops.convert_to_tensor(normal(B, N, T, H, seed=seed)) for seed in range(4))

    def output_of(value, seed=3):
        dropout = WeightDropout(0.4, keras.random.SeedGenerator(seed)).in_blocks()  # the same one for each call
        return blockwise_attention(query, key, value, None, None, None, dropout, block_lengths=(4, 5))

    def dropped(value):
        return ops.sum(output_of(value) * upstream)

    slope = gradient(dropped, array(value))
    np.testing.assert_allclose(float(np.sum(slope * array(value))), float(dropped(value)), rtol=1e-4)
    weights = array(output_of(ops.ones_like(value)))[..., 0]  # the sums of each query's kept weights, of mean 1
    assert weights.std() > 0.05 and abs(weights.mean() - 1) < 0.1
    assert np.abs(array(output_of(value, seed=4)) - array(output_of(value))).max() > 0.1


def test_the_gradient_of_queries_and_keys_with_dropout_is_that_of_differences():
    arrays = [normal(1, 2, 5, 3, seed=seed) for seed in range(3)]

    def total(x, place):
        tensors = [x if i == place else ops.convert_to_tensor(other) for i, other in enumerate(arrays)]
        dropout = WeightDropout(0.5, keras.random.SeedGenerator(3)).in_blocks()
        return ops.sum(ops.square(blockwise_attention(*tensors, None, None, None, dropout, block_lengths=(2, 2))))

    for place in (0, 1):
        step = np.zeros_like(arrays[place])
        step[0, 1, 2, 1] = 1e-2
        up, down = (float(total(ops.convert_to_tensor(arrays[place] + x), place)) for x in (step, -step))
        found = gradient(lambda x, place=place: total(x, place), arrays[place])[0, 1, 2, 1]
        np.testing.assert_allclose(found, (up - down) / 2e-2, rtol=1e-2, atol=1e-3)


LAYERS = {
    "causal": dict(causal=True), "ALiBi": dict(position="alibi", sinks=True),
    "window and T5 bias": dict(causal=True, window=3, position="relative", sinks=True),
    "grouped, soft cap, sinks": dict(num_key_value_heads=2, logit_soft_cap=2.0, sinks=True, position="rotary"),
}  # fmt: skip


@pytest.mark.drawn(2)
@pytest.mark.parametrize("dtype, length", [("float32", T), ("mixed_bfloat16", T), ("float32", 1)])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_gives_the_same_on_both_sides_of_the_threshold(name, dtype, length, monkeypatch):
    layer = txf.layers.MultiHeadSelfAttention(num_heads=N, dtype=dtype, **LAYERS[name])
    x, mask = normal(B, length, 16), PADDING[:, :length]
    layer.build(x.shape)
    # XLA's products in bfloat16 on CPUs may round sums at other places.
    tolerance = 1e-5 if dtype == "float32" else 3e-2
    results = []
    for threshold in (kernel.LONG, 1):
        monkeypatch.setattr(kernel, "LONG", threshold)
        monkeypatch.setattr(kernel, "fuses_long", lambda *_: False)
        found = gradient(lambda x: ops.sum(ops.cast(layer(x, mask=mask), "float32") ** 2), x)
        results.append((array(layer(x, mask=mask))[mask], found[mask]))
    with_scores, scores = layer(x, mask=mask, return_attention_scores=True)
    assert tuple(scores.shape) == (B, N, length, length)  # on request they are whole
    results.append((array(with_scores)[mask], results[0][1]))
    for found in results[1:]:
        for one, other in zip(found, results[0]):
            assert_same(one, other, tolerance * max(1, np.abs(other).max()))


@pytest.mark.skipif(not fused_backend(), reason="TensorFlow has no fused kernel")
@pytest.mark.parametrize("position", [None, "rotary"])
def test_rotary_positions_keep_the_fused_kernel_and_its_causal_hint(position, monkeypatch):
    monkeypatch.setattr(kernel, "LONG", 1)
    monkeypatch.setattr(kernel, "fuses_long", lambda *_: True)
    calls, original = [], kernel._fused
    monkeypatch.setattr(kernel, "_fused", lambda *arguments: calls.append(arguments) or original(*arguments))
    txf.layers.MultiHeadSelfAttention(num_heads=N, causal=True, position=position)(normal(B, T, 16))
    [(_, _, _, mask, bias, causal, _)] = calls
    assert mask is None and bias is None and causal


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the kernel of PyTorch")
def test_large_masks_and_windows_go_through_blocks_on_pytorch(monkeypatch):
    monkeypatch.setattr(kernel, "LONG", 1)
    calls, original = [], kernel.blockwise_attention
    monkeypatch.setattr(kernel, "blockwise_attention", lambda *a: calls.append(a) or original(*a))
    query, key, value = (ops.convert_to_tensor(normal(B, T, N, 6)) for _ in range(3))
    padding = ops.convert_to_tensor(PADDING)
    small = {
        "nothing": AttentionMask(), "later keys": AttentionMask(causal=True),
        "padding": AttentionMask(key_padding=padding),
        "for all queries": AttentionMask(explicit=padding[:, None, None]),
    }  # fmt: skip
    pairs = {
        "later keys and padding": AttentionMask(causal=True, key_padding=padding),
        "explicit": AttentionMask(explicit=ops.ones((T, T), "bool")),
    }
    windows = {"window": AttentionMask(window=3), "window of earlier keys": AttentionMask(causal=True, window=3)}
    for limit, in_blocks in ((B * T * T + 1, windows), (B * T * T, {**windows, **pairs})):
        monkeypatch.setattr(compilers, "LARGE_MASK", limit)
        for name, mask in {**small, **pairs, **windows}.items():
            calls.clear()
            found = kernel.attention(query, key, value, mask=mask)
            assert bool(calls) == (name in in_blocks), name
            plain = kernel.attention(query, key, value, mask=mask, return_scores=True)[0]
            assert_same(found, plain)


@pytest.mark.slow
def test_models_train_and_generate_in_blocks(monkeypatch):
    """Through fit, in a compiled step, where the batch size is not known; and the prompt of generate."""
    losses, tokens = [], []
    ids = np.random.default_rng(0).integers(1, 11, (5, 12))
    for threshold in (kernel.LONG, 1):
        monkeypatch.setattr(kernel, "LONG", threshold)
        keras.utils.set_random_seed(1)
        model = txf.models.decoder_generator(11, 2, 16, 2, position="relative")
        model.compile("adam", txf.training.TokenCrossEntropy())
        history = model.fit(ids[:, :-1], ids[:, 1:], batch_size=2, epochs=2, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
        tokens.append(np.asarray(model.generate(ids[:2], 4)))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    np.testing.assert_array_equal(*tokens)


def test_sums_of_large_values_in_float16_are_finite():
    """2,048 equal weights: the sum of the values before the division, 102,400, is larger than any float16."""
    query, key = (ops.zeros((1, 1, length, 2), "float16") for length in (1, 2048))
    values = np.full((1, 1, 2048, 2), 50) + np.arange(2048)[:, None] % 4
    output = blockwise_attention(query, key, ops.convert_to_tensor(values, "float16"), block_lengths=(1, 2048))
    assert_same(ops.cast(output, "float32"), np.full((1, 1, 1, 2), 51.5), 0.05)
