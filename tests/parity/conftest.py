"""Leaves this folder alone where its tests are deselected: importing PyTorch and transformers takes seconds."""


def pytest_ignore_collect(config):
    return True if "not parity" in config.option.markexpr else None
