"""The two functional models that generation runs: one reads a prompt, one reads one token more."""

import keras

from keras_txf import checks
from keras_txf.backend.functional_graph import is_functional
from keras_txf.checks import short_repr
from keras_txf.generation.decoding.graph_decoder import GraphDecoder
from keras_txf.layers.caches import Cache
from keras_txf.models.checked_model import CheckedModel
from keras_txf.models.decoding_halves import Prefill, Step


def prefill_model(model: keras.Model, width: int = 1, return_hidden_states: bool = False) -> keras.Model:
    """Builds the model that reads prompts: it shares all weights, and returns the cache that `step_model` takes.

    The sequences of a batch lie side by side in L columns: prompts of P, padded on the left, and what will follow.

    Args:
        model: from `decoder_generator`, `encoder_decoder`, `decoder` or `recurrent_encoder_decoder`, or what
            `generative` takes. Of a model from `forecaster` the tokens are the vectors of the series, float (B, P, F),
            and the logits are its outputs.
        width: that of the `step_model`.
        return_hidden_states: also return what the logits are made of.

    Returns:
        A functional `keras.Model`. Inputs, by name: those of the model, of which the new tokens, `token_ids` or
        `target_ids`, are int (B, P); and `attention_mask`, bool (B, L), True at the real tokens of the prompts.
        Outputs: `logits` (B, V) of the next token, and for each attention `decoder_0_key`, `decoder_0_value`, ...,
        (B, key-value heads, C, head dim), where C is L, or no more than the window times the width; the states of a
        recurrence, such as `decoder_states`, (B, W, ...). With a context also `decoder_0_context_key`, ...; on request
        `hidden_states` (B, P, D).

    Raises:
        ValueError: a model that cannot decode, see `generative`, or one built with packed=True.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> prefill, step = txf.models.prefill_model(model), txf.models.step_model(model)
    >>> mask = np.array([[True, True, True, False, False]])
    >>> known = prefill({"token_ids": np.array([[5, 6, 7]]), "attention_mask": mask})
    >>> known["decoder_1_key"].shape
    (1, 4, 5, 8)
    """
    return _functional(model, width, return_hidden_states, "prefill")


def step_model(model: keras.Model, width: int = 1, return_hidden_states: bool = False) -> keras.Model:
    """Builds the model that reads one token more: it shares all weights, and can be exported.

    With a `width` of W above one it reads W tokens of each sequence at once, each of which has its own
    mask over the columns: the beams of a search, or candidates to choose from. They lie in W columns, and
    share a position in the sequence. What they have in common, such as the prompt, is kept once.

    Args:
        model: see `prefill_model`.
        width: how many tokens of each sequence a step reads.
        return_hidden_states: also return what the logits are made of.

    Returns:
        A functional `keras.Model`. Inputs, by name: `token_ids` or `target_ids`, int (B, W); `attention_mask`,
        bool (B, L), True at the real tokens up to this one, or (B, W, L) for a width above one; `cache_position`,
        int (1,), its column, or the first of W; what `prefill_model` or the last step returned; for a width above one
        `prompt_length`, int (1,), the number P of columns before the first step's. P and L - P must then be multiples
        of W.
        Outputs: `logits` (B, V), or (B, W, V), and the cache, with the new columns; on request
        `hidden_states` (B, W, D).

    Raises:
        ValueError: see `prefill_model`.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> step = txf.models.step_model(model)
    >>> sorted(tensor.name for tensor in step.inputs)[:3]
    ['attention_mask', 'cache_position', 'decoder_0_key']
    """
    return _functional(model, width, return_hidden_states, "step")


def decoding_models(model, width=1, return_hidden_states=False, kind=Cache):
    """What the loops of `generate` run."""
    check_decodable(model)
    checks.positive_int32("width", width)
    checks.boolean("return_hidden_states", return_hidden_states)
    return GraphDecoder(model, width, return_hidden_states, kind)


def call_sequential(model, inputs):
    """Calls a `keras.Sequential` model that was never called, for it has no graph before: on what it was built for.

    Args:
        inputs: what to call a model on that is not built, a symbol, or None.
    """
    if isinstance(model, keras.Sequential) and not hasattr(model, "input"):
        if model.built:
            [built_for] = model.inputs
            inputs = keras.Input(batch_shape=built_for.shape, dtype=built_for.dtype, name=built_for.name)
        if inputs is not None:
            model(inputs)


def check_decodable(model, name="model"):
    """Raises ValueError if a model has no graph, or was built for packed sequences."""
    if not is_functional(model):
        received = (
            short_repr(model) if not isinstance(model, keras.Model) else f"{type(model).__name__} without a graph"
        )
        raise ValueError(
            f"`{name}` must be a functional keras.Model, such as those of `decoder_generator` and `encoder_decoder`; "
            f"received {received}."
        )
    refuse_packed(model)


def _functional(model, width, return_hidden_states, kind):
    """One half of decoding as a functional model."""
    check_decodable(model)
    checks.positive_int32("width", width)
    checks.boolean("return_hidden_states", return_hidden_states)
    half = {"prefill": Prefill, "step": Step}[kind](model, width, return_hidden_states, name=kind)
    inputs = half.inputs()
    return CheckedModel(inputs, half(inputs), name=f"{model.name}_{kind}")


def refuse_packed(model):
    if any("segment_ids" in tensor.name for tensor in model.inputs):
        raise ValueError(
            "`generate` and `prefill_model` need a `model` built with packed=False; its weights are the same."
        )
