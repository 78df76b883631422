"""Metrics of tokens, of tagged entities and of answers to questions."""

import collections
import re
import string
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.serialization import register
from keras_txf.ops.chunked_logits import best_tokens, cross_entropies
from keras_txf.ops.logit_factors import logit_factors
from keras_txf.training.losses import flat_targets, token_cross_entropy, token_weights


class _TokenMean(keras.metrics.Mean):
    """A mean over all real tokens."""

    def __init__(self, pad_id, name, dtype):
        super().__init__(
            name=checks.optional(checks.string, "name", name), dtype=checks.optional(checks.dtype, "dtype", dtype)
        )
        self.pad_id = checks.optional(checks.int32, "pad_id", pad_id)

    def add_tokens(self, values, weights):
        """Adds values flat: Keras averages rows first, so a token of a short batch would weigh more."""
        super().update_state(ops.reshape(values, (-1,)), sample_weight=ops.reshape(weights, (-1,)))

    def get_config(self):
        return {**super().get_config(), "pad_id": self.pad_id}


@register
class TokenAccuracy(_TokenMean):
    """The share of real tokens whose largest logit is the logit of the target.

    Args:
        pad_id: target id that does not count; None counts every position.
        name, dtype: as for Keras' metrics.

    Call arguments:
        y_true: int (B, T), or any shape.
        y_pred: logits (B, T, V).
        sample_weight: weights (B,) of sequences or (B, T) of tokens.

    Raises:
        ValueError: targets that are not integers, logits or weights of another shape.

    Example:

    >>> accuracy = txf.training.TokenAccuracy()
    >>> float(accuracy(np.array([[1, 2, 0]]), np.eye(4)[None, [1, 3, 0]]))
    0.5
    """

    def __init__(self, pad_id: int | None = 0, name: str = "token_accuracy", dtype: Any = None):
        super().__init__(pad_id, name, dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        factors = logit_factors(y_pred)
        y_true, y_pred, weights = token_weights(self, y_true, y_pred, sample_weight)
        if factors is None:
            best = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        else:
            best = ops.reshape(best_tokens(factors), ops.shape(y_true))
        self.add_tokens(ops.cast(best == ops.cast(y_true, "int32"), "float32"), weights)


@register
class Perplexity(_TokenMean):
    """The exponential of the mean cross-entropy over all real tokens of an epoch.

    Args:
        pad_id: target id that does not count; None counts every position.
        name, dtype: as for Keras' metrics.

    Call arguments:
        y_true: int (B, T), or any shape.
        y_pred: logits (B, T, V).
        sample_weight: weights (B,) of sequences or (B, T) of tokens.

    Raises:
        ValueError: targets that are not integers, logits or weights of another shape.

    Example:

    >>> perplexity = txf.training.Perplexity()
    >>> round(float(perplexity(np.array([[1, 0]]), np.zeros((1, 2, 4)))), 4)
    4.0
    """

    def __init__(self, pad_id: int | None = 0, name: str = "perplexity", dtype: Any = None):
        super().__init__(pad_id, name, dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        factors = logit_factors(y_pred)
        y_true, y_pred, weights = token_weights(self, y_true, y_pred, sample_weight)
        if factors is None:
            losses = token_cross_entropy(y_true, y_pred, self.pad_id)
        else:
            losses = ops.reshape(cross_entropies(factors, flat_targets(y_true, self.pad_id)), ops.shape(y_true))
            losses = losses if self.pad_id is None else ops.where(y_true == self.pad_id, 0.0, losses)
        self.add_tokens(losses, weights)

    def result(self):
        return ops.exp(super().result())


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Returns the entities of a text's tags, in IOB1, IOB2 or BIOES, as the CoNLL script reads them.

    A tag is "O", outside of entities, or a prefix and a type, such as "B-PER". "B" and "S" begin an entity. "E" and
    "S" end an entity. An "I" or "E" continues an entity of its type; otherwise the tag begins an entity.

    Args:
        tags: list of W tags.

    Returns:
        A list of (type, first word, word after the last).

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
    result, entity_type, start, ended = [], None, 0, True
    for index, tag in enumerate([*tags, "O"]):
        prefix, _, next_type = tag.partition("-")
        if prefix not in tuple("OBIES") or (prefix != "O") != bool(next_type):
            raise ValueError(f"`{name}` must be 'O' or like 'B-PER', of B, I, E and S; received {short_repr(tag)}.")
        if prefix == "O" or ended or prefix in "BS" or next_type != entity_type:
            if entity_type is not None:
                result.append((entity_type, start, index))
            entity_type, start = next_type or None, index
        ended = prefix in "OES"
    return result


def entity_scores(
    true_tags: Sequence[Sequence[str]], predicted_tags: Sequence[Sequence[str]], by_type: bool = False
) -> dict[str, Any]:
    """Returns precision, recall and F1 of the entities of texts.

    An entity is right if a true entity has the same type, first word and last word.

    Args:
        true_tags, predicted_tags: lists of N lists of tags, see `entities`.
        by_type: whether to return the scores of each type instead of all types together (micro average).

    Returns:
        A dict of `precision`, `recall` and `f1`, from 0 to 1; 0 if there is no entity to divide by. With `by_type` a
        dict of each type, sorted, to such a dict with `support`, the number of true entities.

    Raises:
        ValueError: lists of other lengths, a tag of another form.

    Example:

    >>> true, predicted = [["B-PER", "O", "B-LOC"]], [["B-PER", "O", "O"]]
    >>> txf.training.entity_scores(true, predicted)
    {'precision': 1.0, 'recall': 0.5, 'f1': 0.6666666666666666}
    >>> txf.training.entity_scores(true, predicted, by_type=True)["LOC"]
    {'precision': 0.0, 'recall': 0.0, 'f1': 0.0, 'support': 1}
    """
    checks.boolean("by_type", by_type)
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
        {(entity_type, text, *span) for text, tags in enumerate(texts) for entity_type, *span in _entities(name, tags)}
        for name, texts in (("true_tags", true_tags), ("predicted_tags", predicted_tags))
    )
    if not by_type:
        return _scores_of_sets(true, predicted)
    scores = {}
    for entity_type in sorted({entity[0] for entity in true | predicted}):
        of_type = [{entity for entity in found if entity[0] == entity_type} for found in (true, predicted)]
        scores[entity_type] = {**_scores_of_sets(*of_type), "support": len(of_type[0])}
    return scores


def _scores_of_sets(true, predicted):
    right = len(true & predicted)
    return {
        "precision": right / max(len(predicted), 1),
        "recall": right / max(len(true), 1),
        "f1": 2 * right / max(len(true) + len(predicted), 1),
    }


PUNCTUATION = str.maketrans("", "", string.punctuation)


def answer_scores(true_answers: Sequence[Any], predicted_answers: Sequence[str]) -> dict[str, float]:
    """Returns exact match and F1 of answers to questions, as the script of SQuAD 2.0 computes them.

    Both compare words, without case, punctuation and the articles "a", "an" and "the". An answer is an exact match if
    it has the same words as a true answer. F1 counts the words that both answers have. The best of several true
    answers counts. The result is the mean over the questions.

    Args:
        true_answers: list of N items: the true answer of a question, or a list of its true answers. "" or an empty list
            means that the question has no answer.
        predicted_answers: list of N answers; "" means that the question has no answer.

    Returns:
        A dict of `exact_match` and `f1`, from 0 to 1 (SQuAD's script shows percent); 0 without questions.

    Raises:
        ValueError: lists of different lengths, or values that are not strings.

    Reference:
        [SQuAD](https://arxiv.org/abs/1606.05250), section 6.1; [SQuAD 2.0](https://arxiv.org/abs/1806.03822).

    Example:

    >>> txf.training.answer_scores([["the river Rhine", "Rhine"], "1871"], ["The Rhine.", "in 1871"])
    {'exact_match': 0.5, 'f1': 0.8333333333333333}
    """
    predicted = checks.strings("predicted_answers", predicted_answers)
    if not isinstance(true_answers, (list, tuple)):
        raise ValueError(f"`true_answers` must be a list of answers; received {short_repr(true_answers)}.")
    true = [checks.strings("true_answers", [one] if isinstance(one, str) else one) for one in true_answers]
    if len(true) != len(predicted):
        raise ValueError(
            f"`predicted_answers` must be as many as `true_answers`, {len(true)}; received {len(predicted)}."
        )
    exact, shared = 0.0, 0.0
    for answers, answer in zip(true, predicted):
        references = [words for words in map(answer_words, answers) if words] or [[]]
        words = answer_words(answer)
        exact += words in references
        shared += max(_f1(reference, words) for reference in references)
    count = max(len(true), 1)
    return {"exact_match": exact / count, "f1": shared / count}


def answer_words(text):
    """The words of an answer, without case, punctuation and articles."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(PUNCTUATION)).split()


def _f1(true, predicted):
    if not true or not predicted:
        return float(true == predicted)
    common = sum((collections.Counter(true) & collections.Counter(predicted)).values())
    return 2 * common / (len(true) + len(predicted))
