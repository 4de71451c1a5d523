// SPDX-License-Identifier: MIT
// For both pages.
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
const rules = `Compared: ops ${data.ops.join(',') || 'all'}; rules ${data.normalisers.join(',') || 'none'}` +
  (data.by === 'run' ? '' : `; by ${data.by}`);
const runText = (r) => [`${r.events} events`, r.format, r.host, r.rank !== undefined && `rank ${r.rank}`,
  r.start_unix_ns && new Date(r.start_unix_ns / 1e6).toISOString(), !r.complete && 'incomplete'].filter(Boolean).join(', ');
const seconds = (us) => (us / 1e6).toFixed(Math.abs(us) < 1e7 ? 6 : 3) + ' s';
function facts(list) {
  const box = add(main, 'div', { class: 'facts' });
  for (const [value, name] of list) {
    const f = add(box, 'div', { class: 'fact' });
    add(f, 'b', {}, value);
    add(f, 'span', {}, name);
  }
}
/// A round step for about `count` marks from 0 to `top`.
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
