"""The folders of src/ only depend on each other as documented in CONTRIBUTING.md.

`python3 tests/use/test_layers.py --write` updates the dependencies in that diagram."""

import re
import sys
import unittest

from support import ROOT

CONTRIBUTING = ROOT / "CONTRIBUTING.md"
README = ROOT / "README.md"

# Public headers that are not called like their folder.
PUBLIC_OF = {"advise": "sim", "outlook": "sim", "profile": "trace", "trial": "tune", "status": "base", "text": "base", "dtype": "base", "layout": "flow", "notes": "flow", "shards": "flow"}

LINE = re.compile(r"^src/(?P<name>\w+)/ +(?P<purpose>.*?)(?: +<- (?P<uses>[\w ]+))?$")


class Folder:
    """A line of the diagram: "src/NAME/  PURPOSE  <- FOLDERS THAT IT USES"."""

    def __init__(self, match, program):
        self.name, self.purpose = match["name"], match["purpose"]
        self.uses = set((match["uses"] or "").split())
        self.program = program  # behind the empty line: what uses the library from outside


def picture():
    """The folders of CONTRIBUTING.md's block "layers", in order."""
    block = re.search(r"^```layers\n(.*?)^```", CONTRIBUTING.read_text(), re.M | re.S)[1]
    library, _, program = block.partition("\n\n")
    return [Folder(LINE.match(line), part is program)
            for part in (library, program) for line in part.splitlines()]


def readme_folders():
    """(name, purpose) of README.md's picture, in order."""
    text = README.read_text().partition("## How it is built\n")[2].partition("\n## ")[0]
    return re.findall(r"^  src/(\w+)/ +(.*)$", text, re.M)


def public_headers():
    return sorted((ROOT / "include" / "mgwfbp").glob("*.h"))


def public_folder(header):
    return PUBLIC_OF.get(header, header)


def files():
    """(folder, path) of all C in src/ and include/. The header that includes all others is no folder's."""
    for path in sorted((ROOT / "src").rglob("*.[ch]")):
        yield path.relative_to(ROOT / "src").parts[0], path
    for path in public_headers():
        if path.stem != "mgwfbp":
            yield public_folder(path.stem), path


def includes(text):
    """(folder, whether it is private) of each include of ours; a folder of None: none was named."""
    for quoted in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
        yield (quoted.split("/")[0] if "/" in quoted else None), True
    for header in re.findall(r"^\s*#\s*include\s+<mgwfbp/(\w+)\.h>", text, re.M):
        for one in ([path.stem for path in public_headers()] if header == "mgwfbp" else [header]):
            if one != "mgwfbp":
                yield public_folder(one), False


def graph(sources):
    """{(user, used, private): a file that does it} for (folder, path, text) of sources."""
    edges = {}
    for folder, path, text in sources:
        for used, private in includes(text):
            if used != folder:
                edges.setdefault((folder, used, private), str(path))
    return edges


def tree():
    return graph((folder, path.relative_to(ROOT), path.read_text()) for folder, path in files())


def complaints(folders, edges):
    """What is wrong with these edges, in sentences."""
    order = {folder.name: place for place, folder in enumerate(folders)}
    by_name = {folder.name: folder for folder in folders}
    found = []
    for (user, used, private), path in sorted(edges.items(), key=str):
        if used is None:
            found.append(f"{path} includes a header without naming its folder")
        elif user not in order or used not in order:
            found.append(f"{path}: {user if user not in order else used} is not in CONTRIBUTING.md's picture")
        elif order[used] > order[user]:
            found.append(f"{path}: {user} uses {used}, which is behind it")
        elif private and by_name[user].program and not by_name[used].program and used != "base":
            found.append(f"{path}: {user} uses a private header of {used}")
    reach = reachable(edges)
    for left, right in (("sim", "engine"), ("engine", "sim")):
        if right in reach.get(left, ()):
            found.append(f"{left} knows {right}")
    return found


def reachable(edges):
    """Each folder with all that it uses, directly or not."""
    reach = {}
    for user, used, _ in edges:
        reach.setdefault(user, set()).add(used)
    grown = True
    while grown:
        grown = False
        for used in reach.values():
            more = set().union(*(reach.get(one, set()) for one in used)) - used
            used |= more
            grown = grown or bool(more)
    return reach


def uses(edges, name):
    return {used for user, used, _ in edges if user == name}


class Layers(unittest.TestCase):
    maxDiff = None

    def test_order(self):
        self.assertEqual(complaints(picture(), tree()), [])

    def test_picture_is_the_tree(self):
        """Every folder is in the picture, every one in it is there, with what it uses."""
        there = {path.name for path in (ROOT / "src").iterdir() if path.is_dir()}
        self.assertEqual({folder.name for folder in picture()}, there)
        edges = tree()
        for folder in picture():
            with self.subTest(folder=folder.name):
                self.assertEqual(folder.uses, uses(edges, folder.name),
                                 "python3 tests/use/test_layers.py --write would put it right")

    def test_readme(self):
        """README.md's picture has the same folders, in the same order, for the same purposes."""
        self.assertEqual(readme_folders(), [(folder.name, folder.purpose) for folder in picture()])

    def test_public_headers_belong_to_a_folder(self):
        names = {folder.name for folder in picture()}
        for path in public_headers():
            if path.stem != "mgwfbp":
                self.assertIn(public_folder(path.stem), names, path)

    def test_mistakes_are_found(self):
        """One file more would break each rule."""
        for folder, text, complaint in [
                ("plan", '#include "engine/engine.h"\n', "plan uses engine, which is behind it"),
                ("plan", "#include <mgwfbp/engine.h>\n", "plan uses engine, which is behind it"),
                ("base", "#include <mgwfbp/mgwfbp.h>\n", "base uses plan, which is behind it"),
                ("report", '  #  include "web/planner.h"\n', "report uses web, which is behind it"),
                ("trace", '#include "trace.h"\n', "without naming its folder"),
                ("attic", "#include <mgwfbp/status.h>\n", "attic is not in CONTRIBUTING.md's picture"),
                ("plan", '#include "attic/old.h"\n', "attic is not in CONTRIBUTING.md's picture"),
                ("cli", '#include "plan/problem.h"\n', "cli uses a private header of plan"),
                ("job", '#include "engine/engine.h"\n', "job uses a private header of engine"),
                ("train", '#include "cli/command.h"\n', "train uses cli, which is behind it"),
                ("sim", "#include <mgwfbp/engine.h>\n", "sim knows engine"),
                ("engine", "#include <mgwfbp/sim.h>\n", "engine knows sim")]:
            with self.subTest(folder=folder, text=text):
                sources = [(one, path, path.read_text()) for one, path in files()]
                found = complaints(picture(), graph([*sources, (folder, "new.c", text)]))
                self.assertTrue(any(complaint in line for line in found), found)


def write_picture():
    edges, text = tree(), CONTRIBUTING.read_text()
    folders = picture()
    order = [folder.name for folder in folders]
    width = max(len(folder.purpose) for folder in folders)
    lines = []
    for folder in folders:
        used = sorted(uses(edges, folder.name), key=order.index)
        line = f"src/{folder.name + '/':<11} {folder.purpose:<{width}}" + ("  <- " + " ".join(used) if used else "")
        lines.append("\n" * (folder.program and not folders[len(lines) - 1].program) + line.rstrip() + "\n")
    block = "```layers\n" + "".join(lines) + "```"
    CONTRIBUTING.write_text(re.sub(r"^```layers\n.*?^```", lambda _: block, text, flags=re.M | re.S))


if __name__ == "__main__":
    if "--write" in sys.argv:
        write_picture()
    else:
        unittest.main()
