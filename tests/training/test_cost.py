"""`training.cost` compared with the counts of each backend: programs of JAX, graphs of TensorFlow, FLOPs of PyTorch."""

import math
import random

import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf
from keras_txf.checkpoints.parts import with_parts

BACKEND = keras.backend.backend()
BATCH, LENGTH = 3, 7


def random_options(seed):
    rng = random.Random(seed)
    heads = rng.choice([2, 4])
    gated = rng.random() < 0.5
    return dict(
        num_layers=rng.choice([1, 2]), dim=rng.choice([16, 24]), num_heads=heads,
        num_key_value_heads=rng.choice([None, 1, heads // 2]), head_dim=rng.choice([None, 6]),
        intermediate_dim=rng.choice([None, 20]), norm=rng.choice(["layer", "rms"]),
        norm_placement=rng.choice(["pre", "post", "sandwich", "res_post"]), gated=gated,
        activation=rng.choice(["relu", "gelu", "silu", "gelu_tanh"]), use_bias=rng.random() < 0.5,
        qk_norm=rng.random() < 0.3, window=rng.choice([None, 3]),
        position=rng.choice([None, "rotary", "alibi", "relative"]), logit_soft_cap=rng.choice([None, 9.0]),
        feed_forward=rng.choice([None, None, txf.layers.MixtureOfExperts(3, 2, 10, gated=gated)]),
    )  # fmt: skip


# What comes before the options that all builders have.
BUILDERS = {
    "decoder_generator": (19,), "encoder_classifier": (19, 5), "encoder": (19,), "masked_language_model": (19,),
    "token_classifier": (19, 5), "encoder_decoder": (19, 23), "image_classifier": ((16, 8), 4, 5),
}  # fmt: skip


def make(builder, seed):
    """A model, its inputs, and the `length` for `cost`."""
    rng, options = random.Random(1000 + seed), random_options(seed)
    if options["feed_forward"] is not None:
        for name in ("gated", "activation", "intermediate_dim"):
            del options[name]
    if builder == "recurrent_encoder_decoder":
        options = {"attention": rng.choice([None, "additive", "multiplicative"]), "cell": rng.choice(["lstm", "gru"])}
        model = txf.models.recurrent_encoder_decoder(19, 23, 2, 16, **options)
    else:
        if builder == "decoder_generator":
            options["tie_embeddings"] = rng.random() < 0.5
        elif builder == "image_classifier":
            options = {name: options[name] for name in ("num_layers", "dim", "num_heads", "norm", "norm_placement")}
        build = getattr(txf.models, builder)
        model = build(*BUILDERS[builder], **with_parts(build, options))
    if builder == "image_classifier":
        return model, [np.ones((BATCH, *model.inputs[0].shape[1:]), "float32")], None
    lengths = {"target_ids": 5}
    values = [np.random.default_rng(0).integers(1, 19, (BATCH, lengths.get(x.name, LENGTH))) for x in model.inputs]
    length = {"source_ids": LENGTH, **lengths} if len(values) > 1 else LENGTH
    return model, [value.astype("int32") for value in values], length


def feed(model, inputs):
    """As the model takes them."""
    return keras.tree.pack_sequence_as(model.input, inputs) if len(inputs) > 1 else inputs[0]


def products_of(jaxpr):
    """FLOPs of the matrix products and convolutions in a program of JAX."""
    total = 0
    for equation in jaxpr.eqns:
        shapes = [variable.aval.shape for variable in equation.invars]
        output = math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
        if equation.primitive.name == "dot_general":
            contracted = equation.params["dimension_numbers"][0][0]
            total += 2 * output * math.prod(shapes[0][axis] for axis in contracted)
        elif equation.primitive.name == "conv_general_dilated":
            kernel = equation.params["dimension_numbers"].rhs_spec
            total += 2 * output * math.prod(shapes[1]) // shapes[1][kernel[0]]
        turns = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for parameter in equation.params.values():
            for inner in parameter if isinstance(parameter, (list, tuple)) else [parameter]:
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    total += turns * products_of(inner)
    return total


def tensorflow_graph(model, inputs):
    """The outputs of a forward pass and the gradients of their sum of squares, symbolic, in one graph."""
    import tensorflow as tf

    structure = feed(model, [tf.constant(x) for x in inputs])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            outputs = keras.tree.flatten(model(structure, training=False))
            loss = sum(tf.reduce_sum(y**2) for y in outputs)
        return outputs, [tf.convert_to_tensor(x) for x in tape.gradient(loss, model.trainable_variables)]

    return step.get_concrete_function()


def products_of_graph(tensors):
    """FLOPs of the matrix products in a graph of TensorFlow that these tensors need."""
    total, known, waiting = 0, set(), [x.op for x in tensors]
    while waiting:
        operation = waiting.pop()
        if operation in known:
            continue
        known.add(operation)
        waiting += [x.op for x in operation.inputs]
        assert operation.type not in ("PartitionedCall", "StatefulPartitionedCall", "While", "StatelessWhile")
        if operation.type in ("MatMul", "BatchMatMulV2", "Einsum", "Conv2D"):
            first, second, output = (tuple(x.shape) for x in (*operation.inputs, *operation.outputs))
            if operation.type == "Einsum":
                terms = operation.get_attr("equation").decode().split("->")[0].split(",")
                sizes = dict(zip("".join(terms), first + second))
                assert "..." not in terms[0] + terms[1]
                total += 2 * math.prod(sizes.values())
            elif operation.type == "Conv2D":
                total += 2 * math.prod(output) * math.prod(second[:-1])
            else:
                flag = "transpose_a" if operation.type == "MatMul" else "adj_x"
                total += 2 * math.prod(output) * first[-2 if operation.get_attr(flag) else -1]
    return total


def counted(model, inputs):
    """FLOPs of the forward pass, and of forward and backward pass together, as the backend counts them."""
    if BACKEND == "jax":
        import jax

        structure = feed(model, inputs)
        trained = [variable.value for variable in model.trainable_variables]
        others = [variable.value for variable in model.non_trainable_variables]

        def forward(trained):
            return model.stateless_call(trained, others, structure, training=False)[0]

        def loss(trained):
            return sum(ops.sum(ops.cast(x, "float32") ** 2) for x in keras.tree.flatten(forward(trained)))

        return tuple(products_of(jax.make_jaxpr(function)(trained).jaxpr) for function in (forward, jax.grad(loss)))
    if BACKEND == "tensorflow":
        graph = tensorflow_graph(model, inputs)
        count = len(model.outputs)
        return products_of_graph(graph.outputs[:count]), products_of_graph(graph.outputs)
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # of the CPU's kernel it knows no count
        with FlopCounterMode(display=False) as forward:
            outputs = keras.tree.flatten(model(feed(model, inputs), training=False))
        with FlopCounterMode(display=False) as backward:
            sum(x.square().sum() for x in outputs).backward()
    return forward.get_total_flops(), forward.get_total_flops() + backward.get_total_flops()


on_jax = "TensorFlow's loops are other graphs, PyTorch's run the first step twice"
RECURRENT = pytest.param("recurrent_encoder_decoder", marks=pytest.mark.skipif(BACKEND != "jax", reason=on_jax))


@pytest.mark.drawn(8)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("builder", [*BUILDERS, RECURRENT])
def test_flops_are_those_of_the_backend(builder, seed):
    model, inputs, length = make(builder, seed)
    found = txf.training.cost(model, BATCH, length)
    assert (found.forward_flops, found.training_flops) == counted(model, inputs)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("trained", ["the last", "one layer", "an adapter"])
def test_frozen_weights_need_no_gradient(trained):
    model = txf.models.decoder_generator(19, 2, 12, 3, tie_embeddings=False, norm_placement="pre")
    whole = txf.training.cost(model, BATCH, LENGTH)
    if trained == "an adapter":
        txf.training.add_adapter(model, "small", rank=3)
    else:
        txf.training.freeze(model, ["embedding", "decoder_0"] if trained == "the last" else "*")
    if trained == "one layer":
        txf.training.unfreeze(model, "decoder_1/feed_forward/output")
    found = txf.training.cost(model, BATCH, LENGTH)
    forward, training = counted(model, [np.ones((BATCH, LENGTH), "int32")])
    assert found.forward_flops == forward
    if trained == "an adapter":  # of the keys of the first block, which do not train: a product too many
        training += 2 * BATCH * LENGTH**2 * 12
    assert found.training_flops == training < whole.training_flops
    assert found.gradient_bytes == 4 * sum(math.prod(x.shape) for x in model.trainable_weights) < whole.gradient_bytes


@pytest.mark.skipif(BACKEND != "torch", reason="others have no list of what they keep, or fuse what is on it")
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_activations_are_about_those_of_pytorch(gated, norm):
    """PyTorch keeps more: the terms of rotary positions and norms, which Keras adds and multiplies one by one."""
    import torch

    options = dict(norm_placement="pre", gated=gated, norm=norm, activation="gelu_tanh", dropout=0.0, use_bias=False)
    model = txf.models.decoder_generator(19, 2, 48, 4, position="rotary", position_encoding=None, **options)
    weights, kept = {variable.value.untyped_storage().data_ptr() for variable in model.variables}, {}

    def pack(x):
        storage = x.untyped_storage()
        if x.is_floating_point() and x.shape and storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        outputs = model(np.ones((BATCH, 40), "int32"), training=False)  # noqa: F841, which keeps the tensors alive
    found = txf.training.cost(model, BATCH, 40)
    assert 0.8 < found.activation_bytes / sum(kept.values()) <= 1


@pytest.mark.long
def test_blocks_that_are_computed_again_keep_their_inputs_alone():
    options = dict(vocab_size=19, num_layers=4, dim=16, num_heads=2, norm_placement="pre", dropout=0.0)
    model = txf.models.decoder_generator(**options)
    whole = txf.training.cost(model, BATCH, LENGTH)
    found = txf.training.cost(model, BATCH, LENGTH, rematerialize=True)

    def again(*blocks):
        with keras.RematScope("list_of_layers", layer_names=[f"decoder_{i}" for i in blocks]):
            return txf.models.decoder_generator(**options)

    assert found == txf.training.cost(again(0, 1, 2, 3), BATCH, LENGTH)
    stream = BATCH * LENGTH * 16 * 4
    outside = 2 * stream  # the inputs of the last norm and of the logits
    assert found.activation_bytes == outside + 4 * stream + (whole.activation_bytes - outside) / 4 - stream
    logits = 2 * BATCH * LENGTH * 16 * 19
    assert found.training_flops == whole.training_flops + whole.forward_flops - logits
    assert whole == txf.training.cost(again(0, 1, 2, 3), BATCH, LENGTH, False)
    assert (
        whole.activation_bytes
        > txf.training.cost(again(0, 1, 2), BATCH, LENGTH).activation_bytes
        > found.activation_bytes
    )


def test_experts_that_a_token_does_not_choose_are_not_active():
    def make(count, chosen):
        experts = txf.layers.MixtureOfExperts(count, chosen, 10, num_shared_experts=1)
        return txf.models.decoder_generator(19, 1, 16, 2, feed_forward=experts)

    many = txf.training.cost(make(4, 2), BATCH, LENGTH)
    two = txf.training.cost(make(2, 2), BATCH, LENGTH)
    assert many.parameters > many.active_parameters and two.parameters == two.active_parameters
    routers, combined = 16 * 2, 2 * BATCH * LENGTH * 16 * 2  # of two more experts
    assert many.active_parameters == two.parameters + routers
    assert many.active_flops == two.forward_flops + 2 * BATCH * LENGTH * routers + combined
    assert many.forward_flops > many.active_flops


@pytest.mark.parametrize(("options", "pairs"), [({}, 28), ({"window": 3}, 18), ({"causal": False}, 49)])
def test_masks_hide_pairs(options, pairs):
    inputs = keras.Input((None, 16))
    layer = txf.layers.MultiHeadSelfAttention(2, **{"causal": True, **options})
    found = txf.training.cost(keras.Model(inputs, layer(inputs)), BATCH, LENGTH)
    assert found.attention_flops - found.hidden_flops == 4 * BATCH * 16 * pairs
    assert found.attention_flops == 4 * BATCH * 16 * LENGTH**2


def test_bytes_follow_the_dtypes():
    options = dict(vocab_size=19, num_layers=1, dim=16, num_heads=2, dropout=0.0, norm_placement="pre")
    model = txf.models.decoder_generator(**options)
    full = txf.training.cost(model, BATCH, LENGTH)
    mixed = txf.training.cost(txf.models.decoder_generator(**options, dtype="mixed_bfloat16"), BATCH, LENGTH)
    assert mixed.weight_bytes == full.weight_bytes and mixed.update_bytes == 28 * mixed.parameters
    statistics = BATCH * LENGTH * 2 * 4  # of the softmax, in float32
    assert 2 * (mixed.activation_bytes - statistics) == full.activation_bytes - statistics
    scores = BATCH * 2 * LENGTH**2 * 4
    unfused = txf.training.cost(model, BATCH, LENGTH, fused_attention=False)
    assert unfused.activation_bytes == full.activation_bytes + scores - statistics
    assert unfused.product_bytes == full.product_bytes + 3 * 2 * scores
    assert full.logit_bytes == BATCH * LENGTH * 19 * 8 and mixed.logit_bytes == BATCH * LENGTH * 19 * 6


@pytest.mark.long
def test_models_without_values_and_layers_of_the_user():
    """A function's model takes no memory; the published sizes of Llama 3 8B and of GPT-2 come out."""
    size = dict(num_layers=32, dim=4096, num_heads=32, num_key_value_heads=8, intermediate_dim=14336)
    llama = dict(norm="rms", use_bias=False, gated=True, activation="silu", position="rotary", position_encoding=None)

    def make():
        return txf.models.decoder_generator(128256, tie_embeddings=False, norm_placement="pre", **size, **llama)

    assert txf.training.cost(make, 1, 8192).parameters == 8_030_261_248

    class Square(keras.layers.Layer):
        def call(self, x):
            return ops.matmul(x, ops.einsum("...ij->...ji", x)) + ops.sum(ops.einsum("bi,bj->bij", x[:, 0], x[:, 0]))

    inputs = keras.Input((None, 5))
    model = keras.Model(inputs, Square()(inputs))
    assert txf.training.cost(model, 2, 7).forward_flops == 2 * (2 * 7 * 7 * 5 + 2 * 5 * 5)


@pytest.mark.parametrize(("change", "words"), [
    ({"model": 3}, "`model` must be a Keras model or a function that returns one; received 3"),
    ({"model": lambda: 3}, "`model` must be a functional Keras model; received 3"),
    ({"batch_size": 0}, "`batch_size` must be a positive integer; received 0"),
    ({"length": None}, "`length` must have a value for the input 'source_ids'; received None"),
    ({"length": {"source_ids": 3}}, "`length` must have a value for the input 'target_ids'"),
    ({"length": {"sources": 3}},
     r"`length` must have names of inputs, \['source_ids', 'target_ids'\]; received {'sources': 3}"),
    ({"length": {5: 3}}, "`length` must have names of inputs, .*; received {5: 3}"),
    ({"model": lambda vocab_size: 3}, "`model` must be a function without arguments; received <function"),
    ({"length": (5, 6)}, "or a dict by the names of inputs, 'source_ids', 'target_ids'; received"),
    ({"rematerialize": "yes"}, "`rematerialize` must be True or False; received 'yes'"),
    ({"fused_attention": 1}, "`fused_attention` must be True or False; received 1"),
])  # fmt: skip
def test_bad_arguments_raise_value_errors(change, words):
    arguments = {"model": lambda: txf.models.encoder_decoder(19, 23, 1, 8, 2), "batch_size": 2, "length": 5}
    with pytest.raises(ValueError, match=words):
        txf.training.cost(**{**arguments, **change})


def test_inputs_of_a_fixed_size():
    pictures = keras.Input((4, 4, 3))
    model = keras.Model(pictures, keras.layers.Dense(2)(pictures))
    assert txf.training.cost(model, 2).forward_flops == 2 * 2 * 16 * 3 * 2
    with pytest.raises(ValueError, match="`length` must be None: all inputs have a fixed size; received 7"):
        txf.training.cost(model, 2, 7)
    rows = keras.Input((5,), batch_size=4)
    with pytest.raises(ValueError, match="`model` must take any batch size; its input '.*' has 4 rows"):
        txf.training.cost(keras.Model(rows, keras.layers.Dense(2)(rows)), 4)
