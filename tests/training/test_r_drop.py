"""RDrop against PyTorch's KL divergence in float64, and in `fit`.

Legend: B batch of one half, T length, V vocabulary.
"""

import drawing
import keras
import numpy as np
import pytest
import torch
from torch.nn import functional

import keras_txf as txf

B, T, V = 2, 4, 6
TARGETS = np.tile(np.array([[3, 1, 5, 2], [4, 2, 0, 0]]), (2, 1))
LOGITS = 3 * drawing.normal(2 * B, T, V)


def paper(logits, strength, smoothing, weights):
    """Halved, per token: what the paper adds up over two draws."""
    targets, weights = torch.tensor(TARGETS), torch.tensor(weights, dtype=torch.float64)
    ends = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none", label_smoothing=smoothing)
    first, second = logits.log_softmax(-1).chunk(2)
    apart = functional.kl_div(first, second, reduction="none", log_target=True)
    apart = (apart + functional.kl_div(second, first, reduction="none", log_target=True)).sum(-1)
    one, other = ends.chunk(2)
    return ((one + other + strength / 2 * apart) * weights[:B]).sum() / 2 / weights[:B].sum()


CLASS_WEIGHT = {1: 9.0, 2: 0.5}


@pytest.mark.parametrize("strength, smoothing, weighted, class_weight", [
    (5.0, 0.0, False, None), (1.0, 0.1, True, None), (5.0, 0.0, True, CLASS_WEIGHT), (3.0, 0.2, False, CLASS_WEIGHT),
])  # fmt: skip
def test_equals_the_paper(strength, smoothing, weighted, class_weight):
    loss = txf.training.RDrop(label_smoothing=smoothing, strength=strength, class_weight=class_weight)
    config = loss.get_config()
    loss = keras.losses.deserialize(keras.losses.serialize(loss))
    assert loss.get_config() == config and loss.class_weight == class_weight
    sample_weight = np.tile([0.5, 2.0], 2) if weighted else np.ones(2 * B)
    weights = (TARGETS != 0) * sample_weight[:, None]
    weights = weights * np.vectorize(lambda tag: (class_weight or {}).get(tag, 1.0))(TARGETS)
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    value = paper(logits, strength, smoothing, weights)
    assert float(loss(TARGETS, LOGITS, sample_weight)) == pytest.approx(value.item(), rel=1e-5)
    ours = drawing.gradient(lambda logits: loss(TARGETS, logits, sample_weight), LOGITS)
    np.testing.assert_allclose(ours, torch.autograd.grad(value, logits)[0], atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the others take the gradient of what is computed")
def test_the_gradient_has_a_gradient():
    import tensorflow as tf

    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(paper(logits, 5.0, 0.1, TARGETS != 0), logits, create_graph=True)
    (expected,) = torch.autograd.grad((slope**2).sum(), logits)
    loss, logits = txf.training.RDrop(label_smoothing=0.1), tf.Variable(LOGITS, dtype="float32")
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            value = loss(TARGETS, logits)
        penalty = tf.reduce_sum(inner.gradient(value, logits) ** 2)
    np.testing.assert_allclose(outer.gradient(penalty, logits), expected, atol=1e-6)


def test_tokens_that_both_draws_forbid_do_not_count():
    forbidden, far = LOGITS.copy(), LOGITS.copy()
    forbidden[..., 0], far[..., 0] = -np.inf, -1e4
    loss = txf.training.RDrop()
    assert float(loss(TARGETS, forbidden)) == pytest.approx(float(loss(TARGETS, far)), rel=1e-6)
    slope = drawing.gradient(lambda logits: loss(TARGETS, logits), forbidden)
    np.testing.assert_allclose(slope, drawing.gradient(lambda logits: loss(TARGETS, logits), far), atol=1e-7)


def test_halves_that_differ_raise_an_error():
    other = TARGETS.copy()
    other[3, 1] = 1
    with pytest.raises(ValueError, match="`y_true` must hold each example twice, .* with 1 targets that differ"):
        txf.training.RDrop()(other, LOGITS)
    with pytest.raises(ValueError, match="`y_true` must hold each example twice; received 9 tokens"):
        txf.training.RDrop()(TARGETS[:3, :3], LOGITS[:3, :3])
    with pytest.raises(ValueError, match="`strength` must be"):
        txf.training.RDrop(strength=0)
