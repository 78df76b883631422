"""A model with its tokenizers as a SavedModel: string in, string out, without this package or Keras.

Legend: B texts, C classes, D model dim, L length in tokens, R rows, several for each text where that is asked, N new tokens.
"""

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers import PositionalEmbedding
from keras_txf.layers.starts import Start
from keras_txf.text.byte_pair import BytePairTokenizer
from keras_txf.text.folders import check_target, fill
from keras_txf.text.lazy import tf
from keras_txf.text.rows import row
from keras_txf.text.tokenizer import Tokenizer, pad

GENERATION = (
    "max_new_tokens", "sampler", "stop_ids", "seed", "start_id", "max_length", "stop_sequences", "processors",
    "num_return_sequences", "jit_compile",
)  # fmt: skip


def export(model, tokenizer, folder, target_tokenizer=None, labels=None, overwrite=False, **generation):
    """Writes a SavedModel that takes text and answers, tokenizer and decoding loop included.

    To serve a model, by TensorFlow Serving or in a process that imports only `tensorflow` and `tensorflow_text`. What it
    answers depends on the model:

    - a classifier, from `encoder_classifier` or with `labels`: `logits` (B, C); with `labels` also `probabilities` (B, C)
      and `label`, string (B,), the likeliest;
    - any other that has one vector for a text: `embeddings` (B, D);
    - from `decoder_generator`: `text`, string (B,), the prompt and what follows it, and `scores` (B,), see `Scored`;
    - from `encoder_decoder`: `text`, the answer, and `scores`.

    The signature `serving_default` takes `text`, string (B,); the loaded object's `serve` takes ragged text (B, any) too.
    Answers are those of Python, such as `tokenizer.detokenize(model.generate(tokenizer(text)))`, up to the rounding of
    floats. A text that is too long is cut to the tokenizer's `length`. A prompt has the tokenizer's `start`, not its `end`,
    behind which nothing follows; one without a token, where nothing is put before it, has the empty answer.

    Args:
        model: a functional model from a builder, or one on top of it, such as `Pooling` on an `encoder`; a `Sequential`
            that knows its inputs likewise.
        tokenizer: of the texts that come in.
        folder: where to write, such as `models/translator/1`; what is above it is made too.
        target_tokenizer: of an encoder-decoder's answers; default `tokenizer`.
        labels: list of str, the names of the C classes.
        overwrite: whether a SavedModel that is already there is replaced, by two renames: between them neither is under the name.
        **generation: options of the model's `generate`, fixed from here on: `max_new_tokens`, `sampler`, `stop_ids`,
            `seed`, `start_id`, `max_length`, `stop_sequences`, `processors`, `num_return_sequences`, with which `text`
            and `scores` are (B, number). Answers stop at the (first) `end` of the tokenizer that they are written with,
            unless `stop_ids` or `stop_sequences` say otherwise (`stop_ids=[]`: nowhere), and those of an encoder-decoder
            begin with the first of its `start`. And `jit_compile`, default False: whether XLA compiles the
            loop, which takes seconds for each new size of batch and each 32 tokens of prompt more, and makes it up to three
            times as fast, most where the batch is one. Draws depend on `seed` and a text's place in the batch: a seed gives
            the same at each call, and with `jit_compile` those of `generate`; without a seed each call has others.

    Raises:
        ValueError: another backend than TensorFlow, a `BytePairTokenizer`, which runs in Python, a vocabulary, padding or
            lengths that the model does not have, options that do not go with the model, a folder that exists.
        OSError: a disk that is full or cannot be written to.

    Example:

    ```python
    txf.text.export(model, english, "translator", target_tokenizer=german, sampler=txf.generation.Beam(5))

    import tensorflow as tf, tensorflow_text  # another process
    translator = tf.saved_model.load("translator")
    translator.serve(["A dog runs.", "Two."])["text"]
    ```
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"`export` needs Keras on TensorFlow; received the backend {short_repr(keras.backend.backend())}.")
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        raise ValueError(f"`model` must be a functional Keras model that is built; received {short_repr(model)}.")
    if isinstance(model, keras.Sequential):  # before its first call it has no `input`
        model = keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    check_target(checks.path("folder", folder), checks.boolean("overwrite", overwrite))
    for name, value in (("tokenizer", tokenizer), ("target_tokenizer", target_tokenizer)):
        if (value is not None or name == "tokenizer") and not isinstance(value, Tokenizer):
            raise ValueError(f"`{name}` must be a tokenizer of `txf.text`; received {short_repr(value)}.")
        if isinstance(value, BytePairTokenizer):
            raise ValueError(f"`{name}` must run in TensorFlow's graph, which a BytePairTokenizer does not.")
    checks.known_names("an option of `export`", generation, GENERATION)
    own = {"target_tokenizer": target_tokenizer, "labels": labels}
    options = generation | {name: value for name, value in own.items() if value is not None}
    answer = _task(model, options)(model, tokenizer, **options)
    fill(folder, lambda path: _save(answer, model, path))


def _save(answer, model, path):
    text = tf.TensorSpec([None], tf.string, "text")
    traced = tf.function(answer, [text], autograph=False).get_concrete_function()  # a tf.function would be traced twice

    def serve(text):
        if isinstance(text, tf.RaggedTensor):
            return {name: text.with_values(value) for name, value in traced(text.values).items()}
        return traced(text)

    module = tf.Module()
    module.variables_of_model = [variable.value for variable in model.variables]
    module.serve = tf.function(serve, autograph=False)
    module.serve.get_concrete_function(tf.RaggedTensorSpec([None, None], tf.string))
    tf.saved_model.save(module, path, {"serving_default": module.serve.get_concrete_function(text)})


def _task(model, options):
    """What makes the function that answers; refuses options that are for other models."""
    generates = hasattr(model, "generate")
    has_source = isinstance(model.input, dict) and "source_ids" in model.input
    make = (_translator if has_source else _completer) if generates else _encoder
    allowed = {*GENERATION} if generates else {"labels"}
    allowed |= {"target_tokenizer"} if make is _translator else set()
    for name in sorted({*options} - allowed):
        raise ValueError(f"`{name}` does not go with the model {short_repr(model.name)}: {sorted(allowed)} do.")
    return make


def _encoder(model, tokenizer, labels=None):
    if len(model.inputs) != 1 or len(model.inputs[0].shape) != 2 or "int" not in model.inputs[0].dtype:
        raise ValueError(f"`model` must take token ids (B, L), and nothing else; received one that takes {short_repr(model.input)}.")
    pad_id = _check_fit("tokenizer", tokenizer, model, "embedding")
    named = isinstance(model.output, dict) or model.output_names == ["logits"]
    output = model.output.get("logits") if isinstance(model.output, dict) else model.output
    if len(getattr(output, "shape", ())) != 2:
        raise ValueError(
            "`model` must have one vector for each text, (B, C) or (B, D); received one whose output is "
            f"{short_repr(model.output)}. `txf.layers.Pooling` makes one of hidden states."
        )
    if labels is not None:
        is_list = isinstance(labels, (list, tuple)) and all(isinstance(label, str) for label in labels)
        if not is_list or len(set(labels)) != len(labels) or len(labels) < 2:
            raise ValueError(f"`labels` must be a list of different strings, at least two; received {short_repr(labels)}.")
        if len(labels) != output.shape[1]:
            raise ValueError(f"`labels` must be {output.shape[1]}, one for each class; received {short_repr(labels)}.")

    def answer(text):
        vectors = model(_padded(tokenizer(text), pad_id), training=False)
        vectors = vectors["logits"] if isinstance(vectors, dict) else vectors
        if labels is None:
            return {"logits" if named else "embeddings": vectors}
        label = tf.gather(tf.constant(labels), tf.argmax(vectors, axis=1))
        return {"label": label, "probabilities": tf.nn.softmax(tf.cast(vectors, tf.float32)), "logits": vectors}

    return answer


def _completer(model, tokenizer, seed=None, start_id=None, **options):
    embedding = _embedding(model, "embedding")
    _check_ids("tokenizer", tokenizer, embedding)
    checks.optional(checks.id_below, "start_id", start_id, embedding.vocab_size)
    options = _ending(tokenizer, options) | options
    tokenizer = tokenizer.from_config({**tokenizer.get_config(), "end": []})
    most = tokenizer.length if isinstance(tokenizer.length, int) else None
    longest = most and most + (start_id is not None)
    generate = model.make_generate_function(**options, longest_prompt=longest)
    seed, each = _seed(seed), options.get("num_return_sequences")

    def answer(text):
        rows = _real(row(tokenizer, text, most), embedding.pad_id)
        if start_id is not None:
            rows = tf.concat([tf.fill([rows.nrows(), 1], start_id), rows], axis=1)
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        tokens, _, scores = generate(_padded(pad(rows, None, 0, "left"), 0), lengths, seed())
        owners = tf.repeat(tf.range(rows.nrows()), each or 1)
        text = _text(tf.concat([tf.gather(rows, owners), _until_end(tokens)], axis=1), tokenizer)
        said = tf.gather(lengths > 0, owners)
        return _result(tf.where(said, text, ""), tf.where(said, scores, 0.0), each)

    return answer


def _translator(model, tokenizer, target_tokenizer=None, seed=None, **options):
    pad_id = _check_fit("tokenizer", tokenizer, model, "source_embedding", "embedding")
    target_tokenizer = target_tokenizer or tokenizer
    _check_ids("target_tokenizer", target_tokenizer, _embedding(model, "target_embedding", "embedding"))
    options = _beginning(model, target_tokenizer) | _ending(target_tokenizer, options) | options
    generate = model.make_generate_function(**options)
    seed, each = _seed(seed), options.get("num_return_sequences")

    def answer(text):
        tokens, _, scores = generate(_padded(tokenizer(text), pad_id), seed())
        return _result(_text(_until_end(tokens), target_tokenizer), scores, each)

    return answer


def _beginning(model, tokenizer):
    """The option of `generate` for the token that training targets begin with, where nobody says another."""
    known = tokenizer.start and not any(isinstance(layer, Start) for layer in model.layers)
    return {"start_id": tokenizer.token_to_id(tokenizer.start[0])} if known else {}


def _ending(tokenizer, options):
    """The option for where answers stop, where nobody says it."""
    known = tokenizer.end and not {"stop_ids", "stop_sequences"} & options.keys()
    return {"stop_ids": tokenizer.token_to_id(tokenizer.end[0])} if known else {}


def _embedding(model, *names):
    """The embedding of the first of these names that there is; None in a model without one of ours."""
    found = {layer.name: layer for layer in _layers(model) if isinstance(layer, PositionalEmbedding)}
    return next((found[name] for name in names if name in found), None)


def _layers(model):
    """Its layers, and those of the models that it is made of."""
    for layer in model.layers:
        yield from _layers(layer) if isinstance(layer, keras.Model) else [layer]


def _check_ids(name, tokenizer, embedding):
    """Refuses ids that the model does not have, or takes for padding."""
    if tokenizer.vocab_size > embedding.vocab_size:
        raise ValueError(
            f"`{name}` must have at most the model's {embedding.vocab_size} tokens; received one of {tokenizer.vocab_size}."
        )
    if embedding.pad_id is not None and tokenizer.pad_id != embedding.pad_id:
        raise ValueError(
            f"`{name}` must have the model's padding, pad_id={embedding.pad_id}; received pad_id={tokenizer.pad_id}."
        )


def _check_fit(name, tokenizer, model, *embeddings):
    """Refuses a tokenizer whose rows an encoder cannot read; returns the id of padding."""
    embedding = _embedding(model, *embeddings)
    pad_id, longest = tokenizer.pad_id, None
    if embedding is not None:
        _check_ids(name, tokenizer, embedding)
        pad_id = embedding.pad_id
        longest = _embedding(model, "source_position_embedding", *embeddings).max_length
    if pad_id is None and not isinstance(tokenizer.length, int):
        raise ValueError(f"`{name}` must have a fixed `length`, as nothing is padding; received {short_repr(tokenizer.length)}.")
    if longest is not None and not (isinstance(tokenizer.length, int) and tokenizer.length <= longest):
        raise ValueError(
            f"`{name}` must have a `length` of at most the model's max_length={longest}; received {short_repr(tokenizer.length)}."
        )
    return pad_id


def _padded(ids, pad_id):
    """Dense ids, (B, L), at least one column."""
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.to_tensor(pad_id)
    missing = tf.cast(tf.shape(ids)[1] == 0, tf.int32)
    return tf.pad(ids, [[0, 0], [missing, 0]], constant_values=pad_id or 0)


def _real(rows, pad_id):
    """Ragged ids, (B, L), without the model's padding."""
    return rows if pad_id is None else tf.ragged.boolean_mask(rows, rows != pad_id)


def _until_end(tokens):
    """Ragged new tokens of dense ones, (R, N), which are -1 after the end."""
    return tf.ragged.boolean_mask(tokens, tokens >= 0)


def _text(rows, tokenizer):
    """Ids that the model has beyond the tokenizer's stand for no text."""
    return tokenizer.detokenize(tf.ragged.boolean_mask(rows, rows < tokenizer.vocab_size))


def _result(text, scores, each):
    scores = tf.where(scores > -5e8, scores, float("-inf"))  # a beam that found nothing
    return {
        name: value if each is None else tf.reshape(value, [-1, each])
        for name, value in (("text", text), ("scores", scores))
    }


def _seed(seed):
    """A function that returns a seed, int64 (2,): always this one, or another at each call."""
    if seed is None:
        draw = tf.raw_ops.RandomUniformInt  # without seeds of its own, whatever Keras' is
        return lambda: draw(shape=[2], minval=tf.constant(0, tf.int64), maxval=tf.int64.max, seed=0, seed2=0)
    state = keras.ops.convert_to_numpy(keras.random.SeedGenerator(seed).state.value)
    return lambda: tf.constant(state, tf.int64)
