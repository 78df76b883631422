"""The tokens that Whisper puts at the start of every answer: language, task, and whether there are timestamps."""

from keras_txf.checks import short_repr


def start_tokens(values, start):
    """Returns the tokens at the start of every answer; a list of tokens where the model chooses one of them.

    Args:
        values: of a `generation_config.json`. Without the keys that are read here the result is `[start]`.
        start: the start token.

    Raises:
        ValueError, TypeError: tokens forced at positions that leave a gap; a language or a task without a token; values
            of other types.
    """
    languages, tasks = (_table(values, key) for key in ("lang_to_id", "task_to_id"))
    # Without their tables these are words of other models.
    language, task = values.get("language") if languages else None, values.get("task") if tasks else None
    tokens = [start]
    if language is None and task is None:
        tokens += _forced(values.get("forced_decoder_ids") or [])
    if language is not None:
        tokens.append(_token(languages, language if language in languages else f"<|{language}|>"))
        task = "transcribe" if task is None and tasks else task
    elif languages and tokens[1:2] in ([], [None]):
        tokens[1:2] = [sorted(languages.values())]
    if task is not None:
        tokens.append(_token(tasks, task))
    without_times = values.get("no_timestamps_token_id")
    if without_times is not None and not values.get("return_timestamps") and tokens[-1] != without_times:
        tokens.append(without_times)
    return [token for token in tokens if token is not None]


def _forced(pairs):
    if [place for place, _ in pairs] != list(range(1, len(pairs) + 1)):
        raise ValueError(
            f"`forced_decoder_ids` must force the tokens from 1 on, without a gap; received {short_repr(pairs)}."
        )
    return [token for _, token in pairs]


def _table(values, key):
    table = values.get(key) or {}
    if not isinstance(table, dict):
        raise ValueError(f"`{key}` must be a JSON object; received {short_repr(table)}.")
    return table


def _token(table, name):
    if name not in table:
        raise ValueError(f"A token of {short_repr(name)} must be among {short_repr(sorted(table))}.")
    return table[name]
