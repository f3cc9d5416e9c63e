"""torch.compile: the situations of worker_compile.py on both transports, and where graphs are cut.

With a PyTorch that is not the system's:  cd tests/torch && /path/to/python -m unittest -v test_compile
or for all tests of the package:  cmake --preset release -DMGWFBP_PYTHON=/path/to/python
"""

import random
import shutil
import unittest

from support import TORCH, WHY, launch_json

COMPILES = False
if TORCH:
    import torch

    from mgwfbp.torch import compiled
    COMPILES = hasattr(torch, "compile") and tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)
    WHY = f"PyTorch {torch.__version__} has no torch.compile that is supported: 2.4 or later; MGWFBP_PYTHON names another Python"
HEAVY = ["test_orders", "test_tied", "test_order_and_time"]  # what is worth the time that Inductor takes


@unittest.skipUnless(COMPILES, WHY)
class Compiled(unittest.TestCase):
    def run_with(self, *arguments, least=1):
        for rank, results in launch_json(2, "worker_compile.py", *arguments, timeout=580).items():
            self.assertGreaterEqual(len(results), least)
            for situation, result in results.items():
                with self.subTest(situation=situation, rank=rank):
                    self.assertEqual(result, "ok")

    def test_torch(self):
        self.run_with("torch", "aot_eager", least=19)

    def test_native(self):
        self.run_with("native", "aot_eager", least=19)

    @unittest.skipUnless(shutil.which("g++"), "Inductor needs g++")
    def test_torch_inductor(self):
        self.run_with("torch", "inductor", *HEAVY, least=len(HEAVY))

    @unittest.skipUnless(shutil.which("g++"), "Inductor needs g++")
    def test_native_inductor(self):
        self.run_with("native", "inductor", *HEAVY, least=len(HEAVY))


@unittest.skipUnless(TORCH, WHY)
class Cuts(unittest.TestCase):
    """cut(bytes of gradients by node, bytes that cross by node, bytes of a piece): places where pieces begin."""

    def sizes(self, completed, cuts):
        """Of pieces, as the backward pass meets them."""
        return [sum(completed[begin:end]) for begin, end in zip([*cuts, 0], [len(completed), *cuts])]

    def test_even_layers(self):
        """One piece a layer, but for the last layers, whose gradients come first and are to travel soon."""
        self.assertEqual(compiled.cut([100] * 8, [1.0] * 8, 100), [7, 6, 5, 4, 3, 2, 1])
        self.assertEqual(compiled.cut([100] * 8, [1.0] * 8, 200), [7, 5, 3, 1])

    def test_little_crosses(self):
        """Between blocks of four, where there is one value, rather than inside of them; the first and last piece are quarters."""
        self.assertEqual(compiled.cut([25] * 24, [1.0, 9.0, 9.0, 9.0] * 6, 100), [23, 20, 16, 12, 8, 4, 1])

    def test_what_belongs_together(self):
        """Not between an operation that returns several values, and who takes them apart."""
        never = float("inf")
        self.assertEqual(compiled.cut([100] * 4, [1.0, never, never, 1.0], 100), [3])
        self.assertEqual(compiled.cut([100] * 4, [1.0, never, never, never], 100), [])

    def test_small(self):
        self.assertEqual(compiled.cut([10] * 4, [1.0] * 4, 100), [])
        self.assertEqual(compiled.cut([], [], 100), [])

    def test_any(self):
        generator = random.Random(3)
        for _ in range(300):
            nodes = generator.randint(1, 60)
            completed = [generator.choice((0, 0, generator.randint(1, 100))) for _ in range(nodes)]
            crossing = [generator.choice((1.0, 5.0, float("inf"))) for _ in range(nodes)]
            piece = generator.randint(1, 300)
            cuts = compiled.cut(completed, crossing, piece)
            self.assertEqual(cuts, sorted(set(cuts), reverse=True))
            self.assertTrue(all(0 < place < nodes and crossing[place] < float("inf") for place in cuts))
            sizes = self.sizes(completed, cuts)
            self.assertTrue(all(sizes) or not cuts, (completed, cuts))  # none without a gradient
            if all(value < float("inf") for value in crossing):
                largest = 1.5 * piece + max(completed)
                self.assertTrue(all(size <= largest for size in sizes), (sizes, piece))


if __name__ == "__main__":
    unittest.main()
