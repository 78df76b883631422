"""Requests that arrive together, answered as one batch by a thread of its own."""

import asyncio
import collections
import dataclasses
import queue
import threading
import time


@dataclasses.dataclass
class Job:
    """A request. `pieces` receives the texts to send, an exception for an error, and None at the end."""

    prompt: str
    key: tuple
    loop: asyncio.AbstractEventLoop
    pieces: asyncio.Queue = dataclasses.field(default_factory=asyncio.Queue)
    is_left: bool = False  # the client has gone

    def put(self, *values):
        for value in values:
            self.loop.call_soon_threadsafe(self.pieces.put_nowait, value)

    async def answer(self, is_disconnected=None):
        """Yields the pieces. If the client goes, the job is left out of its batch, or its stream ends."""
        try:
            while True:
                try:
                    piece = await asyncio.wait_for(self.pieces.get(), 1)
                except TimeoutError:
                    if is_disconnected is not None and await is_disconnected():
                        return
                    continue
                if isinstance(piece, Exception):
                    raise piece
                if piece is None:
                    return
                yield piece
        finally:
            self.is_left = True


class Batches:
    """Collects jobs with the same key and answers them in one call.

    Args:
        answer: function of a list of prompts and a key. It yields lists of pieces, one piece for each prompt.
        most: the largest number of jobs in a batch; 1 turns batching off.
        wait: seconds that the first job of a batch waits for others.
    """

    def __init__(self, answer, most, wait):
        self.answer, self.most, self.wait = answer, most, wait
        self.sizes = collections.Counter()  # size of a batch -> how many there were
        self._new, self._waiting = queue.SimpleQueue(), []
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def add(self, prompt, key):
        job = Job(prompt, key, asyncio.get_running_loop())
        self._new.put(job)
        return job

    def close(self):
        self._new.put(None)
        self._thread.join()

    def _work(self):
        while jobs := self._collect():
            jobs = [job for job in jobs if not job.is_left]
            if jobs:
                self.sizes[len(jobs)] += 1
                self._run(jobs)

    def _collect(self):
        """The next batch: the oldest job, and those of its key that come until it has waited. None after `close`."""
        waiting = self._waiting
        if not waiting:
            waiting.append(self._new.get())
        end = time.monotonic() + self.wait
        while waiting[-1] is not None and sum(job.key == waiting[0].key for job in waiting) < self.most:
            try:
                waiting.append(self._new.get(timeout=max(0, end - time.monotonic())))
            except queue.Empty:
                break
        if waiting[-1] is None:
            return None
        chosen = [job for job in waiting if job.key == waiting[0].key][: self.most]
        self._waiting = [job for job in waiting if job not in chosen]
        return chosen

    def _run(self, jobs):
        sent = False
        try:
            for pieces in self.answer([job.prompt for job in jobs], jobs[0].key):
                for job, piece in zip(jobs, pieces):
                    if piece:
                        job.put(piece)
                sent = sent or any(pieces)
                if all(job.is_left for job in jobs):
                    break
        except Exception as error:
            if isinstance(error, ValueError) and len(jobs) > 1 and not sent:  # the fault of one: the others go on
                for job in jobs:
                    self._run([job])
                return
            for job in jobs:
                job.put(error)
        for job in jobs:
            job.put(None)
