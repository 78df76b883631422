"""Random weights for their modules, and copies of them in our layers, by table.

A table is a dict, our layer's path -> their module's name. `*` stands for the number of a block on
both sides. Every weight of both must have its place exactly once, so that no test passes because a
bias was forgotten.
"""

import re

import numpy as np
import torch
from keras import ops

# Our last name of a path -> the name that PyTorch has for it.
_LEAVES = {
    "kernel": "weight", "embeddings": "weight", "gamma": "weight", "scale": "weight", "bias": "bias", "beta": "bias",
}  # fmt: skip


def randomize(module, seed=0):
    """Draws every parameter, also biases and norm scales, which start as zeros and ones."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            is_scale = parameter.ndim == 1 and name.endswith("weight")
            parameter.uniform_(0.5, 1.5) if is_scale else parameter.normal_(std=0.25)
    return module.eval()


def copy_weights(module, variables, table):
    """Assigns the parameters of their module to our variables; `table` is our layer -> their module.

    The packed projections of PyTorch's attention are split.
    """
    theirs = _split_packed_projections({name: to_numpy(x) for name, x in module.named_parameters()})  # tied ones once
    for variable in variables:
        layer, _, leaf = variable.path.rpartition("/")
        array = theirs.pop(f"{_their_module(layer, table)}.{_LEAVES[leaf]}")
        array = array.T if leaf == "kernel" else array
        assert array.shape == tuple(variable.shape), variable.path
        variable.assign(array)
    assert not theirs, f"not copied: {sorted(theirs)}"


def _their_module(layer, table):
    matches = []
    for ours, name in table.items():
        match = re.fullmatch(re.escape(ours).replace(r"\*", r"(\d+)"), layer)
        if match:
            matches.append(name.replace("*", match[1]) if match.groups() else name)
    assert len(matches) == 1, f"{layer} stands {len(matches)} times in the table"
    return matches[0]


def _split_packed_projections(theirs):
    """PyTorch's `in_proj_weight` (3 · D, D) and `q_proj_weight` become `q_proj.weight` and so on."""
    split = {}
    for name, array in theirs.items():
        if "in_proj_" in name:
            for letter, part in zip("qkv", np.split(array, 3)):
                split[re.sub("in_proj_", f"{letter}_proj.", name)] = part
        else:
            split[re.sub("_proj_weight$", "_proj.weight", name)] = array
    return split


def attention_table(ours, theirs):
    """The four rows of one attention."""
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
    return {f"{ours}/{own}": f"{theirs}.{name}" for own, name in names.items()}


ENCODER_LAYER = {
    **attention_table("block/attention", "self_attn"), "block/attention_norm": "norm1",
    "block/feed_forward/intermediate": "linear1", "block/feed_forward/output": "linear2",
    "block/feed_forward_norm": "norm2",
}  # fmt: skip
DECODER_LAYER = {
    **ENCODER_LAYER, **attention_table("block/cross_attention", "multihead_attn"),
    "block/cross_attention_norm": "norm2", "block/feed_forward_norm": "norm3",
}  # fmt: skip


def paired_blocks(
    their_class, our_class, table, norm_first, activation="relu", bias=True, epsilon=1e-5, shapes=(), **own
):
    """A layer of PyTorch and a block of ours with the same random weights, both at inference.

    Args:
        shapes: of the inputs, with the width of the model last.
        own: what the block needs beyond their common options.
    """
    theirs = randomize(
        their_class(shapes[0][-1], 3, 20, activation=activation, layer_norm_eps=epsilon, norm_first=norm_first,
                    bias=bias, batch_first=True),
    )  # fmt: skip
    ours = our_class(
        3, intermediate_dim=20, activation=activation, norm_epsilon=epsilon, use_bias=bias, name="block",
        norm_placement="pre" if norm_first else "post", **own,
    )  # fmt: skip
    ours.build(*shapes)
    copy_weights(theirs, ours.weights, table)
    return theirs, ours


def to_numpy(tensor):
    """An own copy: PyTorch's view of a parameter would change with it."""
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().cpu().numpy().copy()
    return np.asarray(ops.convert_to_numpy(tensor))


def close(ours, theirs, atol=1e-5, where=None):
    """Asserts equality to an absolute tolerance, everywhere or where a boolean (B, T) says; no NaN anywhere."""
    ours, theirs = to_numpy(ours), to_numpy(theirs)
    assert ours.shape == theirs.shape
    assert np.isfinite(ours).all() and np.isfinite(theirs).all()
    if where is not None:
        ours, theirs = ours[where], theirs[where]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def holes(*shape, seed=0):
    """A random mask in which every row lets at least its first key through."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    return mask


def hide(mask):
    """Our mask as PyTorch has it, where True means hidden; per-head masks have heads in the batch there."""
    if mask is None:
        return None
    mask = mask.reshape(-1, *mask.shape[-2:]) if mask.ndim == 4 else mask
    return torch.from_numpy(~mask)


def both(mask, other):
    """Returns the conjunction of two masks; each may be None."""
    if mask is None or other is None:
        return other if mask is None else mask
    return mask & other


def causal_mask(length):
    return np.tril(np.ones((length, length), bool))
