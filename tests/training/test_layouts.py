"""`layout_map`: a row for each weight of each builder's model, split as Megatron-LM and FSDP say."""

import fnmatch
import warnings

import keras
import numpy as np
import page_files
import pytest
from refusals import BUILDERS, IMAGE_BUILDERS

import keras_txf as txf

SIZES = {"batch": 2, "model": 4}
MESH = keras.distribution.DeviceMesh((2, 4), list(SIZES), [f"cpu:{i}" for i in range(8)])
M, B = "model", "batch"
SOME = {"num_layers": 2, "dim": 16, "num_heads": 8}


def axes(model, mesh=MESH, **options):
    return {path: layout.axes for path, layout in txf.training.layout_map(model, mesh, **options).items()}


def notes(model, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = axes(model, **options)
    messages = [str(warning.message) for warning in caught]
    return rows, [message for message in messages if "devices of axis" in message]


def expect(rows, expected):
    """Each row is the one of the first pattern that matches; each device holds a weight without a matching pattern."""
    for path, found in rows.items():
        wanted = next((value for pattern, value in expected.items() if fnmatch.fnmatch(path, pattern)), None)
        assert found == (wanted or (None,) * len(found)), path


def columns(*names):
    """The rows of projections whose columns are split."""
    return {f"*/{name}/kernel": (None, M) for name in names} | {f"*/{name}/bias": (M,) for name in names}


def test_a_decoder_of_all_options():
    attention = txf.layers.MultiHeadSelfAttention(
        8, causal=True, num_key_value_heads=4, qk_norm="full", sinks=True, output_gate=True,
        position=txf.layers.RelativeBias(8),
    )  # fmt: skip
    model = txf.models.decoder_generator(
        32, **{**SOME, "num_heads": None}, gated=True, attention=attention, position_encoding="learned", max_length=9,
        residual=txf.layers.Residual(layer_scale=0.1),
        logit_adjustment=txf.layers.LogitAdjustment(use_bias=True),
    )  # fmt: skip
    rows = axes(model)
    assert set(rows) == {variable.path for variable in model.weights}
    assert rows["decoder_1/attention/query/kernel"] == (None, M)
    expect(rows, columns("query", "key", "value", "gate", "intermediate") | {
        "*/output/kernel": (M, None), "*/sinks": (M,), "*/query_norm/scale": (M,), "*/key_norm/scale": (M,),
        "relative_bias/embeddings": (None, M), "embedding/token/embeddings": (M, None), "logit_adjustment/bias": (M,),
    })  # fmt: skip


def test_experts():
    def rows(count, width):
        experts = txf.layers.MixtureOfExperts(count, intermediate_dim=width, use_bias=True, num_shared_experts=1)
        return notes(txf.models.decoder_generator(32, **SOME, feed_forward=experts))

    by_number, noted = rows(8, 6)
    assert noted and all("feed_forward/shared_experts" in note and "intermediate_dim=6" in note for note in noted)
    here = "decoder_0/feed_forward/"
    assert by_number[here + "gate_kernel"] == by_number[here + "output_kernel"] == (M, None, None)
    assert by_number[here + "intermediate_bias"] == by_number[here + "output_bias"] == (M, None)
    assert by_number[here + "router"] == (None, M) and by_number[here + "shared_experts/gate/kernel"] == (None, None)
    by_width, noted = rows(3, 8)
    assert not noted
    assert by_width[here + "gate_kernel"] == by_width[here + "intermediate_kernel"] == (None, None, M)
    assert by_width[here + "output_kernel"] == (None, M, None) and by_width[here + "gate_bias"] == (None, M)
    assert by_width[here + "output_bias"] == by_width[here + "router"] == (None, None)
    assert by_width[here + "shared_experts/gate/kernel"] == (None, M)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("rank", [None, 5])
def test_latent_attention(rank):
    latent = txf.layers.LatentAttention(8, 6, 4, 2, q_lora_rank=rank, use_bias=True, causal=True)
    rows = axes(txf.models.decoder_generator(32, 2, 16, attention=latent, intermediate_dim=24))
    query = "*/attention/query/kernel" if rank is None else "*/attention/query_up/kernel"
    expected = {query: (None, M), "*/key_value_up/kernel": (None, M), "*/attention/output/kernel": (M, None)}
    here = {path: row for path, row in rows.items() if "/attention/" in path}
    assert sum(any(row) for row in here.values()) == 2 * 3
    expect(here, expected)
    narrow = txf.layers.LatentAttention(6, 6, 4, 2, causal=True)
    rows, noted = notes(txf.models.decoder_generator(32, 1, 16, attention=narrow, intermediate_dim=24))
    assert not any(any(row) for path, row in rows.items() if "/attention/" in path)
    assert len(noted) == 1 and "decoder_0/attention: 6 heads do not divide over the 4" in noted[0]


def test_sizes_that_do_not_divide_are_whole_and_named_once():
    rows, noted = notes(lambda: txf.models.decoder_generator(30, 5, 12, 6, intermediate_dim=10))
    assert not [path for path, found in rows.items() if any(found)]
    assert len(noted) == 3
    for words in (
        "decoder_0/attention, decoder_1/attention, decoder_2/attention and 2 more: 6 heads do not divide over the 4",
        "and 2 more: intermediate_dim=10 does not",
        "embedding: a vocabulary of 30 does not",
    ):
        assert sum(words in note for note in noted) == 1, words


@pytest.mark.parametrize("head_dim, whole", [(2, False), (3, True)])
def test_key_value_heads_that_do_not_divide(head_dim, whole):
    options = {"num_key_value_heads": 2, "head_dim": head_dim, "gated": True}
    rows, noted = notes(txf.models.decoder_generator(32, 1, 16, 8, **options))
    assert rows["decoder_0/attention/query/kernel"] == (None, M)
    assert rows["decoder_0/attention/value/kernel"] == ((None, None) if whole else (None, M))
    assert len(noted) == 1 and "decoder_0/attention: 2 key-value heads" in noted[0]
    assert ("whole weights" if whole else "heads are cut") in noted[0]


@pytest.mark.long
@pytest.mark.parametrize("name", [*BUILDERS, *IMAGE_BUILDERS, "masked_language_model", "token_classifier", "recurrent"])
def test_each_weight_of_each_builder_has_a_row_that_fits(name):
    builders = {
        **BUILDERS, **IMAGE_BUILDERS,
        "masked_language_model": lambda: txf.models.masked_language_model(
            12, 1, 8, 4, embedding=txf.layers.PositionalEmbedding(12, 4, token_types=2), token_type_ids=True
        ),
        "token_classifier": lambda: txf.models.token_classifier(None, 3, 1, 8, 4, input_dim=6),
        "recurrent": lambda: txf.models.recurrent_encoder_decoder(12, 8, 1, 8, attention="additive"),
    }  # fmt: skip
    model = builders[name]()
    weights = {variable.path: variable for variable in model.weights}
    for fsdp in (False, True):
        rows, _ = notes(model, fsdp=fsdp)
        assert set(rows) == set(weights)
        for path, found in rows.items():
            shape = weights[path].shape
            assert len(found) == len(shape)
            assert all(size % SIZES.get(axis, 1) == 0 for size, axis in zip(shape, found))
            free = [axis for size, axis in zip(shape, found) if size % 2 == 0 and axis != M]
            assert (B in found) == (fsdp and len(shape) > 1 and bool(free)), path
        assert any(M in found for found in rows.values())


def test_fsdp_takes_the_longest_axis_that_is_whole():
    model = txf.models.decoder_generator(32, **SOME)
    rows = axes(model, fsdp=True)
    assert rows["decoder_0/feed_forward/intermediate/kernel"] == (B, M)
    assert rows["decoder_0/feed_forward/output/kernel"] == (M, B)
    assert rows["embedding/token/embeddings"] == (M, B)
    one = keras.distribution.DeviceMesh((8, 1), [B, M], [f"cpu:{i}" for i in range(8)])
    assert axes(model, one, fsdp=True)["decoder_0/feed_forward/output/kernel"][0] == B
    options = {"head_dim": 4, "position_encoding": "learned", "max_length": 9, "norm": "rms"}
    rows, noted = notes(txf.models.decoder_generator(28, 1, 12, 4, **options), fsdp=True)
    assert rows["embedding/position/embeddings"] == (None, B) and not noted
    inputs = keras.Input((3,))
    rows, noted = notes(keras.Model(inputs, keras.layers.Dense(5, name="odd")(inputs)), fsdp=True)
    assert rows["odd/kernel"] == (None, None) and len(noted) == 1 and "odd/kernel: no axis" in noted[0]


def test_parts_that_a_subclass_has_made_itself_are_whole():
    class OwnAttention(txf.layers.MultiHeadSelfAttention):
        def build(self, shape):
            super().build(shape)
            self.temperatures = self.add_weight(name="scale", shape=(3,))

    class OwnProjection(txf.layers.MultiHeadSelfAttention):
        def build(self, shape):
            self.packed = keras.layers.Dense(3 * shape[-1], name="packed")
            self.packed.build(shape)

    def own(parent):
        class Own(parent):
            def build(self, shape):
                self.inner = self.add_weight(name="inner", shape=(shape[-1], 8))

        return Own

    class OwnBias(txf.layers.RelativeBias):
        def build(self, *shapes):
            self.embeddings = self.add_weight(name="embeddings", shape=(self.num_buckets, 3))

    class Whole(keras.Model):
        def __init__(self):
            super().__init__(name="whole")
            self.parts = [
                OwnAttention(8, name="attention"), OwnProjection(8, name="projection"),
                own(txf.layers.FeedForward)(16, name="network"), OwnBias(8, name="bias"),
                own(txf.layers.MixtureOfExperts)(3, intermediate_dim=8, name="experts"),
                own(txf.layers.LatentAttention)(8, 6, 4, 2, name="latent"),
            ]  # fmt: skip

        def build(self, shape):
            for part in self.parts:
                part.build(shape)

    model = Whole()
    model.build((None, None, 16))
    rows, noted = notes(model)
    assert not noted and set(rows) == {variable.path for variable in model.weights}
    expect(rows, columns("query", "key", "value") | {"*attention/output/kernel": (M, None)})
    assert sum(any(found) for found in rows.values()) == 7


def test_a_part_of_a_subclass_with_the_name_of_another_part_is_whole():
    class Gated(txf.layers.MultiHeadSelfAttention):
        def build(self, shape):
            self.gate = keras.Sequential([keras.layers.Dense(16, name="output")], name="gate")
            self.gate.build(shape)
            super().build(shape)

    layer = Gated(8, name="attention")
    inputs = keras.Input((None, 16))
    rows = axes(keras.Model(inputs, layer(inputs)))
    assert rows["attention/gate/output/kernel"] == (None, None) and rows["attention/output/kernel"] == (M, None)


@pytest.mark.parametrize("add, path", [
    (lambda layer: layer.add_weight(name="temperatures", shape=(8,)), "temperatures"),
    (lambda layer: made_inside(layer, txf.layers.projections.Projection(8, name="attention_gate")),
     "attention_gate/kernel"),
])  # fmt: skip
def test_a_weight_without_a_rule_raises_an_error_that_names_the_weight(monkeypatch, add, path):
    build = txf.layers.MultiHeadSelfAttention.build

    def build_more(self, shape):
        build(self, shape)
        self.more = add(self)

    monkeypatch.setattr(txf.layers.MultiHeadSelfAttention, "build", build_more)
    model = txf.models.decoder_generator(32, **SOME)
    with pytest.raises(ValueError, match=f"received 'decoder_0/attention/{path}' of MultiHeadSelfAttention"):
        axes(model)


def made_inside(layer, part):
    with keras.name_scope(layer.name, caller=layer):
        part.build((None, None, 16))
    return part


def test_adapters_and_int8_kernels():
    model = txf.models.decoder_generator(32, **SOME)
    plain = axes(model)
    txf.training.add_adapter(model, "known", rank=2, targets=["*/query", "*/attention/output"])
    rows = axes(model)
    assert rows["decoder_0/attention/query/known_lora_a"] == rows["decoder_0/attention/output/known_lora_b"]
    assert rows["decoder_0/attention/query/known_lora_a"] == (None, None)
    assert rows["decoder_0/attention/query/known_lora_b"] == (None, M)
    assert rows["decoder_0/attention/output/known_lora_a"] == (M, None)
    txf.training.remove_adapter(model, "known")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras, of layers without weights
        model.quantize("int8")
    rows = axes(model)
    assert rows["decoder_0/attention/query/kernel_scale"] == rows["embedding/token/embeddings_scale"] == (M,)
    assert rows["decoder_0/attention/output/kernel_scale"] == (None,)
    assert {path: rows[path] for path in plain} == plain


def test_the_map_has_no_values_of_weights_and_leaves_no_trace():
    def build():
        return txf.models.decoder_generator(10**6, 1, 2**16, 8, intermediate_dim=2**20)  # 0.8 TB

    assert axes(build)["decoder_0/feed_forward/output/kernel"] == (M, None)
    assert np.isfinite(txf.models.decoder_generator(12, 1, 8, 2).get_weights()[0]).all()


def test_a_checkpoint_is_mapped_without_its_values(tmp_path):
    page_files.chat_model(tmp_path / "llama")
    rows, _ = notes(lambda: txf.checkpoints.load(tmp_path / "llama"))
    loaded = txf.checkpoints.load(tmp_path / "llama")
    assert rows == notes(loaded)[0] and rows["decoder_0/attention/output/kernel"] == (M, None)
    assert all(np.abs(value).sum() > 0 for value in loaded.get_weights())  # the next one has values


def by_hand(first=None, second=None, heads=4):
    ids = keras.Input((None,), dtype="int32")
    x = txf.layers.PositionalEmbedding(12, 8, name="embedding")(ids)
    x = txf.layers.EncoderBlock(4, causal=True, name=first)(x)
    x = txf.layers.EncoderBlock(heads, causal=True, name=second)(x)
    return keras.Model(ids, keras.layers.Dense(12, name="logits")(x))


def test_layers_without_a_name_have_rows_for_any_number():
    layouts = txf.training.layout_map(by_hand, MESH)
    model = by_hand()
    rows = [layouts[variable.path].axes for variable in model.weights]
    assert rows == list(axes(by_hand("first", "second")).values()) and any(map(any, rows))
    assert layouts["encoder_block_77/attention/query/kernel"].axes == (None, M)
    with pytest.raises(ValueError, match="`model` must have names.*received 'encoder_block.*/attention/query/kernel'"):
        axes(lambda: by_hand(heads=2))
    assert notes(lambda: by_hand("first", "second", heads=2))[0]["second/attention/query/kernel"] == (None, None)


def test_a_function_must_build_the_same_model():
    for options in (iter([{}, {"gated": True}]), iter([{"num_heads": 4}, {"num_heads": 2}])):
        with pytest.raises(ValueError, match="`model` must be a function that builds the same model each time"):
            axes(lambda: BUILDERS["encoder"](num_layers=1, **next(options)))


MODEL = BUILDERS["encoder"]()


@pytest.mark.parametrize("options, words", [
    ({"model": 3}, "`model` must be a built Keras model, or a function"),
    ({"model": keras.layers.Dense(3)}, "`model` must be a built"),
    ({"model": keras.Sequential([keras.layers.Dense(3)])}, "`model` must be a built"),
    ({"model": lambda size: MODEL}, "`model` must be a function without arguments"),
    ({"model": dict}, "`model` must be a function without arguments.*received <class 'dict'>"),
    ({"model": lambda: None}, "`model` must be a function that builds a Keras model; it returned None"),
    ({"device_mesh": (2, 4)}, "`device_mesh` must be a keras.distribution.DeviceMesh"),
    ({"batch_axis": "data"}, r"`batch_axis` must be an axis of `device_mesh`.*'batch', 'model'.*received 'data'"),
    ({"model_axis": "data"}, "`model_axis` must be an axis of `device_mesh`"),
    ({"model_axis": 1}, "`model_axis` must be a string"),
    ({"model_axis": "batch"}, "`model_axis` must differ from `batch_axis`"),
    ({"fsdp": 1}, "`fsdp` must be True or False"),
])  # fmt: skip
def test_bad_calls(options, words):
    with pytest.raises(ValueError, match=words):
        txf.training.layout_map(**{"model": MODEL, "device_mesh": MESH, **options})
