"""Checks of arguments. An error names the argument, the expected values and the received value."""

from keras_txf.checks.options import *  # noqa: F403
from keras_txf.checks.tensors import *  # noqa: F403
from keras_txf.checks.values import *  # noqa: F403
