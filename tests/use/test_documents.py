"""The documents are correct: their commands are run, and their output is compared.

`python3 tests/use/test_documents.py --write` updates the output in the documents."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import BUILD, MGWFBP, ROOT

DOCUMENTS = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "python/README.md")),
             *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(document, language):
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.M | re.S)


def anchors(document):
    """What GitHub makes of the headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.M | re.S)
    return {re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def steps(block):
    """Commands ("$ …") with the output that the document shows behind them."""
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command = command[:-1] + more
        yield command, output


def same(shown, printed):
    """A line "..." stands for any lines."""
    pattern = "".join("(?:.*\n)*?" if line == "..." else re.escape(line) + "\n"
                      for line in shown.splitlines())
    return re.fullmatch(pattern, printed) is not None


@contextlib.contextmanager
def folder_of(document):
    """Where its commands run: with the text files that lie beside it."""
    with tempfile.TemporaryDirectory(prefix="mgwfbp-doc-") as folder:
        for path in document.parent.glob("*.txt"):
            shutil.copy(path, folder)
        yield folder


def run_in(folder, command):
    environment = dict(os.environ, PATH=f"{MGWFBP.parent}:{os.environ['PATH']}", LC_ALL="C")
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                          timeout=300).stdout


class Documents(unittest.TestCase):
    maxDiff = None

    def test_commands(self):
        for document in DOCUMENTS:
            with folder_of(document) as folder:
                for block in blocks(document, "console"):
                    for command, shown in steps(block):
                        printed = run_in(folder, command)
                        if not same(shown, printed):
                            self.assertEqual(shown, printed, f"{document.name}: $ {command}")

    def test_documents_have_commands(self):
        for document, least in (("README.md", 1), ("docs/guide/tutorial.md", 5), ("docs/guide/advise.md", 5)):
            commands = [c for b in blocks(ROOT / document, "console") for c, _ in steps(b)]
            self.assertGreaterEqual(len(commands), least, document)

    def test_unknown_words_are_refused(self):
        """Before anything is installed or built."""
        for command in ("./run test gcc", "./run demo", "tests/all gcd", "tests/fresh-machine"):
            done = subprocess.run(command.split(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            self.assertEqual((done.returncode, done.stdout), (2, b""), command)

    def test_c_examples_are_the_files(self):
        shown = blocks(ROOT / "README.md", "c")
        self.assertEqual(shown, [(ROOT / "examples" / "plan.c").read_text()])
        done = subprocess.run([BUILD / "bin" / "example_plan"], stdout=subprocess.PIPE,
                              encoding="utf-8", timeout=60)
        self.assertEqual(done.returncode, 0)
        self.assertIn("ms per step", done.stdout)

    def test_the_paper_s_tables_are_current(self):
        """docs/explanation/paper.md and its pictures are what bench/paper.py writes."""
        with tempfile.TemporaryDirectory(prefix="mgwfbp-paper-") as folder:
            subprocess.run([sys.executable, ROOT / "bench" / "paper.py", MGWFBP, folder],
                           check=True, timeout=300)
            for written in Path(folder).iterdir():
                self.assertEqual(written.read_text(), (ROOT / "docs/explanation" / written.name).read_text())

    def test_links_lead_somewhere(self):
        """Files exist, and so do the headings that #anchors name."""
        for document in DOCUMENTS:
            for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", document.read_text()):
                if target.startswith(("http:", "https:")):
                    continue
                path = document.parent / target if target else document
                self.assertTrue(path.exists(), f"{document}: {target}")
                if anchor:
                    self.assertIn(anchor, anchors(path), f"{document}: {target}#{anchor}")

    def test_the_tree_in_the_readme_is_the_tree(self):
        readme = (ROOT / "README.md").read_text()
        for folder in (ROOT / "src").iterdir():
            if folder.is_dir():
                self.assertIn(f"src/{folder.name}/", readme)


def write_outputs(document):
    """Puts what the commands print now into the document."""
    with folder_of(document) as folder:
        def update(match):
            made = []
            for command, shown in steps(match[1]):
                printed = run_in(folder, command)
                made.append(f"$ {command}\n{shown if same(shown, printed) else printed}")
            return "```console\n" + "".join(made) + "```"
        text = document.read_text()
        document.write_text(re.sub(r"^```console\n(.*?)^```", update, text, flags=re.M | re.S))


if __name__ == "__main__":
    if "--write" in sys.argv:
        for one in DOCUMENTS:
            write_outputs(one)
    else:
        unittest.main()
