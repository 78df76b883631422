"""Pure functions on `keras.ops`: the mathematics of the layers, without state."""
