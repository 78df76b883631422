"""Sends many requests at once to app.py or to a server of SavedModels, and prints how long the answers took.

    python examples/serve/load.py http://127.0.0.1:8000/generate
    python examples/serve/load.py http://127.0.0.1:8000/generate --stream
    python examples/serve/load.py http://127.0.0.1:8501/v1/models/language:predict

Each of the 16 clients sends its next request when it has the answer to the one before.
"""

import argparse
import asyncio
import json
import pathlib
import statistics
import sys
import time

import httpx

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # of stories.py
import stories

DATES = ["samedi 3 mars 2018", "3. marts 2018", "3 maart 2018", "2018年3月3日", "sábado, 3 de março de 2018"]


def bodies(options):
    """The requests: beginnings of stories of different lengths to continue, or dates whose language is asked for."""
    if options.url.endswith(":predict"):
        return [
            {"instances": [DATES[(i + j) % len(DATES)] for j in range(options.texts)]} for i in range(options.requests)
        ]
    told = [story.split(" . ") for story, *_ in stories.make_stories(options.requests, seed=2)]
    texts = [" . ".join(sentences[: 1 + i % 4]) + " ." for i, sentences in enumerate(told)]
    return [{"prompt": text, "max_new_tokens": options.new_tokens, "stream": options.stream} for text in texts]


async def ask(client, url, body):
    """Seconds until the first piece and until the whole answer. Raises ValueError for an error."""
    start, first = time.perf_counter(), None
    async with client.stream("POST", url, json=body) as answer:
        content = b""
        async for piece in answer.aiter_bytes():
            first = first or time.perf_counter() - start
            content += piece
    if answer.status_code != 200 or b'"error"' in content:
        raise ValueError(f"{answer.status_code} {content[:200]!r}")
    if not body.get("stream"):
        json.loads(content)
    elif not content.endswith(b"data: [DONE]\n\n"):
        raise ValueError(f"a stream without its end: {content[-200:]!r}")
    return first, time.perf_counter() - start


async def run(options):
    """Seconds of all requests together, of each, and the errors."""
    waiting, times, errors = iter(bodies(options)), [], []

    async def client_loop(client):
        for body in waiting:
            try:
                times.append(await ask(client, options.url, body))
            except (ValueError, httpx.HTTPError) as error:
                errors.append(repr(error))

    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=options.at_once)) as client:
        start = time.perf_counter()
        await asyncio.gather(*(client_loop(client) for _ in range(options.at_once)))
        return time.perf_counter() - start, times, errors


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="of app.py's /generate, or of a model with :predict in the end")
    parser.add_argument("--requests", type=int, default=200, help="how many (default: 200)")
    parser.add_argument("--at-once", type=int, default=16, help="clients (default: 16)")
    parser.add_argument("--stream", action="store_true", help="ask /generate for streams")
    parser.add_argument("--new-tokens", type=int, default=32, help="of an answer of /generate (default: 32)")
    parser.add_argument("--texts", type=int, default=1, help="in a request to :predict (default: 1)")
    options = parser.parse_args()
    print(f"{options.requests} requests, {options.at_once} at once ...", flush=True)
    seconds, times, errors = asyncio.run(run(options))
    if len(times) > 1:
        for name, column in zip(("first piece", "answer"), zip(*times)):
            cuts = statistics.quantiles(column, n=100, method="inclusive")
            print(f"{name}: p50 {cuts[49] * 1000:.0f} ms, p99 {cuts[98] * 1000:.0f} ms")
    print(f"{len(times) / seconds:.1f} requests/s, {len(errors)} errors")
    if errors:
        sys.exit(f"error: {errors[0]}")


if __name__ == "__main__":
    main()
