"""Runs the notebooks from top to bottom and keeps their outputs.

    python docs/site/run_notebooks.py              # all, on data that they download
    python docs/site/run_notebooks.py classify     # one

KERAS_TXF_DATA and KERAS_TXF_CHECKPOINT in the environment name local folders in place of downloads.
It needs pip install '.[examples,tasks,hub]' nbclient ipykernel.
"""

import argparse
import pathlib
import re
import tempfile

import nbclient
import nbformat

FOLDER = pathlib.Path(__file__).parents[1] / "notebooks"


def main():
    names = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (default: all)")
    for name in parser.parse_args().names or names:
        path = FOLDER / f"{name}.ipynb"
        with tempfile.TemporaryDirectory() as folder:
            notebook = execute(path, folder)
        nbformat.write(notebook, path)
        print(f"Wrote {path}.")


def execute(path, folder):
    """The notebook with the outputs of a run in `folder`, but for times, versions and addresses."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(
        notebook, timeout=1800, kernel_name="python3", coalesce_streams=True, resources=resources
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "text/plain" in output.get("data", {}):
                output.data["text/plain"] = re.sub(" at 0x[0-9a-f]+", "", output.data["text/plain"])
    notebook.metadata.language_info = {"name": "python"}
    return notebook


if __name__ == "__main__":
    main()
