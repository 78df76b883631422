"""A small checkpoint, made once for the tests of tasks."""

import pytest
from page_files import encoder


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """The folder of a small BERT without a head. A test that changes the folder copies it first."""
    folder = tmp_path_factory.mktemp("checkpoint") / "bert"
    encoder(folder)
    return folder
