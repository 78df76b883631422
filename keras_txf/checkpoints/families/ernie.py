"""ERNIE 2.0 and 3.0: BERT whose embedding may add a vector for the task."""

import keras
from keras import ops

from keras_txf import checks
from keras_txf.checkpoints.families.bert import BODY, bert, bert_family
from keras_txf.layers import PositionalEmbedding
from keras_txf.layers.serialization import register

TABLE = {**BODY, "embedding/task": "embeddings.task_type_embeddings"}


def options(c):
    types, used = c("task_type_vocab_size", 3), c("use_task_id", False)
    return {**bert(c), "task_types": types if used else None}


FAMILIES = {"ernie": bert_family("Ernie", "ernie.", options, TABLE)}


@register
class TaskEmbedding(PositionalEmbedding):
    """An embedding that adds the vector of task 0 to each token, as transformers does without ids of tasks.

    Args:
        task_types: number of tasks that have a vector, or None.
        options: options of `PositionalEmbedding`.

    Reference:
        [ERNIE 2.0](https://arxiv.org/abs/1907.12412), section 4.1.
    """

    weight_splits = {"task": "whole"}

    def __init__(self, vocab_size, dim, task_types=None, **options):
        super().__init__(vocab_size, dim, **options)
        self.task_types = checks.optional(checks.size, "task_types", task_types)
        if task_types is not None:
            self.task = self._table(keras.layers.Embedding, task_types, dim, "task")

    def build(self, inputs_shape):
        super().build(inputs_shape)
        if self.task_types is not None:
            self.task.build()

    def token_vectors(self, ids):
        x = super().token_vectors(ids)
        return x if self.task_types is None else x + self.task(ops.zeros((1,), "int32"))
