"""The installed files work: pkg-config, CMake package, C++, man page."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import BUILD, ROOT

PROJECT = """cmake_minimum_required(VERSION 3.22)
project(user C)
find_package(mgwfbp 0.1 REQUIRED)
add_executable(user plan.c)
target_link_libraries(user PRIVATE mgwfbp::mgwfbp)
"""

ONE_HEADER = "#include <mgwfbp/{}>\nint main(void) {{ return 0; }}\n"


def run(*command, cwd, **environment):
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=dict(os.environ, **environment),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                          timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="mgwfbp-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.prefix = cls.folder / "usr"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix, cwd=cls.folder)
        shutil.copy(ROOT / "examples" / "plan.c", cls.folder)
        cls.libraries = next(cls.prefix.glob("lib/**/mgwfbp.pc")).parent.parent

    def test_what_is_there(self):
        for name in ("bin/mgwfbp", "include/mgwfbp/mgwfbp.h", "share/man/man1/mgwfbp.1",
                     "share/bash-completion/completions/mgwfbp"):
            self.assertTrue((self.prefix / name).is_file(), name)

    def test_command_runs_from_there(self):
        out = run(self.prefix / "bin" / "mgwfbp", "list", cwd=self.folder)
        self.assertIn("paper-2-10gbe", out)

    def test_command_runs_where_it_was_moved_to(self):
        """With its library, not with that of the build."""
        moved = self.folder / "moved"
        shutil.copytree(self.prefix, moved, symlinks=True)
        linked = run("ldd", moved / "bin" / "mgwfbp", cwd=self.folder)
        line, = [line for line in linked.splitlines() if "libmgwfbp" in line]
        found = os.path.realpath(line.split("=>")[1].split()[0])
        self.assertTrue(found.startswith(os.path.realpath(moved)), line)

    def test_cmake_package(self):
        (self.folder / "CMakeLists.txt").write_text(PROJECT)
        run("cmake", "-G", "Ninja", "-S", ".", "-B", "b", f"-DCMAKE_PREFIX_PATH={self.prefix}",
            cwd=self.folder)
        run("cmake", "--build", "b", cwd=self.folder)
        self.assertIn("ms per step", run("b/user", cwd=self.folder))

    def test_pkg_config(self):
        """Alone: a machine that has the package need not have what it was built with."""
        flags = run("pkg-config", "--cflags", "--libs", "mgwfbp", cwd=self.folder,
                    PKG_CONFIG_PATH="", PKG_CONFIG_LIBDIR=str(self.libraries / "pkgconfig")).split()
        run("cc", "plan.c", "-o", "user", *flags, cwd=self.folder)
        out = run("./user", cwd=self.folder)
        self.assertIn("ms per step", out)

    def test_every_header_stands_alone(self):
        for header in (self.prefix / "include" / "mgwfbp").iterdir():
            for compiler, suffix in (("cc", "c"), ("c++", "cc")):
                source = self.folder / f"header.{suffix}"
                source.write_text(ONE_HEADER.format(header.name))
                run(compiler, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I",
                    self.prefix / "include", "-c", source, "-o", "header.o", cwd=self.folder)

    def test_only_our_names_are_exported(self):
        library = next(self.libraries.glob("libmgwfbp.so"))
        symbols = run("nm", "-D", "--defined-only", library, cwd=self.folder).split("\n")
        names = [line.split()[-1] for line in symbols if line.strip()]
        self.assertIn("mgw_plan_make", names)
        self.assertEqual([n for n in names if not n.startswith("mgw_")], [])
        self.assertNotIn("mgw_json_read", names)


if __name__ == "__main__":
    unittest.main()
