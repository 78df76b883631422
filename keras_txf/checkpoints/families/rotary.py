"""Rotary positions and windows of a configuration, block by block."""

from keras_txf.checks import short_repr
from keras_txf.layers import Rotary
from keras_txf.ops.rotary import ROTARY_SCALINGS, scaling_options

# Type of positions -> the keys that it reads.
OPTIONS = {"default": (), **{kind: scaling_options(kind) for kind in ROTARY_SCALINGS}}


def windows(kinds, window):
    """Returns the window of each block, None but for the kind "sliding_attention"."""
    unknown = sorted(map(str, set(kinds) - {"full_attention", "sliding_attention"}))
    if unknown:
        raise ValueError(
            f"config.json must have `layer_types` of 'full_attention' and 'sliding_attention'; received {unknown}."
        )
    return [window if kind == "sliding_attention" else None for kind in kinds]


def positions(c, kinds, bases, used=None, scaled=("full_attention",), fraction=None, interleaved=False):
    """Returns a `Rotary` for each block, one for all blocks of a kind.

    Args:
        c: the config, old or new: `rope_theta` and `rope_scaling`, or `rope_parameters`, with kinds or without.
        kinds: list, the kind of each block.
        bases: dict of kinds -> the base where `rope_parameters` has none.
        used: list, whether each block has positions at all; default: all.
        scaled: the kinds that `rope_scaling` is for.
        fraction: the share of features that turn where the config has none; None: all turn, and the family's class in
            transformers reads no `partial_rotary_factor`.
        interleaved: see `Rotary`.
    """
    new, old = c("rope_parameters", None) or {}, c("rope_scaling", None) or {}
    has_kinds = any(key in new for key in ("full_attention", "sliding_attention"))
    rotaries = {}
    for kind in dict.fromkeys(kinds):
        if kind not in bases:
            raise ValueError(f"config.json must have `layer_types` in {sorted(bases)}; received {short_repr(kind)}.")
        own = new.get(kind) or {} if has_kinds else new
        paths = dict.fromkeys(own, f"rope_parameters.{kind}." if has_kinds else "rope_parameters.")
        if old and kind in scaled:  # transformers then reads no `rope_parameters`, but for those of kinds
            own = {**own, **old} if has_kinds else old
            paths.update(dict.fromkeys(old, "rope_scaling."))
        paths = {key: f"{path}{key}" for key, path in paths.items()}
        own = {"rope_theta": bases[kind], **own}
        rotaries[kind] = rotary(c, own, f"rotary_{kind}", fraction, interleaved, paths)
    used = [True] * len(kinds) if used is None else used
    return [rotaries[kind] if use else None for kind, use in zip(kinds, used)]


def rotary(c, parameters, name, fraction, interleaved, paths):
    """Returns the `Rotary` of a kind; `paths` are those of the parameters in config.json."""
    scaling = {key: value for key, value in parameters.items() if value is not None}
    base, trained = scaling.pop("rope_theta"), c("original_max_position_embeddings", None)
    if fraction is None:
        c.not_read("partial_rotary_factor", 1.0)
        fraction = scaling.pop("partial_rotary_factor", 1.0)
        if fraction != 1.0:
            raise ValueError(
                "config.json must have a `partial_rotary_factor` of 1.0, as its class in transformers turns "
                f"all features; received {short_repr(fraction)}.{c.way_out([paths['partial_rotary_factor']])}"
            )
    else:
        fraction = scaling.pop("partial_rotary_factor", c("partial_rotary_factor", fraction))
    kind = scaling.pop("rope_type", None) or scaling.pop("type", "default")
    scaling.pop("type", None)
    if kind == "su" or kind != "default" and "short_factor" in scaling:  # of the first files of Phi-3
        kind = "longrope"
    check_known(c, kind, scaling, paths)
    if kind == "default":
        return Rotary(base, fraction, interleaved=interleaved, name=name)
    if kind == "dynamic":  # transformers reads no other length for it
        scaling["original_max_position_embeddings"] = c("max_position_embeddings")
    if kind in ("yarn", "longrope", "llama3"):
        own = scaling.get("original_max_position_embeddings", c("max_position_embeddings"))
        scaling["original_max_position_embeddings"] = own if trained is None else trained
    if kind == "longrope":
        scaling.setdefault("factor", c("max_position_embeddings") / scaling["original_max_position_embeddings"])
    return Rotary(base, fraction, {"type": kind, **scaling}, interleaved, name=name)


def check_known(c, kind, scaling, paths):
    """Takes the keys that no type reads out of a scaling; refuses keys that other types read.

    Transformers reads neither. `attn_factor`, which vLLM reads, is one of the first.
    """
    for key in sorted(scaling.keys() - set().union(*OPTIONS.values())):
        c.pass_over({paths[key]: scaling.pop(key)})
    known = next((names for name, names in OPTIONS.items() if name == kind), scaling)
    others = sorted(scaling.keys() - set(known))
    if others:
        raise ValueError(
            f"config.json has rotary positions of type {short_repr(kind)}, which take no {short_repr(others)}."
            + c.way_out([paths[key] for key in others])
        )


def without_limit(options):
    """Returns a builder's options, without the most tokens where positions of type "dynamic" adapt to longer texts."""
    layers = options.get("position") or [getattr(options.get("attention"), "position", None)]
    scalings = [getattr(layer, "scaling", None) or {} for layer in layers] if isinstance(layers, list) else []
    return {**options, "max_length": None} if any(x["type"] == "dynamic" for x in scalings if x) else options
