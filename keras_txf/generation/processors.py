import typing


class History(typing.NamedTuple):
    tokens: object
    prompt_length: object
    count: object
    stops: object


def check_processors(processors, vocab_size):
    return tuple(processors)
