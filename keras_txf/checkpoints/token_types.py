"""Whether the model of a checkpoint tells two texts apart by token types."""

from keras_txf.checkpoints.building import family_values, find_family
from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.loading import without


def has_token_types(values, ignore=()):
    """Whether the model of a config.json has a table of two token types or more; `ignore` as for `load`."""
    values = family_values(without(values, ignore))
    return (find_family(values).options(Config(values)).get("token_types") or 0) > 1
