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
import os
import pathlib
import re
import subprocess
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


def expected_skips(path, kernel):
    """Lines `pattern: reason`; a pattern may hold * and ?, and be of one old kernel: `4.18 Node.*`."""
    patterns = []
    if path.exists():
        for line in path.read_text().splitlines():
            if line.strip() and not line.startswith("#"):
                pattern, _, reason = line.partition(": ")
                if not reason.strip():
                    raise SystemExit(f"{path}: no reason given: {line}")
                words = pattern.split()
                if len(words) == 1 or words[0] == kernel:
                    patterns.append(words[-1])
    return patterns


def program_of(test):
    """What Meson ran, without the wrapper of ./dev test --old-kernel."""
    command = test["command"]
    return command[2] if pathlib.Path(command[0]).name == "old-kernel" else command[0]


def collect(results, log):
    by_program = {}
    for path in sorted(results.glob("*.xml")):
        by_program[path.stem] = gtest_cases(path)
    cases = [case for group in by_program.values() for case in group]
    if not log.exists():
        return cases + [Case("meson test", "failed", (results / "meson.log").read_text())]
    for line in log.read_text().splitlines():
        test = json.loads(line)
        mine = by_program.get(pathlib.Path(program_of(test)).name)
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


def say_excluded(path, where, log, programs):
    """Counts the cases that were left out, by the lines that leave them out."""
    names = []
    for line in log.read_text().splitlines() if log.exists() else []:
        program = program_of(json.loads(line))
        if pathlib.Path(program).name not in programs:
            continue
        listed = subprocess.run([program, "--gtest_list_tests"], capture_output=True, text=True,
                                env=os.environ | {"GTEST_FILTER": "*"}, timeout=60, check=False)
        suite = ""
        for word in (l.split("#")[0].rstrip() for l in listed.stdout.splitlines()):
            if word.startswith("  "):
                names.append(suite + word.strip())
            elif word.endswith("."):
                suite = word
    for line in path.read_text().splitlines():
        found = re.fullmatch(r"([a-z0-9.]+) ([^:]+): (.+)", line)
        if found and found[1] in ("any", where):
            count = sum(fnmatch.fnmatchcase(name, found[2]) for name in names)
            print(f"excluded: {count} of {found[2]}: {found[3]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--results", type=pathlib.Path, required=True)
    parser.add_argument("--log", type=pathlib.Path, required=True)
    parser.add_argument("--expected-skips", type=pathlib.Path, required=True)
    parser.add_argument("--strict-skips", action="store_true")
    parser.add_argument("--left", default="", help="what the tests left behind, one a line")
    parser.add_argument("--reports", default="", help="what sanitizers said")
    parser.add_argument("--excluded", type=pathlib.Path, help="cases that a build cannot run")
    parser.add_argument("--where", default="", help="the build's sanitizer, or the old kernel")
    args = parser.parse_args()

    cases = collect(args.results, args.log)
    patterns = expected_skips(args.expected_skips, args.where)
    if args.left:
        cases.append(Case("dev.nothing_is_left_behind", "failed", args.left))
    if args.reports:
        cases.append(Case("sanitizer.no_report", "failed", args.reports))
    if args.excluded:
        say_excluded(args.excluded, args.where, args.log,
                     {path.stem for path in args.results.glob("*.xml")})
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
