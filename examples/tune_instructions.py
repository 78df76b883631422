"""Teaches a generator to follow instructions, with the loss on the answers alone, and counts exact answers.

    python examples/tune_instructions.py                              # from nothing, on instructions of its making
    python examples/tune_instructions.py mine.jsonl --checkpoint DIR  # a checkpoint, on conversations of yours

Without a file, the data are instructions such as "Write 2031-05-17 in French." with answers of Unicode's CLDR, through
the package babel (pip install '.[examples]'). A line of a file is {"messages": [{"role": "user", "content": ...}, ...]}
or {"prompt": ..., "response": ...}. A tenth is held out. The checkpoint is a Hugging Face folder, or a repository of
the Hub.
"""

import argparse
import datetime
import json
import pathlib
import random
import sys

import data
import keras

import keras_txf as txf

LANGUAGES = {"English": "en_US", "German": "de", "French": "fr", "Spanish": "es", "Dutch": "nl", "Polish": "pl"}
FIRST = datetime.date(1950, 1, 1).toordinal()
# The form of a conversation, where the checkpoint has none: a line of the user, then the answer and its end.
TEMPLATE = "{% for m in messages %}{{ m.content }}{{ eos_token if m.role == 'assistant' else '\\n' }}{% endfor %}"


def main():
    options = parse_options()
    keras.utils.set_random_seed(options.seed)
    conversations = read(options.file) if options.file else make(options.count, options.seed)
    held = conversations[::10]
    training = [conversation for place, conversation in enumerate(conversations) if place % 10]
    print(f"Training on {len(training):,} conversations; the first step compiles a while.", flush=True)
    task = start(training, options)
    before = task.evaluate(held, batch_size=options.batch)
    rate = {} if options.rate is None else {"learning_rate": options.rate}
    task.fit(
        training, validation_data=held, epochs=options.epochs, batch_size=options.batch, seed=options.seed,
        callbacks=[data.log(options.out)], **rate,
    )  # fmt: skip
    after = task.evaluate(held, batch_size=options.batch)
    asked = held[: options.answers]
    answers = task.chat([messages[:-1] for messages in asked], options.length, batch_size=options.batch)
    for messages, answer in list(zip(asked, answers))[:5]:
        print(f"{messages[-2]['content']}\n  {answer}")
    exact = sum(answer.strip() == messages[-1]["content"].strip() for messages, answer in zip(asked, answers))
    data.report(
        options.out,
        f"Held-out cross-entropy of an answer's token {before['loss']:.3f} before and {after['loss']:.3f} after, "
        f"{exact} of {len(asked)} held-out answers exact",
    )
    task.save(pathlib.Path(options.out) / "generator")


def start(training, options):
    """A checkpoint, with its own chat template if it has one; or a generator that knows nothing, of bytes."""
    if options.checkpoint is None:
        tokenizer = txf.text.ByteTokenizer(end="</s>")
        return txf.tasks.TextGenerator.from_scratch(
            training, tokenizer=tokenizer, num_layers=options.layers, dim=options.dim, dropout=0.0,
            max_length=options.longest, chat_template=TEMPLATE,
        )  # fmt: skip
    folder = txf.checkpoints.find(options.checkpoint)
    task = txf.tasks.TextGenerator.from_checkpoint(folder, options.longest)
    if task.chat_template is None:
        task = txf.tasks.TextGenerator(task.model, task.tokenizer, task.max_length, task.learning_rate, TEMPLATE)
    return task


def make(count, seed):
    """Conversations of one instruction and one answer, no instruction twice."""
    import babel.dates
    import babel.numbers

    chance, found = random.Random(seed), {}
    while len(found) < count:
        language, locale = chance.choice(list(LANGUAGES.items()))
        date = datetime.date.fromordinal(FIRST + chance.randrange(36524))
        number = chance.randrange(1, 10 ** chance.randint(3, 6)) / 100
        kind = chance.randrange(4)
        if kind == 0:
            prompt, answer = f"Write {date} in {language}.", babel.dates.format_date(date, "long", locale)
        elif kind == 1:
            prompt, answer = f"Shorten {date} in {language}.", babel.dates.format_date(date, "short", locale)
        elif kind == 2:
            prompt, answer = (
                f"Write {number:.2f} in {language}.",
                babel.numbers.format_decimal(number, "#,##0.00", locale),
            )
        else:
            answer = babel.numbers.format_currency(number, "EUR", locale=locale)
            prompt = f"Write {number:.2f} euros in {language}."
        found[prompt] = answer
    return [conversation(*pair) for pair in found.items()]


def read(path):
    """The conversations of a .jsonl file, each with an answer at its end."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            messages = row["messages"] if "messages" in row else conversation(row["prompt"], row["response"])
            if len(messages) < 2 or messages[-1]["role"] != "assistant":
                raise ValueError("a conversation must end with an answer of the assistant")
        except (KeyError, TypeError, ValueError) as error:
            sys.exit(f"error: line {number} of {path} is no conversation: {error}.")
        found.append(messages)
    if len(found) < 20:
        sys.exit(f"error: {path} must have 20 conversations or more; it has {len(found)}.")
    return found


def conversation(prompt, response):
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=pathlib.Path, help="conversations to learn from, .jsonl")
    parser.add_argument("--checkpoint", metavar="DIR", help="folder, or repository of the Hub (default: none)")
    parser.add_argument("--out", metavar="DIR", default="runs/tune_instructions", help="%(default)s")
    parser.add_argument("--count", type=data.positive, default=20000, help="instructions to make (%(default)s)")
    parser.add_argument("--epochs", type=data.positive, default=3)
    parser.add_argument("--batch", type=data.positive, default=32, help="conversations a batch (%(default)s)")
    parser.add_argument("--longest", type=data.positive, default=128, help="tokens a conversation (%(default)s)")
    parser.add_argument("--layers", type=data.positive, default=3, help="of a new generator (%(default)s)")
    parser.add_argument("--dim", type=data.positive, default=128, help="of a new generator (%(default)s)")
    parser.add_argument("--rate", type=float, help="highest learning rate (1e-3, for a checkpoint 5e-5)")
    parser.add_argument("--answers", type=data.positive, default=500, help="held-out answers to write (%(default)s)")
    parser.add_argument("--length", type=data.positive, default=48, help="most tokens of an answer (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.file and not options.file.is_file():
        parser.error(f"argument file: there is no {options.file}")
    return options


if __name__ == "__main__":
    main()
