"""The page in a real browser: its drawings, its tooltips, and the plans of its sliders."""

import ctypes
import json
import random
import re
import xml.etree.ElementTree as ElementTree

from folder import RESNET, SVG, small_cluster
from page import OVERLAPS, POLICIES, Page, setUpModule, tearDownModule  # noqa: F401
from support import BUILD, FIXTURES, ROOT, builtin_trace, run, run_json
from test_report import KINDS, LINK, TRAINING


class Drawing(Page):
    def test_marks(self):
        self.open(RESNET, "paper-2-10gbe", FIXTURES / "nccl_tests.txt")
        self.assertEqual(self.count("#policies rect.bar-part"), 2 * len(POLICIES))
        self.assertEqual(self.count("#scaling circle.dot"), 6 * 11)
        self.assertEqual(self.count("#scaling path.line.ink4"), 2)  # the curve, and the way to its name
        sizes = [4 * t["count"] for t in builtin_trace(RESNET)["tensors"]]
        bins = [max(0, (size.bit_length() - 1) // 2) for size in sizes]
        self.assertEqual(self.count("#sizes rect.mark"), max(bins) - min(bins) + 1)
        self.assertEqual(
            sum(
                int(t)
                for t in self.browser.run(
                    "[...document.querySelectorAll('#sizes rect.mark title')].map((t) => t.textContent.match(/: (\\d+) tensor/)[1])"
                )
            ),
            len(sizes),
        )
        self.assertEqual(self.count("#cost circle.dot"), 0)
        self.browser.enter("#case", 1, "change")
        samples = run_json("fit", FIXTURES / "nccl_tests.txt", "--as", "samples")["cluster"]["samples"]
        self.assertEqual(self.count("#cost circle.dot"), len([s for s in samples if s["bytes"]]))

    def test_every_span_of_the_timeline(self):
        self.open_all(RESNET, "paper-2-10gbe")
        picture = ElementTree.fromstring(self.exported("#timeline [data-export=svg]"))
        titles = [t.text for t in picture.iter(f"{SVG}title")]
        tensors = len(builtin_trace(RESNET)["tensors"])
        expected = {"marks": 0, "stall": 0, "next forward pass": 0}
        for policy in POLICIES:
            plan = run_json("plan", RESNET, "paper-2-10gbe", "--policy", policy)["plan"]
            stalls = [(s["start_s"], s["end_s"]) for s in plan.get("stalls", [])]
            edges = [edge for stall in stalls for edge in stall] if stalls else [plan["compute_s"]]
            expected["marks"] += 1 + tensors + len(plan["operations"])  # forward, backward, messages
            for m in plan["operations"]:  # in two colours, and back, wherever it begins or ends to be exposed
                expected["marks"] += sum(m["start_s"] + 1e-12 < edge < m["end_s"] - 1e-12 for edge in edges)
            now, pieces = plan["compute_s"] if stalls else plan["iteration_s"], 0
            for start, end in stalls:
                pieces += start > now + 1e-11
                now = end
            expected["stall"] += len(stalls)
            expected["next forward pass"] += pieces + (plan["iteration_s"] + plan["forward_s"] > now + 1e-11)
        expected["marks"] += expected["stall"] + expected["next forward pass"]
        self.assertGreater(expected["stall"], 10)
        for what in ("stall", "next forward pass"):
            self.assertEqual(sum(t.startswith(what) for t in titles), expected[what])
        self.assertEqual(len(titles), expected["marks"])
        self.assertEqual(self.browser.run("mgwfbp.page.timeline.marks"), expected["marks"])
        fills = {r.get("fill") for r in picture.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None}
        style = "getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
        kinds = ("forward", "backward", "hidden", "scatter", "gather", "stall", "accent")
        self.assertEqual(fills, {self.browser.run(style.format(kind)) for kind in kinds})
        # All-reduces fill their lane, of their halves one is above and one below: seen without colours, too.
        height = {}
        for mark in picture.iter(f"{SVG}rect"):
            title = mark.find(f"{SVG}title")
            found = title is not None and re.match(r"(\S+, )?message", title.text)
            if found:
                place = round((float(mark.get("y")) - 26) % 50, 3), float(mark.get("height"))
                height.setdefault(found.group(1), set()).add(place)
        self.assertEqual(height, {None: {(20, 22)}, "reduce-scatter, ": {(20, 11)}, "all-gather, ": {(31, 11)}})
        key = self.text("#timeline .key")
        for word in ("forward, of this step and the next", "reduce-scatter (upper half)", "all-gather (lower half)", "stall"):
            self.assertIn(word, key)

    def test_runs(self):
        "Measured and predicted, simulations and training, without a trace."
        replay = [
            {
                "policy": policy,
                "workers": 4,
                "messages": 3,
                "predicted_iteration_s": 0.2,
                "measured_iteration_s": 0.21,
                "spread": 0.01,
                "predicted_exposed_s": 0.1,
                "measured_exposed_s": 0.11,
                "measured_compute_s": 0.1,
            }
            for policy in ("wfbp", "single", "optimal")
        ]
        simulated = run(
            "simulate",
            RESNET,
            LINK,
            "--workers",
            "4:64",
            "--algorithm",
            "ring,double-binary-trees",
            "--policy",
            "wfbp,optimal",
            "--json",
        ).stdout
        self.open(
            self.file("replay.json", replay),
            self.file("simulate.json", simulated),
            self.file("train.jsonl", TRAINING),
        )
        self.assertEqual(self.count("#replay rect.bar-part"), 2 * 2 * 3)
        self.assertEqual(self.count("#simulation circle.dot"), 2 * 2 * 5)
        self.assertEqual(self.count("#training rect.bar-part"), 2 * 2)
        self.assertEqual(self.count("#training circle.dot"), 1)
        self.assertIn("+5.0%", self.text("#replay svg"))
        self.assertIn("62.0%", self.text("#training"))
        self.assertEqual(self.count("#words, #policies, #timeline canvas"), 0)
        self.assertEqual(self.browser.run(OVERLAPS), [])

    def test_advice(self):
        self.open(RESNET, "100gbe", "--nodes", 8, "--gpus", 8)
        said = run("advise", RESNET, "100gbe", "--nodes", 8, "--gpus", 8).stdout.splitlines()
        shown = self.text("#advice")
        for part in (said[0], said[-1], "model = mgwfbp.torch.DistributedDataParallel(model)",
                     "and optimizer = mgwfbp.torch.ZeroRedundancyOptimizer(model, ...)", "levels: levels at the same time"):
            self.assertIn(part, shown)
        levers = json.loads(run("advise", RESNET, "100gbe", "--nodes", 8, "--gpus", 8, "--json").stdout)["levers"]
        self.assertEqual(self.count("#advice svg rect.bar-part"), 2 * len(levers))
        self.assertEqual(self.browser.run(OVERLAPS), [])

    def test_large_jobs(self):
        rows = run("simulate", RESNET, LINK, "--workers", "4:4096", "--policy", "ddp,overlap", "--jitter", "5%", "--mtbf",
                   "1y", "--checkpoint", "10s", "--samples", 10**7, "--price", 2, "--json").stdout
        self.open(self.file("job.json", rows))
        shown = ["speed-up with stragglers and failures", "how slow the slowest worker is",
                 "share of time spent training", "time of an epoch", "cost of an epoch"]
        heads = self.browser.run("[...document.querySelectorAll('#outlook h3')].map((head) => head.textContent)")
        self.assertEqual(heads, [text.capitalize() for text in shown])
        self.assertEqual(self.count("#outlook circle.dot"), 11 * (4 * 2 + 1))
        self.assertEqual(self.browser.run(OVERLAPS), [])

    def test_words(self):
        self.open("resnet152-b128-fp32-h200", "paper-2-10gbe")
        said = run("plan", "resnet152-b128-fp32-h200", "paper-2-10gbe").stdout
        saved, most = re.search(r"saves ([\d.]+%).*more than ([\d.]+%)", said).groups()
        words = self.text("#words")
        for part in (
            "128 ms",
            "229 ms per step",
            "224 ms per step",
            "95.3 ms exposed",
            f"saves {saved} of the step",
            f"more than {most}",
        ):
            self.assertIn(part, words)
        saved, most = re.search(r"'overlap' saves ([\d.]+%).*more than ([\d.]+%)", said).groups()
        for part in ("182 ms per step", f"saves {saved} of the step", f"more than {most}"):
            self.assertIn(part, words)

    def test_the_table_is_that_of_the_command(self):
        self.open(RESNET, "paper-2-10gbe")
        self.browser.click("#policies summary")
        rows = self.browser.run(
            "[...document.querySelectorAll('#policies tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
        )
        printed = run("plan", RESNET, "paper-2-10gbe").stdout
        for row in rows[:-2]:
            line = next(l for l in printed.splitlines() if l.startswith(row[0] + " "))
            for cell in row[:-1]:
                self.assertIn(cell, line)
        bounds = [l for l in printed.splitlines() if l.startswith("lower bound")]
        for row, line in zip(rows[-2:], bounds):
            for cell in row[2:4]:
                self.assertIn(cell, line)
        messages = self.browser.run(
            "[...document.querySelectorAll('#plan tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
        )
        listed = printed.split("last tensor\n")[1].splitlines()
        self.assertEqual(len(messages), len(listed))
        for row, line in zip(messages, listed):
            self.assertEqual(row[1], "all-reduce")
            for cell in row[:1] + row[2:7] + row[10:]:
                self.assertIn(cell, line)
        self.browser.enter("#plan select", "overlap", "change")
        printed = run("plan", RESNET, "paper-2-10gbe", "--policy", "overlap").stdout
        listed, stalls = printed.split("last tensor\n")[1].split("\n\nThe next forward pass ")
        tables = self.browser.run(
            "[...document.querySelectorAll('#plan table')].map((t) => [...t.tBodies[0].rows].map((r) => [...r.cells].map((c) => c.textContent)))"
        )
        self.assertEqual([len(t) for t in tables], [len(listed.splitlines()), len(stalls.splitlines()) - 2])
        for row, line in zip(tables[0], listed.splitlines()):
            for cell in row[:7] + row[10:]:
                self.assertIn(cell, line)
        for row, line in zip(tables[1], stalls.splitlines()[2:]):
            for cell in row:
                self.assertIn(cell, line)

    def test_csv(self):
        self.open(RESNET, "paper-2-10gbe")
        lines = self.exported("#policies [data-export=csv]").splitlines()
        self.assertEqual(lines[0], "policy,messages,iteration_s,exposed_s,efficiency,slower_than_the_best")
        printed = run_json("plan", RESNET, "paper-2-10gbe")["policies"]
        self.assertEqual(len(lines), 1 + len(POLICIES) + 2)
        for line in lines[1:-2]:
            policy, messages, iteration, exposed, *_ = line.split(",")
            expected = printed[policy]
            self.assertEqual(
                (int(messages), float(iteration), float(exposed)),
                (expected["messages"], expected["iteration_s"], expected["exposed_s"]),
            )
        self.assertEqual(float(lines[-2].split(",")[-4]), printed["optimal"]["lower_bound_s"])
        self.assertEqual(float(lines[-1].split(",")[2]), printed["overlap"]["lower_bound_s"])
        for chart in ("timeline", "plan", "scaling", "cost", "sizes"):
            self.assertGreater(len(self.exported(f"#{chart} [data-export=csv]").splitlines()), 2, chart)
        for chart in ("policies", "scaling", "cost", "sizes"):
            ElementTree.fromstring(self.exported(f"#{chart} [data-export=svg]"))

    def test_numbers_read_as_the_command_prints_them(self):
        self.open(RESNET, "paper-2-10gbe")
        library = ctypes.CDLL(str(BUILD / "src" / "libmgwfbp.so"))
        draw = random.Random(7)
        times = (
            [10 ** draw.uniform(-11, 6) for _ in range(4000)]
            + [k / 2**n for n in range(1, 20) for k in (1, 3, 5, 125)]
            + [0.125, 0.375, 2.5e-3, 0.0625, 9.995, 99.95, 999.5, 0]
        )
        sizes = [draw.randrange(1 << draw.randrange(1, 52)) for _ in range(4000)] + [
            1023,
            1024,
            1025,
            1536,
            1 << 20,
            (1 << 20) + (1 << 18),
        ]
        out = ctypes.create_string_buffer(32)

        def printed(function, convert, values):
            function.argtypes, function.restype = [convert, ctypes.c_char_p], ctypes.c_char_p
            return [function(value, out).decode() for value in values]

        for name, convert, values in (("seconds", ctypes.c_double, times), ("bytes", ctypes.c_uint64, sizes)):
            expected = printed(getattr(library, f"mgw_format_{name}"), convert, values)
            self.assertEqual(self.browser.run(f"{json.dumps(values)}.map(mgwfbp.format.{name})"), expected)


class Answer(Page):
    """The main result comes first: the gain over DDP."""

    def test_headline_and_bars(self):
        self.open(RESNET, "paper-2-10gbe")
        policies = run_json("plan", RESNET, "paper-2-10gbe")["policies"]
        step = {name: one["iteration_s"] for name, one in policies.items()}
        saved = {name: f"{100 * (1 - step[name] / step['ddp']):.1f}%" for name in ("optimal", "overlap")}
        self.assertEqual(
            self.text("#answer .headline"),
            f"Better messages save {saved['optimal']} of every step compared with DDP's buckets; with forward overlap, {saved['overlap']}.",
        )
        self.assertEqual(self.count("#answer rect.bar-part"), 2 * 3)
        for name in ("optimal", "overlap"):
            self.assertIn(f"{saved[name]} saved", self.text("#answer svg"))
        trace = builtin_trace(RESNET)
        self.assertIn(f"process {16 * trace['batch'] / step['ddp']:,.0f} samples per second", self.text("#answer"))
        self.assertEqual(self.browser.run("document.querySelector('main > section:not([hidden])').id"), "answer")

    def test_nothing_to_gain(self):
        self.open(RESNET, "nvlink4")
        self.assertRegex(self.text("#answer .headline"), r"as good as it gets here: no plan can save more than 0\.\d% of a step\.")

    def test_lines_to_change_are_in_view(self):
        """On a phone, too, and whatever the bucket size."""
        case = "resnet152-b128-fp32-h200", "paper-2-10gbe"
        self.open(*case)
        advised = run_json("advise", *case)["bucket_cap_mb"]
        self.assertGreater(advised, 0)
        self.assertIn(f"bucket_cap_mb={advised:g}", self.text("#advice tbody"))
        hidden = """Math.max(...[...document.querySelectorAll('#advice .scroll, #advice td.code')].map(
            (one) => one.scrollWidth - one.clientWidth))"""
        for width in (1280, 1200, 700, 390):
            self.browser.size(width, 800)
            self.browser.frame()
            self.assertLessEqual(self.browser.run(hidden), 0, width)
        self.browser.size(1280, 900)

    def test_slow_policies_are_folded(self):
        self.open(RESNET, "paper-2-10gbe")
        step = {name: one["iteration_s"] for name, one in run_json("plan", RESNET, "paper-2-10gbe")["policies"].items()}
        slow = {name for name in step if step[name] > 1.5 * min(step.values()) and name != "ddp"}
        self.assertTrue(0 < len(slow) < len(step))
        self.assertEqual(self.count("#policies figure rect.bar-part"), 2 * (len(step) - len(slow)))
        self.assertEqual(self.count("#policies details.slow rect.bar-part"), 2 * len(slow))
        self.assertIs(self.browser.run("document.querySelector('#policies details.slow').open"), False)
        labels = "mgwfbp.page.timeline.rows.map((row) => row.label)"
        self.assertEqual(set(self.browser.run(labels)), set(step) - slow)
        self.assertEqual(self.text("#timeline button.slow"), f"{len(slow)} policies more than 1.5 times as slow")
        for pressed, shown in (("true", set(step)), ("false", set(step) - slow)):
            self.browser.click("#timeline button.slow")
            self.assertEqual(set(self.browser.run(labels)), shown)
            self.assertEqual(self.browser.run("document.querySelector('#timeline button.slow').ariaPressed"), pressed)
            self.assertEqual(self.browser.run("mgwfbp.page.timeline.to"), self.browser.run("mgwfbp.page.timeline.full"))

    def test_names_are_explained(self):
        self.open(RESNET, "paper-2-10gbe")
        about = {row["name"]: row["about"] for row in json.loads(run("list", "policies", "--json").stdout)}
        titles = self.browser.run("[...document.querySelectorAll('#policies g.explained title')].map((t) => t.textContent)")
        self.assertEqual(set(titles), set(about.values()))
        self.browser.click("#policies summary")
        self.assertEqual(self.browser.run("document.querySelector('#policies tbody td').title"), about["naive"])

    def test_several_cases(self):
        self.open(RESNET, "gpt2-b8-fp32-h200", "paper-2-10gbe", LINK)
        self.assertEqual(self.count("#cases rect.bar-part"), 2 * 4)
        shown = self.browser.run("mgwfbp.page.current.index")
        self.browser.run("document.querySelector('#cases rect.acts').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
        saves = "mgwfbp.page.data.cases.map((c) => 1 - c.policies.find((p) => p.policy === 'overlap').iteration_s / c.policies.find((p) => p.policy === 'ddp').iteration_s)"
        best = self.browser.run(f"(() => {{ const s = {saves}; return s.indexOf(Math.max(...s)); }})()")
        self.assertEqual(self.browser.run("mgwfbp.page.current.index"), best)
        self.assertEqual(shown, 0)
        self.open(RESNET, LINK)
        self.assertEqual(self.count("#cases"), 0)

    def test_curves_are_efficiencies(self):
        self.open(RESNET, LINK)
        self.assertIn("efficiency", self.text("#scaling svg"))
        self.assertIn("100%", self.text("#scaling svg"))
        self.browser.run("[...document.querySelectorAll('#scaling button')].find((b) => b.textContent === 'speed-up').click()")
        self.assertIn("speed-up over one worker", self.text("#scaling svg"))

    def test_a_phone_shows_the_answer_first(self):
        self.open(RESNET, LINK)
        self.browser.size(390, 800)
        self.browser.frame()
        top = "document.querySelector('{}').getBoundingClientRect().top"
        self.assertLess(self.browser.run(top.format("#answer .headline")), 300)
        self.assertGreater(self.browser.run(top.format("#whatif")), self.browser.run(top.format("#words")))
        self.browser.size(1280, 900)


class Pointing(Page):
    def place(self, row, lane, time):
        """Where on the screen a time is, in a lane of a row."""
        return self.browser.run(
            f"""(() => {{ const t = mgwfbp.page.timeline, box = t.canvas.getBoundingClientRect(), at = t.layout(t.canvas.clientWidth);
            t.canvas.scrollIntoView({{ block: "center" }}); const now = t.canvas.getBoundingClientRect();
            return [now.left + at.left + ({time} - t.from) / (t.to - t.from) * (at.right - at.left), now.top + 26 + {row} * at.row + at.lanes + ({lane} ? 28 : 10)]; }})()"""
        )

    def test_messages_and_tensors(self):
        self.open_all(RESNET, "paper-2-10gbe")
        plan = run_json("plan", RESNET, "paper-2-10gbe")["plan"]
        for number, message in enumerate(plan["operations"]):
            self.browser.move(*self.place(6, 1, (message["start_s"] + message["end_s"]) / 2))
            tip = self.text("#tip")
            self.assertIn(f"message {number + 1} of {len(plan['operations'])}: {len(message['tensors'])} tensor", tip)
            self.assertIn(message["tensors"][0], tip)
            self.assertIn(message["tensors"][-1], tip)
            self.assertFalse(self.browser.run("document.querySelector('#tip').hidden"))
        now, widest = builtin_trace(RESNET)["forward_s"], (0, 0, "")
        for tensor in builtin_trace(RESNET)["tensors"]:
            widest = max(
                widest, (tensor["backward_s"], now + tensor["backward_s"] / 2, tensor["name"], 4 * tensor["count"])
            )
            now += tensor["backward_s"]
        self.browser.run(f"mgwfbp.page.timeline.show({widest[1]} - 0.001, 0.002)")
        self.browser.frame()
        self.browser.move(*self.place(6, 0, widest[1]))
        self.assertIn(widest[2], self.text("#tip"))
        self.assertIn(self.browser.run(f"mgwfbp.format.bytes({widest[3]})"), self.text("#tip"))
        self.browser.move(5, 5)
        self.assertTrue(self.browser.run("document.querySelector('#tip').hidden"))

    def test_both_passes(self):
        """Of a plan that overlaps the next forward pass: its operations by kind, its stalls, and that pass."""
        self.open_all(RESNET, "paper-2-10gbe")
        plan = run_json("plan", RESNET, "paper-2-10gbe", "--policy", "overlap")["plan"]
        row = POLICIES.index("overlap")
        for operation in plan["operations"]:
            self.browser.move(*self.place(row, 1, (operation["start_s"] + operation["end_s"]) / 2))
            tip = self.text("#tip")
            if operation["kind"] != "all-reduce":
                self.assertIn(f"{operation['kind']}, message", tip)
            self.assertIn(operation["tensors"][0], tip)
        wide = [s for s in plan["stalls"] if s["end_s"] - s["start_s"] > 1e-3]
        self.assertTrue(wide)
        for stall in wide:
            self.browser.move(*self.place(row, 0, (stall["start_s"] + stall["end_s"]) / 2))
            self.assertIn("stall: the forward pass waits for", self.text("#tip"))
            self.assertIn(stall["tensor"], self.text("#tip"))
        end = plan["iteration_s"] + plan["forward_s"]
        self.browser.run(f"mgwfbp.page.timeline.show({end} - 0.001, 0.002)")
        self.browser.frame()
        self.browser.move(*self.place(row, 0, (plan["stalls"][-1]["end_s"] + end) / 2))
        self.assertIn("next forward pass", self.text("#tip"))
        label = self.browser.run("mgwfbp.page.timeline.canvas.getAttribute('aria-label')")
        self.assertEqual(label.count("overlaps the next forward pass"), 5)
        self.browser.click("#timeline summary")
        rows = self.browser.run(
            "[...document.querySelectorAll('#timeline tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
        )
        button = self.browser.run("!!document.querySelector('#timeline details button')")
        if button:
            self.browser.click("#timeline details button")
            rows = self.browser.run(
                "[...document.querySelectorAll('#timeline tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
            )
        shown = [r for r in rows if r[0] == "overlap"]
        self.assertEqual([r[2] for r in shown], [o["kind"] for o in plan["operations"]] + ["stall"] * len(plan["stalls"]))
        # What is exposed of the operations is what the pass waits.
        exposed = [line.split(",") for line in self.exported("#timeline [data-export=csv]").splitlines()]
        of = {"stall": 0.0, "message": 0.0}
        for cells in exposed:
            if cells[0] == "overlap":
                of["stall" if cells[2] == "stall" else "message"] += float(cells[8])
        self.assertAlmostEqual(of["stall"], plan["exposed_s"], delta=1e-10)
        self.assertAlmostEqual(of["message"], plan["exposed_s"], delta=1e-10)

    def test_keys(self):
        self.open_all(RESNET, "paper-2-10gbe")
        self.browser.run("mgwfbp.page.timeline.canvas.focus()")
        width = "mgwfbp.page.timeline.to - mgwfbp.page.timeline.from"
        whole = self.browser.run(width)

        def press(key):
            self.browser.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=key if len(key) == 1 else "")
            self.browser.send("Input.dispatchKeyEvent", type="keyUp", key=key)
            self.browser.frame()

        press("+")
        self.assertLess(self.browser.run(width), whole)
        before = self.browser.run("mgwfbp.page.timeline.from")
        press("ArrowRight")
        self.assertGreater(self.browser.run("mgwfbp.page.timeline.from"), before)
        press("0")
        self.assertEqual(self.browser.run(width), whole)
        press("ArrowDown")
        self.assertIn("message 1 of 161", self.browser.run("mgwfbp.page.timeline.said.textContent"))  # is read out
        press("n")
        self.assertIn("message 2 of 161", self.browser.run("mgwfbp.page.timeline.said.textContent"))

    def test_wheel_and_drag(self):
        self.open(RESNET, "paper-2-10gbe")
        x, y = self.place(1, 1, 0.1)
        self.browser.send("Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=-120, modifiers=2)
        self.browser.wait("mgwfbp.page.timeline.to - mgwfbp.page.timeline.from < mgwfbp.page.timeline.full * 0.9")
        x, y = self.place(1, 1, self.browser.run("(mgwfbp.page.timeline.from + mgwfbp.page.timeline.to) / 2"))
        before = self.browser.run("mgwfbp.page.timeline.from")
        for kind, by in (("mousePressed", 0), ("mouseMoved", 60), ("mouseReleased", 60)):
            self.browser.send(
                "Input.dispatchMouseEvent", type=kind, x=x + by, y=y, button="left", buttons=1, clickCount=1
            )
        self.assertLess(self.browser.run("mgwfbp.page.timeline.from"), before)


class WhatIf(Page):
    def open(self, *inputs):
        super().open(*inputs)
        if not self.browser.run("!!mgwfbp.planner"):
            self.skipTest(
                "built without the planner for browsers (clang-14, lld-14, wasi-libc, libclang-rt-14-dev-wasm32)"
            )

    def check(self, trace, cluster, *options):
        """Everything the page has planned is what the command plans, to the last digit it prints."""
        shown = self.shown()
        self.assertEqual([p["policy"] for p in shown["policies"]], POLICIES)
        for policy in shown["policies"]:
            plan = run_json("plan", trace, cluster, "--policy", policy["policy"], *options)["plan"]
            self.assertEqual(policy["count"], [len(m["tensors"]) for m in plan["operations"]])
            self.assertEqual(policy["bytes"], [m["bytes"] for m in plan["operations"]])
            self.assertEqual([KINDS[k] for k in policy["kind"]], [m["kind"] for m in plan["operations"]])
            for member in ("ready_s", "start_s", "end_s"):
                self.assertEqual([float(f"{v:.12g}") for v in policy[member]], [m[member] for m in plan["operations"]])
            for member in ("compute_s", "iteration_s", "exposed_s", "lower_bound_s"):
                self.assertEqual(float(f"{policy[member]:.12g}"), plan[member])
            names, stalls = [n for m in plan["operations"] if m["kind"] != "all-gather" for n in m["tensors"]], plan.get("stalls", [])
            self.assertEqual([names[int(t)] for t in policy["stall_tensor"]], [s["tensor"] for s in stalls])
            for member in ("start_s", "end_s"):
                shown_times = [float(f"{v:.12g}") for v in policy[f"stall_{member}"]]
                self.assertEqual(shown_times, [s[member] for s in stalls])
        self.assertEqual(self.browser.errors, [])

    def test_it_begins_with_what_the_file_holds(self):
        self.open(RESNET, LINK)
        before = self.shown()
        self.browser.run("mgwfbp.page.whatIf.request()")
        self.browser.frame()
        self.assertEqual(self.shown(), before)

    def test_scaling_follows_when_there_is_a_rest(self):
        self.open(RESNET, LINK)
        before = self.text("#scaling svg")
        self.browser.run("document.querySelector('#scaling summary').click()")
        self.browser.enter("#what-alpha_s", 7e-4)
        self.browser.wait("mgwfbp.page.current.scaling !== null")
        self.browser.frame()
        self.assertNotEqual(self.text("#scaling svg"), before)
        self.assertEqual(self.browser.errors, [])

    def test_links(self):
        self.open(RESNET, LINK)
        link = json.loads((ROOT / "data" / "clusters" / f"{LINK}.json").read_text())
        self.browser.enter("#what-workers", 64)
        self.check(RESNET, LINK, "--workers", 64)
        self.browser.enter("[data-key=algorithm]", "double-binary-trees", "change")
        self.check(RESNET, LINK, "--workers", 64, "--algorithm", "double-binary-trees")
        self.browser.enter("#what-factor", 3.5)
        self.check(RESNET, LINK, "--workers", 64, "--algorithm", "double-binary-trees", "--scale-compute", 3.5)
        link["link"]["alpha_s"], link["link"]["beta_s_per_byte"] = 7.7e-6, 3.21e-10
        self.browser.enter("#what-alpha_s", 7.7e-6)
        self.browser.enter("#what-beta_s_per_byte", 3.21e-10)
        cluster = self.file("c.json", link)
        self.check(RESNET, cluster, "--workers", 64, "--algorithm", "double-binary-trees", "--scale-compute", 3.5)
        half = self.file("half.json", dict(builtin_trace(RESNET), gradient_dtype="bf16"))
        self.browser.enter("[data-key='gradients as']", "bf16", "change")
        self.check(half, cluster, "--workers", 64, "--algorithm", "double-binary-trees", "--scale-compute", 3.5)
        printed = run_json(
            "simulate",
            half,
            cluster,
            "--algorithm",
            "double-binary-trees",
            "--scale-compute",
            3.5,
            "--workers",
            ",".join(str(2**k) for k in range(1, 12)),
        )
        for row, expected in zip(self.shown()["scaling"], printed):
            for member in ("workers", "policy", "messages"):
                self.assertEqual(row[member], expected[member])
            for member in ("iteration_s", "exposed_s", "speedup", "efficiency"):
                self.assertEqual(float(f"{row[member]:.12g}"), expected[member])
        self.assertIn("64 workers", self.text("#words"))

    def test_a_slider(self):
        self.open(RESNET, LINK)
        messages = self.text("#plan tbody")
        self.browser.enter("[aria-label='\u03b1, start-up of a transfer (s)']", 900)
        alpha = float(self.browser.run("document.querySelector('#what-alpha_s').value"))
        link = json.loads((ROOT / "data" / "clusters" / f"{LINK}.json").read_text())
        link["link"]["alpha_s"] = alpha
        self.check(RESNET, self.file("c.json", link))
        self.browser.enter("[aria-label='\u03b1, start-up of a transfer (s)']", 100)
        self.assertNotEqual(self.text("#plan tbody"), messages)

    def test_measured(self):
        self.open("gpt2-b8-fp32-h200", "paper-3-56gbib")
        cluster = json.loads((ROOT / "data" / "clusters" / "paper-3-56gbib.json").read_text())
        self.browser.enter("#what-a_s", 1.25e-3)
        self.browser.enter("#what-b_s_per_byte", 9.9e-10)
        cluster["cost"] = {"a_s": 1.25e-3, "b_s_per_byte": 9.9e-10}
        self.check("gpt2-b8-fp32-h200", self.file("c.json", cluster))
        self.browser.enter("[data-key=algorithm]", "ring", "change")
        self.assertEqual(run("fit", "paper-3-56gbib", "--as", "ring", "-o", self.folder / "ring.json").returncode, 0)
        self.browser.enter("#what-workers", 24)
        self.check("gpt2-b8-fp32-h200", self.folder / "ring.json", "--workers", 24)

    def test_a_curve(self):
        self.open(RESNET, FIXTURES / "nccl_tests.txt")
        self.assertEqual(
            run("fit", FIXTURES / "nccl_tests.txt", "--as", "samples", "-o", self.folder / "curve.json").returncode, 0
        )
        self.browser.enter("#what-factor", 0.1)
        self.check(RESNET, self.folder / "curve.json", "--scale-compute", 0.1)

    def test_parameters_of_another_type(self):
        self.open(RESNET, LINK)
        self.browser.enter("[data-key='parameters as']", "bf16", "change")
        self.check(RESNET, LINK, "--parameters", "bf16")
        self.assertIn("parameters as bf16", self.text("#subtitle"))
        half = self.file("half.json", dict(builtin_trace(RESNET), gradient_dtype="f16", parameter_dtype="bf16"))
        self.open(half, LINK)
        self.check(half, LINK)
        self.browser.enter("[data-key='parameters as']", "", "change")
        self.check(half, LINK, "--parameters", "f16")

    def test_kinds_that_were_measured(self):
        line = {"cost": {"a_s": 3e-4, "b_s_per_byte": 5e-10}}
        samples = [{"bytes": 4**k, "seconds": 2e-4 + 4**k * 3e-10 * (1 + k % 3)} for k in range(3, 14)]
        given = {"reduce-scatter": line, "all-gather": {"samples": samples}}
        link = json.loads((ROOT / "data" / "clusters" / f"{LINK}.json").read_text())
        measured = self.file("link.json", dict(link, collectives=given))
        self.open(RESNET, measured)
        self.browser.enter("#what-factor", 2)
        self.check(RESNET, measured, "--scale-compute", 2)
        self.assertIn("all-gather, fit", self.text("#cost svg"))
        self.assertEqual(self.count("#cost circle.dot"), len(samples))
        saved = json.loads(self.exported("#whatif button:last-child"))
        self.assertEqual(saved["collectives"], given)
        self.browser.enter("#what-workers", 32)  # what was measured with 16 says nothing of these
        self.check(RESNET, measured, "--scale-compute", 2, "--workers", 32)
        self.assertNotIn("collectives", json.loads(self.exported("#whatif button:last-child")))
        server = small_cluster(
            cost={"push": {"a_s": 1e-4, "b_s_per_byte": 1e-9}, "pull": {"a_s": 3e-4, "b_s_per_byte": 2e-10}}
        )
        server = self.file("server.json", server)
        self.open(RESNET, server)
        self.browser.enter("#what-factor", 0.5)
        self.check(RESNET, server, "--scale-compute", 0.5)

    def test_what_cannot_be_is_said(self):
        self.open(RESNET, LINK)
        self.browser.enter("[data-key=algorithm]", "binary-tree", "change")
        before = self.text("#words")
        self.browser.enter("#what-workers", 6)
        self.assertIn("power of two", self.text("#whatif [role=alert]"))
        self.assertEqual(self.text("#words"), before)
        self.browser.enter("#what-workers", 8)
        self.assertTrue(self.browser.run("document.querySelector('#whatif [role=alert]').hidden"))
        self.assertEqual(self.browser.errors, [])

    def test_without_the_planner(self):
        self.open(RESNET, LINK)
        page = self.out.read_text()
        expected = self.shown()
        self.out.write_text(re.sub(r'(id="planner">)[^<]*', r"\1", page))
        self.browser.open(self.out)
        self.quiet()
        self.assertEqual(self.shown(), expected)
        self.assertTrue(self.browser.run("document.querySelector('#whatif').hidden"))
        self.assertIn("without the planner", self.text("#footer"))
        self.assertEqual(self.count("#policies rect.bar-part"), 2 * len(POLICIES))
