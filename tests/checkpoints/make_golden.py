"""Writes the folders of tests/checkpoints/golden: needs transformers and PyTorch, which the tests then do without.

python tests/checkpoints/make_golden.py            # all of them
python tests/checkpoints/make_golden.py phi gptj   # these
"""

import dataclasses
import json
import pathlib
import shutil
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import checkpoint_cases

FOLDER = pathlib.Path(__file__).parent / "golden"
# Smaller than in the comparison with transformers, for these lie in the repository.
SMALL = dict(
    hidden_size=8, dim=8, n_embd=8, d_model=8, num_hidden_layers=2, n_layers=2, n_layer=2, decoder_layers=2,
    num_decoder_layers=2, num_attention_heads=2, n_heads=2, n_head=2, num_heads=2, encoder_attention_heads=2,
    num_key_value_heads=1, head_dim=6, d_kv=6, intermediate_size=12, hidden_dim=12, ffn_dim=12, d_ff=12,
    encoder_ffn_dim=12, decoder_ffn_dim=14, ffn_hidden_size=12, n_inner=12, num_kv_heads=1, rotary_dim=2,
    moe_intermediate_size=16, shared_expert_intermediate_size=20, num_experts=3, num_local_experts=3,
    embedding_size=6, word_embed_proj_dim=6, projection_dim=6, projection_size=8, kv_lora_rank=6, q_lora_rank=7,
    qk_nope_head_dim=2, qk_rope_head_dim=4, v_head_dim=3, n_routed_experts=6, n_group=3,
    linear_num_value_heads=4, linear_key_head_dim=3, linear_value_head_dim=2,
)  # fmt: skip


def smaller(options):
    """Returns the options with small sizes, in the parts of a model too."""
    parts = {name: smaller(value) for name, value in options.items() if isinstance(value, dict)}
    small = {name: value for name, value in SMALL.items() if options.get(name) is not None}
    if "image_token_index" in options and "projection_dim" in options:  # PaliGemma's, of the decoder
        small["projection_dim"] = small["hidden_size"]
    return {**options, **small, **parts}


def main():
    import torch

    families = {}
    for case in checkpoint_cases.CASES:
        families.setdefault(case.family, case)
    families = {name: families[name] for name in sys.argv[1:]} or families
    for family, case in families.items():
        case = dataclasses.replace(case, options=smaller(case.options))
        model = case.model()
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            if name in model.state_dict() and not checkpoint_cases.is_fixed(family, name):
                parameter.data = parameter.data.half().float()  # so that half the bytes hold it
        values, ours, real = checkpoint_cases.inputs(case, model.config)
        with torch.no_grad():
            outputs = model(**{name: torch.tensor(value) for name, value in values.items()})
        logits = checkpoint_cases.answer_of(outputs).numpy()
        shutil.rmtree(FOLDER / family, ignore_errors=True)  # now, when the model has answered
        (FOLDER / family).mkdir(parents=True)
        if model.can_generate():
            prompts, forbidden, answers = checkpoint_cases.greedy(model)
            greedy = {"prompts": prompts, "forbidden": forbidden, "answers": answers.tolist()}
            (FOLDER / family / "greedy.json").write_text(json.dumps(greedy) + "\n")
        model.half().save_pretrained(FOLDER / family)
        (FOLDER / family / "generation_config.json").unlink(missing_ok=True)
        ours = ours if isinstance(ours, dict) else {"inputs": ours}
        np.savez_compressed(
            FOLDER / family / "expected.npz", logits=logits, real=real if real is not None else True, **ours
        )


if __name__ == "__main__":
    main()
