"""The loop that reads all tokens again for each new one, with which models wired by hand are compared."""

import drawing
import keras
import numpy as np

VOCABULARY, NEW = 11, 5
PROMPTS = [[5, 3, 8], [7, 2, 4]]


def ids_input(name="token_ids"):
    return keras.Input((None,), dtype="int32", name=name)


def logits_of(model, ids, others):
    ids = np.array(ids, "int32")
    if isinstance(model.input, dict):
        ids = {("target_ids" if "target_ids" in model.input else "token_ids"): ids, **others}
    outputs = model(ids)
    return drawing.array(outputs["logits"] if isinstance(outputs, dict) else outputs)[:, -1]


def naive(model, prompts, others):
    ids = prompts
    for _ in range(NEW):
        logits = logits_of(model, ids, others)
        if model.name == "ensemble":
            logits[:, 0] = -np.inf  # padding is never chosen
        ids = np.concatenate([ids, logits.argmax(-1)[:, None]], axis=1)
    return ids[:, -NEW:]
