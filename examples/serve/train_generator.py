"""Trains a small Llama on stories, and writes the Hugging Face folder that app.py and other engines serve.

    python examples/serve/train_generator.py          # writes runs/serve/generator

examples/stories.py makes the stories. After this training the model writes sentences for a server. It does not answer
the questions in the stories: examples/answer_questions.py trains a model that does.
"""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # of data.py and stories.py
import data

# isort: split
import keras
import stories

import keras_txf as txf

END, PADDING = "</s>", "<pad>"


def main():
    options = parse_options()
    task = train(options)
    write(task, pathlib.Path(options.out))
    print(f"Wrote {options.out}.")
    again = txf.tasks.TextGenerator.from_checkpoint(options.out)
    prompt = "anna went to the"
    print(f"{prompt}{again.generate(prompt, max_new_tokens=16)}")


def train(options):
    keras.utils.set_random_seed(options.seed)
    examples = stories.make_stories(options.count + 100, options.seed)
    lines = [f"{story} {question} {answer}" for story, question, answer, _ in examples]
    training, held_out = lines[:-100], lines[-100:]
    special = dict(special_tokens=(PADDING, END), pad_token=PADDING, end=END)
    tokenizer = txf.text.BytePairTokenizer.train(training, 500, **special)
    # These options are those of Llama. With others no engine that knows Llama could read the folder.
    model = txf.models.decoder_generator(
        tokenizer.vocab_size, options.layers, options.dim, num_heads=4, intermediate_dim=options.dim * 8 // 3,
        norm="rms", norm_placement="pre", position="rotary", gated=True, activation="silu", use_bias=False,
        scale_embedding=False, pad_id=tokenizer.pad_id,
    )  # fmt: skip
    print(f"Training {model.count_params():,} weights on {len(training):,} stories ...", flush=True)
    task = txf.tasks.TextGenerator(model, tokenizer, max_length=128)
    task.fit(training, epochs=options.epochs, learning_rate=3e-3, verbose=2)
    print(f"Perplexity of a token {task.evaluate(held_out)['perplexity']:.2f} on 100 held-out stories", flush=True)
    return task


def write(task, folder):
    """Writes config.json and the weights, and the tokenizer: `checkpoints.save` knows no tokenizer of a new model."""
    txf.checkpoints.save(task.model, folder, family="llama")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["eos_token_id"] = task.tokenizer.token_to_id(END)  # else nothing ends an answer
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PADDING}
    for name, text in {
        "config.json": json.dumps(config, indent=1),
        "tokenizer.json": task.tokenizer.get_config()["definition"],
        "tokenizer_config.json": json.dumps(names, indent=1),
    }.items():
        data.write(folder / name, text)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="DIR", default="runs/serve/generator", help="%(default)s")
    parser.add_argument("--count", type=data.positive, default=3000, help="stories to train on (default: 3000)")
    parser.add_argument("--epochs", type=data.positive, default=2)
    parser.add_argument("--layers", type=data.positive, default=4)
    parser.add_argument("--dim", type=data.positive, default=128, help="of the model, a multiple of 8 (default: 128)")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
