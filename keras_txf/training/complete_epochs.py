"""CompleteEpochs: what the callbacks share that save at the end of an epoch."""

import keras


class CompleteEpochs(keras.callbacks.Callback):
    """Knows at the end of an epoch whether a callback earlier in the list stopped the training within the epoch."""

    async_safe = True  # Keras may call `on_train_batch_end` from a thread of its own

    def on_train_begin(self, logs=None):
        self._stopped_inside = False
        self._trained = self.model  # on JAX each access to `model` within an epoch copies the state back

    def on_train_batch_end(self, batch, logs=None):
        self._stopped_inside = self._trained.stop_training
