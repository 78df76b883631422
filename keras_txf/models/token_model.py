"""The class of the models of tokens: a functional Keras model that looks at its ids."""

import keras

from keras_txf import checks
from keras_txf.layers.options import register


@register
class TokenModel(keras.Model):
    """A functional model that refuses what is no id where it is called on values: Keras would cut 1.5 to 1, and 2**32 to 0."""

    def __call__(self, inputs, *args, **kwargs):
        if isinstance(inputs, dict):
            inputs = {name: self._look_at(name, value) for name, value in inputs.items()}
        elif isinstance(inputs, (list, tuple)) and len(self.inputs) == len(inputs) and (len(inputs) > 1 or hasattr(inputs[0], "shape")):
            inputs = [self._look_at(symbol.name, value) for symbol, value in zip(self.inputs, inputs)]
        else:
            inputs = self._look_at(self.inputs[0].name, inputs)
        return super().__call__(inputs, *args, **kwargs)

    def _look_at(self, name, value):
        symbol = next((symbol for symbol in self.inputs if symbol.name == name), None)
        if symbol is None or value is None:
            return value  # Keras has its own words for them
        value = checks.dense_tensor(name, value)
        if "int" in symbol.dtype:
            checks.token_ids(name, value, None)
        return value
