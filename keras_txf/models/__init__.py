"""Functional builders: each returns a plain functional `keras.Model`."""

from keras_txf.models.decoder import decoder, decoder_generator
from keras_txf.models.encoder import encoder, encoder_classifier
from keras_txf.models.seq2seq import encoder_decoder

__all__ = ["decoder", "decoder_generator", "encoder", "encoder_classifier", "encoder_decoder"]
