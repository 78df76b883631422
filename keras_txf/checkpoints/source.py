"""The tensors of an open checkpoint, and the checks that they fit a model."""

import collections
import re
import warnings

import numpy as np

from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.family import LANGUAGE_MODELS, POOLER, modules_of
from keras_txf.checkpoints.text_parts import TEXT_PARTS, text_name
from keras_txf.checkpoints.weight_map import as_tensor
from keras_txf.checks import short_repr

FLOATS = {"F64": "float32", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # in files -> of models


class Source:
    """An open checkpoint.

    Each tensor has one name: without the prefix of the body, and with `weight` and `bias` instead of the older names
    `gamma` and `beta` of the weights of norms.

    Args:
        values: values of the family's config.json.
        family: `Family`.
        tensors: `Tensors` of the folder.
        kind: `model_type` of the folder, which may name a model of texts and images.
    """

    def __init__(self, values, family, tensors, kind=None):
        self.values, self.family, self.tensors = values, family, tensors
        self.names, inside = {}, set()
        is_text = kind not in TEXT_PARTS or values["model_type"] != kind
        of_text = {name: text_name(name, kind) if is_text else name for name in tensors}
        own_names = {name: family.own_name(own) for name, own in of_text.items() if own is not None}
        prefix = prefix_of(family, own_names.values())
        for name, own in own_names.items():
            known = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", own.removeprefix(prefix)))
            if known in self.names:
                raise ValueError(
                    f"The file has two tensors for {short_repr(known)}: {short_repr(self.names[known])} and "
                    f"{short_repr(name)}."
                )
            self.names[known] = name
            if own.startswith(prefix):
                inside.add(known)
        outside = self.names.keys() - inside
        # If the body's names have its prefix, all other tensors belong to heads.
        self.of_heads = outside if len(outside) < len(self.names) else set()
        self.prefix = prefix if inside else ""

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


def prefix_of(family, names):
    """Returns the prefix of the body in a file with tensors of these names."""
    prefixes = [family.prefix, family.other_prefix]
    return next((prefix for prefix in prefixes if prefix and any(n.startswith(prefix) for n in names)), family.prefix)


def most_common_dtype(tensors):
    """Returns the dtype for a model that most numbers in the open files have; None if they hold no floats."""
    numbers = collections.Counter()
    for name in tensors:
        if tensors.dtype(name) in FLOATS:
            numbers[FLOATS[tensors.dtype(name)]] += tensors.size(name)
    return max(numbers, key=numbers.get) if numbers else None


def resolve_aliases(source, wanted):
    """Renames aliases to the tensors that they stand for; raises ValueError if the two tensors in a file differ."""
    aliases = {alias: name for alias, name in source.family.aliases.items() if alias not in wanted and name in wanted}
    for alias, name in aliases.items():
        if alias not in source.names:
            continue
        if name in source.names and not source.same(alias, name):
            raise ValueError(
                f"{short_repr(source.names[alias])} and {short_repr(source.names[name])} must be the same tensor; they "
                "differ."
            )
        source.names.setdefault(name, source.names[alias])
        del source.names[alias]


def check_names(source, task, wanted, asked):
    """Raises ValueError for missing and unknown tensors.

    Buffers, heads of other tasks and copies of a tied table are known too.

    Args:
        source: `Source`.
        task: name of the task.
        wanted: names of the tensors that have a weight.
        asked: whether the caller asked for the task, or its head is new.

    Returns the names of the tensors without a weight that the same class in transformers uses.
    """
    family, config = source.family, Config(source.values)
    own = modules_of(family.tasks[task].rows(config))
    missing, offences = sorted(wanted - source.names.keys()), []
    if missing:
        is_body = "encoder" in family.tasks and {name.rpartition(".")[0] for name in missing} <= own
        offences.append(
            f"The file must have a tensor for each weight of the model; there is none named {short_repr(missing)}."
            + " Pass task='encoder' for the model without this head." * is_body
        )
    heads = [known.rows(config) for known in family.tasks.values()]
    # A head that the model has: each of its tensors must have a weight.
    of_heads = set().union(*map(modules_of, heads)) - {name.rpartition(".")[0] for name in wanted}
    roots = {name.partition(".")[0] for name in own}
    skipped = {
        name
        for name in source.of_heads
        if not family.tasks[task].whole or asked and name.partition(".")[0] not in roots
    }
    tied = {
        f"{rows['logits']}.weight"
        for name, rows in zip(family.tasks, heads)
        if name in LANGUAGE_MODELS and name == task
    }
    kept_tensors = family.kept_tensors(config)
    known = (*family.ignore, *kept_tensors, *family.kept_in_body, *family.tasks[task].ignore)
    left = [
        name
        for name in source.names.keys() - wanted
        if name not in tied | skipped
        and not any(re.fullmatch(pattern, name) for pattern in known)
        and not (name in of_heads or name.rpartition(".")[0] in of_heads)
    ]
    outside = []
    if not source.prefix and not family.tasks[task].whole:  # such as the `linear` of ColBERT
        modules = {as_tensor(row).name.partition(".")[0] for row in family.rows(config).values()}
        outside = sorted(name for name in left if name.partition(".")[0] not in modules)
        left = set(left) - set(outside)
    if left:
        left = sorted(source.names[name] for name in left)
        offences.append(f"The file has tensors that no weight of the model is for: {short_repr(left)}.")
    if offences:
        raise ValueError(" ".join(offences))
    if outside:
        warnings.warn(
            f"The file has tensors outside of the model, which are ignored: {short_repr(outside)}.",
            stacklevel=5,  # the caller of `load`
        )
    if family.tasks[task].architecture not in (source.values.get("architectures") or ()):
        kept = (*family.kept_in_body, *(() if family.tasks[task].whole else (POOLER, *kept_tensors)))
        return [name for name in source.names.keys() - wanted if any(re.fullmatch(pattern, name) for pattern in kept)]
    head = modules_of(family.tasks[task].rows(config)) - wanted
    return [
        name
        for name in source.names.keys() - wanted
        if name in head or any(re.fullmatch(pattern, name) for pattern in (*kept_tensors, *family.kept_in_body))
    ]


def names_of_other_class(source, task, wanted):
    """Returns the names of the tensors without a weight in a file of the body with a head that no builder makes.

    Such a class is `CLIPTextModelWithProjection`. A file of the body alone has no such tensors.
    """
    family, others = source.family, source.names.keys() - wanted
    known = {one.architecture for one in family.tasks.values()}
    if family.tasks[task].whole or not known.isdisjoint(source.values.get("architectures") or known):
        return []
    buffers = (*family.ignore, *family.tasks[task].ignore)
    return [] if all(any(re.fullmatch(pattern, name) for pattern in buffers) for name in others) else sorted(others)


# Options that decide which tensors a head has.
OF_HEADS = {"tie_embeddings", "head", "logit_bias"}


def check_head(source, head, wanted, options, tied):
    """Raises ValueError if options of the caller leave out trained tensors of the head.

    Args:
        source: `Source`.
        head: the rows of the head.
        wanted: names of the tensors that have a weight.
        options: the caller's options.
        tied: whether the logits of a language model are a copy of the embedding, if the file holds them.
    """
    modules = modules_of(head)
    lost = [name for name in source.names.keys() - wanted if {name, name.rpartition(".")[0]} & modules]
    if tied and "logits" in head:
        copies = {f"{module}.weight" for module in modules_of({"logits": head["logits"]})}
        lost = [name for name in lost if name not in copies]
    if lost and not OF_HEADS.isdisjoint(options):
        raise ValueError(
            "Options must keep each tensor of the head; the model has no weight for "
            f"{short_repr(sorted(source.names[name] for name in lost))}."
        )


def check_tensors(source, wanted):
    """Raises ValueError if the dtype or the shape of a tensor does not fit its weight."""
    kinds = {source.names[link.name]: source.tensors.dtype(source.names[link.name]) for link in wanted}
    wrong = {name: kind for name, kind in kinds.items() if kind not in FLOATS}
    if wrong:
        raise ValueError(f"Weights must be of a type of {[*FLOATS]}; received {short_repr(wrong)}.")
    wrong = [
        f"{short_repr(source.names[link.name])} of shape {source.shape(link.name)} for "
        + ", ".join(f"{short_repr(weight.path)} of shape {tuple(weight.shape)}" for weight in link.variables)
        for link in wanted
        if not link.fits(source.shape(link.name))
    ]
    if wrong:
        raise ValueError(
            f"Tensors and config.json must go together; received {'; '.join(wrong[:3])}{' ...' * (len(wrong) > 3)}."
        )
