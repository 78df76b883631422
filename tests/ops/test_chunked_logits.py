"""Cross-entropy and argmax in chunks against NumPy in float64 on whole logits: values and gradients, with every option.

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

N, D, V = 13, 5, 11
TARGETS = np.random.default_rng(0).integers(0, V, N).astype("int32")


def reference(hidden, table, weights, bias, tied, scale, soft_cap, smoothing):
    """The cross-entropies, the best tokens, and the gradients of hidden, table, weights and bias."""
    hidden, table, weights, bias = (np.asarray(x, "float64") for x in (hidden, table, weights, bias))
    kernel = table.T if tied else table
    raw = (scale or 1.0) * (hidden @ kernel) + bias
    logits, slope = raw, np.ones_like(raw)
    if soft_cap is not None:
        logits = soft_cap * np.tanh(raw / soft_cap)
        slope = 1 - np.tanh(raw / soft_cap) ** 2
    logarithms = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    wanted = (1 - smoothing) * np.eye(V)[TARGETS] + smoothing / V
    losses = -(wanted * logarithms).sum(-1)
    of_raw = weights[:, None] * (np.exp(logarithms) - wanted) * slope
    of_product = of_raw * (scale or 1.0)
    of_kernel = hidden.T @ of_product
    gradients = [of_product @ kernel.T, of_kernel.T if tied else of_kernel, losses, of_raw.sum(0)]
    return losses, logits.argmax(-1), gradients


@st.composite
def options(draw):
    return {
        "tied": draw(st.booleans()),
        "scale": draw(st.sampled_from([None, 0.3])),
        "soft_cap": draw(st.sampled_from([None, 1.5])),
        "smoothing": draw(st.sampled_from([0.0, 0.1])),
    }


@few(8)
@given(options(), st.booleans(), st.sampled_from([1, 3 * V, 5 * V, 100 * V]))
def test_losses_and_gradients_are_those_of_whole_logits(drawn, with_bias, chunk_size):
    hidden, table = normal(N, D, seed=1), normal(*((V, D) if drawn["tied"] else (D, V)), seed=2)
    weights = np.random.default_rng(3).random(N).astype("float32")
    weights[4] = 0
    bias = normal(V, seed=4) if with_bias else np.zeros(V, "float32")
    arrays = [hidden, table, weights] + [bias] * with_bias
    smoothing = drawn.pop("smoothing")

    def factors(hidden, table, bias=None):
        return LogitFactors(hidden, table, drawn["tied"], "float32", drawn["scale"], bias, drawn["soft_cap"])

    def total(*tensors):
        hidden, table, weights, *bias = tensors
        known = factors(hidden, table, *bias)
        return 2 * weighted_cross_entropy(known, TARGETS, weights, smoothing, chunk_size=chunk_size)

    losses, best, gradients = reference(hidden, table, weights, bias, **drawn, smoothing=smoothing)
    tensors = [ops.convert_to_tensor(x) for x in arrays]
    assert_same(total(*tensors), 2 * (weights * losses).sum())
    known = factors(tensors[0], tensors[1], *tensors[3:])
    assert_same(cross_entropies(known, TARGETS, smoothing, chunk_size), losses)
    np.testing.assert_array_equal(array(best_tokens(known, chunk_size)), best)
    for place, x in enumerate(arrays):

        def of_one(tensor, place=place):
            return total(*(tensor if i == place else other for i, other in enumerate(tensors)))

        assert_same(gradient(of_one, x), 2 * gradients[place])


def two_draws(hidden, table, weights, bias, tied, scale, soft_cap, smoothing, strength):
    """What R-Drop's loss of both draws adds up to, in PyTorch: cross-entropy and its own KL divergence."""
    torch = pytest.importorskip("torch")
    logits = (scale or 1.0) * (hidden @ (table.T if tied else table)) + bias
    logits = logits if soft_cap is None else soft_cap * torch.tanh(logits / soft_cap)
    targets = torch.tensor(np.tile(TARGETS, 2)).long()
    losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none", label_smoothing=smoothing)
    first, second = logits.log_softmax(-1).chunk(2)
    apart = sum(
        torch.nn.functional.kl_div(one, other, reduction="none", log_target=True).sum(-1)
        for one, other in [(first, second), (second, first)]
    )
    return (weights * (losses + strength / 4 * torch.cat([apart, apart]))).sum()


@few(8)
@given(options(), st.booleans(), st.sampled_from([1, 4 * V, 7 * V, 100 * V]), st.sampled_from([1.0, 5.0]))
def test_two_draws_and_their_gradients_are_those_of_whole_logits(drawn, with_bias, chunk_size, strength):
    torch = pytest.importorskip("torch")
    hidden, table = normal(2 * N, D, seed=1), normal(*((V, D) if drawn["tied"] else (D, V)), seed=2)
    weights = np.random.default_rng(3).random(2 * N).astype("float32")
    weights[4] = weights[4 + N] = 0
    arrays = [hidden, table, weights] + [normal(V, seed=4)] * with_bias
    smoothing, targets = drawn["smoothing"], np.tile(TARGETS, 2)

    def total(*tensors):
        hidden, table, weights, *bias = tensors
        known = LogitFactors(
            hidden, table, drawn["tied"], "float32", drawn["scale"], *bias or [None], drawn["soft_cap"]
        )
        return weighted_cross_entropy(known, targets, weights, smoothing, strength, chunk_size)

    doubles = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
    expected = two_draws(*doubles, *[] if with_bias else [0.0], **drawn, strength=strength)
    tensors = [ops.convert_to_tensor(x) for x in arrays]
    assert_same(total(*tensors), expected.item())
    for place, slope in enumerate(torch.autograd.grad(expected, doubles)):

        def of_one(tensor, place=place):
            return total(*(tensor if i == place else other for i, other in enumerate(tensors)))

        assert_same(gradient(of_one, arrays[place]), slope.numpy())


def test_gradients_larger_than_any_float16_come_before_the_scale_of_the_loss():
    """Weights of 1,000 in a mean: the sum over the tokens of one target is above 65,504, and the mean is not."""
    hidden, table = np.full((N, D), 10, "float16"), (normal(V, D) / 10).astype("float16")
    targets, weights = np.full(N, 3, "int32"), np.full(N, 1000, "float32")

    def mean(tensor, place):
        tensors = [tensor if i == place else ops.convert_to_tensor(x) for i, x in enumerate((hidden, table))]
        total = weighted_cross_entropy(LogitFactors(*tensors, True, "float16"), targets, weights)
        return total / (1000 * N)

    wide = hidden.astype("float64"), table.astype("float64")
    exponentials = np.exp(wide[0] @ wide[1].T)
    of_logits = (exponentials / exponentials.sum(1, keepdims=True) - np.eye(V)[targets]) / N
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
