"""Slow networks on one machine: a star of network namespaces around a bridge, every link shaped with tbf. Needs root.

    with Star(workers=2, rate="1gbit") as star:
        subprocess.Popen(star.inside(rank, ["program", ...]))
"""

import os
import subprocess


def _run(*command, check=True):
    subprocess.run(command, check=check, stdout=subprocess.DEVNULL, stderr=None if check else subprocess.DEVNULL)


class Star:
    """One namespace per worker, and one with the bridge. A burst below the size of what the host sends at once
    (gso_max_size) would burn half the machine; more than 2 MB of queue would hide a message's time."""

    def __init__(self, workers, rate="1gbit"):
        self.workers, self.rate, self.name = workers, rate, f"mgw{os.getpid() % 100000}"

    def namespace(self, rank):
        return f"{self.name}-{rank}"

    def address(self, rank):
        return f"10.77.0.{rank + 1}"

    def __enter__(self):
        try:
            self._make()
        except Exception:
            self.__exit__()
            raise
        return self

    def _make(self):
        hub = f"{self.name}-hub"
        _run("ip", "netns", "add", hub)
        _run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "bridge", "up")
        for rank in range(self.workers):
            space = self.namespace(rank)
            _run("ip", "netns", "add", space)
            _run("ip", "-n", hub, "link", "add", f"to{rank}", "type", "veth", "peer", "name", "net0", "netns", space)
            for where, device in ((hub, f"to{rank}"), (space, "net0")):
                _run("ip", "-n", where, "link", "set", device, "gso_max_size", "16384", "up")
                _run("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", "rate", self.rate, "burst", "20kb",
                     "limit", "2mb")
            _run("ip", "-n", hub, "link", "set", f"to{rank}", "master", "bridge")
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "-n", space, "address", "add", f"{self.address(rank)}/24", "dev", "net0")
            _run("ip", "-n", space, "route", "replace", "10.77.0.0/24", "dev", "net0", "congctl", "cubic")

    def __exit__(self, *_):
        for rank in range(self.workers):
            _run("ip", "netns", "del", self.namespace(rank), check=False)
        _run("ip", "netns", "del", f"{self.name}-hub", check=False)

    def inside(self, rank, command):
        return ["ip", "netns", "exec", self.namespace(rank), *command]
