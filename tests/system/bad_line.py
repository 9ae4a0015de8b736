# SPDX-License-Identifier: Apache-2.0
"""A bad line between a node and the others, for kernels without netem: a bridge of two TAP devices in two network
namespaces, whose packets come late, and some of them never. What a line carried is printed at its end."""
import argparse
import collections
import ctypes
import fcntl
import os
import random
import select
import signal
import struct
import sys
import time

IFF_TAP, IFF_NO_PI, TUNSETIFF = 0x0002, 0x1000, 0x400454CA
_libc = ctypes.CDLL(None, use_errno=True)


def open_tap(namespace, device):
    """A TAP device in a named network namespace. Its packets have checksums and are no longer than the MTU."""
    with open(f"/run/netns/{namespace}") as handle:
        if _libc.setns(handle.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"setns {namespace}")
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def carry(ends, delay_s, loss, seed):
    dice, late = random.Random(seed), collections.deque()  # equal delays: first in, first out
    carried = lost = 0
    other = {ends[0]: ends[1], ends[1]: ends[0]}
    running = []
    signal.signal(signal.SIGTERM, lambda *_: running.append(0))
    while not running:
        wait = max(0.0, late[0][0] - time.monotonic()) if late else 0.2
        for fd in select.select(ends, [], [], wait)[0]:
            packet = os.read(fd, 65536)
            if dice.random() < loss:
                lost += 1
            else:
                late.append((time.monotonic() + delay_s, other[fd], packet))
        while late and late[0][0] <= time.monotonic():
            _, fd, packet = late.popleft()
            try:
                os.write(fd, packet)
                carried += 1
            except OSError:
                lost += 1  # the other end is down, or full
    print(f"{carried} carried, {lost} lost", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("ends", nargs=2, help="namespace:device")
    parser.add_argument("--delay", type=float, default=0.2, help="seconds in each direction")
    parser.add_argument("--loss", type=float, default=0.05, help="share of the packets")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    ends = [open_tap(*end.split(":")) for end in given.ends]
    print("ready", flush=True)
    carry(ends, given.delay, given.loss, given.seed)


if __name__ == "__main__":
    sys.exit(main())
