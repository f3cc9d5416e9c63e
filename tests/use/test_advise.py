"""mgwfbp advise: its answers compared with the planner's, networks in every form, and invalid input."""

import json
import unittest

from folder import RESNET, Folder
from support import FIXTURES, run, run_json

BERT = "bert_base-b32-fp32-h200"


def steps(*arguments):
    """By policy, as plan says."""
    return {name: found["iteration_s"] for name, found in run_json("plan", *arguments)["policies"].items()}


class Advise(Folder):
    def check(self, *arguments):
        """Against the planner; returns what advise says."""
        said, planned = run_json("advise", *arguments), steps(*arguments)
        self.assertAlmostEqual(said["ddp_s"], planned["ddp"], places=11)
        self.assertAlmostEqual(said["plan_s"], planned["optimal"], places=11)
        self.assertAlmostEqual(said["overlap_s"], planned["overlap"], places=11)
        self.assertLessEqual(said["buckets_s"], said["ddp_s"])
        if said["bucket_cap_mb"]:
            size = round(said["bucket_cap_mb"] * (1 << 20))
            self.assertAlmostEqual(steps(*arguments, "--policy", f"ddp:{size},{size}")[f"ddp:{size},{size}"],
                                   said["buckets_s"], places=11)
        levers = said["levers"]
        self.assertEqual(levers, sorted(levers, key=lambda lever: -lever["gain"]))
        for lever in levers:
            self.assertAlmostEqual(lever["gain"], lever["samples"] * said["ddp_s"] / lever["iteration_s"], places=9)
        return said, {lever["lever"]: lever for lever in levers}

    def test_bucket_size_for_nodes(self):
        said, levers = self.check(RESNET, "100gbe", "--nodes", 8, "--gpus", 8)
        self.assertEqual(said["workers"], 64)
        self.assertLessEqual({"plan", "overlap", "gradients", "batch", "network", "fewer-gpus", "more-gpus"}, set(levers))
        faster = steps(RESNET, "200gbe", "--nodes", 8, "--gpus", 8)["ddp"]
        self.assertAlmostEqual(levers["network"]["iteration_s"], faster, places=11)
        other = steps(RESNET, "100gbe", "--nodes", 16, "--gpus", 4)["ddp"]
        self.assertAlmostEqual(levers["fewer-gpus"]["iteration_s"], other, places=11)
        twice = steps(RESNET, "100gbe", "--nodes", 8, "--gpus", 8, "--scale-compute", 2)["ddp"]
        self.assertAlmostEqual(levers["batch"]["iteration_s"], twice, places=11)

    def test_report_says_the_same(self):
        shape = ("--nodes", 8, "--gpus", 8)
        for arguments in ((RESNET, "100gbe", *shape), (BERT, "25gbe", "--workers", 16), (RESNET, "paper-2-10gbe")):
            case, = run_json("report", *arguments)["cases"]
            self.assertEqual(case["advice"]["numbers"], run_json("advise", *arguments))
            said = run("advise", *arguments).stdout.splitlines()
            self.assertEqual(case["advice"]["answer"], said[0])
            self.assertEqual(case["advice"]["limit"], said[-1])
            for one in case["advice"]["lines"]:
                self.assertTrue(any(line.startswith(one["line"]) and line.endswith(f"{100 * one['saved']:.1f}%")
                                    for line in said), one)

    def test_networks_are_shown(self):
        for name in ("100gbe", "nvlink4", "30us,25Gbit/s"):
            shown = run_json("show", name)
            self.assertEqual((shown["name"], shown["workers"]), (name, 2))
            self.assertIn("ring", run("show", name).stdout)
            self.assertEqual(run_json("report", name)["clusters"][0]["name"], name)
        self.refused(run("show", "101gbe"), "101gbe")
        self.refused(run("report", RESNET, "101gbe", "-o", self.folder / "x.html"), "101gbe")
        self.refused(run("report", RESNET, "100gbe", "--workers", 4, "--nodes", 2, "-o", self.folder / "x.html"), "--workers")
        self.refused(run("report", RESNET, "paper-2-10gbe", "--gpus", 2, "-o", self.folder / "x.html"), "--gpus: no input")

    def test_only_the_number(self):
        first = run("advise", BERT, "25gbe", "--workers", 16).stdout.splitlines()[0]
        said, _ = self.check(BERT, "25gbe", "--workers", 16)
        self.assertIn(f"wastes {100 * (1 - said['compute_s'] / said['ddp_s']):.1f}% of each step", first)

    def test_from_nccl_tests(self):
        text = FIXTURES / "nccl_tests.txt"
        here, _ = self.check(RESNET, text)
        self.assertEqual(here["workers"], 8)
        grown, _ = self.check(RESNET, text, "--measured-on", "2x4", "--nodes", 64, "--gpus", 4)
        self.assertEqual(grown["workers"], 256)
        self.assertGreaterEqual(grown["ddp_s"], here["ddp_s"])
        refused = run("advise", RESNET, text, "--nodes", 64, "--gpus", 4)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("on how many nodes and GPUs", refused.stderr)

    def test_a_faster_network_is_not_slower(self):
        for model in (RESNET, BERT):
            times = [self.check(model, network, "--nodes", 8, "--gpus", 8)[0]["ddp_s"]
                     for network in ("10gbe", "25gbe", "100gbe", "ndr")]
            self.assertEqual(times, sorted(times, reverse=True))

    def test_levers_without_links(self):
        _, levers = self.check(BERT, "paper-2-10gbe")
        self.assertFalse({"network", "fewer-gpus", "more-gpus"} & set(levers))

    def test_levers_of_one_node(self):
        _, levers = self.check(RESNET, "10gbe", "--nodes", 1, "--gpus", 2, "--inside", "pcie4")
        self.assertNotIn("network", levers)
        self.assertEqual(levers["fewer-gpus"]["change"], "2 nodes of 1 GPU instead of 1 of 2")
        _, levers = self.check(RESNET, "10gbe", "--nodes", 2, "--gpus", 2)
        self.assertEqual(levers["more-gpus"]["change"], "1 node of 4 GPUs instead of 2 of 2")

    def test_what_the_limit_is(self):
        cluster = {"format": "mgwfbp-cluster-1", "name": "c", "workers": 2}
        for a, b, limit in ((0, 0, "compute"), (1e-4, 1e-7, "bandwidth"), (1, 0, "latency"), (1, 1e-9, "latency"),
                            (2e-3, 1e-12, "last-gradients")):
            path = self.file("c.json", dict(cluster, cost={"a_s": a, "b_s_per_byte": b}))
            self.assertEqual(run_json("advise", RESNET, path)["limit"], limit, (a, b))
            self.assertIn(f"The network's {limit} is the limit" if limit in ("bandwidth", "latency") else "limit",
                          run("advise", RESNET, path).stdout.splitlines()[-1])

    def test_levels_in_a_file(self):
        link = {"alpha_s": 3.4e-6, "beta_s_per_byte": 8e-9 / 2960, "gamma_s_per_byte": 0}
        wide = {"alpha_s": 14e-6, "beta_s_per_byte": 8e-9 / 94, "gamma_s_per_byte": 0}
        cluster = {"format": "mgwfbp-cluster-1", "name": "c", "workers": 64, "levels": [
            {"name": "nvlink4", "workers": 8, "link": link, "algorithm": "ring"},
            {"name": "100gbe", "workers": 8, "ports": 8, "link": wide, "algorithm": "ring"}]}
        path = self.file("levels.json", cluster)
        inside = steps(RESNET, path)
        self.assertEqual(inside, steps(RESNET, "100gbe", "--nodes", 8, "--gpus", 8, "--ports", 8))
        rows = run_json("simulate", RESNET, path, "--workers", "64,128", "--policy", "ddp")
        self.assertEqual([row["workers"] for row in rows], [64, 128])
        self.assertEqual(rows[0]["iteration_s"], inside["ddp"])
        shown = run_json("show", path)
        self.assertEqual((shown["kind"], shown["workers"]), ("cluster", 64))
        for options, same in ((("--nodes", 4), ("--nodes", 4, "--gpus", 8, "--ports", 8)),
                              (("--gpus", 4), ("--nodes", 8, "--gpus", 4, "--ports", 4)),
                              (("--gpus", 16, "--ports", 1), ("--nodes", 8, "--gpus", 16)),
                              (("--nodes", 8, "--inside", "pcie4"),
                               ("--nodes", 8, "--gpus", 8, "--ports", 8, "--inside", "pcie4"))):
            self.assertEqual(steps(RESNET, path, *options), steps(RESNET, "100gbe", *same), options)

    def test_refused(self):
        for arguments, says in (
                ((RESNET, "100gb"), "no such file"), ((RESNET, "100gbe", "--nodes", 2, "--gpus", 8, "--ports", 9), "--ports: 9"),
                ((RESNET, "100gbe", "--inside", "nvlink4"), "--inside: only with --nodes or --gpus"),
                ((RESNET, "100gbe", "--nodes", 8, "--inside", "cable"), "unknown network 'cable'"),
                ((RESNET, "100gbe", "--nodes", 1), "at least 2 workers are needed"), ((RESNET, "100gbe", "--nodes", 0), "--nodes"),
                ((RESNET, "100gbe", "--nodes", 2, "--workers", 4), "--workers: leave it out with --nodes"),
                ((RESNET, "100gbe", "--nodes", 2, "--measured-on", "2by4"), "write 16x8"),
                ((RESNET, "paper-2-10gbe", "--nodes", 2, "--measured-on", "2x4"), "not with 2 nodes of 4"),
                ((RESNET, "paper-2-10gbe", "--workers", 4), "holds for that number only"), ((RESNET,), "advise")):
            with self.subTest(arguments=arguments):
                done = run("advise", *arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
