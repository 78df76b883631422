"""Padding of texts for a decoder's hidden states: many decoders have no token of padding, or one that ends texts."""

from keras_txf.checkpoints.building import family_values, find_family
from keras_txf.checkpoints.config import Config
from keras_txf.checks import short_repr
from keras_txf.reading import file_of, read_json


def padding_of_decoder(folder, ids, size):
    """Returns the option `pad_id` of `load` for a folder, empty where the model's own padding is in no text.

    Transformers gets a mask from its tokenizer; our models hide a token, which no text may have then.

    Args:
        folder: folder of a checkpoint.
        ids: ids of a text, with the tokens that the tokenizer puts before and after it.
        size: number of the tokenizer's tokens.

    Raises:
        ValueError: the vocabulary of the model has no token that the tokenizer lacks.
    """
    values = family_values(read_json(file_of(folder, "config.json")))
    if "causal_lm" not in find_family(values).tasks:
        return {}
    config = Config(values)
    pad_id = config.pad_id_of_decoder(None)
    if pad_id is not None and pad_id not in ids:
        return {}
    last = config("vocab_size") - 1
    if last < size:
        raise ValueError(
            f"`pad_id` must be a token that no text has, such as the unknown token: config.json has "
            f"pad_token_id={short_repr(values.get('pad_token_id'))}, and the tokenizer has all {size} tokens."
        )
    return {"pad_id": last}
