"""What decides in C, as Python drives it: memory, calibration and plans, without workers; against brute force, and against
PyTorch's own buckets."""

import ctypes
import json
import os
import random
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import TORCH, WHY

import mgwfbp
from mgwfbp import core
from mgwfbp.environment import Options

if TORCH:
    import torch
    import torch.distributed as dist
    from mgwfbp.torch import buckets, ddp, queues, reducer
    from mgwfbp.torch.reducer import Steps
    from mgwfbp.torch.slots import Arena, Slot, trace_of


def make_slots(sizes):
    return [Slot.of(f"t{i}", torch.empty(size)) for i, size in enumerate(sizes)]


@unittest.skipUnless(TORCH, WHY)
class Memory(unittest.TestCase):
    def test_slices_are_exactly_their_slots(self):
        random.seed(1)
        dtypes = [torch.float32, torch.float64, torch.float16, torch.complex64]
        for _ in range(50):
            tensors = [torch.empty(random.choice([(0,), (1,), (3, 5), (17,), (2, 3, 4, 5)]), dtype=random.choice(dtypes))
                       for _ in range(random.randint(1, 12))]
            if random.random() < 0.5:
                tensors = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in tensors]
            arena = Arena([Slot.of(str(i), t) for i, t in enumerate(tensors)], torch.device("cpu"))
            for tensor, view in zip(tensors, arena.views):
                self.assertEqual((view.shape, view.stride(), view.dtype), (tensor.shape, tensor.stride(), tensor.dtype))
                self.assertTrue(not view.numel() or view.data_ptr() % 64 == 0)
            first = random.randrange(len(tensors))
            stop = random.randint(first + 1, len(tensors))
            for piece in arena.slices(first, stop - first):
                piece.fill_(1)
            for i, view in enumerate(arena.views):
                one = 1 + 1j if view.is_complex() else 1
                self.assertTrue(bool((view == (one if first <= i < stop else 0)).all()))

    def test_parameters_that_overlap_or_have_gaps(self):
        for parameter in (torch.empty(4).expand(3, 4), torch.empty(6, 6)[:, ::2]):
            slot = Slot.of("p", parameter)
            self.assertEqual(slot.view(torch.zeros(slot.count)).shape, parameter.shape)


@unittest.skipUnless(TORCH, WHY)
class Clocks(unittest.TestCase):
    def test_forward_pass_on_a_device(self):
        """Times count when the device has reached them, without waiting."""
        class Event:
            def __init__(self, at_ms, over):
                self.at_ms, self.over = at_ms, over

            def query(self):
                return self.over

            def elapsed_time(self, other):
                return other.at_ms - self.at_ms

        events = [Event(0, True), Event(10, True), Event(20, True), Event(40, False), Event(50, True), Event(55, True)]
        given, before = iter(events), reducer.CudaTime.now
        reducer.CudaTime.now = lambda time: next(given)
        try:
            forward = reducer.Forward(reducer.time_of(torch.device("cuda", 0)))
            forward.stop()  # a backward pass without a forward pass
            seen = []
            for _ in range(3):
                forward.start()
                forward.stop()
                seen.append(forward.seconds)
            self.assertEqual(seen, [0, 0.01, 0.01])
            events[3].over = True
            forward.stop()
            self.assertAlmostEqual(forward.seconds, (0.01 * 0.9 + 0.02 * 0.1) * 0.9 + 0.005 * 0.1)
        finally:
            reducer.CudaTime.now = before


@unittest.skipUnless(TORCH, WHY)
class Plans(unittest.TestCase):
    def test_ddp_policy_is_pytorch_s(self):
        """What we call ddp:FIRST,CAP is what PyTorch's DDP does with these limits."""
        random.seed(2)
        for _ in range(100):
            sizes = [random.randint(1, 400) for _ in range(random.randint(1, 30))]
            first, cap = random.randint(1, 1000), random.randint(1, 3000)
            made = dist._compute_bucket_assignment_by_size([torch.empty(n) for n in sizes], [first, cap])
            assigned = made[0] if isinstance(made, tuple) else made
            trace = trace_of(make_slots(sizes), [0.0] * len(sizes), 0.0)
            plan = mgwfbp.plan(trace, "paper-2-10gbe", f"ddp:{first}B,{cap}B")
            self.assertEqual([m.count for m in plan.operations], [len(bucket) for bucket in assigned])

    def test_two_limits(self):
        trace = mgwfbp.Trace.load("resnet50-b32-fp32-h200")
        cluster = mgwfbp.Cluster.load("paper-2-10gbe")
        found = buckets.best(buckets.two_limits(trace, cluster))
        self.assertLessEqual(found.iteration_s, buckets.best(buckets.one_limits(trace, cluster)).iteration_s)
        self.assertLessEqual(found.iteration_s, mgwfbp.plan(trace, cluster, "ddp").iteration_s)
        self.assertGreaterEqual(found.iteration_s, mgwfbp.plan(trace, cluster).iteration_s * (1 - 1e-9))


    def test_limits_have_a_name(self):
        """DDP's own limits have none in the policy's name."""
        trace = mgwfbp.Trace.load("resnet50-b32-fp32-h200")
        for first, cap in ((buckets.MIB, 25 * buckets.MIB), (buckets.MIB, buckets.MIB), (1, 1000), (1 << 20, 1 << 30)):
            plan = mgwfbp.plan(trace, "paper-2-10gbe", f"ddp:{first}B,{cap}B")
            self.assertEqual(buckets.limits_of(plan), (first, cap))

    def test_plan_files_with_other_wires_are_others(self):
        plan = mgwfbp.plan("resnet50-b32-fp32-h200", "paper-2-10gbe", "single").dict()
        with tempfile.TemporaryDirectory() as folder:
            told = []
            for wire in "f32", "bf16":
                for operation in plan["operations"]:
                    operation["wire"] = wire
                path = Path(folder) / f"{wire}.json"
                path.write_text(json.dumps(plan))
                told.append(Options.complete(plan=str(path)).agreed())
        self.assertNotEqual(*told)

    @unittest.skipUnless(TORCH and hasattr(torch, "compile"), "PyTorch 1.13 moves inputs to numbered GPUs only")
    def test_inputs_move_as_with_ddp(self):
        class Batch(dict):
            pass

        packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
        (moved, batch), named = ddp._move((packed, Batch(x=torch.ones(2))), {"y": torch.ones(1)}, torch.device("meta"))
        self.assertEqual([str(each.device) for each in (moved.data, moved.batch_sizes, batch["x"], named["y"])],
                         ["meta", "cpu", "meta", "meta"])
        self.assertIs(type(batch), Batch)
        self.assertEqual(ddp._move((), {}, torch.device("meta")), ((), {}))

    def test_queues_to_a_gpu(self):
        """As `mgwfbp launch` has it (use/jobs), when the package is loaded."""
        def told(**variables):
            with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, variables, CUDA_MPS_PIPE_DIRECTORY=folder):
                Path(folder, "control").touch()
                if "CUDA_DEVICE_MAX_CONNECTIONS" not in variables:
                    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
                queues.ask_for_more()
                return os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS")

        torchrun = {"RANK": "0", "WORLD_SIZE": "8"}
        self.assertEqual(told(LOCAL_WORLD_SIZE="8", **torchrun), "8")
        self.assertEqual(told(LOCAL_WORLD_SIZE="40", **torchrun), None)
        self.assertEqual(told(LOCAL_WORLD_SIZE="8", CUDA_DEVICE_MAX_CONNECTIONS="1", **torchrun), "1")
        self.assertEqual(told(LOCAL_WORLD_SIZE="4(x2)", **torchrun), None)


class Calls(unittest.TestCase):
    """C calls back into Python."""

    NAMES, BYTES = [f"t{i}" for i in range(8)], [1000000] * 8

    class Failing(core.Exchange):
        def __init__(self, at):
            self.calls_left = at

        def combine(self, values, sums):
            self.calls_left -= 1
            if self.calls_left == 0:
                raise KeyError("in a collective")

    def make_tuner(self, **options):
        cluster = mgwfbp.Cluster.line("idle", 2, 5e-3, 5e-9)
        tuner = core.Tuner(self.NAMES, self.BYTES, cluster, **{
            "policy": "optimal", "profile_steps": 2, "replan_steps": 10, "size": 1, **options})
        self.assertIsNone(cluster._address)  # it is the tuner's now
        return tuner

    def test_calibration(self):
        """Finds the line that messages follow, from sizes that grow, each timed after a warm-up."""
        sizes = []

        def time(bytes, kind):
            self.assertEqual(kind, "all-reduce")
            sizes.append(bytes)
            return 2e-3 if len(sizes) % 4 == 1 else 1e-4 + 1e-9 * bytes

        cluster = core.calibrate(core.Exchange(), time, "mine", 3 << 20)
        self.assertEqual(sizes, [size for size in [1024 * 4**k for k in range(6)] + [3 << 20] for _ in range(4)])
        self.assertEqual(cluster.name, "mine")
        self.assertAlmostEqual(cluster.a_s, 1e-4, places=9)
        self.assertAlmostEqual(cluster.b_s_per_byte, 1e-9, places=13)

    def test_what_a_call_raises(self):
        """It comes out as it was, and the next call works."""
        def interrupted(bytes, kind):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            core.calibrate(core.Exchange(), interrupted, "mine", 1 << 20)
        for at in (1, 2):
            tuner, exchange = self.make_tuner(), self.Failing(at)
            with self.assertRaisesRegex(KeyError, "in a collective"):
                tuner.look(exchange)
            tuner.look(exchange)
            self.assertEqual(tuner.statistics()["plans"], 1)

    def test_what_c_refuses(self):
        for options, part in (({"policy": "best"}, "best"), ({"size": 0}, "0 workers")):
            with self.assertRaisesRegex(mgwfbp.Error, part):
                cluster = mgwfbp.Cluster.line("idle", 2, 5e-3, 5e-9)
                core.Tuner(self.NAMES, self.BYTES, cluster, **{"policy": "optimal", "size": 1, **options})
            self.assertEqual(cluster.workers, 2)  # still ours
        with self.assertRaisesRegex(mgwfbp.Error, "no plan is set"):
            core.Flow(3).begin(0.0)

    def test_a_look_finds_the_plan(self):
        """The one that planning by hand gives for the same times."""
        ready = [0.01 * (i + 1) for i in range(8)]
        tuner, exchange = self.make_tuner(), core.Exchange()
        self.assertEqual(tuner.operations(), [(0, 2), (2, 6)])  # as DDP: 1 MiB, then up to 25 MiB
        self.assertIsNone(tuner.trace())
        for _ in range(2):
            self.assertFalse(tuner.due())
            tuner.count()
            tuner.observe(0.0, ready[-1], 0.1, (ctypes.c_double * 8)(*ready))
        self.assertTrue(tuner.due())
        self.assertTrue(tuner.look(exchange))
        self.assertFalse(tuner.due())
        backward = [now - before for before, now in zip([0.0, *ready], ready)]
        trace = mgwfbp.Trace.create("hand", self.NAMES, [n // 4 for n in self.BYTES], backward)
        expected = mgwfbp.plan(trace, tuner.cluster())
        self.assertEqual(tuner.operations(), [(o.first, o.count) for o in expected.operations])
        for one, other in zip(tuner.trace().backward_s, backward):
            self.assertAlmostEqual(one, other)
        self.assertEqual(tuner.statistics()["plans"], 1)

    def test_flow(self):
        """What completes a message lets it start, after those before it."""
        tuner, flow = self.make_tuner(), core.Flow(8)
        flow.adopt(tuner)
        flow.begin(1.0)
        started = []
        for k in (3, 2, 7, 6, 5, 4, 1, 0):
            flow.now_s.value = 2.0 + k
            if flow.ready(flow.address, k, flow.now_s):
                started.append((k, list(flow.next())))
        self.assertEqual(started, [(4, []), (0, [0, 1])])
        self.assertEqual(flow.ready_s[:8], [1.0 + k for k in range(8)])
        with self.assertRaisesRegex(mgwfbp.Error, "not averaged"):
            flow.begin(3.0)
        for operation in (0, 1):
            flow.done(operation, 3.0, 4.0)
        flow.begin(5.0)


@unittest.skipUnless(TORCH, WHY)
class Devices(unittest.TestCase):
    """A GPU's clock: one gradient in eight has an event in a step, and the tuner hears of it when the device is there."""

    def test_steps(self):
        now = [0.0]

        class Event:
            def __init__(self):
                self.at_ms = now[0]

            def query(self):
                return over[0]

            def synchronize(self):
                over[0] = True

            def elapsed_time(self, other):
                return other.at_ms - self.at_ms

        made, over, before = [], [False], reducer.CudaTime.now
        reducer.CudaTime.now = lambda time: made.append(Event()) or made[-1]
        try:
            slots, device = make_slots([250000] * 20), torch.device("cuda", 0)
            cluster = mgwfbp.Cluster.line("idle", 2, 5e-3, 5e-9)
            steps = Steps(slots, Options("optimal", None, 2, 100, 3), cluster, core.Exchange(), device)
            self.assertEqual(steps.time.sampled, 8)
            for number in range(12):
                steps.start()
                now[0] += 7
                over[0] = number != 8  # the device is behind when the look comes, which waits for it
                del made[:]
                steps.begin()
                self.assertEqual(steps.tuner.statistics()["plans"], int(number >= 9), number)
                for k in range(20):
                    now[0] += 1
                    steps.ready(k)
                timed = [k for k in range(20) if k % 8 == (number + 1) % 8]
                watched = number != 9  # eight steps before the next look come after it
                self.assertEqual(len(made), 2 + len(timed) * watched, number)
                now[0] += 2
                steps.wait()
            times = steps.measured()
            self.assertAlmostEqual(times.forward_s, 7e-3)
            self.assertEqual([round(t * 1e3, 6) for t in times.ready_s], [8.0 + k for k in range(20)])
            self.assertAlmostEqual(times.compute_s, 29e-3)
        finally:
            reducer.CudaTime.now = before


if __name__ == "__main__":
    unittest.main()
