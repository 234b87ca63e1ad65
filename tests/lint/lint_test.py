"""Each rule of lint.py on a tree that keeps it and on one that breaks it."""
import tempfile
import unittest
from pathlib import Path

import lint

# Joined here so that this file keeps the rules itself.
LATER = "TO" + "DO"
MACHINE = "/ro" + "ot/x"


class LintTest(unittest.TestCase):
    def problems(self, check, tree):
        with tempfile.TemporaryDirectory() as root:
            for path, text in tree.items():
                file = Path(root) / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            return list(check(Path(root)))

    def expect(self, check, tree, *parts):
        problems = self.problems(check, tree)
        self.assertEqual(len(problems), len(parts), problems)
        for problem, part in zip(problems, parts):
            self.assertIn(part, problem)

    def test_arrows_that_are_allowed(self):
        self.expect(lint.check_arrows, {
            "core/kv/a.cc": '#include "core/base/b.h"\n#include "core/kv/a.h"\n#include <vector>\n',
            "client/cli/a.cc": '#include "client/cpp/c.h"\n#include "core/kv/a.h"\n',
            "server/a.cc": '#include "core/kv/a.h"\n#include "kvbridge/v1/types.pb.h"\n',
            "tests/core/a.cc": '#include "server/a.h"\n#include "client/cpp/c.h"\n',
        })

    def test_arrows_between_folders(self):
        for path, included in [("core/kv/a.cc", "server/a.h"), ("core/kv/a.cc", "proto/kvbridge/v1/c.h"),
                               ("core/kv/a.cc", "kvbridge/v1/types.pb.h"), ("client/cpp/a.h", "core/kv/a.h"),
                               ("client/cpp/a.h", "client/cli/a.h"), ("client/cli/a.cc", "server/a.h"),
                               ("server/a.cc", "client/cpp/c.h"), ("server/a.cc", "tests/support/t.h"),
                               ("core/kv/a.cc", "bench/b.h"), ("proto/kvbridge/v1/c.cc", "core/kv/a.h")]:
            with self.subTest(path=path, included=included):
                self.expect(lint.check_arrows, {path: f'#include <vector>\n#include "{included}"\n'},
                            f"{path}:2: ")

    def test_arrows_inside_core(self):
        self.expect(lint.check_arrows, {"core/base/a.cc": '#include "core/kv/b.h"\n'},
                    "core/base must not include core/kv/b.h")
        self.expect(lint.check_arrows, {"core/kv/a.cc": '#include "core/model/b.h"\n'}, "core/kv must not")
        self.expect(lint.check_arrows, {"core/new/a.cc": '#include "core/base/b.h"\n'}, "CORE_LAYERS")

    def test_libraries_stay_where_they_belong(self):
        for path, included in [("core/engine/a.cc", "grpcpp/grpcpp.h"),
                               ("core/engine/a.cc", "google/protobuf/message.h"),
                               ("server/a.cc", "ATen/ATen.h"), ("core/kv/a.cc", "cuda_runtime.h"),
                               ("core/kv/a.cc", "openssl/evp.h"), ("client/cpp/a.cc", "prometheus/counter.h")]:
            with self.subTest(included=included):
                self.expect(lint.check_arrows, {path: f"#include <{included}>\n"}, "may be included by")

    def test_a_test_that_never_runs(self):
        lists = "kvb_add_test(NAME t SRCS a_test.cc sub/b_test.cc ../fuzz/c_fuzz.cc)  # d_test.cc\n"
        tree = {"tests/core/CMakeLists.txt": lists, "tests/core/a_test.cc": "", "tests/core/sub/b_test.cc": ""}
        self.expect(lint.check_every_test_runs, tree)
        self.expect(lint.check_every_test_runs, tree | {"tests/core/d_test.cc": ""}, "tests/core/d_test.cc")
        self.expect(lint.check_every_test_runs, {"bench/x_bench.cc": "", "bench/CMakeLists.txt": ""},
                    "bench/x_bench.cc")

    def test_a_header_outside_the_file_set(self):
        lists = "kvb_add_library(\n  NAME kv\n  HDRS a.h sub/b.h\n  SRCS c.h)\n"
        tree = {"core/kv/CMakeLists.txt": lists, "core/kv/a.h": "", "core/kv/sub/b.h": ""}
        self.expect(lint.check_file_sets, tree)
        self.expect(lint.check_file_sets, tree | {"core/kv/c.h": ""}, "core/kv/c.h")
        self.expect(lint.check_file_sets, {"server/a.h": ""}, "no CMakeLists.txt")

    def test_budgets(self):
        self.expect(lint.check_budgets, {"core/a.h": "\n" * 250, "core/a.cc": "\n" * 600})
        self.expect(lint.check_budgets, {"core/a.h": "\n" * 251}, "251 lines, expected at most 250")
        self.expect(lint.check_budgets, {"core/a.cc": "\n" * 601}, "601 lines")

    def test_guards(self):
        self.expect(lint.check_headers_guarded, {"core/a.h": "#pragma once\n"})
        self.expect(lint.check_headers_guarded, {"core/a.h": "#ifndef A\n"}, "#pragma once")

    def test_text(self):
        self.expect(lint.check_text, {"a.md": "see https://example.org/" "root/x and ." "/wor" "k/x\n"})
        self.expect(lint.check_text, {"a.sh": f"cd {MACHINE}\n"}, "path of one machine")
        self.expect(lint.check_text, {"a.cc": f"// {LATER}: later\n"}, "unfinished")
        self.expect(lint.check_text, {"tests/data/a.md": f"{MACHINE} {LATER}\n"})

    def test_the_exit_code_says_whether_there_are_problems(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(lint.main(["lint.py", root]), 0)
            (Path(root) / "a.h").write_text("")
            self.assertEqual(lint.main(["lint.py", root]), 1)


if __name__ == "__main__":
    unittest.main()
