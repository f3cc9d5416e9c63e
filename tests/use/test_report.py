"""`report` and `serve` without a browser: the contents of the page, the server's answers, and invalid input."""

import base64
import hashlib
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import time
import unittest
from pathlib import Path

import chrome_trace
from support import FIXTURES, MGWFBP, ROOT, builtin_trace, run, run_json
from folder import RESNET, Folder, small_cluster, small_trace

LINK = "paper-1-10gbe-link"
KINDS = ["forward", "backward", "all-reduce", "reduce-scatter", "all-gather", "push", "pull", "stall", "next-forward"]

# What `train --json` prints, an object per line.
TRAINING = """{"event": "progress", "epoch": 0, "step": 20, "loss": 2.303, "rate": 0.004, "images_per_s": 7022.11, "exposed_share": 0.65}
{"event": "progress", "epoch": 0, "step": 130, "loss": 1.392, "rate": 0.028, "images_per_s": 11395.1, "exposed_share": 0.58}
{"event": "epoch", "epoch": 1, "step": 235, "test_loss": 1.1, "test_accuracy": 0.62}
{"event": "something new", "value": 1}
{"event": "compare", "policy": "wfbp", "workers": 2, "messages": 10, "iteration_s": 0.0152, "spread": 0, "ratio": 1, "ratio_low": 1, "ratio_high": 1, "compute_s": 0.0012, "exposed_s": 0.014, "predicted_s": 0.011, "weights": "8fd0bb2f"}
{"event": "summary", "model": "lenet5", "workers": 2, "batch": 64, "steps": 300, "policy": "optimal", "plans": 1, "messages": 2, "iteration_s": 0.0109, "compute_s": 0.0066, "exposed_s": 0.0043, "predicted_s": 0.0058, "images_per_s": 11101.9, "weights": "518a71ad"}
"""
BLOCK = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.S)


def data_of(page):
    return json.loads(BLOCK.search(page).group(1))


def same(shown, printed):
    """What a file holds is what `--json` prints, to its twelve digits."""
    return float(f"{shown:.12g}") == printed


class Report(Folder):
    def page(self, *inputs):
        out = self.folder / "report.html"
        done = run("report", *inputs, "-o", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out.read_text()

    def test_one_file_below_a_megabyte(self):
        page = self.page("resnet152-b128-fp32-h200", "paper-2-10gbe")
        self.assertLess(len(page.encode()), 1_000_000)
        outside = re.sub(r'xmlns(?:=|: )"http://www.w3.org/2000/svg"|"http://www.w3.org/2000/svg"', "", page)
        self.assertNotRegex(outside, r"https?://|@import|<link [^>]*stylesheet|<iframe|src=")

    def test_only_its_own_script_may_run(self):
        page = self.page(RESNET, LINK)
        rules = re.search(r'Content-Security-Policy" content="([^"]*)"', page).group(1)
        self.assertTrue(rules.startswith("default-src 'none';"), rules)
        self.assertNotIn("unsafe-inline", rules)
        self.assertNotIn("connect-src", rules)
        for tag in ("script", "style"):
            content = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.S).group(1)
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            self.assertIn(f"{tag}-src 'sha256-{digest}'", rules)

    def test_plans_are_those_of_plan(self):
        data = data_of(self.page(RESNET, "paper-2-10gbe"))
        (case,) = data["cases"]
        for policy in case["policies"]:
            printed = run_json("plan", RESNET, "paper-2-10gbe", "--policy", policy["policy"])["plan"]
            self.assertEqual(policy["count"], [len(m["tensors"]) for m in printed["operations"]])
            self.assertEqual(policy["bytes"], [m["bytes"] for m in printed["operations"]])
            for member in ("ready_s", "start_s", "end_s"):
                for shown, message in zip(policy[member], printed["operations"]):
                    self.assertTrue(same(shown, message[member]))
            for member in ("compute_s", "iteration_s", "exposed_s", "lower_bound_s", "forward_s"):
                self.assertTrue(same(policy[member], printed[member]), member)
            self.assertEqual([KINDS[k] for k in policy["kind"]], [o["kind"] for o in printed["operations"]])
            stalls = printed.get("stalls", [])
            self.assertEqual(policy["overlaps_forward"], policy["policy"] in ("zero", "dear", "fsdp", "sharded", "overlap"))
            names = data["names"][data["traces"][0]["names"]]
            self.assertEqual([names[t] for t in policy["stall_tensor"]], [s["tensor"] for s in stalls])
            for member in ("start_s", "end_s"):
                for shown, stall in zip(policy[f"stall_{member}"], stalls):
                    self.assertTrue(same(shown, stall[member]))
        self.assertEqual(len(case["policies"]), 12)
        needed = [t.get("forward_start_s", -1) for t in builtin_trace(RESNET)["tensors"]]
        self.assertEqual(data["traces"][0]["forward_start_s"], needed)

    def test_gathers_are_of_tensors_before(self):
        """Operations need not be one behind the other: an all-gather is of tensors that were averaged before."""
        (plan,) = data_of(self.page(ROOT / "tests" / "fuzz" / "corpus" / "plan" / "gathers.json"))["plans"]
        self.assertEqual(plan["first"], [0, 2, 3, 3, 0])
        self.assertEqual(plan["count"], [2, 1, 1, 1, 2])
        self.assertEqual([KINDS[k] for k in plan["kind"]], ["reduce-scatter", "all-reduce", "push", "pull", "all-gather"])

    def test_both_passes(self):
        """A plan with stalls, and the timeline that `show` makes of it."""
        corpus = ROOT / "tests" / "fuzz" / "corpus"
        data = data_of(self.page(corpus / "plan" / "two-stalls.json", corpus / "timelines" / "passes.json"))
        (plan,), ((timeline,),) = data["plans"], [run["timelines"] for run in data["runs"]]
        self.assertEqual((plan["overlaps_forward"], plan["stall_tensor"]), (True, [3, 2]))
        self.assertEqual((plan["stall_start_s"], plan["stall_end_s"]), ([8, 14.5], [13.5, 15.5]))
        self.assertEqual(timeline["period_s"], 14.5)
        kinds = [KINDS[k] for k in timeline["kind"]]
        self.assertEqual(kinds, ["forward", "backward", "all-reduce", "reduce-scatter", "all-gather", "all-gather",
                                 "stall", "next-forward", "stall", "next-forward"])

    def test_scaling_is_that_of_simulate(self):
        workers = ",".join(str(2**k) for k in range(1, 12))
        (case,) = data_of(self.page(RESNET, LINK))["cases"]
        printed = run_json("simulate", RESNET, LINK, "--workers", workers)
        self.check_scaling(case["scaling"], printed)
        # A measured cluster is taken for a ring, as `fit --as ring` does.
        done = run("fit", "paper-2-10gbe", "--as", "ring", "-o", self.folder / "ring.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        (case,) = data_of(self.page(RESNET, "paper-2-10gbe"))["cases"]
        self.check_scaling(
            case["scaling"], run_json("simulate", RESNET, self.folder / "ring.json", "--workers", workers)
        )

    def check_scaling(self, shown, printed):
        self.assertEqual(len(shown), len(printed))
        for row, expected in zip(shown, printed):
            for member in ("workers", "algorithm", "policy", "messages"):
                self.assertEqual(row[member], expected[member])
            for member in ("iteration_s", "exposed_s", "speedup", "efficiency"):
                self.assertTrue(same(row[member], expected[member]), member)

    def test_every_kind_of_input(self):
        plan = run("plan", RESNET, LINK, "--json").stdout
        inputs = [
            RESNET,
            "gpt2-b8-fp32-h200",
            LINK,
            FIXTURES / "nccl_tests.txt",
            FIXTURES / "nccl_tests.json",
            FIXTURES / "osu_allreduce.txt",
            FIXTURES / "samples.csv",
            FIXTURES / "cluster_samples.json",
            self.file("plan.json", plan),
            self.file("inner.json", json.dumps(json.loads(plan)["plan"])),
            self.file("fit.json", run("fit", FIXTURES / "samples.csv", "--json").stdout),
            self.file("simulate.json", run("simulate", RESNET, LINK, "--workers", "4:64", "--json").stdout),
        ]
        inputs.append(self.file("train.jsonl", TRAINING))
        chrome = self.folder / "timeline.json"
        self.assertEqual(run("show", self.folder / "inner.json", "--chrome-trace", chrome).returncode, 0)
        data = data_of(self.page(*inputs, chrome))
        self.assertEqual(
            {
                kind: len(data[kind])
                for kind in ("traces", "clusters", "plans", "runs", "simulations", "replays", "trainings", "cases")
            },
            {
                "traces": 2,
                "clusters": 7,
                "plans": 2,
                "runs": 1,
                "simulations": 1,
                "replays": 0,
                "trainings": 1,
                "cases": 14,
            },
        )
        self.assertEqual(
            {event: len(rows) for event, rows in data["trainings"][0]["rows"].items()},
            {"progress": 2, "epoch": 1, "compare": 1, "summary": 1},
        )
        self.assertEqual(len(data["names"]), 2)  # each list of names once, however many use it

    def test_what_it_refuses(self):
        bad = {
            "broken.json": ('{"format": "mgwfbp-trace-1", "model": ', ("broken.json:1",)),
            "broken2.json": ('{"model": 1,}', ("broken2.json:1",)),
            "unknown.json": ('{"format": "else-1"}', ("else-1", "mgwfbp-timelines-1")),
            "rows.json": ('[{"a": 1}]', ("rows.json", "replay")),
            "rows2.json": (
                '[{"speedup": 1, "policy": "x", "algorithm": 7}]',
                ("rows2.json", "[0].algorithm", "string"),
            ),
            "rows3.json": (
                '[{"speedup": 1, "policy": "x", "algorithm": "y", "workers": 2, "messages": 1, "iteration_s": -1, "exposed_s": 0, "efficiency": 1}]',
                ("[0].iteration_s", "negative"),
            ),
            "log.jsonl": (TRAINING.replace("1.392", '"x"'), ("log.jsonl:2", "loss")),
            "log2.jsonl": (TRAINING + "{", ("log2.jsonl:7",)),
            "words.txt": ("hello", ("words.txt",)),
            "empty": ("", ("empty",)),
        }
        for name, (content, parts) in bad.items():
            out = self.folder / "out.html"
            self.refused(run("report", RESNET, self.file(name, content), "-o", out), *parts)
            self.assertFalse(out.exists())
        self.refused(run("report", "no-such-file", "-o", self.folder / "x"), "no-such-file")
        self.refused(run("report"), "INPUT")

    def test_json(self):
        printed = run_json("report", RESNET, "paper-2-10gbe")
        self.assertEqual(printed, data_of(self.page(RESNET, "paper-2-10gbe")))

    def test_hostile_names_stay_text(self):
        names = [
            "</script><script>alert(1)</script>",
            "<!--",
            "\"'`${1}",
            "a\tb\n\u0007",
            "\u202egnp",
            "x" * 10240,
            "<img src=x onerror=alert(1)>",
        ]
        trace = small_trace(
            model="</title><script>alert(2)</script>",
            tensors=[{"name": n, "count": 4, "backward_s": 0.1} for n in names],
        )
        page = self.page(self.file("t.json", trace), self.file("c.json", small_cluster(name="]]><b>")))
        self.assertEqual(page.count("<script"), 4)
        self.assertEqual(page.count("</script"), 4)
        self.assertNotIn("<img", page)
        self.assertNotIn("<b>", page)
        self.assertEqual(data_of(page)["names"], [names])


class Timelines(Folder):
    def test_all_workers_on_one_clock(self):
        out = self.folder / "run.trace.json"
        done = run(
            "replay",
            "googlenet-b64-fp32-h200",
            "-n",
            "3",
            "--cluster",
            "paper-3-56gbib",
            "--policy",
            "single,optimal",
            "--rounds",
            "1",
            "--steps",
            "2",
            "--chrome-trace",
            out,
            "--json",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)
        lanes, titles = chrome_trace.check(out.read_text())
        self.assertEqual(
            list(titles.values()),
            [
                f"{policy}, {what}"
                for policy in ("single", "optimal")
                for what in ("predicted", *(f"rank {r} of 3, measured" for r in range(3)))
            ],
        )
        for first, row in zip((1, 5), rows):
            for process in range(first, first + 4):
                messages = lanes[process][2]
                self.assertEqual(messages[0]["args"]["index"], 0)
                self.assertEqual(
                    sum(m["args"]["tensors"] for m in messages),
                    len(builtin_trace("googlenet-b64-fp32-h200")["tensors"]),
                )
            # On one clock, no worker has a sum before the last one has begun to send.
            measured = [lanes[process][2] for process in range(first + 1, first + 4)]
            for messages in measured:
                self.assertEqual(len(messages), row["messages"])
            for same in zip(*measured):
                self.assertGreater(min(m["ts"] + m["dur"] for m in same), max(m["ts"] for m in same))
        page = self.folder / "r.html"
        self.assertEqual(run("report", out, self.file("replay.json", done.stdout), "-o", page).returncode, 0)
        data = data_of(page.read_text())
        self.assertEqual([len(r["timelines"]) for r in data["runs"]], [8])
        self.assertEqual([len(r["rows"]) for r in data["replays"]], [2])


    def test_clocks_of_other_hosts(self):
        """A worker whose clock is 5000 s ahead, on what it takes for another boot: another host, but for the cores."""
        elsewhere = ["unshare", "--time", "--monotonic", "5000", "--boottime", "5000", "--mount"]
        boot = self.folder / "boot_id"
        boot.write_text("00000000-0000-4000-8000-000000000000\n")
        mount = f"mount --bind {boot} /proc/sys/kernel/random/boot_id"
        if subprocess.run([*elsewhere, "sh", "-c", mount], stderr=subprocess.DEVNULL).returncode:
            self.skipTest("no time namespaces here, or not root")
        trace, out = self.folder / "trace.json", self.folder / "steps.json"
        trace.write_text(json.dumps(small_trace()))
        command = [MGWFBP, "replay", trace, "--network", "1e-3,1e-9", "--steps", "2", "--rounds", "1", "--policy",
                   "optimal", "--chrome-trace", out]
        workers = []
        for rank, around in enumerate(([], [*elsewhere, "sh", "-c", f'{mount} && exec "$@"', "-"])):
            environment = dict(os.environ, MGWFBP_JOB=f"clocks-{os.getpid()}", MGWFBP_RANK=str(rank), MGWFBP_SIZE="2")
            workers.append(subprocess.Popen([*around, *command], env=environment, stdout=subprocess.DEVNULL,
                                            stderr=subprocess.PIPE))
        for worker in workers:
            self.assertEqual(worker.communicate(timeout=60)[1].count(b"wrote"), worker is workers[0])
            self.assertEqual(worker.returncode, 0)
        events = [e for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "X"]
        self.assertLess(max(e["ts"] for e in events), 5e6)


class Served(Folder):
    """The server, with requests of a browser and of an attacker."""

    def setUp(self):
        super().setUp()
        self.process = subprocess.Popen(
            [str(MGWFBP), "serve", RESNET, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        self.addCleanup(self.end)
        ready, _, _ = select.select([self.process.stdout], [], [], 30)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.process.wait(timeout=10)
            if "libmicrohttpd" in self.process.stderr.read():
                self.skipTest("built without libmicrohttpd")
        port, self.token = re.match(r"http://127\.0\.0\.1:(\d+)/([0-9a-f]{32})/ ", line).groups()
        self.port = int(port)

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(timeout=20), 0)
        self.process.stdout.close()
        self.process.stderr.close()

    def ask(self, method, path, body=None, host=None, token=None, **headers):
        path = f"/{self.token if token is None else token}{path}" if token != "" else path
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        self.addCleanup(connection.close)
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{self.port}")
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer, answer.read().decode()

    def add(self, name, content):
        return self.ask("POST", f"/add?name={name}", content.encode(), X_Mgwfbp="1")

    def test_the_page(self):
        answer, page = self.ask("GET", "/")
        self.assertEqual(answer.status, 200)
        self.assertEqual(len(data_of(page)["traces"]), 1)
        self.assertIn("connect-src 'self'", page)
        self.assertEqual(answer.getheader("X-Content-Type-Options"), "nosniff")
        self.assertIn("frame-ancestors 'none'", answer.getheader("Content-Security-Policy"))
        self.assertEqual(self.ask("GET", "/", host=f"localhost:{self.port}")[0].status, 200)

    def test_adding(self):
        answer, text = self.add("nccl_tests.txt", (FIXTURES / "nccl_tests.txt").read_text())
        self.assertEqual(answer.status, 200, text)
        self.assertEqual(len(json.loads(text)["cases"]), 1)
        answer, text = self.ask("POST", "/builtin?name=paper-2-10gbe", b"", X_Mgwfbp="1")
        self.assertEqual(len(json.loads(text)["cases"]), 2)
        answer, text = self.ask("POST", "/clear", b"", X_Mgwfbp="1")
        self.assertEqual(json.loads(text)["traces"], [])

    def test_a_byte_order_mark(self):
        answer, text = self.add("c.json", "\ufeff" + json.dumps(small_cluster()))
        self.assertEqual(answer.status, 200, text)

    def test_broken_files_say_what_is_wrong(self):
        for content, part in (
            ("{", "x.json:1"),
            ('{"format": "mgwfbp-trace-1", "tensors": 3}', "tensors"),
            ("", "x.json"),
            ("\0\1\2", "x.json"),
            (json.dumps(small_trace(forward_s=-1)), "forward_s"),
        ):
            answer, text = self.add("x.json", content)
            self.assertEqual(answer.status, 400)
            self.assertIn(part, text)
        self.assertEqual(len(data_of(self.ask("GET", "/")[1])["traces"]), 1)  # as it was

    def test_no_path_leads_anywhere(self):
        for path in (
            "/etc/passwd",
            "/../../etc/passwd",
            "/%2e%2e/etc/passwd",
            "/add",
            "//",
            "/index.html",
            "/favicon.ico",
        ):
            self.assertEqual(self.ask("GET", path)[0].status, 404, path)
        for name in ("/etc/passwd", "../../etc/passwd", "data/traces/x"):
            answer, text = self.ask("POST", f"/builtin?name={name}", b"", X_Mgwfbp="1")
            self.assertEqual(answer.status, 400)
            self.assertIn("no built-in", text)
        self.assertEqual(self.ask("DELETE", "/")[0].status, 405)

    def test_others_are_not_answered(self):
        for host in (
            "evil.example",
            f"evil.example:{self.port}",
            "127.0.0.1",
            f"127.0.0.1:{self.port + 1}",
            f"[::1]:{self.port}",
        ):
            self.assertEqual(self.ask("GET", "/", host=host)[0].status, 403, host)
        self.assertEqual(self.ask("POST", "/clear", b"", X_Mgwfbp="1", Origin="http://evil.example")[0].status, 403)
        self.assertEqual(self.ask("POST", "/clear", b"")[0].status, 403)  # as a form of another site would
        self.assertEqual(
            self.ask("POST", "/clear", b"", X_Mgwfbp="1", Origin=f"http://127.0.0.1:{self.port}")[0].status, 200
        )

    def test_the_token(self):
        """Who does not know the whole address gets nothing, and changes nothing."""
        almost = self.token[:-1] + ("0" if self.token[-1] != "0" else "1")
        for token in ("", "x", almost, self.token[:-1], self.token + "0", self.token.upper() + "x"):
            for method, path, more in (("GET", "/", {}), ("POST", "/clear", {"body": b"", "X_Mgwfbp": "1"})):
                answer, text = self.ask(method, path, token=token, **more)
                self.assertEqual((answer.status, "token" in text), (403, True), token)
        self.assertEqual(len(data_of(self.ask("GET", "/")[1])["traces"]), 1)
        answer, text = self.ask("GET", "/", host="evil.example")
        self.assertEqual(text, "host not allowed; open the address that 'mgwfbp serve' has printed\n")

    def test_other_users(self):
        if os.getuid():
            self.skipTest("only root can be another user")
        script = ("import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), timeout=10); "
                  "s.sendall(sys.argv[2].encode()); print(len(s.recv(100)))")
        request = f"GET /{self.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n\r\n"
        for user, gets in ((0, True), (65534, False)):
            done = subprocess.run(["/usr/bin/python3", "-c", script, str(self.port), request], user=user, cwd="/",
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
            self.assertEqual(done.stdout.strip() == "100", gets, done)

    def test_idle_connections_block_nobody(self):
        idle = [socket.create_connection(("127.0.0.1", self.port), timeout=10) for _ in range(100)]
        for one in idle:
            self.addCleanup(one.close)
        begin = time.monotonic()
        self.assertEqual(self.ask("GET", "/")[0].status, 200)
        self.assertLess(time.monotonic() - begin, 5)

    def test_only_this_machine_can_connect(self):
        listening = [
            line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if line.split()[3] == "0A"
        ]
        self.assertIn(f"0100007F:{self.port:04X}", listening)
        self.assertNotIn(f"00000000:{self.port:04X}", listening)

    def test_too_large_a_file(self):
        answer, text = self.ask("POST", "/add?name=x", b" " * ((64 << 20) + 1), X_Mgwfbp="1")
        self.assertEqual(answer.status, 413)
        self.assertIn("64 MiB", text)
        self.assertEqual(self.ask("GET", "/")[0].status, 200)

    def test_half_a_request_harms_nobody(self):
        with socket.create_connection(("127.0.0.1", self.port)) as half:
            half.sendall(
                f"POST /{self.token}/add?name=x HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nX-Mgwfbp: 1\r\nContent-Length: 100\r\n\r\nabc".encode()
            )
            self.assertEqual(self.ask("GET", "/")[0].status, 200)
        self.assertEqual(self.ask("GET", "/")[0].status, 200)

    def test_a_port_that_is_taken(self):
        done = run("serve", "--port", self.port)
        self.assertEqual(done.returncode, 2)
        self.assertIn("--port", done.stderr)
        for bad in ("x", "-1", "65536", "1.5"):
            self.refused(run("serve", "--port", bad), "--port")


if __name__ == "__main__":
    unittest.main()
