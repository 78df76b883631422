"""Commands: `python -m keras_txf describe FOLDER` and `python -m keras_txf families`."""

import argparse
import sys


def main(arguments=None):
    """Runs a command. Returns 0, or 1 if the described folder does not load."""
    parser = argparse.ArgumentParser("python -m keras_txf", description="About checkpoints of Hugging Face.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "describe", help="model type, tasks, parameters and memory of a folder; what is refused"
    )
    command.add_argument("folder", help="a folder with config.json, or a repository of the Hub")
    commands.add_parser("families", help="the model types that load, and their tasks")
    options = parser.parse_args(arguments)

    from keras_txf import checkpoints  # after the help, which needs no backend

    if options.command == "families":
        for kind, tasks in checkpoints.families().items():
            print(f"{kind:20} {', '.join(tasks)}")
        return 0
    try:
        found = checkpoints.describe(options.folder)
    except (ImportError, OSError, ValueError) as error:  # the Hub's errors are OSErrors, some of several lines
        print(" ".join(str(error).split()), file=sys.stderr)
        return 1
    print(found)
    return found.problem is not None


if __name__ == "__main__":
    sys.exit(main())
