"""The page of `report` in a real browser, for its tests."""

import json
import unittest

import browser
from folder import Folder
from support import run

POLICIES = ["naive", "wfbp", "single", "threshold:67108864", "ddp", "mgwfbp", "optimal", "zero", "dear", "fsdp", "sharded", "overlap"]
OVERLAPS = """(() => {
  const bad = [];
  const boxes = (list) => [...list].map((e) => [e, e.getBoundingClientRect()]).filter(([, b]) => b.width && b.height);
  const cross = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  const compare = (list) => list.forEach(([e, a], i) => list.slice(i + 1).forEach(([f, b]) => { if (!e.contains(f) && cross(a, b)) bad.push(`${e.textContent.slice(0, 40)} | ${f.textContent.slice(0, 40)}`); }));
  for (const picture of document.querySelectorAll("figure svg")) compare(boxes(picture.querySelectorAll("text")));
  compare(boxes(document.querySelectorAll("h1, h2, p, button, select, input:not(.said), figure svg, canvas, summary, .scroll")));
  for (const e of document.querySelectorAll("main svg text, button, h1, h2, p, select, canvas")) {
    const b = e.getBoundingClientRect();
    if (b.width && !e.closest(".scroll, .said") && (b.left < -1 || b.right > innerWidth + 1)) bad.push(`outside: ${e.textContent.slice(0, 60)} ${b.left} ${b.right}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) bad.push(`scrolls sideways: ${document.documentElement.scrollWidth}`);
  return bad; })()"""


def setUpModule():
    global BROWSER
    if not browser.CHROMIUM:
        raise unittest.SkipTest("no browser: install Debian's package chromium")
    BROWSER = browser.Browser()


def tearDownModule():
    BROWSER.close()


class Page(Folder):
    def setUp(self):
        super().setUp()
        self.browser = BROWSER
        self.browser.size(1280, 900)
        self.browser.scheme("light")

    def open(self, *inputs):
        out = self.folder / "report.html"
        done = run("report", *inputs, "-o", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.browser.open(out)
        self.out = out
        self.quiet()
        return self.browser

    def open_all(self, *inputs):
        """With the timelines of slow policies, too."""
        self.open(*inputs)
        self.browser.click("#timeline button.slow")
        self.browser.frame()

    def quiet(self):
        """No error on the console, and no request but for the file itself."""
        self.assertEqual(self.browser.errors, [])
        self.assertEqual(
            [r for r in self.browser.requests if not r.startswith(("data:", "blob:"))], [self.out.as_uri()]
        )

    def count(self, selector):
        return self.browser.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    def text(self, selector):
        return self.browser.run(f"document.querySelector({json.dumps(selector)}).textContent")

    def shown(self):
        """What the page has planned, as the planner gave it."""
        return self.browser.run(
            """(() => { const { policies } = mgwfbp.page.current;
            return { scaling: mgwfbp.page.scalingRows(), policies: policies.map((p) => Object.fromEntries(Object.entries(p).map(([k, v]) => [k, typeof v === "object" ? [...v] : v]))) }; })()"""
        )

    def exported(self, selector):
        """What a button saves, caught on its way to the disk."""
        return self.browser.run(
            f"""(async () => {{ const make = URL.createObjectURL; let saved = null;
            URL.createObjectURL = (blob) => {{ saved = blob; return "data:,"; }};
            document.querySelector({json.dumps(selector)}).click(); URL.createObjectURL = make; return saved.text(); }})()"""
        )
