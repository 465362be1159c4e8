--- The page that flow.report writes: its style and the script that draws what stands in it as JSON. A browser shows it
-- without a network. Names and texts of logs come into it as text only, never as marks of the page.

local page = {}

local STYLE = [[
:root {
  color-scheme: light dark;
  --paper: #f6f7f9; --card: #ffffff; --ink: #1c2430; --faint: #66707f; --line: #dfe3ea; --grid: #edf0f4;
  --mark: #0b62a8; --shade: #eef3f9; --bad: #c6362c;
  --run0: #1769aa; --run1: #d2570c; --run2: #178a5c; --run3: #a3419a; --run4: #b18300; --run5: #2b9bb5;
  --run6: #6c56c9; --run7: #7a6f66;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161c; --card: #1a2028; --ink: #e4e8ee; --faint: #929dac; --line: #2f3844; --grid: #252d37;
    --mark: #7ab8ee; --shade: #222c38; --bad: #ff7a6e;
    --run0: #5aa9ee; --run1: #ff9350; --run2: #49c793; --run3: #dd86d4; --run4: #e2b93b; --run5: #5fd0e6;
    --run6: #a596ff; --run7: #b9aea4;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
       font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
header, main { max-width: 1480px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 22px; }
h1 { font-size: 22px; font-weight: 650; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 16px; font-weight: 650; margin: 30px 0 10px; }
.faint { color: var(--faint); }
nav { position: sticky; top: 0; z-index: 2; background: var(--paper); border-bottom: 1px solid var(--line); }
nav > div { max-width: 1480px; margin: 0 auto; padding: 9px 24px; display: flex; flex-wrap: wrap; gap: 8px 18px;
            align-items: center; }
nav .runs { display: flex; flex-wrap: wrap; gap: 6px; flex: 1 1 280px; }
button { font: inherit; color: inherit; background: var(--card); border: 1px solid var(--line); border-radius: 14px;
         padding: 2px 11px; cursor: pointer; }
button[aria-pressed="false"] { opacity: 0.42; }
label { display: inline-flex; gap: 6px; align-items: center; color: var(--faint); }
input[type="range"] { width: 110px; accent-color: var(--mark); }
select { font: inherit; color: var(--ink); background: var(--card); border: 1px solid var(--line);
         border-radius: 5px; padding: 1px 4px; }
.dot { display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 6px; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 400px), 1fr)); gap: 14px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 9px; padding: 12px 14px 8px;
        min-width: 0; position: relative; }
.card h3 { font-size: 14px; font-weight: 600; margin: 0; overflow-wrap: anywhere; }
.card .last { display: flex; flex-wrap: wrap; gap: 0 14px; min-height: 21px; color: var(--faint);
              font-variant-numeric: tabular-nums; }
.card .last b { font-weight: 600; color: var(--ink); }
svg { display: block; overflow: visible; }
.card > svg { width: 100%; height: auto; }
svg text { fill: var(--faint); font-size: 11px; font-variant-numeric: tabular-nums; }
.grid-line { stroke: var(--grid); } .axis { stroke: var(--line); } .cursor { stroke: var(--faint); }
.curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
.raw { stroke-width: 1; opacity: 0.28; } .band { opacity: 0.14; stroke: none; } .strange { fill: var(--bad); }
.tip { position: absolute; pointer-events: none; background: var(--card); border: 1px solid var(--line);
       border-radius: 6px; padding: 5px 9px; font-size: 12px; box-shadow: 0 3px 12px rgba(0, 0, 0, 0.16);
       white-space: nowrap; z-index: 1; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--faint); }
th, td { padding: 3px 18px 3px 0; white-space: nowrap; vertical-align: top; }
td.number, th.number { text-align: right; }
.facts { width: 100%; } .facts tr + tr { border-top: 1px solid var(--grid); }
.facts td { max-width: 420px; overflow-wrap: anywhere; white-space: normal; }
.facts td.differs { color: var(--ink); font-weight: 600; }
code, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 12.5px; }
.ops tbody tr, .ops thead tr { height: 24px; }
.ops td, .ops th { padding-top: 0; padding-bottom: 0; vertical-align: middle; line-height: 24px; }
.ops td.rails { padding: 0 14px 0 0; vertical-align: top; }
.ops tbody tr:hover td:not(.rails) { background: var(--shade); }
.tag { font-size: 11px; border: 1px solid currentColor; color: var(--mark); border-radius: 8px; padding: 0 6px;
       margin-left: 8px; }
.rail { fill: none; stroke: var(--faint); stroke-width: 1.4; opacity: 0.75; }
.bar { background: var(--mark); height: 8px; border-radius: 2px; display: inline-block; opacity: 0.75; }
details { margin: 8px 0 4px; } summary { cursor: pointer; color: var(--mark); }
figure { margin: 0; } figure img { width: 100%; max-height: 420px; object-fit: contain; object-position: left top;
         image-rendering: pixelated; display: block; margin: 6px 0; }
footer { max-width: 1480px; margin: 34px auto 26px; padding: 0 24px; color: var(--faint); font-size: 12px; }
]]

local SCRIPT = [=[
'use strict';
const runs = JSON.parse(document.getElementById('data').textContent).runs;
const view = { x: 'step', smooth: 0, log: false };
const colour = i => `var(--run${i % 8})`;
runs.forEach((run, i) => { run.shown = true; run.colour = colour(i); });
for (const curve of runs.flatMap(run => Object.values(run.series)))
  for (const values of [curve.mean, curve.low || [], curve.high || []])
    values.forEach((y, i) => { if (y === false) values[i] = null; });  // a gap

// ---- making elements ----

const SVG = 'http://www.w3.org/2000/svg';
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {}))
    if (name.startsWith('on')) node[name] = value; else if (value != null) node.setAttribute(name, value);
  node.append(...children.flat().filter(child => child != null));
  return node;
}
const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const dot = run => make('span', { class: 'dot', style: `background: ${run.colour}` });
const section = (title, ...children) => document.querySelector('main').append(make('h2', {}, title), ...children);

// ---- numbers ----

function number(x) {
  if (x == null) return 'not finite';
  const size = Math.abs(x);
  if (x !== 0 && (size < 1e-3 || size >= 1e6)) return Number(x.toPrecision(3)).toExponential().replace('e+', 'e');
  return String(Number(x.toPrecision(4)));
}
const whole = n => n.toLocaleString('en-US');
function duration(seconds) {
  if (seconds < 60) return number(seconds) + ' s';
  const minutes = Math.floor(seconds / 60), pad = n => String(n).padStart(2, '0');
  if (minutes < 60) return `${minutes}:${pad(Math.floor(seconds % 60))} min`;
  return `${Math.floor(minutes / 60)}:${pad(minutes % 60)} h`;
}

// Round numbers between two others, at most about `count`.
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(k => k * power).find(k => k >= raw) || raw, list = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; ++k) list.push(k * step || 0);  // no -0
  return list;
}
function powers(low, high) {
  const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high)), list = [];
  const factors = to - from <= 2 ? [1, 2, 5] : [1], every = Math.ceil((to - from) / 6);
  for (let k = from; k <= to; k += every)
    for (const factor of factors) if (factor * 10 ** k >= low && factor * 10 ** k <= high) list.push(factor * 10 ** k);
  return list.length > 1 ? list : ticks(low, high, 4);
}

// ---- curves ----

const WIDTH = 460, HEIGHT = 230, LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 24;
fill(document.querySelector('#frame rect'), { x: LEFT - 2, y: TOP - 2, width: WIDTH - LEFT - RIGHT + 4,
                                              height: HEIGHT - TOP - BOTTOM + 4 }, []);

// A mean that forgets, without the pull of its first value: s / w with s = a s + (1 - a) y, w = a w + (1 - a).
function smoothed(values, amount) {
  let sum = 0, weight = 0;
  return values.map(y => {
    if (y == null) return null;
    sum = amount * sum + (1 - amount) * y;
    weight = amount * weight + 1 - amount;
    return sum / weight;
  });
}

function path(xs, ys) {
  let text = '', pen = false;
  xs.forEach((x, i) => {
    const y = ys[i];
    if (y == null || !isFinite(y)) { pen = false; return; }
    text += `${pen ? 'L' : 'M'}${x.toFixed(1)} ${y.toFixed(1)}`;
    if (!pen && (ys[i + 1] == null || !isFinite(ys[i + 1]))) text += 'h0';
    pen = true;
  });
  return text;
}

// From the least to the greatest, unless a few values are so far out that nothing would be seen of the others.
function range_of(values) {
  if (!values.length) return view.log ? [0.1, 1] : [0, 1];
  values.sort((a, b) => a - b);
  const at = share => values[Math.round(share * (values.length - 1))], low = at(0.02), high = at(0.98);
  const most = values[values.length - 1], space = (high - low) * 0.5;
  if (view.log || values.length < 50 || most - values[0] < 4 * (high - low)) return [values[0], most];
  return [Math.max(values[0], low - space), Math.min(most, high + space)];
}

function scales(curves) {
  const xs = curves.flatMap(c => c.x), ys = curves.flatMap(c => [...c.raw, ...(!view.smooth && c.low || []),
    ...(!view.smooth && c.high || [])]).filter(y => y != null && (!view.log || y > 0));
  let [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = range_of(ys);
  const hidden = [ys[0] < y0 ? ys[0] : null, ys[ys.length - 1] > y1 ? ys[ys.length - 1] : null];
  if (x1 <= x0) [x0, x1] = [x0 - 0.5, x0 + 0.5];
  if (view.log) {
    if (y1 / y0 < 1.05) [y0, y1] = [y0 / 1.5, y1 * 1.5];
    [y0, y1] = [y0 / (y1 / y0) ** 0.04, y1 * (y1 / y0) ** 0.04];
  } else {
    if (y1 - y0 <= Math.abs(y1) * 1e-9) [y0, y1] = [y0 - (Math.abs(y0) || 1) / 2, y1 + (Math.abs(y1) || 1) / 2];
    const space = (y1 - y0) * 0.05;
    [y0, y1] = [y0 >= 0 && y0 < space * 5 ? 0 : y0 - space, y1 + space];
  }
  const share = view.log ? y => Math.log(y / y0) / Math.log(y1 / y0) : y => (y - y0) / (y1 - y0);
  return {
    x0, x1, y0, y1, hidden,
    x: x => LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT),
    y: y => y == null || view.log && y <= 0 ? null : TOP + (1 - share(y)) * (HEIGHT - TOP - BOTTOM),
  };
}

function axes(at) {
  const all = [];
  for (const y of view.log ? powers(at.y0, at.y1) : ticks(at.y0, at.y1, 5)) {
    all.push(draw('line', { class: 'grid-line', x1: LEFT, x2: WIDTH - RIGHT, y1: at.y(y), y2: at.y(y) }));
    all.push(draw('text', { x: LEFT - 7, y: at.y(y) + 4, 'text-anchor': 'end' }, number(y)));
  }
  for (const x of ticks(at.x0, at.x1, 5)) {
    const text = view.x === 'step' ? whole(x) : duration(x);
    if (view.x === 'step' && x % 1 !== 0) continue;
    all.push(draw('text', { x: at.x(x), y: HEIGHT - 6, 'text-anchor': 'middle' }, text));
  }
  all.push(draw('line', { class: 'axis', x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }));
  return all;
}

function curves_of(name) {
  return runs.filter(run => run.shown && run.series[name]).map(run => {
    const s = run.series[name];
    return { run, x: s[view.x], step: s.step, seconds: s.seconds, raw: s.mean, low: s.low, high: s.high, width: s.width,
             strange: s.strange || [], y: view.smooth ? smoothed(s.mean, view.smooth) : s.mean };
  });
}

function draw_curves(curves, at) {
  const all = [];
  for (const c of curves) {
    const xs = c.x.map(at.x), stroke = `stroke: ${c.run.colour}`;
    if (c.low && !view.smooth) {
      const floor = HEIGHT - BOTTOM, there = xs.map((x, i) => i).filter(i => c.low[i] != null);
      const edge = (i, y) => `${xs[i].toFixed(1)} ${(at.y(y) ?? floor).toFixed(1)}`;
      all.push(draw('polygon', { class: 'band', style: `fill: ${c.run.colour}`, points:
        [...there.map(i => edge(i, c.high[i])), ...there.reverse().map(i => edge(i, c.low[i]))].join(',') }));
    }
    if (view.smooth) all.push(draw('path', { class: 'curve raw', style: stroke, d: path(xs, c.raw.map(at.y)) }));
    all.push(draw('path', { class: 'curve', style: stroke, d: path(xs, c.y.map(at.y)) }));
    if (xs.length === 1 && at.y(c.y[0]) != null)
      all.push(draw('circle', { cx: xs[0], cy: at.y(c.y[0]), r: 3, style: `fill: ${c.run.colour}` }));
  }
  return all;
}

// A mark above the frame wherever a value was not finite.
function draw_strange(curves, at) {
  return curves.flatMap(c => c.strange.map(s => {
    const x = at.x(s[view.x]);
    return draw('path', { class: 'strange', d: `M${x - 4} ${TOP - 6}h8l-4 7z` },
      draw('title', {}, `${s.what} at step ${whole(s.step)}, ${c.run.name}`));
  }));
}

// The values under the pointer.
function follow(card, svg, curves, at) {
  const cursor = draw('line', { class: 'cursor', y1: TOP, y2: HEIGHT - BOTTOM, visibility: 'hidden' });
  const marks = curves.map(c => draw('circle', { r: 3.2, style: `fill: ${c.run.colour}`, visibility: 'hidden' }));
  svg.append(cursor, ...marks);
  const tip = make('div', { class: 'tip', hidden: '' });
  card.append(tip);
  svg.onpointerleave = () => {
    tip.hidden = true;
    for (const mark of [cursor, ...marks]) mark.setAttribute('visibility', 'hidden');
  };
  svg.onpointermove = event => {
    const box = svg.getBoundingClientRect(), zoom = WIDTH / box.width;
    const x = at.x0 + ((event.clientX - box.left) * zoom - LEFT) / (WIDTH - LEFT - RIGHT) * (at.x1 - at.x0);
    const lines = [];
    let nearest = null;
    curves.forEach((c, k) => {
      let i = c.x.findIndex(other => other >= x);
      if (i < 0) i = c.x.length - 1;
      if (i > 0 && x - c.x[i - 1] < c.x[i] - x) --i;
      if (nearest == null || Math.abs(c.x[i] - x) < Math.abs(nearest.x - x))
        nearest = { x: c.x[i], step: c.step[i], seconds: c.seconds[i] };
      const y = at.y(c.y[i]);
      marks[k].setAttribute('visibility', y == null ? 'hidden' : 'visible');
      if (y != null) { marks[k].setAttribute('cx', at.x(c.x[i])); marks[k].setAttribute('cy', y); }
      const range = c.low && c.low[i] != null ? `  (${number(c.low[i])} to ${number(c.high[i])})` : '';
      lines.push(make('div', {}, dot(c.run), make('b', {}, number(c.y[i])), range,
        runs.length > 1 ? make('span', { class: 'faint' }, '  ' + c.run.name) : null));
    });
    if (!nearest) return;
    tip.replaceChildren(make('div', { class: 'faint' }, `step ${whole(nearest.step)}, ${duration(nearest.seconds)}`),
      ...lines);
    cursor.setAttribute('visibility', 'visible');
    cursor.setAttribute('x1', at.x(nearest.x)); cursor.setAttribute('x2', at.x(nearest.x));
    tip.hidden = false;
    const outer = card.getBoundingClientRect(), place = box.left - outer.left + at.x(nearest.x) / zoom;
    const is_beyond = place + tip.offsetWidth + 20 > outer.width;
    tip.style.left = (is_beyond ? place - tip.offsetWidth - 14 : place + 14) + 'px';
    tip.style.top = box.top - outer.top + 10 + 'px';
  };
}

function draw_card(card, name) {
  const curves = curves_of(name), at = scales(curves);
  const svg = draw('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': name });
  svg.append(...axes(at), draw('g', { 'clip-path': 'url(#frame)' }, draw_curves(curves, at)));
  const [low, high] = at.hidden, note = (y, text) => draw('text', { x: WIDTH - RIGHT, y, 'text-anchor': 'end' }, text);
  if (high != null) svg.append(note(TOP + 9, `up to ${number(high)} above`));
  if (low != null) svg.append(note(HEIGHT - BOTTOM - 6, `down to ${number(low)} below`));
  svg.append(...draw_strange(curves, at));
  const last = curves.map(c => make('span', { title: c.run.name }, dot(c.run),
    make('b', {}, number(c.raw[c.raw.length - 1])),
    c.strange.length ? make('span', { style: 'color: var(--bad)' }, `  ${c.strange.length} not finite`) : null));
  card.replaceChildren(make('h3', {}, name), make('div', { class: 'last' }, last), svg);
  follow(card, svg, curves, at);
}

function show_curves() {
  const is_loss = name => /loss/i.test(name) ? 0 : 1;
  const names = [...new Set(runs.flatMap(run => Object.keys(run.series)))]
    .sort((a, b) => is_loss(a) - is_loss(b) || (a < b ? -1 : 1));
  if (!names.length) return () => {};
  const cards = names.map(() => make('div', { class: 'card' }));
  section('Curves', make('div', { class: 'grid' }, cards));
  return () => names.forEach((name, i) => {
    cards[i].hidden = !runs.some(run => run.shown && run.series[name]);
    if (!cards[i].hidden) draw_card(cards[i], name);
  });
}

// ---- histograms: one ridge for each step, the newest in front ----

// Heights are square roots of densities, so that tails are seen beside a peak, as that of the zeros of a relu.

function draw_ridges(rows, run) {
  const low = Math.min(...rows.map(r => r.low)), high = Math.max(...rows.map(r => r.high));
  const width = WIDTH - LEFT - RIGHT, x = v => LEFT + (high > low ? (v - low) / (high - low) : 0.5) * width;
  const density = (r, count) => Math.sqrt(count / r.count / Math.max(r.high - r.low, 1e-300));
  const deep = Math.max(...rows.map(r => density(r, Math.max(...r.counts))));
  const base = i => rows.length > 1 ? 70 + i / (rows.length - 1) * (HEIGHT - BOTTOM - 70) : HEIGHT - BOTTOM;
  const svg = draw('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}` });
  rows.forEach((r, i) => {
    const bin = (r.high - r.low) / r.counts.length, tall = rows.length > 1 ? 62 : HEIGHT - TOP - BOTTOM;
    const points = r.counts.map((count, k) =>
      `L${x(r.low + (k + 0.5) * bin).toFixed(1)} ${(base(i) - density(r, count) / deep * tall).toFixed(1)}`);
    const share = 12 + 40 * (i + 1) / rows.length;
    const ground = base(i).toFixed(1), from = x(r.low).toFixed(1), to = x(r.high).toFixed(1);
    svg.append(draw('path', { d: `M${from} ${ground}${points.join('')}L${to} ${ground}z`,
      style: `fill: color-mix(in srgb, ${run.colour} ${share.toFixed(0)}%, var(--card)); stroke: ${run.colour};` +
        'stroke-width: 0.8; stroke-linejoin: round' }, draw('title', {}, `step ${whole(r.step)}: mean ` +
        `${number(r.mean)}, std ${number(r.std)}, ${number(r.low)} to ${number(r.high)}`)));
    const every = Math.ceil(rows.length / 6);
    if ((rows.length - 1 - i) % every === 0)
      svg.append(draw('text', { x: LEFT - 7, y: base(i) + 3, 'text-anchor': 'end' }, whole(r.step)));
  });
  for (const v of ticks(low, high > low ? high : low + 1, 5))
    svg.append(draw('text', { x: x(v), y: HEIGHT - 6, 'text-anchor': 'middle' }, number(v)));
  return svg;
}

function show_histograms() {
  const cards = [];
  for (const name of [...new Set(runs.flatMap(run => Object.keys(run.histograms)))].sort())
    for (const run of runs) {
      const all = run.histograms[name], rows = (all || []).filter(r => r.count > 0 && r.counts);
      if (!rows.length) continue;
      const last = rows[rows.length - 1], lost = all.reduce((sum, r) => sum + (r.not_finite || 0), 0);
      cards.push({ run, card: make('div', { class: 'card' }, make('h3', {}, name), make('div', { class: 'last' },
        make('span', { title: run.name }, dot(run), runs.length > 1 ? run.name : `step ${whole(last.step)}`),
        make('span', {}, 'mean ', make('b', {}, number(last.mean))),
        make('span', {}, 'std ', make('b', {}, number(last.std))),
        lost ? make('span', { style: 'color: var(--bad)' }, `${whole(lost)} not finite`) : null),
        draw_ridges(rows, run)) });
    }
  if (cards.length) section('Histograms', make('div', { class: 'grid' }, cards.map(c => c.card)));
  return () => cards.forEach(c => { c.card.hidden = !c.run.shown; });
}

// ---- pictures ----

function show_images() {
  const cards = [];
  for (const name of [...new Set(runs.flatMap(run => Object.keys(run.images)))].sort())
    for (const run of runs.filter(r => r.images[name])) {
      const list = run.images[name], image = make('img', { alt: name }), caption = make('span', {});
      const show = i => { image.src = list[i].source; caption.textContent = `step ${whole(list[i].step)}`; };
      const slider = make('input', { type: 'range', min: 0, max: list.length - 1, value: list.length - 1,
                                     'aria-label': 'step', oninput: () => show(Number(slider.value)) });
      show(list.length - 1);
      cards.push({ run, card: make('figure', { class: 'card' }, make('h3', {}, name), make('div', { class: 'last' },
        make('span', { title: run.name }, dot(run), runs.length > 1 ? run.name : null), caption,
        list.length > 1 ? slider : null), image) });
    }
  if (cards.length) section('Pictures', make('div', { class: 'grid' }, cards.map(c => c.card)));
  return () => cards.forEach(c => { c.card.hidden = !c.run.shown; });
}

// ---- the facts of runs ----

function show_facts() {
  const settings = [...new Set(runs.flatMap(run => Object.keys(run.config || {})))].sort();
  const text = value => typeof value === 'object' && value !== null ? JSON.stringify(value) : String(value ?? '');
  const rows = [
    ['steps', run => run.last_step == null ? '' : whole(run.last_step + 1)],
    ['time', run => duration(run.seconds || 0) + (run.parts > 1 ? `, in ${run.parts} parts` : '')],
    ...settings.map(name => [name, run => text((run.config || {})[name])]),
    ['seed', run => text(run.seed)], ['device', run => text(run.device)], ['begun', run => text(run.time)],
    ['command', run => text(run.command)], ['moonflow', run => text(run.moonflow)],
    ['lines that could not be read', run => text(run.torn)],
  ];
  const table = make('table', { class: 'facts' }, make('thead', {}, make('tr', {}, make('th', {}),
    runs.map(run => make('th', {}, dot(run), run.name)))), make('tbody', {}, rows.map(([name, of]) => {
    const cells = runs.map(of);
    if (cells.every(cell => cell === '')) return null;
    const differs = settings.includes(name) && new Set(cells).size > 1;
    return make('tr', {}, make('th', {}, name), cells.map(cell => make('td',
      { class: (differs ? 'differs' : '') + (name === 'command' ? ' mono' : '') }, cell)));
  })));
  section(runs.length > 1 ? 'Runs' : 'The run', make('div', { class: 'card scroll' }, table));
  return () => {};
}

// ---- jobs: the ops, or the steps of a plan, in order, and beside them as rails what reads what ----

// Each value runs down a lane from the row that makes it to the last one that reads it.
function lanes_of(rows) {
  const last = rows.map((row, i) => i), lane = [], until = [];
  rows.forEach((row, i) => (row.inputs || []).forEach(k => { last[k - 1] = Math.max(last[k - 1], i); }));
  rows.forEach((row, i) => {
    const ending = (row.inputs || []).map(k => k - 1).filter(k => last[k] === i).map(k => lane[k]);
    let free = ending.length ? Math.min(...ending) : until.findIndex(end => end <= i);
    if (free < 0) free = until.length;
    lane.push(free);
    until[free] = last[i];
  });
  return { lane, count: until.length };
}

// `mark` gives the circle of a row: its radius, its hue, and whether it is filled.
function draw_rails(rows, mark) {
  const ROW = 24, { lane, count } = lanes_of(rows), gap = Math.max(4, Math.min(13, 260 / count));
  const x = k => 9 + lane[k] * gap, y = k => ROW * (k + 0.5);
  const svg = draw('svg', { width: (count - 1) * gap + 20, height: ROW * rows.length });
  rows.forEach((row, i) => (row.inputs || []).forEach(k => {
    const from = k - 1, turn = y(i) - ROW;
    svg.append(draw('path', { class: 'rail', d: x(from) === x(i) ? `M${x(i)} ${y(from)}V${y(i)}` :
      `M${x(from)} ${y(from)}V${turn}C${x(from)} ${turn + 14},${x(i)} ${turn + 10},${x(i)} ${y(i)}` }));
  }));
  rows.forEach((row, i) => {
    const [r, hue, is_filled] = mark(row, i);
    svg.append(draw('circle', { cx: x(i), cy: y(i), r, 'stroke-width': 1.8,
      style: `fill: ${is_filled ? hue : 'var(--card)'}; stroke: ${hue}` }));
  });
  return make('td', { class: 'rails', rowspan: rows.length }, svg);
}

function table_of_ops(job) {
  const losses = job.losses || [], number_cell = text => make('td', { class: 'number' }, text);
  const mark = (op, i) => op.op === 'input' ? [4, 'var(--run2)', true] :
    losses.includes(i + 1) ? [4, 'var(--run1)', true] : [op.parameters ? 5 : 4, 'var(--mark)', op.parameters > 0];
  return make('table', { class: 'ops' },
    make('thead', {}, make('tr', {}, make('th', {}), ['name', 'op', 'output'].map(t => make('th', {}, t)),
      make('th', { class: 'number' }, 'parameters'), make('th', {}, 'made at'))),
    make('tbody', {}, job.ops.map((op, i) => make('tr', {},
      i === 0 ? draw_rails(job.ops, mark) : null,
      make('td', {}, op.name, losses.includes(i + 1) ? make('span', { class: 'tag' }, 'minimised') : null,
        op.returned ? make('span', { class: 'tag' }, 'returned') : null,
        op.watched ? make('span', { class: 'tag' },
          'watched' + (op.watched === 'value' ? '' : ': ' + op.watched)) : null),
      make('td', { class: 'faint' }, op.op), make('td', { class: 'mono' }, op.output),
      number_cell(op.parameters ? whole(op.parameters) : ''), make('td', { class: 'faint mono' }, op.site)))));
}

function table_of_steps(steps) {
  const most = Math.max(...steps.map(s => s.ms || 0)), total = steps.reduce((sum, s) => sum + (s.ms || 0), 0);
  return make('details', {}, make('summary', {}, `The compiled plan: ${steps.length} steps` +
      (most > 0 ? `, ${number(total)} ms in them` : '')),
    make('div', { class: 'scroll' }, make('table', { class: 'ops' },
      make('thead', {}, make('tr', {}, make('th', {}), make('th', {}, 'step'),
        most > 0 ? [make('th', { class: 'number' }, 'ms'), make('th', {})] : null,
        ['output', 'made at'].map(t => make('th', {}, t)))),
      make('tbody', {}, steps.map((s, i) => make('tr', {},
        i === 0 ? draw_rails(steps, () => [3, 'var(--mark)', true]) : null,
        make('td', {}, s.label),
        most > 0 ? [make('td', { class: 'number' }, s.ms ? s.ms.toFixed(3) : ''), make('td', {},
          make('span', { class: 'bar', style: `width: ${(100 * (s.ms || 0) / most).toFixed(0)}px` }))] : null,
        make('td', { class: 'mono' }, s.output), make('td', { class: 'faint mono' }, s.site)))))));
}

// A job that several runs have alike is shown once.
function show_jobs() {
  const found = new Map();
  for (const run of runs)
    for (const job of Object.values(run.jobs)) {
      const key = JSON.stringify([job.signature, job.ops]);
      if (found.has(key)) found.get(key).runs.push(run); else found.set(key, { job, runs: [run] });
    }
  const cards = [...found.values()].map(({ job, runs: of }) => ({ of, card: make('div', { class: 'card', style:
    'margin-bottom: 14px' }, make('h3', {}, runs.length > 1 ? of.map(dot) : null, job.signature || job.name),
    make('p', { class: 'faint', style: 'margin: 2px 0 8px' }, `${whole(job.parameters || 0)} parameters` +
      (job.frozen ? `, of them ${whole(job.frozen)} frozen` : '') +
      (job.backward ? `; ${whole(job.backward)} more ops for gradients and update` : '')),
    make('div', { class: 'scroll' }, table_of_ops(job)),
    job.steps && job.steps.length ? table_of_steps(job.steps) : null) }));
  if (cards.length) section('Jobs', ...cards.map(c => c.card));
  return () => cards.forEach(c => { c.card.hidden = !c.of.some(run => run.shown); });
}

// ---- the page ----

const parts = [show_curves(), show_histograms(), show_images(), show_facts(), show_jobs()];
const redraw = () => parts.forEach(part => part());
const bar = document.querySelector('nav > div');
bar.append(make('div', { class: 'runs' }, runs.map(run => {
  const button = make('button', { 'aria-pressed': 'true', onclick: () => {
    run.shown = !run.shown;
    button.setAttribute('aria-pressed', run.shown);
    redraw();
  } }, dot(run), run.name);
  return button;
})));
bar.append(
  make('label', {}, 'across', make('select', { onchange: e => { view.x = e.target.value; redraw(); } },
    make('option', { value: 'step' }, 'step'), make('option', { value: 'seconds' }, 'time'))),
  make('label', {}, 'smooth', make('input', { type: 'range', min: 0, max: 0.99, step: 0.01, value: 0,
    oninput: e => { view.smooth = Number(e.target.value); redraw(); } })),
  make('label', {}, make('input', { type: 'checkbox', onchange: e => { view.log = e.target.checked; redraw(); } }),
    'logarithmic'));
redraw();
]=]

local BODY = [[
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@title@</title>
<style>
@style@</style>
</head>
<body>
<header><h1>@title@</h1></header>
<nav><div></div></nav>
<svg width="0" height="0" aria-hidden="true"><clipPath id="frame"><rect/></clipPath></svg>
<main><noscript>The curves are drawn by a script that stands in this page.</noscript></main>
<footer>Written by Moonflow. This page needs no network.</footer>
<script type="application/json" id="data">@data@</script>
<script>
@script@</script>
</body>
</html>
]]

local ENTITIES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }

--- The page with this title about `json`.
function page.text(title, json)
  local parts = { title = title:gsub('[&<>"]', ENTITIES), style = STYLE, script = SCRIPT,
                  data = json:gsub("<", "\\u003c") }  -- so that no text in it ends the element
  return (BODY:gsub("@(%l+)@", parts))
end

return page
