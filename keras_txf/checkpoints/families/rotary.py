"""Reads rotary positions and windows from a config.json, block by block."""

from keras_txf.checks import short_repr
from keras_txf.layers import Rotary
from keras_txf.ops.rotary import ROTARY_SCALINGS, scaling_options

OF_IMAGES = ("mrope_section", "mrope_interleaved")  # without effect on texts, whose three coordinates are equal
# Type of rotary positions -> the keys that it reads.
OPTIONS = {"default": (), **{kind: scaling_options(kind) for kind in ROTARY_SCALINGS}}


def windows(kinds, window):
    """Returns the window of each block: None for the kind "full_attention"."""
    unknown = sorted(map(str, set(kinds) - {"full_attention", "sliding_attention"}))
    if unknown:
        raise ValueError(
            f"config.json must have `layer_types` of 'full_attention' and 'sliding_attention'; received {unknown}."
        )
    return [window if kind == "sliding_attention" else None for kind in kinds]


def positions(c, kinds, bases, used=None, scaled=("full_attention",), fraction=None, interleaved=False):
    """Returns a `Rotary` for each block, one for all blocks of a kind.

    Args:
        c: the config, with `rope_theta` and `rope_scaling` (old), or `rope_parameters` (new), by kinds or not.
        kinds: list, the kind of each block.
        bases: dict of kinds -> the base, if `rope_parameters` has none.
        used: list, whether each block has positions at all; default: all blocks.
        scaled: the kinds that `rope_scaling` applies to.
        fraction: default share of rotated features; None: all features are rotated, and the family's class in
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
        if old and kind in scaled:  # transformers then reads `rope_parameters` only if they have kinds
            own = {**own, **old} if has_kinds else old
            paths.update(dict.fromkeys(old, "rope_scaling."))
        paths = {key: f"{path}{key}" for key, path in paths.items()}
        own = {"rope_theta": bases[kind], **own}
        rotaries[kind] = rotary(c, own, f"rotary_{kind}", fraction, interleaved, paths)
    used = [True] * len(kinds) if used is None else used
    return [rotaries[kind] if use else None for kind, use in zip(kinds, used)]


def rotary(c, parameters, name, fraction, interleaved, paths):
    """Returns the `Rotary` of a kind; `paths` holds the paths of the parameters in config.json."""
    scaling = {key: value for key, value in parameters.items() if value is not None and key not in OF_IMAGES}
    base, trained = scaling.pop("rope_theta"), c("original_max_position_embeddings", None)
    if fraction is None:
        c.not_read("partial_rotary_factor", 1.0)
        fraction = scaling.pop("partial_rotary_factor", 1.0)
        if fraction != 1.0:
            raise ValueError(
                "config.json must have a `partial_rotary_factor` of 1.0, as its class in transformers turns "
                f"all features; received {short_repr(fraction)}.{c.ignore_hint([paths['partial_rotary_factor']])}"
            )
    else:
        fraction = scaling.pop("partial_rotary_factor", c("partial_rotary_factor", fraction))
    kind = scaling.pop("rope_type", None) or scaling.pop("type", "default")
    scaling.pop("type", None)
    if kind == "su" or kind != "default" and "short_factor" in scaling:  # the first files of Phi-3
        kind = "longrope"
    check_known(c, kind, scaling, paths)
    if kind == "default":
        return Rotary(base, fraction, interleaved=interleaved, name=name)
    if kind == "dynamic":  # transformers reads no other length for it
        scaling["original_max_position_embeddings"] = c("max_position_embeddings")
    if kind in ("yarn", "longrope", "llama3"):
        own = scaling.get("original_max_position_embeddings", c("max_position_embeddings"))
        scaling["original_max_position_embeddings"] = own if trained is None else trained
    if (
        kind == "longrope" or kind == "yarn" and "factor" in parameters
    ):  # also for null, for which transformers divides too
        scaling.setdefault("factor", c("max_position_embeddings") / scaling["original_max_position_embeddings"])
    return Rotary(base, fraction, {"type": kind, **scaling}, interleaved, name=name)


def check_known(c, kind, scaling, paths):
    """Removes the keys that no type reads from a scaling; raises ValueError for keys that only other types read.

    Transformers reads neither. `attn_factor`, which vLLM reads, is a key that no type reads.
    """
    for key in sorted(scaling.keys() - set().union(*OPTIONS.values())):
        c.note_unread({paths[key]: scaling.pop(key)})
    known = next((names for name, names in OPTIONS.items() if name == kind), scaling)
    others = sorted(scaling.keys() - set(known))
    if others:
        raise ValueError(
            f"config.json has rotary positions of type {short_repr(kind)}, which take no {short_repr(others)}."
            + c.ignore_hint([paths[key] for key in others])
        )


def with_lengths(options):
    """Returns a builder's options with the `max_length` that the scaling of its `Rotary` layers reaches.

    Positions of type "dynamic" adapt to any length. Positions of type "yarn" reach `factor` times the trained length,
    but published files often leave `max_position_embeddings` at the trained length.
    """
    attention, given = options.get("attention"), options.get("position")
    layers = given if isinstance(given, list) else [getattr(attention, "position", None)]
    layers = [layer for layer in layers if isinstance(layer, Rotary)]
    width = getattr(attention, "qk_rope_head_dim", None) or options.get("head_dim")
    for layer in layers:
        check_fraction(layer.fraction, width or options["dim"] // options["num_heads"])
    scalings = [layer.scaling for layer in layers if layer.scaling]
    if any(scaling["type"] == "dynamic" for scaling in scalings):
        return {**options, "max_length": None}
    yarns = [scaling for scaling in scalings if scaling["type"] == "yarn"]
    reached = [int(scaling["factor"] * scaling["original_max_position_embeddings"]) for scaling in yarns]
    return {**options, "max_length": max(options["max_length"], *reached)} if reached else options


def check_fraction(fraction, head_dim):
    """Raises ValueError if transformers, which rounds down, would rotate other features than `Rotary`."""
    if int(head_dim * fraction) != round(head_dim * fraction):
        raise ValueError(
            "config.json must have a `partial_rotary_factor` (`rotary_pct`) that times the width of a head is a whole "
            f"number; received {short_repr(fraction)} and heads of width {head_dim}."
        )
