"""Early errors in the caller's words: the argument, what was expected, what came."""

from keras_txf.checks.tensors import *  # noqa: F403
from keras_txf.checks.values import *  # noqa: F403
