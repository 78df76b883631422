"""Mel filters: how much each frequency counts in each band of a mel spectrogram. Constants in float64."""

import math

import numpy as np

LINEAR = 200 / 3  # Hz a mel below 1,000 Hz
BREAK = 1000.0  # Hz, from where on the scale is logarithmic
STEP = math.log(6.4) / 27  # logarithm of the ratio of two frequencies that are a mel apart there


def mel_filters(num_frequencies, num_bands, sampling_rate):
    """Triangles between neighbouring bands of Slaney's mel scale, each of area 2, from 0 Hz to half the sampling rate.

    Args:
        num_frequencies: number of frequencies of the Fourier transform, from 0 Hz to half the sampling rate.
        num_bands: number of bands.
        sampling_rate: samples a second.

    Returns:
        NumPy float64 (num_frequencies, num_bands).

    Reference:
        [Auditory Toolbox](https://engineering.purdue.edu/~malcolm/interval/1998-010/), whose scale librosa and Whisper
        have.
    """
    highest = sampling_rate / 2
    frequencies = np.linspace(0, highest, num_frequencies)
    corners = to_hertz(np.linspace(0, to_mel(highest), num_bands + 2))
    low, middle, high = corners[:-2], corners[1:-1], corners[2:]
    rising = (frequencies[:, None] - low) / (middle - low)
    falling = (high - frequencies[:, None]) / (high - middle)
    return np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)


def to_mel(hertz):
    """A frequency on the mel scale."""
    return hertz / LINEAR if hertz < BREAK else BREAK / LINEAR + math.log(hertz / BREAK) / STEP


def to_hertz(mels):
    """The frequencies of an array of mels."""
    above = np.maximum(mels - BREAK / LINEAR, 0)
    return np.where(above > 0, BREAK * np.exp(STEP * above), LINEAR * mels)
