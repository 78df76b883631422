"""Leaves this folder alone where its tests are deselected: importing PyTorch and transformers takes seconds."""

import pytest


def pytest_ignore_collect(config):
    return True if "not parity" in config.option.markexpr else None


@pytest.fixture(autouse=True, scope="session")
def one_thread_and_no_bars():
    """Models as small as these take PyTorch six times as long with two threads, which wait for each other."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
