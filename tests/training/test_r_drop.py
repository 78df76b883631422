"""RDrop against PyTorch's KL divergence in float64, and in `fit`.

Legend: B batch of one half, T length, V vocabulary.
"""

import os
import pathlib
import subprocess
import sys

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


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("strength", [1.0, 5.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_the_paper(strength, smoothing, weighted):
    loss = txf.training.RDrop(label_smoothing=smoothing, strength=strength)
    sample_weight = np.tile([0.5, 2.0], 2) if weighted else np.ones(2 * B)
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    value = paper(logits, strength, smoothing, (TARGETS != 0) * sample_weight[:, None])
    assert float(loss(TARGETS, LOGITS, sample_weight)) == pytest.approx(value.item(), rel=1e-5)
    ours = drawing.gradient(lambda logits: loss(TARGETS, logits, sample_weight), LOGITS)
    np.testing.assert_allclose(ours, torch.autograd.grad(value, logits)[0], atol=1e-6)


def test_class_weights_weigh_both_parts():
    class_weight = {1: 9.0, 2: 0.5}
    value = paper(
        torch.tensor(LOGITS, dtype=torch.float64),
        5.0,
        0.1,
        np.vectorize(lambda tag: class_weight.get(tag, 1.0))(TARGETS) * (TARGETS != 0),
    )
    loss = txf.training.RDrop(label_smoothing=0.1, class_weight=class_weight)
    assert float(loss(TARGETS, LOGITS)) == pytest.approx(value.item(), rel=1e-5)
    assert keras.losses.deserialize(keras.losses.serialize(loss)).class_weight == class_weight


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


def test_what_both_forbid_counts_for_nothing():
    forbidden, far = LOGITS.copy(), LOGITS.copy()
    forbidden[..., 0], far[..., 0] = -np.inf, -1e4
    loss = txf.training.RDrop()
    assert float(loss(TARGETS, forbidden)) == pytest.approx(float(loss(TARGETS, far)), rel=1e-6)
    slope = drawing.gradient(lambda logits: loss(TARGETS, logits), forbidden)
    np.testing.assert_allclose(slope, drawing.gradient(lambda logits: loss(TARGETS, logits), far), atol=1e-7)


def test_equal_draws_leave_the_cross_entropy():
    logits = np.concatenate([LOGITS[:B]] * 2)
    plain = txf.training.TokenCrossEntropy(label_smoothing=0.1)
    assert float(txf.training.RDrop(label_smoothing=0.1)(TARGETS, logits)) == pytest.approx(
        float(plain(TARGETS, logits))
    )


def test_halves_that_differ_are_no_number():
    other = TARGETS.copy()
    other[3, 1] = 1
    assert np.isnan(float(txf.training.RDrop()(other, LOGITS)))
    with pytest.raises(ValueError, match="`y_true` must hold each example twice; received 9 tokens"):
        txf.training.RDrop()(TARGETS[:3, :3], LOGITS[:3, :3])
    with pytest.raises(ValueError, match="`strength` must be"):
        txf.training.RDrop(strength=0)


@pytest.mark.slow
def test_fit_brings_the_draws_together():
    ids = np.random.default_rng(3).integers(1, 20, (16, 9))
    inputs, targets = (np.concatenate([x, x]) for x in txf.training.shift_labels(ids))
    apart = {}
    for strength in (1e-6, 20.0):
        keras.utils.set_random_seed(1)
        model = txf.models.decoder_generator(20, 1, 16, 2, dropout=0.3)
        model.compile(keras.optimizers.Adam(0.01), txf.training.RDrop(strength=strength))
        model.fit(inputs, targets, batch_size=32, shuffle=False, epochs=15, verbose=0)
        draws = [drawing.array(keras.ops.softmax(model(inputs, training=True))) for _ in range(2)]
        apart[strength] = np.abs(draws[0] - draws[1]).mean()
    assert apart[20.0] < 0.7 * apart[1e-6]


def test_a_saved_loss_is_the_same():
    loss = txf.training.RDrop(pad_id=None, label_smoothing=0.2, strength=3)
    config = keras.losses.serialize(loss)
    assert keras.losses.deserialize(config).get_config() == loss.get_config()


# In a process of its own, for devices can be split only before TensorFlow first uses them. Of the last batch one
# replica has all.
MIRRORED = """
import sys
import numpy as np
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
import keras_txf as txf
ids = np.random.default_rng(3).integers(1, 20, (5, 8))
inputs, targets = (np.repeat(x, 2, 0) for x in txf.training.shift_labels(ids))
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(4).with_options(options)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
replicas = [strategy.experimental_local_results(x) for x, _ in strategy.experimental_distribute_dataset(data)]
sizes = [[len(part) for part in parts] for parts in replicas]
assert sizes == [[2, 2], [2, 2], [2, 0]], sizes
with strategy.scope():
    model = txf.models.decoder_generator(20, 1, 8, 2, dropout=0.0)
    model.compile(keras.optimizers.SGD(0.0), txf.training.RDrop(), run_eagerly=sys.argv[1] == "eager")
loss = txf.training.RDrop()
expected = np.mean([float(loss(targets[i : i + 2], model(inputs[i : i + 2]))) for i in range(0, 10, 2)])
history = model.fit(data, shuffle=False, verbose=0).history
print(history["loss"][0], expected)
"""


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's replicas")
@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_a_replica_without_examples(mode):
    root = pathlib.Path(txf.__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run([sys.executable, "-c", MIRRORED, mode], env=environment, capture_output=True, text=True)
    assert not result.returncode, result.stderr
    loss, expected = map(float, result.stdout.splitlines()[-1].split())
    assert loss == pytest.approx(expected, rel=1e-4)
