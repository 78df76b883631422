"""Which options of a layer need each other, and which do not go together."""

from typing import NamedTuple

from keras_txf.checks.values import short_repr

SET = "set"  # neither None nor False nor 0
UNSET = "not set"


class Rule(NamedTuple):
    """If an option has one of some values, another option must have one of others: each SET, UNSET, or a tuple."""

    option: str
    values: object
    other: str
    needed: object
    reason: str


RULES = {
    "attention": [Rule("output_projection", (False,), "output_bias", (None,), "no projection would have the bias")],
    "MixtureOfExperts": [
        Rule("shared_gate", SET, "num_shared_experts", SET, "the gate weights the shared experts"),
        Rule("shared_intermediate_dim", SET, "num_shared_experts", SET, "it is the width of the shared experts"),
        Rule("topk_group", SET, "n_group", SET, "it counts groups"),
    ],
    "PatchEmbedding": [
        Rule("distillation_token", SET, "class_token", SET, "it follows the class token"),
        Rule("position_encoding", ("learned",), "image_size", SET, "its patches have positions"),
        Rule("interpolate_positions", SET, "position_encoding", ("learned",), "only learned positions have a grid"),
    ],
    "PositionalEmbedding": [
        Rule("position_encoding", ("learned", "fixed"), "max_length", SET, "it is the number of positions"),
        Rule("vocab_size", UNSET, "position_encoding", SET, "the layer returns positions only"),
        Rule("vocab_size", UNSET, "combine", ("add",), "the layer returns positions only"),
        Rule("vocab_size", UNSET, "token_dim", UNSET, "there are no tokens"),
        Rule("vocab_size", UNSET, "token_types", UNSET, "there are no tokens"),
        Rule("vocab_size", UNSET, "scale", UNSET, "there are no tokens"),
        Rule("combine", ("concat",), "position_encoding", SET, "there is nothing else to concatenate"),
        Rule("combine", ("concat",), "token_dim", UNSET, "the tokens have `dim` - `position_dim` features"),
        Rule("position_dim", SET, "combine", ("concat",), "under 'add' the positions have `dim` features"),
    ],
}


def combinations(layer, rules):
    """Raises ValueError if two options of a layer break one of the `RULES` of a name."""
    for option, values, other, needed, reason in RULES[rules]:
        value, received = getattr(layer, option), getattr(layer, other)
        if _is(value, values) and not _is(received, needed):
            expected = {SET: f"needs `{other}`", UNSET: f"does not go with `{other}`"}
            words = expected.get(needed) if isinstance(needed, str) else f"needs {other}={short_repr(needed[0])}"
            raise ValueError(
                f"{option}={short_repr(value)} {words}: {reason}; received {other}={short_repr(received)}."
            )


def _is(value, expected):
    if isinstance(expected, str):
        return bool(value) == (expected == SET)
    return value in expected
