#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Says what a test run did: the failed cases with their logs, the skips, and one last line.

Cases come from gtest's XML files; a program that died before it wrote its file, and a test that is no
gtest program, come from Meson's log and count as one case each. What such a test prints after
"summary: " is shown when it passes, too.
"""
import argparse
import collections
import fnmatch
import json
import pathlib
import xml.etree.ElementTree as ElementTree

Case = collections.namedtuple("Case", "name state text")
LOG_LINES = 150


def gtest_cases(path):
    """The cases of one XML file; an unfinished file counts as a failure."""
    try:
        tree = ElementTree.parse(path)
    except ElementTree.ParseError as error:
        return [Case(path.stem, "failed", f"{path.name}: {error}")]
    cases = []
    for case in tree.iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        failures = [node.text or node.get("message", "") for node in case.findall("failure")]
        skipped = [node.text or node.get("message", "") for node in case.findall("skipped")]
        if failures:
            cases.append(Case(name, "failed", "\n".join(failures)))
        elif skipped or case.get("result") == "skipped":
            cases.append(Case(name, "skipped", " ".join(" ".join(skipped).split())))
        elif case.get("status") == "run":
            cases.append(Case(name, "passed", ""))
    return cases


def expected_skips(path):
    """Lines `pattern: reason`; a pattern may hold * and ?."""
    patterns = []
    if path.exists():
        for line in path.read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                pattern, _, reason = line.partition(": ")
                if not reason.strip():
                    raise SystemExit(f"{path}: no reason given: {line}")
                patterns.append(pattern.strip())
    return patterns


def collect(results, log):
    by_program = {}
    for path in sorted(results.glob("*.xml")):
        by_program[path.stem] = gtest_cases(path)
    cases = [case for group in by_program.values() for case in group]
    if not log.exists():
        return cases + [Case("meson test", "failed", (results / "meson.log").read_text())]
    for line in log.read_text().splitlines():
        test = json.loads(line)
        mine = by_program.get(pathlib.Path(test["command"][0]).name)
        text = (test.get("stdout", "") + test.get("stderr", "")).splitlines()[-LOG_LINES:]
        if test["result"] in ("OK", "EXPECTEDFAIL"):
            if mine is None:
                told = [l[9:] for l in test.get("stdout", "").splitlines() if l.startswith("summary: ")]
                cases.append(Case(test["name"], "passed", "\n".join(told)))
        elif test["result"] == "SKIP":
            cases.append(Case(test["name"], "skipped", " ".join(text[-1:])))
        elif mine is None or all(case.state != "failed" for case in mine):
            what = f"{test['result']}, exit status {test.get('returncode')}, {test['duration']:.0f} s"
            cases.append(Case(test["name"], "failed", "\n".join([what] + text)))
    return cases


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--log", type=pathlib.Path, required=True)
    parser.add_argument("--expected-skips", type=pathlib.Path, required=True)
    parser.add_argument("--strict-skips", action="store_true")
    parser.add_argument("--left", default="", help="what the tests left behind, one a line")
    args = parser.parse_args()

    cases = collect(args.results, args.log)
    patterns = expected_skips(args.expected_skips)
    if args.left:
        cases.append(Case("dev.nothing_is_left_behind", "failed", args.left))
    checked = []
    for case in cases:
        if case.state == "skipped":
            known = any(fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns)
            print(f"skipped{'' if known else ' (unexpected)'}: {case.name}: {case.text}")
            if args.strict_skips and not known:
                case = case._replace(state="failed", text="skipped unexpectedly: " + case.text)
        checked.append(case)
    for case in checked:
        if case.state == "passed" and case.text:
            print(f"{case.name}: {case.text}")
    for case in checked:
        if case.state == "failed":
            print(f"\nFAILED {case.name}\n{case.text}")
    count = collections.Counter(case.state for case in checked)
    if not checked:
        print("no test ran")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if count["failed"] or not checked else 0


if __name__ == "__main__":
    raise SystemExit(main())
