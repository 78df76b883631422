"""layerwise_decay against parameter groups in NumPy, float64."""

import functools

import keras
import numpy as np
import pytest
from keras import ops
from refusals import refused

import keras_txf as txf
from keras_txf.training import layerwise_decay

random = np.random.default_rng(0)
IDS, TARGETS = random.integers(1, 11, (6, 5)), np.cos(np.arange(24)).reshape(6, 4)


def build(num_layers=2, **options):
    options = {"dropout": 0.0, "norm_placement": "pre", **options}
    return txf.models.encoder_classifier(11, 4, num_layers, dim=12, num_heads=2, **options)


@functools.cache
def trainable():
    """Variables for the tests that need no more of a model, and take their values as they are."""
    return build().trainable_variables


def array(x):
    return np.array(ops.convert_to_numpy(x)).astype("float64")


def expected_rate(path, decay, blocks=2):
    """By the letter of ELECTRA: the head 1, then a factor for each layer down."""
    first = path.split("/")[0]
    if first == "embedding":
        return decay ** (blocks + 1)
    return decay ** (blocks - int(first[8:])) if first[8:].isdigit() else 1.0


def apply(optimizer, variables, gradients):
    for step in gradients:
        optimizer.apply([ops.convert_to_tensor(gradient.astype("float32")) for gradient in step], variables)


def draw(variables, steps=3):
    return [[random.normal(size=variable.shape) for variable in variables] for _ in range(steps)]


SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


def schedule(step):
    """That of the test, in NumPy."""
    return 0.1 * 0.5 ** (step / 2)


def a_tenth():
    return ops.convert_to_tensor(0.1)


@pytest.mark.parametrize("rate", [0.1, SCHEDULE, a_tenth], ids=["number", "schedule", "function"])
def test_sgd(rate):
    variables = trainable()
    values, gradients = [array(v) for v in variables], draw(variables)
    apply(layerwise_decay(keras.optimizers.SGD(rate, momentum=0.9), 0.6), variables, gradients)
    for i, variable in enumerate(variables):
        velocity = 0
        for step, gradient in enumerate(gradients):
            own = (schedule(step) if rate is SCHEDULE else 0.1) * expected_rate(variable.path, 0.6)
            velocity = 0.9 * velocity - own * gradient[i]
            values[i] = values[i] + velocity
        np.testing.assert_allclose(array(variable), values[i], rtol=1e-5, atol=1e-5)


def adamw(value, gradients, rate, decay, beta_1=0.9, beta_2=0.98, epsilon=1e-7):
    """Keras' formula, which adds epsilon to the uncorrected moment; `rate` is a function of the step from 0."""
    m = v = 0
    for step, gradient in enumerate(gradients):
        value = value - rate(step) * decay * value
        m, v = beta_1 * m + (1 - beta_1) * gradient, beta_2 * v + (1 - beta_2) * gradient**2
        correction = np.sqrt(1 - beta_2 ** (step + 1)) / (1 - beta_1 ** (step + 1))
        value = value - rate(step) * correction * m / (np.sqrt(v) + epsilon)
    return value


def test_adamw_with_weight_decay_and_excluded_variables():
    variables = trainable()
    values, gradients = [array(v) for v in variables], draw(variables)
    optimizer = keras.optimizers.AdamW(SCHEDULE, 0.2, beta_2=0.98)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    apply(layerwise_decay(optimizer, 0.6), variables, gradients)
    for i, variable in enumerate(variables):
        own = expected_rate(variable.path, 0.6)
        decay = 0 if variable.name in ("bias", "gamma", "beta") else 0.2
        value = adamw(values[i], [step[i] for step in gradients], lambda t: own * schedule(t), decay)
        np.testing.assert_allclose(array(variable), value, rtol=1e-5, atol=1e-5)


NAMES = [
    "Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "Ftrl", "Lion", "Muon", "Nadam", "RMSprop", "SGD",
]  # fmt: skip


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer(name):
    """Each block moves as the plain optimizer with its rate alone would move it."""
    options = {"weight_decay": 0.1}
    if name == "Adafactor":
        options["relative_step"] = False
    ends = ("embedding/token/embeddings", "attention/key/kernel", "logits/bias")
    variables = [v for v in trainable() if v.path.endswith(ends)]
    values, gradients = [array(v) for v in variables], draw(variables)
    cls = getattr(keras.optimizers, name)
    apply(layerwise_decay(cls(0.01, **options), 0.5), variables, gradients)
    for i, variable in enumerate(variables):
        result = array(variable)
        variable.assign(values[i])
        own = 0.01 * expected_rate(variable.path, 0.5)
        apply(cls(own, **options), [variable], [[step[i]] for step in gradients])
        np.testing.assert_allclose(result, array(variable), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_depths():
    pair = txf.models.encoder_decoder(11, 13, 3, 12, 2, num_decoder_layers=2, position="relative", tie_embeddings=False)
    optimizer = layerwise_decay(keras.optimizers.SGD(0.1), 0.5)
    optimizer.build(pair.trainable_variables)
    rates = {path.split("/")[0]: rate for path, rate in optimizer.rates.items()}
    assert rates == {
        "source_embedding": 1 / 16, "target_embedding": 1 / 16, "encoder_position": 1 / 16, "decoder_position": 1 / 16,
        "encoder_0": 1 / 8, "encoder_1": 1 / 4, "encoder_2": 1 / 2, "decoder_0": 1 / 4, "decoder_1": 1 / 2,
        "logits": 1.0,
    }  # fmt: skip
    mine = layerwise_decay(keras.optimizers.SGD(0.1), 0.5, blocks="*coder_#/*", embeddings="target_embedding/*")
    mine.build(pair.trainable_variables)  # here both stacks are one
    assert mine.rates["decoder_0/attention/query/kernel"] == 1 / 8
    assert mine.rates["source_embedding/token/embeddings"] == 1.0
    # As ELECTRA's: its norm and projection lie below the blocks too.
    small = build(num_layers=3, embedding_norm=True, embedding=txf.layers.PositionalEmbedding(11, 6))
    optimizer = layerwise_decay(keras.optimizers.SGD(0.1), 0.5)
    optimizer.build(small.trainable_variables)
    outside = {path.split("/")[0] for path, rate in optimizer.rates.items() if rate == 1 / 16}
    assert outside == {"embedding", "encoder_embedding_norm", "encoder_embedding_projection"}


def test_rates_follow_the_trained_variables():
    model = build()
    model.compile(layerwise_decay(keras.optimizers.SGD(a_tenth), 0.5), "mse", run_eagerly=True)
    model.fit(IDS, TARGETS, verbose=0)
    txf.training.freeze(model, "embedding")
    assert set(model.optimizer.rates.values()) == {1 / 4, 1 / 2, 1.0}
    txf.training.add_adapter(model, rank=2)
    model.fit(IDS, TARGETS, verbose=0)
    assert float(array(model.optimizer.learning_rate)) == np.float32(0.1)
    assert model.optimizer.rates["encoder_0/attention/query/default_lora_a"] == 1 / 4
    assert model.optimizer.rates["logits/default_kernel"] == 1.0
    txf.training.add_adapter(model, "second", rank=2)
    assert model.optimizer.rates["encoder_0/attention/query/second_lora_a"] == 1 / 4
    assert not int(model.optimizer.iterations)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
def test_files_and_loss_scaling(policy, compiled, tmp_path):
    model = build(dtype=policy)
    rate = keras.optimizers.schedules.ExponentialDecay(1e-2, 2, 0.5)
    model.compile(layerwise_decay(keras.optimizers.AdamW(rate), 0.7), "mse", run_eagerly=not compiled)
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")
    model.fit(IDS, TARGETS, batch_size=3, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    for one in (model, reloaded):
        one.fit(IDS, TARGETS, batch_size=3, shuffle=False, verbose=0)
    for one, other in zip(model.weights + model.optimizer.variables, reloaded.weights + reloaded.optimizer.variables):
        np.testing.assert_array_equal(array(one), array(other))
    assert type(reloaded.optimizer).__name__ == type(model.optimizer).__name__
    assert reloaded.optimizer.get_config()["name"] == model.optimizer.get_config()["name"] if scaled else True


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="there Keras applies loss scaling inside of `fit` alone")
def test_loss_scaling():
    """Its unscaled gradients equal those of the plain optimizer. A step that overflows changes nothing."""
    variables = trainable()
    values, gradients = [array(v) for v in variables], draw(variables)
    inner = layerwise_decay(keras.optimizers.SGD(0.1), 0.6)
    optimizer = keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0, dynamic_growth_steps=100)
    apply(optimizer, variables, [[4 * gradient for gradient in step] for step in gradients])
    apply(optimizer, variables, [[np.full(v.shape, np.inf) for v in variables]])
    for i, variable in enumerate(variables):
        total = sum(step[i] for step in gradients)
        expected = values[i] - 0.1 * expected_rate(variable.path, 0.6) * total
        np.testing.assert_allclose(array(variable), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_callbacks_set_the_rate():
    model = build()
    model.compile(layerwise_decay(keras.optimizers.SGD(0.1), 0.5), "mse", run_eagerly=True)
    callback = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 4)
    history = model.fit(IDS, TARGETS, batch_size=3, epochs=2, verbose=0, callbacks=[callback])
    np.testing.assert_allclose(history.history["learning_rate"], [0.025, 0.00625], rtol=1e-6)
    config = model.optimizer.get_config()
    assert config["decay"] == 0.5 and config["optimizer"]["class_name"] == "SGD"
    assert abs(config["optimizer"]["config"]["learning_rate"] - 0.00625) < 1e-8


def wrap(optimizer=None, **options):
    return layerwise_decay(keras.optimizers.SGD(0.1) if optimizer is None else optimizer, **options)


def test_bad_calls_raise_value_errors():
    used = keras.optimizers.SGD(0.1)
    used.build(trainable())
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    for words, options in {
        "`decay` must be in (0, 1]; received 1.5": {"decay": 1.5},
        "`decay` must be a positive number; received 0": {"decay": 0},
        "`optimizer` must be a Keras optimizer that updates": {"optimizer": "adam"},
        "Wrap the result in a LossScaleOptimizer": {"optimizer": scaled},
        "updates all variables itself": {"optimizer": wrap()},
        "`optimizer` must be new": {"optimizer": used},
        "`blocks` must be a pattern such as": {"blocks": 3},
        "`blocks` must match trained variables; received ['layer_#/*']": {"blocks": "layer_#/*"},
        "`embeddings` must match trained variables; received 'embeding/*'": {"embeddings": "embeding/*"},
        "`blocks` must match trained variables; received 'encodr_#/*'": {"blocks": ["encoder_#/*", "encodr_#/*"]},
    }.items():
        refused(lambda: wrap(**options).build(trainable()), [words])


def test_a_restored_pattern_may_match_only_frozen_variables():
    config = layerwise_decay(keras.optimizers.SGD(0.1), embeddings="embedding/*").get_config()
    optimizer = txf.training.learning_rates.LayerwiseDecay.from_config(config)
    optimizer.build([variable for variable in trainable() if not variable.path.startswith("embedding")])
    assert set(optimizer.rates.values()) == {0.9**2, 0.9, 1.0}


def test_nothing_to_train_is_no_error():
    """As of a file that was saved so; what is trained and has no block is one."""
    layerwise_decay(keras.optimizers.AdamW(1e-3), decay=0.5).build([])
    optimizer = layerwise_decay(keras.optimizers.AdamW(1e-3), decay=0.5)
    with pytest.raises(ValueError, match="`blocks` must match"):
        optimizer.build([keras.Variable(np.ones(3), name="alone")])
