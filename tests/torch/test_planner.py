"""Memory and plans of the transport torch, without workers: against brute force, and against PyTorch's own buckets."""

import random
import unittest

from support import TORCH, WHY

import mgwfbp

if TORCH:
    import torch
    import torch.distributed as dist
    from mgwfbp.torch import buckets, clock, planner
    from mgwfbp.torch.groups import Group
    from mgwfbp.torch.options import Options
    from mgwfbp.torch.slots import Arena, Slot

    class Alone(Group):
        """One worker: collectives leave everything as it is."""

        rank, size, device = 0, 1, torch.device("cpu")

        def broadcast(self, tensor, root=0):
            pass

        def all_reduce(self, tensor, average=False):
            pass

    class FakeClock:
        """Steps that take what they are told to."""

        STEPS_NEEDED = 1

        def __init__(self, ready_s, iteration_s):
            self.times = clock.Times(list(ready_s), ready_s[0], ready_s[-1], iteration_s)

        def collect(self):
            return self.times

        def reset(self):
            pass


def make_slots(sizes):
    return [Slot.of(f"t{i}", torch.empty(size)) for i, size in enumerate(sizes)]


@unittest.skipUnless(TORCH, WHY)
class Memory(unittest.TestCase):
    def test_slices_are_exactly_their_slots(self):
        random.seed(1)
        dtypes = [torch.float32, torch.float64, torch.float16]
        for _ in range(50):
            tensors = [torch.empty(random.choice([(0,), (1,), (3, 5), (17,), (2, 3, 4, 5)]), dtype=random.choice(dtypes))
                       for _ in range(random.randint(1, 12))]
            if random.random() < 0.5:
                tensors = [t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in tensors]
            arena = Arena([Slot.of(str(i), t) for i, t in enumerate(tensors)], torch.device("cpu"))
            for tensor, view in zip(tensors, arena.views):
                self.assertEqual((view.shape, view.stride(), view.dtype), (tensor.shape, tensor.stride(), tensor.dtype))
                self.assertTrue(not view.numel() or view.data_ptr() % 64 == arena.memory[view.dtype].data_ptr() % 64)
            first = random.randrange(len(tensors))
            stop = random.randint(first + 1, len(tensors))
            for piece in arena.slices(first, stop):
                piece.fill_(1)
            for i, view in enumerate(arena.views):
                self.assertTrue(bool((view == (1 if first <= i < stop else 0)).all()))

    def test_parameters_that_overlap_or_have_gaps(self):
        for parameter in (torch.empty(4).expand(3, 4), torch.empty(6, 6)[:, ::2]):
            slot = Slot.of("p", parameter)
            self.assertEqual(slot.view(torch.zeros(slot.count)).shape, parameter.shape)


@unittest.skipUnless(TORCH, WHY)
class Clocks(unittest.TestCase):
    def test_forward_pass_on_a_device(self):
        """Times count when the device has come there, and nobody waits."""
        class Event:
            def __init__(self, at_ms, over):
                self.at_ms, self.over = at_ms, over

            def query(self):
                return self.over

            def elapsed_time(self, other):
                return other.at_ms - self.at_ms

        events = [Event(0, True), Event(10, True), Event(20, True), Event(40, False), Event(50, True), Event(55, True)]
        given, before = iter(events), clock.event_on
        clock.event_on = lambda device: next(given)
        try:
            forward = clock.CudaForward(torch.device("cuda", 0))
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
            clock.event_on = before


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
            trace = planner.trace_of(make_slots(sizes), [0.0] * len(sizes), 0.0)
            plan = mgwfbp.plan(trace, "paper-2-10gbe", f"ddp:{first},{cap}")
            self.assertEqual([m.count for m in plan.operations], [len(bucket) for bucket in assigned])

    def test_slowdown_is_found(self):
        random.seed(3)
        for _ in range(50):
            sizes = [random.randint(1, 100000) for _ in range(20)]
            ready = sorted(random.uniform(0.01, 0.1) for _ in sizes)
            trace = planner.trace_of(make_slots(sizes), ready, ready[0])
            idle = mgwfbp.Cluster.line("idle", 2, 1e-4, 1e-8)
            plan = mgwfbp.plan(trace, idle)
            factor = random.uniform(1.0, 4.0)
            took = plan.time(trace, planner.scaled(idle, factor)).iteration_s
            self.assertAlmostEqual(planner.slowdown_of(plan, trace, idle, took), factor, places=3)
            self.assertEqual(planner.slowdown_of(plan, trace, idle, 0.0), 1.0)

    def test_two_limits(self):
        trace = mgwfbp.Trace.load("resnet50-b32-fp32-h200")
        cluster = mgwfbp.Cluster.load("paper-2-10gbe")
        found = buckets.two_limits(trace, cluster)
        self.assertLessEqual(found.iteration_s, mgwfbp.plan(trace, cluster, "ddp").iteration_s)
        self.assertGreaterEqual(found.iteration_s, mgwfbp.plan(trace, cluster).iteration_s * (1 - 1e-9))


@unittest.skipUnless(TORCH, WHY)
class Drift(unittest.TestCase):
    SIZES = [250000] * 8  # 1 MB each
    READY = [0.01 * (i + 1) for i in range(8)]

    def setUp(self):
        self.idle = mgwfbp.Cluster.line("idle", 2, 5e-3, 5e-9)
        self.options = Options("optimal", None, 2, 10, 3)
        self.planner = planner.Planner(Alone(), make_slots(self.SIZES), self.options, self.idle)

    def expected(self, ready, factor=1.0):
        trace = planner.trace_of(make_slots(self.SIZES), ready, ready[0])
        plan = mgwfbp.plan(trace, planner.scaled(self.idle, factor))
        return [m.first + m.count for m in plan.operations], plan.iteration_s

    def steps(self, count, ready, iteration_s):
        """The cuts that came after each of so many steps."""
        return [self.planner.after_step(FakeClock(ready, iteration_s)) for _ in range(count)]

    def test_life(self):
        ends, iteration_s = self.expected(self.READY)
        self.assertEqual(self.steps(2, self.READY, iteration_s), [None, ends])
        # Early looks, and later ones: as predicted, so nothing changes.
        self.assertEqual(self.steps(6 + 30, self.READY, iteration_s), [None] * 36)
        self.assertEqual(self.planner.slowdown, 1.0)
        # Ten times as fast: another plan is better, and comes at the next look.
        quick = [t / 10 for t in self.READY]
        fast_ends, fast_s = self.expected(quick)
        self.assertNotEqual(fast_ends, ends)
        self.assertIn(fast_ends, self.steps(10, quick, fast_s))
        self.assertEqual(self.planner.plans, 2)

    def test_messages_slower_beside_computation(self):
        self.steps(2, self.READY, 1.0)
        trace = planner.trace_of(make_slots(self.SIZES), self.READY, self.READY[0])
        took = self.planner.plan.time(trace, planner.scaled(self.idle, 2.0)).iteration_s
        self.steps(2, self.READY, took)
        self.assertAlmostEqual(self.planner.slowdown, 2.0, places=2)

    def test_a_cluster_that_was_given_stays(self):
        self.planner.options = self.options._replace(cluster="given")
        self.steps(8, self.READY, 1.0)
        self.assertEqual(self.planner.slowdown, 1.0)


if __name__ == "__main__":
    unittest.main()
