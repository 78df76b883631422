"""The error of an argument, in the words of the house."""

from keras_txf.checks import short_repr


def bad_argument(name, must, received, place=None):
    """Returns the ValueError "`name` must ...; received ...", with the place of the value in a list of values."""
    where = "" if place is None else f" at place {place}"
    return ValueError(f"`{name}` must {must}; received {short_repr(received)}{where}.")
