"""Adds the C library: records the path of an installed one of the same version, otherwise builds it from the checkout."""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parent
VERSION = "0.1.0"


def installed():
    """The folder of an installed libmgwfbp of our version, or None. Wheels for other machines bundle the library
    (packaging/build)."""
    if os.environ.get("MGWFBP_BUNDLE"):
        return None
    version, folder = (subprocess.getoutput(f"pkg-config {question} mgwfbp")
                       for question in ("--modversion", "--variable=libdir"))
    return folder if version == VERSION else None


def build(folder):
    """Builds the library from the checkout around us."""
    if not (CHECKOUT / "CMakeLists.txt").exists():
        raise SystemExit("libmgwfbp is not installed (pkg-config does not find it), and its source is not next to this "
                         "package: install it first, or install from a checkout")
    if not shutil.which("cmake"):
        raise SystemExit("libmgwfbp is not installed, and cmake, which is needed to build it, is missing")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []  # else make
    subprocess.run(["cmake", "-S", CHECKOUT, "-B", folder, *generator, "-DMGWFBP_TESTS=OFF", "-DMGWFBP_BENCH=OFF"],
                   check=True)
    subprocess.run(["cmake", "--build", folder, "--parallel", str(os.cpu_count()), "--target", "mgwfbp"], check=True)
    return folder / "src" / f"libmgwfbp.so.{VERSION}"


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        editable = getattr(self, "editable_mode", False)  # then the package is in the checkout
        package = (HERE if editable else Path(self.build_lib).resolve()) / "mgwfbp"
        note, bundled = package / "library.txt", package / "libmgwfbp.so"
        for file in (note, bundled):  # left from an earlier build
            file.unlink(missing_ok=True)
        found = installed()
        if found:
            note.write_text(str(Path(found).resolve() / f"libmgwfbp.so.{VERSION}") + "\n")
        else:
            shutil.copyfile(build(Path(self.build_lib).resolve().parent / "libmgwfbp"), bundled)


# The package contains a library for this platform only.
WithLibrary = type("WithLibrary", (Distribution,), {"has_ext_modules": lambda self: True})

setup(cmdclass={"build_py": BuildWithLibrary}, distclass=WithLibrary)
