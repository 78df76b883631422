"""Loading: a folder of Hugging Face becomes a functional Keras model."""

import contextlib
import dataclasses
import pathlib
import re
import weakref

import keras
import numpy as np

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.deferred import give_value, give_values, without_values
from keras_txf.checkpoints.families import FAMILIES
from keras_txf.checkpoints.family import LANGUAGE_MODELS, POOLER
from keras_txf.checkpoints.files import open_tensors, weights_of
from keras_txf.checkpoints.finding import find
from keras_txf.checkpoints.kinds import KINDS
from keras_txf.checkpoints.tables import as_tensor, links
from keras_txf.reading import file_of, read_json, reading

FLOATS = ("F64", "F32", "F16", "BF16")
LARGE = 2**27  # numbers in a file that takes long enough for a progress bar


def load(path, task=None, num_classes=None, dtype=None, progress=None, revision=None, **options):
    """Builds the model of a Hugging Face checkpoint, with its weights.

    Args:
        path: a folder with `config.json` and `model.safetensors` or its shards; or the name of a repository on the Hub,
            such as "sentence-transformers/all-MiniLM-L6-v2", which the package `huggingface_hub` fetches.
        task: "encoder" (hidden states), "masked_lm", "causal_lm", "seq2seq", "sequence_classification",
            "token_classification", "image_encoder" or "image_classification". Default: what the file is for. A head that
            the file does not have is a new one.
        num_classes: of a classifier; another number than the file's makes a new head.
        dtype: dtype policy of the model; default Keras' own. Weights are converted.
        progress: whether a bar is shown; default: for large files.
        revision: branch, tag or commit on the Hub.
        **options: of the builder, in place of what the file says: such as `dropout`, `return_hidden_states`,
            `token_type_ids`. Of a decoder whose `pad_token_id` also ends texts no token is padding: transformers
            attends to it too.

    Returns:
        A functional `keras.Model` from the builder that the task has in `txf.models`. `save` writes it as a folder again.

    Raises:
        ImportError: a name of the Hub without `huggingface_hub`.
        ValueError: no such folder; a file that is damaged; shards of different saves; a family or task that is not known; a
            key of `config.json` that is not known; a tensor that no weight is for, or a weight without a tensor.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> config = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=100, hidden_size=32,
    ...               num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, max_position_embeddings=16)
    >>> llama = txf.models.decoder_generator(
    ...     100, 2, 32, 4, intermediate_dim=40, gated=True, activation="silu", use_bias=False, norm="rms", norm_epsilon=1e-6,
    ...     norm_placement="pre", position="rotary", scale_embedding=False, pad_id=None)
    >>> txf.checkpoints.save(llama, folder, config)
    >>> txf.checkpoints.load(folder).generate([[5, 6]], max_new_tokens=3).shape
    (1, 5)
    """
    checks.optional(checks.boolean, "progress", progress)
    checks.optional(checks.dtype, "dtype", dtype)
    folder = find(path, revision)
    values = read_json(file_of(folder, "config.json"))
    family = find_family(values)
    with open_tensors(folder) as tensors:
        weights = weights_of(folder)
        with reading(weights):
            source = Source(values, family, tensors)
        task, new_head = choose_task(source, task, num_classes)
        with without_values() as made:
            model = build(source, task, num_classes, dtype, options)
        if "encoder" in family.tasks and "pad_id" not in options:
            check_padding(folder, model.get_layer("embedding").pad_id)
        with reading(weights, file_of(folder, "config.json")):
            kept, skipped = fill(model, source, task, new_head, progress)
        give_values(made)  # to what no tensor was for: a new head, generators of random numbers
    PROVENANCE[model] = Provenance(folder, values, task, options, kept, skipped)
    return model


@dataclasses.dataclass
class Provenance:
    """What a model was loaded from, for `save`."""

    folder: pathlib.Path
    config: dict
    task: str
    options: dict
    kept: dict = dataclasses.field(default_factory=dict)  # tensors of the file that are in no weight, by its names
    skipped: dict = dataclasses.field(default_factory=dict)  # first rows of tensors that are in no weight, by names of tables


PROVENANCE = weakref.WeakKeyDictionary()


class Source:
    """A checkpoint that is open.

    Its tensors go by one name each: without the body's prefix, and by the name of today for the weights of norms.
    """

    def __init__(self, values, family, tensors):
        self.values, self.family, self.tensors = values, family, tensors
        self.names = {}
        for name in tensors:
            known = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name.removeprefix(family.prefix)))
            if known in self.names:
                raise ValueError(f"The file has two tensors for {short_repr(known)}: {short_repr(self.names[known])} and {short_repr(name)}.")
            self.names[known] = name

    def read(self, name):
        return self.tensors.read(self.names[name])

    def has(self, name):
        """Whether there is a tensor of this name, or of a module of this name."""
        return any(known == name or known.startswith(f"{name}.") for known in self.names)

    def shape(self, name):
        return self.tensors.shape(self.names[name])

    def same(self, name, other):
        """Whether two tensors hold the same numbers."""
        return self.shape(name) == self.shape(other) and np.array_equal(self.read(name), self.read(other))


def check_padding(folder, pad_id):
    """Refuses a configuration that takes another token for padding than the folder's tokenizer: some copies of XLM's do."""
    files = [file_of(folder, name) for name in ("tokenizer_config.json", "tokenizer.json")]
    if pad_id is None or not all(map(pathlib.Path.is_file, files)):
        return
    pad = read_json(files[0]).get("pad_token")
    pad = pad.get("content") if isinstance(pad, dict) else pad
    tokens = read_json(files[1]).get("added_tokens") or []
    ids = {token.get("content"): token.get("id") for token in tokens if isinstance(token, dict)}
    if ids.get(pad, pad_id) != pad_id:
        raise ValueError(
            f"config.json has pad_token_id={pad_id}, and the tokenizer beside it {ids[pad]} for {short_repr(pad)}. Pass `pad_id` to say "
            f"which one is padding: transformers takes the tokenizer's word, pad_id={ids[pad]}."
        )


def find_family(values):
    kind = Config(values)("model_type", None)
    if kind not in FAMILIES:
        raise ValueError(f"config.json must have a `model_type` of {sorted(FAMILIES)}; received {short_repr(kind)}.")
    return FAMILIES[kind]


def task_of(values, tasks):
    """The name of the task that a config.json's class is for, or None."""
    architecture = (Config(values)("architectures", None) or [None])[0]
    return next((name for name, known in tasks.items() if known.architecture == architecture), None)


def choose_task(source, task, num_classes):
    """The name of the task, and whether its head is a new one."""
    config, tasks = Config(source.values), source.family.tasks
    if task is None:
        task = task_of(source.values, tasks) or next(iter(tasks))
        if task == "masked_lm" and not any(source.has(name) for name in modules_of(tasks[task].rows(config))):
            task = "encoder"  # a body that still goes by the name of what it was pretrained as
    checks.one_of("task", task, tasks)
    checks.optional(checks.positive_integer, "num_classes", num_classes)
    if "num_classes" not in tasks[task].options(config):
        if num_classes is not None:
            raise ValueError(f"`num_classes` is for classifiers; received {short_repr(num_classes)} for the task {short_repr(task)}.")
        return task, False
    last = as_tensor(tasks[task].rows(config)["logits"]).name
    new_head = f"{last}.weight" not in source.names or num_classes not in (None, config.num_classes())
    if new_head and num_classes is None:
        raise ValueError(f"The file has no head for {short_repr(task)}; `num_classes` must say how many classes the new one has.")
    return task, new_head


def table_of(family, task, config, model):
    """The rows of body and head, for a model; those of the body lie under its prefix."""
    body = {path: dataclasses.replace(as_tensor(row), inner=True) for path, row in family.rows(config).items()}
    untied = family.tasks[task].untied if has_own_logits(model) else {}
    return {**body, **family.tasks[task].rows(config), **untied}


def has_own_logits(model):
    """Whether the logits have a layer of their own: a classifier's, or one that is not tied to the embedding."""
    return any(layer.name == "logits" for layer in model.layers)


def modules_of(rows):
    """The names of modules or tensors in a head's rows, which have no number of a block."""
    return {as_tensor(row).name for row in rows.values()}


def build(source, task, num_classes, dtype, options):
    """The model; where weights wait for their values, it asks for no memory."""
    family, config = source.family, Config(source.values)
    found, tied = options_of(family, task, config, options)
    if num_classes is not None:
        found["num_classes"] = num_classes
    blocks = max(found["num_layers"], found.get("num_decoder_layers", 0))
    if blocks > len(source.names):  # before so many are built
        raise ValueError(f"config.json says that there are {blocks} blocks; the file has only {len(source.names)} tensors.")
    if task in LANGUAGE_MODELS:
        found["tie_embeddings"] = is_tied(source, task, config, tied)
    found.update({option: name in source.names for option, name in family.tasks[task].optional.items()})
    dtype = None if dtype is None else keras.dtype_policies.get(dtype)
    with in_words_of_config(config.values, options):
        return family.tasks[task].build(**{**found, "dtype": dtype, **options})


def options_of(family, task, config, own):
    """The builder's options that a config.json asks for, and whether it says that the logits are tied; `own` are the caller's."""
    with in_words_of_config(config.values, own):
        found = family.options(config)
        heads = {name: known.options(config) for name, known in family.tasks.items()}
    tied = config("tie_word_embeddings", True)
    config.check_all_known(family.neutral)
    return {**found, **heads[task]}, tied


@contextlib.contextmanager
def in_words_of_config(values, options):
    """Errors of a builder name its arguments; to the reader of a file it says which values those were.

    It catches all: how a backend fails at sizes that no machine holds is its own affair.
    """
    try:
        yield
    except Exception as error:
        words = str(error)
        if isinstance(error, ValueError) and "config.json" in words or any(name in words for name in options):
            raise
        known = {key: value for key, value in values.items() if key in KINDS}
        received = ", ".join(f"{key}={short_repr(value)}" for key, value in known.items())
        raise ValueError(f"config.json must describe a model that can be built; received {received}: {words}") from error


def is_tied(source, task, config, tied):
    """Whether the logits use the embedding: by what is in the file. Files may hold a tied table twice.

    Where there is none, and a config.json that says they are not tied, the file lacks it.
    """
    rows = source.family.tasks[task].rows(config)
    head = f"{rows['logits']}.weight"
    if head not in source.names:
        return tied or not source.family.says_tied
    body = source.family.rows(config)
    tables = [f"{body[path]}.weight" for path in ("target_embedding/token", "embedding/token") if path in body]
    table = next((name for name in tables if name in source.names), None)
    return tied and table is not None and source.same(head, table)


def fill(model, source, task, new_head, progress):
    """Gives each weight its tensor; refuses weights or tensors that would be left.

    Returns what `save` is to give back: tensors that are no weight's, and rows of those that are.
    """
    family, config = source.family, Config(source.values)
    head = family.tasks[task].rows(config)
    weights = list(model.weights)
    if new_head:
        new = {path for path, row in head.items() if path == "logits" or not source.has(as_tensor(row).name)}
        weights = [weight for weight in weights if weight.path.rpartition("/")[0] not in new]
    wanted = links(table_of(family, task, config, model), weights)
    resolve_aliases(source, {link.name for link in wanted})
    names, whole = check_names(source, task, {link.name for link in wanted}), family.tasks[task].whole
    kept = {source.names[name] if whole else name: source.read(name) for name in names}
    check_tensors(source, wanted)
    if progress is None:
        progress = sum(source.tensors.size(source.names[link.name]) for link in wanted) >= LARGE
    bar = keras.utils.Progbar(len(wanted), unit_name="tensor") if progress else None
    skipped = {}
    for link in wanted:
        rows = give(source, link)
        if link.way.skipped:
            skipped[link.name] = rows
        if bar is not None:
            bar.add(1)
    return kept, skipped


def give(source, link):
    """Reads a tensor and gives its weights their values; returns its rows that become no weight."""
    tensor = source.read(link.name)
    skipped, values = tensor[: link.way.skipped].copy(), link.read(tensor)
    del tensor  # so that `values` alone hold it
    for weight in link.variables:
        give_value(weight, values)
    return skipped


def check_tensors(source, wanted):
    """Each tensor has numbers of the right kind, as many and in such a shape as its weights need."""
    kinds = {source.names[link.name]: source.tensors.dtype(source.names[link.name]) for link in wanted}
    wrong = {name: kind for name, kind in kinds.items() if kind not in FLOATS}
    if wrong:
        raise ValueError(f"Weights must be of a type of {FLOATS}; received {short_repr(wrong)}.")
    wrong = [
        f"{short_repr(source.names[link.name])} of shape {source.shape(link.name)} for "
        + ", ".join(f"{short_repr(weight.path)} of shape {tuple(weight.shape)}" for weight in link.variables)
        for link in wanted
        if not link.fits(source.shape(link.name))
    ]
    if wrong:
        raise ValueError(f"Tensors and config.json must go together; received {'; '.join(wrong[:3])}{' ...' * (len(wrong) > 3)}.")


def resolve_aliases(source, wanted):
    """Tensors that may stand for another one do so, or must be the same."""
    aliases = {alias: name for alias, name in source.family.aliases.items() if alias not in wanted and name in wanted}
    for alias, name in aliases.items():
        if alias not in source.names:
            continue
        if name in source.names and not source.same(alias, name):
            raise ValueError(f"{short_repr(source.names[alias])} and {short_repr(source.names[name])} must be the same tensor; they differ.")
        source.names.setdefault(name, source.names[alias])
        del source.names[alias]


def check_names(source, task, wanted):
    """Each tensor is wanted, or known to be of no use here: a buffer, the head of another task, a tied table again.

    Returns the names of those that the same class in transformers has a use for.
    """
    family, config = source.family, Config(source.values)
    missing, offences = sorted(wanted - source.names.keys()), []
    if missing:
        offences.append(f"The file must have a tensor for each weight of the model; there is none named {short_repr(missing)}.")
    heads = [known.rows(config) for known in family.tasks.values()]
    of_heads = set().union(*map(modules_of, heads))
    tied = {f"{rows['logits']}.weight" for name, rows in zip(family.tasks, heads) if name in LANGUAGE_MODELS and name == task}
    left = [
        name
        for name in source.names.keys() - wanted
        if name not in tied
        and not any(re.fullmatch(pattern, name) for pattern in (*family.ignore, *family.kept))
        and not (name in of_heads or name.rpartition(".")[0] in of_heads)
    ]
    if left:
        left = sorted(source.names[name] for name in left)
        offences.append(f"The file has tensors that no weight of the model is for: {short_repr(left)}.")
    if offences:
        raise ValueError(" ".join(offences))
    if family.tasks[task].architecture not in (source.values.get("architectures") or ()):
        return [] if family.tasks[task].whole else [name for name in source.names if re.fullmatch(POOLER, name)]
    head = modules_of(family.tasks[task].rows(config)) - wanted
    return [name for name in source.names if name in head or any(re.fullmatch(pattern, name) for pattern in family.kept)]
