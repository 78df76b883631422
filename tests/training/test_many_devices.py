"""A model whose weights several devices share computes, trains and generates as on one device.

The processes of these tests run `main` of this file: devices can be split only before JAX first uses them.
"""

import collections
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_txf as txf

BATCH, LENGTH, VOCABULARY = 24, 5, 32
TEXT = (VOCABULARY, 1, 16, 8)
ATTENTION = dict(
    num_heads=8, causal=True, num_key_value_heads=4, position="rotary", qk_norm="full", sinks=True,
)  # fmt: skip
EXPERTS = {"num_experts": 4, "intermediate_dim": 6, "use_bias": True, "num_shared_experts": 2}
BUILDERS = {
    # With 8 devices along the model axis its key-value heads are cut.
    "decoder": lambda: txf.models.decoder_generator(
        *TEXT[:3], gated=True, norm="rms", attention=txf.layers.MultiHeadSelfAttention(**ATTENTION)
    ),
    "experts": lambda: txf.models.decoder_generator(*TEXT, feed_forward=txf.layers.MixtureOfExperts(**EXPERTS)),
    "translator": lambda: txf.models.encoder_decoder(40, VOCABULARY, 1, 16, 8, position=txf.layers.RelativeBias(8),
                                                     tie_embeddings=False),
    "classifier": lambda: txf.models.encoder_classifier(VOCABULARY, 3, *TEXT[1:], position_encoding="learned",
                                                        max_length=9),
    "pictures": lambda: txf.models.image_classifier(4, 2, 3, 1, 16, 8, channels=1),
    "odd": lambda: txf.models.decoder_generator(30, 1, 12, 6, intermediate_dim=10),
    "adapted": lambda: adapted(txf.models.decoder_generator(*TEXT)),
}  # fmt: skip
RUNS = [("decoder", shape, False) for shape in [(1, 8), (2, 4), (4, 2), (8, 1)]]
RUNS += [(name, (2, 4), False) for name in BUILDERS if name != "decoder"]
RUNS += [("decoder", (2, 4), True), ("decoder", (8, 1), True), ("experts", (2, 4), True)]


def adapted(model):
    txf.training.add_adapter(model, "known", rank=2, targets=["*/attention/*", "*/intermediate"])
    return model


def data(name):
    random = np.random.default_rng(3)
    ids = random.integers(1, 30, (BATCH, LENGTH)).astype("int32")
    if name == "pictures":
        return random.normal(size=(BATCH, 4, 4, 1)).astype("float32"), ids[:, 0] % 3
    if name == "classifier":
        return ids, ids[:, 0] % 3
    return ({"source_ids": ids, "target_ids": ids[:, ::-1]} if name == "translator" else ids), np.roll(ids, -1, 1)


def results(name, weights=None):
    """What a new model computes: outputs, weights after a step, losses of five epochs, generated ids."""
    keras.utils.set_random_seed(7)  # so that dropout is the same too
    model, found = BUILDERS[name](), {}
    if weights is None:
        random = np.random.default_rng(4)
        weights = [random.normal(0, 0.3, value.shape).astype("float32") for value in model.get_weights()]
    model.set_weights(weights)
    x, y = data(name)
    if hasattr(model, "generate"):
        found["sampled"] = model.generate([[5, 3, 8, 1], [7], [4, 10, 6]], 3, "sampling", seed=2)
    found["outputs"] = model.predict(x, batch_size=BATCH, verbose=0)
    for optimizer, epochs in ((keras.optimizers.SGD(0.1), 1), (keras.optimizers.Adam(0.01), 5)):
        model.set_weights(weights)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        found[epochs] = model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0).history["loss"]
        found[f"weights after {epochs}"] = np.concatenate([value.ravel() for value in model.get_weights()])
    return model, weights, found


def bytes_by_device(variables):
    held = collections.Counter()
    for variable in variables:
        for shard in variable.value.addressable_shards:
            held[shard.device] += shard.data.nbytes
    return list(held.values())


def gathered(folder):
    """Shapes that all-gathers of the compiled training steps return, and the number of each collective."""
    shapes, counts = [], collections.Counter()
    for file in folder.glob("*train_step*after_optimizations.txt"):
        for line in file.read_text().splitlines():
            match = re.search(r" = (.*?) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\(", line)
            if match:
                counts[match[2]] += 1
                if match[2] == "all-gather":
                    shapes += [tuple(map(int, s.split(","))) for s in re.findall(r"\w+\[([\d,]+)\]", match[1])]
        file.unlink()
    return shapes, counts


def check(name, shape, fsdp, dump, plain, weights, expected):
    mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"])
    sizes = dict(zip(mesh.axis_names, shape))
    layouts = txf.training.layout_map(BUILDERS[name], mesh, fsdp=fsdp)
    gathered(dump)
    with keras.distribution.ModelParallel(layout_map=layouts).scope():
        model, _, found = results(name, weights)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=0 if key == "sampled" else 2e-4, err_msg=key)

    def share(variable):
        axes = layouts[variable.path].axes
        return np.prod(variable.shape) * 4 // np.prod([sizes.get(axis, 1) for axis in axes])

    held = bytes_by_device(model.weights)
    assert len(held) == 8 and set(held) == {sum(map(share, model.weights))}
    trained = sum(map(share, model.trainable_variables))
    moments = bytes_by_device(model.optimizer.variables)
    assert all(2 * trained <= count < 2 * trained + 20 for count in moments)  # and the step, and the rate
    shapes, counts = gathered(dump)
    wholes = {tuple(variable.shape) for variable in plain.weights}
    assert bool(wholes & set(shapes)) == (fsdp and shape[0] > 1), wholes & set(shapes)
    whole = bytes_by_device(plain.weights)[0]
    print(name, shape, "fsdp" if fsdp else "", held[0], "of", whole, dict(counts), flush=True)
    return held[0] / whole


def main(dump):
    shares, kept = {}, {}
    for name, shape, fsdp in RUNS:
        if name not in kept:
            kept[name] = results(name)
        shares[name, shape, fsdp] = check(name, shape, fsdp, pathlib.Path(dump), *kept[name])
    plain = [shares["decoder", shape, False] for shape in [(8, 1), (4, 2), (2, 4), (1, 8)]]
    assert plain[0] == 1 and plain == sorted(plain, reverse=True) and plain[1] < 0.53 and plain[3] < 0.2
    assert shares["decoder", (2, 4), True] < 0.2 and shares["decoder", (8, 1), True] < 0.2
    assert shares["odd", (2, 4), False] == 1
    print("the same")


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="Keras splits weights on JAX alone")
def test_many_devices_compute_as_one(tmp_path):
    here = pathlib.Path(__file__).parent
    flags = f"--xla_force_host_platform_device_count=8 --xla_dump_to={tmp_path} --xla_dump_hlo_as_text"
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags} --xla_dump_hlo_module_re=.*train_step.*",
        "PYTHONPATH": os.pathsep.join([str(here), str(here.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    command = f"import test_many_devices; test_many_devices.main({str(tmp_path)!r})"
    result = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True)
    assert result.stdout.endswith("the same\n"), result.stdout + result.stderr
