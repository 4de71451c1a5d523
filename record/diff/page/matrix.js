// SPDX-License-Identifier: MIT
// The page of many runs: heat map in the order of the tree, the tree, the runs.
const n = data.runs.length;
add(main, 'h1', {}, `${n} runs compared`);
facts([[data.max_distance, 'greatest distance'], [data.outliers.length, data.outliers.length === 1 ? 'outlier' : 'outliers']]);
add(main, 'p', { class: 'soft' }, rules);

function heatMap() {
  add(main, 'h2', {}, 'Distances (edits), close runs side by side');
  const cell = n <= 30 ? 26 : Math.max(6, Math.floor(780 / n)), left = 300, top = 30;
  const svg = drawing(add(main, 'div', { class: 'wide' }), left + n * cell + 20, top + n * cell + 20, 'heat map of distances');
  svg.id = 'heat-map';
  svg.style.maxWidth = 'none';
  data.order.forEach((i, row) => {
    const y = top + row * cell;
    if (cell >= 10) {
      const name = data.runs[i].name;
      const label = add(svg, 'text', { x: left - 6, y: y + cell * .68, 'text-anchor': 'end', class: 'strong' },
        name.length > 40 ? '…' + name.slice(-39) : name);
      if (data.outliers.includes(data.runs[i].name)) label.style.fill = 'var(--deleted)';
    }
    data.order.forEach((j, column) => {
      const d = data.distances[i][j], x = left + column * cell;
      const strength = data.max_distance ? d / data.max_distance : 0;
      const c = add(svg, 'rect', { x, y, width: cell - 1, height: cell - 1, class: 'cell', fill: 'var(--deleted)',
        'fill-opacity': (.06 + .94 * strength).toFixed(3) });
      c.addEventListener('mousemove', (e) => showTip(e, `${data.runs[i].name} – ${data.runs[j].name}: ${d}`));
      c.addEventListener('mouseleave', (e) => showTip(e, ''));
      if (cell >= 22) {
        const text = add(svg, 'text', { x: x + cell / 2, y: y + cell * .64, 'text-anchor': 'middle', 'pointer-events': 'none' }, d);
        text.style.fill = strength > .6 ? 'var(--back)' : 'var(--text)';
        if (d > 999) text.style.fontSize = '8px';
      }
    });
  });
}

function tree() {
  if (!data.tree.length) return;
  add(main, 'h2', {}, 'Tree (mean distance where branches join)');
  const each = n <= 60 ? 22 : 12, width = 1160, right = 780, height = n * each + 40;
  const svg = drawing(main, width, height, 'tree of runs');
  svg.id = 'tree';
  const top = Math.max(1e-9, ...data.tree.map((j) => j.height));
  const x = (h) => right - (right - 30) * h / top;
  const at = new Map();
  data.order.forEach((i, row) => {
    at.set(i, [0, 16 + row * each]);
    const label = add(svg, 'text', { x: right + 8, y: 20 + row * each, class: 'strong' }, data.runs[i].name);
    if (data.outliers.includes(data.runs[i].name)) label.style.fill = 'var(--deleted)';
  });
  data.tree.forEach((j, number) => {
    const [h0, y0] = at.get(j.left), [h1, y1] = at.get(j.right);
    add(svg, 'path', { d: `M${x(h0)} ${y0}H${x(j.height)}V${y1}H${x(h1)}`, stroke: 'var(--mark)', fill: 'none', class: 'joint' });
    at.set(n + number, [j.height, (y0 + y1) / 2]);
  });
  for (let h = 0, s = roundStep(top, 6); h <= top; h += s)
    add(svg, 'text', { x: x(h), y: height - 8, 'text-anchor': 'middle' }, +h.toPrecision(4));
}

function runs() {
  add(main, 'h2', {}, 'Runs');
  const t = add(main, 'table', { class: 'plain', id: 'runs' });
  const head = add(t, 'tr');
  for (const h of ['', 'run', 'what', 'edits to its nearest', '']) add(head, 'th', {}, h);
  data.runs.forEach((run, i) => {
    const r = add(t, 'tr');
    for (const c of [i + 1, run.name, runText(run), run.lonely, data.outliers.includes(data.runs[i].name) ? 'outlier' : '']) add(r, 'td', {}, c);
  });
}

heatMap();
tree();
runs();
state('ready');
