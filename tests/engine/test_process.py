from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from streampca import buffers
from streampca.engine.process import borrowed_buffers, enter_pass, in_pass, leave_pass
from tests.engine.scripted import blas_threads


@pytest.fixture(autouse=True)
def several_blas_threads() -> None:
    if blas_threads() < 2:
        pytest.skip("needs a BLAS with several threads")


def test_passes_nest() -> None:
    before = blas_threads()
    with in_pass():
        with in_pass():
            assert blas_threads() == 1
        assert blas_threads() == 1
    assert blas_threads() == before


def test_the_first_and_the_last_may_be_in_different_threads() -> None:
    """To threadpoolctl the limit belongs to the thread that set it, as long as that lives."""
    before = blas_threads()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(enter_pass).result()
        other.submit(enter_pass).result()
        assert blas_threads() == 1
        one.submit(leave_pass).result()
        assert blas_threads() == 1
        other.submit(leave_pass).result()
        assert blas_threads() == before


def test_a_limit_that_another_thread_holds_does_not_matter() -> None:
    before = blas_threads()
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with threadpool_limits(2):
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(10)
    try:
        with in_pass():
            assert blas_threads() == 1
        assert blas_threads() == 2
    finally:
        done.set()
        thread.join()
    assert blas_threads() == before


def test_others_may_set_limits_afterwards() -> None:
    with in_pass():
        pass
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: [threadpool_limits(1, "blas"), blas_threads()][1]).result() == 1
        pool.submit(lambda: threadpool_limits(2, "blas")).result()


def test_buffers_are_used_again_within_a_pass_and_given_back_after_it() -> None:
    with in_pass():
        with borrowed_buffers(2, (10, 3), np.dtype("f8")) as first:
            first[0][:], first[1][:] = 1, 2
            places = {each.ctypes.data for each in first}
            assert len(places) == 2
        with borrowed_buffers(2, (9, 6), np.dtype("f4")) as second:
            assert second[0].shape == (9, 6)
            assert {each.ctypes.data for each in second} == places
            with borrowed_buffers(1, (9, 6), np.dtype("f4")) as third:
                assert third[0].ctypes.data not in places
        del first, second, third
    assert buffers._idle == []
