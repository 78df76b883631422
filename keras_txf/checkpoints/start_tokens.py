"""The tokens that Whisper puts at the start of every answer: language, task, and whether there are timestamps."""

from keras_txf.checks import short_repr

LANGUAGE = None  # stands where the model is to choose a token of `lang_to_id`


def start_tokens(values, start):
    """Returns the tokens at the start of every answer; `LANGUAGE` where the model chooses one.

    Args:
        values: of a `generation_config.json`. Without the keys that are read here the result is `[start]`.
        start: the start token.

    Raises:
        ValueError: tokens forced at positions that leave a gap; a language or a task without a token.
    """
    language, task, tasks = values.get("language"), values.get("task"), values.get("task_to_id") or {}
    languages, tokens = values.get("lang_to_id") or {}, [start]
    if language is None and task is None:
        tokens += _forced(values.get("forced_decoder_ids") or [])
    if language is not None:
        tokens.append(_token(languages, language if language in languages else f"<|{language}|>"))
        task = task or ("transcribe" if tasks else None)
    elif languages and tokens[1:2] in ([], [LANGUAGE]):
        tokens[1:2] = [LANGUAGE]
    if task is not None:
        tokens.append(_token(tasks, task))
    without_times = values.get("no_timestamps_token_id")
    if without_times is not None and not values.get("return_timestamps") and tokens[-1] != without_times:
        tokens.append(without_times)
    return tokens if languages else [token for token in tokens if token is not LANGUAGE]


def _forced(pairs):
    if [place for place, _ in pairs] != list(range(1, len(pairs) + 1)):
        raise ValueError(f"`forced_decoder_ids` must force the tokens from 1 on, without a gap; received {pairs}.")
    return [token for _, token in pairs]


def _token(table, name):
    if name not in table:
        raise ValueError(f"A token of {short_repr(name)} must be among {short_repr(sorted(table))}.")
    return table[name]
