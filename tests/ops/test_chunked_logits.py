"""Cross-entropy and argmax in chunks against PyTorch in float64 on whole logits: values and gradients.

Legend: N tokens, D model dim, V vocabulary.
"""

import numpy as np
import pytest
from drawing import array, assert_same, few, gradient, normal
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_txf.ops.chunked_logits import best_tokens, cross_entropies, weighted_cross_entropy
from keras_txf.ops.logit_factors import LogitFactors

N, D, V = 14, 5, 11
TARGETS = np.tile(np.random.default_rng(0).integers(0, V, N // 2), 2).astype("int32")  # of two draws of dropout


def reference(hidden, table, weights, bias, tied, scale, soft_cap, smoothing, strength):
    """The cross-entropies, the best tokens, and what the loss of all adds up to, with PyTorch's own KL divergence."""
    torch = pytest.importorskip("torch")
    logits = (scale or 1.0) * (hidden @ (table.T if tied else table)) + bias
    logits = logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)
    targets = torch.tensor(TARGETS).long()
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    first, second = logits.log_softmax(-1).chunk(2)
    apart = sum(
        torch.nn.functional.kl_div(one, other, reduction="none", log_target=True).sum(-1)
        for one, other in [(first, second), (second, first)]
    )
    total = (weights * (losses + (strength or 0.0) / 4 * torch.cat([apart, apart]))).sum()
    return losses.detach().numpy(), logits.argmax(-1).numpy(), total


@few(8)
@given(
    st.booleans(), st.booleans(), st.sampled_from([None, 0.3]), st.sampled_from([None, 1.5]),
    st.sampled_from([0.0, 0.1]), st.sampled_from([None, 1.0, 5.0]), st.sampled_from([1, 4 * V, 7 * V, 100 * V]),
)  # fmt: skip
def test_losses_and_gradients_are_of_whole_logits(tied, with_bias, scale, soft_cap, smoothing, strength, chunk_size):
    torch = pytest.importorskip("torch")
    weights = np.random.default_rng(3).random(N).astype("float32")
    weights[4] = weights[4 + N // 2] = 0
    arrays = [normal(N, D, seed=1), normal(*((V, D) if tied else (D, V)), seed=2), weights]
    arrays += [normal(V, seed=4)] * with_bias

    def factors(hidden, table, bias=None):
        return LogitFactors(hidden, table, tied, "float32", scale, bias, soft_cap)

    def total(hidden, table, weights, *bias):
        known = factors(hidden, table, *bias)
        return 2 * weighted_cross_entropy(known, TARGETS, weights, smoothing, strength, chunk_size)

    def total_of_flat(flat):  # the gradients of all arrays at once
        parts = ops.split(flat, ends)
        return total(*(ops.reshape(part, x.shape) for part, x in zip(parts, arrays)))

    doubles = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
    bias = doubles[3:] or [0.0]
    losses, best, expected = reference(*doubles[:3], *bias, tied, scale, soft_cap, smoothing, strength)
    tensors = [ops.convert_to_tensor(x) for x in arrays]
    assert_same(total(*tensors), 2 * expected.item())
    known = factors(*tensors[:2], *tensors[3:])
    assert_same(cross_entropies(known, TARGETS, smoothing, chunk_size), losses)
    np.testing.assert_array_equal(array(best_tokens(known, chunk_size)), best)
    ends = np.cumsum([x.size for x in arrays])[:-1].tolist()
    found = np.split(gradient(total_of_flat, np.concatenate([x.ravel() for x in arrays])), ends)
    for one, slope in zip(found, torch.autograd.grad(expected, doubles)):
        assert_same(one, 2 * slope.numpy().ravel())


def test_gradients_larger_than_any_float16_come_before_the_scale_of_the_loss():
    """Weights of 1,000 in a mean: the sum over the tokens of one target is above 65,504, and the mean is not."""
    hidden, table = np.full((13, D), 10, "float16"), (normal(V, D) / 10).astype("float16")
    targets, weights = np.full(13, 3, "int32"), np.full(13, 1000, "float32")

    def mean(tensor, place):
        tensors = [tensor if i == place else ops.convert_to_tensor(x) for i, x in enumerate((hidden, table))]
        total = weighted_cross_entropy(LogitFactors(*tensors, True, "float16"), targets, weights)
        return total / (1000 * 13)

    wide = hidden.astype("float64"), table.astype("float64")
    exponentials = np.exp(wide[0] @ wide[1].T)
    of_logits = (exponentials / exponentials.sum(1, keepdims=True) - np.eye(V)[targets]) / 13
    for place, expected in enumerate((of_logits @ wide[1], of_logits.T @ wide[0])):
        found = gradient(lambda tensor, place=place: mean(tensor, place), (hidden, table)[place])
        np.testing.assert_allclose(found.astype("float64"), expected, rtol=1e-2, atol=1e-3)


def test_the_slope_of_the_soft_cap_comes_of_logits_that_are_not_rounded():
    """In bfloat16, near the cap: the gradients are off by the rounding of hidden states and table alone."""
    torch = pytest.importorskip("torch")
    hidden, table = normal(64, 16, seed=1) * 1.25, normal(50, 16, seed=2)
    hidden, table = (torch.tensor(x).bfloat16().float().numpy() for x in (hidden, table))
    targets = np.random.default_rng(3).integers(0, 50, 64).astype("int32")
    leaf = torch.tensor(hidden, dtype=torch.float64, requires_grad=True)
    logits = 5 * torch.tanh(leaf @ torch.tensor(table, dtype=torch.float64).T / 5)
    torch.nn.functional.cross_entropy(logits, torch.tensor(targets).long(), reduction="sum").backward()

    def total(tensor):
        factors = LogitFactors(tensor, ops.convert_to_tensor(table), True, "bfloat16", soft_cap=5.0)
        return weighted_cross_entropy(factors, targets, np.ones(64, "float32"), chunk_size=10 * 50)

    expected = leaf.grad.numpy()
    assert np.linalg.norm(gradient(total, hidden) - expected) < 2.9e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize("target", [-1, V])
def test_a_target_outside_the_vocabulary_gives_nan(target):
    factors = LogitFactors(ops.ones((3, D)), ops.ones((V, D)), True, "float32")
    targets = ops.convert_to_tensor(np.array([1, target, 2], "int32"))
    np.testing.assert_array_equal(np.isnan(array(cross_entropies(factors, targets))), [False, True, False])
    assert np.isnan(float(weighted_cross_entropy(factors, targets, ops.ones(3))))
    # A token of weight 0 does not count, whatever its target.
    assert float(weighted_cross_entropy(factors, targets, np.array([1.0, 0.0, 1.0]))) == pytest.approx(2 * np.log(V))


def test_no_tokens_have_no_loss():
    factors = LogitFactors(ops.ones((0, D)), ops.ones((V, D)), True, "float32")
    assert float(weighted_cross_entropy(factors, ops.zeros((0,), "int32"), ops.zeros((0,)))) == 0
    assert tuple(best_tokens(factors).shape) == (0,)
