"""Slaney's mel scale by its definition: 15 mels at 1,000 Hz, and 27 more for each factor of 6.4."""

import numpy as np
import pytest

from keras_txf.layers.audio import to_hertz, to_mel


@pytest.mark.parametrize("hertz, mels", [(0, 0), (200, 3), (1000, 15), (6400, 42), (40960, 69)])
def test_the_scale(hertz, mels):
    assert to_mel(hertz) == pytest.approx(mels)
    np.testing.assert_allclose(to_hertz(np.array([mels], "float64")), [hertz])
