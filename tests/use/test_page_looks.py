"""The page in a real browser: its appearance, hostile names, saved files, and `serve`."""

import json
import re
import select
import signal
import subprocess
import unittest
import xml.etree.ElementTree as ElementTree

import chrome_trace
from folder import RESNET, SVG, small_cluster, small_trace
from page import OVERLAPS, POLICIES, Page, setUpModule, tearDownModule  # noqa: F401
from support import FIXTURES, MGWFBP, builtin_trace, run, run_json
from test_report import LINK


def lab(color, vision):
    """A colour (#rrggbb) as seen, in CIE L*a*b*."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    parts = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    r, g, b = (min(1, max(0, sum(m * v for m, v in zip(row, parts)))) for row in vision)
    x, y, z = 0.4124 * r + 0.3576 * g + 0.1805 * b, 0.2126 * r + 0.7152 * g + 0.0722 * b, 0.0193 * r + 0.1192 * g + 0.9505 * b
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x / 0.9505, y, z / 1.089))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


class Looks(Page):
    def test_nothing_overlaps(self):
        sim = self.file(
            "simulate.json",
            run(
                "simulate", RESNET, LINK, "--workers", "4:64", "--algorithm", "ring,double-binary-trees", "--json"
            ).stdout,
        )
        self.open("resnet152-b128-fp32-h200", LINK, FIXTURES / "nccl_tests.txt", sim)
        for width in (320, 390, 768, 1024, 1280, 1920):
            for scheme in ("light", "dark"):
                for case in (0, 1):
                    self.browser.size(width, 900)
                    self.browser.scheme(scheme)
                    self.browser.enter("#case", case, "change")
                    self.browser.frame()
                    self.assertEqual(self.browser.run(OVERLAPS), [], f"{width} {scheme}")
        self.quiet()

    def test_text_can_be_read(self):
        """The contrast of text with its ground, by the rule of WCAG: 4.5 to 1."""
        self.open(RESNET, LINK)

        def light(rgb):
            parts = [int(v) / 255 for v in re.findall(r"\d+", rgb)[:3]]
            parts = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
            return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

        for scheme in ("light", "dark"):
            self.browser.scheme(scheme)
            for name in ("--text", "--quiet", "--accent"):
                for ground in ("--ground", "--panel"):
                    colors = self.browser.run(
                        f"""(() => {{ const e = document.createElement("i"); document.body.append(e);
                        e.style.color = "var({name})"; e.style.backgroundColor = "var({ground})"; const s = getComputedStyle(e);
                        const pair = [s.color, s.backgroundColor]; e.remove(); return pair; }})()"""
                    )
                    low, high = sorted(map(light, colors))
                    self.assertGreater((high + 0.05) / (low + 0.05), 4.5, f"{scheme} {name} on {ground}")

    def test_colours_differ_for_everybody(self):
        """What lies beside each other in a lane, as people see it who lack one kind of cones (Machado et al., 2009)."""
        visions = {
            "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
            "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
            "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
            "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
        }
        lanes = (("forward", "backward", "stall", "ground"), ("hidden", "scatter", "gather", "accent", "ground"))
        self.open(RESNET, LINK)
        for scheme in ("light", "dark"):
            self.browser.scheme(scheme)
            for lane in lanes:
                colors = self.browser.run(
                    f"{json.dumps(lane)}.map((n) => getComputedStyle(document.documentElement).getPropertyValue('--' + n).trim())"
                )
                for vision, matrix in visions.items():
                    seen = [lab(rgb, matrix) for rgb in colors]
                    for i, (name, one) in enumerate(zip(lane, seen)):
                        for other, two in list(zip(lane, seen))[i + 1 :]:
                            distance = sum((a - b) ** 2 for a, b in zip(one, two)) ** 0.5
                            self.assertGreater(distance, 15, f"{scheme}, {vision}: {name} beside {other}")

    def test_everything_has_a_name(self):
        """What a screen reader finds: sections with headings, controls and pictures with names."""
        self.open(RESNET, LINK)
        tree = self.browser.send("Accessibility.getFullAXTree")["nodes"]
        nameless = [
            n["role"]["value"]
            for n in tree
            if not n.get("ignored")
            and n.get("role", {}).get("value")
            in ("button", "slider", "spinbutton", "combobox", "img", "image", "region", "complementary")
            and not n.get("name", {}).get("value")
        ]
        self.assertEqual(nameless, [])
        self.assertGreaterEqual(sum(n.get("role", {}).get("value") == "heading" for n in tree), 8)

    def test_what_is_saved_is_light(self):
        self.open(RESNET, LINK)
        self.browser.scheme("dark")
        for chart in ("timeline", "policies"):
            picture = ElementTree.fromstring(self.exported(f"#{chart} [data-export=svg]"))
            self.assertIn(next(picture.iter(f"{SVG}rect")).get("fill"), ("#ffffff", "rgb(255, 255, 255)"))
        self.assertNotIn("paper", self.browser.run("document.documentElement.className"))

    def test_print(self):
        self.open(RESNET, LINK)
        self.browser.send("Emulation.setEmulatedMedia", media="print")
        try:
            self.assertEqual(self.browser.run("getComputedStyle(document.querySelector('#whatif')).display"), "none")
            self.assertGreater(len(self.browser.send("Page.printToPDF")["data"]), 10000)
        finally:
            self.browser.send("Emulation.setEmulatedMedia", media="")


class Hostile(Page):
    def test_names_are_text(self):
        names = [
            "</script><script>window.hacked=1</script>",
            "<img src=x onerror=window.hacked=1>",
            "\"'`${window.hacked=1}",
            "a\tb\u0007\u001b[31m",
            "\u202egnp.exe",
            "x" * 10240,
            "=1+1",
            "&lt;b&gt;",
            "\ud83d\ude00 \u4e2d",
        ]
        trace = self.file(
            "t.json",
            small_trace(
                model="<script>window.hacked=1</script>",
                device="<b>",
                tensors=[{"name": n, "count": 40, "backward_s": 0.01} for n in names],
            ),
        )
        self.open(trace, self.file("c.json", small_cluster(name="<svg onload=window.hacked=1>")))
        self.browser.enter("#plan select", "wfbp", "change")
        self.browser.click("#timeline summary")
        self.assertIsNone(self.browser.run("window.hacked || null"))
        self.assertEqual(self.count("#plan tbody tr"), len(names))
        cells = self.browser.run(
            "[...document.querySelectorAll('#plan tbody tr')].map((r) => r.cells[9].textContent)"
        )
        self.assertEqual(cells[0], names[0])
        self.assertEqual(cells[1], names[1])
        self.assertEqual(cells[3], "a\\u0009b\\u0007\\u001b[31m")
        self.assertEqual(cells[4], "\\u202egnp.exe")
        self.assertLess(len(cells[5]), 100)
        self.assertEqual(cells[7], names[7])
        self.assertEqual(self.count("main img, main script, main b script"), 0)
        self.assertIn("'=1+1", self.exported("#plan [data-export=csv]"))
        self.assertEqual(self.browser.run(OVERLAPS), [])
        self.browser.run("mgwfbp.page.timeline.step(1, 0)")  # shows a tooltip
        ElementTree.fromstring(
            re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f]", "", self.exported("#timeline [data-export=svg]"))
        )
        chrome_trace.check(self.exported("#timeline [data-export=chrome]"))
        self.quiet()


class Export(Page):
    def test_chrome_trace(self):
        self.open_all(RESNET, "paper-2-10gbe")
        text = self.exported("#timeline [data-export=chrome]")
        lanes, titles = chrome_trace.check(text)
        self.assertEqual(list(titles.values()), POLICIES)
        plan = run_json("plan", RESNET, "paper-2-10gbe")["plan"]
        messages = lanes[7][2]
        self.assertEqual([m["args"]["tensors"] for m in messages], [len(m["tensors"]) for m in plan["operations"]])
        again = self.file("again.json", text)  # `report` reads what the page saves
        self.open(again)
        self.assertEqual(self.browser.run("mgwfbp.page.timeline.rows.map((r) => r.label)"), POLICIES)
        self.assertEqual(
            self.browser.run("mgwfbp.page.timeline.rows.map((r) => r.messages.start_s.length)"),
            [v["messages"] for v in run_json("plan", RESNET, "paper-2-10gbe")["policies"].values()],
        )
        for shown, policy in zip(
            self.browser.run("mgwfbp.page.timeline.rows.map((r) => [r.iteration_s, r.iteration_s - r.compute_s])"),
            run_json("plan", RESNET, "paper-2-10gbe")["policies"].values(),
        ):  # the steps are as long as they were, stalls and all
            self.assertAlmostEqual(shown[0], policy["iteration_s"], delta=2e-9)
            self.assertAlmostEqual(shown[1], policy["exposed_s"], delta=4e-9)
        self.assertEqual(self.exported("#timeline [data-export=chrome]"), text)


    def test_measured_in_front(self):
        """An engine measures stalls in the step's own forward pass, and knows when the next one begins."""
        which = {"index": 0, "tensors": 1}
        sent = dict(which, bytes=8, waited_us=0)
        spans = [("stall", 0, 2, which), ("forward", 2, 2, None), ("backward", 4, 5, which),
                 ("reduce-scatter", 8, 2, sent), ("all-gather", 10, 3, sent)]
        events = [{"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "rank 0", "period_us": 10, "tensors": ["a"]}}]
        for kind, start, length, args in spans:
            event = {"name": kind, "cat": kind, "ph": "X", "pid": 1, "tid": 1, "ts": start, "dur": length}
            events.append(dict(event, args=args) if args else event)
        self.open(self.file("run.json", {"format": "mgwfbp-timelines-1", "traceEvents": events}))
        row = self.browser.run("(({ iteration_s, compute_s, exposed }) => [iteration_s, compute_s, ...exposed.flat()])(mgwfbp.page.timeline.rows[0])")
        for value, expected in zip(row, (10, 7, 0, 2, 9, 10)):
            self.assertAlmostEqual(value * 1e6, expected)
        lines = self.exported("#timeline [data-export=csv]").splitlines()
        exposed = [round(float(line.split(",")[8]) * 1e6, 6) for line in lines[1:]]
        self.assertEqual(exposed, [1, 0, 2])  # of the reduce-scatter, of the all-gather; the stall itself


class Serving(Page):
    def setUp(self):
        super().setUp()
        self.process = subprocess.Popen(
            [str(MGWFBP), "serve", "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
        )
        self.addCleanup(self.end)
        ready, _, _ = select.select([self.process.stdout], [], [], 30)
        line = self.process.stdout.readline() if ready else ""
        if not line and "libmicrohttpd" in self.process.stderr.read():
            self.skipTest("built without libmicrohttpd")
        self.url = line.split()[0]

    def end(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=20)
        self.process.stdout.close()
        self.process.stderr.close()

    def drop(self, name, content):
        self.browser.run(
            f"""(() => {{ const d = new DataTransfer(); d.items.add(new File([{json.dumps(content)}], {json.dumps(name)}));
            document.dispatchEvent(new DragEvent("drop", {{ dataTransfer: d, bubbles: true, cancelable: true }})); }})()"""
        )

    def test_an_example_to_click(self):
        self.browser.open(self.url)
        self.browser.click("#example")
        self.browser.wait("document.querySelector('#title').textContent === 'resnet50 on paper-2-10gbe'")
        self.assertIn("compared with DDP's buckets", self.text("#answer .headline"))
        self.assertEqual(self.browser.errors, [])

    def test_files_dropped_on_it(self):
        self.browser.open(self.url)
        self.assertEqual(self.browser.errors, [])
        self.assertIn("a trace and a cluster", self.text("#main"))
        self.drop("model.json", json.dumps(builtin_trace(RESNET)))
        self.browser.wait("document.querySelector('#title').textContent.includes('resnet50')")
        self.drop("two-nodes.txt", (FIXTURES / "nccl_tests.txt").read_text())
        self.browser.wait(
            "!!document.querySelector('#words') && document.querySelector('#words').textContent.includes('two-nodes')"
        )
        self.browser.enter("[aria-label='built-in data']", "paper-2-10gbe", "change")
        self.browser.wait("mgwfbp.page.data.cases.length === 2")
        self.assertEqual(
            {tuple(p["count"]) for p in self.shown()["policies"] if p["policy"] == "optimal"},
            {tuple(len(m["tensors"]) for m in run_json("plan", RESNET, "paper-2-10gbe")["plan"]["operations"])},
        )
        for name, content, part in (
            ("broken.json", '{"format": "mgwfbp-trace-1",\n "model": 3}', "broken.json: tensors: missing"),
            ("photo.png", "\x89PNG\r\n", "photo.png"),
            ("<b>.json", "{", "<b>.json:1"),
        ):
            self.browser.errors.clear()
            self.drop(name, content)
            self.browser.wait(
                f"document.querySelector('#drop [role=alert]').textContent.includes({json.dumps(part)})"
            )
            self.assertEqual(self.browser.run("mgwfbp.page.data.cases.length"), 2)  # as it was
        self.assertEqual({r for r in self.browser.requests if not r.startswith(("data:", self.url))}, set())


if __name__ == "__main__":
    unittest.main()
