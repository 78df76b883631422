"""The examples of serving: a SavedModel in a process without the package, and the app that batches in real requests."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time

import app
import batches
import export_classifier
import httpx
import pytest
import script_cases
import uvicorn

import keras_txf as txf

SERVE = script_cases.ROOT / "examples" / "serve"
# The package cannot be imported. Keras can: tensorflow_text imports it.
ALONE = """
import runpy, sys
sys.modules["keras_txf"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
PREDICT = "/v1/models/language:predict"
TEXTS = ["samedi 3 mars 2018", "2018年3月3日", "", "3 maart"]


@contextlib.contextmanager
def saved_model_server(folder):
    """Yields the address of the server."""
    command = [sys.executable, "-c", ALONE, SERVE / "saved_model_server.py", folder, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder)
    with process:
        try:
            yield process.stdout.readline().split()[-1]
        finally:
            process.kill()


@pytest.mark.slow
def test_a_saved_model_is_served_without_the_package(tmp_path, monkeypatch):
    kept, train = [], export_classifier.train
    monkeypatch.setattr(export_classifier, "train", lambda options: kept.append(train(options)) or kept[0])
    printed = script_cases.output("export_classifier", "--out", tmp_path, "--count", 900, "--epochs", 1)
    assert "input  text: string (None,)" in printed and "output label: string (None,)" in printed
    probabilities = kept[0].predict(TEXTS, return_probabilities=True, verbose=0)
    labels = [kept[0].labels[row.argmax()] for row in probabilities]
    with saved_model_server(tmp_path) as address, httpx.Client(base_url=address) as client:
        [status] = client.get("/v1/models/language").json()["model_version_status"]
        assert (status["version"], status["state"]) == ("1", "AVAILABLE")
        for named in (TEXTS, [{"text": text} for text in TEXTS]):
            answer = client.post(PREDICT, json={"instances": named})
            assert answer.status_code == 200, answer.text
            rows = answer.json()["predictions"]
            assert [row["label"] for row in rows] == labels
            assert [row["probabilities"] for row in rows] == [pytest.approx(row, abs=1e-5) for row in probabilities]
        for named in (TEXTS, {"text": TEXTS}):
            columns = client.post(PREDICT, json={"inputs": named, "signature_name": "serving_default"})
            assert columns.json()["outputs"]["label"] == labels
        for wrong in ({}, [], {"instances": [1]}, {"instances": [["a"]]}, {"inputs": {"texts": ["a"]}}):
            answer = client.post(PREDICT, json=wrong)
            assert answer.status_code == 400 and "error" in answer.json()
        assert (
            client.get("/v1/models/other").status_code
            == client.post("/v1/models/other:predict", json={}).status_code
            == 404
        )
        load = ("load", f"{address}{PREDICT}", "--requests", 12, "--at-once", 4, "--texts", 2)
        assert " requests/s, 0 errors\n" in script_cases.output(*load)


@contextlib.contextmanager
def served(application):
    """Yields the address of an app that runs in a thread."""
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def text_of(stream):
    *events, end = stream.removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    return "".join(json.loads(event.removeprefix("data: "))["text"] for event in events)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generator")
    options = ("--count", 60, "--epochs", 1, "--layers", 1, "--dim", 16)
    assert "Wrote " in script_cases.output("train_generator", "--out", folder, *options)
    return folder


@pytest.mark.slow
def test_the_app_batches_streams_and_refuses(folder):
    task = txf.tasks.TextGenerator.load(folder)
    prompts = ["anna", "ben took the key .", "where is", "emma went to the hall . where is emma ?", "the", "frank"]
    expected = {length: task.generate(prompts, length) for length in (3, 20)}
    application = app.make_app(task, max_batch=4, wait=0.3, longest=32)

    async def together(address):
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:

            async def ask(prompt, length, stream):
                body = {"prompt": prompt, "max_new_tokens": length, "stream": stream}
                answer = await client.post("/generate", json=body)
                return text_of(answer.text) if stream else answer.json()["text"]

            for stream in (False, True):
                for length, texts in expected.items():
                    assert await asyncio.gather(*(ask(prompt, length, stream) for prompt in prompts)) == texts
            async with client.stream("POST", "/generate", json={"prompt": "anna", "stream": True}) as answer:
                async for _ in answer.aiter_bytes():
                    break  # and go
            assert await ask("anna", 3, False) == expected[3][0]
            return (await client.get("/stats")).json()["batches"]

    with served(application) as address:
        assert asyncio.run(together(address)).keys() >= {"4", "2", "1"}  # six requests at once: four, and two
        for content, status, words in [
            ('{"prompt": ""}', 400, "`prompt` must have 1 to 32 tokens; received 0."),
            (json.dumps({"prompt": "anna " * 99}), 400, "`prompt` must have 1 to 32 tokens; received 100."),
            (r'{"prompt": "\ud800", "stream": true}', (400, 422), "`prompt`"),
            ("", 422, "`body`: Field required"),
            ('{"prompt": 3}', 422, "`prompt`: Input should be a valid string"),
            ('{"prompt": "a", "max_new_tokens": 0}', 422, "`max_new_tokens`: Input should be greater"),
            ("{", 422, "The body must be JSON"),
        ]:
            answer = httpx.post(f"{address}/generate", content=content, headers={"Content-Type": "application/json"})
            assert answer.status_code in (status if isinstance(status, tuple) else [status]), answer.text
            assert words in answer.json()["error"] and "\n" not in answer.json()["error"]
        for more in ((), ("--stream",)):
            printed = script_cases.output("load", f"{address}/generate", "--requests", 8, "--at-once", 4, *more)
            assert " requests/s, 0 errors\n" in printed
        refused = script_cases.run("load", f"{address}/none", "--requests", 2)
        assert refused.returncode == 1 and "404" in refused.stderr


@pytest.mark.slow
def test_transformers_reads_the_folder_of_the_app(folder):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    task, prompt = txf.tasks.TextGenerator.load(folder), "anna went to the"
    ids = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    answer = model.generate(**ids, max_new_tokens=12, do_sample=False)[0, ids["input_ids"].shape[1] :]
    assert tokenizer.decode(answer, skip_special_tokens=True) == task.generate(prompt, 12, sampler="greedy")


def test_jobs_of_one_key_that_wait_are_a_batch():
    asked, hold = [], threading.Event()

    def answer(prompts, key):
        asked.append((key, prompts))
        hold.wait()
        if "bad" in prompts:
            raise ValueError("bad")
        yield [prompt.upper() for prompt in prompts]
        yield ["!" if prompt == "a" else "" for prompt in prompts]

    async def ask(collected):
        first = collected.add("a", 1)
        while not asked:
            await asyncio.sleep(0.01)
        jobs = [collected.add(*job) for job in (("b", 1), ("c", 2), ("left", 1), ("d", 1), ("bad", 2), ("e", 2))]
        jobs.pop(2).is_left = True
        hold.set()
        texts = [await text(job) for job in (first, *jobs)]
        collected.close()
        return texts

    async def text(job):
        try:
            return "".join([piece async for piece in job.answer()])
        except ValueError as error:
            return error.args

    collected = batches.Batches(answer, most=3, wait=0)
    assert asyncio.run(ask(collected)) == ["A!", "B", "C", "D", ("bad",), "E"]
    # One who went is not asked for; the fault of one in a batch is asked alone.
    assert asked == [(1, ["a"]), (1, ["b", "d"]), (2, ["c", "bad", "e"]), (2, ["c"]), (2, ["bad"]), (2, ["e"])]
    assert collected.sizes == {1: 1, 2: 1, 3: 1}


def test_the_app_names_a_missing_folder(tmp_path):
    done = script_cases.run("app", "--task", tmp_path / "none")
    assert done.returncode == 1 and "run train_generator.py first" in done.stderr
