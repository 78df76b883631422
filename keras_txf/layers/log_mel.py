"""LogMelSpectrogram: what Whisper reads of a sound."""

from typing import Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.serialization import register
from keras_txf.ops.mel import mel_filters

FLOOR = 1e-10  # of the power, so that silence has a logarithm
RANGE = 8.0  # logarithms (base 10) below the loudest point of a sound, from where on all is as quiet


@register
class LogMelSpectrogram(Layer):
    """Turns waveforms into log-mel spectrograms as Whisper reads them.

    For sounds on their way to an `AudioEmbedding`, in a `tf.data` pipeline of TensorFlow or as the first layer of a
    model. It has no weights. The spectrogram of each sound is scaled by its loudest point. Computed in float32 under
    every policy.

    Args:
        num_mel_bins: number F of bands; 80, of Whisper large v3 128.
        sampling_rate: samples a second of the waveforms. Other rates than 16,000 must be resampled for a Whisper.
        frame_length: number of samples that a frame reads.
        hop_length: number of samples from one frame to the next.
        num_samples: length to which waveforms are cut, or padded with silence; 480,000 for a Whisper, which reads 30
            seconds. Default: each waveform as long as it is.

    Call arguments:
        inputs: float (B, samples), from -1 to 1, more than half a frame and at least a hop long.

    Returns:
        (B, T, F), T the number of samples divided by `hop_length`, rounded down.

    Raises:
        ValueError: sizes that are no positive integers, integers as waveforms, a waveform that is too short.

    Reference:
        [Robust Speech Recognition via Large-Scale Weak Supervision](https://arxiv.org/abs/2212.04356), section 2.2.

    Example:

    >>> layer = txf.layers.LogMelSpectrogram(num_mel_bins=80)
    >>> layer(np.sin(np.arange(16000, dtype="float32") / 8)[None]).shape  # a second of a tone
    (1, 100, 80)
    """

    def __init__(
        self,
        num_mel_bins: int = 80,
        sampling_rate: int = 16000,
        frame_length: int = 400,
        hop_length: int = 160,
        num_samples: int | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.num_mel_bins = checks.size("num_mel_bins", num_mel_bins)
        self.sampling_rate = checks.size("sampling_rate", sampling_rate)
        self.frame_length = checks.size("frame_length", frame_length)
        self.hop_length = checks.size("hop_length", hop_length)
        self.num_samples = checks.optional(checks.size, "num_samples", num_samples)
        self.autocast = False  # half precision would lose the quiet parts
        if num_samples is not None:
            self._check_length("num_samples", num_samples)
        self._filters = mel_filters(frame_length // 2 + 1, num_mel_bins, sampling_rate).astype("float32")

    def call(self, inputs):
        checks.rank("inputs", inputs, (2, "(batch, samples)"))
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if not keras.backend.is_float_dtype(dtype):
            raise ValueError(
                f"`inputs` must be floats from -1 to 1, such as 16-bit samples divided by 32768; received {dtype}."
            )
        x = ops.cast(inputs, "float32")
        if self.num_samples is not None:
            x = ops.pad(x[:, : self.num_samples], ((0, 0), (0, self.num_samples)))[:, : self.num_samples]
        else:
            self._check_length("inputs", checks.known_length(x))
        real, imaginary = ops.stft(x, self.frame_length, self.hop_length, self.frame_length)
        power = (ops.square(real) + ops.square(imaginary))[:, :-1]  # as Whisper leaves the last frame out
        logs = ops.log10(ops.maximum(ops.matmul(power, self._filters), FLOOR))
        logs = ops.maximum(logs, ops.max(logs, axis=(1, 2), keepdims=True) - RANGE)
        return ops.cast((logs + 4.0) / 4.0, self.compute_dtype)

    def _check_length(self, name, length):
        least = max(self.frame_length // 2 + 1, self.hop_length)
        if length is not None and length < least:
            raise ValueError(
                f"`{name}` must be at least {least} samples: more than half of frame_length={self.frame_length}, and "
                f"hop_length={self.hop_length}; received {length}."
            )

    def compute_output_shape(self, inputs_shape):
        samples = self.num_samples or inputs_shape[1]
        return (inputs_shape[0], None if samples is None else samples // self.hop_length, self.num_mel_bins)
