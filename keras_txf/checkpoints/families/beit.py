"""BEiT, and data2vec of images: relative positions of patches, layer scale and the mean of the patches."""

from keras import ops

from keras_txf import checks
from keras_txf.checkpoints.families.vit import BODY, RENAMED, body, patch, square, tasks
from keras_txf.checkpoints.family import Family
from keras_txf.checkpoints.weight_map import Tensor
from keras_txf.layers.positions import TableBias
from keras_txf.layers.serialization import register

OWN_BIAS = "encoder.layer.{i}.attention.attention.relative_position_bias.relative_position_bias_table"
TABLE = {
    **BODY,
    "encoder_{i}/attention_scale/gamma": "encoder.layer.{i}.lambda_1",
    "encoder_{i}/feed_forward_scale/gamma": "encoder.layer.{i}.lambda_2",
    "position/embeddings": "encoder.relative_position_bias.relative_position_bias_table",
    "position_{i}/embeddings": OWN_BIAS,
}


def options(c):
    number, heads, rate = c("num_hidden_layers"), c("num_attention_heads"), c("drop_path_rate", 0.1)
    grid, position = (square(c, "image_size", 224) // square(c, "patch_size", 16),) * 2, None
    own, shared = c("use_relative_position_bias", False), c("use_shared_relative_position_bias", False)
    if own and shared:
        raise ValueError(
            "config.json must have `use_relative_position_bias` or `use_shared_relative_position_bias`, not both; "
            "received true for both."
        )
    if shared:
        position = GridBias(heads, grid, name="position")
    if own:
        position = [GridBias(heads, grid, name=f"position_{i}") for i in range(number)]
    return {
        **body(c),
        "intermediate_dim": c("intermediate_size"),
        "attention_bias": True,
        "attention_key_bias": False,
        "position": position,
        "position_encoding": "learned" if c("use_absolute_position_embeddings", False) else None,
        "layer_scale": c("layer_scale_init_value", 0.1) or None,
        "stochastic_depth": [rate * i / max(number - 1, 1) for i in range(number)],
        "final_norm": not c("use_mean_pooling", True),
    }


def head(c):
    means = c("use_mean_pooling", True)
    return {"pooling": "others" if means else "first", "pooling_norm": means}


# Keys of backbones and of other heads.
OTHERS = ("pool_scales", "use_auxiliary_head", "auxiliary_loss_weight", "auxiliary_channels", "auxiliary_num_convs",
          "auxiliary_concat_input", "semantic_loss_ignore_index", "out_features", "out_indices", "stage_names",
          "add_fpn", "reshape_hidden_states", "use_mask_token", "vocab_size", "segmentation_indices")  # fmt: skip


def family(name, prefix, renamed):
    return Family(
        options,
        lambda c: {**TABLE, **patch(c)},
        tasks(name, head, {"pooling_norm": Tensor("pooler.layernorm", inner=True)}),
        prefix,
        (r".*relative_position_index",),
        (r"pooler\.layernorm\.(weight|bias)", r"embeddings\.mask_token"),
        neutral=OTHERS,
        renamed=renamed,
    )


FAMILIES = {
    "beit": family(
        "Beit",
        "beit.",
        {
            **RENAMED,
            r"encoder\.layer\.(\d+)": r"layers.\1",
            r"encoder\.layer\.(\d+)\.attention\.attention\.(relative_position_bias)": r"layers.\1.\2",
            r"encoder\.(relative_position_bias)": r"\1",
        },
    ),
    "data2vec-vision": family("Data2VecVision", "data2vec_vision.", {}),
}


@register
class GridBias(TableBias):
    """BEiT's learned bias for each head and each offset between two patches, in rows and columns.

    Position 0 is the class token, which has three further biases: to a patch, from a patch, to itself. The other
    positions are the patches, row by row.

    Args:
        num_heads: number of query heads.
        grid: rows and columns of patches, a pair.

    Reference:
        [BEiT](https://arxiv.org/abs/2106.08254); [Swin](https://arxiv.org/abs/2103.14030), section 3.2.
    """

    def __init__(self, num_heads, grid, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = checks.size("num_heads", num_heads)
        self.grid = checks.pair("grid", grid)

    def table_size(self):
        return (2 * self.grid[0] - 1) * (2 * self.grid[1] - 1) + 3

    def rotate(self, x, positions):
        self.check_heads(x.shape[1], x.shape[-1])
        return x

    def check_heads(self, length, head_dim):
        """Raises ValueError if the length is not the length of the grid."""
        expected = self.grid[0] * self.grid[1] + 1
        if length != expected:
            raise ValueError(
                f"`inputs` must have the length {expected}, a class token and the patches of grid={self.grid}; "
                f"received {length}: these positions fit images of one size."
            )

    def rows(self, query_positions, key_positions):
        query, key = (ops.cast(positions, "int32") for positions in (query_positions, key_positions))
        if len(query.shape) == 1:
            query, key = query[None], key[None]
        query, key = query[:, :, None], key[:, None, :]
        rows, columns = self.grid
        down = (query - 1) // columns - (key - 1) // columns + rows - 1
        across = (query - 1) % columns - (key - 1) % columns + columns - 1
        found = down * (2 * columns - 1) + across
        from_class, to_class, itself = (self.table_size() - count for count in (3, 2, 1))
        found = ops.where(query == 0, from_class, found)
        found = ops.where(key == 0, to_class, found)
        return ops.where(ops.logical_and(query == 0, key == 0), itself, found)
