"""Serves a text generator over HTTP: POST /generate, whole or as a stream, in batches of what arrives together.

    python examples/serve/train_generator.py                 # writes runs/serve/generator
    python examples/serve/app.py --port 8000                 # in another terminal:
    curl -d '{"prompt": "anna went", "stream": true}' -H 'Content-Type: application/json' http://127.0.0.1:8000/generate

Decoding is greedy: an answer does not depend on the others in its batch. Compiling a loop takes seconds, so that all
shapes that can occur are compiled before the first request: batches are filled up to a few sizes, and prompts are
padded to a multiple of 32 tokens by `generate` itself.
"""

import argparse
import contextlib
import json
import pathlib
import sys
import time

import fastapi
import pydantic
import uvicorn
from batches import Batches
from fastapi.responses import JSONResponse, StreamingResponse

import keras_txf as txf

BUCKET = 32  # tokens: what `generate` pads prompts to, up to 256 tokens


class Question(pydantic.BaseModel):
    prompt: str
    max_new_tokens: int = pydantic.Field(BUCKET, ge=1, le=BUCKET)
    stream: bool = False


def make_app(task, max_batch=16, wait=0.005, longest=64):
    """The app for a `TextGenerator`: `max_batch` and `wait` as in `Batches`, prompts of at most `longest` tokens."""
    sizes = [*(size for size in (1, 4) if size < max_batch), max_batch]

    def counts_of(prompts):
        return [len(row) - len(task.tokenizer.end) for row in task.tokenizer(prompts).to_list()]

    def answer(prompts, key):
        """Yields the pieces of all answers, or an error in the place of a piece."""
        max_new_tokens, stream = key
        must = f"`prompt` must have 1 to {longest} tokens; received"
        counts = counts_of(prompts)
        yield [None if 1 <= count <= longest else ValueError(f"{must} {count}.") for count in counts]
        good = [index for index, count in enumerate(counts) if 1 <= count <= longest]
        if not good:
            return
        size = min(size for size in sizes if size >= len(good))
        rows = [prompts[index] for index in good + good[-1:] * (size - len(good))]
        options = dict(max_new_tokens=max_new_tokens, sampler="greedy", batch_size=size)
        for pieces in task.generate(rows, stream=True, **options) if stream else [task.generate(rows, **options)]:
            found = dict(zip(good, pieces))
            yield [found.get(index) for index in range(len(prompts))]

    def warm_up():
        """Compiles the loop of each size of batch, for each multiple of 32 tokens, whole and as a stream."""
        word = task.tokenizer.detokenize([[task.tokenizer.vocab_size - 1]])[0].strip()
        for most in range(BUCKET, longest + BUCKET, BUCKET):
            prompt = word
            while counts_of([f"{prompt} {word}"])[0] <= min(most, longest):
                prompt = f"{prompt} {word}"
            for size in sizes:
                start = time.perf_counter()
                for stream in (False, True):
                    for _ in answer([prompt] * size, (BUCKET, stream)):
                        pass
                took = time.perf_counter() - start
                print(f"Compiled {size} x {min(most, longest)} tokens: {took:.1f} s", flush=True)

    @contextlib.asynccontextmanager
    async def lifespan(app):
        warm_up()
        app.state.batches = Batches(answer, max_batch, wait)
        print(f"Ready: batches of up to {max_batch}, {wait * 1000:g} ms of waiting for others.", flush=True)
        yield
        app.state.batches.close()

    app = fastapi.FastAPI(title="keras_txf", lifespan=lifespan)

    @app.exception_handler(ValueError)
    async def refused(request, error):
        return JSONResponse({"error": str(error)}, 400)

    @app.exception_handler(fastapi.exceptions.RequestValidationError)
    async def invalid(request, error):  # without the request itself, which FastAPI would send back
        bad_json = any(one["type"] == "json_invalid" for one in error.errors())
        lines = [f"`{'.'.join(map(str, one['loc'][1:])) or 'body'}`: {one['msg']}" for one in error.errors()]
        lines = ["The body must be JSON."] if bad_json else lines
        return JSONResponse({"error": "; ".join(lines)}, 422)

    @app.post("/generate")
    async def generate(question: Question, request: fastapi.Request):
        if any("\ud800" <= letter <= "\udfff" for letter in question.prompt):
            raise ValueError("`prompt` must be text; received half of a surrogate pair.")
        job = app.state.batches.add(question.prompt, (question.max_new_tokens, question.stream))
        pieces = job.answer(request.is_disconnected)
        first = await anext(pieces, "")  # an error still has a status of its own
        if question.stream:
            return StreamingResponse(events(first, pieces), media_type="text/event-stream")
        return {"text": first + "".join([piece async for piece in pieces])}

    @app.get("/stats")
    async def stats():
        return {"batches": dict(sorted(app.state.batches.sizes.items()))}

    return app


async def events(first, rest):
    """Server-sent events, as OpenAI's streams are written."""
    try:
        yield event(text=first)
        async for piece in rest:
            yield event(text=piece)
    except Exception as error:  # the status 200 was sent already
        yield event(error=str(error))
    yield "data: [DONE]\n\n"


def event(**content):
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", metavar="DIR", default="runs/serve/generator", help="%(default)s")
    parser.add_argument("--port", type=int, default=8000, help="%(default)s")
    parser.add_argument("--max-batch", type=int, default=16, help="1 turns batching off (default: 16)")
    parser.add_argument("--wait", type=float, default=5, help="milliseconds that a request waits for others (5)")
    parser.add_argument("--longest", type=int, default=64, help="most tokens of a prompt (default: 64)")
    options = parser.parse_args()
    if min(options.max_batch, options.longest) < 1:
        parser.error("--max-batch and --longest: expected at least 1")
    if not pathlib.Path(options.task).is_dir():
        sys.exit(f"error: there is no folder {options.task}: run train_generator.py first, or pass --task DIR.")
    print(f"Loading {options.task} ...", flush=True)
    task = txf.tasks.TextGenerator.load(options.task)
    app = make_app(task, options.max_batch, options.wait / 1000, options.longest)
    uvicorn.run(app, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
