# SPDX-License-Identifier: Apache-2.0
"""What the checks modules share, which run in a peer process beside one PyTorch (see torch_generations.py)."""
import contextlib
import re
import threading
from datetime import timedelta

import torch.distributed as dist

TIMEOUT = 30  # seconds, for what must happen


def client(host, port, world_size=None, timeout=TIMEOUT):
    time = timedelta(seconds=timeout)
    if world_size is None:
        return dist.TCPStore(host, port, is_master=False, timeout=time)
    return dist.TCPStore(host, port, world_size, False, timeout=time)


def same(found, wanted):
    """Without pytest an assert does not say what it compared."""
    assert found == wanted, f"{found!r} instead of {wanted!r}"


@contextlib.contextmanager
def raises(kind, pattern=""):
    """As pytest.raises, for processes without pytest."""
    try:
        yield
    except kind as error:
        assert re.search(pattern, str(error)), f"{error} does not match {pattern}"
    else:
        raise AssertionError(f"nothing was raised; wanted {kind.__name__}")


def together(*functions):
    """Calls every function in a thread of its own; their values in order, or the first's exception."""
    outcomes = [None] * len(functions)

    def call(index, function):
        try:
            outcomes[index] = (function(), None)
        except Exception as error:
            outcomes[index] = (None, error)

    threads = [threading.Thread(target=call, args=pair, daemon=True) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * TIMEOUT)
    assert None not in outcomes, f"{outcomes.count(None)} threads hang"
    for _, error in outcomes:
        if error is not None:
            raise error
    return [value for value, _ in outcomes]
