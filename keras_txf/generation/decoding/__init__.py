"""Decoding: the graph of a functional model, interpreted on the values of a prompt and of the tokens after it."""
