"""The functions of texts that a SavedModel of `export` serves, in a TensorFlow graph.

Legend: B texts, C classes, D model dim, L length in tokens, N new tokens, R rows, of which a text has several with
    `num_return_sequences`.
"""

import keras

from keras_txf.checks import bad_argument
from keras_txf.generation.parameters import seed_state
from keras_txf.generation.prompts import start_list
from keras_txf.layers.sequence_ends import Start
from keras_txf.layers.token_input import embedded_input, inputs_by_name, source_name, target_name, token_input
from keras_txf.text.datasets import longest_first, pair_row, row, separator_tokens, types_of_pair
from keras_txf.text.lazy_imports import tf
from keras_txf.text.ragged import pad
from keras_txf.text.tags import checked_names, has_blanks_in_tokens, split_into_words, tokens_of_words
from keras_txf.text.tokenizer import add_start_and_end


def classifier(model, tokenizer, labels=None, multi_label=False, thresholds=None):
    """Returns the function for a model of one vector a text: logits, probabilities and labels, or embeddings."""
    pad_id, output = _checked_encoder(model, tokenizer)
    named = isinstance(model.output, dict) or model.output_names == ["logits"]
    if len(getattr(output, "shape", ())) != 2:
        must = "return one vector for each text, (B, C) or (B, D), as `txf.layers.Pooling` does"
        raise bad_argument("model", must, model.output)
    _check_labels(labels, output)
    least = 0.5 if thresholds is None else _checked_thresholds(thresholds, output.shape[-1])
    # The model of a builder hides padding: the columns after the longest text of a request change nothing but the time.
    cuts_columns = pad_id is not None and model.inputs[0].shape[1] is None and hasattr(model, "check_inputs")
    most = tokenizer._max_length

    def answer(text):
        ids = _padded(row(tokenizer, text, most) if cuts_columns else tokenizer(text), pad_id)
        vectors = tf.cast(logits_of(model(ids, training=False)), tf.float32)
        if labels is None:
            return {"logits" if named else "embeddings": vectors}
        if multi_label:
            probabilities = tf.nn.sigmoid(vectors)
            names = tf.where(probabilities > least, tf.constant(labels), "")
            return {"labels": names, "probabilities": probabilities, "logits": vectors}
        return _most_probable(vectors, labels)

    return answer


def tagger(model, tokenizer, labels):
    """Returns the function for a model of logits (B, L, C): the words of each text, their tags and probabilities."""
    pad_id, output = _checked_encoder(model, tokenizer)
    _check_labels(labels, output)
    blanks = has_blanks_in_tokens(tokenizer)
    most = tokenizer._max_length

    def answer(text):
        words, _, _ = split_into_words(text)
        ids, word_of, first = tokens_of_words(tokenizer, words, blanks)
        ids = add_start_and_end(tokenizer, ids, most)
        word_of, first = (
            add_start_and_end(tokenizer, rows, most, fill) for rows, fill in ((word_of, -1), (first, False))
        )
        logits = logits_of(model(_padded(ids, pad_id), training=False))
        probabilities = tf.nn.softmax(tf.cast(logits, tf.float32))
        at = tf.where(first.to_tensor(False))  # the first tokens of words
        own = tf.gather_nd(probabilities, at)
        index, count = tf.ragged.boolean_mask(word_of, first).flat_values[:, None], tf.size(words.flat_values)[None]
        tags = tf.tensor_scatter_nd_update(
            tf.fill(count, ""), index, tf.gather(tf.constant(labels), tf.argmax(own, axis=1))
        )
        scores = tf.scatter_nd(index, tf.reduce_max(own, axis=1), tf.cast(count, tf.int64))
        columns = {"word": words.flat_values, "tag": tags, "score": scores}
        return {name: words.with_flat_values(values).to_tensor() for name, values in columns.items()}

    return answer


def pair_classifier(model, tokenizer, labels=None, separator=None):
    """Returns the function for a model that reads two texts in one row: logits, labels and probabilities, or scores."""
    names, output = {*inputs_by_name(model)}, logits_of(model.output)
    if names not in ({"token_ids"}, {"token_ids", "token_type_ids"}) or len(getattr(output, "shape", ())) != 2:
        must = "turn token ids, and token type ids, into logits (B, C) for `pairs`"
        raise bad_argument("model", must, model.input)
    pad_id = _check_fit("tokenizer", tokenizer, embedded_input(model, "token_ids"))
    if pad_id is None:
        raise ValueError("`tokenizer` must have a token of padding where `pairs` is True; received pad_id=None.")
    _check_labels(labels, output)
    separator, most = separator_tokens(tokenizer, separator), tokenizer._max_length

    def answer(first, second):
        rows, before = pair_row(tokenizer, first, second, separator, most, longest_first)
        inputs = {"token_ids": _padded(rows, pad_id), "token_type_ids": types_of_pair(rows, before).to_tensor(0)}
        inputs = {name: inputs[name] for name in inputs if name in names}
        logits = model(inputs if isinstance(model.input, dict) else inputs["token_ids"], training=False)
        logits = tf.cast(logits_of(logits), tf.float32)
        if labels is None:
            scores = {"score": tf.sigmoid(logits[:, 0])} if logits.shape[-1] == 1 else {}
            return {"logits": logits, **scores}
        return _most_probable(logits, labels)

    return answer


def _most_probable(logits, labels):
    """Returns the answer of a classifier of one label."""
    label = tf.gather(tf.constant(labels), tf.argmax(logits, axis=1))
    return {"label": label, "probabilities": tf.nn.softmax(logits), "logits": logits}


def logits_of(output):
    """Returns the logits of a model's output, which may be a dict; None for a dict without logits."""
    return output.get("logits") if isinstance(output, dict) else output


def _checked_encoder(model, tokenizer):
    """Returns the id of padding and the symbolic output. Raises ValueError if the model takes more than token ids."""
    if len(model.inputs) != 1 or len(model.inputs[0].shape) != 2 or "int" not in model.inputs[0].dtype:
        raise bad_argument("model", "take token ids (B, L), and nothing else", model.input)
    [name] = inputs_by_name(model)
    pad_id = _check_fit("tokenizer", tokenizer, embedded_input(model, name))
    return pad_id, logits_of(model.output)


def _check_labels(labels, output):
    if labels is not None and len(checked_names(labels)) != output.shape[-1]:
        raise bad_argument("labels", f"be {output.shape[-1]}, one for each class", labels)


def _checked_thresholds(thresholds, classes):
    are_numbers = isinstance(thresholds, (list, tuple)) and all(type(x) in (int, float) for x in thresholds)
    if not are_numbers or len(thresholds) != classes or not all(0 < x < 1 for x in thresholds):
        raise bad_argument("thresholds", f"be a list of {classes} numbers between 0 and 1", thresholds)
    return tf.constant(thresholds, tf.float32)


def completer(model, tokenizer, seed=None, start_id=None, **options):
    """Returns the function for a model that continues texts."""
    prompt = token_input(model, target_name(model))
    _check_ids("tokenizer", tokenizer, prompt)
    start_ids = [] if start_id is None else start_list(start_id, prompt.vocab_size)
    options = stop_option(tokenizer, options) | options
    tokenizer = tokenizer.from_config({**tokenizer.get_config(), "end": []})
    most = tokenizer._max_length
    longest = None if most is None else most + len(start_ids)
    generate = model.make_generate_function(**options, longest_prompt=longest)
    seed, each = _seed(seed), options.get("num_return_sequences")

    def answer(text):
        rows = row(tokenizer, text, most)
        if prompt.pad_id is not None:
            rows = tf.ragged.boolean_mask(rows, rows != prompt.pad_id)
        if start_ids:
            rows = tf.concat([tf.tile([start_ids], [rows.nrows(), 1]), rows], axis=1)
        lengths = tf.cast(rows.row_lengths(), tf.int32)
        tokens, _, scores = generate(_padded(pad(rows, None, 0, "left"), 0), lengths, seed())
        owners = tf.repeat(tf.range(rows.nrows()), each or 1)
        text = _text(tf.concat([tf.gather(rows, owners), _until_end(tokens)], axis=1), tokenizer)
        has_prompt = tf.gather(lengths > 0, owners)
        return _result(tf.where(has_prompt, text, ""), tf.where(has_prompt, scores, 0.0), each)

    return answer


def translator(model, tokenizer, target_tokenizer=None, seed=None, **options):
    """Returns the function for an encoder-decoder."""
    pad_id = _check_fit("tokenizer", tokenizer, token_input(model, source_name(model)))
    target_tokenizer = target_tokenizer or tokenizer
    _check_ids("target_tokenizer", target_tokenizer, token_input(model, target_name(model)))
    options = start_option(model, target_tokenizer) | stop_option(target_tokenizer, options) | options
    generate = model.make_generate_function(**options)
    seed, each = _seed(seed), options.get("num_return_sequences")

    def answer(text):
        tokens, _, scores = generate(_padded(tokenizer(text), pad_id), seed())
        return _result(_text(_until_end(tokens), target_tokenizer), scores, each)

    return answer


def start_option(model, tokenizer):
    """Returns the default of `start_id` of `generate`: the first token of the targets in training."""
    known = tokenizer.start and not any(isinstance(layer, Start) for layer in model.layers)
    return {"start_id": tokenizer.token_to_id(tokenizer.start[0])} if known else {}


def stop_option(tokenizer, options=()):
    """Returns the default of `stop_ids` of `generate`: the last token of the targets in training."""
    known = tokenizer.end and not {"stop_ids", "stop_sequences"} & {*options}
    return {"stop_ids": tokenizer.token_to_id(tokenizer.end[0])} if known else {}


def _check_ids(name, tokenizer, tokens):
    """Raises ValueError if a tokenizer has more ids than the model, or another padding."""
    if tokenizer.vocab_size > tokens.vocab_size:
        raise bad_argument(name, f"have at most the model's {tokens.vocab_size} tokens", tokenizer.vocab_size)
    if tokens.pad_id is not None and tokenizer.pad_id != tokens.pad_id:
        raise bad_argument(name, f"have the model's padding, pad_id={tokens.pad_id}", tokenizer.pad_id)


def _check_fit(name, tokenizer, tokens):
    """Returns the id of padding. Raises ValueError if an encoder cannot read the tokenizer's rows."""
    pad_id, longest = tokenizer.pad_id, None
    if tokens is not None:
        _check_ids(name, tokenizer, tokens)
        pad_id, longest = tokens.pad_id, tokens.max_length
    if pad_id is None and tokenizer._max_length is None:
        raise bad_argument(name, "have a fixed `length`, as no token is padding", tokenizer.length)
    if longest is not None and (tokenizer._max_length is None or tokenizer._max_length > longest):
        raise bad_argument(name, f"have a `length` of at most the model's max_length={longest}", tokenizer.length)
    return pad_id


def _padded(ids, pad_id):
    """Returns dense ids (B, L); L is at least 1."""
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.to_tensor(pad_id)
    missing = tf.cast(tf.shape(ids)[1] == 0, tf.int32)
    return tf.pad(ids, [[0, 0], [missing, 0]], constant_values=pad_id or 0)


def _until_end(tokens):
    """Dense new tokens (R, N), -1 after the end -> ragged new tokens."""
    return tf.ragged.boolean_mask(tokens, tokens >= 0)


def _text(rows, tokenizer):
    """Returns the texts of ids, without ids beyond the tokenizer's vocabulary."""
    return tokenizer.detokenize(tf.ragged.boolean_mask(rows, rows < tokenizer.vocab_size))


def _result(text, scores, each):
    scores = tf.where(scores > -5e8, scores, float("-inf"))  # beams without a sequence
    shaped = (value if each is None else tf.reshape(value, [-1, each]) for value in (text, scores))
    return dict(zip(("text", "scores"), shaped))


def _seed(seed):
    """Returns a function that returns a seed, int64 (2,): always the same, or with None a new seed at each call."""
    if seed is None:
        draw = tf.raw_ops.RandomUniformInt  # Keras' seed does not fix its draws
        return lambda: draw(shape=[2], minval=tf.constant(0, tf.int64), maxval=tf.int64.max, seed=0, seed2=0)
    state = keras.ops.convert_to_numpy(seed_state(seed))
    return lambda: tf.constant(state, tf.int64)
