"""Tiny checkpoints that tests write: a config.json, and tensors of random numbers under Hugging Face's names."""

import json

import ml_dtypes  # noqa: F401  NumPy learns bfloat16 from it
import numpy as np
from safetensors.numpy import save_file

GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 11, "n_positions": 7, "n_embd": 8,
    "n_layer": 2, "n_head": 2, "n_inner": 12, "activation_function": "gelu_new", "tie_word_embeddings": True,
}  # fmt: skip
BERT = {
    "model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 11, "max_position_embeddings": 7,
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12, "hidden_act": "gelu",
    "type_vocab_size": 3,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 11, "max_position_embeddings": 7,
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 12, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS = {"gpt2": GPT2, "bert": BERT, "llama": LLAMA}


def shapes(config):
    """The shape of each tensor that transformers saves for such a configuration, without buffers and tied tables."""
    return {"gpt2": _gpt2, "bert": _bert, "llama": _llama}[config["model_type"]](config)


def tensors(config, dtype="float32", seed=5):
    """Numbers around 0 for each tensor, which every type of floats holds as they are."""
    draw = np.random.default_rng(seed)
    numbers = {name: draw.integers(-99, 100, shape) / 64 for name, shape in shapes(config).items()}
    return {name: array.astype(np.dtype(dtype)) for name, array in numbers.items()}


def write(folder, config, arrays, shards=1):
    """A folder with these files; returns it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = sorted(arrays)
    files = {f"model-{i + 1:05}-of-{shards:05}.safetensors": names[i::shards] for i in range(shards)}
    for file, held in files.items():
        save_file({name: arrays[name] for name in held}, folder / file)
    places = {name: file for file, held in files.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def _linear(name, rows, columns, bias=True):
    return {f"{name}.weight": (rows, columns), **({f"{name}.bias": (rows,)} if bias else {})}


def _norm(name, dim):
    return {f"{name}.weight": (dim,), f"{name}.bias": (dim,)}


def _gpt2(c):
    dim, wide = c["n_embd"], c["n_inner"]
    found = {"transformer.wte.weight": (c["vocab_size"], dim), "transformer.wpe.weight": (c["n_positions"], dim)}
    for i in range(c["n_layer"]):
        block = f"transformer.h.{i}"
        sizes = {"attn.c_attn": (dim, 3 * dim), "attn.c_proj": (dim, dim), "mlp.c_fc": (dim, wide),
                 "mlp.c_proj": (wide, dim)}  # fmt: skip
        for name, (inputs, outputs) in sizes.items():
            found |= {f"{block}.{name}.weight": (inputs, outputs), f"{block}.{name}.bias": (outputs,)}
        found |= _norm(f"{block}.ln_1", dim) | _norm(f"{block}.ln_2", dim)
    return found | _norm("transformer.ln_f", dim)


def _bert(c):
    dim, wide = c["hidden_size"], c["intermediate_size"]
    tables = {"word": c["vocab_size"], "position": c["max_position_embeddings"], "token_type": c["type_vocab_size"]}
    found = {f"bert.embeddings.{name}_embeddings.weight": (rows, dim) for name, rows in tables.items()}
    found |= _norm("bert.embeddings.LayerNorm", dim)
    for i in range(c["num_hidden_layers"]):
        block = f"bert.encoder.layer.{i}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            found |= _linear(f"{block}.attention.{name}", dim, dim)
        found |= _linear(f"{block}.intermediate.dense", wide, dim) | _linear(f"{block}.output.dense", dim, wide)
        found |= _norm(f"{block}.attention.output.LayerNorm", dim) | _norm(f"{block}.output.LayerNorm", dim)
    head = "cls.predictions"
    found |= _linear(f"{head}.transform.dense", dim, dim) | _norm(f"{head}.transform.LayerNorm", dim)
    return found | {f"{head}.bias": (c["vocab_size"],)}


def _llama(c):
    dim, wide = c["hidden_size"], c["intermediate_size"]
    narrow = dim // c["num_attention_heads"] * c["num_key_value_heads"]
    found = {"model.embed_tokens.weight": (c["vocab_size"], dim), "model.norm.weight": (dim,)}
    for i in range(c["num_hidden_layers"]):
        block = f"model.layers.{i}"
        for name, rows, columns in (
            ("self_attn.q_proj", dim, dim), ("self_attn.k_proj", narrow, dim), ("self_attn.v_proj", narrow, dim),
            ("self_attn.o_proj", dim, dim), ("mlp.gate_proj", wide, dim), ("mlp.up_proj", wide, dim),
            ("mlp.down_proj", dim, wide),
        ):  # fmt: skip
            found |= _linear(f"{block}.{name}", rows, columns, bias=False)
        found |= {f"{block}.{name}.weight": (dim,) for name in ("input_layernorm", "post_attention_layernorm")}
    return found if c["tie_word_embeddings"] else found | {"lm_head.weight": (c["vocab_size"], dim)}
