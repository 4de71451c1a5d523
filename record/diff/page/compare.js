// SPDX-License-Identifier: MIT
// The page of two runs: facts, timelines, plots, local alignments, times, the aligned script.
const kinds = ['same', 'replaced', 'deleted', 'inserted'];
const colour = (kind) => `var(--${kinds[kind]})`;

// A side of a sampled event, and of a row: [index, microseconds, label, repeats, position].
for (const part of data.parts) {
  const { sample } = part;
  for (const [side, at] of [['a', 1], ['b', 2]]) {
    const seen = sample.filter((c) => c[at]);
    part[side] = { n: seen.map((c) => c[at][0]), t: seen.map((c) => c[at][1]), label: seen.map((c) => c[at][2]),
      kind: seen.map((c) => c[0]) };
  }
  const same = sample.filter((c) => !c[0]), thin = Math.ceil(same.length / 4000);
  part.joined = same.filter((c, i) => i % thin === 0).map((c) => [c[1][1], c[2][1]]);
  // The script as lines from cell to cell.
  part.path = [];
  let x = 0, y = 0;
  for (const [kind, a, b] of sample) {
    const from = [a ? a[0] : x, b ? b[0] : y], last = part.path[part.path.length - 1];
    x = from[0] + (a ? 1 : 0);
    y = from[1] + (b ? 1 : 0);
    if (last && last[0] === kind) [last[3], last[4]] = [x, y];
    else part.path.push([kind, ...from, x, y]);
  }
}

function header() {
  add(main, 'h1', {}, 'Two runs compared');
  const t = add(main, 'table', { class: 'plain' });
  for (const side of ['a', 'b']) {
    const r = add(t, 'tr');
    add(r, 'td', {}, side);
    add(r, 'td', {}, data[side].name);
    add(r, 'td', {}, runText(data[side]));
  }
  facts([[(data.exact ? '' : '≤ ') + data.distance, 'edits (Levenshtein)'], [data.similarity.toFixed(4), 'similarity'],
    [data.normalised_distance.toFixed(4), 'normalised distance'], [data.counts.same, 'the same'],
    [data.counts.replaced, 'replaced'], [data.counts.deleted, 'only in a'], [data.counts.inserted, 'only in b']]);
  add(main, 'p', { class: 'soft' }, rules);
  if (data.other_order) add(main, 'p', {}, 'The same events in another order.');
  for (const [title, list] of [['Files only in a', 'only_a'], ['Files only in b', 'only_b'],
    ['Newly missed in b', 'missed_b'], ['Missed in a only', 'missed_a']]) {
    const files = data.files[list];
    if (!files.length) continue;
    const box = add(main, 'details', { class: 'files', id: list });
    if (files.length <= 20) box.open = true;
    add(box, 'summary', {}, `${title}: ${files.length}`);
    const t = add(box, 'table', { class: 'plain' });
    for (const f of files.slice(0, 1000)) {
      const r = add(t, 'tr');
      for (const c of [f.path, f.process || '', f.found_by_other ? 'found in the other' : '']) add(r, 'td', {}, c);
    }
  }
  for (const note of data.notes) add(main, 'p', { class: 'soft note' }, note);
  const key = add(main, 'p', { class: 'key soft' });
  kinds.forEach((name, i) => {
    add(key, 'i', { style: `background:${colour(i)}` });
    key.append(name);
  });
}

// Two lanes, time downwards; lines join equal events, so a line's slope is a delay.
function timelines(part) {
  add(main, 'h2', {}, 'Timelines');
  const width = 1160, height = 560, top = 30, bottom = height - 16, left = 330, right = width - 330;
  const svg = drawing(main, width, height, 'timelines of both runs');
  svg.id = 'timelines';
  const end = Math.max(1, ...['a', 'b'].map((s) => part[s].t.reduce((m, t) => Math.max(m, t), 0)));
  const y = (t) => top + (bottom - top) * t / end;
  const step = roundStep(end, 10);
  for (let t = 0; t <= end; t += step) {
    add(svg, 'line', { x1: 70, x2: width - 70, y1: y(t), y2: y(t), stroke: 'var(--line)' });
    add(svg, 'text', { x: 8, y: y(t) + 4 }, seconds(t));
  }
  add(svg, 'text', { x: left - 240, y: 18, class: 'strong' }, 'a');
  add(svg, 'text', { x: right + 230, y: 18, class: 'strong' }, 'b');
  for (const x of [left - 240, left, right, right + 240])
    add(svg, 'line', { x1: x, x2: x, y1: top, y2: bottom, stroke: 'var(--line)' });
  const joins = part.joined.map(([ta, tb]) => `M${left} ${y(ta).toFixed(1)}L${right} ${y(tb).toFixed(1)}`);
  add(svg, 'path', { d: joins.join(''), stroke: 'var(--same)', fill: 'none',
    'stroke-opacity': joins.length > 600 ? .05 : .35 });
  for (const [side, x0, x1] of [['a', left, left - 240], ['b', right, right + 240]]) {
    const marks = kinds.map(() => []);
    part[side].t.forEach((t, i) => marks[part[side].kind[i]].push(`M${x0} ${y(t).toFixed(1)}H${x1}`));
    marks.forEach((m, kind) => m.length && add(svg, 'path', { d: m.join(''), stroke: colour(kind), fill: 'none',
      'stroke-opacity': m.length > 600 ? Math.max(.02, 200 / m.length) : kind ? .9 : .35, class: `marks ${side} ${kinds[kind]}`, 'data-count': m.length }));
  }
  // Labels of the edits, where there is room for them.
  for (const [side, x] of [['a', left - 236], ['b', right + 4]]) {
    if (part[side].kind.filter((k) => k).length > 80) continue;
    let last = -99;
    part[side].t.forEach((t, i) => {
      if (!part[side].kind[i] || y(t) < last + 12) return;
      last = y(t);
      const name = data.labels[part[side].label[i]];
      add(svg, 'text', { x, y: last - 2, class: 'strong' }, name.length > 42 ? '…' + name.slice(-41) : name);
    });
  }
  svg.addEventListener('mousemove', (event) => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * width / box.width;
    const t = ((event.clientY - box.top) * height / box.height - top) * end / (bottom - top);
    const side = x <= left ? 'a' : x >= right ? 'b' : '';
    if (!side || !part[side].t.length) return showTip(event, '');
    let best = 0;
    part[side].t.forEach((u, i) => { if (Math.abs(u - t) < Math.abs(part[side].t[best] - t)) best = i; });
    showTip(event, `${side} ${part[side].n[best] + 1}  ${seconds(part[side].t[best])}  ${data.labels[part[side].label[best]]}`);
  });
  svg.addEventListener('mouseleave', () => { tip.hidden = true; });
}

function axes(svg, w, h, xTop, yLow, yTop, xText, yText, xName, yName) {
  const x = (v) => 60 + (w - 76) * v / (xTop || 1);
  const y = (v) => h - 34 - (h - 50) * (v - yLow) / ((yTop - yLow) || 1);
  for (let v = 0, s = roundStep(xTop || 1, 5); v <= xTop; v += s) add(svg, 'text', { x: x(v), y: h - 18, 'text-anchor': 'middle' }, xText(v));
  const s = roundStep((yTop - yLow) || 1, 5);
  for (let v = Math.ceil(yLow / s) * s; v <= yTop; v += s) {
    add(svg, 'line', { x1: 60, x2: w - 16, y1: y(v), y2: y(v), stroke: 'var(--line)' });
    add(svg, 'text', { x: 56, y: y(v) + 4, 'text-anchor': 'end' }, yText(v));
  }
  add(svg, 'text', { x: w - 16, y: h - 4, 'text-anchor': 'end', class: 'strong' }, xName);
  add(svg, 'text', { x: 6, y: 12, class: 'strong' }, yName);
  return [x, y];
}
const short = (us) => +(us / 1e6).toPrecision(3) + ' s';

function plots(part) {
  add(main, 'h2', {}, 'Plots');
  const box = add(main, 'div', { class: 'plots' });
  const w = 560, h = 320;
  { // the script's path: the diagonal is "the same", boxes are local alignments
    const svg = drawing(box, w, h, 'alignment path'); svg.id = 'plot-path';
    const [x, y] = axes(svg, w, h, part.size[0], 0, part.size[1], (v) => v, (v) => v, 'event of a', 'event of b');
    for (const { a, b } of part.local || []) add(svg, 'rect', { x: x(a.first - 1), y: y(b.last), width: x(a.last) - x(a.first - 1),
      height: y(b.first - 1) - y(b.last), fill: 'var(--mark)', 'fill-opacity': .12, stroke: 'var(--mark)' });
    kinds.forEach((name, kind) => add(svg, 'path', { stroke: colour(kind), 'stroke-width': kind ? 3 : 1.5,
      d: part.path.filter((l) => l[0] === kind).map((l) => `M${x(l[1]).toFixed(1)} ${y(l[2]).toFixed(1)}L${x(l[3]).toFixed(1)} ${y(l[4]).toFixed(1)}`).join('') }));
  }
  { // how much later b is at each common event
    const svg = drawing(box, w, h, 'time shift'); svg.id = 'plot-shift';
    const end = part.joined.reduce((m, [t]) => Math.max(m, t), 1);
    const lows = part.joined.map(([ta, tb]) => tb - ta);
    const low = lows.reduce((m, v) => Math.min(m, v), 0), high = lows.reduce((m, v) => Math.max(m, v), 1);
    const [x, y] = axes(svg, w, h, end, low, high, short, short, 'time in a', 'b later by');
    add(svg, 'path', { d: part.joined.map(([ta], i) => `${i ? 'L' : 'M'}${x(ta).toFixed(1)} ${y(lows[i]).toFixed(1)}`).join(''),
      stroke: 'var(--mark)', fill: 'none', 'stroke-width': 1.5 });
  }
  { // events over time, both
    const svg = drawing(box, w, h, 'events over time'); svg.id = 'plot-growth';
    const end = Math.max(1, ...['a', 'b'].map((s) => part[s].t.reduce((m, t) => Math.max(m, t), 0)));
    const [x, y] = axes(svg, w, h, end, 0, Math.max(...part.size, 1), short, (v) => v, 'time', 'events so far');
    for (const [side, ink] of [['a', 'var(--deleted)'], ['b', 'var(--inserted)']])
      add(svg, 'path', { d: part[side].t.map((t, i) => `${i ? 'L' : 'M'}${x(t).toFixed(1)} ${y(part[side].n[i] + 1).toFixed(1)}`).join(''),
        stroke: ink, fill: 'none', 'stroke-width': 1.5, class: side });
  }
  { // events by operation
    const svg = drawing(box, w, h, 'events by operation'); svg.id = 'plot-ops';
    const top = Math.max(1, ...part.ops.map(([, a, b]) => Math.max(a, b)));
    const each = Math.min(48, (h - 40) / Math.max(1, part.ops.length));
    part.ops.forEach(([op, a, b], i) => {
      const at = 24 + i * each, thick = each * .36;
      add(svg, 'text', { x: 92, y: at + thick + 4, 'text-anchor': 'end' }, op);
      [[a, 'var(--deleted)', 0], [b, 'var(--inserted)', thick]].forEach(([n, ink, down]) => {
        add(svg, 'rect', { x: 100, y: at + down, width: (w - 190) * n / top, height: thick - 1, fill: ink });
        add(svg, 'text', { x: 104 + (w - 190) * n / top, y: at + down + thick - 2 }, n);
      });
    });
    add(svg, 'text', { x: 6, y: 14, class: 'strong' }, 'events by operation: a above, b below');
  }
}

function lists(part) {
  const list = (title, id, head, rows) => {
    if (!rows.length) return;
    add(main, 'h2', {}, title);
    const t = add(main, 'table', { class: 'plain', id });
    const r = add(t, 'tr');
    head.forEach((h) => add(r, 'th', {}, h));
    rows.forEach((cells) => { const row = add(t, 'tr'); cells.forEach((c) => add(row, 'td', {}, c)); });
  };
  const us = (ns) => seconds(ns / 1000);
  const name = (e) => e.op + (e.result === 'OK' ? ' ' : ` ${e.result} `) + e.path;
  list('Best local alignments (Smith-Waterman)', 'local', ['score', 'events of a', 'events of b', 'time in a', 'time in b'],
    (part.local || []).map((l) => [l.score, `${l.a.first} to ${l.a.last}`, `${l.b.first} to ${l.b.last}`,
      `${us(l.a.first_ns)} to ${us(l.a.last_ns)}`, `${us(l.b.first_ns)} to ${us(l.b.last_ns)}`]));
  list('Where time went', 'steps', ['b later by', 'event', 'time in a', 'time in b'],
    part.time.steps.map((s) => [us(s.step_ns), name(s.a), us(s.a.ns), us(s.b.ns)]));
  list('Moved', 'moves', ['event', 'time in a', 'time in b'],
    part.time.moves.map((s) => [name(s.a), us(s.a.ns), us(s.b.ns)]));
}

function script(part) {
  add(main, 'h2', {}, 'Aligned script');
  const t = add(main, 'table', { class: 'script', id: 'script' });
  const cols = add(t, 'colgroup');
  for (const c of ['n', 't', '', 'n', 't', '']) add(cols, 'col', { class: c });
  for (const row of part.rows) {
    if (typeof row === 'number') {
      const r = add(t, 'tr', { class: 'skip' });
      add(r, 'td', { colspan: 6 }, `${row} events the same`);
      continue;
    }
    const [kind, a, b] = row;
    const r = add(t, 'tr', { class: kinds[kind] });
    for (const [side, e] of [['a', a], ['b', b]]) {
      add(r, 'td', { class: 'n' }, e ? e[4] + 1 : '');
      add(r, 'td', { class: 't' }, e ? seconds(e[1]) : '');
      add(r, 'td', { class: side }, e ? data.labels[e[2]] + (e[3] > 1 ? `  (x${e[3]})` : '') : '');
    }
  }
}

header();
for (const part of data.parts) {
  if (part.name) add(main, 'h1', {}, 'Process ' + part.name);
  timelines(part);
  plots(part);
  lists(part);
  script(part);
}
state('ready');
