"""Draws the pictures of the journeys from the code of their pages.

PYTHONPATH=tests:. python docs/journeys/draw_pictures.py
"""

import os
import pathlib
import re
import shutil
import tempfile

import page_files

import keras_txf as txf

HERE = pathlib.Path(__file__).parent.resolve()


def main():
    with tempfile.TemporaryDirectory() as folder:
        page_files.write_files(pathlib.Path(folder))
        os.chdir(folder)
        run("look_at_images")
        shutil.copy("attention.png", HERE / "attention_on_images.png")
        ranker = run("rerank")["ranker"]
        inputs = ranker.inputs("who barks", "a dog")
        tokens = [ranker.tokenizer.id_to_token(id) for id in inputs["token_ids"][0]]
        scores = txf.visualize.attention_scores(ranker.model, inputs)
        txf.visualize.plot_attention(scores, tokens).savefig(HERE / "attention_of_a_pair.png", dpi=80)


def run(page):
    names = {}
    for code in re.findall(r"^```python\n(.*?)^```", (HERE / f"{page}.md").read_text(), flags=re.S | re.M):
        exec(code, names)
    return names


if __name__ == "__main__":
    main()
