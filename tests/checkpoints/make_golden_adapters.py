"""Writes the folders of tests/checkpoints/golden_adapters: needs peft, transformers and PyTorch.

python tests/checkpoints/make_golden_adapters.py
"""

import pathlib
import shutil

import numpy as np

FOLDER = pathlib.Path(__file__).parent / "golden_adapters"
BASES = pathlib.Path(__file__).parent / "golden"
ADAPTERS = {  # family -> class, its options, and options of the adapter
    "gpt2": ("GPT2LMHeadModel", {}, dict(
        r=2, lora_alpha=5, use_rslora=True, target_modules=["c_attn", "c_proj"], rank_pattern={"mlp.c_proj": 3},
        fan_in_fan_out=True, task_type="CAUSAL_LM",
    )),
    "roberta": ("RobertaForSequenceClassification", {"num_labels": 5}, dict(
        r=2, lora_alpha=3, target_modules=["query", "output.dense"], alpha_pattern={"layer.1.output.dense": 7},
        modules_to_save=["attention.output.LayerNorm"], task_type="SEQ_CLS",
    )),
}  # fmt: skip


def main():
    import peft
    import torch
    import transformers

    for family, (architecture, options, adapter) in ADAPTERS.items():
        torch.manual_seed(3)
        model = getattr(transformers, architecture).from_pretrained(BASES / family, dtype=torch.float32, **options)
        model = peft.get_peft_model(model, peft.LoraConfig(**adapter)).eval()
        model.peft_config["default"].base_model_name_or_path = family  # rather than a path of this machine
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = (parameter + 0.2 * torch.randn_like(parameter)).half().float()
        shutil.rmtree(FOLDER / family, ignore_errors=True)
        with np.load(BASES / family / "expected.npz") as file, torch.no_grad():
            ids, real = file["inputs"], file["real"]
            mask = real if real.ndim else np.ones(ids.shape, bool)
            logits = model(torch.tensor(ids), attention_mask=torch.tensor(mask.astype("int64"))).logits.numpy()
        model.save_pretrained(FOLDER / family)
        (FOLDER / family / "README.md").unlink(missing_ok=True)
        np.savez_compressed(FOLDER / family / "expected.npz", logits=logits, ids=ids, real=mask)


if __name__ == "__main__":
    main()
