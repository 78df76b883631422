"""MixtureOfExperts equals a slow loop over experts in float64; its loss, its options, and generation with it."""

import drawing
import keras
import numpy as np
import pytest

import keras_txf as txf
from keras_txf.checkpoints.families.mixtures import ClippedExperts

X = drawing.normal(2, 5, 6)
OPTIONS = [
    {}, {"top_k": 1}, {"router_activation": "sigmoid"}, {"normalize": False},
    {"gated": False, "activation": "relu", "use_bias": True}, {"num_shared_experts": 2, "router_activation": "sigmoid"},
    {"top_k": 3, "use_bias": True},
    {"num_shared_experts": 1, "shared_intermediate_dim": 7, "shared_gate": True},
    {"limit": 0.4, "use_bias": True, "activation": "gelu_sigmoid"},  # gpt-oss
    {"routed_scaling_factor": 1.7, "normalize": False}, {"e_score_correction_bias": True},
    {
        "num_experts": 8, "top_k": 3, "router_activation": "sigmoid", "e_score_correction_bias": True, "n_group": 4,
        "topk_group": 2, "routed_scaling_factor": 2.5, "num_shared_experts": 2,
    },  # DeepSeek-V3
    {"num_experts": 6, "n_group": 2, "topk_group": 1, "top_k_in_group": 1, "normalize": False},  # DeepSeek-V2
    {"num_experts": 6, "top_k": 3, "n_group": 3, "topk_group": 2, "router_activation": "sigmoid"},
    {"num_experts": 6, "n_group": 3},  # all groups
]  # fmt: skip


def make(**options):
    cls = ClippedExperts if "limit" in options else txf.layers.MixtureOfExperts
    layer = cls(**{"num_experts": 3, "intermediate_dim": 4, **options})
    layer(X)
    return drawing.randomize(layer, seed=2)


def slow(layer, x):
    """One token and one expert after the other, in float64."""
    values = {w.path.partition("/")[2]: drawing.array(w).astype("float64") for w in layer.weights}
    act = {
        "silu": lambda a: a / (1 + np.exp(-a)), "gelu_sigmoid": lambda a: a / (1 + np.exp(-1.702 * a)),
        "relu": lambda a: np.maximum(a, 0),
    }[layer.activation]  # fmt: skip

    def dense(x, own, name, between):
        return x @ own[f"{name}{between}kernel"] + own.get(f"{name}{between}bias", 0.0)

    def network(token, own, between):
        inner = dense(token, own, "intermediate", between)
        if layer.gated:
            gate = dense(token, own, "gate", between)
            if limit := getattr(layer, "limit", None):
                gate, inner = np.minimum(gate, limit), np.clip(inner, -limit, limit) + 1
            inner = act(gate) * inner
        else:
            inner = act(inner)
        return dense(inner, own, "output", between)

    outputs = np.zeros(x.shape)
    for place in np.ndindex(x.shape[:2]):
        token = x[place].astype("float64")
        logits = token @ values["router"] + values.get("router_bias", 0.0)
        sigmoid = layer.router_activation == "sigmoid"
        scores = 1 / (1 + np.exp(-logits)) if sigmoid else np.exp(logits) / np.exp(logits).sum()
        preferred = scores + values.get("e_score_correction_bias", 0.0)
        groups = np.arange(layer.num_experts).reshape(layer.n_group or 1, -1)
        of_groups = [sum(sorted(preferred[group])[-layer.top_k_in_group :]) for group in groups]
        open_to = groups[np.argsort(of_groups)[::-1][: layer.topk_group or len(groups)]].ravel()
        best = sorted(open_to, key=lambda e: -preferred[e])[: layer.top_k]
        total = scores[best].sum() if layer.normalize else 1.0
        for e in best:
            of_experts = [name for name in values if name.endswith(("_kernel", "_bias")) and values[name].ndim > 1]
            own = {name: values[name][e] for name in of_experts}
            outputs[place] += layer.routed_scaling_factor * scores[e] / total * network(token, own, "_")
        if layer.num_shared_experts:
            shared = {name.partition("/")[2]: value for name, value in values.items() if "shared_experts/" in name}
            weight = 1 / (1 + np.exp(-token @ values["shared_gate/kernel"])) if layer.shared_gate else 1.0
            outputs[place] += weight * network(token, shared, "/")
    return outputs


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_a_slow_loop_in_float64(options):
    layer = make(**options)
    drawing.assert_same(layer(X), slow(layer, X), 1e-5)


def test_the_loss_equals_a_slow_count():
    layer = make(load_balancing=0.5)
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
    layer(X, mask=mask, training=True)
    logits = X[mask].astype("float64") @ drawing.array(layer.router)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    counts = np.zeros(3)
    for row in probabilities:
        counts[np.argsort(-row)[:2]] += 1
    expected = 0.5 * 3 * (counts / len(logits) * probabilities.mean(0)).sum()
    [loss] = layer.losses
    drawing.assert_same(loss, expected, 1e-5)


def test_the_loss_exists_only_in_training_and_with_a_weight():
    for layer, training in ((make(), False), (make(load_balancing=None), True)):
        layer(X, training=training)
        assert layer.losses == []


def test_the_correction_bias_affects_only_the_selection_and_is_not_trained():
    layer = make(e_score_correction_bias=True, top_k=1, normalize=False, router_activation="sigmoid")
    layer.correction_bias.assign([0.0, 5.0, 0.0])
    weights, chosen, logits = map(drawing.array, layer._route(X))
    assert (chosen == [0, 1, 0]).all()
    drawing.assert_same(weights[..., 1], 1 / (1 + np.exp(-logits[..., 1])), 1e-6)
    assert [weight.path.rpartition("/")[2] for weight in layer.non_trainable_weights] == ["e_score_correction_bias"]


def test_an_activation_layer_with_weights_is_built_with_the_layer():
    experts = txf.layers.MixtureOfExperts(3, intermediate_dim=4, activation=keras.layers.PReLU(shared_axes=[1, 2]))
    experts.build((None, None, 6))
    assert [tuple(w.shape) for w in experts.weights if "alpha" in w.path] == [(1, 1, 4)]
    experts.activation_function.alpha.assign(np.full((1, 1, 4), 0.5))
    copied = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(experts))
    copied.set_weights(experts.get_weights())
    drawing.assert_same(copied(X), experts(X), 1e-6)


@pytest.mark.parametrize("options, words", [
    ({"num_experts": 0}, "`num_experts`"), ({"top_k": 4}, "`top_k` must be an integer from 1 to 3"),
    ({"router_activation": "tanh"}, "`router_activation`"), ({"num_shared_experts": -1}, "`num_shared_experts`"),
    ({"load_balancing": -0.1}, "`load_balancing`"),
    ({"shared_gate": True}, "shared_gate=True needs `num_shared_experts`"),
    ({"shared_intermediate_dim": 0}, "`shared_i"),
    ({"activation": "no"}, "`activation`"), ({"routed_scaling_factor": 0}, "`routed_scaling_factor`"),
    ({"e_score_correction_bias": 1}, "`e_score_correction_bias`"), ({"n_group": 2}, "`n_group`"),
    ({"topk_group": 1}, "topk_group=1 needs `n_group`"), ({"n_group": 3, "topk_group": 4}, "`topk_group` .* 1 to 3"),
    ({"num_experts": 4, "n_group": 2, "top_k_in_group": 3}, "`top_k_in_group` must be at most 2"),
    ({"num_experts": 6, "top_k": 3, "n_group": 3, "topk_group": 1}, "`top_k` must be an integer from 1 to 2"),
    ({"num_experts": 6, "n_group": 6}, "`top_k_in_group` must be at most 1, .* n_group=6\\); received 2"),
])  # fmt: skip
def test_wrong_options_raise_value_error(options, words):
    with pytest.raises(ValueError, match=words):
        txf.layers.MixtureOfExperts(**{"num_experts": 3, **options})
