"""On a GPU: the same weights as stock DDP, with NCCL and with gloo. Without one: the engine's calls, with a fake one."""

import unittest

from support import BUILD, TORCH, WHY, launch_json

if TORCH:
    import torch
    CUDA, CUDA_BUILD = torch.cuda.is_available(), torch.version.cuda is not None
else:
    CUDA = CUDA_BUILD = False


def check_wire(test, workers, where, **environment):
    """Every bit of averages of f32 gradients that travelled as 16 bits."""
    result = launch_json(workers, "worker_wire.py", where, timeout=200, **environment)[0]
    test.assertEqual(result.pop("wrong on all ranks"), 0, result)
    for name, found in result.items():
        test.assertIn(f"f32 as {found['wire']} ({2 * found['parameters'] / 1024:.1f} KiB a step)", found["text"])
        test.assertEqual(found["wire"], "f16" if name.startswith("f16") else "bf16")
        test.assertGreater(found["messages"], 1)


@unittest.skipUnless(TORCH, WHY)
@unittest.skipUnless(CUDA, "there is no GPU here")
class Cuda(unittest.TestCase):
    def run_with(self, workers, backend, *transports):
        """Of one and two workers every bit is the same: one's average is itself, and sums of two do not depend on their
        order. But half of an fp16 number, which DDP adds, may have lost its last bit."""
        result = launch_json(workers, "worker_cuda.py", backend, *transports, timeout=400)[0]
        for transport in transports:
            found = result[transport]
            print(transport, found["differences"], found["text"], sep="\n")
            for case, difference in found["differences"].items():
                exact = workers == 1 or (workers == 2 and "fp16" not in case)
                with self.subTest(transport=transport, case=case):
                    self.assertLessEqual(difference, 0 if exact else 1e-2 if "fp16" in case else 1e-5)
            self.assertGreaterEqual(found["plans"], 1)
            self.assertGreater(found["compute_s"], 0)
            self.assertGreaterEqual(found["iteration_s"], found["compute_s"])
            self.assertEqual(found.get("waits in steps", 0), 0)

    def test_nccl(self):
        self.run_with(torch.cuda.device_count(), "nccl", "torch", "native")  # one worker per GPU

    def test_nccl_shared(self):
        self.run_with(2 * torch.cuda.device_count(), "nccl", "torch", "native")  # two

    def test_gloo(self):
        self.run_with(2, "gloo", "torch")

    def test_wire(self):
        check_wire(self, 2 * torch.cuda.device_count(), "cuda")


@unittest.skipUnless(TORCH, WHY)
@unittest.skipIf(CUDA_BUILD, "PyTorch would take the fake GPU for a real one")
class FakeGpu(unittest.TestCase):
    def test_native(self):
        for workers in (1, 2):
            result = launch_json(workers, "worker_fake_cuda.py", LD_LIBRARY_PATH=str(BUILD / "fake"))[0]
            self.assertTrue(result["Cnn"] and result["Mixed"] and result["Branches"], result)
            self.assertEqual(result["waited"], 0)
            at_once = result["copied at once"]  # None: this PyTorch cannot
            self.assertTrue(at_once is None or at_once > 0)
            self.assertEqual(result["copied by the engine"] + (at_once or 0), result["statistics"]["copied_bytes"])
            self.assertGreater(result["copied by the engine"], 0)
            self.assertTrue(result["waited for the other"])
            self.assertGreaterEqual(result["statistics"]["plans"], 2)
            self.assertIn("native (nccl:", result["text"])

    def test_wire(self):
        check_wire(self, 3, "fake", LD_LIBRARY_PATH=str(BUILD / "fake"))


if __name__ == "__main__":
    unittest.main()
