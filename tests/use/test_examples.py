"""Examples in the documents that are not console blocks: they are run with smaller numbers, or every name in them is checked."""

import functools
import gzip
import json
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import FIXTURES, ROOT, run
from test_documents import DOCUMENTS, blocks, run_in, steps

# Blocks that are no console blocks, by document and language, and the test that checks them. Plain ones show commands, whose
# names are checked below, formulas or pictures.
CHECKED = {
    ("README.md", "diff"): "torch/documents", ("README.md", "text"): "test_the_replay_of_the_readme",
    ("README.md", "c"): "test_documents", ("README.md", ""): "test_documents", ("CONTRIBUTING.md", "layers"): "test_layers",
    ("docs/guide/pytorch.md", "diff"): "torch/examples", ("docs/guide/pytorch.md", "python"): "torch/documents",
    ("docs/guide/gpu.md", "c"): "test_names_of_the_library", ("docs/guide/train.md", ""): "test_options",
    ("docs/guide/train.md", "text"): "use/train", ("docs/evidence/train.md", "text"): "measured",
    ("docs/evidence/bench.md", ""): "measured", ("docs/evidence/engine.md", ""): "measured",
}


def spoken(document):
    """The code in a document: blocks, indented lines and `spans`."""
    text = document.read_text()
    return re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S) + re.findall(r"^    \S.*$", text, re.M) + re.findall(
        r"`([^`\n]+)`", text)


@functools.lru_cache(maxsize=None)
def help_of(command):
    done = run(command, "--help")
    return done.stdout if done.returncode == 0 else None


class Examples(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="mgwfbp-examples-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def test_every_block_is_checked(self):
        shown = {(str(document.relative_to(ROOT)), language) for document in DOCUMENTS
                 for language in re.findall(r"^```(\w*)\n(?:.*?)^```", document.read_text(), re.M | re.S)}
        self.assertEqual({key for key in shown if key[1] != "console"}, set(CHECKED))

    def test_options(self):
        """Commands that are shown exist, and have the options that they are shown with."""
        seen = 0
        for document in DOCUMENTS:
            for code in spoken(document):
                for command, rest in re.findall(r"\bmgwfbp ([a-z]+)\b([^|;&)\n]*)", re.sub(r"\s# .*", "", code.replace("\\\n", " "))):
                    usage = help_of(command)
                    self.assertIsNotNone(usage, f"{document.name}: mgwfbp {command}{rest}")
                    mine = rest.split(" -- ")[0].split(" ./")[0].split("python3")[0]
                    for option in re.findall(r"(?<=\s)--[a-z][a-z-]*", mine):
                        seen += 1
                        self.assertRegex(usage, re.escape(option) + r"\b", f"{document.name}: mgwfbp {command}{rest}")
        self.assertGreater(seen, 80)

    def test_names_of_the_library(self):
        """Functions and variables that documents name exist."""
        def words(paths):
            return set(re.findall(r"\w+", "".join(path.read_text() for path in paths)))
        public = words((ROOT / "include" / "mgwfbp").iterdir())
        known = public | words([*(path for folder in ("src", "python", "tests/CMakeLists.txt", "CMakeLists.txt")
                                  for path in [ROOT / folder, *sorted((ROOT / folder).rglob("*"))]
                                  if path.is_file() and path.suffix in (".c", ".h", ".py", ".txt"))])
        for document in DOCUMENTS:
            text = document.read_text()
            functions = set(re.findall(r"\bmgw_[a-z_]+[a-z]\b(?!_)", text))
            self.assertEqual(functions - (known if document.name == "CONTRIBUTING.md" else public), set(), document)
            self.assertEqual(set(re.findall(r"\bMGWFBP_[A-Z_]+[A-Z]\b", text)) - known, set(), document)

    def test_the_replay_of_the_readme(self):
        """The same command with fewer steps: what does not depend on the machine is as shown."""
        (command, shown), = steps(blocks(ROOT / "README.md", "text")[0])
        printed = run_in(self.folder, re.sub(r"--steps \d+ --rounds \d+", "--steps 1 --rounds 1", command))

        def facts(text):
            head, _, table = text.partition("\n\n")
            return ([line for line in head.splitlines() if not line.startswith("workers")],
                    [line.split()[:4] for line in table.splitlines()])
        self.assertEqual(facts(printed), facts(shown))
        self.assertIn("all averages were correct", printed)

    def test_a_trace_from_a_profile(self):
        with gzip.open(FIXTURES / "profiles" / "torch-2.13-cpu-ddp.json.gz") as packed:
            (self.folder / "profile.json").write_bytes(packed.read())
        shutil.copy(FIXTURES / "profiles" / "torch-2.13-cpu-tensors.json", self.folder / "parameters.json")
        text = (ROOT / "docs/guide/advise.md").read_text()
        commands = re.findall(r"^    (mgwfbp .*(?:profile|mine)\.json.*)$", text, re.M)
        self.assertEqual(len(commands), 2)
        for command in commands:
            printed = run_in(self.folder, f"set -e; {command}; echo ended")
            self.assertTrue(printed.endswith("ended\n"), printed)
        self.assertIn("DDP's default", printed)

    def test_members_of_clusters(self):
        members = re.findall(r'^    ("(?:collectives|casts)": .*)$', (ROOT / "docs/reference/formats.md").read_text(), re.M)
        self.assertEqual(len(members), 2)
        for member in members:
            member = member.replace(", …", ', {"bytes": 1048576, "seconds": 8e-4}')
            path = self.folder / "cluster.json"
            path.write_text('{"format": "mgwfbp-cluster-1", "name": "shown", "workers": 4, '
                            f'"cost": {{"a_s": 1e-3, "b_s_per_byte": 1e-9}}, {member}}}')
            json.loads(path.read_text())
            done = run("show", path)
            self.assertEqual((done.returncode, done.stderr), (0, ""), member)

    def test_files_that_comments_name(self):
        """Headers and sources point at documents that are there."""
        for folder in ("include", "src", "python", "examples"):
            for path in sorted((ROOT / folder).rglob("*")):
                if path.suffix in (".c", ".h", ".py", ".js", ".html"):
                    for name in re.findall(r"\bdocs/[\w/.-]+\.md\b", path.read_text()):
                        self.assertTrue((ROOT / name).exists(), f"{path}: {name}")


if __name__ == "__main__":
    unittest.main()
