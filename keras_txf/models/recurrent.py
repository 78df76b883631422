"""recurrent_encoder_decoder: the predecessor of the Transformer, with the same inputs, outputs and `generate`."""

from typing import Any

import keras

from keras_txf import checks
from keras_txf.layers import PositionalEmbedding, RecurrentDecoder
from keras_txf.layers.projections import Dropout
from keras_txf.layers.recurrent import LAYERS
from keras_txf.layers.recurrent_attention import OrthogonalInFloat32
from keras_txf.models import embeddings, stack
from keras_txf.models.head_layers import Logits
from keras_txf.models.seq2seq_model import Seq2Seq


def recurrent_encoder_decoder(
    source_vocab_size: int,
    target_vocab_size: int,
    num_layers: int,
    dim: int,
    cell: str = "lstm",
    attention: str | None = None,
    bidirectional: bool = False,
    share_embeddings: bool | None = None,
    tie_embeddings: bool = True,
    dropout: float = 0.1,
    pad_id: int | None = 0,
    return_attention_scores: bool = False,
    dtype: Any = None,
    name: str | None = None,
) -> Seq2Seq:
    """Builds a recurrent encoder-decoder: source and target ids -> logits (B, T, V), with `generate`.

    Use it as a baseline for `encoder_decoder`, with the same inputs, losses, metrics, teacher forcing, pipelines and
    options of `generate`. Encoder and decoder are LSTMs or GRUs of Keras. The last states of the encoder are the first
    states of the decoder.

    Inputs are a dict of `source_ids`, int (B, S), and `target_ids`, int (B, T), the answer that starts with its start
    token.

    Args:
        source_vocab_size: number of source tokens.
        target_vocab_size: number V of target tokens.
        num_layers: number of recurrent layers of the encoder, and of the decoder.
        dim: width of embeddings, layers and states.
        cell: "lstm" or "gru".
        attention: the decoder's attention to the source, see `RecurrentDecoder`: None (Sutskever et al. 2014),
            "additive" (Bahdanau et al. 2015) or "multiplicative" (Luong et al. 2015). On TensorFlow XLA cannot compile
            the gradient of "additive", so do not pass `compile(jit_compile=True)`; Keras' default works.
        bidirectional: whether the encoder also reads from the end; each direction is then dim / 2 wide.
        share_embeddings: whether source and target have one embedding. Default: True if both vocabularies have the same
            size.
        tie_embeddings: whether the logits use the transposed embedding, or a separate layer.
        dropout: dropout rate of the inputs of each layer, and of the input of the logits.
        pad_id: the padding token, at any position.
        return_attention_scores: adds an output `decoder_cross_attention_scores_0`, (B, 1, T, S). Needs `attention`.
        dtype: dtype or policy of all layers.
        name: name of the model; default: the name of the function, with a number from the second model on.

    Returns:
        A functional `keras.Model` with `generate`. With an output on request it returns a dict with `logits`.

    Raises:
        ValueError: an unknown option, or two options that do not go together.

    Reference:
        [Sequence to Sequence Learning with Neural Networks](https://arxiv.org/abs/1409.3215);
        [Neural Machine Translation by Jointly Learning to Align and Translate](https://arxiv.org/abs/1409.0473);
        [Effective Approaches to Attention-based Neural Machine Translation](https://arxiv.org/abs/1508.04025).

    Example:

    >>> model = txf.models.recurrent_encoder_decoder(100, 90, num_layers=1, dim=32, attention="additive")
    >>> model({"source_ids": np.array([[5, 6, 7, 0]]), "target_ids": np.array([[1, 8]])}).shape
    (1, 2, 90)
    """
    checks.size("source_vocab_size", source_vocab_size)
    checks.size("target_vocab_size", target_vocab_size)
    num_layers, dim = checks.size("num_layers", num_layers), checks.size("dim", dim)
    checks.boolean("return_attention_scores", return_attention_scores)
    if checks.boolean("bidirectional", bidirectional) and dim % 2:
        raise ValueError(
            f"`dim` must be even for `bidirectional`, where each direction has a half; received dim={dim}."
        )
    checks.one_of("share_embeddings", share_embeddings, (True, False, None))
    share_embeddings = embeddings.resolve_sharing(share_embeddings, source_vocab_size, target_vocab_size)
    decoder = RecurrentDecoder(dim, num_layers, cell, attention, dropout, dtype=dtype, name="decoder")
    if return_attention_scores and attention is None:
        raise ValueError("`return_attention_scores` needs `attention`; received attention=None.")
    make_logits = Logits(checks.boolean("tie_embeddings", tie_embeddings))

    def embedding(vocab_size, name):
        initializer = keras.initializers.RandomNormal(stddev=dim**-0.5)  # the initializer of the measured baselines
        return PositionalEmbedding(
            vocab_size, dim, None, pad_id=pad_id, embeddings_initializer=initializer, dtype=dtype, name=name
        )

    source_embedding = embedding(source_vocab_size, "embedding" if share_embeddings else "source_embedding")
    target_embedding = source_embedding if share_embeddings else embedding(target_vocab_size, "target_embedding")
    source_ids, target_ids = embeddings.integer_input("source_ids"), embeddings.integer_input("target_ids")
    context, states = _encode(source_embedding(source_ids), num_layers, dim, cell, bidirectional, dropout, dtype)
    call = {} if attention is None else {"context": context}
    if return_attention_scores:
        call["return_attention_scores"] = True
    hidden = decoder(target_embedding(target_ids), states, **call)
    extra = {}
    if return_attention_scores:
        hidden, extra["decoder_cross_attention_scores_0"] = hidden
    logits = make_logits(hidden, target_embedding, target_vocab_size, dtype)
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    return stack.make_model(
        inputs, stack.with_extra("logits", logits, extra), name, "recurrent_encoder_decoder", Seq2Seq
    )


def _encode(x, num_layers, dim, cell, bidirectional, dropout, dtype):
    """Embedded tokens (B, S, D) -> the last layer's outputs (B, S, D), and the last states of all layers, (B, U)."""
    states = []
    for index in range(num_layers):
        # Each layer needs its own initializer: the same instance would give the same values again.
        options = {
            "return_sequences": True,
            "return_state": True,
            "recurrent_initializer": OrthogonalInFloat32(),
            "dtype": dtype,
        }
        x = Dropout(dropout, dtype=dtype, name=f"encoder_{index}_dropout")(x)
        if not bidirectional:
            x, *layer_states = LAYERS[cell](dim, **options, name=f"encoder_{index}")(x)
        else:
            half = LAYERS[cell](dim // 2, **options, name=f"encoder_{index}")
            both = keras.layers.Bidirectional(half, dtype=dtype, name=f"encoder_{index}")
            for direction in (both.forward_layer, both.backward_layer):
                direction.build(x.shape)  # before `both`, as from a file: the paths of the weights depend on the order
            x, *halves = both(x)
            pairs = zip(halves[: len(halves) // 2], halves[len(halves) // 2 :])
            layer_states = [
                keras.layers.Concatenate(dtype=dtype, name=f"encoder_{index}_state_{number}")(list(pair))
                for number, pair in enumerate(pairs)
            ]
        states += layer_states
    return x, keras.layers.Concatenate(dtype=dtype, name="first_states")(states) if len(states) > 1 else states[0]
