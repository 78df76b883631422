"""Sounds: Whisper's spectrograms and `generate` with the settings of its folders, and waveforms for wav2vec 2.0."""

import keras
import numpy as np
import pytest
from case_sizes import WHISPER
from checkpoint_cases import Case

import keras_txf as txf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

RANDOM = np.random.default_rng(5)
FRAMES = RANDOM.normal(size=(3, 18, 10)).astype("float32")


@pytest.mark.parametrize("bins", [80, 128])
def test_spectrograms_are_those_of_transformers(bins):
    seconds = np.arange(20800) / 16000
    tones = np.sin(2 * np.pi * seconds * np.array([[440], [3000]])) * [[0.5], [0.02]]
    sounds = (tones + 0.003 * RANDOM.normal(size=tones.shape)).astype("float32")
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins, chunk_length=2)
    expected = extractor(list(sounds), sampling_rate=16000, return_tensors="np").input_features.transpose(0, 2, 1)
    found = txf.layers.LogMelSpectrogram(bins, num_samples=32000)(sounds)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(found), expected, atol=1e-4)


@pytest.mark.parametrize("lengths", [(300, 300), (300, 170)])
def test_normalized_waveforms_are_those_of_transformers(lengths):
    sounds = [(0.2 + 0.05 * RANDOM.normal(size=length)).astype("float32") for length in lengths]
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    expected = extractor(sounds, sampling_rate=16000, padding=True, return_tensors="np")
    padded = np.stack([np.pad(sound, (0, max(lengths) - len(sound))) for sound in sounds])
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    np.testing.assert_array_equal(mask, expected.attention_mask)
    found = txf.layers.WaveformNormalization()(padded, mask=mask)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(found), expected.input_values, atol=1e-5)


BASE = dict(decoder_start_token_id=3, eos_token_id=2, bos_token_id=2, pad_token_id=2, max_new_tokens=9)
SUPPRESSED = dict(begin_suppress_tokens=[4, 2], suppress_tokens=[11, 17, 23, 5])
LANGUAGES = dict(  # tokens above `no_timestamps_token_id` would be times
    is_multilingual=True, lang_to_id={"<|en|>": 50, "<|de|>": 51, "<|fr|>": 52}, no_timestamps_token_id=60,
    task_to_id={"transcribe": 58, "translate": 59}, return_timestamps=False,
)  # fmt: skip
SETTINGS = {
    "suppressed": {**BASE, **SUPPRESSED},
    "beams": {**BASE, **SUPPRESSED, "num_beams": 3, "forced_decoder_ids": [[1, 20], [2, 30]]},
    "language": {**BASE, **SUPPRESSED, **LANGUAGES, "language": "de", "task": "translate"},
    "detected": {**BASE, **SUPPRESSED, **LANGUAGES, "forced_decoder_ids": [[1, None], [2, 58]]},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_generate_without_being_told(settings, tmp_path):
    model = Case("", "whisper", "WhisperForConditionalGeneration", {**WHISPER, "pad_token_id": 2}).model()
    model.generation_config = transformers.GenerationConfig(**settings)
    model.save_pretrained(tmp_path / "first")
    ours = txf.checkpoints.load(tmp_path / "first")
    found = ours.generate(inputs={"source_features": FRAMES})
    txf.checkpoints.save(ours, tmp_path / "saved")
    theirs = type(model).from_pretrained(tmp_path / "saved").eval()
    inputs = torch.tensor(FRAMES.transpose(0, 2, 1))
    if "lang_to_id" in settings and "language" not in settings:
        # We return the tokens that the model chose or was made to say, and count them; transformers does neither.
        languages = theirs.detect_language(inputs, generation_config=theirs.generation_config)
        np.testing.assert_array_equal(found[:, :3], [[language, 58, 60] for language in languages.tolist()])
        found = found[:, 3:]
    for row, frames in zip(found, inputs):  # of several rows transformers leaves out less at the end of the shorter
        with torch.no_grad():
            expected = theirs.generate(frames[None])[0].numpy()[: len(row)]
        np.testing.assert_array_equal(row[: len(expected)], expected)
        assert len(expected) == len(row) or 2 in expected or row[len(expected)] == 2
