// Chooses, searches and zooms in the drawings of a plan. It writes text only, never HTML: names of nodes are data.
'use strict';
const plan = JSON.parse(document.getElementById('plan').textContent);
const byName = new Map(plan.nodes.map((node, index) => [node.name, index]));
const canvas = document.querySelector('.canvas');
const details = document.querySelector('.details');
const drawings = [...canvas.querySelectorAll('svg')];
const search = document.getElementById('search');
const found = document.getElementById('found');
let shown = drawings[0], scale = 1, chosen = null, matches = [], next = 0, highlighted = null;

const indices = box => box.dataset.nodes.split(' ').map(Number);
const boxesOf = drawing => [...drawing.querySelectorAll('.box')];
const boxOf = index => boxesOf(shown).find(box => indices(box).includes(index));

function element(tag, text, parent, kind) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  if (parent) parent.append(made);
  return made;
}

function zoom(value) {
  const [width, height] = [canvas.clientWidth / 2, canvas.clientHeight / 2];
  const middle = [(canvas.scrollLeft + width) / scale, (canvas.scrollTop + height) / scale];
  scale = Math.min(3, Math.max(0.1, value));
  shown.setAttribute('width', shown.dataset.width * scale);
  shown.setAttribute('height', shown.dataset.height * scale);
  canvas.scrollLeft = middle[0] * scale - width;
  canvas.scrollTop = middle[1] * scale - height;
  document.getElementById('scale').textContent = Math.round(100 * scale) + ' %';
}

// Shrinks the drawing to the window, as long as it stays readable.
function fit() {
  zoom(Math.min(1, Math.max(0.6, (canvas.clientWidth - 4) / shown.dataset.width)));
  const first = shown.querySelector('.box');
  if (first) bring(first);
  canvas.scrollTop = 0;
}

function show(name) {
  for (const drawing of drawings) drawing.toggleAttribute('hidden', drawing.dataset.view !== name);
  shown = drawings.find(drawing => drawing.dataset.view === name);
  for (const button of document.querySelectorAll('[data-to]'))
    button.setAttribute('aria-pressed', String(button.dataset.to === name));
  fit();
  mark();
  if (chosen !== null) choose(chosen, true);
}

function bring(box) {
  const place = box.getBoundingClientRect(), frame = canvas.getBoundingClientRect();
  canvas.scrollBy(place.left + place.width / 2 - frame.left - frame.width / 2,
                  place.top + place.height / 2 - frame.top - frame.height / 2);
}

function mark() {
  const wanted = search.value.trim().toLowerCase();
  const fits = index => highlighted ? highlighted.has(index) : plan.nodes[index].text.includes(wanted);
  const active = highlighted !== null || wanted !== '';
  matches = [];
  for (const box of boxesOf(shown)) {
    const match = active && indices(box).some(fits);
    box.classList.toggle('match', match);
    if (match) matches.push(box);
  }
  shown.classList.toggle('filtered', active);
  const all = plan.nodes.filter((_, index) => fits(index)).length;
  found.textContent = active ? all + (all === 1 ? ' node' : ' nodes') + ' in ' + matches.length +
    (matches.length === 1 ? ' box' : ' boxes') : '';
  next = 0;
}

function highlight(list, button) {
  const pressed = button.getAttribute('aria-pressed') === 'true';
  for (const other of document.querySelectorAll('[data-show]')) other.setAttribute('aria-pressed', 'false');
  highlighted = pressed ? null : new Set(list);
  button.setAttribute('aria-pressed', String(!pressed));
  search.value = '';
  if (highlighted && ![...highlighted].some(boxOf)) show(drawings[drawings.length - 1].dataset.view);
  mark();
  if (matches.length) bring(matches[0]);
}

function field(list, name, value) {
  if (value === '' || value === undefined) return;
  element('dt', name, list);
  element('dd', value, list);
}

function link(parent, index, text) {
  element('button', text, parent).addEventListener('click', () => choose(index, true));
}

function linked(panel, title, entries) {
  if (!entries.length) return;
  element('dt', title, panel);
  for (const [text, name] of entries) {
    const cell = element('dd', undefined, panel);
    if (byName.has(name)) link(cell, byName.get(name), text); else cell.textContent = text;
  }
}

function describe(index) {
  const node = plan.nodes[index];
  details.replaceChildren();
  element('h3', node.name, details);
  const list = element('dl', undefined, details);
  if (node.hint) element('p', node.hint, details, 'hint-box');
  if (node.hint) details.insertBefore(details.lastChild, list);
  for (const [name, value] of node.fields) field(list, name, value);
  linked(list, 'input', node.inputs);
  linked(list, 'output', node.outputs.map(text => [text, '']));
  linked(list, 'used by', node.users.map(name => [name, name]));
}

function describeGroup(box) {
  details.replaceChildren();
  element('h3', box.querySelector('title').textContent.split('\n')[0], details);
  const members = indices(box);
  element('p', members.length + ' nodes that compute', details, 'hint');
  for (const index of members) link(details, index, plan.nodes[index].name);
}

function outline(box) {
  for (const other of shown.querySelectorAll('.chosen, .near')) other.classList.remove('chosen', 'near');
  if (!box) return;
  box.classList.add('chosen');
  for (const path of shown.querySelectorAll('.edges path'))
    path.classList.toggle('near', path.dataset.from === box.dataset.key || path.dataset.to === box.dataset.key);
}

function choose(index, moves) {
  chosen = index;
  describe(index);
  const box = boxOf(index);
  outline(box);
  if (box && moves) bring(box);
}

function pick(box) {
  const members = indices(box);
  if (members.length === 1) { choose(members[0], false); return; }
  chosen = null;
  describeGroup(box);
  outline(box);
}

let drag = null;
canvas.addEventListener('pointerdown', event => {
  if (event.pointerType !== 'mouse' || event.button) return;
  drag = {x: event.clientX, y: event.clientY, left: canvas.scrollLeft, top: canvas.scrollTop, far: false};
});
window.addEventListener('pointermove', event => {
  if (!drag) return;
  const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
  drag.far = drag.far || Math.abs(dx) + Math.abs(dy) > 4;
  canvas.classList.toggle('dragged', drag.far);
  if (drag.far) { canvas.scrollLeft = drag.left - dx; canvas.scrollTop = drag.top - dy; }
});
let dragged = false;
window.addEventListener('pointerup', () => {
  dragged = drag !== null && drag.far;
  drag = null;
  canvas.classList.remove('dragged');
});
canvas.addEventListener('click', event => {
  const box = event.target.closest('.box');
  if (box && !dragged) pick(box);
  dragged = false;
});
canvas.addEventListener('keydown', event => {
  const box = event.target.closest('.box');
  if (box && (event.key === 'Enter' || event.key === ' ')) { event.preventDefault(); pick(box); }
});
canvas.addEventListener('wheel', event => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoom(scale * Math.exp(-event.deltaY / 300));
}, {passive: false});
search.addEventListener('input', () => {
  highlighted = null;
  for (const other of document.querySelectorAll('[data-show]')) other.setAttribute('aria-pressed', 'false');
  mark();
});
search.addEventListener('keydown', event => {
  if (event.key !== 'Enter' || !matches.length) return;
  bring(matches[next % matches.length]);
  pick(matches[next % matches.length]);
  next += 1;
});
for (const button of document.querySelectorAll('[data-to]'))
  button.addEventListener('click', () => show(button.dataset.to));
const byCost = document.getElementById('by-cost');
if (byCost)
  byCost.addEventListener('click', () => {
    const pressed = canvas.classList.toggle('by-cost');
    byCost.setAttribute('aria-pressed', String(pressed));
  });
for (const button of document.querySelectorAll('[data-show]'))
  button.addEventListener('click', () => {
    highlight(button.dataset.show.split(' ').map(Number), button);
    if (button.closest('table')) canvas.scrollIntoView({block: 'nearest'});
  });
document.getElementById('in').addEventListener('click', () => zoom(scale * 1.25));
document.getElementById('out').addEventListener('click', () => zoom(scale / 1.25));
document.getElementById('fit').addEventListener('click', fit);
if (shown) fit();
const asked = decodeURIComponent(location.hash.slice(1));
if (byName.has(asked)) {
  const view = drawings.find(drawing => boxesOf(drawing).some(box => box.dataset.key === asked));
  if (view) show(view.dataset.view);
  choose(byName.get(asked), true);
}
