"""The text model of a folder of texts and images (Gemma 3, Qwen 3.5) has the logits of the whole model on texts."""

import json

import checkpoint_cases
import keras
import numpy as np
import pytest
from case_sizes import FIVE, LLAMA
from decoder_cases import DELTA
from refusals import refused
from safetensors.numpy import load_file, save_file

import keras_txf as txf

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*share.*")]

TEXT = {**LLAMA, "vocab_size": 70, "num_hidden_layers": 2}
GEMMA = {
    "text_config": {**TEXT, "head_dim": 10, "sliding_window": 4,
                    "layer_types": ["sliding_attention", "full_attention"]},
    "vision_config": dict(hidden_size=12, intermediate_size=14, num_hidden_layers=1, num_attention_heads=2,
                          image_size=8, patch_size=4, model_type="siglip_vision_model"), "mm_tokens_per_image": 4,
    "image_token_index": 65, "boi_token_index": 66, "eoi_token_index": 67,
}  # fmt: skip
QWEN = {
    "text_config": {**TEXT, **DELTA, "model_type": "qwen3_5_text",
                    "layer_types": ["linear_attention", "full_attention"]},
    "vision_config": dict(hidden_size=12, intermediate_size=14, depth=1, num_heads=2, patch_size=4, out_hidden_size=24,
                          num_position_embeddings=4), "image_token_id": 65, "video_token_id": 66,
    "vision_start_token_id": 67, "vision_end_token_id": 68,
}  # fmt: skip
SIZES = {"gemma3": GEMMA, "qwen3_5": QWEN}
ALONE = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma3ForSequenceClassification": "Gemma3TextForSequenceClassification", "Gemma3Model": "Gemma3TextModel",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5ForSequenceClassification": "Qwen3_5TextForSequenceClassification", "Qwen3_5Model": "Qwen3_5TextModel",
}  # fmt: skip
OLD = {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head."}
NEW = {"language_model.model.": "model.language_model.", "vision_tower.": "model.vision_tower."}


def written(folder, architecture="Gemma3ForConditionalGeneration", **options):
    """A model of random weights, and its folder."""
    kind = "gemma3" if architecture.startswith("Gemma3") else "qwen3_5"
    case = checkpoint_cases.Case(kind, kind, architecture, {**SIZES[kind], **options})
    model = case.model()
    model.save_pretrained(folder)
    return model


def loaded(folder, task=None, **options):
    """The text model alone."""
    with pytest.warns(UserWarning, match="model of texts and images; its text model alone is loaded"):
        return txf.checkpoints.load(folder, task, **options)


def theirs(model, ids):
    with torch.no_grad():
        found = model(torch.tensor(ids), attention_mask=torch.tensor((ids != 0).astype("int64")))
    return (found.logits if "logits" in found else found.last_hidden_state).numpy()


IDS = np.array([[5, 8, 9, 11, 6, 7, 12], [15, 18, 9, 21, 16, 0, 0]])


@pytest.mark.parametrize("architecture", ALONE)
def test_the_text_model_is_that_of_transformers(architecture, tmp_path):
    options = {**FIVE} if "Classification" in architecture else {}
    model = written(tmp_path / "whole", architecture, **options)
    task = "causal_lm" if architecture == "Gemma3ForConditionalGeneration" else None
    ours, expected = loaded(tmp_path / "whole", task), theirs(model, IDS)
    found = keras.ops.convert_to_numpy(ours(IDS))
    real = IDS != 0 if found.ndim == 3 else slice(None)
    np.testing.assert_allclose(found[real], expected[real], atol=1e-4)
    txf.checkpoints.save(ours, tmp_path / "text")
    config = json.loads((tmp_path / "text" / "config.json").read_text())
    kind = "gemma3_text" if architecture.startswith("Gemma3") else "qwen3_5_text"
    assert config["model_type"] == kind and config["architectures"] == [ALONE[architecture]]
    again, info = getattr(transformers, ALONE[architecture]).from_pretrained(
        tmp_path / "text", output_loading_info=True
    )
    assert not any(info.values())
    np.testing.assert_allclose(theirs(again.eval(), IDS)[real], expected[real], atol=1e-4)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(txf.checkpoints.load(tmp_path / "text")(IDS)), found)


@pytest.mark.parametrize("tied", [True, False])
def test_old_and_new_names_of_tensors(tied, tmp_path):
    written(tmp_path, tie_word_embeddings=tied)
    expected = keras.ops.convert_to_numpy(loaded(tmp_path, "causal_lm")(IDS))
    whole = [keras.ops.convert_to_numpy(x) for x in txf.checkpoints.load(tmp_path).weights]
    tensors = load_file(tmp_path / "model.safetensors")
    for renaming in (OLD, NEW):
        for old, new in renaming.items():
            tensors = {new + name.removeprefix(old) if name.startswith(old) else name: x for name, x in tensors.items()}
        save_file(tensors, tmp_path / "model.safetensors")
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(loaded(tmp_path, "causal_lm")(IDS)), expected)
        for before, after in zip(whole, txf.checkpoints.load(tmp_path).weights, strict=True):
            np.testing.assert_array_equal(before, keras.ops.convert_to_numpy(after))


def test_a_text_model_that_transformers_took_out_of_the_whole(tmp_path):
    """Its folder has the `model_type` of the text model, and the names of tensors of the whole model."""
    whole = written(tmp_path / "whole", "Qwen3_5ForConditionalGeneration")
    text = transformers.Qwen3_5ForCausalLM.from_pretrained(tmp_path / "whole")
    text.save_pretrained(tmp_path / "text")
    assert "model.language_model.norm.weight" in load_file(tmp_path / "text" / "model.safetensors")
    ours = txf.checkpoints.load(tmp_path / "text")
    np.testing.assert_allclose(keras.ops.convert_to_numpy(ours(IDS))[IDS != 0], theirs(whole, IDS)[IDS != 0], atol=1e-4)


def test_keys_of_the_whole_that_change_the_text_model_raise_value_error(tmp_path):
    written(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for changed, words in (
        ({"quantization_config": {"bits": 4}}, ["'quantization_config'"]),
        ({"text_config": None}, ["`text_config`", "None"]),
        ({"text_config": {**config["text_config"], "attn_logit_softcapping": 3.0}}, ["'attn_logit_softcapping'"]),
    ):
        path.write_text(json.dumps({**config, **changed}))
        refused(lambda: txf.checkpoints.load(tmp_path, "causal_lm"), ["config.json", *words])
