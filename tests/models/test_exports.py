"""Models elsewhere: LiteRT with its own operations alone, and ONNX, of models that were never called."""

import keras
import numpy as np
import pytest

import keras_txf as txf
from keras_txf.checkpoints.families.deberta import ConvolutionResidual

pytestmark = [
    pytest.mark.slow, pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports from TensorFlow"),
    pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning"),
]  # fmt: skip
IDS = {"token_ids": np.array([[3, 4, 5, 0]], "int32")}
FEATURES = {"features": np.ones((1, 4, 5), "float32"), "features_mask": np.array([[True, True, True, False]])}
CASES = {
    "mean": (31, IDS, {"pooling": "mean"}), "attention": (31, IDS, {"pooling": "attention"}),
    "experts": (31, IDS, {"feed_forward": txf.layers.MixtureOfExperts(4, 2), "intermediate_dim": None}),
    "convolution": (31, IDS, {"residual": ConvolutionResidual(3)}),
    "short convolution": (31, IDS, {"num_heads": None, "attention": txf.layers.ShortConvolution()}),
    "float vectors": (None, FEATURES, {"input_dim": 5, "pooling": "mean"}),
}  # fmt: skip


def signature(inputs):
    """The inputs of the exports. The mask of float vectors is not an input of the model."""
    specs = {name: keras.InputSpec(str(x.dtype), (None,) * 2 + x.shape[2:], name=name) for name, x in inputs.items()}
    return [specs if len(specs) > 1 else specs.popitem()[1]]


def of_litert(model, path, inputs):
    import tensorflow as tf

    operations = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}  # else Keras lets in TensorFlow's
    model.export(path, format="litert", verbose=False, target_spec=operations, input_signature=signature(inputs))
    return [*tf.lite.Interpreter(str(path)).get_signature_runner()(**inputs).values()][0]


def of_onnx(model, path, inputs):
    pytest.importorskip("tf2onnx")
    runtime = pytest.importorskip("onnxruntime")
    more = {"input_signature": signature(inputs)} if len(inputs) > 1 else {}
    model.export(path, format="onnx", verbose=False, **more)
    session = runtime.InferenceSession(path)
    return session.run(None, dict(zip([found.name for found in session.get_inputs()], inputs.values(), strict=True)))[0]


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated:UserWarning")
@pytest.mark.parametrize("export", [of_litert, of_onnx])
@pytest.mark.parametrize("name", CASES)
def test_an_exported_classifier_returns_the_same(name, export, tmp_path):
    vocab_size, inputs, options = CASES[name]
    options = {"num_heads": 2, **options}
    model = txf.models.encoder_classifier(vocab_size, num_classes=2, num_layers=1, dim=16, **options)
    found = export(model, tmp_path / "model.tflite", inputs)
    expected = model.predict(inputs if vocab_size is None else inputs["token_ids"], verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-5)
