"""Without PyTorch: structs are as the C compiler lays them out, and planning gives what the command gives."""

import ctypes
import doctest
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from support import MGWFBP, ROOT, python

import mgwfbp
from mgwfbp import _lib, core, environment, notes, planning, trial
from mgwfbp.core import Engine

STRUCTS = {
    "mgw_error": _lib.ErrorStruct, "mgw_text": _lib.Text, "mgw_sample": _lib.Sample, "mgw_cost": _lib.Cost,
    "mgw_policy": _lib.Policy, "mgw_curve": _lib.Curve, "mgw_operation": _lib.OperationStruct, "mgw_piece": _lib.Piece,
    "mgw_shard": _lib.Shard, "mgw_plan": _lib.PlanStruct,
    "mgw_transport_options": _lib.TransportOptions, "mgw_engine_options": _lib.EngineOptions,
    "mgw_engine_statistics": _lib.EngineStatistics, "mgw_exchange": _lib.Exchange, "mgw_calibration": _lib.Calibration,
    "mgw_tuner_options": _lib.TunerOptions, "mgw_step_record": _lib.StepRecord, "mgw_tried": _lib.Tried,
    "mgw_tuner_statistics": _lib.TunerStatistics, "mgw_piece": _lib.Piece, "mgw_shard": _lib.Shard, "mgw_move": _lib.Move,
    "mgw_trial_options": _lib.TrialOptions, "mgw_trial_outcome": _lib.TrialOutcome,
    "mgw_notes": notes._Notes, "mgw_hook_of": notes._Hook, "mgw_python": notes._Python,
}


class Structs(unittest.TestCase):
    def test_layout(self):
        lines = ["#include <stddef.h>", "#include <stdio.h>", "#include <mgwfbp/mgwfbp.h>", "int main(void) {"]
        expected = []
        for name, struct in STRUCTS.items():
            lines.append(f'printf("%zu\\n", sizeof({name}));')
            expected.append(ctypes.sizeof(struct))
            for field, _ in struct._fields_:
                lines.append(f'printf("%zu\\n", offsetof({name}, {field}));')
                expected.append(getattr(struct, field).offset)
        with tempfile.TemporaryDirectory(prefix="mgwfbp-layout-") as folder:
            source, program = Path(folder) / "layout.c", Path(folder) / "layout"
            source.write_text("\n".join(lines + ["}"]))
            subprocess.run(["cc", f"-I{ROOT / 'include'}", source, "-o", program], check=True, timeout=60)
            printed = subprocess.run([program], stdout=subprocess.PIPE, encoding="utf-8", timeout=60).stdout
        self.assertEqual([int(number) for number in printed.split()], expected)

    def test_dtypes(self):
        header = (ROOT / "include" / "mgwfbp" / "dtype.h").read_text()
        for number, name in enumerate(_lib.DTYPES):
            self.assertIn(f'"{name}", {_lib.DTYPE_BYTES[name]})', header)
            self.assertEqual(sum(f'"{n}"' in header.partition(f'"{name}"')[0] for n in _lib.DTYPES), number)

    def test_names_of_enums(self):
        for header, constant, names in (("cluster.h", "MGW_COLLECTIVE_LIST", _lib.COLLECTIVES),
                                        ("plan.h", "MGW_RELEASE_LIST", _lib.RELEASES)):
            text = (ROOT / "include" / "mgwfbp" / header).read_text()
            listed = text.partition(f"#define {constant}(X)")[2].partition("typedef enum")[0]
            self.assertEqual(tuple(re.findall(r'X\(MGW_\w+, "([^"]+)"\)', listed)), names)
        text = (ROOT / "include" / "mgwfbp" / "transport.h").read_text()
        listed = re.search(r"typedef enum mgw_op \{(.*)\}", text).group(1)
        self.assertEqual([name.strip().lower() for name in listed.split(",")],
                         [f"mgw_{name}" for name in _lib.OPERATIONS])


class Ownership(unittest.TestCase):
    """Elements are told apart by what stands for them: their place in memory."""

    CUTS = [("reduce-scatter", 0, 2), ("reduce-scatter", 2, 1), ("all-reduce", 3, 1), ("all-gather", 1, 2),
            ("all-gather", 0, 1)]
    WHOLE = [("reduce-scatter", 0, 4), ("all-gather", 0, 4)]

    def make(self, operations, workers):
        layout = core.Layout([100, 70, 3, 40], ["f32", "f32", "f64", "f32"])
        return core.Shards(layout, operations, workers)

    def state(self, shards, rank, dtype):
        held = [s for s in shards.of(rank) if s.dtype == dtype]
        self.assertEqual([s.at for s in held], [sum(s.count for s in held[:i]) for i in range(len(held))])
        state = [s.begin + e for s in held for e in range(s.count)]
        self.assertEqual(shards.length(rank, dtype), len(state))
        return state

    def test_pieces(self):
        shards = self.make(self.CUTS, 2)
        none = core.NO_OPERATION
        self.assertEqual(shards.pieces(), [
            ("f32", 0, 112, True, 0, 4), ("f32", 112, 80, True, 0, 3), ("f32", 192, 48, False, 2, none),
            ("f64", 0, 8, True, 1, 3)])
        self.assertEqual(shards.segments(0, "f32"), (slice(0, 192), [112, 80]))
        self.assertEqual(shards.segments(3, "f64"), (slice(0, 8), [8]))
        self.assertEqual(shards.segments(4, "f64")[1], [])
        self.assertEqual([shards.owned(0, rank) for rank in range(2)], [slice(0, 64), slice(64, 112)])
        self.assertEqual(shards.of(1)[0], (0, 64, 36, "f32", 64, 0, 0))

    def test_every_element_has_its_owners(self):
        for workers in range(1, 6):
            shards = self.make(self.CUTS, workers)
            held = sorted(e for rank in range(workers) for e in self.state(shards, rank, "f32"))
            everybodys = sorted(workers * list(range(192, 232)))
            self.assertEqual(held, [*range(100), *range(112, 182)] + everybodys)

    def test_state_moves(self):
        for workers, most, (before, after) in itertools.product((1, 2, 3), (0, 64), (
                (self.CUTS, self.WHOLE), (self.WHOLE, self.CUTS), (self.CUTS, self.CUTS))):
            before, after = self.make(before, workers), self.make(after, workers)
            for dtype in "f32", "f64":
                plans = [before.moves(after, rank, dtype, most) for rank in range(workers)]
                self.run_moves([moves for moves, _ in plans], plans[0][1], workers,
                               [self.state(before, rank, dtype) for rank in range(workers)],
                               [self.state(after, rank, dtype) for rank in range(workers)])

    def run_moves(self, plans, scratch, workers, states, expected):
        made = [[None] * len(state) for state in expected]
        rooms = [[None] * scratch for _ in plans]
        while any(plans):
            for rank, moves in enumerate(plans):
                while moves and moves[0].kind != "gather":
                    kind, source, target, count = moves.pop(0)
                    memory = rooms[rank] if kind == "take" else states[rank]
                    into = rooms[rank] if kind == "lend" else made[rank]
                    into[target:target + count] = memory[source:source + count]
            gathers = [moves.pop(0) for moves in plans if moves]
            self.assertIn(len(gathers), (0, workers))
            self.assertTrue(all(move.count == scratch for move in gathers))
            each = scratch // workers
            rooms = [sum((rooms[r][r * each:(r + 1) * each] for r in range(workers)), []) for _ in plans]
        self.assertEqual(made, expected)

    def test_refused(self):
        with self.assertRaisesRegex(mgwfbp.Error, "tensor 0 is scattered but not gathered"):
            self.make(self.CUTS[:2], 2)
        with self.assertRaisesRegex(mgwfbp.Error, "rank 2 of 2 workers"):
            self.make(self.CUTS, 2).of(2)


class Planning(unittest.TestCase):
    def test_kinds(self):
        line = mgwfbp.Cluster.line("c", workers=4, a_s=2.0, b_s_per_byte=4.0)
        self.assertEqual([line.seconds(10, kind) for kind in _lib.COLLECTIVES], [42, 21, 21, 21, 21])
        given = mgwfbp.Cluster.parse(json.dumps({**line.dict(), "collectives": {
            "all-gather": {"cost": {"a_s": 1, "b_s_per_byte": 3}}}}))
        self.assertEqual([given.seconds(10, kind) for kind in _lib.COLLECTIVES], [42, 21, 31, 21, 21])
        for policy, release in (("naive", "after-backward"), ("wfbp", "when-ready")):
            plan = mgwfbp.plan("gpt2-b8-fp32-h200", "paper-2-10gbe", policy)
            self.assertEqual({(o.kind, o.release) for o in plan.operations}, {("all-reduce", release)})

    def test_beside(self):
        """Computation and messages that slow each other down: in files, and in plans."""
        samples = [{"bytes": 1 << 10, "seconds": 1e-3}, {"bytes": 1 << 20, "seconds": 9e-3}, {"bytes": 1 << 24, "seconds": 0.1}]
        head = {"format": "mgwfbp-cluster-1", "name": "c", "workers": 4, "samples": samples}
        factors = {"message": 1.5, "compute": 1.25}
        alone, cluster = mgwfbp.Cluster.of(head), mgwfbp.Cluster.of({**head, "beside": factors})
        self.assertEqual(alone.beside, (1.0, 1.0))
        self.assertEqual(cluster.beside, (1.5, 1.25))
        self.assertEqual(cluster.dict()["beside"], factors)
        self.assertEqual(cluster.seconds(1 << 20), alone.seconds(1 << 20))  # a time alone
        fitted = cluster.fitted()
        self.assertEqual((fitted.a_s, fitted.b_s_per_byte, fitted.beside), (cluster.a_s, cluster.b_s_per_byte, (1.5, 1.25)))
        self.assertNotIn("samples", fitted.dict())
        trace = "resnet50-b32-fp32-h200"
        for policy in ("ddp", "optimal"):
            self.assertGreater(mgwfbp.plan(trace, cluster, policy).iteration_s, mgwfbp.plan(trace, alone, policy).iteration_s)
        single = [mgwfbp.plan(trace, one, "single").iteration_s for one in (alone, cluster)]
        self.assertEqual(*single)  # nothing runs beside anything

    def test_as_the_command(self):
        done = subprocess.run([MGWFBP, "plan", "gpt2-b8-fp32-h200", "paper-2-10gbe", "--json"], stdout=subprocess.PIPE,
                              encoding="utf-8", timeout=60)
        told = json.loads(done.stdout)
        for plan in mgwfbp.compare("gpt2-b8-fp32-h200", "paper-2-10gbe"):
            self.assertAlmostEqual(plan.iteration_s, told["policies"][plan.policy]["iteration_s"], places=9)
            self.assertEqual(plan.message_count, told["policies"][plan.policy]["messages"])
            self.assertEqual(sum(m.count for m in plan.operations), 148)
            self.assertEqual(sum(len(group) for group in plan.groups), 148)

    def test_from_numbers(self):
        """The counter-example of docs/explanation/model.md, solved by hand: {1}, {2, 3} ends at 4.8."""
        trace = mgwfbp.Trace.create("three", ["x", "y", "z"], [4, 5, 5], [0.0, 0.9, 0.9], dtype="f32")
        cluster = mgwfbp.Cluster.line("unit", 2, 1.0, 0.05)  # 0.2 s per element
        self.assertAlmostEqual(mgwfbp.plan(trace, cluster).iteration_s, 4.8)
        self.assertAlmostEqual(mgwfbp.plan(trace, cluster, "mgwfbp").iteration_s, 5.6)

    def test_times_by_name(self):
        """What is made of a name must live as long as it is looked at."""
        samples = [{"bytes": 2**k, "seconds": 1e-4 + 1e-9 * 2**k} for k in range(1, 20)]
        curve = {"format": "mgwfbp-cluster-1", "name": "curve", "workers": 2, "samples": samples}
        made = mgwfbp.plan("gpt2-b8-fp32-h200", "paper-2-10gbe")
        for cluster in ("paper-3-56gbib", curve):
            kept = mgwfbp.Cluster.load(cluster) if isinstance(cluster, str) else mgwfbp.Cluster.parse(json.dumps(cluster))
            expected = made.time(mgwfbp.Trace.load("gpt2-b8-fp32-h200"), kept).iteration_s
            self.assertEqual(made.time("gpt2-b8-fp32-h200", cluster).iteration_s, expected)

    def test_files(self):
        with tempfile.TemporaryDirectory(prefix="mgwfbp-python-") as folder:
            path = Path(folder) / "trace.json"
            trace = mgwfbp.Trace.load("resnet50-b32-fp32-h200")
            trace.save(path)
            self.assertEqual(mgwfbp.Trace.load(path).json(), trace.json())
            self.assertEqual(mgwfbp.plan(trace.dict(), "paper-2-10gbe").json(),
                             mgwfbp.plan(path, "paper-2-10gbe").json())
            with self.assertRaises(mgwfbp.Error):
                trace.save(Path(folder) / "no" / "such" / "folder")

    def test_errors(self):
        for call, part in ((lambda: mgwfbp.Trace.load("no-such"), "no-such"),
                           (lambda: mgwfbp.plan({"format": "x"}, "paper-2-10gbe"), "format"),
                           (lambda: mgwfbp.plan("gpt2-b8-fp32-h200", "paper-2-10gbe", "best"), "best"),
                           (lambda: mgwfbp.Trace.create("m", ["a", "a"], [1, 1], [0, 0]), "'a'")):
            with self.assertRaises(mgwfbp.Error) as caught:
                call()
            self.assertIn(part, str(caught.exception))

    def test_examples_in_the_code(self):
        self.assertEqual(doctest.testmod(planning).failed, 0)
        self.assertEqual(doctest.testmod(trial).failed, 0)

    def test_needs_no_torch(self):
        code = ("import sys, mgwfbp; mgwfbp.plan('gpt2-b8-fp32-h200', 'paper-2-10gbe');"
                "print('torch' in sys.modules, 'numpy' in sys.modules)")
        done = python("-c", code)
        self.assertEqual(done.stdout, "False False\n", done.stderr)

    def test_library_that_is_not_there(self):
        done = subprocess.run([sys.executable, "-c", "import mgwfbp"], env=dict(
            os.environ, PYTHONPATH=str(ROOT / "python"), MGWFBP_LIBRARY="/no/such.so"), stderr=subprocess.PIPE,
            encoding="utf-8", timeout=60)
        self.assertIn("MGWFBP_LIBRARY", done.stderr)


class Engines(unittest.TestCase):
    def test_after_close(self):
        """A gradient that comes later is an error, and no crash."""
        engine = Engine("self", device="host")
        number = engine.add("tensor", 4, "f32")
        engine.start()
        engine.begin()
        engine.ready(number)
        engine.wait()
        engine.close()
        for call in (lambda: engine.ready(number), lambda: engine.ready_on(number, 0),
                     lambda: engine.ready_at(number, 0, 0), engine.begin, engine.wait, engine.statistics):
            with self.assertRaisesRegex(mgwfbp.Error, "engine is closed"):
                call()
        engine.close()


class Trials(unittest.TestCase):
    """What tests/unit/test_trial.c has shown is not shown again: that Python means the same."""

    def test_a_trial(self):
        found = trial.Trial(3, turn_steps=3, most_rounds=20)
        self.assertEqual((found.close_share, found.risk, found.turn_steps, found.most_rounds), (0.005, 0.01, 3, 20))
        self.assertEqual(sorted(found.left), [0, 1, 2])
        self.assertIsNone(found.winner)
        for number in range(20):
            if found.winner is None:
                found.round([(1.0, 1.5, 0.99)[i] * (1.1 if (number + i // 2) % 2 else 1.0) for i in found.left])
        self.assertEqual(found.winner, 0)  # the other may be worse
        self.assertEqual(found.left[0] + found.left[1], 2)
        worse, best = found.result(1), found.result(2)
        self.assertFalse(worse.left)
        self.assertTrue(best.left and best.ratio == 1 and best.rounds == 20)
        self.assertAlmostEqual(worse.ratio, 1.5 / 0.99, delta=0.1)
        self.assertGreater(worse.width, 0)
        self.assertEqual(found.steps, 3 * (3 * worse.rounds + 2 * (20 - worse.rounds)))
        self.assertAlmostEqual(best.mean_s, 0.99 * 1.1 ** 0.5, delta=0.001)

    def test_turn(self):
        self.assertAlmostEqual(trial.Trial.turn([3.0, 90.0, 2.0, 1.0]), 2.0)

    def test_errors(self):
        with self.assertRaisesRegex(mgwfbp.Error, "0 candidates"):
            trial.Trial(0)
        with self.assertRaisesRegex(mgwfbp.Error, "turns of 1 steps"):
            trial.Trial(2, turn_steps=1)
        found = trial.Trial(2)
        for call in (lambda: found.round([1.0]), lambda: found.round([1.0] * 3)):
            with self.assertRaisesRegex(ValueError, "2 candidates are left"):
                call()
        for candidate in (-1, 2):
            with self.assertRaises(IndexError):
                found.result(candidate)
        found.close()
        with self.assertRaisesRegex(mgwfbp.Error, "trial is closed"):
            found.left


class Late(unittest.TestCase):
    def test_the_file_has_pythons_stack(self):
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.dict(os.environ, MGWFBP_DUMP=folder):
            engine = core.Engine("self", 0.2, "single")
            engine.add("a", 10, "f32")
            engine.start()
            engine.begin()
            with self.assertRaisesRegex(_lib.Error, r"tensor 'a' was not ready within 0.2 s .*\(more in /.*\)$"):
                engine.wait()
            file, = Path(folder).iterdir()
            self.assertRegex(file.read_text(), r"(?s)1 not ready: 'a'.*Python:.*test_the_file_has_pythons_stack")


class Environment(unittest.TestCase):
    def ask(self, what=lambda: (environment.rank(), environment.size(), environment.local_rank(), environment.job()), **variables):
        before = dict(os.environ)
        for launcher in environment.LAUNCHERS:
            for name in (*launcher, "MASTER_ADDR", "MASTER_PORT"):
                os.environ.pop(name, None)
        os.environ.update(variables)
        try:
            return what()
        finally:
            os.environ.clear()
            os.environ.update(before)

    def test_launchers(self):
        self.assertEqual(self.ask(), (0, 1, 0, None))
        self.assertEqual(self.ask(RANK="3", WORLD_SIZE="4", LOCAL_RANK="3", LOCAL_WORLD_SIZE="4", MASTER_ADDR="h",
                                  MASTER_PORT="99", TORCHELASTIC_RUN_ID="r"), (3, 4, 3, "r-h-99"))
        self.assertEqual(self.ask(RANK="3", WORLD_SIZE="4", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2", MASTER_ADDR="h",
                                  MASTER_PORT="99"), (3, 4, 1, None))
        ours = {"MGWFBP_RANK": "3", "MGWFBP_SIZE": "4", "LOCAL_RANK": "1", "MGWFBP_JOB": "j"}
        self.assertEqual(self.ask(**ours), (3, 4, 1, "j"))
        self.assertEqual(self.ask(LOCAL_WORLD_SIZE="2", **ours), (3, 4, 1, None))  # of mgwfbp launch --nodes 2
        self.assertEqual(self.ask(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK="1",
                                  OMPI_COMM_WORLD_LOCAL_SIZE="2", PMIX_NAMESPACE="7"), (1, 2, 1, "7"))
        slurm = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "9"}
        self.assertEqual(self.ask(**slurm), (0, 1, 0, None))  # a batch script, which nobody has multiplied
        slurm.update(SLURM_STEP_NUM_TASKS="8", SLURM_STEP_ID="2")
        self.assertEqual(self.ask(**slurm), (5, 8, 1, None))
        self.assertEqual(self.ask(SLURM_NTASKS_PER_NODE="8", **slurm), (5, 8, 1, "9-2"))
        for expected, variables in (
                ("self", {}),
                ("shm", ours),
                ("tcp", dict(ours, LOCAL_WORLD_SIZE="2", MASTER_ADDR="h")),
                ("tcp", dict(RANK="3", WORLD_SIZE="4", LOCAL_WORLD_SIZE="2", MASTER_ADDR="h")),
                ("mpi", dict(slurm, MASTER_ADDR="h")),
                ("mpi", dict(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2"))):
            self.assertEqual(self.ask(environment.control, **variables), expected, variables)
        with self.assertRaisesRegex(ValueError, "RANK: 'x'"):
            self.ask(RANK="x", WORLD_SIZE="2")


if __name__ == "__main__":
    unittest.main()
