"""Pictures of what a model attends to, of positions and of a training."""

from keras_txf.visualize.attention_plots import plot_attention, plot_attention_on_image
from keras_txf.visualize.page import AttentionPage, view_attention
from keras_txf.visualize.plots import plot_history, plot_positions
from keras_txf.visualize.scores import attention_rollout, attention_scores

__all__ = [
    "AttentionPage",
    "attention_rollout",
    "attention_scores",
    "plot_attention",
    "plot_attention_on_image",
    "plot_history",
    "plot_positions",
    "view_attention",
]
