"""SoftmaxContrastiveLoss and SigmoidContrastiveLoss against loops in float64 and against PyTorch.

Legend: B pairs.
"""

import drawing
import keras
import numpy as np
import pytest
import torch
from keras import ops
from refusals import refused

import keras_txf as txf

B = 5
IDS = np.array([40, 7, 2**30, 3, 0])
TWICE = np.array([4, 7, 4, 3, 7])  # two pairs of pairs that match
WEIGHTS = np.array([0.5, 2.0, 0.0, 1.0, 3.0])
LOSSES = {"softmax": txf.training.SoftmaxContrastiveLoss, "sigmoid": txf.training.SigmoidContrastiveLoss}
losses = pytest.mark.parametrize("kind", LOSSES)


def drawn(seed, size=4.0):
    return (size * drawing.normal(B, B, seed=seed)).astype("float32")


def softmax_losses(ids, logits):
    """Of each pair the mean cross-entropy of its row and of its column, the target spread over all that match."""
    found = []
    for i in range(len(ids)):
        both = []
        for row in (logits[i], logits[:, i]):
            row = row.astype("float64")
            logarithms = row - row.max() - np.log(np.exp(row - row.max()).sum())
            both.append(-np.mean([logarithms[j] for j in range(len(ids)) if ids[j] == ids[i]]))
        found.append(np.mean(both))
    return np.array(found)


def sigmoid_losses(ids, logits):
    """For each image the sum over the texts of -log of the probability of the true answer."""
    found = np.zeros(len(ids))
    for i, j in np.ndindex(len(ids), len(ids)):
        found[i] += np.logaddexp(0, logits[i, j].astype("float64") * (-1 if ids[i] == ids[j] else 1))
    return found


REFERENCES = {"softmax": softmax_losses, "sigmoid": sigmoid_losses}


@losses
@pytest.mark.parametrize("ids", [IDS, TWICE], ids=["distinct", "twice"])
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["", "weights"])
def test_equals_a_loop_in_float64(kind, ids, weights):
    loss, reference = LOSSES[kind](), REFERENCES[kind]
    for seed in range(3):
        expected = reference(ids, drawn(seed)) * (1 if weights is None else weights)
        assert float(loss(ids, drawn(seed), weights)) == pytest.approx(expected.mean(), rel=1e-5)
        assert float(loss(ids[:, None], drawn(seed), weights)) == pytest.approx(expected.mean(), rel=1e-5)


def test_values_and_gradients_are_those_of_pytorch():
    logits = torch.tensor(drawn(4), dtype=torch.float64, requires_grad=True)
    places = torch.arange(B)
    cross_entropy = torch.nn.functional.cross_entropy
    softmax = (cross_entropy(logits, places) + cross_entropy(logits.T, places)) / 2
    signs = 2 * torch.eye(B, dtype=torch.float64) - 1
    sigmoid = -torch.nn.functional.logsigmoid(signs * logits).sum() / B
    for kind, expected in (("softmax", softmax), ("sigmoid", sigmoid)):
        assert float(LOSSES[kind]()(IDS, drawn(4))) == pytest.approx(expected.item(), rel=1e-5)
        (slope,) = torch.autograd.grad(expected, logits, retain_graph=True)
        ours = drawing.gradient(lambda x, kind=kind: LOSSES[kind]()(IDS, x), drawn(4))
        np.testing.assert_allclose(ours, slope.numpy(), atol=1e-6)


@losses
def test_large_logits_stay_finite_and_half_precision_is_computed_in_float32(kind):
    right, wrong = (float(LOSSES[kind]()(IDS, sign * 1e4 * (2 * np.eye(B, dtype="float32") - 1))) for sign in (1, -1))
    assert right == 0 and np.isfinite(wrong) and wrong > 1e4
    logits = ops.cast(drawn(2), "bfloat16")
    found = LOSSES[kind]()(IDS, logits)
    assert keras.backend.standardize_dtype(found.dtype) == "float32"
    assert float(found) == pytest.approx(REFERENCES[kind](IDS, drawing.array(logits)).mean(), rel=1e-5)


@losses
def test_bad_input_raises_value_errors(kind):
    loss = LOSSES[kind]()
    refused(lambda: loss(IDS, drawn(0)[:, :4]), ["`y_pred`", "(B, B)", "(5, 4)"])
    refused(lambda: loss(IDS[:4], drawn(0)), ["`y_true`", "(B,)", "(4,)"])
    refused(lambda: loss(np.eye(B, dtype="int32"), drawn(0)), ["`y_true`", "(5, 5)"])
    refused(lambda: loss(IDS + 0.5, drawn(0)), ["`y_true`", "integers"])
    again = type(loss).from_config(loss.get_config())
    assert float(again(IDS, drawn(0))) == float(loss(IDS, drawn(0))) and again.name == loss.name
