"""Finds a checkpoint's folder, on this machine or on the Hub."""

import os
import pathlib
import re

from keras_txf.checks import short_repr

FETCHED = ("*.json", "model*.safetensors", "adapter_model.safetensors", "*.txt", "*.model", "*.spm", "*.jinja",
           "[1-9]_*/model.safetensors")  # fmt: skip


def find(path: str | os.PathLike, revision: str | None = None) -> pathlib.Path:
    """Returns the folder of a checkpoint; downloads a repository of the Hub.

    `load` calls it. Use it for other files of the folder, such as the tokenizer's.

    Args:
        path: a folder, or the name of a repository, such as "org/name".
        revision: branch, tag or commit on the Hub.

    Returns:
        `pathlib.Path` of the folder.

    Raises:
        ImportError: the name of a repository, and `huggingface_hub` is not installed.
        ValueError: neither a folder nor the name of a repository.

    Example:

    >>> import tempfile
    >>> txf.checkpoints.find(tempfile.mkdtemp()).is_dir()
    True
    """
    if revision is not None and not (isinstance(revision, str) and revision):
        raise ValueError(f"`revision` must be a branch, a tag or a commit; received {short_repr(revision)}.")
    if isinstance(path, (str, os.PathLike)) and os.path.isdir(path):
        return pathlib.Path(path)
    if not isinstance(path, str) or not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", path) or os.path.lexists(path):
        raise ValueError(f"`path` must be a folder, or a repository such as 'org/name'; received {short_repr(path)}.")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ImportError(
            f"{short_repr(path)} is no folder, and to fetch it from the Hub needs `pip install huggingface_hub`."
        ) from None
    # Without inner folders, which hold the same weights for other programs, but for those of sentence-transformers:
    # 1_Pooling, 2_Dense.
    return pathlib.Path(
        snapshot_download(path, revision=revision, allow_patterns=list(FETCHED), ignore_patterns=["[!1-9]*/*"])
    )
