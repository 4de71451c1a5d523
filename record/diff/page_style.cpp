// SPDX-License-Identifier: MIT
#include "record/diff/page.hpp"

namespace heddle::diff {

const char* const kPageStyle = R"css(
:root { --back: #fff; --text: #1d2430; --soft: #667085; --line: #d5dae2; --panel: #f6f8fa;
  --same: #98a2b3; --replaced: #b7791f; --deleted: #c53030; --inserted: #2f855a; --mark: #2b6cb0; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14181f; --text: #e4e8ee; --soft: #98a2b3; --line: #333b47; --panel: #1c222b;
    --same: #667085; --replaced: #ecc94b; --deleted: #fc8181; --inserted: #68d391; --mark: #63b3ed; } }
body { margin: 0; background: var(--back); color: var(--text); font: 14px/1.45 system-ui, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 16px 20px 60px; }
h1 { font-size: 20px; margin: 8px 0; } h2 { font-size: 16px; margin: 28px 0 8px; }
p.soft, .soft { color: var(--soft); }
.facts { display: flex; flex-wrap: wrap; gap: 10px; margin: 12px 0; }
.fact { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 8px 14px; }
.fact b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.fact span { color: var(--soft); font-size: 12px; }
.mono, table.script td, table.plain td { font-family: ui-monospace, monospace; font-size: 12px; }
table { border-collapse: collapse; width: 100%; }
table.plain th { text-align: left; font-weight: 600; border-bottom: 1px solid var(--line); padding: 3px 8px; }
table.plain td { padding: 3px 8px; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
table.script { table-layout: fixed; border: 1px solid var(--line); }
table.script col.n { width: 64px; } table.script col.t { width: 92px; }
table.script td { padding: 1px 6px; vertical-align: top; overflow-wrap: anywhere; white-space: pre-wrap; }
table.script td.n, table.script td.t { color: var(--soft); text-align: right; white-space: nowrap; }
tr.deleted td.a, tr.replaced td.a { background: color-mix(in srgb, var(--deleted) 18%, transparent); }
tr.inserted td.b, tr.replaced td.b { background: color-mix(in srgb, var(--inserted) 18%, transparent); }
tr.skip td { color: var(--soft); text-align: center; background: var(--panel); }
svg { display: block; background: var(--panel); border: 1px solid var(--line); border-radius: 8px; max-width: 100%; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; } svg text.strong { fill: var(--text); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 14px; }
.key i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin: 0 4px 0 12px; }
#tip { position: fixed; z-index: 2; max-width: 70vw; padding: 4px 8px; border-radius: 6px; pointer-events: none;
  background: var(--text); color: var(--back); font: 12px ui-monospace, monospace; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
)css";

const char* const kCommonScript = R"js(
'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const main = document.getElementById('main');
const tip = document.getElementById('tip');
const state = (s) => document.documentElement.setAttribute('data-state', s);
window.onerror = (message) => { state('failed'); document.documentElement.setAttribute('data-error', message); };

function add(parent, tag, attributes, text) {
  const svg = parent.namespaceURI === 'http://www.w3.org/2000/svg' || tag === 'svg';
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return parent.appendChild(e);
}
function drawing(parent, width, height, title) {
  const s = add(parent, 'svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title });
  s.style.width = width + 'px';
  return s;
}
const seconds = (us) => (us / 1e6).toFixed(Math.abs(us) < 1e7 ? 6 : 3) + ' s';
function facts(list) {
  const box = add(main, 'div', { class: 'facts' });
  for (const [value, name] of list) {
    const f = add(box, 'div', { class: 'fact' });
    add(f, 'b', {}, value);
    add(f, 'span', {}, name);
  }
}
/// A round step that gives some `count` marks from 0 to `top`.
function roundStep(top, count) {
  const raw = Math.max(top, 1e-9) / count, base = 10 ** Math.floor(Math.log10(raw));
  return base * ([1, 2, 5, 10].find((f) => f * base >= raw) || 10);
}
function showTip(event, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  tip.style.left = Math.min(event.clientX + 14, innerWidth - 40) + 'px';
  tip.style.top = event.clientY + 14 + 'px';
}
)js";

}  // namespace heddle::diff
