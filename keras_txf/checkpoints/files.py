"""The files of a checkpoint's folder: `config.json`, and tensors in one `.safetensors` file or in several.

The package `safetensors` reads them, without pickle; it checks a header before it believes it. What is checked here is
what lies between files: an index that names shards.
"""

import contextlib
import json
import pathlib

import ml_dtypes  # noqa: F401  NumPy learns bfloat16 from it
import safetensors

ONE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def read_json(path):
    """The dict that a JSON file holds."""
    try:
        value = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"`folder` must hold a readable {path.name}; received {str(path)!r}: {error}.") from None
    if not isinstance(value, dict):
        raise ValueError(f"`folder` must hold a JSON object in {path.name}; received {type(value).__name__}.")
    return value


@contextlib.contextmanager
def open_tensors(folder):
    """A `Tensors` of the folder's files, which are open as long as the scope lasts.

    Raises:
        ValueError: no such file, a damaged one, an index that names files outside of the folder, or tensors in another
            file than it says.
    """
    folder = pathlib.Path(folder)
    with contextlib.ExitStack() as stack:
        if (folder / ONE).is_file():
            file = _open(stack, folder / ONE)
            yield Tensors({name: file for name in file.keys()})
        elif (folder / INDEX).is_file():
            yield Tensors(_open_shards(stack, folder))
        else:
            found = sorted(path.name for path in folder.iterdir())
            pickled = " Pickled weights (.bin) are not read: they can run code." * any(x.endswith(".bin") for x in found)
            raise ValueError(f"`folder` must hold {ONE} or {INDEX}; received {str(folder)!r}, with {found}.{pickled}")


class Tensors:
    """The tensors of a checkpoint by name, read from the disk one at a time.

    Args:
        files: dict of names -> the open file that has the tensor.
    """

    def __init__(self, files):
        self.files = files

    def __iter__(self):
        return iter(self.files)

    def __contains__(self, name):
        return name in self.files

    def shape(self, name):
        return tuple(self.files[name].get_slice(name).get_shape())

    def dtype(self, name):
        """Its name in the file, such as "F32" or "BF16"."""
        return self.files[name].get_slice(name).get_dtype()

    def size(self, name):
        """How many numbers it has."""
        size = 1
        for length in self.shape(name):
            size *= length
        return size

    def read(self, name):
        """The tensor as a NumPy array."""
        try:
            return self.files[name].get_tensor(name)
        except Exception as error:  # its own error, or Python's, for a type that NumPy does not have
            kind = self.dtype(name)
            raise ValueError(f"The tensor {name!r} of type {kind} cannot be read: {error}.") from None


def _open(stack, path):
    try:
        return stack.enter_context(safetensors.safe_open(path, framework="np"))
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{str(path)!r} is no sound safetensors file: {error}.") from None


def _open_shards(stack, folder):
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise ValueError(f"{INDEX} must have a `weight_map` of tensors and the files that have them; received {places!r}.")
    files = {}
    for shard in sorted(set(places.values())):
        # A name with a folder in it could lead anywhere on the machine.
        if pathlib.PurePath(shard).name != shard or "\\" in shard or shard in ("", ".", ".."):
            raise ValueError(f"{INDEX} must name files of its own folder; received {shard!r}.")
        if not (folder / shard).is_file():
            raise ValueError(f"{INDEX} names {shard!r}, which is not in {str(folder)!r}.")
        files[shard] = _open(stack, folder / shard)
    for shard, file in files.items():
        named = {tensor for tensor, place in places.items() if place == shard}
        if named != set(file.keys()):
            odd = sorted(named ^ set(file.keys()))
            raise ValueError(f"{INDEX} and {shard!r} must name the same tensors; they differ in {odd[:10]}.")
    return {tensor: files[shard] for tensor, shard in places.items()}
