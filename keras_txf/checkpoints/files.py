"""Finds the folder of a checkpoint, and reads its tensors from one `.safetensors` file or from several.

The package `safetensors` reads them, without pickle. It checks a header before it uses it: unique names, known types,
offsets that cover the file without a gap or an overlap, shapes that fit the bytes. This module checks the index of
shards.
"""

import contextlib
import math
import os
import pathlib
import re

import ml_dtypes  # noqa: F401  NumPy learns bfloat16 from it
import safetensors

from keras_txf.checks import short_repr
from keras_txf.disk import COMPLETE, file_of, read_json, refuse_pointer, shortened

ONE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SAVE_ID = "save_id"  # key of the metadata of each shard that `save` writes

PICKLED = (
    " Pickled weights (.bin) are not read: they can run code. If you trust them, convert them with transformers: "
    "`transformers.<the class in config.json>.from_pretrained(folder).save_pretrained(new_folder)`."
)

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
            f"{short_repr(path)} is not a folder, and a download from the Hub needs `pip install huggingface_hub`."
        ) from None
    # Without inner folders, which hold the same weights for other programs. The folders of sentence-transformers,
    # 1_Pooling and 2_Dense, are an exception.
    return pathlib.Path(
        snapshot_download(path, revision=revision, allow_patterns=list(FETCHED), ignore_patterns=["[!1-9]*/*"])
    )


def weights_of(folder):
    """Returns the path of the one file with all tensors, or else of the index; None if there is neither."""
    paths = [folder / inner / name for inner in (COMPLETE, ".") for name in (ONE, INDEX)]
    return next(filter(os.path.isfile, paths), None)


@contextlib.contextmanager
def open_tensors(folder):
    """Opens the files of a folder for the scope, and yields their `Tensors`.

    Raises:
        ValueError: no such file, a damaged file, an index that names files outside of the folder, or tensors in another
            file than the index says.
    """
    folder = pathlib.Path(folder)
    with contextlib.ExitStack() as stack:
        # Links may lead out of the folder: in the Hub's own cache every file of a folder is such a link.
        path = weights_of(folder)
        if path is not None and path.name == ONE:
            file = _open(stack, path)
            yield Tensors(dict.fromkeys(file.keys(), file), {file: path})
        elif path is not None:
            yield _open_shards(stack, folder, path)
        else:
            found = sorted(path.name for path in folder.iterdir())
            pickled = PICKLED * any(x.endswith(".bin") for x in found)
            raise ValueError(
                f"`folder` must hold {ONE} or {INDEX}; received {short_repr(str(folder))}, with "
                f"{short_repr(found)}.{pickled}"
            )


@contextlib.contextmanager
def open_file(path):
    """Opens one file for the scope, and yields its `Tensors`."""
    with contextlib.ExitStack() as stack:
        file = _open(stack, path)
        yield Tensors(dict.fromkeys(file.keys(), file), {file: path})


# Prefixes that torch.compile, FSDP and activation checkpointing add to the names of the modules that they wrap.
WRAPPERS = re.compile(r"(?:(?<=\.)|^)(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
PARALLEL = "module."  # prefix that DataParallel adds to all names


def own_names(stored):
    """Returns the names of a model's tensors -> their names in the file, which may have prefixes of wrappers."""
    names = {name: WRAPPERS.sub("", name) for name in stored}
    while names and all(name.startswith(PARALLEL) for name in names.values()):
        names = {name: own.removeprefix(PARALLEL) for name, own in names.items()}
    found = {own: name for name, own in names.items()}
    twice = sorted(names.keys() - found.values())
    if twice:
        own = names[twice[0]]
        raise ValueError(
            f"The file has two tensors for {short_repr(own)}: {short_repr(found[own])} and {short_repr(twice[0])}."
        )
    return found


class Tensors:
    """The tensors of a checkpoint by name, read from the disk one at a time.

    Args:
        files: dict of names in the files -> the open file that has the tensor.
        paths: dict of open files -> their paths, for messages.
    """

    def __init__(self, files, paths):
        self.stored = own_names(files)
        self.files = {own: files[name] for own, name in self.stored.items()}
        self.paths = paths

    def __iter__(self):
        return iter(self.files)

    def __len__(self):
        return len(self.files)

    def __contains__(self, name):
        return name in self.files

    def shape(self, name):
        return tuple(self.files[name].get_slice(self.stored[name]).get_shape())

    def dtype(self, name):
        """Returns the dtype of a tensor by its name in the file, such as "F32" or "BF16"."""
        return self.files[name].get_slice(self.stored[name]).get_dtype()

    def size(self, name):
        """Returns the number of values of a tensor."""
        return math.prod(self.shape(name))

    def read(self, name):
        """Reads a tensor as a NumPy array."""
        file = self.files[name]
        try:
            return file.get_tensor(self.stored[name])
        # The package raises its own error, or Python's, for a dtype or a shape that NumPy does not have.
        except Exception as error:
            kind, path = self.dtype(name), str(self.paths[file])
            raise ValueError(
                f"The tensor {short_repr(name)} of type {kind} in {short_repr(path)} cannot be read: "
                f"{shortened(str(error))}."
            ) from None


def _open(stack, path):
    refuse_pointer(path)
    try:
        # Not mapped into memory: the pages of a map count as memory of the process until it is closed, and a file that
        # shrinks meanwhile would kill the process.
        return stack.enter_context(safetensors.safe_open(path, framework="np", backend="pread"))
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{short_repr(str(path))} is no sound safetensors file: {shortened(str(error))}.") from None


def shards_of(index):
    """Reads the `weight_map` of an index: names of tensors -> names of their files.

    Raises:
        ValueError: no index, a damaged one, or an index that names files outside of the folder.
    """
    weight_map = read_json(index).get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(name, str) for name in weight_map.values())
    ):
        raise ValueError(
            f"{INDEX} must have a `weight_map` of tensors and their files; received {short_repr(weight_map)}."
        )
    for shard in sorted(set(weight_map.values())):
        # A name with a folder in it could lead anywhere on the machine.
        if pathlib.PurePath(shard).name != shard or "\\" in shard or shard in ("", ".", ".."):
            raise ValueError(f"{INDEX} must name files of its own folder; received {short_repr(shard)}.")
    return weight_map


def _open_shards(stack, folder, index):
    weight_map = shards_of(index)
    paths = {shard: file_of(folder, shard) for shard in sorted(set(weight_map.values()))}
    for shard, path in paths.items():
        if not os.path.isfile(path):  # False also for an impossible name
            raise ValueError(f"{INDEX} names {short_repr(shard)}, which is not in {short_repr(str(folder))}.")
    files = {shard: _open(stack, path) for shard, path in paths.items()}
    named = {shard: set() for shard in files}
    for tensor, shard in weight_map.items():
        named[shard].add(tensor)
    for shard, file in files.items():
        if named[shard] != set(file.keys()):
            odd = sorted(named[shard] ^ set(file.keys()))
            raise ValueError(
                f"{INDEX} and {short_repr(shard)} must name the same tensors; they differ in {short_repr(odd[:10])}."
            )
    saves = {shard: (file.metadata() or {}).get(SAVE_ID) for shard, file in files.items()}
    for shard, save in saves.items():  # shards of other writers have no id
        if save != saves[first := next(iter(saves))]:
            raise ValueError(
                f"The shards in {short_repr(str(folder))} must be of one save; received {short_repr(first)} and "
                f"{short_repr(shard)} "
                f"with {SAVE_ID} {short_repr(saves[first])} and {short_repr(save)}."
            )
    return Tensors(
        {tensor: files[shard] for tensor, shard in weight_map.items()},
        {file: paths[shard] for shard, file in files.items()},
    )
