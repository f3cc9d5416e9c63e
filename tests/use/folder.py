"""Shared by tests of the command: a temporary folder, and a small trace and cluster."""

import json
import shutil
import tempfile
import unittest
from pathlib import Path

RESNET = "resnet50-b32-fp32-h200"
SVG = "{http://www.w3.org/2000/svg}"


class Folder(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="mgwfbp-test-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def refused(self, done, *parts):
        """Exit status 2, one line on standard error that holds the parts, nothing printed."""
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for part in parts:
            self.assertIn(str(part), done.stderr)


def small_trace(**changes):
    """The counter-example of docs/explanation/model.md, in units of 20 bytes."""
    trace = {"format": "mgwfbp-trace-1", "model": "counter-example", "device": "paper",
             "batch": 1, "precision": "fp32", "gradient_dtype": "f32", "forward_s": 0,
             "tensors": [{"name": "c", "count": 4, "backward_s": 0},
                         {"name": "b", "count": 5, "backward_s": 0.9},
                         {"name": "a", "count": 5, "backward_s": 0.9}]}
    trace.update(changes)
    return trace


def small_cluster(**changes):
    cluster = {"format": "mgwfbp-cluster-1", "name": "unit", "workers": 2,
               "cost": {"a_s": 1, "b_s_per_byte": 0.05}}
    cluster.update(changes)
    return cluster
