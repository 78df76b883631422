"""What the two tables of bad input share: small models, and the check of a message."""

import functools

import numpy as np
import pytest

from keras_txf import models

BUILDERS = {
    "encoder": functools.partial(models.encoder, vocab_size=11, num_layers=2, dim=8, num_heads=2),
    "encoder_classifier": functools.partial(models.encoder_classifier, vocab_size=11, num_classes=3, num_layers=2,
                                            dim=8, num_heads=2),
    "decoder": functools.partial(models.decoder, vocab_size=11, num_layers=2, dim=8, num_heads=2),
    "decoder_generator": functools.partial(models.decoder_generator, vocab_size=11, num_layers=2, dim=8, num_heads=2),
    "encoder_decoder": functools.partial(models.encoder_decoder, source_vocab_size=11, target_vocab_size=11,
                                         num_layers=2, dim=8, num_heads=2),
}  # fmt: skip
IMAGE_BUILDERS = {
    "image_encoder": functools.partial(models.image_encoder, image_size=(6, 8), patch_size=2, num_layers=2, dim=8,
                                       num_heads=2),
    "image_classifier": functools.partial(models.image_classifier, image_size=(6, 8), patch_size=2, num_classes=3,
                                          num_layers=2, dim=8, num_heads=2),
}  # fmt: skip

X = np.zeros((2, 5, 8), "float32")
CONTEXT = np.zeros((2, 3, 6), "float32")
IDS = np.array([[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]], "int32")
IMAGES = np.zeros((2, 6, 8, 3), "float32")
SEGMENTS = np.ones((2, 5), "int32")


@functools.cache
def built(kind, **options):
    """One model for all rows that need it."""
    return {**BUILDERS, **IMAGE_BUILDERS}[kind](**options)


def generate(prompts, **arguments):
    return built("decoder_generator").generate(prompts, **{"max_new_tokens": 2, **arguments})


def answer(sources, **arguments):
    return built("encoder_decoder").generate(sources, **{"max_new_tokens": 2, **arguments})


def refused(call, words):
    """A ValueError whose message holds all the words: the argument, what was expected, what came."""
    with pytest.raises(ValueError) as error:
        call()
    missing = [word for word in words if word not in str(error.value)]
    assert not missing, f"{missing} not in {error.value}"
