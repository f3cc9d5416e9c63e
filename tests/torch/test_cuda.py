"""On a GPU: the same weights as stock DDP, with NCCL and with gloo."""

import unittest

from support import TORCH, WHY, launch_json

if TORCH:
    import torch
    CUDA = torch.cuda.is_available()
else:
    CUDA = False


@unittest.skipUnless(TORCH, WHY)
@unittest.skipUnless(CUDA, "there is no GPU here")
class Cuda(unittest.TestCase):
    def run_with(self, workers, backend):
        result = launch_json(workers, "worker_cuda.py", backend)[0]
        self.assertLess(result["fp32"], 1e-5)
        self.assertLess(result["fp16"], 1e-2)
        self.assertGreaterEqual(result["plans"], 1)
        self.assertGreater(result["compute_s"], 0)
        self.assertGreaterEqual(result["iteration_s"], result["compute_s"])
        print(result["fp32"], result["fp16"], result["text"], sep="\n")

    def test_nccl(self):
        self.run_with(torch.cuda.device_count(), "nccl")  # one worker per GPU

    def test_gloo(self):
        self.run_with(2, "gloo")


if __name__ == "__main__":
    unittest.main()
