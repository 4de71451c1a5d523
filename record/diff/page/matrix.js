// SPDX-License-Identifier: MIT
// The page of many runs: heat map in the order of the tree, the tree, the runs.
const n = data.runs.length;
add(main, 'h1', {}, `${n} runs compared`);
facts([[data.max_distance, 'greatest distance'], [data.groups.length, 'different runs'],
  [data.outliers.length, data.outliers.length === 1 ? 'outlier' : 'outliers']]);
add(main, 'p', { class: 'soft' }, rules);

// A row and a column for each group of equal runs.
function heatMap() {
  add(main, 'h2', {}, 'Distances (edits), close runs side by side');
  const alike = new Map(data.groups.map((g) => [g[0], g.length - 1]));
  const shown = data.order.filter((i) => alike.has(i));
  const count = shown.length, cell = count <= 30 ? 26 : Math.max(10, Math.floor(840 / count)), left = 330, top = 30;
  const svg = drawing(add(main, 'div', { class: 'wide' }), left + count * cell + 20, top + count * cell + 20, 'heat map of distances');
  svg.id = 'heat-map';
  svg.style.maxWidth = 'none';
  shown.forEach((i, row) => {
    const y = top + row * cell;
    const name = data.runs[i].name + (alike.get(i) ? ` and ${alike.get(i)} alike` : '');
    const label = add(svg, 'text', { x: left - 6, y: y + cell * .75, 'text-anchor': 'end', class: 'strong label' },
      name.length > 48 ? '…' + name.slice(-47) : name);
    label.style.fontSize = Math.min(12, cell - 1) + 'px';
    if (data.outliers.includes(data.runs[i].name)) label.style.fill = 'var(--deleted)';
    shown.forEach((j, column) => {
      const d = data.distances[i][j], x = left + column * cell;
      const strength = data.max_distance ? d / data.max_distance : 0;
      const c = add(svg, 'rect', { x, y, width: cell - 1, height: cell - 1, class: 'cell', fill: 'var(--deleted)',
        'fill-opacity': (.06 + .94 * strength).toFixed(3) });
      c.addEventListener('mousemove', (e) => showTip(e, `${data.runs[i].name} – ${data.runs[j].name}: ${d}`));
      c.addEventListener('mouseleave', (e) => showTip(e, ''));
      const size = Math.min(11, 1.4 * (cell - 1) / String(d).length, cell - 3);
      if (size >= 5) {
        const text = add(svg, 'text', { x: x + cell / 2, y: y + cell * .68, 'text-anchor': 'middle', 'pointer-events': 'none' }, d);
        text.style.fill = strength > .6 ? 'var(--back)' : 'var(--text)';
        text.style.fontSize = size + 'px';
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
  for (const h of ['', 'run', '', 'edits to its nearest', '']) add(head, 'th', {}, h);
  data.runs.forEach((run, i) => {
    const r = add(t, 'tr');
    for (const c of [i + 1, run.name, runText(run), data.distances[i][run.nearest], data.outliers.includes(run.name) ? 'outlier' : '']) add(r, 'td', {}, c);
  });
}

heatMap();
tree();
runs();
state('ready');
