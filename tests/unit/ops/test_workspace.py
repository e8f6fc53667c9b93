"""Reused scratch buffers."""

import threading

import pytest
import torch

from lmworks.ops import workspace


@pytest.fixture(autouse=True)
def _fresh():
    workspace.release()
    yield
    workspace.release()


def test_a_smaller_request_reuses_the_memory():
    first = workspace.borrow((8, 4), torch.float32)
    assert workspace.borrow((3, 5), torch.float32).data_ptr() == first.data_ptr()


def test_dtypes_do_not_share_memory():
    first = workspace.borrow((8,), torch.float32)
    assert workspace.borrow((8,), torch.bfloat16).data_ptr() != first.data_ptr()


def test_threads_do_not_share_memory():
    mine = workspace.borrow((8,), torch.float32)
    others = []
    thread = threading.Thread(
        target=lambda: others.append(workspace.borrow((8,), torch.float32).data_ptr())
    )
    thread.start()
    thread.join()
    assert others != [mine.data_ptr()]


def test_a_buffer_made_in_inference_mode_can_be_written_outside():
    with torch.inference_mode():
        workspace.borrow((8,), torch.float32)
    workspace.borrow((8,), torch.float32).fill_(1)
