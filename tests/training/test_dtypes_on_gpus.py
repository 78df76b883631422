"""A training step, lowered for CUDA on a machine without a GPU: its products are in bfloat16, its shapes fixed."""

import re

import keras
import numpy as np
import pytest

import keras_txf as txf

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX alone lowers for devices that are absent")
LLAMA = dict(norm="rms", gated=True, activation="silu", position="rotary", position_encoding=None, use_bias=False)
OPTIONS = {
    "as GPT-2": dict(position_encoding="learned", max_length=128, activation="gelu_tanh"),
    "as Llama": dict(num_key_value_heads=1, tie_embeddings=False, **LLAMA),
    "a window and a soft cap": dict(
        attention=txf.layers.MultiHeadSelfAttention(2, causal=True, window=16, logit_soft_cap=20.0), num_heads=None
    ),
}


def lowered(**options):
    """The text of a step of Adam, as JAX hands it to XLA for CUDA."""
    import jax
    import jax.export

    sizes = dict(num_layers=2, dim=128, num_heads=2, norm_placement="pre", dropout=0.1)
    model = txf.models.decoder_generator(64, **{**sizes, **options}, dtype="mixed_bfloat16")
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    cross_entropy = txf.training.TokenCrossEntropy(pad_id=None)

    def loss(trained, others, inputs, targets):
        outputs, others = model.stateless_call(trained, others, inputs, training=True)
        return cross_entropy(targets, outputs), others

    def step(trained, others, moments, inputs, targets):
        (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(trained, others, inputs, targets)
        return value, others, *optimizer.stateless_apply(moments, gradients, trained)

    state = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    ids = np.ones((2, 128), "int32")
    arguments = [[variable.value for variable in variables] for variables in state] + [ids, ids]
    kernels = [f"__cudnn$fmha{bias}Softmax{back}" for bias in ("", "ScaleBias") for back in ("", "Backward")]
    checks = [jax.export.DisabledSafetyCheck.custom_call(kernel) for kernel in kernels]
    export = jax.export.export(jax.jit(step), platforms=["cuda"], disabled_checks=checks)
    return export(*arguments).mlir_module()


def products(text):
    """The dtypes in which each matrix product multiplies: the dtypes of its operands, or of its named algorithm.

    The gradient of the scores hands float32 to the products of JAX's attention, which round it to bfloat16.
    """
    found = []
    for line in re.findall(r"stablehlo\.(?:dot_general|convolution)\b.*", text):
        operands = re.search(r": \(([^()]*)\) ->", line)[1]
        named = re.findall(r"[lr]hs_precision_type = (\w+)", line)
        found.append(named or re.findall(r"tensor<(?:\d+x)*(\w+)>", operands))
    return found


def check_fixed(text):
    assert not re.search(r"tensor<[^>]*\?", text)  # a length that only a run knows
    assert not re.search(r"callback|outfeed|infeed|stablehlo\.(send|recv)", re.sub(r'loc\(".*', "", text))


@pytest.mark.parametrize("name", OPTIONS)
def test_every_product_of_a_step_is_in_bfloat16(name):
    text = lowered(**OPTIONS[name])
    found = products(text)
    assert len(found) >= 3 * (2 * (4 + 2 + 2) + 1)  # projections, attention and network of two blocks, and the logits
    assert all(dtypes == ["bf16", "bf16"] for dtypes in found), [x for x in found if x != ["bf16", "bf16"]]
    check_fixed(text)


def test_the_check_sees_products_in_float32():
    """The router of experts scores in float32, as is meant."""
    experts = txf.layers.MixtureOfExperts(2, 1, 64, dtype="mixed_bfloat16")
    found = products(lowered(feed_forward=experts))
    routers = [dtypes for dtypes in found if dtypes == ["f32", "f32"]]
    assert len(routers) == 2 * 3 and all(dtypes in (["bf16", "bf16"], ["f32", "f32"]) for dtypes in found)


@pytest.mark.parametrize(("pad_id", "kernel"), [(None, "fmhaSoftmax"), (0, "fmhaScaleBiasSoftmax")])
def test_attention_is_a_kernel_of_cudnn_in_bfloat16(pad_id, kernel, monkeypatch):
    """A mask of padding becomes a bias. Without a mask the kernel itself is causal.

    What JAX asks the machine for is answered as an H100 with cuDNN 9.10 would."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)
    text = lowered(**OPTIONS["as GPT-2"], pad_id=pad_id)
    calls = re.findall(r"custom_call @__cudnn\$(\w+)\(.*: \(([^()]*)\) ->", text)
    assert sorted(name for name, _ in calls) == 2 * [kernel] + 2 * [f"{kernel}Backward"]  # of two blocks
    for _, operands in calls:
        assert set(re.findall(r"[x<](bf16|f16|f32)>", operands)) <= {"bf16", "f32"} and operands.count("bf16") >= 3
    assert all(dtypes == ["bf16", "bf16"] for dtypes in products(text))
    check_fixed(text)
