"use strict";
// A small plotting library. `plot` draws points, lines, bands and whiskers as SVG into an element.
// Data never becomes markup: names are text, colours are classes.

const SVG = "http://www.w3.org/2000/svg";

function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(target, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) target.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) target.setAttribute(name, value === true ? "" : value);
  }
  target.append(...children.filter((child) => child !== null && child !== undefined));
  return target;
}

// ------------------------------------------------------------------------------------------------------- numbers

const signed = (text) => text.replace("-", "−");

// One number: four digits, thousands apart.
function format(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return value === "NaN" ? "not a number" : signed(value);
  const size = Math.abs(value);
  if (size >= 1e7 || (size > 0 && size < 1e-4)) return signed(value.toExponential(2));
  if (size >= 1000) return signed(Math.round(value).toLocaleString("en-US"));
  return signed(String(Number(value.toPrecision(4))));
}

// A number of an interval: as many digits as its width supports, two of the half width. As in stats/intervals.py.
function formatWithin(value, low, high) {
  const half = (high - low) / 2;
  if (typeof low !== "number" || !(half > 1e-6 && half < 1e6) || typeof value !== "number") return format(value);
  const digits = Math.max(0, 1 - Math.floor(Math.log10(half)));
  return signed(value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
}

// -------------------------------------------------------------------------------------------------------- scales

function niceTicks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high, count) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of [1, 2, 5]) ticks.push(factor * 10 ** power);
  }
  const inside = ticks.filter((tick) => tick >= low && tick <= high);
  if (inside.length < 3) return niceTicks(low, high, count);
  const decades = inside.filter((tick) => Number.isInteger(Math.round(Math.log10(tick) * 1e6) / 1e6));
  return inside.length > 2 * count && decades.length > 1 ? decades : inside;
}

// Values to [0, 1]. Without a domain there is a little room around the values; `zero` keeps 0 in sight.
function makeScale(values, { log = false, domain = null, zero = false, count = 5, pad = 0.05 } = {}) {
  const by = log ? Math.log : (value) => value;
  const back = log ? Math.exp : (value) => value;
  const known = values.filter((value) => Number.isFinite(by(value)));
  let [low, high] = domain ?? [Math.min(...known, ...(zero ? [0] : [])), Math.max(...known, ...(zero ? [0] : []))];
  if (!(low <= high)) [low, high] = log ? [1, 10] : [0, 1];
  let [a, b] = [by(low), by(high)];
  const room = (b - a) * pad || Math.max(Math.abs(a), 1) * 0.05;
  [a, b] = [a - room, b + room];
  const ticks = (log ? logTicks : niceTicks)(back(a), back(b), count);
  return { at: (value) => (by(value) - a) / (b - a), ticks };
}

// --------------------------------------------------------------------------------------------------------- texts

// Pixels that a text takes in a chart, at the size of page.css.
function textWidth(text) {
  textWidth.pen ??= document.createElement("canvas").getContext("2d");
  textWidth.pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  return textWidth.pen.measureText(text).width;
}

// As much of a text as fits into some pixels.
function cut(text, room) {
  if (textWidth(text) <= room) return text;
  let short = text;
  while (short && textWidth(`${short}…`) > room) short = short.slice(0, -1);
  return short ? `${short}…` : "";
}

// ------------------------------------------------------------------------------------------------------- markers

const polygon = (corners) => (r) => `M${corners.map(([x, y]) => `${(x * r).toFixed(2)},${(y * r).toFixed(2)}`).join("L")}Z`;
const PLUS = [[-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4], [0.4, 1.1], [-0.4, 1.1], [-0.4, 0.4], [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4]];
const MARKERS = {
  o: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
  s: polygon([[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]]),
  "^": polygon([[0, -1.15], [1.1, 0.85], [-1.1, 0.85]]),
  v: polygon([[0, 1.15], [1.1, -0.85], [-1.1, -0.85]]),
  "<": polygon([[-1.15, 0], [0.85, 1.1], [0.85, -1.1]]),
  ">": polygon([[1.15, 0], [-0.85, 1.1], [-0.85, -1.1]]),
  D: polygon([[0, -1.2], [1.1, 0], [0, 1.2], [-1.1, 0]]),
  P: polygon(PLUS),
  X: polygon(PLUS.map(([x, y]) => [(x - y) * 0.75, (x + y) * 0.75])),
};
const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "12 4"];

const markerPath = (series, r) => (MARKERS[series.marker] ?? MARKERS.o)(r);

// How a series looks, small: for legends and tables.
function glyph(series) {
  return shape(
    "svg",
    { class: `glyph ${series.look}`, width: 30, height: 14, viewBox: "-15 -7 30 14", "aria-hidden": "true" },
    shape("line", { class: "line", x1: -15, x2: 15, "stroke-dasharray": series.dash }),
    shape("path", { class: series.filled ? "marker full" : "marker", d: markerPath(series, 4.5) }),
  );
}

// ------------------------------------------------------------------------------------------------------- tooltip

const tip = {
  show(lines, x, y) {
    const box = document.getElementById("tip");
    (document.querySelector("dialog[open]") ?? document.body).append(box); // above an open dialog too
    box.replaceChildren(...lines.map((line, index) => element("div", { class: index ? "" : "first" }, line)));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = x + 14 + width > window.innerWidth ? x - width - 14 : x + 14;
    box.style.left = `${Math.max(4, Math.min(left, window.innerWidth - width - 4))}px`;
    box.style.top = `${Math.max(4, Math.min(y - height - 10 < 4 ? y + 16 : y - height - 10, window.innerHeight - height - 4))}px`;
  },
  hide() {
    document.getElementById("tip").hidden = true;
  },
};

// Everything of one arm stands out, in all charts and the table.
function highlight(key) {
  document.body.classList.toggle("lit", key !== null);
  for (const lit of document.querySelectorAll(".on")) lit.classList.remove("on");
  if (key !== null) for (const same of document.querySelectorAll(`[data-key="${Number(key)}"]`)) same.classList.add("on");
}

// ---------------------------------------------------------------------------------------------------------- plot

// spec: {title, x, y, bands, rules, series, pick, height}
//   x, y    {title, log, zero, domain, rows}; the title of y stands above, instead of bands; rows are the names of y = 0, 1, …
//   bands   [{from, to, text, strong}]; rules [{y, text, look}]
//   series  [{key, name, look, marker, filled, dash, line, end, points: [{x, y, text, size, label, xs, ys, run}]}]
//           xs and ys are the ends of whiskers; `text` is the tooltip, by lines; `end` is written after the last point
function plot(host, spec) {
  const width = Math.max(260, Math.floor(host.clientWidth || 320));
  const series = spec.series.map((one) => ({ ...one, points: one.points.filter((p) => drawable(p.x) && drawable(p.y, spec.y.log)) }));
  const points = series.flatMap((one) => one.points);
  const rows = spec.y.rows;
  const height = rows ? 44 + 48 * rows.length : spec.height ?? 250;
  const ends = (p, side) => [p[side], ...(p[`${side}s`] ?? [])].filter((value) => drawable(value, spec[side].log));
  const x = makeScale(points.flatMap((p) => ends(p, "x")), { ...spec.x, count: width / 90, pad: spec.x.domain ? 0.015 : 0.05 });
  const y = rows
    ? { at: (value) => 1 - (value + 0.7) / rows.length, ticks: [] }
    : makeScale([...points.flatMap((p) => ends(p, "y")), ...(spec.rules ?? []).map((rule) => rule.y)], { ...spec.y, count: height / 50 });
  const labels = y.ticks.map(format);
  const after = Math.max(0, ...series.map((one) => (one.end ? Math.min(textWidth(one.end), 90) + 10 : 0)));
  const frame = {
    left: rows ? 8 : 12 + Math.max(6, ...labels.map(textWidth)),
    right: width - Math.max(10, after), top: spec.bands?.length || spec.y.title ? 22 : 8, bottom: height - 36,
  };
  const px = (value) => frame.left + x.at(value) * (frame.right - frame.left);
  const py = (value) => frame.bottom - y.at(value) * (frame.bottom - frame.top);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": spec.title, class: "plot" });

  drawBands(svg, spec.bands ?? [], px, frame);
  for (const [index, tick] of y.ticks.entries()) {
    svg.append(shape("line", { class: tick === 0 ? "axis" : "grid", x1: frame.left, x2: frame.right, y1: py(tick), y2: py(tick) }));
    svg.append(shape("text", { class: "tick", x: frame.left - 5, y: py(tick) + 4, "text-anchor": "end" }, labels[index]));
  }
  for (const [index, name] of (rows ?? []).entries()) {
    svg.append(shape("line", { class: "grid", x1: frame.left, x2: frame.right, y1: py(index), y2: py(index) }));
    svg.append(shape("text", { class: "row", x: frame.left, y: py(index) - 17 }, cut(name, frame.right - frame.left)));
  }
  for (const tick of x.ticks) {
    svg.append(shape("line", { class: "grid", x1: px(tick), x2: px(tick), y1: frame.bottom, y2: frame.bottom + 4 }));
    svg.append(shape("text", { class: "tick", x: px(tick), y: frame.bottom + 16, "text-anchor": "middle" }, format(tick)));
  }
  svg.append(shape("line", { class: "axis", x1: frame.left, x2: frame.right, y1: frame.bottom, y2: frame.bottom }));
  svg.append(shape("text", { class: "title", x: frame.right, y: height - 4, "text-anchor": "end" }, cut(spec.x.title, width)));
  if (spec.y.title) svg.append(shape("text", { class: "title", x: 2, y: 11 }, cut(spec.y.title, width)));
  for (const rule of spec.rules ?? []) {
    svg.append(shape("line", { class: `rule ${rule.look}`, x1: frame.left, x2: frame.right, y1: py(rule.y), y2: py(rule.y) }));
    svg.append(shape("text", { class: "label", x: frame.right, y: py(rule.y) - 4, "text-anchor": "end" }, cut(rule.text, frame.right - frame.left)));
  }
  const targets = series.flatMap((one) => drawSeries(svg, one, px, py));
  drawLabels(svg, targets, frame);
  drawEnds(svg, targets, frame);
  if (!points.length) svg.append(shape("text", { class: "label", x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing to draw here."));
  makeLive(svg, targets, spec);
  host.replaceChildren(svg);
  const broken = spec.series.flatMap((one) => one.points).filter((p) => typeof p.x === "string" || typeof p.y === "string").length;
  if (broken) host.append(element("p", { class: "note" }, `Not drawn: ${broken} values that are not finite numbers.`));
  return svg;
}

const drawable = (value, log = false) => typeof value === "number" && Number.isFinite(value) && (!log || value > 0);

function drawBands(svg, bands, px, frame) {
  for (const [index, band] of bands.entries()) {
    const [from, to] = [px(band.from), px(band.to)];
    const look = `band ${band.strong ? "strong" : index % 2 ? "odd" : "even"}`;
    svg.append(shape("rect", { class: look, x: from, y: frame.top, width: Math.max(0, to - from), height: frame.bottom - frame.top }));
    const text = cut(band.text, to - from);
    if (text.length > 1) svg.append(shape("text", { class: "tick", x: (from + to) / 2, y: frame.top - 6, "text-anchor": "middle" }, text));
  }
}

function drawSeries(svg, one, px, py) {
  const group = shape("g", { class: `series ${one.look}`, "data-key": one.key });
  const targets = one.points.map((point) => ({ x: px(point.x), y: py(point.y), point, series: one, group }));
  if (one.line) {
    const path = targets.map((t, index) => `${index && !t.point.gap ? "L" : "M"}${t.x.toFixed(1)},${t.y.toFixed(1)}`).join("");
    group.append(shape("path", { class: "line", d: path, "stroke-dasharray": one.dash }));
  }
  for (const target of targets) {
    const { point } = target;
    for (const [side, project] of [["xs", px], ["ys", py]]) {
      if (!point[side]?.every((value) => drawable(value))) continue;
      const [a, b] = point[side].map(project);
      group.append(shape("line", { class: "whisker", ...(side === "xs" ? { x1: a, x2: b, y1: target.y, y2: target.y } : { x1: target.x, x2: target.x, y1: a, y2: b }) }));
    }
  }
  for (const target of targets) {
    if (target.point.size === 0) continue;
    const look = `marker${one.filled ? " full" : ""}${target.point.faint ? " faint" : ""}`;
    const d = markerPath(one, target.point.size ?? 3);
    target.mark = shape("path", { class: look, d, transform: `translate(${target.x.toFixed(1)},${target.y.toFixed(1)})` });
    group.append(target.mark);
  }
  svg.append(group);
  return targets;
}

// Names beside their points, where there is room; the others are told by the tooltip.
function drawLabels(svg, targets, frame) {
  const taken = targets.filter((t) => t.point.label).map((t) => ({ left: t.x - 6, right: t.x + 6, top: t.y - 6, bottom: t.y + 6 }));
  for (const target of targets.filter((t) => t.point.label)) {
    const text = cut(target.point.label, 240);
    const [w, h] = [textWidth(text), 12];
    for (const [dx, dy] of [[10, 4], [-10 - w, 4], [-w / 2, -10], [-w / 2, 19], [8, -8], [8, 16], [-8 - w, -8], [-8 - w, 16]]) {
      const box = { left: target.x + dx, right: target.x + dx + w, top: target.y + dy - h + 2, bottom: target.y + dy + 2 };
      const inside = box.left >= frame.left && box.right <= frame.right && box.top >= frame.top && box.bottom <= frame.bottom;
      if (!inside || taken.some((o) => box.left < o.right && o.left < box.right && box.top < o.bottom && o.top < box.bottom)) continue;
      taken.push(box);
      svg.append(shape("g", { class: "series", "data-key": target.series.key }, shape("text", { class: "label", x: box.left, y: target.y + dy }, text)));
      break;
    }
  }
}

// Names after the last points of lines, moved apart where they would overlap.
function drawEnds(svg, targets, frame) {
  const last = new Map(targets.filter((t) => t.series.end).map((t) => [t.series, t]));
  let floor = frame.top;
  for (const target of [...last.values()].sort((a, b) => a.y - b.y)) {
    const at = Math.max(target.y + 4, floor + 4);
    floor = at + 8;
    target.group.append(shape("text", { class: "label", x: target.x + 7, y: at }, cut(target.series.end, 90)));
  }
}

// Pointer and keyboard: the nearest point is told and can be picked; one tab stop for each chart, arrows inside.
function makeLive(svg, targets, spec) {
  const stops = [];
  for (const target of targets) {
    if (target.series.line && stops.at(-1)?.series === target.series) stops[stops.length - 1] = target;
    else stops.push(target);
  }
  stops.forEach((stop, index) => {
    const handle = stop.series.line ? stop.group : stop.mark;
    fill(handle, { tabindex: index ? -1 : 0, role: spec.pick ? "button" : "img", "aria-label": stop.point.text.join(", ") }, []);
    handle.addEventListener("focus", () => tell(stop));
    handle.addEventListener("blur", forget);
    handle.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (move) {
        const next = stops[(index + move + stops.length) % stops.length];
        const other = next.series.line ? next.group : next.mark;
        handle.setAttribute("tabindex", -1);
        other.setAttribute("tabindex", 0);
        other.focus();
      } else if (spec.pick && (event.key === "Enter" || event.key === " ")) spec.pick(stop.point, stop.series);
      else return;
      event.preventDefault();
    });
  });
  const ring = shape("circle", { class: "ring", r: 7, visibility: "hidden" });
  svg.append(ring);

  function tell(target) {
    const place = svg.getBoundingClientRect();
    const zoom = place.width / svg.viewBox.baseVal.width;
    fill(ring, { cx: target.x, cy: target.y, visibility: "visible" }, []);
    if (target.series.key !== undefined) highlight(target.series.key);
    tip.show(target.point.text, place.left + target.x * zoom, place.top + target.y * zoom);
  }
  function forget() {
    ring.setAttribute("visibility", "hidden");
    highlight(null);
    tip.hide();
  }
  function nearest(event) {
    const place = svg.getBoundingClientRect();
    const zoom = place.width / svg.viewBox.baseVal.width;
    const [x, y] = [(event.clientX - place.left) / zoom, (event.clientY - place.top) / zoom];
    let [best, least] = [null, 28];
    for (const target of targets) {
      const distance = Math.hypot(target.x - x, target.y - y) + (target.point.faint ? 3 : 0);
      if (distance < least) [best, least] = [target, distance];
    }
    return best;
  }
  svg.addEventListener("pointermove", (event) => {
    const found = nearest(event);
    svg.classList.toggle("pickable", Boolean(found && spec.pick));
    if (found) tell(found);
    else forget();
  });
  svg.addEventListener("pointerleave", forget);
  svg.addEventListener("click", (event) => {
    const found = nearest(event);
    if (found && spec.pick) spec.pick(found.point, found.series);
  });
}
