// Requests the state once a second and draws it. Numbers arrive as HTML that the server has escaped; this file only creates text
// nodes and numeric attributes.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 640, HEIGHT = 270, LEFT = 58, RIGHT = 12, TOP = 8, BOTTOM = 42;
const byId = (id) => document.getElementById(id);
const shown = new Map(); // the data of each part as last drawn: an unchanged part is not drawn again

function make(name, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "rect", "g", "title"].includes(name);
  const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function changed(id, value) {
  const text = JSON.stringify(value) ?? "";
  if (shown.get(id) === text) return false;
  shown.set(id, text);
  return true;
}

// ------------------------------------------------------------------------------------------------------------------- axes

// round numbers between low and high
function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= raw);
  const places = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step && places.length < 20; i++) places.push(i * step);
  return places;
}

function decades(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const stride = Math.max(1, Math.ceil((last - first) / 6));
  const places = [];
  for (let e = first; e <= last; e += stride) places.push(10 ** e);
  return places;
}

function label(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(0).replace("e+", "e") : String(Number(value.toPrecision(4)));
}

// the scales of a chart that shows all points; log: [x is logarithmic, y is logarithmic]
function scales(xs, ys, log, zero) {
  const span = (values, logarithmic) => {
    let low = Infinity, high = -Infinity;
    for (const v of values) if (v < low) low = v;
    for (const v of values) if (v > high) high = v;
    if (logarithmic && values === ys) { // whole decades, so that the axis has at least one label
      const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
      return [10 ** first, 10 ** Math.max(last, first + 1)];
    }
    if (logarithmic) return low < high ? [low, high] : [low / 2, high * 2];
    if (zero && values === ys) low = Math.min(low, 0);
    if (low === high) { const d = Math.abs(low) * 0.05 || 1; return [low - d, high + d]; }
    const margin = values === ys ? 0.05 * (high - low) : 0;
    return [zero && values === ys && low === 0 ? 0 : low - margin, high + margin];
  };
  const place = ([low, high], logarithmic, from, to) => {
    const f = logarithmic ? Math.log10 : (v) => v;
    return (v) => from + ((f(v) - f(low)) / (f(high) - f(low))) * (to - from);
  };
  const x = span(xs, log[0]), y = span(ys, log[1]);
  return { x, y, px: place(x, log[0], LEFT, WIDTH - RIGHT), py: place(y, log[1], HEIGHT - BOTTOM, TOP) };
}

function frame(s, log, xName, title) {
  const svg = make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  const inside = ([low, high]) => (v) => v >= low * (low > 0 ? 0.999999 : 1.000001) && v <= high * (high > 0 ? 1.000001 : 0.999999);
  for (const v of (log[1] ? decades(...s.y) : ticks(...s.y, 5)).filter(inside(s.y))) {
    const y = s.py(v);
    svg.append(make("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }));
    svg.append(make("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, label(v)));
  }
  for (const v of (log[0] ? decades(...s.x) : ticks(...s.x, 6)).filter(inside(s.x))) {
    svg.append(make("text", { x: s.px(v), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, label(v)));
  }
  svg.append(make("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, xName));
  return svg;
}

// curves: [{label, x, y}]
function lines(title, curves, { xName = "", log = [false, false], zero = false } = {}) {
  const good = (x, y) => Number.isFinite(x) && Number.isFinite(y) && !(log[0] && x <= 0) && !(log[1] && y <= 0);
  const points = curves.map((c) => c.x.map((x, i) => [x, c.y[i]]).filter(([x, y]) => good(x, y)));
  const all = points.flat();
  if (!all.length) return null;
  const s = scales(all.map((p) => p[0]), all.map((p) => p[1]), log, zero);
  const svg = frame(s, log, xName, title);
  points.forEach((list, i) => {
    if (!list.length) return;
    const path = list.map(([x, y], j) => `${j ? "L" : "M"}${s.px(x).toFixed(1)} ${s.py(y).toFixed(1)}`).join("");
    svg.append(make("path", { class: `curve k${i % 4}`, d: list.length > 1 ? path : `${path}h.1` }));
  });
  return card(title, svg, legend(curves.map((c) => c.label)));
}

function legend(labels) {
  if (labels.length < 2) return "";
  return make("ul", { class: "legend" }, ...labels.map((text, i) => make("li", { class: `k${i % 4}` }, String(text))));
}

function card(title, ...children) {
  return make("section", {}, make("h2", {}, title), ...children);
}

// --------------------------------------------------------------------------------------------------------------- pictures

// singular values as bars on a logarithmic axis
function spectrum(sigma) {
  const values = sigma.filter((v) => v > 0);
  if (!values.length) return null;
  const title = "singular values";
  const low = Math.min(...values) / 1.5, high = Math.max(...values) * 1.3; // so that the smallest value has a bar too
  const s = scales([0.4, values.length + 0.6], [low, high], [false, true], false);
  const svg = frame({ ...s, x: [1, 0] }, [false, true], "mode", title);
  const room = s.px(2) - s.px(1), every = Math.ceil(values.length / 20);
  values.forEach((v, i) => {
    const y = s.py(v), width = Math.min(room * 0.7, 46);
    const bar = make("rect", { class: "k0", x: s.px(i + 1) - width / 2, y, width, height: Math.max(HEIGHT - BOTTOM - y, 0), rx: 2 });
    bar.append(make("title", {}, `${i + 1}: ${v.toPrecision(9)}`));
    svg.append(bar);
    if (i % every === 0) svg.append(make("text", { x: s.px(i + 1), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" }, String(i + 1)));
  });
  return card(title, svg);
}

// blue below zero, red above zero, the colour of the page at zero
function colour(t, dark) {
  const middle = dark ? [27, 32, 41] : [255, 255, 255], end = t < 0 ? [37, 99, 201] : [201, 52, 40];
  const a = Math.min(Math.abs(t), 1) ** 0.85;
  return middle.map((m, i) => m + (end[i] - m) * a);
}

function paint(name, bytes, rows, columns, dark) {
  const canvas = make("canvas", { width: columns, height: rows, role: "img", "aria-label": name });
  const context = canvas.getContext("2d"), pixels = context.createImageData(columns, rows);
  for (let i = 0; i < bytes.length; i++) {
    const row = rows - 1 - Math.floor(i / columns); // the first row is at the bottom
    const [r, g, b] = colour((bytes[i] - 127.5) / 127.5, dark);
    pixels.data.set([r, g, b, 255], 4 * (row * columns + (i % columns)));
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

function image(drawing, index, dark) {
  const { rows, columns } = drawing, name = String(drawing.labels[index] ?? "");
  const bytes = Uint8Array.from(atob(drawing.images[index]), (c) => c.charCodeAt(0));
  if (bytes.length !== rows * columns) return make("p", {}, "?");
  const canvas = paint(name, bytes, rows, columns, dark);
  canvas.style.aspectRatio = String(1 / Math.min(Math.max(Number(drawing.aspect) || 1, 0.1), 4)); // width over height
  const parts = [canvas], top = Number(drawing.top?.[index]);
  if (Number.isFinite(top)) {
    const bar = paint("colour bar", Uint8Array.from({ length: 256 }, (_, i) => i), 1, 256, dark);
    bar.className = "bar";
    const ends = make("div", { class: "ends" }, ...[-top, 0, top].map((v) => make("span", {}, v ? v.toPrecision(2) : "0")));
    parts.push(bar, ends);
  }
  return make("figure", {}, ...parts, make("figcaption", {}, name));
}

function drawn(drawing, dark) {
  const title = `${drawing.title} (${drawing.analysis})`;
  if (drawing.kind === "images") {
    return card(title, make("div", { class: "images" }, ...drawing.images.map((_, i) => image(drawing, i, dark))));
  }
  const [first, last] = drawing.extent;
  const place = (i, n) => (n > 1 ? first + ((last - first) * i) / (n - 1) : first);
  return lines(title, drawing.lines.map((y, i) => ({ label: drawing.labels[i], x: y.map((_, j) => place(j, y.length)), y })), { xName: "x" });
}

function charts(state) {
  const cards = [spectrum(state.sigma)], h = state.history;
  if (h && h.step.length > 1) {
    const curves = [{ label: "solver", x: h.step, y: h.solver_ms }, { label: "analyses", x: h.step, y: h.analysis_ms }];
    cards.push(lines("milliseconds per step", curves, { xName: "step", zero: true }));
    const lost = h.energy.map((e) => (e === null ? NaN : 1 - e));
    if (lost.some((e) => e > 1e-15)) {
      cards.push(lines("energy outside of the modes", [{ label: "", x: h.step, y: lost.map((e) => Math.max(e, 1e-16)) }],
        { xName: "step", log: [false, true] }));
    }
  }
  for (const [name, power] of Object.entries(state.power)) {
    const curve = { label: "", x: power.map((_, i) => i), y: power };
    cards.push(lines(`power spectrum (${name})`, [curve], { xName: "wavenumber", log: [true, true] }));
  }
  return cards;
}

// ---------------------------------------------------------------------------------------------------------------- polling

const darkQuery = matchMedia("(prefers-color-scheme: dark)");

function show(state) {
  document.body.className = `${state.state}-run`;
  for (const [id, html] of Object.entries(state.fragments)) if (changed(id, html)) byId(id).innerHTML = html;
  const dark = darkQuery.matches;
  const parts = {
    drawings: [[state.drawings, dark], () => (state.drawings ?? []).map((d) => drawn(d, dark))],
    charts: [[state.sigma, state.history, state.power], () => charts(state)],
  };
  for (const [id, [from, build]] of Object.entries(parts)) {
    if (!changed(id, from)) continue;
    let drawings = [];
    try { drawings = build().filter(Boolean); } catch (error) { console.error(id, error); } // the other parts are still shown
    byId(id).replaceChildren(...drawings);
  }
  document.title = `${state.state} - lapwing insitu`;
}

function lost() {
  if (!changed("state", "lost")) return;
  const pill = make("span", { class: "pill lost" }, "the viewer has stopped");
  byId("state").replaceChildren(pill);
}

async function poll() {
  try {
    const answer = await fetch("/state.json", { cache: "no-store" });
    if (answer.ok) show(await answer.json());
  } catch {
    lost();
  }
  setTimeout(poll, 1000);
}

poll();
