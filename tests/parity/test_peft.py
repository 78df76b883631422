"""Adapters of peft: we compute the same as peft from its folder, and peft computes the same from our folder."""

import contextlib
import json

import checkpoint_cases
import keras
import numpy as np
import pytest
from checkpoint_cases import CASES
from safetensors.numpy import load_file, save_file

import keras_txf as txf
from keras_txf.checkpoints.adapters import find_modules
from keras_txf.checkpoints.checkpoint_info import CHECKPOINT_INFO

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")
pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),  # others' own
    pytest.mark.skipif(keras.backend.backend() == "jax", reason="no other operations than on the others"),
]

BASES = {case.name: case for case in CASES}
ADAPTERS = {
    "bert-tokens": dict(r=3, target_modules=["query", "key", "dense"], lora_alpha=5, task_type="TOKEN_CLS"),
    "bert-classes": dict(r=2, target_modules=["value", "pooler.dense"], lora_alpha=3, task_type="SEQ_CLS"),
    "roberta-classes": dict(r=3, target_modules=["query", "dense"], task_type="SEQ_CLS",
                            rank_pattern={"^roberta.*output.dense": 5},
                            alpha_pattern={"query": 6, "layer.[12].intermediate.dense": 7}),
    "distilbert-classes": dict(r=3, target_modules=["q_lin", "lin2"], task_type="SEQ_CLS"),
    "gpt2-plain": dict(r=3, lora_alpha=7, target_modules=["c_attn", "c_proj"], use_rslora=True,
                       rank_pattern={"mlp.c_proj": 5}, fan_in_fan_out=True, task_type="CAUSAL_LM"),
    "gpt_neox-plain": dict(r=3, target_modules=["query_key_value", "dense"], lora_alpha=5, task_type="CAUSAL_LM"),
    "phi3-plain": dict(r=3, target_modules=["qkv_proj", "gate_up_proj", "lm_head"], task_type="CAUSAL_LM"),
    "opt-plain": dict(r=3, target_modules=["q_proj", "fc2", "out_proj"], layers_to_transform=[0, 2],
                      layers_pattern="layers"),
    "llama-plain": dict(r=3, target_modules=r".*\.(q_proj|v_proj|up_proj|down_proj)|lm_head", task_type="CAUSAL_LM",
                        modules_to_save=["embed_tokens"], lora_dropout=0.1),
    "llama-biased": dict(r=3, target_modules="all-linear", modules_to_save=["post_attention_layernorm", "model.norm"]),
    "deepseek_v3-groups": dict(r=3, task_type="CAUSAL_LM",
                               target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]),
    "qwen3_next-mixed": dict(r=3, target_modules=["in_proj_qkvz", "in_proj_ba", "q_proj", "out_proj", "o_proj"],
                             task_type="CAUSAL_LM"),
    "t5-gated": dict(r=3, target_modules=["q", "v", "wi_1", "wo"], lora_alpha=5, task_type="SEQ_2_SEQ_LM"),
    "bart-plain": dict(r=3, target_modules=["q_proj", "fc1", "out_proj"], exclude_modules=["decoder.layers.1.fc1"],
                       alpha_pattern={"encoder.layers.1.self_attn.q_proj": 5}),
    "deberta-classes": dict(r=3, target_modules=["in_proj", "pos_q_proj", "pooler.dense"], task_type="SEQ_CLS"),
    "deberta-v2-tokens": dict(r=3, target_modules=["query_proj", "pos_key_proj", "dense"], task_type="TOKEN_CLS"),
    "modernbert-classes": dict(r=3, target_modules=["Wqkv", "Wi", "Wo"], task_type="SEQ_CLS"),
    "gte-classes": dict(r=3, target_modules=["q_proj", "v_proj", "gate_proj", "down_proj"], task_type="SEQ_CLS"),
    "nomic_bert-masked": dict(r=3, target_modules=["k_proj", "o_proj", "up_proj"], modules_to_save=["layer_norm"]),
    "llava-plain": dict(r=3, target_modules=["q_proj", "up_proj", "fc1", "linear_2"]),
    "gemma3-plain": dict(r=3, target_modules=["q_proj", "fc1"], modules_to_save=["multi_modal_projector"]),
    "vit-classes": dict(r=3, target_modules=["q_proj", "o_proj", "fc2"], modules_to_save=["classifier", "layernorm"]),
}  # fmt: skip


UNREAD = "vision_tower.encoder.layers.2."  # the last block of LLaVA's images


def randomize(model, size=0.2):
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter += size * torch.randn_like(parameter)
    return model.eval()


class Loaded:
    """A base in both packages, and an adapter of peft on both."""

    def __init__(self, name, folder):
        self.case, self.base, self.adapter = BASES[name], folder / "base", folder / "adapter"
        model = self.case.model()
        model.save_pretrained(self.base)
        self.values, self.inputs, self.real = checkpoint_cases.inputs(self.case, model.config)
        self.bare = self.of_torch(model)
        self.theirs = randomize(peft.get_peft_model(model, peft.LoraConfig(**ADAPTERS[name])))
        self.theirs.save_pretrained(self.adapter)
        self.expected = self.of_torch(self.theirs)
        self.unread = {name for name in load_file(self.adapter / "adapter_model.safetensors") if UNREAD in name}
        self.ours = txf.checkpoints.load(self.base)

    def of_torch(self, model):
        with torch.no_grad():
            logits = model(**{name: torch.tensor(value) for name, value in self.values.items()}).logits.numpy()
        return self._where_real(logits)

    def of(self, model):
        return self._where_real(keras.ops.convert_to_numpy(model(self.inputs)))

    def peft_of(self, folder):
        """What peft makes of a folder; every tensor must find its place."""
        model = peft.PeftModel.from_pretrained(base_of(self.case, self.base), folder)
        found = model.load_adapter(folder, "again")
        assert not found.unexpected_keys and not [key for key in found.missing_keys if ".again." in key]
        return model.eval()

    def _where_real(self, logits):
        return logits if self.real is None or logits.ndim < 3 else logits[self.real]


def base_of(case, folder):
    return getattr(transformers, case.architecture).from_pretrained(folder)


def close(one, other):
    np.testing.assert_allclose(one, other, atol=1e-4 * max(1, np.abs(other).max()))


@pytest.fixture(params=ADAPTERS, scope="module")
def loaded(request, tmp_path_factory):
    found = Loaded(request.param, tmp_path_factory.mktemp(request.param))
    assert np.abs(found.expected - found.bare).max() > 0.1
    with pytest.warns(UserWarning, match="no output") if found.unread else contextlib.nullcontext():
        txf.checkpoints.load_adapter(found.ours, found.adapter)
    yield found
    keras.backend.clear_session()


def test_logits_are_those_of_peft(loaded):
    close(loaded.of(loaded.ours), loaded.expected)


def test_peft_loads_what_is_written(loaded, tmp_path):
    txf.checkpoints.save_adapter(loaded.ours, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(
        loaded.base
    )
    close(loaded.of_torch(loaded.peft_of(tmp_path / "again")), loaded.expected)
    before, after = (load_file(folder / "adapter_model.safetensors") for folder in (loaded.adapter, tmp_path / "again"))
    assert before.keys() == after.keys() | loaded.unread
    for name, value in after.items():
        np.testing.assert_array_equal(before[name], value)


def test_greedy_answers_are_those_of_peft(loaded):
    if not hasattr(loaded.ours, "generate"):
        return
    prompts, forbidden, expected = checkpoint_cases.greedy(loaded.theirs.get_base_model())
    np.testing.assert_array_equal(checkpoint_cases.answers(loaded.ours, prompts, forbidden), expected)


def test_merged_and_bare(loaded, tmp_path):
    """Last: it merges both."""
    if "modules_to_save" not in ADAPTERS[loaded.case.name]:  # of which some replace weights of the base
        txf.training.use_adapter(loaded.ours, None)
        close(loaded.of(loaded.ours), loaded.bare)
    txf.training.merge_adapter(loaded.ours)
    close(loaded.of(loaded.ours), loaded.expected)
    close(loaded.of(loaded.ours), loaded.of_torch(loaded.theirs.merge_and_unload()))
    txf.checkpoints.save(loaded.ours, tmp_path)
    close(loaded.of_torch(base_of(loaded.case, tmp_path)), loaded.expected)


OWN = [
    ("gpt2-plain", dict(targets=["*/query", "*/value"])),  # blocks of c_attn
    ("gpt2-plain", dict(targets="decoder_1/attention/key")),
    ("gpt2-plain", dict(targets=["*/attention/*", "*/feed_forward/*"], alpha=5)),
    ("gpt_neox-plain", dict(targets=["*/query", "*/value"])),  # blocks of each head
    ("bert-classes", dict()),
    ("bert-classes", dict(heads="logits", targets=["*/intermediate", "head"])),
    ("roberta-classes", dict(heads=())),
    ("modernbert-classes", dict(targets=["*/query", "*/gate", "*/output"])),
    ("distilbert-classes", dict(heads="logits", dropout=0.25)),
]


@pytest.mark.parametrize("name, options", OWN, ids=lambda value: value if isinstance(value, str) else "")
def test_peft_loads_adapters_of_ours(name, options, tmp_path):
    case = BASES[name]
    model = case.model()
    model.save_pretrained(tmp_path / "base")
    ours = txf.checkpoints.load(tmp_path / "base")
    txf.training.add_adapter(ours, "mine", **{"rank": 3, "alpha": 4, **options})
    draw = np.random.default_rng(3)
    for variable in ours.trainable_variables:
        variable.assign(variable + 0.2 * draw.normal(size=variable.shape))
    txf.checkpoints.save_adapter(ours, tmp_path / "adapter", "mine")
    again = txf.checkpoints.load(tmp_path / "base")
    txf.checkpoints.load_adapter(again, tmp_path / "adapter")
    loaded = Loaded.__new__(Loaded)
    loaded.case, loaded.base = case, tmp_path / "base"
    loaded.values, loaded.inputs, loaded.real = checkpoint_cases.inputs(case, model.config)
    close(loaded.of_torch(loaded.peft_of(tmp_path / "adapter")), loaded.of(ours))
    close(loaded.of(again), loaded.of(ours))
    assert np.abs(loaded.of(again) - loaded.of_torch(model)).max() > 0.01
    keras.backend.clear_session()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype, tmp_path):
    case = BASES["opt-plain"]
    case.model().save_pretrained(tmp_path / "base")
    theirs = peft.get_peft_model(case.model(), peft.LoraConfig(r=3, target_modules=["v_proj"]))
    randomize(theirs).to(getattr(torch, dtype)).save_pretrained(tmp_path / "adapter")
    ours = txf.checkpoints.load(tmp_path / "base")
    txf.checkpoints.load_adapter(ours, tmp_path / "adapter")
    txf.checkpoints.save_adapter(ours, tmp_path / "again", dtype=dtype)
    before, after = (load_file(tmp_path / folder / "adapter_model.safetensors") for folder in ("adapter", "again"))
    for name, value in before.items():
        assert str(after[name].dtype) == dtype
        np.testing.assert_array_equal(after[name], value)


def test_an_adapter_of_transformers_4(tmp_path):
    """Its ViT has the names of the files; the ViT of transformers 5 has other names."""
    case = BASES["vit-classes"]
    model = case.model()
    model.save_pretrained(tmp_path / "base")
    theirs = peft.get_peft_model(model, peft.LoraConfig(r=3, target_modules=["q_proj", "fc1", "fc2"]))
    randomize(theirs).save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    renamed = {"vit.layers": "vit.encoder.layer", "attention.q_proj": "attention.attention.query",
               "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}  # fmt: skip
    tensors = {}
    for name, value in load_file(file).items():
        for new, old in renamed.items():
            name = name.replace(new, old)
        tensors[name] = value
    save_file(tensors, file)
    config = tmp_path / "adapter" / "adapter_config.json"
    targets = {"target_modules": ["query", "intermediate.dense", "output.dense"],
               "exclude_modules": ["attention.output.dense"]}  # fmt: skip
    config.write_text(json.dumps({**json.loads(config.read_text()), **targets}))
    ours = txf.checkpoints.load(tmp_path / "base")
    txf.checkpoints.load_adapter(ours, tmp_path / "adapter")
    values, inputs, _ = checkpoint_cases.inputs(case, model.config)
    with torch.no_grad():
        close(keras.ops.convert_to_numpy(ours(inputs)), theirs(torch.tensor(values["pixel_values"])).logits.numpy())


NOT_BUILT = {"esm.contact_head.regression", "head", "head.mlp.fc1", "head.mlp.fc2"}  # heads
NOT_BUILT |= {f"vision_model.{name}" for name in NOT_BUILT}
NAMED = {case.family: case.name for case in reversed(CASES)}.values()  # the first of each family
OF_HEADS = ["bart-classes", "mbart-spans", "t5-classes", "t5-spans", "umt5-tokens", "clip-classes", "siglip-classes"]


@pytest.mark.parametrize("name", [*NAMED, *OF_HEADS])
def test_modules_have_the_names_of_transformers(name, tmp_path):
    case = BASES[name]
    model = case.model()
    model.save_pretrained(tmp_path)
    ours = txf.checkpoints.load(tmp_path)
    modules = find_modules(ours, CHECKPOINT_INFO[ours])
    assert modules.keys() <= dict(model.named_modules()).keys()
    dense = {name for name, module in model.named_modules() if type(module).__name__ in ("Linear", "Conv1D")}
    dense -= NOT_BUILT
    dense = {name for name in dense if case.family != "llava" or UNREAD not in name}
    tied = {f"{row}" for row in dense if model.get_output_embeddings() is model.get_submodule(row)}
    assert dense - tied <= {name for name, module in modules.items() if module.layers}
