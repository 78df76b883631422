"""Teaches a causal checkpoint the manner of a text file of yours with LoRA, then has it write.

    python examples/finetune_generator.py --checkpoint DIR mine.txt
    python examples/finetune_generator.py --checkpoint DIR --prompt "It was"     # with the adapter of the last training

The checkpoint is a Hugging Face folder (GPT-2, OPT, Llama, Mistral, Qwen, SmolLM, Gemma), or a repository of the Hub
(pip install '.[examples,hub]'). A `tokenizer.json` needs pip install '.[examples]'.
"""

import argparse
import pathlib
import sys

import data
import keras

import keras_txf as txf

HUB = "openai-community/gpt2"


def main():
    options = parse_options()
    print(f"Loading {options.checkpoint}.", file=sys.stderr, flush=True)
    folder = txf.checkpoints.find(options.checkpoint)
    tokenizer = txf.text.from_checkpoint(folder)
    model = txf.checkpoints.load(folder, "causal_lm")
    adapter = pathlib.Path(options.out) / "adapter.safetensors"
    if options.file is not None:
        train(model, tokenizer, adapter, options)
    elif adapter.is_file():
        txf.training.load_adapter(model, adapter, "manner")
    else:
        sys.exit(f"error: there is no {adapter}; name a text file to learn from first.")
    prompt = encode(tokenizer, options.prompt)
    [written] = model.generate([prompt], options.length, options.sampler, seed=options.seed, padded=False)
    print(tokenizer.detokenize([written])[0])


def encode(tokenizer, text):
    return tokenizer([text]).numpy()[0]


def train(model, tokenizer, adapter, options):
    keras.utils.set_random_seed(options.seed)
    ids = encode(tokenizer, options.file.read_text(encoding="utf-8"))
    cut = len(ids) * 9 // 10
    training, held_out = (txf.training.next_token_windows(part, options.context) for part in (ids[:cut], ids[cut:]))
    txf.training.add_adapter(
        model, "manner", options.rank, alpha=2 * options.rank, dropout=0.05, targets="*/attention/*"
    )
    steps = options.epochs * -(-len(training[0]) // options.batch)
    rate = txf.training.warmup_cosine(options.rate, max(1, steps // 10), max(2, steps))
    model.compile(keras.optimizers.AdamW(rate, global_clipnorm=1.0), txf.training.TokenCrossEntropy(pad_id=None))
    print("Evaluating, then training; each compiles for some seconds.", flush=True)
    print(f"Held-out cross-entropy {model.evaluate(*held_out, options.batch, verbose=0):.3f} before")
    logs = [data.log(options.out)]
    model.fit(*training, options.batch, options.epochs, validation_data=held_out, callbacks=logs)
    data.report(options.out, f"Held-out cross-entropy {model.evaluate(*held_out, options.batch, verbose=0):.3f} after")
    txf.training.save_adapter(model, adapter, "manner")
    print(f"Wrote {adapter}.")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=pathlib.Path, help="text file to learn from")
    parser.add_argument(
        "--checkpoint", metavar="DIR", default=HUB, help="folder, or repository of the Hub (%(default)s)"
    )
    parser.add_argument("--out", metavar="DIR", default="runs/finetune_generator", help="%(default)s")
    parser.add_argument("--prompt", default="The", help="what to go on from (default: %(default)s)")
    parser.add_argument("--rank", type=data.positive, default=8, help="of the adapter (default: %(default)s)")
    parser.add_argument("--epochs", type=data.positive, default=2)
    parser.add_argument("--batch", type=data.positive, default=8, help="rows a batch (default: %(default)s)")
    parser.add_argument("--context", type=data.positive, default=128, help="tokens a row (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=5e-4, help="highest learning rate (default: %(default)s)")
    parser.add_argument("--length", type=data.positive, default=100, help="tokens to write (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.file is None:
        data.refuse_training_options(parser, options, "rank", "epochs", "batch", "context", "rate")
    if not options.prompt:
        parser.error("argument --prompt: expected a text to go on from, got an empty one")
    try:
        options.sampler = txf.generation.Sampling(options.temperature, top_p=0.95)
    except ValueError as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    main()
