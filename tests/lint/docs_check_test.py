"""Shows docs_check a tree that breaks each of its rules."""
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
READ = [
    "docs",
    *(str(path.relative_to(ROOT)) for path in ROOT.glob("core/*/CMakeLists.txt")),
    "core/metrics/metric_names.h",
    "core/guard/reason.cc",
    "proto/kvbridge/v1",
    "client/cpp/transfer.h",
    "client/python/README.md",
    "deploy/helm/kvbridge/README.md",
]


class DocsCheckTest(unittest.TestCase):
    def setUp(self):
        self.tree = Path(tempfile.mkdtemp(prefix="kvbridge-docs-"))
        self.addCleanup(shutil.rmtree, self.tree)
        for name in READ:
            source, target = ROOT / name, self.tree / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)

    def check(self):
        run = subprocess.run([sys.executable, HERE / "docs_check.py", self.tree], capture_output=True, text=True)
        return run.returncode, run.stdout

    def edit(self, name, old, new):
        path = self.tree / name
        text = path.read_text()
        self.assertIn(old, text)
        path.write_text(text.replace(old, new))

    def assert_finds(self, *words):
        code, output = self.check()
        self.assertEqual(code, 1, output)
        for word in words:
            self.assertIn(word, output)

    def test_an_untouched_copy_passes(self):
        code, output = self.check()
        self.assertEqual(code, 0, output)

    def test_a_renamed_metric(self):
        self.edit("core/metrics/metric_names.h", "kvbridge_fallbacks_total", "kvbridge_fallback_total")
        self.assert_finds("kvbridge_fallback_total is in the code", "kvbridge_fallbacks_total is in the page")

    def test_a_metric_of_another_type(self):
        self.edit("docs/metrics.md", "`kvbridge_state` | gauge", "`kvbridge_state` | counter")
        self.assert_finds("kvbridge_state is a gauge")

    def test_a_reason_that_no_page_explains(self):
        self.edit("docs/errors.md", "| `overload` |", "| `overloaded` |")
        self.assert_finds("overload is in the code", "overloaded is in the page")

    def test_a_setting_that_no_page_explains(self):
        self.edit("docs/configuration.md", "`limits.max_tokens`", "`limits.most_tokens`")
        self.assert_finds("limits.max_tokens is in the code")

    def test_a_folder_that_no_page_explains(self):
        self.edit("docs/architecture.md", "| `core/memory` |", "| `core/memories` |")
        self.assert_finds("memory is in the code", "memories is in the page")

    def test_a_broken_link(self):
        self.edit("docs/architecture.md", "(concurrency.md)", "(concurrent.md)")
        self.assert_finds("link to concurrent.md")


if __name__ == "__main__":
    unittest.main()
