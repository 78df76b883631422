"""Leaves this folder alone where its tests are deselected: importing PyTorch and transformers takes seconds."""

import pytest


def pytest_ignore_collect(config):
    return True if "not parity" in config.option.markexpr else None


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Models as small as these take PyTorch six times as long with two threads, which wait for each other."""
    import torch

    torch.set_num_threads(1)
