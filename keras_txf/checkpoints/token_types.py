"""Whether the model of a checkpoint tells two texts apart by token types."""

from keras_txf.checkpoints.building import family_values, find_family
from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.loading import without
from keras_txf.reading import file_of, read_json


def has_token_types(folder, ignore=()):
    """Whether the model of a folder has a table of two token types or more; `ignore` as for `load`."""
    values = family_values(without(read_json(file_of(folder, "config.json")), ignore))
    return (find_family(values).options(Config(values)).get("token_types") or 0) > 1
