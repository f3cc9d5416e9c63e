"""The command: its numbers compared with the model, its files, and the correctness of its help."""

import json
import math
import os
import re
import shutil
import subprocess
import unittest
import xml.etree.ElementTree as ElementTree

import chrome_trace
import support
from folder import RESNET, SVG, Folder, small_cluster, small_trace
from support import FIXTURES, MGWFBP, ROOT, builtin_trace, run, run_json


class Plan(Folder):
    def test_counter_example(self):
        trace = self.file("t.json", small_trace())
        cluster = self.file("c.json", small_cluster())
        policies = run_json("plan", trace, cluster)["policies"]
        self.assertAlmostEqual(policies["mgwfbp"]["iteration_s"], 5.6, places=12)
        self.assertAlmostEqual(policies["optimal"]["iteration_s"], 4.8, places=12)

    def check_against_model(self, name, cluster, a, b, *options, scale=1.0):
        ready, sizes = support.problem(builtin_trace(name), scale)
        cost = lambda size: a + b * size
        count = len(sizes)
        expected = {
            "naive": support.end_of(ready, sizes, support.each(count), cost, ready[-1]),
            "wfbp": support.end_of(ready, sizes, support.each(count), cost),
            "single": support.end_of(ready, sizes, [(0, count)], cost),
            "mgwfbp": support.end_of(ready, sizes, support.greedy(ready, sizes, a, cost), cost),
            "threshold:67108864": support.end_of(
                ready, sizes, support.by_size(sizes, 1 << 26, 1 << 26), cost),
            "ddp": support.end_of(ready, sizes, support.by_size(sizes, 1 << 20, 25 << 20), cost),
            "optimal": support.optimum(ready, sizes, cost),
        }
        answer = run_json("plan", name, cluster, *options)
        self.assertEqual(set(answer), {"plan", "policies", "lower_bound_s"})
        self.assertEqual(set(answer["policies"]), {*expected, "zero", "dear", "fsdp", "sharded", "overlap"})
        for got in answer["policies"].values():
            self.assertEqual(set(got), {"iteration_s", "exposed_s", "messages", "operations", "bytes", "lower_bound_s"})
            self.assertEqual(sum(got["operations"].values()), got["messages"])
        self.assertLessEqual(answer["policies"]["overlap"]["iteration_s"],
                             min(got["iteration_s"] for got in answer["policies"].values()) * (1 + 1e-11))
        for policy, end in expected.items():
            got = answer["policies"][policy]
            self.assertEqual(set(got["operations"]), {"all-reduce"})
            self.assertEqual(got["bytes"], sum(sizes))
            self.assertEqual(got["lower_bound_s"], answer["lower_bound_s"])
            self.assertAlmostEqual(got["iteration_s"] / end, 1, delta=1e-10, msg=policy)
            self.assertAlmostEqual(got["exposed_s"], end - ready[-1], delta=1e-10 * end)
        bound = max(ready[-1] + cost(sizes[-1]), ready[0] + cost(sum(sizes)))
        self.assertAlmostEqual(answer["lower_bound_s"] / bound, 1, delta=1e-10)
        plan = answer["plan"]
        self.assertEqual(plan["format"], "mgwfbp-plan-2")
        self.assertEqual(plan["policy"], "optimal")
        self.assertEqual(len(plan["operations"]), answer["policies"]["optimal"]["messages"])
        names = [n for message in plan["operations"] for n in message["tensors"]]
        self.assertEqual(names, [t["name"] for t in builtin_trace(name)["tensors"]])
        self.assertEqual(sum(m["bytes"] for m in plan["operations"]), sum(sizes))
        self.assertAlmostEqual(plan["operations"][-1]["end_s"], plan["iteration_s"], delta=1e-11)
        self.assertEqual({(o["kind"], o["release"]) for o in plan["operations"]}, {("all-reduce", "when-ready")})

    def test_against_the_model(self):
        self.check_against_model(RESNET, "paper-2-10gbe", 9.08e-4, 7.4e-10)
        self.check_against_model("densenet201-b64-amp-bf16-h200", "paper-3-56gbib", 2.36e-4,
                                 4.06e-10)

    def test_overlap_against_the_model(self):
        for name, cluster, line, width in ((RESNET, "paper-2-10gbe", (9.08e-4, 7.4e-10), 4),
                                           ("gpt2-b8-fp32-h200", "paper-3-56gbib", (2.36e-4, 4.06e-10), 4),
                                           ("vit_b_16-b64-fp32-h200", "paper-2-10gbe", (9.08e-4, 7.4e-10), 2)):
            trace = builtin_trace(name)
            if width == 2:
                trace["parameter_dtype"] = "bf16"
            path = self.file("t.json", trace)
            _, sizes = support.problem(trace)
            half = (line[0] / 2, line[1] / 2)
            cost = {"all-reduce": lambda size: line[0] + line[1] * size,
                    "reduce-scatter": lambda size: half[0] + half[1] * size,
                    "all-gather": lambda size: half[0] + half[1] * size}
            groups = support.by_size(sizes, 25 << 20, 25 << 20)
            answer = run_json("plan", path, cluster, "--policy", "overlap")
            for policy, expected in (("zero", support.period(trace, support.pairs(trace, groups, width), cost)),
                                     ("dear", support.period(trace, support.pairs(trace, groups, 4), cost))):
                self.assertAlmostEqual(answer["policies"][policy]["iteration_s"] / expected, 1, delta=1e-10)
            plan = answer["plan"]
            at = {tensor["name"]: i for i, tensor in enumerate(trace["tensors"])}
            operations = [(o["kind"], at[o["tensors"][0]], at[o["tensors"][-1]] + 1,
                           width if o["kind"] == "all-gather" else 4) for o in plan["operations"]]
            self.assertAlmostEqual(plan["iteration_s"] / support.period(trace, operations, cost), 1, delta=1e-10)
            hybrid = support.hybrid(trace, line, half, width)
            self.assertLessEqual(plan["iteration_s"], hybrid * (1 + 1e-10))
            if hybrid <= 1.005 * plan["lower_bound_s"]:
                self.assertAlmostEqual(plan["iteration_s"] / hybrid, 1, delta=1e-10)
            self.assertGreaterEqual(plan["iteration_s"], plan["lower_bound_s"] * (1 - 1e-11))

    def test_baseline_of_wires(self):
        """DDP sends f32, whatever our plans may send; that it does is said."""
        for wire in ("bf16", "auto"):
            plain, narrow = run_json("plan", RESNET, "paper-2-10gbe"), run("plan", RESNET, "paper-2-10gbe", "--wire", wire).stdout
            self.assertIn(f"DDP's default with f32 messages takes {1e3 * plain['policies']['ddp']['iteration_s']:.3g} ms.", narrow)
        self.assertNotIn("with f32 messages", run("plan", RESNET, "paper-2-10gbe").stdout)

    def test_wires(self):
        """Each message travels as what is fastest for it, casts and scales counted: by the model written down."""
        a, b = 2.36e-4, 4.06e-10
        casts = {"bf16": {"a_s": 2e-5, "c_s_per_byte": 1e-11}, "fp8": {"a_s": 4e-5, "c_s_per_byte": 5e-11}}
        cluster = self.file("c.json", {"format": "mgwfbp-cluster-1", "name": "c", "workers": 4, "casts": casts,
                                       "cost": {"a_s": a, "b_s_per_byte": b}})
        wires = {"f32": lambda m: a + b * m,
                 "bf16": lambda m: 2e-5 + 1e-11 * m + a + b * m / 2,
                 "fp8": lambda m: 4e-5 + 5e-11 * m + a + b * m / 4 + a + b * m / 1024}
        trace = builtin_trace(RESNET)
        ready, sizes = support.problem(trace)
        plain = run_json("plan", RESNET, cluster)
        for given, allowed in (("auto", ("f32", "bf16", "fp8")), ("bf16", ("bf16",)), ("f32,fp8", ("f32", "fp8")),
                               ("f32", ("f32",))):
            cost = lambda m: min(wires[wire](m) for wire in allowed)  # noqa: E731
            answer = run_json("plan", RESNET, cluster, "--wire", given)
            plan, first, groups = answer["plan"], 0, []
            for operation in plan["operations"]:
                stop = first + len(operation["tensors"])
                size, wire = sum(sizes[first:stop]), operation.get("wire", "f32")
                self.assertIn(wire, allowed)
                self.assertAlmostEqual(operation["end_s"] - operation["start_s"], cost(size), delta=1e-12)
                self.assertAlmostEqual(wires[wire](size), cost(size), delta=1e-12)
                expected = {"f32": size, "bf16": size // 2, "fp8": size // 4 + 4 * -(-size // 4096)}[wire]
                self.assertEqual(operation["bytes"], expected)
                groups.append((first, stop))
                first = stop
            self.assertAlmostEqual(plan["iteration_s"], support.end_of(ready, sizes, groups, cost), delta=1e-11)
            self.assertLessEqual(plan["iteration_s"], plain["plan"]["iteration_s"] * (1 + 1e-12) if "f32" in allowed else 1)
            rows = run_json("simulate", RESNET, cluster, "--wire", given, "--policy", "optimal")
            self.assertAlmostEqual(rows[0]["iteration_s"], plan["iteration_s"], delta=1e-12)
            self.assertEqual(rows[0]["bytes"], sum(o["bytes"] for o in plan["operations"]))
            advice = run_json("advise", RESNET, cluster, "--wire", given)
            self.assertAlmostEqual(advice["plan_s"], plan["iteration_s"], delta=1e-12)
            self.assertAlmostEqual(advice["ddp_s"], plain["policies"]["ddp"]["iteration_s"], delta=1e-12)
            self.assertEqual(answer["baseline"], plain["policies"]["ddp"])  # as people run it
            told = run("advise", RESNET, cluster, "--wire", given).stdout
            took = re.search(r"(?:take|sending all gradients takes) (\S+) ms(?:, computation|, and no computation)", told)
            self.assertAlmostEqual(float(took[1]) * 1e-3, cost(sum(sizes)), delta=0.006 * cost(sum(sizes)))
        self.assertNotIn("baseline", plain)
        self.assertEqual({o.get("wire") for o in run_json("plan", RESNET, cluster, "--policy", "wfbp", "--wire",
                                                          "f32,bf16")["plan"]["operations"]}, {None, "bf16"})

    def test_scaled_compute_and_workers(self):
        alpha, beta = 9.72e-4 / 30, 1.97e-9 / (30 / 16)
        self.check_against_model(
            "googlenet-b64-fp32-h200", "paper-1-10gbe-link", 2 * 63 * alpha, 2 * 63 / 64 * beta,
            "--workers", 64, "--scale-compute", 36, scale=36)
        self.check_against_model(
            "googlenet-b64-fp32-h200", "paper-1-10gbe-link", 12 * alpha, beta,
            "--workers", 64, "--algorithm", "double-binary-trees")

    def test_curve(self):
        """On a measured curve the optimum is exact too."""
        samples = [(256, 3e-4), (4096, 3.1e-4), (8192, 8e-4), (1 << 20, 1e-3), (1 << 26, 4e-2)]
        cluster = self.file("c.json", {
            "format": "mgwfbp-cluster-1", "name": "curve", "workers": 4,
            "samples": [{"bytes": b, "seconds": s} for b, s in samples]})

        def cost(size):
            if size <= samples[0][0]:
                return samples[0][1]
            pairs = list(zip(samples, samples[1:]))
            for (b0, s0), (b1, s1) in pairs:
                if size <= b1:
                    return s0 + (s1 - s0) / (b1 - b0) * (size - b0)
            return s1 + (s1 - s0) / (b1 - b0) * (size - b1)

        ready, sizes = support.problem(builtin_trace(RESNET))
        got = run_json("plan", RESNET, cluster)["policies"]["optimal"]["iteration_s"]
        self.assertAlmostEqual(got / support.optimum(ready, sizes, cost), 1, delta=1e-10)

    def test_curves_have_a_limit(self):
        trace = small_trace(tensors=[
            {"name": f"t{i}", "count": 1, "backward_s": 1e-7} for i in range(20001)])
        path = self.file("t.json", trace)
        curve = FIXTURES / "cluster_samples.json"
        self.refused(run("plan", path, curve), "20001", "mgwfbp fit")
        self.assertNotIn("optimal", run_json("plan", path, curve, "--policy", "ddp")["policies"])

    def test_chosen_policy(self):
        for policy in ("single", "threshold:4194304", "ddp:65536,1048576"):
            answer = run_json("plan", RESNET, "paper-2-10gbe", "--policy", policy)
            self.assertEqual(answer["plan"]["policy"], policy)
            self.assertAlmostEqual(answer["policies"][policy]["iteration_s"],
                                   answer["plan"]["iteration_s"])

    def test_table(self):
        done = run("plan", RESNET, "paper-2-10gbe")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("naive", "wfbp", "single", "mgwfbp", "optimal *", "ddp", "lower bound",
                     "no plan of whole all-reduces can save more than", "overlap",
                     "no plan can save more than"):
            self.assertIn(word, done.stdout)

    def test_output_reads_back(self):
        path = self.folder / "plan.json"
        answer = run_json("plan", RESNET, "paper-2-10gbe", "-o", path)
        self.assertEqual(json.loads(path.read_text()), answer["plan"])
        shown = run_json("show", path)
        self.assertAlmostEqual(shown["iteration_s"], answer["plan"]["iteration_s"])
        self.assertEqual(shown["messages"], len(answer["plan"]["operations"]))
        self.assertEqual(os.listdir(self.folder), ["plan.json"])

    def test_million_tensors(self):
        trace = small_trace(tensors=[
            {"name": f"t{i}", "count": 1000 + i % 7, "backward_s": 1e-7} for i in range(10**6)])
        path = self.file("t.json", trace)
        answer = run_json("plan", path, "paper-3-56gbib")
        self.assertEqual(answer["policies"]["wfbp"]["messages"], 10**6)
        self.assertLess(answer["policies"]["optimal"]["iteration_s"],
                        answer["policies"]["mgwfbp"]["iteration_s"])


class Overlap(Folder):
    """Plans that overlap the next forward pass, compared with a simulation of both passes."""

    def check_walk(self, plan, trace, cost, parameters=None):
        operations = [(o["kind"], o["release"], o["tensors"]) for o in plan["operations"]]
        times, stalls, end = support.walk(trace, operations, cost, parameters)
        for operation, (start, stop) in zip(plan["operations"], times):
            self.assertAlmostEqual(operation["start_s"], start, delta=1e-10)
            self.assertAlmostEqual(operation["end_s"], stop, delta=1e-10)
        self.assertAlmostEqual(plan["iteration_s"], end - trace["forward_s"], delta=1e-10)
        waits = sum(to - begin for _, begin, to in stalls)
        self.assertAlmostEqual(plan["compute_s"] + waits, plan["iteration_s"], delta=1e-10)
        printed = sum(s["end_s"] - s["start_s"] for s in plan.get("stalls", []))
        self.assertAlmostEqual(plan["compute_s"] + printed, plan["iteration_s"], delta=1e-10)
        long = lambda list: [(n, round(a, 9), round(b, 9)) for n, a, b in list if b - a > 1e-9]
        shown = [(s["tensor"], s["start_s"], s["end_s"]) for s in plan.get("stalls", [])]
        self.assertEqual([x[1:] for x in long(shown)], [x[1:] for x in long(stalls)])

    def test_every_policy(self):
        for name, cluster, a, b in ((RESNET, "paper-2-10gbe", 9.08e-4, 7.4e-10),
                                    ("gpt2-b8-fp32-h200", "paper-3-56gbib", 2.36e-4, 4.06e-10)):
            trace = builtin_trace(name)
            cost = lambda kind, size: (1 if kind == "all-reduce" else 0.5) * (a + b * size)
            for policy in ("overlap", "zero", "dear", "fsdp", "zero:4194304", "fsdp:26214400"):
                for parameters in (None, "bf16"):
                    options = ("--parameters", parameters) if parameters else ()
                    answer = run_json("plan", name, cluster, "--policy", policy, *options)
                    self.check_walk(answer["plan"], trace, cost, parameters)
                    shown = answer["policies"][answer["plan"]["policy"]]
                    self.assertEqual(shown["iteration_s"], answer["plan"]["iteration_s"])
                    self.assertLessEqual(answer["lower_bound_s"], shown["iteration_s"] * (1 + 1e-11))

    def test_parameters(self):
        """What the option says is what the trace could say; gathers of gradients do not mind."""
        trace = builtin_trace(RESNET)
        said = self.file("t.json", dict(trace, parameter_dtype="bf16"))
        for command in (("plan", "--policy", "zero"), ("simulate", "--policy", "all")):
            command, *options = command
            wanted = run_json(command, said, "paper-2-10gbe", *options)
            self.assertEqual(run_json(command, RESNET, "paper-2-10gbe", *options, "--parameters", "bf16"), wanted)
            self.assertNotEqual(run_json(command, RESNET, "paper-2-10gbe", *options), wanted)
        answer = run_json("plan", RESNET, "paper-2-10gbe", "--parameters", "bf16")["policies"]
        before = run_json("plan", RESNET, "paper-2-10gbe")["policies"]
        for policy in before:
            same = policy not in ("zero", "fsdp", "sharded", "overlap")
            self.assertEqual(answer[policy]["iteration_s"] == before[policy]["iteration_s"], same, policy)
        self.assertEqual(run_json("report", RESNET, "--parameters", "bf16")["traces"][0]["parameter_dtype"], "bf16")
        self.assertIn("parameters 48.7 MiB as bf16", run("plan", RESNET, "paper-2-10gbe", "--parameters", "bf16").stdout)
        for command in ("plan", "simulate", "report"):
            self.refused(run(command, RESNET, "paper-2-10gbe", "--parameters", "int8"), "--parameters", "int8")

    def test_scaling(self):
        rows = run_json("simulate", RESNET, "paper-1-10gbe-link", "--workers", "4:64", "--policy", "optimal,overlap")
        for whole, halves in zip(rows[::2], rows[1::2]):
            self.assertEqual((whole["policy"], halves["policy"]), ("optimal", "overlap"))
            self.assertLess(halves["iteration_s"], whole["iteration_s"])
            plan = run_json("plan", RESNET, "paper-1-10gbe-link", "--workers", halves["workers"])["policies"]["overlap"]
            self.assertEqual((halves["iteration_s"], halves["messages"]), (plan["iteration_s"], plan["messages"]))

    def test_words(self):
        done = run("plan", RESNET, "paper-2-10gbe", "--policy", "overlap")
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("overlap *", "kind", "reduce-scatter", "all-gather", "of whole all-reduces",
                     "The next forward pass begins at 17.9 ms and waits 60.5 ms for"):
            self.assertIn(word, done.stdout)
        fast = self.file("c.json", small_cluster(cost={"a_s": 1e-9, "b_s_per_byte": 1e-13}))
        self.assertIn("does not wait", run("plan", RESNET, fast, "--policy", "zero:1G").stdout
                      + run("plan", RESNET, fast, "--policy", "overlap").stdout)


class Simulate(Folder):
    FORMULAS = {  # workers -> a / alpha, b / beta; the built-in link has gamma = 0
        "binary-tree": lambda n: (2 * math.log2(n), 2 * math.log2(n)),
        "recursive-doubling": lambda n: (math.log2(n), math.log2(n)),
        "recursive-halving-doubling": lambda n: (2 * math.log2(n), 2 - 2 / n),
        "double-binary-trees": lambda n: (2 * math.log2(n), 1),
        "ring": lambda n: (2 * (n - 1), 2 * (n - 1) / n),
        "parameter-server": lambda n: (2, 2 * n),
    }

    def test_rows_against_formulas(self):
        rows = run_json("simulate", "googlenet-b64-fp32-h200", "paper-1-10gbe-link", "--workers",
                        "4:2048", "--algorithm", ",".join(self.FORMULAS), "--policy",
                        "single,wfbp")
        self.assertEqual(len(rows), 6 * 10 * 2)
        ready, sizes = support.problem(builtin_trace("googlenet-b64-fp32-h200"))
        alpha, beta = 9.72e-4 / 30, 1.97e-9 / (30 / 16)
        for row in rows:
            self.assertEqual(set(row), {"workers", "algorithm", "policy", "iteration_s",
                                        "exposed_s", "speedup", "efficiency", "messages", "bytes"})
            self.assertEqual(row["bytes"], sum(sizes))
            a, b = self.FORMULAS[row["algorithm"]](row["workers"])
            messages = [(0, len(sizes))] if row["policy"] == "single" else \
                support.each(len(sizes))
            end = support.end_of(ready, sizes, messages, lambda m: a * alpha + b * beta * m)
            self.assertAlmostEqual(row["iteration_s"] / end, 1, delta=1e-10)
            self.assertAlmostEqual(row["exposed_s"], end - ready[-1], delta=1e-10 * end)
            self.assertAlmostEqual(row["efficiency"], ready[-1] / end, delta=1e-10)
            self.assertAlmostEqual(row["speedup"], row["workers"] * ready[-1] / end, delta=1e-6)
            self.assertEqual(row["messages"], len(messages))
        self.assertEqual(sorted({row["workers"] for row in rows}), [2**k for k in range(2, 12)])

    def test_timelines(self):
        """Those of all rows: what `show` draws of the same plans, and what `report` reads."""
        out, plan = self.folder / "t.json", self.folder / "plan.json"
        done = run("simulate", RESNET, "paper-1-10gbe-link", "--workers", "4,16", "--policy", "optimal,overlap",
                   "--gantt", "--chrome-trace", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        lanes, titles = chrome_trace.check(out.read_text())
        rows = run_json("simulate", RESNET, "paper-1-10gbe-link", "--workers", "4,16", "--policy", "optimal,overlap")
        self.assertEqual(len(titles), 4)
        pictures = done.stdout.split("\n\n")[2:]
        for process, (row, picture) in enumerate(zip(rows, pictures), 1):
            self.assertIn(f"{row['workers']} workers, {row['policy']}", titles[process])
            run("plan", RESNET, "paper-1-10gbe-link", "--workers", row["workers"], "--policy", row["policy"], "-o", plan)
            operations = json.loads(plan.read_text())["operations"]
            self.assertEqual(len(lanes[process][2]), len(operations))
            for event, operation in zip(lanes[process][2], operations):
                self.assertAlmostEqual(event["ts"], operation["start_s"] * 1e6, delta=0.001)
            drawn = run("show", plan).stdout.split("\n\n")[1]
            self.assertEqual(picture.split("\n", 1)[1].strip(), drawn.strip())
        page = run_json("report", out)
        self.assertEqual(len(page["runs"][0]["timelines"]), 4)
        self.refused(run("simulate", RESNET, "paper-1-10gbe-link", "--workers",
                         ",".join(map(str, range(2, 300))), "--gantt"), "--gantt", "1000")

    def test_defaults_and_lists(self):
        rows = run_json("simulate", RESNET, "paper-2-10gbe")
        self.assertEqual([row["policy"] for row in rows], ["ddp", "wfbp", "single", "mgwfbp", "optimal", "overlap"])
        self.assertEqual({row["algorithm"] for row in rows}, {"measured"})
        rows = run_json("simulate", RESNET, "paper-1-10gbe-link", "--workers", "6,12,16",
                        "--policy", "ddp:1M,25M,wfbp", "--policy", "threshold:1M")
        self.assertEqual([row["workers"] for row in rows[::3]], [6, 12, 16])
        self.assertEqual([row["policy"] for row in rows[:3]], ["ddp", "wfbp", "threshold:1048576"])

    def test_svg(self):
        path = self.folder / "s.svg"
        done = run("simulate", RESNET, "paper-1-10gbe-link", "--workers", "4:64", "--algorithm",
                   "ring,double-binary-trees", "--svg", path)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [p for p in ElementTree.parse(path).getroot().iter(f"{SVG}path")
                 if p.get("fill") == "none"]
        self.assertEqual(len(lines), 2 * 6 + 1)
        for line in lines:
            self.assertEqual(len(re.findall("[ML]", line.get("d"))), 5)


class Show(Folder):
    def test_everything_built_in(self):
        listed = [row for row in run_json("list") if row["kind"] != "network"]
        files = {p.stem for p in (ROOT / "data").glob("*/*.json")}
        self.assertEqual({row["name"] for row in listed}, files)
        self.assertEqual(len(files), 17 + 4)
        for row in listed:
            path = self.folder / "picture.svg"
            done = run("show", row["name"], "--svg", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            ElementTree.parse(path)
            self.assertEqual(run_json("show", row["name"])["kind"], row["kind"])

    def test_pipes(self):
        """What can be read only once is read only once."""
        for name in (RESNET, "paper-2-10gbe"):
            kind = "traces" if name == RESNET else "clusters"
            with open(ROOT / "data" / kind / f"{name}.json") as file:
                reader = subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE)
                done = run("show", "/dev/stdin", stdin=reader.stdout)
                reader.stdout.close()
                reader.wait()
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout, run("show", name).stdout)

    def test_trace_totals(self):
        shown = run_json("show", RESNET)
        trace = builtin_trace(RESNET)
        self.assertEqual(shown["tensors"], 161)
        self.assertEqual(shown["bytes"], 4 * sum(t["count"] for t in trace["tensors"]))
        self.assertAlmostEqual(shown["backward_s"], sum(t["backward_s"] for t in trace["tensors"]))

    def make_plan(self, *options):
        path = self.folder / "plan.json"
        done = run("plan", RESNET, "paper-2-10gbe", "-o", path, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return path, json.loads(path.read_text())

    def test_policies_are_drawn_on_one_scale(self):
        """DDP, the plan and overlap, each once; what is computed is as wide in all of them."""
        svg = self.folder / "steps.svg"
        for policy, count in (("optimal", 3), ("overlap", 2), ("ddp", 2), ("single", 3)):
            done = run("plan", "googlenet-b64-fp32-h200", "paper-2-10gbe", "--policy", policy, "--svg", svg)
            self.assertEqual(done.returncode, 0, done.stderr)
            drawn = ElementTree.parse(svg).getroot()
            self.assertEqual([t.text for t in drawn.iter(f"{SVG}text")].count("compute"), count, policy)
            widths = [sum(float(r.get("width")) for r in group.iter(f"{SVG}rect")) for group in drawn.iter(f"{SVG}g")
                      if group.find(f"{SVG}title").text.startswith("forward")]
            self.assertEqual(len(set(widths)), 1, policy)

    def test_timeline_svg(self):
        path, plan = self.make_plan("--policy", "ddp")
        svg = self.folder / "plan.svg"
        done = run("show", path, "--svg", svg)
        self.assertEqual(done.returncode, 0, done.stderr)
        titles = [t.text for t in ElementTree.parse(svg).getroot().iter(f"{SVG}title")]
        messages = [t for t in titles if t.startswith("message ")]
        self.assertEqual(len(messages), len(plan["operations"]))
        for title, message in zip(messages, plan["operations"]):
            self.assertIn(f"{len(message['tensors'])} tensor", title)
            self.assertIn(message["tensors"][0], title)
            self.assertIn(message["tensors"][-1], title)

    def test_chrome_trace(self):
        path, plan = self.make_plan("--policy", "wfbp")
        out = self.folder / "trace.json"
        done = run("show", path, "--chrome-trace", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        trace = json.loads(out.read_text())
        self.assertEqual(set(trace), {"format", "displayTimeUnit", "traceEvents"})
        lanes, spans = {}, {}
        for event in trace["traceEvents"]:
            self.assertIn(event["ph"], ("M", "X"))
            self.assertIsInstance(event["name"], str)
            self.assertIsInstance(event["pid"], int)
            self.assertIsInstance(event["tid"], int)
            if event["ph"] == "M":
                lanes[event["tid"], event["name"]] = event["args"]
            else:
                self.assertGreaterEqual(event["ts"], 0)
                self.assertGreaterEqual(event["dur"], 0)
                spans.setdefault(event["tid"], []).append(event)
        for tid, events in spans.items():
            self.assertIn((tid, "thread_name"), lanes)
            for before, after in zip(events, events[1:]):  # one lane never overlaps itself
                self.assertGreaterEqual(after["ts"], before["ts"] + before["dur"] - 0.002)
        messages = spans[2]
        self.assertEqual(len(messages), 161)
        for event, message in zip(messages, plan["operations"]):
            self.assertAlmostEqual(event["ts"], message["start_s"] * 1e6, delta=0.001)
            self.assertEqual(event["args"]["bytes"], message["bytes"])

    def test_two_passes(self):
        """By hand: the plan of tests/unit/test_sim.c, as a file."""
        path = ROOT / "tests" / "fuzz" / "corpus" / "plan" / "two-stalls.json"
        out, svg = self.folder / "trace.json", self.folder / "plan.svg"
        done = run("show", path, "--chrome-trace", out, "--svg", svg)
        self.assertEqual(done.returncode, 0, done.stderr)
        picture = [line for line in done.stdout.splitlines() if "|" in line]
        self.assertEqual([line[:10].strip() for line in picture], ["compute", "messages", "a step"])
        compute, messages, step = (line[11:-1] for line in picture)
        column = lambda time: int(time / 17.5 * 72)
        self.assertEqual({compute[column(t)] for t in (8.5, 11, 13, 15)}, {"."})  # stalls
        self.assertEqual({compute[column(t)] for t in (13.8, 14.2, 16, 17.4)}, {"f"})  # the pass goes on
        self.assertEqual([messages[column(t)] for t in (5, 10, 12.5, 14.5)], ["#", "R", "G", "g"])
        self.assertEqual((step.index("<"), step.index(">")), (column(3), 71))
        self.assertIn("14.5 s", step)
        lanes, _ = chrome_trace.check(out.read_text())
        spans = lambda lane: [(e["cat"], e["ts"] / 1e6, e["dur"] / 1e6) for e in lanes[1][lane]]
        self.assertEqual(spans(1), [("forward", 0, 3), ("backward", 3, 5), ("stall", 8, 5.5), ("next-forward", 13.5, 1),
                                    ("stall", 14.5, 1), ("next-forward", 15.5, 2)])
        self.assertEqual(spans(2), [("communication", 4, 2), ("reduce-scatter", 8, 3.5), ("all-gather", 11.5, 2),
                                    ("all-gather", 13.5, 2)])
        titles = [t.text.split(",")[0].split(":")[0] for t in ElementTree.parse(svg).getroot().iter(f"{SVG}title")]
        self.assertEqual(titles[1:], ["forward", "backward", "message 1", "reduce-scatter 2", "all-gather 3", "all-gather 4",
                                      "stall", "next forward", "stall", "next forward"])
        self.assertEqual(run_json("show", path), {
            "kind": "plan", "policy": "p", "model": "m", "cluster": "c", "workers": 4, "tensors": 4, "messages": 4,
            "operations": {"all-reduce": 1, "reduce-scatter": 1, "all-gather": 2}, "overlaps_forward": True, "stalls": 2,
            "iteration_s": 14.5, "compute_s": 8, "exposed_s": 6.5, "communication_s": 9.5, "overlap": 0.315789473684,
            "speedup": 2.20689655172, "efficiency": 0.551724137931, "lower_bound_s": 12})

    def test_every_kind_of_collective(self):
        """A cluster shows what each costs, measured or derived."""
        samples = [{"bytes": 1024, "seconds": 3e-4}, {"bytes": 1 << 20, "seconds": 9e-4}]
        path = self.file("c.json", small_cluster(collectives={
            "reduce-scatter": {"cost": {"a_s": 0.25, "b_s_per_byte": 0.01}}, "push": {"samples": samples}}))
        shown = run_json("show", path)
        self.assertEqual(set(shown), {"kind", "name", "workers", "a_s", "b_s_per_byte", "collectives"})
        kinds = shown["collectives"]
        self.assertEqual(kinds["reduce-scatter"], {"a_s": 0.25, "b_s_per_byte": 0.01, "given": True, "samples": 0})
        self.assertEqual(kinds["all-gather"], {"a_s": 0.5, "b_s_per_byte": 0.025, "given": False, "samples": 0})
        self.assertEqual((kinds["push"]["given"], kinds["push"]["samples"], kinds["pull"]["given"]), (True, 2, False))
        svg = self.folder / "c.svg"
        words = run("show", path, "--svg", svg).stdout
        self.assertIn("reduce-scatter: T(M) = 250 ms + M * 1e+07 ns", words)
        self.assertIn("all-gather: T(M) = 500 ms + M * 2.5e+07 ns, derived", words)
        row = next(line for line in words.splitlines() if line.strip().startswith("1024 "))
        self.assertEqual(row.split()[-4:], ["10.5", "s", "26.1", "s"])
        text = " ".join(t.text for t in ElementTree.parse(svg).getroot().iter(f"{SVG}text"))
        for kind in ("all-reduce", "reduce-scatter", "all-gather"):
            self.assertIn(kind, text)

    def test_when_tensors_are_needed(self):
        trace = small_trace(forward_s=1, parameter_dtype="bf16")
        trace["tensors"][0]["forward_start_s"] = None
        trace["tensors"][1]["forward_start_s"] = 0.5
        shown = run_json("show", self.file("t.json", trace))
        self.assertEqual((shown["needed"], shown["never_needed"], shown["parameter_dtype"]), (1, 1, "bf16"))
        words = run("show", self.folder / "t.json").stdout
        self.assertIn("1 tensors at known times, 1 never; for 1 it is not known, so they count as needed at once", words)
        self.assertIn("parameters 28 B as bf16", words)

    def test_only_plans_have_timelines(self):
        self.refused(run("show", RESNET, "--chrome-trace", self.folder / "x"), "chrome-trace")
        self.assertEqual(os.listdir(self.folder), [])

    def test_both_versions(self):
        """What version 1 can say is shown as before; 'naive' waits for the backward pass by its rule, not its name."""
        for policy in ("naive", "optimal"):
            path, plan = self.make_plan("--policy", policy)
            release = {"naive": "after-backward"}.get(policy, "when-ready")
            self.assertEqual({o["release"] for o in plan["operations"]}, {release})
            messages = [{k: v for k, v in o.items() if k not in ("kind", "release")} for o in plan["operations"]]
            old = {k: v for k, v in plan.items() if k != "operations"}
            old = self.file("old.json", {**old, "format": "mgwfbp-plan-1", "messages": messages})
            self.assertEqual(run("show", old).stdout, run("show", path).stdout)
            self.assertEqual(run_json("show", old), run_json("show", path))
            pages = [self.folder / "old.html", self.folder / "new.html"]
            for file, page in zip((old, path), pages):
                self.assertEqual(run("report", file, "-o", page).returncode, 0)
            self.assertEqual(*[page.read_text().replace("old.json", "plan.json") for page in pages])

    def test_plan_as_in_the_design(self):
        """A plan without the members that we add is shown too."""
        plan = {"format": "mgwfbp-plan-1", "policy": "mine", "model": "m", "cluster": "c",
                "workers": 4, "messages": [
                    {"tensors": ["b"], "bytes": 4, "start_s": 1, "end_s": 2},
                    {"tensors": ["a"], "bytes": 4, "start_s": 2, "end_s": 4}],
                "compute_s": 3, "iteration_s": 4, "exposed_s": 1, "lower_bound_s": 4}
        path = self.file("p.json", plan)
        shown = run_json("show", path)
        self.assertAlmostEqual(shown["overlap"], 2 / 3)
        self.assertAlmostEqual(shown["efficiency"], 0.75)

    def test_hostile_names(self):
        names = ["</title><script>alert(1)</script>", "\uffff" + "\u00e4" * 300, '"><x', "a&b", "tab\tline\nbell\x07",
                 "\u202eé\u00df", "n" * 10240, "'; DROP"]
        trace = self.file("t.json", small_trace(model=names[1], device=names[4], tensors=[
            {"name": n, "count": 1000, "backward_s": 0.001} for n in names]))
        plan = self.folder / "plan.json"
        done = run("plan", trace, "paper-2-10gbe", "--policy", "wfbp", "-o", plan)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("\x07", done.stdout)
        svg, chrome = self.folder / "p.svg", self.folder / "p.chrome"
        done = run("show", plan, "--svg", svg, "--chrome-trace", chrome)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("\x07", done.stdout)
        self.assertNotIn("<script", svg.read_text())
        titles = "".join(t.text for t in ElementTree.parse(svg).getroot().iter(f"{SVG}title"))
        self.assertIn(names[0], titles)
        for name in ("t.json", "plan.json"):
            run("show", self.folder / name, "--svg", svg)
            ElementTree.parse(svg)
        events = json.loads(chrome.read_text())["traceEvents"]
        self.assertEqual([e["args"]["first"] for e in events
                          if e["ph"] == "X" and e["tid"] == 2], names)


class Fit(Folder):
    def test_fixtures(self):
        for name, workers in (("samples.csv", 2), ("cluster_samples.json", 12),
                              ("osu_allreduce.txt", 2), ("osu_allreduce_full.txt", 2),
                              ("nccl_tests.txt", 8), ("nccl_tests_unchecked.txt", 16),
                              ("nccl_tests.json", 8)):
            path = self.folder / "cluster.json"
            done = run("fit", FIXTURES / name, "-o", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            cluster = json.loads(path.read_text())
            self.assertEqual(cluster["workers"], workers)
            self.assertGreaterEqual(cluster["cost"]["a_s"], 0)
            self.assertGreater(cluster["cost"]["b_s_per_byte"], 0)
            self.assertEqual(workers == 2, "--workers" in done.stderr)
            fit = run_json("fit", FIXTURES / name)
            self.assertAlmostEqual(fit["a_s"], cluster["cost"]["a_s"], delta=1e-15)
            self.assertGreater(fit["r2"], 0.5)
            self.assertEqual(run("plan", RESNET, path).returncode, 0)

    def test_close_fits(self):
        """osu_allreduce.txt is 908 us + 0.74 ns per byte with 6% noise."""
        fit = run_json("fit", FIXTURES / "osu_allreduce.txt", "--workers", 16)
        self.assertAlmostEqual(fit["a_s"] / 9.08e-4, 1, delta=0.05)
        self.assertAlmostEqual(fit["b_s_per_byte"] / 7.4e-10, 1, delta=0.05)
        self.assertLess(fit["max_relative_error"], 0.1)
        self.assertEqual(fit["cluster"]["workers"], 16)

    def test_link_constants(self):
        """The built-in link cluster is what fit derives from the measured one."""
        made = run_json("fit", "paper-1-10gbe", "--as", "ring", "--name", "paper-1-10gbe-link")
        shipped = json.loads((ROOT / "data/clusters/paper-1-10gbe-link.json").read_text())
        for key, value in shipped["link"].items():
            self.assertAlmostEqual(made["cluster"]["link"].pop(key), value, delta=1e-15 * value)
        shipped["link"] = {}
        self.assertEqual(made["cluster"], shipped)

    def test_workers_rescale_links(self):
        made = run_json("fit", "paper-1-10gbe-link", "--workers", 64)
        self.assertAlmostEqual(made["a_s"], 9.72e-4 / 15 * 63, delta=1e-12)
        self.assertEqual(made["cluster"]["workers"], 64)

    def test_workers_rescale_levels(self):
        link = {"alpha_s": 1e-6, "beta_s_per_byte": 0, "gamma_s_per_byte": 0}
        path = self.file("levels.json", {"format": "mgwfbp-cluster-1", "name": "c", "workers": 64, "levels": [
            {"name": name, "workers": 8, "link": link, "algorithm": "ring"} for name in ("inner", "outer")]})
        self.assertAlmostEqual(run_json("fit", path, "--workers", 64)["a_s"], (14 + 14) * 1e-6, delta=1e-12)
        self.assertAlmostEqual(run_json("fit", path, "--workers", 16)["a_s"], (14 + 2) * 1e-6, delta=1e-12)
        self.refused(run("fit", path, "--workers", 12), "12 is not a multiple of the 8")

    def test_samples_are_kept(self):
        made = run_json("fit", FIXTURES / "samples.csv", "--as", "samples", "--workers", 4)
        self.assertEqual(len(made["cluster"]["samples"]), 5)

    def test_errors(self):
        self.refused(run("fit", FIXTURES / "samples.csv", "--as", "star"), "star", "samples")
        self.refused(run("fit", "paper-2-10gbe", "--as", "samples"), "has no samples")
        self.refused(run("fit", FIXTURES / "samples.csv", "--workers", "12", "--as",
                         "recursive-doubling"), "power of two")
        self.refused(run("fit", RESNET), RESNET, "mgwfbp-cluster-1")


class Documentation(unittest.TestCase):
    COMMANDS = re.findall(r"(?m)^  (\w+)  ", run("--help").stdout)

    def test_help_teaches(self):
        usage = run("--help")
        self.assertEqual(usage.returncode, 0)
        self.assertGreater(len(self.COMMANDS), 11)
        self.assertEqual(run("help", "dance").returncode, 2)
        self.assertIn("launch [options] PROGRAM", run("launch", "--help").stdout)
        self.assertEqual(run().stdout, usage.stdout)
        for command in self.COMMANDS:
            self.assertIn(f"  {command} ", usage.stdout)
            done = run(command, "--help")
            self.assertEqual(done.returncode, 0)
            self.assertEqual(done.stdout, run("help", command).stdout)
            for part in ("usage: mgwfbp", "options:", "examples:", "--help"):
                self.assertIn(part, done.stdout)
            for line in done.stdout.splitlines():
                self.assertTrue(len(line) <= 100 or line.startswith("  mgwfbp") or ";" in line)

    def test_help_works_anywhere(self):
        self.assertEqual(run("plan", "x", "--help").returncode, 0)

    def test_man_page(self):
        page = run("--man").stdout
        for command in self.COMMANDS:
            for option in re.findall(r"--[a-z-]+", run(command, "--help").stdout):
                self.assertIn(option.replace("-", r"\-"), page)
        for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "ENVIRONMENT", "FILES", "EXIT STATUS", "EXAMPLES"):
            self.assertIn(f"\n.SH {section}\n", page)
        for example in re.findall(r"(?m)^  (mgwfbp .*)$", run("plan", "--help").stdout.split("examples:")[1]):
            self.assertIn(example.replace("-", "\\-"), page.replace("\\e\n    ", ""))
        if not shutil.which("mandoc"):
            self.skipTest("no mandoc")
        lint = subprocess.run(["mandoc", "-T", "lint"], input=page, stdout=subprocess.PIPE, encoding="utf-8")
        self.assertEqual(lint.stdout, "")

    def complete(self, *words):
        script = (f'PATH={MGWFBP.parent}:$PATH; eval "$(mgwfbp --bash-completion)"; '
                  f'COMP_WORDS=(mgwfbp {" ".join(words)}); COMP_CWORD={len(words)}; _mgwfbp; '
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        return subprocess.run(["bash", "-uec", script], stdout=subprocess.PIPE, check=True,
                              encoding="utf-8").stdout.split()

    def test_completion(self):
        self.assertEqual(self.complete("si"), ["simulate"])
        self.assertIn("resnet50-b32-fp32-h200", self.complete("plan", "resnet50"))
        self.assertEqual(self.complete("plan", "x", "--sc"), ["--scale-compute"])
        self.assertEqual(self.complete("simulate", "--policy", "opt"), ["optimal"])
        self.assertEqual(self.complete("simulate", "--algorithm", "ri"), ["ring"])

    def test_version(self):
        self.assertRegex(run("--version").stdout, r"^mgwfbp \d+\.\d+\.\d+\n$")


if __name__ == "__main__":
    unittest.main()
