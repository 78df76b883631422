"""Functional builders: each returns a plain functional `keras.Model`."""

from keras_txf.models.decoder import decoder, decoder_generator
from keras_txf.models.decoding_models import prefill_model, step_model
from keras_txf.models.dual_encoder import dual_encoder
from keras_txf.models.encoder import encoder
from keras_txf.models.encoder_heads import encoder_classifier, masked_language_model, span_classifier, token_classifier
from keras_txf.models.forecaster import forecaster
from keras_txf.models.generative import generative
from keras_txf.models.image_text import image_text_generator
from keras_txf.models.recurrent import recurrent_encoder_decoder
from keras_txf.models.seq2seq import encoder_decoder
from keras_txf.models.seq2seq_heads import encoder_decoder_classifier
from keras_txf.models.vision import image_classifier, image_encoder

__all__ = [
    "decoder",
    "decoder_generator",
    "dual_encoder",
    "encoder",
    "encoder_classifier",
    "encoder_decoder",
    "encoder_decoder_classifier",
    "forecaster",
    "generative",
    "image_classifier",
    "image_encoder",
    "image_text_generator",
    "masked_language_model",
    "prefill_model",
    "recurrent_encoder_decoder",
    "span_classifier",
    "step_model",
    "token_classifier",
]
