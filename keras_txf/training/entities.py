"""Entities of tags, and their precision, recall and F1."""

from collections.abc import Sequence

from keras_txf.checks import short_repr


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Returns the entities of a text's tags, in IOB1, IOB2 or BIOES, as the CoNLL script reads them.

    A tag is "O", outside of entities, or a prefix and a kind, such as "B-PER". "B" and "S" begin an entity, "E" and "S"
    end one. An "I" or "E" continues an entity of its kind; else the tag begins an entity.

    Args:
        tags: list of W tags.

    Returns:
        A list of (kind, first word, word after the last).

    Raises:
        ValueError: a tag of another form.

    Example:

    >>> txf.training.entities(["B-PER", "I-PER", "O", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4)]
    """
    return _entities("tags", tags)


def _entities(name, tags):
    if not isinstance(tags, (list, tuple)) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError(f"`{name}` must be a list of strings; received {short_repr(tags)}.")
    found, kind, start, ended = [], None, 0, True
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, next_kind = tag.partition("-")
        if prefix not in tuple("OBIES") or (prefix != "O") != bool(next_kind):
            raise ValueError(f"`{name}` must be 'O' or like 'B-PER', of B, I, E and S; received {short_repr(tag)}.")
        if prefix == "O" or ended or prefix in "BS" or next_kind != kind:
            if kind is not None:
                found.append((kind, start, place))
            kind, start = next_kind or None, place
        ended = prefix in "OES"
    return found


def entity_scores(true_tags: Sequence[Sequence[str]], predicted_tags: Sequence[Sequence[str]]) -> dict[str, float]:
    """Returns precision, recall and F1 of the entities of texts, of all kinds together (micro average).

    An entity is right where kind, first and last word are those of a true one.

    Args:
        true_tags, predicted_tags: lists of N lists of tags, see `entities`.

    Returns:
        A dict of `precision`, `recall` and `f1`, from 0 to 1; 0 where there is no entity to divide by.

    Raises:
        ValueError: lists of other lengths, a tag of another form.

    Example:

    >>> txf.training.entity_scores([["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]])
    {'precision': 1.0, 'recall': 0.5, 'f1': 0.6666666666666666}
    """
    for name, texts in (("true_tags", true_tags), ("predicted_tags", predicted_tags)):
        if not isinstance(texts, (list, tuple)) or not all(isinstance(tags, (list, tuple)) for tags in texts):
            raise ValueError(f"`{name}` must be a list of lists of tags; received {short_repr(texts)}.")
    lengths = [list(map(len, texts)) for texts in (true_tags, predicted_tags)]
    if lengths[0] != lengths[1]:
        raise ValueError(
            f"`predicted_tags` must have the lengths of `true_tags`, {short_repr(lengths[0])}; received "
            f"{short_repr(lengths[1])}."
        )
    true, predicted = (
        {(text, *entity) for text, tags in enumerate(texts) for entity in _entities(name, tags)}
        for name, texts in (("true_tags", true_tags), ("predicted_tags", predicted_tags))
    )
    right = len(true & predicted)
    return {
        "precision": right / max(len(predicted), 1),
        "recall": right / max(len(true), 1),
        "f1": 2 * right / max(len(true) + len(predicted), 1),
    }
