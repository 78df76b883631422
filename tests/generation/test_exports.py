"""The prefill and step models, saved, exported and run in a user's loop, return the tokens of `generate`."""

import drawing
import keras
import numpy as np
import pytest
from generation.test_stepping import callable_model, decoded, padded
from keras import ops

import keras_txf as txf
from keras_txf.checkpoints.parts import with_parts

VOCABULARY, NEW = 11, 4
PROMPTS = [[5, 3, 8, 1], [7], [4, 10, 6]]
OPTIONS = {
    "defaults": {},
    "llama": {"num_layers": 2, "position": "rotary", "norm": "rms", "norm_placement": "pre", "gated": True,
              "use_bias": False, "num_key_value_heads": 1, "window": [3, None]},
    "t5": {"num_layers": 2, "position": "relative"},  # blocks that share a layer
    "latent": {"num_heads": None,
               "attention": txf.layers.LatentAttention(2, 6, 4, 2, v_head_dim=3, q_lora_rank=5, causal=True)},
    "alibi": {"position": "alibi", "position_encoding": "learned", "max_length": 32, "qk_norm": True,
              "logit_soft_cap": 2.0},
}  # fmt: skip

on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports from TensorFlow")
slow = pytest.mark.slow


def make(kind, options):
    if kind == "images":  # vectors before the tokens
        image = keras.Input((3, 6))
        decoder = make("decoder_generator", options)
        return drawing.randomize(txf.models.image_text_generator(keras.Model(image, 1.0 * image), decoder), seed=4)
    sizes = (VOCABULARY,) * (2 if kind == "encoder_decoder" else 1)
    build, options = getattr(txf.models, kind), {"num_layers": 1, "dim": 8, "num_heads": 2, **OPTIONS[options]}
    return drawing.randomize(build(*sizes, **with_parts(build, options)), seed=4)


def assert_generates(kind, options, width, carry):
    """`carry` takes a model and its part's name elsewhere, and returns a function of a dict of arrays."""
    model = make(kind, options)
    parts = {"prefill": txf.models.prefill_model(model, width), "step": txf.models.step_model(model, width)}
    seq2seq = kind == "encoder_decoder"
    sizes = dict(prompts=[[1]] * len(PROMPTS) if seq2seq else PROMPTS, steps=NEW - 1, width=width)
    sizes["inputs"] = {"source_ids": padded(PROMPTS, 5)} if seq2seq else {}
    if kind == "images":
        sizes["inputs"] = {"images": drawing.normal(len(PROMPTS), 3, 6)}
    logits, _ = decoded(*(carry(part, name) for name, part in parts.items()), **sizes)
    given = sizes["inputs"] if kind == "images" else None
    expected = model.generate(PROMPTS, NEW, inputs=given, padded=False)
    np.testing.assert_array_equal(logits.argmax(-1), [row[-NEW:] for row in expected])
    drawing.assert_same(logits, decoded(*map(callable_model, parts.values()), **sizes)[0], 1e-4)


CASES = [("decoder_generator", "llama", 3), ("encoder_decoder", "t5", 1), ("decoder_generator", "latent", 2),
         ("images", "llama", 1)]  # fmt: skip


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch has its own format")
@pytest.mark.filterwarnings(r"ignore:The `\w+` parameter is deprecated:DeprecationWarning")  # Keras to jax2tf
@pytest.mark.parametrize("kind, options, width", CASES)
def test_a_saved_model_generates_the_same(tmp_path, kind, options, width):
    """On JAX with fixed shapes: Keras would take all first axes for one, and a cache has batch times heads."""
    import tensorflow as tf

    served = {}

    def carry(model, name):
        def run(known):
            inputs = {tensor.name: tf.convert_to_tensor(known[tensor.name]) for tensor in model.inputs}
            if name not in served:
                fixed = [{key: tf.TensorSpec(x.shape, x.dtype, key) for key, x in inputs.items()}]
                signature = fixed if keras.backend.backend() == "jax" else None
                model.export(tmp_path / name, verbose=False, input_signature=signature)
                served[name] = tf.saved_model.load(tmp_path / name)
            return {key: tensor.numpy() for key, tensor in served[name].serve(inputs).items()}

        return run

    assert_generates(kind, options, width, carry)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="PyTorch's own format")
@pytest.mark.parametrize("kind, options, width",
                         [CASES[0], *(pytest.param(*case, marks=slow) for case in CASES[1:])])  # fmt: skip
def test_a_torch_program_generates_the_same(tmp_path, kind, options, width):
    """With fixed shapes: else Keras would put 1 for every unknown length."""
    import torch

    programs = {}

    def carry(model, name):
        def run(known):
            inputs = {tensor.name: ops.convert_to_tensor(known[tensor.name]) for tensor in model.inputs}
            if name not in programs:
                path = tmp_path / f"{name}.pt2"
                fixed = {t.name: keras.InputSpec(t.dtype, inputs[t.name].shape, name=t.name) for t in model.inputs}
                model.export(path, format="torch", verbose=False, input_signature=[fixed])
                programs[name] = torch.export.load(path).module()
            return {key: ops.convert_to_numpy(tensor) for key, tensor in programs[name](inputs).items()}

        return run

    assert_generates(kind, options, width, carry)


@pytest.mark.slow
@pytest.mark.parametrize("kind, options, width", [("decoder_generator", "t5", 1), ("encoder_decoder", "llama", 3)])
def test_a_keras_file_generates_the_same(tmp_path, kind, options, width):
    def carry(model, name):
        model.save(tmp_path / f"{name}.keras")
        reloaded = keras.saving.load_model(tmp_path / f"{name}.keras")
        assert len(reloaded.weights) == len(model.weights)
        return callable_model(reloaded)

    assert_generates(kind, options, width, carry)


LITERT = [
    ("decoder_generator", "t5", 1), ("decoder_generator", "alibi", 1), ("encoder_decoder", "defaults", 1),
    ("encoder_decoder", "llama", 3),
]  # fmt: skip


@on_tensorflow
@slow
@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated:UserWarning")
@pytest.mark.parametrize("kind, options, width", LITERT)
def test_litert_generates_the_same_with_its_own_operations(tmp_path, kind, options, width):
    import tensorflow as tf

    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError:  # the same, and still a part of TensorFlow
        Interpreter = tf.lite.Interpreter

    def carry(model, name):
        path = tmp_path / f"{name}.tflite"
        operations = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}  # else Keras lets in TensorFlow's
        model.export(path, format="litert", verbose=False, target_spec=operations)
        interpreter = Interpreter(model_path=str(path))
        run = interpreter.get_signature_runner()
        names = list(run.get_input_details())
        return lambda known: run(**{name: known[name] for name in names})

    assert_generates(kind, options, width, carry)


@on_tensorflow
@slow
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")
@pytest.mark.parametrize(
    "kind, options, width", [("decoder_generator", "defaults", 1), ("encoder_decoder", "llama", 3)]
)
def test_onnx_generates_the_same(tmp_path, kind, options, width):
    """On TensorFlow, whose converter to ONNX must be told two things: see `write_slices` and `distinct_outputs`.

    On PyTorch 2.13 both parts are converted where `input_signature` fixes all shapes, but ONNX Runtime refuses
    them: what onnxscript 0.7 makes of `squeeze` fails where an axis is longer than one, and what it makes of
    the cache's update has indices of a type that ONNX does not allow.
    """
    pytest.importorskip("tf2onnx")
    runtime = pytest.importorskip("onnxruntime")
    write_slices()

    def carry(model, name):
        path = str(tmp_path / f"{name}.onnx")
        model = distinct_outputs(model)
        model.export(path, format="onnx", verbose=False, input_signature=[model.input])
        session = runtime.InferenceSession(path)
        names = [tensor.name for tensor in session.get_inputs()]
        outputs = [tensor.name.removeprefix("new_") for tensor in session.get_outputs()]

        def run(known):
            return dict(zip(outputs, session.run(None, {name: known[name] for name in names}), strict=True))

        return run

    assert_generates(kind, options, width, carry)


def distinct_outputs(model):
    """The same model with other names of outputs: tf2onnx takes an input and an output of one name for one tensor."""
    return keras.Model(model.input, {f"new_{name}": tensor for name, tensor in model.output.items()})


def write_slices():
    """Tells tf2onnx how to write into a cache: it does not know XLA's operation, by which Keras does."""
    import onnx
    from tf2onnx.handler import tf_op
    from tf2onnx.utils import make_name

    @tf_op("XlaDynamicUpdateSlice")
    class WriteSlice:
        @classmethod
        def version_11(cls, ctx, node, **kwargs):
            def make(operation, *inputs, **attributes):
                return ctx.make_node(operation, inputs, attributes).output[0]

            (tensor, update, start), shapes, dtypes = node.input, node.output_shapes, node.output_dtypes
            one = onnx.helper.make_tensor("value", onnx.TensorProto.INT64, [1], [1])
            places = make("NonZero", make("ConstantOfShape", make("Shape", update), value=one))
            start = make("Cast", start, to=onnx.TensorProto.INT64)
            places = make("Add", make("Transpose", places, perm=[1, 0]), start)
            flat = ctx.make_const(make_name("flat"), np.array([-1])).output[0]
            ctx.remove_node(node.name)
            inputs = [tensor, places, make("Reshape", update, flat)]
            ctx.make_node("ScatterND", inputs, outputs=node.output, shapes=shapes, dtypes=dtypes)
