"""Losses, metrics, schedules, targets, callbacks and fine-tuning. `compile` and `fit` stay Keras' own."""

from keras_txf.training.adapter_files import load_adapter, save_adapter
from keras_txf.training.adapters import add_adapter, merge_adapter, remove_adapter, use_adapter
from keras_txf.training.averaging import KeepCheckpoints, average_checkpoints
from keras_txf.training.contrastive import RDrop, SigmoidContrastiveLoss, SoftmaxContrastiveLoss
from keras_txf.training.cost import Cost, cost
from keras_txf.training.freezing import freeze, unfreeze
from keras_txf.training.label_shift import next_token_windows, shift_labels, teacher_forcing
from keras_txf.training.layouts import layout_map
from keras_txf.training.learning_rates import InverseSquareRoot, layerwise_decay, warmup_cosine
from keras_txf.training.losses import TokenCrossEntropy
from keras_txf.training.metrics import Perplexity, TokenAccuracy, answer_scores, entities, entity_scores
from keras_txf.training.preferences import PreferenceAccuracy, PreferenceLoss, preference_model
from keras_txf.training.resuming import Resume
from keras_txf.training.scores import GenerationScores

__all__ = [
    "Cost",
    "GenerationScores",
    "InverseSquareRoot",
    "KeepCheckpoints",
    "Perplexity",
    "PreferenceAccuracy",
    "PreferenceLoss",
    "RDrop",
    "Resume",
    "SigmoidContrastiveLoss",
    "SoftmaxContrastiveLoss",
    "TokenAccuracy",
    "TokenCrossEntropy",
    "add_adapter",
    "answer_scores",
    "average_checkpoints",
    "cost",
    "entities",
    "entity_scores",
    "freeze",
    "layerwise_decay",
    "layout_map",
    "load_adapter",
    "merge_adapter",
    "next_token_windows",
    "preference_model",
    "remove_adapter",
    "save_adapter",
    "shift_labels",
    "teacher_forcing",
    "unfreeze",
    "use_adapter",
    "warmup_cosine",
]
