#!/usr/bin/env python3
"""`mgwfbp train --compare` on a real network that is slow: hosts are network namespaces whose links are shaped with tbf, and
workers talk over MPI's TCP. Needs root, Open MPI and iproute2.

    bench/train_network.py --rate 1gbit --hosts 2 -- resnet50 --size 96 --batch 8 --policy ddp,optimal,overlap --rounds 7
    bench/train_network.py --command "calibrate"          # another command of mgwfbp's

Open MPI starts its daemon on the other hosts through an agent, as it does with ssh; here the agent enters the namespace.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from network import Star

ROOT = Path(__file__).resolve().parents[1]
AGENT = """#!/bin/sh
# agent ADDRESS COMMAND...: as ssh, into the namespace of the address, with a host name of its own
rank=$((${1##*.} - 1)); shift
exec ip netns exec NAME-$rank unshare --uts sh -c 'hostname NAME-'$rank'; exec sh -c "$*"' sh "$@"
"""


def mpirun(star, folder, command):
    agent = Path(folder) / "agent"
    agent.write_text(AGENT.replace("NAME", star.name))
    agent.chmod(0o755)
    hosts = ",".join(star.address(rank) for rank in range(star.workers))
    over = {"plm_rsh_agent": agent, "btl": "tcp,self", "btl_tcp_if_include": "net0", "oob_tcp_if_include": "net0",
            "pml": "ob1", "hwloc_base_binding_policy": "none", "mpi_yield_when_idle": "1"}
    flags = [word for name, value in over.items() for word in ("--mca", name, str(value))]
    return star.inside(0, ["unshare", "--uts", "sh", "-c", f'hostname {star.name}-0; exec "$@"', "sh", "mpirun",
                           "--allow-run-as-root", "-n", str(star.workers), "--host", hosts, *flags, *command])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="1gbit", help="of a host's link, as tc writes it")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--command", default="train --compare", help="of mgwfbp's")
    parser.add_argument("--mgwfbp", default=str(ROOT / "build" / "release" / "bin" / "mgwfbp"))
    parser.add_argument("arguments", nargs="*", help="of the command, behind --")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench/train_network.py: ended"))  # not without namespaces
    environment = dict(os.environ, OMP_NUM_THREADS="1", MGWFBP_TIMEOUT="120")
    with tempfile.TemporaryDirectory() as folder, Star(given.hosts, given.rate) as star:
        command = mpirun(star, folder, [given.mgwfbp, *given.command.split(), *given.arguments])
        sys.exit(subprocess.run(command, env=environment).returncode)


if __name__ == "__main__":
    main()
