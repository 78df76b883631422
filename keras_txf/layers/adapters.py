"""What stands beside the kernel of a projection while its base is frozen: a product of low rank, or another kernel.

An adapter belongs to one layer and has a name that all layers of a fine-tuning share. Its variables are the layer's own,
float32 under every policy: a small step on a bfloat16 number would be rounded away.
"""

import keras
from keras import ops

from keras_txf.ops.dropout import dropout

QUANTIZED = (None, "int8")  # the modes of a base that may have adapters


class LowRank:
    """x A B · alpha / rank, added to what the layer gives. B begins with zeros, A as in PyTorch's LoRA and PEFT.

    Args:
        layer: a built projection.
        name: of the adapter.
        rank: number of columns of A and rows of B.
        alpha: the scale, times `rank`.
        dropout: rate on x, in training only.
    """

    adds = True  # to what the layer gives, rather than taking its place

    def __init__(self, layer, name, rank, alpha, dropout):
        self.options = {"rank": rank, "alpha": alpha, "dropout": dropout}
        self.scale, self.rate = alpha / rank, dropout
        height, width = shape_of(layer)
        fan_in = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
        self.variables = {
            "lora_a": layer.add_weight(name=f"{name}_lora_a", shape=(height, rank), initializer=fan_in, dtype="float32"),
            "lora_b": layer.add_weight(name=f"{name}_lora_b", shape=(rank, width), initializer="zeros", dtype="float32"),
        }
        self.seed = keras.random.SeedGenerator() if dropout else None

    def update(self, inputs, training):
        """What is added to the output."""
        if training and self.rate:
            inputs = dropout(inputs, self.rate, self.seed)
        return self.scale * ops.matmul(ops.matmul(inputs, self.variables["lora_a"]), self.variables["lora_b"])

    def kernel(self, base):
        """The kernel with which a product alone would give the same."""
        update = self.scale * ops.matmul(self.variables["lora_a"], self.variables["lora_b"])
        return ops.add(ops.cast(base, update.dtype), update)

    def bias(self, base):
        return base


class Whole:
    """A kernel and a bias in place of the layer's, which they begin as: for a new head, which has nothing to keep."""

    adds = False

    def __init__(self, layer, name):
        self.options, self.seed = {}, None
        with layer.using(None):
            values = {"kernel": _float_kernel(layer), "bias": layer.bias}
        self.variables = {
            part: layer.add_weight(name=f"{name}_{part}", shape=value.shape, initializer="zeros", dtype="float32")
            for part, value in values.items()
            if value is not None
        }
        for part, variable in self.variables.items():
            variable.assign(ops.copy(ops.cast(values[part], "float32")))  # JAX must not train the base's own array

    def kernel(self, base):
        return self.variables["kernel"]

    def bias(self, base):
        return self.variables.get("bias")


KINDS = {"low_rank": LowRank, "whole": Whole}


def shape_of(layer):
    """Of the layer's kernel, whatever form that is kept in."""
    return layer.input_spec.axes[-1], layer.units


def _float_kernel(layer):
    """The layer's own kernel as numbers that can be added to."""
    kernel = layer.kernel
    return ops.cast(kernel, "float32") / layer.kernel_scale if layer.quantization_mode == "int8" else kernel
