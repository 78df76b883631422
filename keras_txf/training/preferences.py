"""Learning from preferences: a model of answers' log-probabilities, the loss over pairs of answers, and its accuracy.

Legend: B pairs, T length in tokens, V vocabulary. The first answer of a pair is the chosen one, the second the rejected
one.
"""

from typing import Any, Literal

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend.functional_graph import graph_of, is_functional
from keras_txf.checks import short_repr
from keras_txf.layers.serialization import register
from keras_txf.layers.token_input import id_inputs, inputs_by_name, token_input
from keras_txf.ops.tensors import nan_unless
from keras_txf.training.losses import token_cross_entropy

KINDS = ("dpo", "ipo", "orpo")


def preference_model(policy: keras.Model, name: str = "preference_model") -> keras.Model:
    """Makes a model of the log-probabilities that a generator gives to the answers of pairs.

    `fit` of this model trains the generator, whose layers it shares. The reference of a preference loss is the
    generator before the training: `predict` its log-probabilities once, and pass them to `fit` as targets. No second
    copy of the weights is needed, with LoRA or without.

    Args:
        policy: a functional model from token ids (R, T) to logits (R, T, V), alone or in a dict as "logits", such as a
            `decoder_generator`.
        name: name of the model.

    Returns:
        A functional model. Its inputs are a dict of `token_ids`, int (B, 2, T), and `answer_mask`, bool (B, 2, T), True
        at the tokens of the answer, as `txf.text.preferences` makes them. Padding stands on the right. Its output is
        float32 (B, 2, 2): for each answer the sum of the log-probabilities of its tokens, and the number of tokens.
        Both are NaN for an answer without a token after the first of its row: nothing predicts the first token.

    Raises:
        ValueError: a model with other inputs, or with outputs that are not logits of its tokens.

    Example:

    >>> policy = txf.models.decoder_generator(20, num_layers=1, dim=16, num_heads=2)
    >>> pairs = txf.training.preference_model(policy)
    >>> data = {"token_ids": np.array([[[3, 4, 5], [3, 6, 0]]]),
    ...         "answer_mask": np.array([[[False, True, True], [False, True, False]]])}
    >>> reference = pairs.predict(data, verbose=0)
    >>> reference.shape, reference[..., 1].tolist()
    ((1, 2, 2), [[2.0, 1.0]])
    >>> pairs.compile("adam", txf.training.PreferenceLoss())
    >>> history = pairs.fit(data, reference, verbose=0)
    """
    checks.string("name", name)
    if not is_functional(policy):
        raise checks.bad_argument("policy", "be a functional model, such as a decoder_generator", policy)
    graph = graph_of(policy)
    inputs = [*inputs_by_name(graph)]
    if len(inputs) != 1 or inputs != id_inputs(graph):
        received = {key: tensor.dtype for key, tensor in inputs_by_name(graph).items()}
        raise ValueError(f"`policy` must read token ids alone, integers; received a model that reads {received}.")
    ids = keras.Input((2, None), dtype="int32", name="token_ids")
    answer_mask = keras.Input((2, None), dtype="bool", name="answer_mask")
    rows = PairsToRows(name="rows")(ids)
    logits = policy({inputs[0]: rows} if isinstance(graph.input, dict) else rows)
    logits = logits.get("logits") if isinstance(logits, dict) else logits
    if len(getattr(logits, "shape", ())) != 3:
        raise ValueError(
            "`policy` must return logits (rows, length, vocabulary), alone or in a dict as 'logits'; received "
            f"{short_repr(graph.output)}."
        )
    tokens = token_input(graph, inputs[0]).vocab_size
    if logits.shape[-1] < tokens:
        raise ValueError(
            f"`policy` must return logits of the {tokens} tokens that it embeds; received outputs of width "
            f"{logits.shape[-1]}."
        )
    outputs = AnswerLogProbs(name="answer_log_probs", dtype="float32")(logits, ids, answer_mask)
    return keras.Model({"token_ids": ids, "answer_mask": answer_mask}, outputs, name=name)


@register
class PairsToRows(keras.layers.Layer):
    """The rows of pairs: (B, 2, T) -> (2 B, T)."""

    def call(self, inputs):
        return ops.reshape(inputs, (-1, ops.shape(inputs)[-1]))

    def compute_output_spec(self, inputs):
        pairs, _, length = inputs.shape
        return keras.KerasTensor((None if pairs is None else 2 * pairs, length), inputs.dtype)


@register
class AnswerLogProbs(keras.layers.Layer):
    """Sums and counts of log-probabilities of answers: logits (2 B, T, V), ids and mask (B, 2, T) -> (B, 2, 2)."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, logits, token_ids, answer_mask):
        if any(map(_differ, answer_mask.shape, token_ids.shape)):
            raise ValueError(
                f"`answer_mask` must have the shape of `token_ids`, {tuple(token_ids.shape)}; received "
                f"{tuple(answer_mask.shape)}."
            )
        targets, counts = (ops.reshape(x, (-1, ops.shape(x)[-1]))[:, 1:] for x in (token_ids, answer_mask))
        losses = token_cross_entropy(targets, logits[:, :-1], pad_id=None)
        log_probs = ops.where(counts, -losses, 0.0)
        number = ops.sum(ops.cast(counts, "float32"), axis=1)
        sums = ops.stack([ops.sum(log_probs, axis=1), number], axis=-1) + nan_unless(number > 0)[:, None]
        return ops.reshape(sums, (-1, 2, 2))

    def compute_mask(self, inputs, previous_mask=None):
        return None  # the outputs have no positions

    def compute_output_spec(self, logits, token_ids, answer_mask):
        return keras.KerasTensor((token_ids.shape[0], 2, 2), "float32")


@register
class PreferenceLoss(keras.losses.Loss):
    """The loss of pairs of answers, of which one is preferred: DPO, IPO or ORPO.

    For models of `preference_model`. With the log-probabilities p of the policy and r of the reference, summed over the
    tokens of an answer, the loss of a pair is

    - "dpo": -log sigmoid(β · m), with the margin m = (p - r of the chosen answer) - (p - r of the rejected answer);
    - "ipo": (m - 1 / (2 β))², with means over the tokens of each answer instead of sums;
    - "orpo": -p of the chosen answer - β · log sigmoid(o of the chosen answer - o of the rejected answer), with the log
      odds o = p - log(1 - exp(p)), means over the tokens, and no reference. The first term is fine-tuning on the chosen
      answer.

    Args:
        kind: "dpo", "ipo" or "orpo".
        beta: β: how close the policy stays to the reference in DPO and IPO; the weight of the odds in ORPO.
        name: name of the loss.

    Call arguments:
        y_true: the reference's log-probabilities: its `predict`, (B, 2, 2), or sums (B, 2). Zeros are DPO without a
            reference. ORPO reads only the shape.
        y_pred: the output of `preference_model`, (B, 2, 2).
        sample_weight: weights (B,) of the pairs.

    Returns:
        A scalar: the mean over the pairs.

    Raises:
        ValueError: another kind, a `beta` that is not positive, tensors of other shapes.

    Reference:
        [DPO](https://arxiv.org/abs/2305.18290), equation 7; [IPO](https://arxiv.org/abs/2310.12036), equation 17;
        [ORPO](https://arxiv.org/abs/2403.07691), equations 6 and 7.

    Example:

    >>> loss, zeros = txf.training.PreferenceLoss(), np.zeros((1, 2, 2))
    >>> round(float(loss(zeros, zeros)), 4)  # ln 2: no preference yet
    0.6931
    """

    def __init__(self, kind: Literal["dpo", "ipo", "orpo"] = "dpo", beta: float = 0.1, name: str = "preference_loss"):
        super().__init__(name=checks.optional(checks.string, "name", name), dtype="float32")
        self.kind = checks.one_of("kind", kind, KINDS)
        self.beta = checks.positive_number("beta", beta)

    def __call__(self, y_true, y_pred, sample_weight=None):
        return super().__call__(*_checked(y_true, y_pred, sample_weight))

    def call(self, y_true, y_pred):
        sums, counts, reference = _read(y_true, y_pred)
        if self.kind == "dpo":
            return -ops.log_sigmoid(self.beta * _margin(sums - reference))
        if self.kind == "ipo":
            return (_margin((sums - reference) / counts) - 1 / (2 * self.beta)) ** 2
        means = ops.minimum(sums / counts, -1e-6)  # the odds of a probability of 1 are infinite
        log_odds = means - ops.log(-ops.expm1(means))
        return -means[:, 0] - self.beta * ops.log_sigmoid(_margin(log_odds))

    def get_config(self):
        return {"kind": self.kind, "beta": self.beta, "name": self.name}


@register
class PreferenceAccuracy(keras.metrics.Mean):
    """The share of pairs in which the policy prefers the chosen answer more than the reference does.

    Args:
        name, dtype: as for Keras' metrics.

    Call arguments:
        y_true, y_pred, sample_weight: see `PreferenceLoss`. With zeros as `y_true` the metric compares the policy's own
            log-probabilities.

    Raises:
        ValueError: tensors of other shapes.

    Example:

    >>> accuracy = txf.training.PreferenceAccuracy()
    >>> float(accuracy(np.zeros((2, 2)), np.array([[[-1, 2], [-3, 2]], [[-4, 2], [-3, 2]]])))
    0.5
    """

    def __init__(self, name: str = "preference_accuracy", dtype: Any = None):
        super().__init__(checks.optional(checks.string, "name", name), dtype)

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred, sample_weight = _checked(y_true, y_pred, sample_weight)
        sums, _, reference = _read(y_true, y_pred)
        margin = _margin(sums - reference)
        preferred = ops.cast(margin > 0, "float32") + nan_unless(ops.logical_not(ops.isnan(margin)))
        return super().update_state(preferred, sample_weight)


def _checked(y_true, y_pred, sample_weight):
    """The arguments of a loss or metric of pairs as tensors; raises ValueError for tensors of other shapes."""
    y_true, y_pred = (checks.number_tensor(name, x) for name, x in (("y_true", y_true), ("y_pred", y_pred)))
    if tuple(y_pred.shape[1:]) != (2, 2) or tuple(y_true.shape[1:]) not in ((2,), (2, 2)):
        raise ValueError(
            "`y_pred` must be the output (B, 2, 2) of `preference_model`, and `y_true` the reference's output or its "
            f"sums (B, 2); received {tuple(y_pred.shape)} and {tuple(y_true.shape)}."
        )
    pairs = y_pred.shape[0]
    if _differ(y_true.shape[0], pairs):
        raise ValueError(f"`y_true` must have the {pairs} pairs of `y_pred`; received {y_true.shape[0]} pairs.")
    if sample_weight is not None:
        sample_weight = checks.number_tensor("sample_weight", sample_weight)
        if len(sample_weight.shape) != 1 or _differ(sample_weight.shape[0], pairs):
            raise ValueError(
                f"`sample_weight` must be a weight for each pair, (B,); received {tuple(sample_weight.shape)}."
            )
    return y_true, y_pred, sample_weight


def _differ(size, other):
    """Whether two sizes are known and differ."""
    return None not in (size, other) and size != other


def _read(y_true, y_pred):
    """The sums of log-probabilities, the numbers of tokens, and the reference's sums: float32 (B, 2) each."""
    y_true, y_pred = ops.cast(y_true, "float32"), ops.cast(y_pred, "float32")
    reference = y_true[..., 0] if len(y_true.shape) == 3 else y_true
    return y_pred[..., 0], ops.maximum(y_pred[..., 1], 1.0), reference


def _margin(values):
    """Chosen minus rejected: (B, 2) -> (B,)."""
    return values[:, 0] - values[:, 1]
