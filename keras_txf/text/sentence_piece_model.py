"""What a SentencePiece model file says of its pieces; TensorFlow's kernels do the rest.

The file is a protocol buffer, `sentencepiece_model.proto` of https://github.com/google/sentencepiece.
"""

import typing

from keras_txf.checks import short_repr

UNKNOWN, CONTROL, BYTE = 2, 3, 6  # types of pieces
PIECES, NORMALIZER = 1, 3  # fields of the model

# A later field overrides an earlier one. Appended to a model, these set `normalizer_spec.add_dummy_prefix`; the last one
# sets `remove_extra_whitespaces` to False as well.
WITH_PREFIX, WITHOUT_PREFIX, AS_IT_IS = b"\x1a\x02\x18\x01", b"\x1a\x02\x18\x00", b"\x1a\x04\x18\x00\x20\x00"


class Model(typing.NamedTuple):
    pieces: list  # of str
    unk_token: str
    control: list  # of str, what no text becomes: `</s>` and the like
    adds_prefix: bool  # whether text gets a space before its first word
    removes_spaces: bool  # whether text loses spaces at its ends, and all but one between words


def read_model(content):
    """The Model of the bytes of a file; ValueError where it is none."""
    pieces, normalizer = [], {}
    try:
        for number, value in fields(content):
            if number == PIECES:
                piece = dict(fields(value))
                pieces.append((bytes(piece[1]).decode(), piece.get(3)))
            elif number == NORMALIZER:
                normalizer.update(fields(value))
    except (IndexError, KeyError, TypeError, ValueError):
        pieces = []
    unknown = [piece for piece, kind in pieces if kind == UNKNOWN]
    if len(unknown) != 1:
        raise ValueError(f"`model` must be a SentencePiece model; received {len(content)} bytes that are none: {short_repr(content[:20])}...")
    control = [piece for piece, kind in pieces if kind == CONTROL]
    return Model([piece for piece, _ in pieces], unknown[0], control, bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1)))


def fields(message):
    """The numbers and values of a message's fields: an int, or bytes of text, of a message or of a float."""
    place = 0
    while place < len(message):
        key, place = variable_integer(message, place)
        if key & 7 == 0:
            value, place = variable_integer(message, place)
        else:
            size, place = (SIZES[key & 7], place) if key & 7 in SIZES else variable_integer(message, place)
            value, place = message[place : place + size], place + size
            if key & 7 not in (*SIZES, 2) or place > len(message):
                raise ValueError
        yield key >> 3, value


SIZES = {1: 8, 5: 4}  # of the kinds of fields that have always the same


def variable_integer(message, place):
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
