"""The files that name a private name of Keras."""
