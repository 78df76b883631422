"""Code for a backend, a compiler or private names of Keras."""
