"""pip install ./python: with the library of an installed mgwfbp, and with one that it builds."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import BUILD, ROOT

CODE = ("import mgwfbp, mgwfbp._lib, sys\n"
        "print(mgwfbp._lib.path)\n"
        "print(mgwfbp.plan('resnet50-b32-fp32-h200', 'paper-2-10gbe').message_count, 'torch' in sys.modules)\n")
NEEDED = ("pip", "venv", "setuptools", "wheel")


def run(*command, **environment):
    clean = {k: v for k, v in os.environ.items() if k not in ("MGWFBP_LIBRARY", "PYTHONPATH")}
    done = subprocess.run([str(c) for c in command], env=dict(clean, **environment), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, encoding="utf-8", timeout=400, cwd=tempfile.gettempdir())
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@unittest.skipUnless(all(importlib.util.find_spec(name) for name in NEEDED),
                     f"{', '.join(NEEDED)} are not all there for {sys.executable} (Debian: python3-pip, python3-venv, "
                     "python3-setuptools, python3-wheel)")
class Package(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="mgwfbp-package-"))
        self.addCleanup(shutil.rmtree, self.folder)
        # A copy, so that nothing is built in the source tree.
        self.source = self.folder / "source"
        shutil.copytree(ROOT, self.source, ignore=shutil.ignore_patterns("build", "out", ".git", "node_modules"))

    def install(self, **environment):
        """Into a virtual environment, whose Python then runs the code."""
        venv = self.folder / "venv"
        run(sys.executable, "-m", "venv", "--system-site-packages", venv)
        run(venv / "bin" / "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index",
            "--disable-pip-version-check", self.source / "python", **environment)
        return run(venv / "bin" / "python", "-c", CODE).split("\n")

    def test_with_an_installed_library(self):
        run("cmake", "--install", BUILD, "--prefix", self.folder / "usr")
        libraries = next((self.folder / "usr").glob("lib/**/mgwfbp.pc")).parent.parent
        lines = self.install(PKG_CONFIG_PATH=str(libraries / "pkgconfig"))
        self.assertEqual(Path(lines[0]).resolve().parent, libraries.resolve())
        self.assertEqual(lines[1], "2 False")

    def test_with_a_library_of_its_own(self):
        lines = self.install(PKG_CONFIG_PATH="")
        self.assertIn("site-packages", lines[0])
        self.assertEqual(lines[1], "2 False")


if __name__ == "__main__":
    unittest.main()
