#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""page.py RESULTS PAGE            one HTML page with plots of all *.json in the directory RESULTS
page.py --svg RESULTS FILE      README's picture
page.py --markdown RESULTS FILE puts the table of ratios between the marks in FILE, docs/performance.md
page.py --constants RESULTS FILE puts python.json's figures into the lines of FILE, bench/scale_constants.txt, whose source they are
page.py --against OLD RESULTS [NAME...]   prints result, group and variant of all that is more than 3 % slower than
                                in OLD, outside the 99 % interval, tab separated; exit status 1 if any

A ratio is one of medians; its interval is the bootstrap's percentiles (Efron 1979), from 2,000 resamples of both
sets of samples. Fewer than five samples on a side give none. Nothing is loaded from elsewhere."""
import html
import json
import math
import os
import random
import re
import statistics
import sys

RESAMPLES = 2000
ALARM = 1.03
# What a group's other variants are compared with: the first of these that it has.
BASELINES = ["absolute", "local", "bare", "no hook", "cp", "gnu_diff", "unsupervised", "ldd", "map", "stock"]
COLOURS = {"stock": "#c0392b", "ours": "#1f6fb2", "heddle": "#1f6fb2", "bundle": "#17a08a", "absolute": "#555",
           "flat": "#8e6bbf", "empty auditor": "#b08900", "tar": "#d2691e", "one directory": "#2e8b57",
           "LD_LIBRARY_PATH": "#b03060", "copper (emulated)": "#708090", "spindle": "#6a5acd"}
PALETTE = ["#d2691e", "#6a5acd", "#2e8b57", "#b03060", "#708090", "#8b7500", "#008b8b"]
COMPUTED = " (computed)"
BEGIN, END = "<!-- measured ratios -->\n", "<!-- end of ratios -->"


def load(directory):
    runs = {}
    for name in sorted(os.listdir(directory)):
        if name.endswith(".json"):
            with open(os.path.join(directory, name), encoding="utf-8") as file:
                runs[name[:-5]] = json.load(file)
    return runs


def ratio(above, below, percent=99):
    """The ratio of the medians, and its interval or None."""
    value = statistics.median(above) / statistics.median(below)
    if len(above) < 5 or len(below) < 5:
        return value, None
    chance = random.Random(1)
    values = sorted(statistics.median(chance.choices(above, k=len(above))) /
                    statistics.median(chance.choices(below, k=len(below))) for _ in range(RESAMPLES))
    cut = round(RESAMPLES * (100 - percent) / 200)
    return value, (values[cut], values[-1 - cut])


def groups(runs):
    """(run's name, group, {variant: samples}) of all that was sampled."""
    for name, run in runs.items():
        for group, variants in sorted(run.get("samples_ms", {}).items(), key=lambda item: natural(item[0])):
            yield name, group, {variant: samples for variant, samples in variants.items() if samples}


def natural(words):
    """A key that sorts 200 before 1000."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", words)]


def baseline(variants):
    if "heddle" in variants:  # beside what users have who do nothing
        for stock in ("stock", "stock" + COMPUTED):
            if stock in variants:
                return stock
    return next((name for name in BASELINES if name in variants), None)


def ratios(runs):
    """(group, variant, baseline, ratio, interval, samples) of each variant that has something beside it."""
    for _, group, variants in groups(runs):
        base = baseline(variants)
        for variant, samples in variants.items():
            if base and variant != base and statistics.median(variants[base]) > 0:
                yield (group, variant, base, *ratio(samples, variants[base]), len(samples))


# Plots. Axes are logarithmic, or linear in places 0..n-1 for labels.


def colour(variant, at):
    return COLOURS.get(variant.removesuffix(COMPUTED), PALETTE[at % len(PALETTE)])


def text(x, y, words, anchor="middle", size=12, extra=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" {extra}>{html.escape(words)}</text>'


def number(value):
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def lines_plot(series, x_label, y_label, linear_x=False, width=640, height=360):
    """{variant: [(x, y, computed)]}: y logarithmic. Computed points are hollow."""
    points = [point for of_one in series.values() for point in of_one]
    xs = sorted({x for x, _, _ in points})
    low = 10 ** math.floor(math.log10(min(y for _, y, _ in points)))
    high = 10 ** math.ceil(math.log10(max(y for _, y, _ in points) * 1.001))
    left, right, top, bottom = 64, width - 150, 14, height - 44

    def place_x(x):
        if linear_x or len(xs) < 2:
            span = (xs[-1] - xs[0]) or 1
            return left + 12 + (right - left - 24) * (x - xs[0]) / span
        return left + 12 + (right - left - 24) * math.log(x / xs[0]) / math.log(xs[-1] / xs[0])

    def place_y(y):
        return bottom - (bottom - top) * math.log(y / low) / math.log(high / low)

    out = [f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
           'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" fill="#222">']
    decade = low
    while decade <= high * 1.001:
        y = place_y(decade)
        out.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#ddd"/>' + text(left - 6, y + 4, number(decade), "end"))
        decade *= 10
    for x in xs:
        out.append(text(place_x(x), bottom + 16, number(x)))
    out.append(text((left + right) / 2, height - 8, x_label))
    out.append(text(14, (top + bottom) / 2, y_label, extra=f'transform="rotate(-90 14 {(top + bottom) / 2})"'))
    ends = []
    for at, (variant, of_one) in enumerate(series.items()):
        paint = colour(variant, at)
        of_one = sorted(of_one)
        path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y, _ in of_one)
        out.append(f'<polyline points="{path}" fill="none" stroke="{paint}" stroke-width="1.8"/>')
        for x, y, computed in of_one:
            inside = "white" if computed else paint
            out.append(f'<circle class="{"computed" if computed else "measured"}" cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" '
                       f'r="3.5" fill="{inside}" stroke="{paint}"><title>{html.escape(variant)}, {number(x)}: {y:.4g}</title></circle>')
        ends.append([place_y(of_one[-1][1]), variant, paint])
    ends.sort()
    places = []
    for y, _, _ in ends:
        places.append(max(y + 4, places[-1] + 14 if places else 0))
    lowest = height - 4
    for at in reversed(range(len(places))):  # up again, where the picture ends
        places[at] = min(places[at], lowest)
        lowest = places[at] - 14
    for place, (_, variant, paint) in zip(places, ends):
        out.append(text(right + 8, place, variant, "start", extra=f'style="fill:{paint}"'))
    return "\n".join(out) + "\n</svg>\n"


def bars_plot(rows, unit, width=640):
    """Stacked: [(label, [(part, value)])]."""
    total = max(sum(value for _, value in parts) for _, parts in rows) or 1
    left, right = 110, width - 70
    parts_of = list(dict.fromkeys(part for _, parts in rows for part, _ in parts))
    height = 34 * len(rows) + 20 + 18 * math.ceil(len(parts_of) / 3)
    out = [f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
           'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" fill="#222">']
    for row, (label, parts) in enumerate(rows):
        x, y = float(left), 8 + 34 * row
        out.append(text(left - 6, y + 16, label, "end"))
        for part, value in parts:
            wide = (right - left) * value / total
            paint = PALETTE[parts_of.index(part) % len(PALETTE)]
            out.append(f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="24" fill="{paint}">'
                       f'<title>{html.escape(part)}: {value:.3g} {unit}</title></rect>')
            x += wide
        out.append(text(x + 5, y + 16, f"{sum(value for _, value in parts):.3g} {unit}", "start"))
    for at, part in enumerate(parts_of):
        x, y = left + 175 * (at % 3), 8 + 34 * len(rows) + 18 * (at // 3)
        out.append(f'<rect x="{x}" y="{y}" width="11" height="11" fill="{PALETTE[at % len(PALETTE)]}"/>' +
                   text(x + 16, y + 10, part, "start"))
    return "\n".join(out) + "\n</svg>\n"


def ratios_plot(rows, width=900):
    """[(label, value, interval)] on a logarithmic axis, 1 marked."""
    ends = [end for _, value, interval in rows for end in (interval or (value, value))] + [1.0]
    low, high = min(ends) / 1.15, max(ends) * 1.15
    left, right, height = 380, width - 60, 20 * len(rows) + 30

    def place(value):
        return left + (right - left) * math.log(value / low) / math.log(high / low)

    out = [f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
           'xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" fill="#222">',
           f'<path d="M{place(1):.1f} 4V{height - 22}" stroke="#999" stroke-dasharray="3 3"/>',
           text(place(1), height - 8, "1")]
    for row, (label, value, interval) in enumerate(rows):
        y = 16 + 20 * row
        out.append(text(left - 8, y + 4, label, "end", 11))
        if interval:
            out.append(f'<path class="interval" d="M{place(interval[0]):.1f} {y}H{place(interval[1]):.1f}" stroke="#1f6fb2" stroke-width="2"/>')
        out.append(f'<circle cx="{place(value):.1f}" cy="{y}" r="3.5" fill="{"#1f6fb2" if interval else "white"}" stroke="#1f6fb2"/>')
        out.append(text(right + 6, y + 4, f"{value:.3g}", "start", 11))
    return "\n".join(out) + "\n</svg>\n"


def scaling(runs, pattern, scale=1000.0):
    """Series of medians in seconds over the number x in the groups' names that `pattern` matches. Of groups that differ in the
    rest of their names those with the most numbers count."""
    found = {}
    for _, group, variants in groups(runs):
        match = re.fullmatch(pattern, group)
        if match:
            found.setdefault(group[:match.start("x")] + group[match.end("x"):], []).append((float(match["x"]), variants))
    series = {}
    for x, variants in max(found.values(), key=len, default=[]):
        for variant, samples in variants.items():
            series.setdefault(variant.removesuffix(COMPUTED), []).append(
                (x, statistics.median(samples) / scale, variant.endswith(COMPUTED)))
    return {variant: points for variant, points in series.items() if len(points) > 1}


def time_goes(runs):
    """The parts of a warm start, from the differences of variants of one group."""
    figures = {figure["name"]: figure["value"] for run in runs.values() for figure in run.get("figures", [])}
    rows = []
    for _, group, variants in groups(runs):
        match = re.fullmatch(r"start\.(\w+\.500)", group)
        if not match or not {"absolute", "empty auditor", "flat", "ours"} <= set(variants):
            continue
        of = {variant: statistics.median(samples) for variant, samples in variants.items()}
        kernel = figures.get(f"where.{match[1]}.kernel", 0)
        relocation = figures.get(f"where.{match[1]}.relocation", 0)
        rows.append((match[1], [
            ("kernel", kernel), ("relocation", relocation),
            ("ld.so, the program", max(of["absolute"] - kernel - relocation, 0)),
            ("any auditor", max(of["empty auditor"] - of["absolute"], 0)),
            ("heddle's auditor", max(of["flat"] - of["empty auditor"], 0)),
            ("FUSE", max(of["ours"] - of["flat"], 0))]))
    return rows


PLOTS = [
    ("latency", "A cold start, by the server's latency", r"cold\.server\.\d+\.(?P<x>\d+)us", "latency of one request, us", True),
    *((f"cold-{preset}", f"A cold start, by libraries, where the node keeps {keeps}", rf"cold\.{preset}\.(?P<x>\d+)\.200us", "libraries", False)
      for preset, keeps in (("server", "positive answers for a second"), ("nfs", "answers as NFS does"), ("none", "nothing"))),
    ("libraries", "A warm start on a local disk, by libraries", r"start\.star\.(?P<x>\d+)", "libraries", False),
    ("processes", "Processes started at once, 500 libraries, local disk", r"at_once_(?P<x>\d+)\.star\.500", "processes", False),
]


def plots(runs):
    for name, title, pattern, x_label, linear in PLOTS:
        series = scaling(runs, pattern)
        if series:
            yield name, title, lines_plot(series, x_label, "seconds", linear)
    parts = time_goes(runs)
    if parts:
        yield "parts", "Where the time of a warm start goes, 500 libraries", bars_plot(parts, "ms")


def machine(run):
    words = [f"{run.get('cores', '?')} cores", run.get("processor"), f"Linux {run.get('kernel', '?')}"]
    words.append(f"glibc {run['glibc']}" if "glibc" in run else None)
    return ", ".join(word for word in words if word)


def facts(runs):
    return "\n".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(machine(run))}</td>"
                     f"<td>{html.escape('load ' + run['load'] if run.get('load') else '')}</td></tr>" for name, run in runs.items() if "kernel" in run)


def page(runs):
    # fs-diff's pages have the same rule: no script, no font, no picture from elsewhere.
    out = ["""<!DOCTYPE html>
<html lang="en" data-state="ready"><head><meta charset="utf-8"><title>heddle: measurements</title>
<style>body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
table{border-collapse:collapse}td,th{padding:.1em .8em .1em 0;text-align:left;vertical-align:top}
td.n{text-align:right}svg{max-width:100%;height:auto}.hint{color:#666}</style></head><body>
<h1>heddle: measurements</h1>
<p class="hint">Points are medians; hollow ones are computed from counted operations, not run, or have too few samples for an
interval. Intervals are 99 %, by bootstrap. Below 1 the first of a pair is faster.</p>"""]
    for name, title, svg in plots(runs):
        out.append(f'<h2>{html.escape(title)}</h2>\n<div id="{name}">{svg}</div>')
        if name == "parts":
            out.append('<p class="hint">Differences of medians: absolute paths (of which the kernel by getrusage, relocation by '
                       "LD_DEBUG=statistics), then what an empty auditor, ours, and the mount add. What the noise makes negative is left "
                       "out.</p>")
    rows = list(ratios(runs))
    if rows:
        shown = [(f"{group}: {variant} / {base}", value, interval) for group, variant, base, value, interval, _ in rows]
        out.append(f'<h2>Ratios</h2>\n<div id="ratios">{ratios_plot(shown)}</div>')
    figures = [figure for run in runs.values() for figure in run.get("figures", [])]
    out.append('<h2>Figures</h2>\n<table id="figures">')
    for figure in figures:
        aim = "".join(f" {sign} {figure[key]:g}" for key, sign in (("at_most", "&le;"), ("at_least", "&ge;")) if key in figure)
        met = "" if "met" not in figure else ("met" if figure["met"] else "missed")
        out.append(f'<tr><td>{html.escape(figure["name"])}</td><td class="n">{figure["value"]:,.4g} '
                   f'{html.escape(figure["unit"])}</td><td>{aim}</td><td>{met}</td></tr>')
    absent = [note for run in runs.values() for note in run.get("absent", []) + ["failed: " + note for note in run.get("failed", [])]]
    if absent:
        out.append("</table><h2>Not measured</h2><ul>" + "".join(f"<li>{html.escape(note)}</li>" for note in absent) + "</ul><table>")
    out.append(f"</table>\n<h2>Where</h2>\n<table>{facts(runs)}</table>\n</body></html>\n")
    return "\n".join(out)


def markdown(runs):
    out = ["| group | variant / baseline | ratio | 99 % interval | samples |", "|---|---|---:|---:|---:|"]
    for group, variant, base, value, interval, samples in ratios(runs):
        between = f"{interval[0]:.3g} to {interval[1]:.3g}" if interval else ""
        out.append(f"| {group} | {variant} / {base} | {value:.3g} | {between} | {samples} |")
    # Runs are taken one by one; mostly all are of one machine.
    places = {}
    for name, run in runs.items():
        if "kernel" in run:
            places.setdefault(machine(run), []).append(name)
    out.append("\n" + "\n".join(f"{', '.join(names)}: {place}." for place, names in places.items()))
    return "\n".join(out) + "\n"


def picture(runs):
    """README's: the demo's cold starts."""
    series = []
    for row in runs["demo"]["rows"]:
        if row.get("start") == "cold":
            series.append((row["program"], row["without"], row["with"]))
        if row.get("start") == "bundle":
            series[-1] += (row["with"],)
    width, left, step = 760, 210, 74
    height = step * len(series) + 34
    most = max(start["seconds"] for row in series for start in row[1:])
    out = [f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" xmlns="http://www.w3.org/2000/svg" '
           'font-family="sans-serif" fill="#222"><rect width="100%" height="100%" fill="white"/>',
           text(left, 18, "seconds of a cold start, server 200 us away, and the operations it was asked", "start")]
    for at, (program, *starts) in enumerate(series):
        y = 32 + step * at
        out.append(text(left - 8, y + 33, program, "end"))
        for line, (words, paint, start) in enumerate(zip(
                ["without heddle", "fs-gen", "fs-gen, bundle"], ["#c0392b", "#1f6fb2", "#17a08a"], starts)):
            wide = max((width - left - 270) * start["seconds"] / most, 1.5)
            over = "> " if start["stopped"] else ""
            out.append(f'<rect x="{left}" y="{y + 20 * line}" width="{wide:.1f}" height="16" fill="{paint}"/>')
            out.append(text(left + wide + 6, y + 20 * line + 12,
                            f'{over}{start["seconds"]:.2f} s ({start["operations"]:,}) {words}', "start", 11))
    return "\n".join(out) + "\n</svg>\n"


def constants(runs, lines):
    """`name value unit measured python.FIGURE...`, or `python.FIGURE / NUMBER...`."""
    figures = {figure["name"]: figure["value"] for figure in runs["python"]["figures"]}
    for line in lines:
        words = line.split(" ")
        if len(words) > 4 and words[3] == "measured" and words[4].rstrip(",\n") in figures:
            value = figures[words[4].rstrip(",\n")] / (float(words[6]) if words[5:6] == ["/"] else 1)
            words[1] = f"{value:.4g}" if value < 1000 else f"{value:.0f}"
        yield " ".join(words)


def slower(old, new):
    """(run, group, variant, ratio) that the interval says are slower. Times of two runs are compared where both were taken on the
    same machine, else what the variant takes of its group's baseline."""
    for name, group, variants in groups(new):
        before = old.get(name, {}).get("samples_ms", {}).get(group)
        if not before:
            continue
        same = all(old[name].get(key) == new[name].get(key) for key in ("processor", "kernel", "cores", "glibc"))
        base = baseline(variants)
        if not same and (base not in before or not before[base]):
            continue
        for variant, samples in variants.items():
            earlier = before.get(variant)
            if not earlier or variant.endswith(COMPUTED) or (not same and variant == base):
                continue
            if not same:
                samples = [sample / statistics.median(variants[base]) for sample in samples]
                earlier = [sample / statistics.median(before[base]) for sample in earlier]
            value, interval = ratio(samples, earlier)
            if interval and interval[0] > ALARM:
                yield name, group, variant, value, interval


def against(old, new, names):
    alarms = [alarm for alarm in slower(load(old), load(new)) if not names or alarm[0] in names]
    for name, group, variant, value, interval in alarms:
        print(f"{group}: {variant}: {value:.2f} x its time in {old} ({interval[0]:.2f} to {interval[1]:.2f})", file=sys.stderr)
    for alarm in alarms:
        print(*alarm[:3], sep="\t")
    return 1 if alarms else 0


def main(words):
    if len(words) >= 3 and words[0] == "--against":
        return against(words[1], words[2], words[3:])
    if len(words) == 3 and words[0] == "--svg":
        content, file = picture(load(words[1])), words[2]
    elif len(words) == 3 and words[0] == "--markdown":
        file = words[2]
        with open(file, encoding="utf-8") as page_file:
            before, rest = page_file.read().split(BEGIN)
        content = before + BEGIN + markdown(load(words[1])) + END + rest.split(END)[1]
    elif len(words) == 3 and words[0] == "--constants":
        file = words[2]
        with open(file, encoding="utf-8") as lines:
            content = "".join(constants(load(words[1]), lines))
    elif len(words) == 2 and not words[0].startswith("-"):
        content, file = page(load(words[0])), words[1]
    else:
        print(__doc__, file=sys.stderr)
        return 2
    with open(file + ".new", "w", encoding="utf-8") as out:
        out.write(content)
    os.replace(file + ".new", file)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        sys.exit(f"page.py: not results of ./dev bench: {type(error).__name__}: {error}")
