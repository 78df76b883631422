"""What one layer notes about its output tensor for a later reader, such as the factors of logits for a loss.

A note is of the very tensor: a tensor computed from it has none, and a note dies with its tensor.
"""

import weakref

_ATTRIBUTE = "_keras_txf_note"
_NOTES = {}  # id of a tensor that takes no attributes (a tracer of JAX) -> a weak reference to the tensor, its note


def set_note(tensor, note, *parts):
    """Notes something about a tensor; `parts` are the tensors within the note, or None."""
    parts = [part for part in parts if part is not None]
    entry = _version(tensor), [(part, _version(part)) for part in parts], note
    try:
        setattr(tensor, _ATTRIBUTE, entry)
    except AttributeError:
        key = id(tensor)
        _NOTES[key] = weakref.ref(tensor, lambda _: _NOTES.pop(key, None)), entry


def find_note(tensor):
    """Returns what is noted about a tensor; None where nothing is, or the tensor or a part has changed in place."""
    entry = getattr(tensor, _ATTRIBUTE, None)
    if entry is None:
        reference, entry = _NOTES.get(id(tensor), (None, None))
        if reference is None or reference() is not tensor:  # a later tensor may have the id of one that is gone
            return None
    version, parts, note = entry
    same = version == _version(tensor) and all(number == _version(part) for part, number in parts)
    return note if same else None


def _version(tensor):
    """PyTorch counts the changes in place of a tensor; tensors of the other backends never change."""
    return getattr(tensor, "_version", None)
