"""mgwfbp trace --from: profiles of PyTorch 1.13, 2.13 and 2.11 compared with our own tracer's numbers, steps solved by
hand, and invalid input. bench/gpu_profile.py makes the fixtures."""

import gzip
import json
import re
import unittest

from folder import Folder
from support import FIXTURES, run, run_json

PROFILES = FIXTURES / "profiles"
NODE = "autograd::engine::evaluate_function: "
GRADIENT = "torch::autograd::AccumulateGrad"


def ready_s(trace):
    """By name, since the start of the forward pass."""
    now, found = trace["forward_s"], {}
    for tensor in trace["tensors"]:
        now += tensor["backward_s"]
        found[tensor["name"]] = now
    return found


def row(name, start, end, kind="cpu_op", **args):
    return {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": end - start,
            "args": {key.replace("_", " "): value for key, value in args.items()}}


def two_layers(**about):
    """A step on a device: two linear layers. The host is ahead; kernels 1 to 4 are the step's."""
    shapes = lambda *shape: {"Input_Dims": [list(shape)], "Input_type": ["float"]}
    rows = [row("Optimizer.zero_grad#SGD", 0, 5, "user_annotation"),
            row("aten::normal_", 6, 9, Sequence_number=1),  # no node comes back to it
            row("aten::linear", 10, 20, Sequence_number=7, Input_Dims=[[8, 4]]),
            row("cudaLaunchKernel", 12, 14, "cuda_runtime", correlation=1),
            row("aten::linear", 20, 30, Sequence_number=8, Input_Dims=[[8, 6]]),
            row("cudaLaunchKernel", 22, 24, "cuda_runtime", correlation=2),
            row(NODE + "AddmmBackward0", 40, 50, Sequence_number=8),
            row("cudaLaunchKernel", 42, 44, "cuda_runtime", correlation=3),
            row(NODE + GRADIENT, 50, 55), row(GRADIENT, 51, 54, **shapes(5, 6)),
            row(NODE + "AddmmBackward0", 60, 70, Sequence_number=7),
            row("cudaLaunchKernel", 62, 64, "cuda_runtime", correlation=4),
            row(NODE + GRADIENT, 70, 75), row(GRADIENT, 71, 74, **shapes(6, 4)),
            row("Optimizer.step#SGD", 80, 90, "user_annotation"),
            row("aten::mul_", 81, 82, Sequence_number=9),
            row("gemm", 100, 200, "kernel", correlation=1, stream=7), row("gemm", 200, 400, "kernel", correlation=2, stream=7),
            row("gemm", 450, 1000, "kernel", correlation=3, stream=7), row("gemm", 1000, 1500, "kernel", correlation=4, stream=7),
            row("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 1000, 1300, "kernel", correlation=5, In_msg_nelems=30,
                Group_size=4, dtype="Float"),
            row("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 1500, 1700, "kernel", correlation=6, In_msg_nelems=24,
                Group_size=4, dtype="Float")]
    return {"schemaVersion": 1, "deviceProperties": [{"name": "some GPU"}], "traceEvents": rows, **about}


class FromProfile(Folder):
    def unpack(self, name):
        path = self.folder / f"{name}.json"
        path.write_bytes(gzip.decompress((PROFILES / f"{name}.json.gz").read_bytes()))
        return path

    def trace(self, path, *options):
        """The trace, and the notes."""
        out = self.folder / "trace.json"
        done = run("trace", "--from", path, *options, "-o", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(out.read_text()), done.stderr

    def compare(self, trace, own, close):
        """Names, order and sizes exactly; times within that share of a step."""
        self.assertEqual([(t["name"], t["count"]) for t in trace["tensors"]],
                         [(t["name"], t["count"]) for t in own[0]["tensors"]])
        found, measured = ready_s(trace), [ready_s(one) for one in own]
        step = sum(max(one.values()) for one in measured) / len(measured)
        self.assertAlmostEqual(max(found.values()), step, delta=close * step)
        for name, at in found.items():
            self.assertAlmostEqual(at, sum(one[name] for one in measured) / len(measured), delta=close * step, msg=name)
        self.assertEqual(len(trace["steps_s"]), 3)

    def test_cpu(self):
        """Recording makes steps longer, and fixtures were made on a busy machine: within 10% of the step."""
        for version in ("1.13", "2.13"):
            name = f"torch-{version}-cpu"
            own = json.loads((PROFILES / f"{name}-own.json").read_text())
            for kind in ("plain", "ddp"):
                trace, said = self.trace(self.unpack(f"{name}-{kind}"), "small", "--tensors", PROFILES / f"{name}-tensors.json")
                self.compare(trace, (own["before"], own["behind"]), 0.1)
                self.assertEqual((trace["model"], trace["device"], trace["gradient_dtype"]), ("small", "CPU", "f32"))
                if version == "1.13":
                    self.assertIn("no Kineto", said)
                    self.assertIn("the profile has no sizes", said)
                    continue
                self.assertEqual(trace["batch"], 4)
                needed = {t["name"]: t["forward_start_s"] for t in trace["tensors"]}
                forward = trace["forward_s"]
                self.assertTrue(all(0 <= at <= forward for at in needed.values()))
                self.assertLess(needed["words.weight"], 0.02 * forward)  # though the last layer has it, too
                self.assertGreater(needed["out.bias"], 0.8 * forward)
                layers = [needed[f"layers.{i}.linear1.weight"] for i in range(4)]
                self.assertEqual(layers, sorted(layers))

    def test_h200_alone(self):
        """One worker, slowed by the profiler: names, order and sizes as our own tracer has them, and a warning about the times."""
        name = "torch-2.11-h200"
        own = json.loads((PROFILES / f"{name}-own.json").read_text())["beside the plain profile"]
        trace, said = self.trace(self.unpack(f"{name}-plain"), "resnet50", "--tensors", PROFILES / f"{name}-tensors.json")
        self.assertEqual([(t["name"], t["count"]) for t in trace["tensors"]],
                         [(t["name"], t["count"]) for t in own["tensors"]])
        self.assertIn("no all-reduces", said)
        self.assertRegex(said, r"the GPU is busy for only 4\d% of the step")

    def test_h200(self):
        """Two workers share the GPU: the forward pass, during which nothing is sent, is within 5% of that of a single
        worker."""
        own = json.loads((PROFILES / "torch-2.11-h200-own.json").read_text())["behind"]
        tensors = PROFILES / "torch-2.11-h200-tensors.json"
        names = json.loads(tensors.read_text())
        cluster = self.folder / "cluster.json"
        trace, said = self.trace(self.unpack("torch-2.11-h200-ddp"), "resnet50", "--tensors", tensors,
                                 "--cluster-out", cluster)
        self.assertEqual([t["count"] for t in trace["tensors"]], [t["count"] for t in own["tensors"]])
        self.assertEqual((trace["device"], trace["batch"], trace["precision"]), ("NVIDIA H200", 32, "fp32"))
        self.assertAlmostEqual(trace["forward_s"], own["forward_s"], delta=0.05 * own["forward_s"])
        backward = [sum(t["backward_s"] for t in one["tensors"]) for one in (trace, own)]
        self.assertTrue(backward[1] < backward[0] < 1.4 * backward[1], backward)
        samples = json.loads(cluster.read_text())["samples"]
        self.assertEqual(sum(sample["bytes"] for sample in samples), 4 * sum(names.values()))  # DDP's five buckets
        shown = run_json("show", cluster)
        self.assertEqual(shown["workers"], 2)
        self.assertLess(shown["max_relative_error"], 0.15)
        self.assertNotIn("unknown", said)
        self.assertNotIn("does not say", said)
        self.assertNotIn("is busy for only", said)
        self.assertEqual(run("advise", self.folder / "trace.json", cluster).returncode, 0)

    def test_by_hand(self):
        path = self.file("step.json", two_layers())
        cluster = self.folder / "cluster.json"
        trace, said = self.trace(path, "--cluster-out", cluster)
        self.assertEqual((trace["device"], trace["batch"]), ("some GPU", 8))
        self.assertAlmostEqual(trace["forward_s"], 300e-6)  # kernels 1 and 2
        (second, first) = trace["tensors"]
        self.assertEqual((second["name"], second["count"], first["count"]), ("000.AddmmBackward0", 30, 24))
        self.assertAlmostEqual(second["backward_s"], 600e-6)
        self.assertAlmostEqual(first["backward_s"], 500e-6)
        self.assertAlmostEqual(second["forward_start_s"], 100e-6)
        self.assertAlmostEqual(first["forward_start_s"], 0)
        self.assertIn("names are made up", said)
        self.assertNotIn("is busy for only", said)  # the host is far ahead
        found = json.loads(cluster.read_text())
        self.assertEqual(found["workers"], 4)
        self.assertEqual([sample["bytes"] for sample in found["samples"]], [96, 120])
        self.assertAlmostEqual(found["samples"][1]["seconds"], 300e-6)
        host = two_layers()
        host["traceEvents"] = [one for one in host["traceEvents"] if one["cat"] in ("cpu_op", "user_annotation")]
        trace, said = self.trace(self.file("host.json", host), "--batch", 2)
        self.assertAlmostEqual(trace["forward_s"], 30e-6)
        self.assertAlmostEqual(ready_s(trace)["001.AddmmBackward0"], 64e-6)
        self.assertEqual(trace["batch"], 2)
        self.assertIn("no kernels", said)
        self.assertIn("no all-reduces", said)

    def test_what_it_refuses(self):
        good = two_layers()
        without = lambda name: {**good, "traceEvents": [one for one in good["traceEvents"] if one["name"] != name]}
        shapeless = json.loads(re.sub(r'"Input Dims": \[\[[0-9, ]*\]\]', '"x": 1', json.dumps(good)))
        for content, options, parts in (
            (without(GRADIENT), (), ("no gradient", "whole step")),
            (shapeless, (), ("record_shapes=True", "--tensors")),
            (good, ("--tensors", self.file("few.json", {"a": 30})), ("2 gradients", "1 parameters")),
            (good, ("--tensors", self.file("other.json", {"a": 31, "b": 24})), ("gradient 0 has 30 elements",)),
            (good, ("--tensors", self.file("bad.json", {"a": "x", "b": 24})), ("bad.json", "a shape")),
            (good, ("--tensors", self.file("huge.json", {"a": 2 ** 63 - 1, "b": 24})), ("huge.json", "a shape")),
            (good, ("--tensors", self.folder / "none.json"), ("none.json",)),
            (good, ("--steps", 3), ("--steps", "--from")),
            (json.dumps(good)[:-200], (), ("step.json:1",)),
            ('{"traceEvents": 5}', (), ("traceEvents", "array")),
            ('{"a": 5}', (), ("traceEvents", "missing")),
            ('{"traceEvents": [5]}', (), ("traceEvents[0]", "object")),
            ("", (), ("step.json",)),
            ("[]", (), ("no gradient",)),
        ):
            self.refused(run("trace", "--from", self.file("step.json", content), *options), *parts)
        packed = self.folder / "packed.json.gz"
        packed.write_bytes(gzip.compress(b"{}"))
        self.refused(run("trace", "--from", packed), "gunzip")
        host = self.file("alone.json", without("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"))
        self.refused(run("trace", "--from", host, "--cluster-out", self.folder / "c.json"), "T(M) needs two")
        self.refused(run("trace", "--cluster-out", self.folder / "c.json", "lenet5"), "only with --from")


if __name__ == "__main__":
    unittest.main()
