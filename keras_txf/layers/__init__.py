"""Keras layers, each usable alone in any functional, Sequential or subclassed model."""

from keras_txf.layers.attention import CrossAttention, MultiHeadSelfAttention
from keras_txf.layers.attention_pooling import AttentionPooling
from keras_txf.layers.audio import AudioEmbedding, LogMelSpectrogram
from keras_txf.layers.blocks import DecoderBlock, EncoderBlock
from keras_txf.layers.cache_kinds import Int8Cache, SinkCache
from keras_txf.layers.caches import Cache
from keras_txf.layers.disentangled import DisentangledPositions
from keras_txf.layers.embeddings import PositionalEmbedding
from keras_txf.layers.features import FeatureEmbedding
from keras_txf.layers.feed_forward import FeedForward
from keras_txf.layers.gated_delta_net import GatedDeltaNet
from keras_txf.layers.heads import LogitAdjustment, Pooling
from keras_txf.layers.latent_attention import LatentAttention
from keras_txf.layers.mamba2 import Mamba2
from keras_txf.layers.mixture_of_experts import MixtureOfExperts
from keras_txf.layers.patches import PatchEmbedding
from keras_txf.layers.placeholders import InsertVectors
from keras_txf.layers.positions import ALiBi, RelativeBias
from keras_txf.layers.recurrent import RecurrentDecoder
from keras_txf.layers.residual import Residual
from keras_txf.layers.rotary import AxialRotary, Rotary
from keras_txf.layers.sequence_ends import SoftPrompt
from keras_txf.layers.short_convolution import ShortConvolution
from keras_txf.layers.waveform import WaveformEmbedding
from keras_txf.layers.waveform_parts import WaveformNormalization

__all__ = [
    "ALiBi",
    "AttentionPooling",
    "AudioEmbedding",
    "AxialRotary",
    "Cache",
    "CrossAttention",
    "DecoderBlock",
    "DisentangledPositions",
    "EncoderBlock",
    "FeatureEmbedding",
    "FeedForward",
    "GatedDeltaNet",
    "InsertVectors",
    "Int8Cache",
    "LatentAttention",
    "LogMelSpectrogram",
    "LogitAdjustment",
    "Mamba2",
    "MixtureOfExperts",
    "MultiHeadSelfAttention",
    "PatchEmbedding",
    "Pooling",
    "PositionalEmbedding",
    "RecurrentDecoder",
    "RelativeBias",
    "Residual",
    "Rotary",
    "ShortConvolution",
    "SinkCache",
    "SoftPrompt",
    "WaveformEmbedding",
    "WaveformNormalization",
]
