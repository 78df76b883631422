"""`adapter_config.json` of a peft adapter: the modules that the adapter changes, their ranks and scales."""

import collections
import math
import re
import time

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.strangers import SECONDS, ask

FILE = "adapter_config.json"
# Keys without an effect on the outputs.
NEUTRAL = {
    "base_model_name_or_path", "revision", "inference_mode", "task_type", "auto_mapping", "peft_type", "peft_version",
    "fan_in_fan_out", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "megatron_core",
    "qalora_group_size", "runtime_config", "velora_config", "ensure_weight_tying",
}  # fmt: skip
# Initial values of the adapter that do not change the weights of the base.
INITIAL = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
TASK_TYPES = {
    "causal_lm": "CAUSAL_LM", "seq2seq": "SEQ_2_SEQ_LM", "sequence_classification": "SEQ_CLS",
    "token_classification": "TOKEN_CLS", "encoder": "FEATURE_EXTRACTION",
}  # fmt: skip


def _names(name, value):
    """Checks a list of names, or one pattern."""
    return value if value is None or isinstance(value, str) else checks.strings(name, value)


def _indices(name, value):
    return checks.integer(name, value) if not isinstance(value, list) else [checks.integer(name, i) for i in value]


def _by_module(check):
    def check_all(name, value):
        if not isinstance(value, dict):
            raise ValueError(f"`{name}` must be a dict of modules; received {short_repr(value)}.")
        return {module: check(name, number) for module, number in value.items()}

    return check_all


CHECKS = {  # key -> the default and the check of its value
    "r": (8, checks.positive_integer),
    "lora_alpha": (8, checks.positive_number),
    "lora_dropout": (0.0, checks.rate),
    "use_rslora": (False, checks.boolean),
    "target_modules": (None, _names),
    "exclude_modules": (None, _names),
    "modules_to_save": ([], checks.strings),
    "rank_pattern": ({}, _by_module(checks.positive_integer)),
    "alpha_pattern": ({}, _by_module(checks.positive_number)),
    "layers_to_transform": (None, _indices),
    "layers_pattern": ([], _names),
    "bias": ("none", lambda name, value: checks.one_of(name, value, ("none",))),
    "init_lora_weights": (True, lambda name, value: checks.one_of(name, value, INITIAL)),
}


class LoraConfig:
    """The checked values of an `adapter_config.json`.

    Args:
        values: dict, as in the file.

    Raises:
        ValueError: an adapter that is not LoRA, or an option that changes the mathematics of LoRA.
    """

    def __init__(self, values):
        self.seconds = 0.0  # spent on matching the patterns
        checks.one_of("peft_type", values.get("peft_type"), ("LORA",))
        unknown = {key: values[key] for key in values.keys() - NEUTRAL - CHECKS.keys() if values[key]}
        if unknown:
            raise ValueError(f"it must ask for plain LoRA; received also {short_repr(dict(sorted(unknown.items())))}.")
        found = {key: values.get(key) for key in CHECKS}
        self.values = {
            key: default if found[key] is None else check(key, found[key]) for key, (default, check) in CHECKS.items()
        }
        if not self.values["target_modules"]:
            raise ValueError("it must have `target_modules`; received none.")

    def options_of(self, module):
        """Returns the options of our adapter on a module."""
        rank = self._of("rank_pattern", module, self.values["r"])
        alpha = self._of("alpha_pattern", module, self.values["lora_alpha"])
        scaled = alpha * math.sqrt(rank) if self.values["use_rslora"] else alpha
        return {"rank": rank, "alpha": float(scaled), "dropout": self.values["lora_dropout"]}

    def targets(self, module):
        """Whether a module of Dense layers gets an adapter."""
        if self._names(self.values["exclude_modules"], module) or self.saves(module):
            return False
        names = self.values["target_modules"]
        if names == "all-linear":
            return True
        if isinstance(names, str) or module in names or self.values["layers_to_transform"] in (None, []):
            return self._names(names, module)
        patterns = self.values["layers_pattern"] or [r"[^.]*"]
        before = r"(?:^|.*?\.)" if self.values["layers_pattern"] else r".*?\."
        patterns = [patterns] if isinstance(patterns, str) else patterns
        matches = [self._match(before, pattern, r"\.(\d+)\.", module) for pattern in patterns]
        index = next((int(groups[0]) for groups in matches if groups is not None), None)
        chosen = self.values["layers_to_transform"]
        return self._names(names, module) and index in (chosen if isinstance(chosen, list) else [chosen])

    def saves(self, module):
        """Whether a module, or a module around it, is saved as a whole with the adapter."""
        parts = module.split(".")
        around = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        return any(path.endswith(name) for name in self.values["modules_to_save"] for path in around)

    def _of(self, key, module, default):
        patterns = self.values[key]
        found = (name for name in patterns if self._match(r"(.*\.)?(", name, ")$", module) is not None)
        return patterns.get(next(found, module), default)

    def _names(self, names, module):
        if isinstance(names, str):
            return self._timed("full_match", names, module)
        return any(f".{module}".endswith(f".{name}") for name in names or ())

    def _match(self, before, pattern, after, module):
        """Returns the groups of a match of `pattern`, which the file wrote, between two expressions; None without."""
        if re.fullmatch(r"[\w.]*", pattern):
            found = re.match(f"{before}{pattern}{after}", module)
            return found and found.groups()
        return self._timed("match", f"{before}{pattern}{after}", module)

    def _timed(self, function, pattern, module):
        start = time.monotonic()
        result = ask(function, pattern, module)
        self.seconds += time.monotonic() - start
        if self.seconds > SECONDS:
            raise ValueError(f"its patterns must be matched within {SECONDS} seconds; they took more")
        return result


def config_of(modules, to_save, transposed, task, base):
    """Returns the values of an `adapter_config.json`.

    Args:
        modules: dict of names of modules -> the options of their adapters.
        to_save: names of modules that are saved as a whole.
        transposed: whether kernels of the checkpoint are (inputs, outputs).
        task: name of the checkpoint's task.
        base: value of `base_model_name_or_path`.
    """
    ranks = {name: options["rank"] for name, options in modules.items()}
    alphas = {name: options["alpha"] for name, options in modules.items()}
    dropouts = {options["dropout"] for options in modules.values()}
    if len(dropouts) > 1:
        raise ValueError(
            f"`model` must have one dropout in all layers of the adapter; received {short_repr(sorted(dropouts))}."
        )
    by_root = {name: alphas[name] / math.sqrt(ranks[name]) for name in modules}
    use_rslora = not all(map(_is_whole, alphas.values())) and all(map(_is_whole, by_root.values()))
    alphas = {name: _plain(alpha) for name, alpha in (by_root if use_rslora else alphas).items()}
    rank, alpha = (collections.Counter(values.values()).most_common(1)[0][0] for values in (ranks, alphas))
    heads_are_saved = "classifier" in to_save or not task.endswith("_classification")  # peft saves these by itself
    return {
        "peft_type": "LORA",
        "task_type": TASK_TYPES.get(task) if heads_are_saved else None,
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": dropouts.pop(),
        "use_rslora": use_rslora,
        "target_modules": sorted(modules),
        "modules_to_save": sorted(to_save) or None,
        "rank_pattern": {name: value for name, value in ranks.items() if value != rank},
        "alpha_pattern": {name: value for name, value in alphas.items() if value != alpha},
        "fan_in_fan_out": transposed,
        "bias": "none",
        "init_lora_weights": True,
        "inference_mode": True,
    }


def _is_whole(number):
    return abs(number - round(number)) < 1e-9 * max(1, number)


def _plain(number):
    """Returns a whole number as an integer, as other readers of the file expect."""
    return round(number) if _is_whole(number) else number
