"""The residual stream of a block: what each sublayer reads from the stream, and what it adds to the stream."""

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.base import Layer
from keras_txf.layers.norms import make_norm
from keras_txf.layers.parts import build_part, check_width
from keras_txf.layers.projections import Dropout
from keras_txf.layers.serialization import register

KINDS = ("sequential", "parallel", "parallel_one_norm")
PLACEMENTS = {  # `norm_placement` -> what is normalised: a sublayer's input, its output, or the sum with the stream
    "pre": ("input",),
    "post": ("sum",),
    "sandwich": ("input", "output"),
    "res_post": ("output",),
}


@register
class Residual:
    """How the sublayers of a block read the residual stream x, and what they add to it.

    With the kind "sequential" and the norms "pre", each sublayer f in turn changes the stream to
    x + drop(scale · gamma · f(norm(x))). Pass it as `residual` to a block or a builder.

    Args:
        kind: "sequential", "parallel" or "parallel_one_norm", see `EncoderBlock`.
        scale: factor on the output of each sublayer (Granite), or None.
        layer_scale: initial value of gamma, a learned factor for each feature (CaiT); None: no such factors.
        stochastic_depth: rate at which training leaves out a sublayer, sample by sample. In a builder the last block
            has this rate, and the rate grows from block to block.

    Raises:
        ValueError: an unknown kind, a factor that is not a positive number, a rate outside [0, 1).

    Reference:
        [Going deeper with Image Transformers](https://arxiv.org/abs/2103.17239) for `layer_scale`;
        [Deep Networks with Stochastic Depth](https://arxiv.org/abs/1603.09382).

    Example:

    >>> residual = txf.layers.Residual(layer_scale=1e-5, stochastic_depth=0.1)
    >>> block = txf.layers.EncoderBlock(num_heads=4, norm_placement="pre", residual=residual)
    >>> block(keras.random.normal((2, 7, 32))).shape
    (2, 7, 32)
    """

    def __init__(
        self,
        kind: str = "sequential",
        scale: float | None = None,
        layer_scale: float | None = None,
        stochastic_depth: float = 0.0,
    ):
        self.kind = checks.one_of("kind", kind, KINDS)
        self.scale = checks.optional(checks.positive_number, "scale", scale)
        self.layer_scale = checks.optional(checks.positive_number, "layer_scale", layer_scale)
        self.stochastic_depth = checks.rate("stochastic_depth", stochastic_depth)

    def get_config(self):
        return {
            "kind": self.kind,
            "scale": self.scale,
            "layer_scale": self.layer_scale,
            "stochastic_depth": self.stochastic_depth,
        }

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def of_block(self, index, number):
        """Returns a copy for block `index` of `number` blocks. The rate of stochastic depth grows linearly."""
        rate = self.stochastic_depth * (index + 1) / number
        return self.from_config({**self.get_config(), "stochastic_depth": rate})

    def norms_of(self, block, sublayer):
        """The names of the norms of a sublayer."""
        names = []
        if sublayer == "attention" or self.kind != "parallel_one_norm":
            names.append(f"{sublayer}_norm")
        if block.norm_placement == "sandwich":
            names.append(f"{sublayer}_post_norm")
        return names

    def add_layers(self, block):
        """Makes the norms and factors of a block's sublayers, and the block's dropouts.

        They are attributes of the block, such as `attention_norm`, `feed_forward_norm` and `attention_scale`.
        """
        check_placement(self.kind, block.norm_placement)
        dtype = block.dtype_policy
        for name in block.sublayers:
            if self.layer_scale is not None:
                setattr(block, f"{name}_scale", LayerScale(self.layer_scale, dtype=dtype, name=f"{name}_scale"))
            for norm_name in self.norms_of(block, name):
                norm = make_norm(block.norm, block.norm_epsilon, dtype, norm_name, block.use_bias)
                norm.supports_masking = True  # the block keeps the mask: Keras would warn that the layer loses it
                setattr(block, norm_name, norm)
        block.dropout_layer = Dropout(block.dropout, dtype=dtype, name="dropout")
        block.stochastic_depth_layer = keras.layers.Dropout(
            self.stochastic_depth, noise_shape=(None, 1, 1), dtype=dtype, name="stochastic_depth"
        )

    def build(self, block, shape):
        """Builds the norms and factors of `add_layers`; `shape` is (B, T, D)."""
        for name in block.sublayers:
            if self.layer_scale is not None:
                getattr(block, f"{name}_scale").build(shape)
            for norm_name in self.norms_of(block, name):
                build_part(getattr(block, norm_name), shape)

    def run(self, block, x, sublayers, mask=None, segment_ids=None):
        """Adds the output of each sublayer of a block to the stream.

        Args:
            block: the block, with the layers of `add_layers`.
            x: the stream (B, T, D) as it enters the block.
            sublayers: dict of the names of sublayers -> functions of (B, T, D).
            mask, segment_ids: bool and int (B, T), call arguments of the block, for subclasses that read them; or None.

        Returns:
            The stream (B, T, D), and a list of the attention scores that the sublayers return.
        """
        normed, all_scores = PLACEMENTS[block.norm_placement], []
        one_norm = self.kind == "parallel_one_norm"
        block_input = block.attention_norm(x) if one_norm else x
        for name, sublayer in sublayers.items():
            norm = getattr(block, f"{name}_norm", _identity)  # a subclass may leave out a norm
            inputs = x if self.kind == "sequential" else block_input
            if "input" in normed and not one_norm:
                inputs = norm(inputs)
            result = sublayer(inputs)
            update, *scores = result if isinstance(result, tuple) else (result,)
            all_scores += scores
            check_width(name, layer_of(block, name), tuple(update.shape), x.shape)
            if "output" in normed:
                update = getattr(block, f"{name}_post_norm", norm)(update)
            update = getattr(block, f"{name}_scale", _identity)(update)
            if self.scale is not None:
                update = update * self.scale
            x = x + block.stochastic_depth_layer(block.dropout_layer(update))
            if "sum" in normed:
                x = norm(x)
        return x, all_scores


def _identity(x):
    return x


def as_residual(value):
    """Returns the `Residual` of the option `residual`, which is a kind or a `Residual`."""
    return value if isinstance(value, Residual) else Residual(checks.one_of("residual", value, KINDS, "a Residual"))


def layer_of(block, name):
    """The layer of a block's sublayer."""
    return block.cross_attention_layer if name == "cross_attention" else getattr(block, name)


def check_placement(kind, placement):
    """Raises ValueError if a placement of the norms does not go with a kind of residual stream."""
    if kind == "parallel" and placement == "post":
        raise ValueError("`norm_placement` must not be 'post' with residual='parallel'; received 'post'.")
    if kind == "parallel_one_norm" and placement != "pre":
        raise ValueError(
            f"`norm_placement` must be 'pre' with residual='parallel_one_norm'; received {short_repr(placement)}."
        )


@register
class LayerScale(Layer):
    """Multiplies each feature by a learned factor. Small initial factors start a deep block close to the identity.

    A block with a `Residual(layer_scale=...)` makes one for each sublayer.

    Args:
        initial: initial value of the factors.

    Reference:
        [Going deeper with Image Transformers](https://arxiv.org/abs/2103.17239).
    """

    weight_splits = {"gamma": "whole"}

    def __init__(self, initial=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.initial = checks.positive_number("initial", initial)
        self.supports_masking = True

    def build(self, inputs_shape):
        initializer = keras.initializers.Constant(self.initial)
        self.gamma = self.add_weight(name="gamma", shape=(inputs_shape[-1],), initializer=initializer)

    def call(self, inputs):
        return inputs * self.gamma
