"""One worker of test_hosts: the transport native over several hosts, on a GPU or with the fake one of worker_fake_cuda; or, with
`cpu`, what is said of gradients in the memory of hosts. Prints a JSON object. With `steady` it goes on until another dies, which it then
tells; with `join` it prints what is said of each way in which workers cannot meet, and after how long."""

import json
import os
import socket
import sys
import time

import torch

import mgwfbp.torch
import worker_fake_cuda

RANK = int(os.environ["RANK"])
DEVICE = torch.device("cuda" if torch.cuda.is_available() and sys.argv[1:] != ["cpu"] else "cpu")


def wrong_secret():
    os.environ["MGWFBP_SECRET"] = f"secret {RANK}"


def other_version():
    """The test has given host 1 another library."""
    os.environ["MGWFBP_SECRET"] = "secret"


def port_in_use():
    os.environ["MGWFBP_TIMEOUT"] = "2"  # rank 1's: who has the port does not answer
    os.environ["MGWFBP_ADDRESS"] = f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT']) + 1}"
    if RANK == 0:
        port_in_use.socket = socket.create_server(("", int(os.environ["MASTER_PORT"]) + 1))


def rank_0_missing():
    del os.environ["MGWFBP_ADDRESS"]
    return RANK == 0


def join(model):
    """What each fault leads to: an error, and seconds."""
    said = {}
    for fault in (wrong_secret, other_version, port_in_use, rank_0_missing):
        begun = time.monotonic()
        if fault():
            time.sleep(4)  # the store ends with this host's agent
            continue
        try:
            mgwfbp.torch.DistributedDataParallel(model, transport="native")
        except RuntimeError as error:
            said[fault.__name__] = str(error), time.monotonic() - begun
    return said


def train_until_somebody_dies(wrapped):
    try:
        for step in range(1 << 30):
            wrapped(torch.randn(8, 20, device=DEVICE)).square().mean().backward()
            if step == 20:
                print(json.dumps({"steady": os.getpid()}), flush=True)
    except RuntimeError as error:
        print(json.dumps({"error": str(error)}), flush=True)


torch.manual_seed(1 + RANK)  # rank 0's weights go to everybody
model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 3)).to(DEVICE)
if sys.argv[1:] == ["cpu"]:
    try:
        mgwfbp.torch.DistributedDataParallel(model)
    except RuntimeError as error:
        print(json.dumps({"error": str(error)}), flush=True)
    sys.exit()
if DEVICE.type == "cpu":
    worker_fake_cuda.install()
if sys.argv[1:] == ["join"]:
    print(json.dumps(join(model)), flush=True)
    sys.exit()
wrapped = mgwfbp.torch.DistributedDataParallel(model, transport="native")
if sys.argv[1:] == ["steady"]:
    train_until_somebody_dies(wrapped)
    sys.exit()
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    wrapped(torch.randn(8, 20, device=DEVICE)).square().mean().backward()
    optimizer.step()
weights = torch.cat([each.detach().flatten() for each in model.parameters()])
print(json.dumps({"about": str(wrapped.report().transport), "sum": weights.double().sum().item()}), flush=True)
