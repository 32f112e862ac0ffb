"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;

/* ---------- theme ---------- */
const systemDark = matchMedia("(prefers-color-scheme: dark)");
const applyTheme = (dark) => { root.dataset.theme = dark ? "dark" : "light"; };
systemDark.addEventListener("change", (event) => applyTheme(event.matches));
document.querySelector(".theme").addEventListener("click", () => applyTheme(root.dataset.theme !== "dark"));
addEventListener("beforeprint", () => { for (const more of document.querySelectorAll("details")) more.open = true; root.dataset.screen = root.dataset.theme; applyTheme(false); });
addEventListener("afterprint", () => applyTheme(root.dataset.screen === "dark"));

/* ---------- numbers ---------- */
const trim = (text) => text.includes(".") ? text.replace(/\.?0+$/, "") : text;
function short(value) {
  const size = Math.abs(value);
  if (size === 0) return "0";
  for (const [unit, name] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]])
    if (size >= unit) return trim((value / unit).toFixed(size / unit >= 100 ? 0 : 1)) + name;
  if (size >= 1) return trim(value.toFixed(size >= 100 ? 0 : 2));
  if (size >= 1e-3) return trim(value.toPrecision(3));
  return value.toExponential(1).replace(".0e", "e");
}
function clock(seconds) {
  if (seconds < 9.95) return `${trim(seconds.toFixed(1))} s`;
  const whole = Math.round(seconds), minutes = Math.round(seconds / 60);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min` + (whole % 60 ? ` ${whole % 60} s` : "");
  return `${Math.floor(minutes / 60)} h` + (minutes % 60 ? ` ${minutes % 60} min` : "");
}
const percent = (value) => `${trim((100 * value).toFixed(1))}%`;
const write = { number: short, time: clock, percent };

function ticks(low, high, count, kind) {
  const span = high - low || 1;
  let steps = [1, 2, 2.5, 5, 10];
  let scale = Math.pow(10, Math.floor(Math.log10(span / count)));
  if (kind === "time" && span / count >= 10) { steps = [10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800]; scale = 1; }
  const step = scale * (steps.find((candidate) => span / (candidate * scale) <= count) || steps[steps.length - 1]);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

function logTicks(low, high) {
  for (const digits of [[1], [1, 3], [1, 2, 5]]) {
    const found = Array.from({ length: 16 }, (_, power) => digits.map((digit) => digit * Math.pow(10, power))).flat();
    const inside = found.filter((tick) => tick >= low && tick <= high);
    if (inside.length > 2 || digits.length === 3) return inside;
  }
}

/* ---------- one line chart; spec: {x, y, yKind, xKind, series: [{name, color, xs, ys, style}], references, height} ---------- */
const svgName = "http://www.w3.org/2000/svg";
function make(name, attributes, parent, text) {
  const node = document.createElementNS(svgName, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}
function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}
function draw(holder, spec) {
  const width = Math.max(220, holder.clientWidth), height = spec.height;
  holder.querySelector("svg")?.remove();
  const all = spec.series.filter((series) => series.xs.length);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": spec.label });
  holder.prepend(svg);
  if (!all.length) { make("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, svg, "nothing recorded"); return; }
  const ys = all.flatMap((series) => series.ys), xs = all.flatMap((series) => series.xs);
  let low = Math.min(...ys), high = all.some((series) => series.style === "raw") ? Math.max(quantile(ys, 0.995), ...all.filter((s) => s.style !== "raw").flatMap((s) => s.ys)) : Math.max(...ys);
  const reach = 0.35 * (high - low || 1);
  const inside = (spec.references || []).filter((reference) => reference.value <= high + reach && reference.value >= low - reach);
  for (const reference of inside) { low = Math.min(low, reference.value); high = Math.max(high, reference.value); }
  if (spec.fromZero) low = Math.min(0, low);
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  if (!(spec.fromZero && low === 0)) low -= room;
  high += room;
  const yTicks = ticks(low, high, Math.max(2, Math.round(height / 52)), "number");
  const power = Math.floor(Math.log10(Math.max(Math.abs(low), Math.abs(high))));
  const yWrite = (value) => value && power < -2 ? `${trim((value / 10 ** power).toFixed(2))}e${power}` : write[spec.yKind](value);
  const margin = { left: 12 + 7.2 * Math.max(...yTicks.map((tick) => yWrite(tick).length)), right: 12, top: 8, bottom: 24 };
  const logX = spec.log && Math.max(...xs) > 0 && spec.xKind !== "time";
  const firstX = logX ? Math.min(...xs.filter((value) => value > 0)) : Math.min(0, ...xs), lastX = Math.max(...xs);
  const place = logX ? (value) => Math.log(Math.max(value, firstX) / firstX) / (Math.log(lastX / firstX) || 1) : (value) => (value - firstX) / (lastX - firstX || 1);
  const px = (value) => margin.left + place(value) * (width - margin.left - margin.right);
  const py = (value) => margin.top + (high - value) / (high - low) * (height - margin.top - margin.bottom);
  for (const tick of yTicks) {
    make("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: py(tick), y2: py(tick) }, svg);
    make("text", { x: margin.left - 8, y: py(tick) + 4, "text-anchor": "end" }, svg, yWrite(tick));
  }
  const xTicks = logX
    ? logTicks(firstX, lastX)
    : ticks(firstX, lastX, Math.max(2, Math.floor(width / 84)), spec.xKind);
  for (const tick of xTicks) {
    make("line", { class: "axis", x1: px(tick), x2: px(tick), y1: height - margin.bottom, y2: height - margin.bottom + 4 }, svg);
    const nearEnd = px(tick) > width - 26;
    make("text", { x: nearEnd ? width : px(tick), y: height - 5, "text-anchor": nearEnd ? "end" : "middle" }, svg, write[spec.xKind](tick));
  }
  make("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom }, svg);
  for (const reference of inside) {
    make("line", { class: "reference", x1: margin.left, x2: width - margin.right, y1: py(reference.value), y2: py(reference.value) }, svg);
    make("text", { class: "reference-label", x: width - margin.right - 2, y: py(reference.value) - 5, "text-anchor": "end" }, svg, reference.name);
  }
  const clip = `clip-${Math.random().toString(36).slice(2)}`;
  make("rect", { x: margin.left - 6, y: 0, width: width - margin.left - margin.right + 12, height: height - margin.bottom + 1 }, make("clipPath", { id: clip }, svg));
  const lines = make("g", { "clip-path": `url(#${clip})`, fill: "none", "stroke-linejoin": "round", "stroke-linecap": "round" }, svg);
  for (const series of all) {
    const points = series.xs.map((value, at) => `${px(value).toFixed(1)} ${py(series.ys[at]).toFixed(1)}`);
    if (series.style !== "dots" || points.length > 1)
      make("path", { d: `M${points.join("L")}`, stroke: series.color, "stroke-width": series.style === "raw" ? 1 : 2, opacity: series.style === "raw" ? 0.4 : 1, "stroke-dasharray": series.style === "dots" ? "1 5" : "none" }, lines);
    if (series.style === "line" && points.length === 1)
      make("circle", { cx: px(series.xs[0]), cy: py(series.ys[0]), r: 3, fill: series.color }, lines);
    if (series.style === "dots" && points.length <= 60)
      series.xs.forEach((value, at) => make("circle", { cx: px(value), cy: py(series.ys[at]), r: 3.6, fill: "var(--panel)", stroke: series.color, "stroke-width": 2 }, lines));
  }
  readout(holder, svg, spec, all.filter((series) => series.style !== "raw"), { px, py, margin, width, height, firstX, lastX });
}
function readout(holder, svg, spec, series, { px, py, margin, width, height }) {
  const box = holder.querySelector(".readout") || holder.appendChild(Object.assign(document.createElement("div"), { className: "readout" }));
  const cross = make("line", { class: "cross", y1: margin.top, y2: height - margin.bottom, visibility: "hidden" }, svg);
  const marks = series.map((one) => make("circle", { class: "read", r: 4.5, fill: one.color, visibility: "hidden" }, svg));
  const hide = () => { for (const node of [cross, ...marks]) node.setAttribute("visibility", "hidden"); box.style.visibility = "hidden"; };
  const nearest = (one, at) => {
    let best = 0;
    one.xs.forEach((value, index) => { if (Math.abs(px(value) - at) < Math.abs(px(one.xs[best]) - at)) best = index; });
    return best;
  };
  const show = (event) => {
    const frame = svg.getBoundingClientRect(), at = (event.clientX - frame.left) * width / frame.width;
    if (at < margin.left - 8 || at > width - margin.right + 8) return hide();
    const anchor = series.reduce((longest, one) => one.xs.length > longest.xs.length ? one : longest);
    const x = anchor.xs[nearest(anchor, at)];
    box.replaceChildren(Object.assign(document.createElement("b"), { textContent: `${write[spec.xKind](x)} ${spec.xUnit}`.trim() }));
    series.forEach((one, index) => {
      const hit = nearest(one, at);
      if (Math.abs(px(one.xs[hit]) - px(x)) > 40) return marks[index].setAttribute("visibility", "hidden");
      marks[index].setAttribute("cx", px(one.xs[hit])); marks[index].setAttribute("cy", py(one.ys[hit])); marks[index].setAttribute("visibility", "visible");
      const line = document.createElement("div"), chip = document.createElement("i");
      chip.style.background = one.color;
      line.append(chip, Object.assign(document.createElement("span"), { textContent: `${one.name} ` }), Object.assign(document.createElement("b"), { textContent: spec.yKind === "percent" ? percent(one.ys[hit]) : trim(one.ys[hit].toPrecision(4)) }));
      box.append(line);
    });
    cross.setAttribute("x1", px(x)); cross.setAttribute("x2", px(x)); cross.setAttribute("visibility", "visible");
    const left = px(x) * frame.width / width;
    box.style.visibility = "visible";
    box.style.transform = `translate(${Math.max(0, left + 14 + box.offsetWidth > frame.width ? left - box.offsetWidth - 14 : left + 14)}px, ${margin.top}px)`;
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", hide);
}

/* ---------- the charts of this page ---------- */
const color = (place) => `var(--series-${place % 10})`;
const axes = { tokens: { xKind: "number", xUnit: "tokens" }, time: { xKind: "time", xUnit: "" } };
const state = { metric: data.metrics[0]?.key, log: false };
function column(rows, x, y) {
  const keep = rows[y] ? rows[y].map((value, at) => at).filter((at) => rows[y][at] !== null && rows[x][at] !== null) : [];
  return { xs: keep.map((at) => rows[x][at]), ys: keep.map((at) => rows[y][at]) };
}
function seriesOf(key, x) {
  const found = [];
  data.runs.forEach((run, place) => {
    const several = data.runs.length > 1 ? `${run.name}, ` : "", hue = color(place);
    const raw = column(run.train, x, key), smooth = column(run.train, x, `${key}~`), valid = column(run.valid, x, key);
    const add = (name, style, points, shade = hue) => points.xs.length && found.push({ run: run.name, name: several + name, color: shade, style, ...points });
    if (smooth.xs.length) add("raw", "raw", raw);
    add("training", "line", smooth.xs.length ? smooth : raw);
    add("validation", "dots", valid, several ? hue : color(1));
  });
  return found;
}
function drawAll() {
  for (const holder of document.querySelectorAll(".chart")) {
    const key = holder.dataset.metric || state.metric, metric = [...data.metrics, ...data.strips].find((one) => one.key === key);
    if (!metric) continue;
    const x = holder.dataset.x;
    draw(holder, {
      ...axes[x], yKind: metric.kind, log: state.log, height: Number(holder.dataset.height), fromZero: metric.from_zero,
      label: `${metric.label} against ${x}`, series: seriesOf(key, x), references: metric.references,
    });
  }
  const legend = document.querySelector("#curve-legend");
  let shown = seriesOf(state.metric, "tokens").filter((one) => one.style !== "raw");
  if (data.runs.length > 1)  // a run has one entry, as its curves have one colour
    shown = shown.filter((one, place) => shown.findIndex((other) => other.run === one.run) === place).map((one) => ({ ...one, name: one.run }));
  if (legend) legend.replaceChildren(...shown.map((one) => {
    const item = document.createElement("span"), key = make("svg", { viewBox: "0 0 20 10", "aria-hidden": "true" });
    make("line", { x1: 0, x2: 20, y1: 5, y2: 5, stroke: one.color, "stroke-width": 2, "stroke-dasharray": one.style === "dots" ? "1 5" : "none", "stroke-linecap": "round" }, key);
    if (one.style === "dots") make("circle", { cx: 10, cy: 5, r: 3.6, fill: "var(--panel)", stroke: one.color, "stroke-width": 2 }, key);
    item.append(key, one.name);
    return item;
  }));
}
for (const group of document.querySelectorAll(".choice")) {
  group.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    for (const other of group.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    if (button.dataset.metric) state.metric = button.dataset.metric;
    if (button.dataset.log) state.log = button.dataset.log === "yes";
    drawAll();
  });
}
let pending = 0;
new ResizeObserver(() => { cancelAnimationFrame(pending); pending = requestAnimationFrame(drawAll); }).observe(document.querySelector("main"));
drawAll();

/* ---------- copying, saving, and where the reader is ---------- */
for (const button of document.querySelectorAll(".command button"))
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
document.getElementById("save").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(data, null, 1)], { type: "application/json" }));
  link.download = "report.json";
  link.click();
});
const links = [...document.querySelectorAll("nav a")];
const sections = links.map((link) => document.querySelector(link.hash));
const follow = () => {
  const passed = sections.filter((section) => section.getBoundingClientRect().top < 160).length;
  const atEnd = innerHeight + scrollY >= document.body.scrollHeight - 4;
  links.forEach((link, place) => link.classList.toggle("here", place === (atEnd ? links.length : Math.max(1, passed)) - 1));
};
addEventListener("scroll", follow, { passive: true });
follow();
root.dataset.ready = "yes";
