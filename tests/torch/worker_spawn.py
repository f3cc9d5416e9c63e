"""Workers that torch.multiprocessing.spawn starts: no launcher says who they are, the process group does.

usage: worker_spawn.py WORKERS. Prints a line for each rank: rank, size, and its average of 1, 2, ... over native.
"""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

import mgwfbp
import mgwfbp.torch


def work(rank, size, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    torch.set_num_threads(1)
    model = mgwfbp.torch.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False), transport="native")
    for _ in range(3):
        model.zero_grad()
        model(torch.full((1, 1), 1.0 + rank)).sum().backward()
    os.write(1, f"{mgwfbp.rank()} {mgwfbp.size()} {float(model.module.weight.grad)}\n".encode())
    model.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(work, (int(sys.argv[1]), f"{folder}/store"), int(sys.argv[1]))
