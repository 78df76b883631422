"""The encoder alone: hidden states of a sequence of tokens."""

from keras_txf import checks
from keras_txf.layers import EncoderBlock
from keras_txf.models import stack
from keras_txf.models.checked_model import CheckedModel


def encoder(
    vocab_size,
    num_layers,
    dim,
    num_heads,
    packed=False,
    token_type_ids=False,
    return_hidden_states=False,
    return_attention_scores=False,
    name="encoder",
    **options,
):
    """Builds an encoder: token ids (B, T) -> hidden states (B, T, dim).

    Args:
        vocab_size: number of tokens.
        num_layers: number of blocks, called `encoder_0`, `encoder_1`, ...
        dim: model width.
        num_heads: number of query heads.
        packed: whether rows hold several sequences. The inputs are then a dict of `token_ids`,
            `segment_ids` and `positions`, int (B, T) each.
        token_type_ids: whether there is an input `token_type_ids`, int (B, T), beside `token_ids`, in a
            dict. Needs `token_types`; without the input every token is of type 0.
        return_hidden_states: adds outputs `hidden_states_0` (the embedding) to
            `hidden_states_{num_layers}` (the output).
        return_attention_scores: adds outputs `attention_scores_0`, ..., (B, N, T, T) each.
        name: name of the model.
        **options: those of `EncoderBlock` (a list or tuple holds one value for each block; one number for
            `stochastic_depth` is the last block's rate, which grows from block to block);
            `encoding`, `max_length`, `combine`, `position_dim`, `token_dim`, `token_types`, `pad_id`,
            `embeddings_initializer` of `PositionalEmbedding`, where `encoding` defaults to the paper's
            sinusoids, or to None where `position` has attention see to it; `scale_embedding` (default
            True, the paper's sqrt(dim)); `embedding_norm` (default False): a norm after the embedding,
            as BERT has it; `embedding_dim`: the width of the embedding, where a projection is to take it
            to `dim` (ELECTRA); `final_norm` (default: unless the norms are "post"); `dtype`.

    Returns:
        A functional `keras.Model`. With an output on request it returns a dict, whose `output` is
        the hidden states.

    Raises:
        ValueError: an unknown option, or two that do not go together.

    Example:

    >>> model = txf.models.encoder(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> model(np.array([[5, 6, 7, 0]])).shape
    (1, 4, 32)
    """
    inputs, result, *_ = encode(
        "encoder", vocab_size, num_layers, dim, num_heads, packed, token_type_ids, return_attention_scores, options
    )
    outputs = result.outputs("output", result.output, return_hidden_states, return_attention_scores)
    return stack.make_model(inputs, outputs, name, CheckedModel)


def encode(builder, vocab_size, num_layers, dim, num_heads, packed, token_type_ids, scores, options):
    """Symbolic inputs, stack.Result, the embedding and sorted options of an encoder."""
    checks.boolean("packed", packed)
    if checks.boolean("token_type_ids", token_type_ids) and options.get("token_types") is None:
        raise ValueError("`token_type_ids` needs `token_types`, the number of kinds of tokens; received None.")
    options = stack.sort_options(builder, EncoderBlock, options)
    inputs, ids, segment_ids, positions = stack.token_inputs(packed)
    types = None
    if token_type_ids:
        types = inputs["token_type_ids"] = stack.integer_input("token_type_ids")
    embedding = stack.make_embedding(vocab_size, dim, options, "embedding")
    x = stack.embed(embedding, ids, options, "encoder", positions, types)
    result = stack.run(
        EncoderBlock, x, num_layers, dim, num_heads, options, "encoder", scores,
        positions=positions, segment_ids=segment_ids,
    )
    return (inputs if len(inputs) > 1 else ids), result, embedding, options
