/* Learning curves, drawn from the data of the page. */
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

const seconds = [10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
function ticks(low, high, count, kind) {
  const span = high - low || 1;
  let steps = [1, 2, 2.5, 5, 10];
  let scale = Math.pow(10, Math.floor(Math.log10(span / count)));
  if (kind === "time" && span / count >= 10) { steps = seconds; scale = 1; }
  const step = scale * (steps.find((candidate) => span / (candidate * scale) <= count) || steps[steps.length - 1]);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step)
    found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

function logTicks(low, high) {
  for (const digits of [[1], [1, 3], [1, 2, 5]]) {
    const found = Array.from({ length: 16 }, (_, power) => digits.map((digit) => digit * Math.pow(10, power))).flat();
    const inside = found.filter((tick) => tick >= low && tick <= high);
    if (inside.length > 2 || digits.length === 3) return inside;
  }
}

/* ---------- one line chart ----------
   spec: {yKind, xKind, xUnit, log, fromZero, height, label, references: [{name, value}],
          series: [{name, color, style: "raw" | "line" | "dots", xs, ys}]} */
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
  if (!all.length) {
    make("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, svg, "nothing recorded");
    return;
  }
  const frame = frameOf(spec, all, width);
  drawAxes(svg, spec, frame);
  drawReferences(svg, frame);
  drawSeries(svg, all, frame);
  readout(holder, svg, spec, all.filter((series) => series.style !== "raw"), frame);
}

/* Ranges, ticks and margins of a chart; px and py are the places of values in it. */
function frameOf(spec, all, width) {
  const height = spec.height, ys = all.flatMap((series) => series.ys), xs = all.flatMap((series) => series.xs);
  const others = all.filter((series) => series.style !== "raw").flatMap((series) => series.ys);
  let low = Math.min(...ys), high = Math.max(...ys);
  if (others.length < ys.length) high = Math.max(quantile(ys, 0.995), ...others);  // a few noisy steps may leave it
  const reach = 0.35 * (high - low || 1), near = ({ value }) => value <= high + reach && value >= low - reach;
  const references = (spec.references || []).filter(near), levels = references.map((reference) => reference.value);
  low = Math.min(low, ...levels);
  high = Math.max(high, ...levels);
  if (spec.fromZero) low = Math.min(0, low);
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  if (!(spec.fromZero && low === 0)) low -= room;
  high += room;
  const yTicks = ticks(low, high, Math.max(2, Math.round(height / 52)), "number");
  const power = Math.floor(Math.log10(Math.max(Math.abs(low), Math.abs(high))));
  const scientific = (value) => `${trim((value / 10 ** power).toFixed(2))}e${power}`;
  const yWrite = (value) => value && power < -2 ? scientific(value) : write[spec.yKind](value);
  const left = 12 + 7.2 * Math.max(...yTicks.map((tick) => yWrite(tick).length));
  const margin = { left, right: 12, top: 8, bottom: 24 };
  const logX = spec.log && Math.max(...xs) > 0 && spec.xKind !== "time", lastX = Math.max(...xs);
  const firstX = logX ? Math.min(...xs.filter((value) => value > 0)) : Math.min(0, ...xs);
  const place = logX
    ? (value) => Math.log(Math.max(value, firstX) / firstX) / (Math.log(lastX / firstX) || 1)
    : (value) => (value - firstX) / (lastX - firstX || 1);
  const px = (value) => margin.left + place(value) * (width - margin.left - margin.right);
  const py = (value) => margin.top + (high - value) / (high - low) * (height - margin.top - margin.bottom);
  const xTicks = logX
    ? logTicks(firstX, lastX)
    : ticks(firstX, lastX, Math.max(2, Math.floor(width / 84)), spec.xKind);
  return { width, height, margin, px, py, xTicks, yTicks, yWrite, references };
}

function drawAxes(svg, spec, { width, height, margin, px, py, xTicks, yTicks, yWrite }) {
  const right = width - margin.right, bottom = height - margin.bottom;
  for (const tick of yTicks) {
    make("line", { class: "grid", x1: margin.left, x2: right, y1: py(tick), y2: py(tick) }, svg);
    make("text", { x: margin.left - 8, y: py(tick) + 4, "text-anchor": "end" }, svg, yWrite(tick));
  }
  for (const tick of xTicks) {
    make("line", { class: "axis", x1: px(tick), x2: px(tick), y1: bottom, y2: bottom + 4 }, svg);
    const [x, anchor] = px(tick) > width - 26 ? [width, "end"] : [px(tick), "middle"];
    make("text", { x, y: height - 5, "text-anchor": anchor }, svg, write[spec.xKind](tick));
  }
  make("line", { class: "axis", x1: margin.left, x2: right, y1: bottom, y2: bottom }, svg);
}

function drawReferences(svg, { width, margin, py, references }) {
  const right = width - margin.right;
  for (const { name, value } of references) {
    make("line", { class: "reference", x1: margin.left, x2: right, y1: py(value), y2: py(value) }, svg);
    make("text", { class: "reference-label", x: right - 2, y: py(value) - 5, "text-anchor": "end" }, svg, name);
  }
}

function drawSeries(svg, all, { width, height, margin, px, py }) {
  const clip = `clip-${Math.random().toString(36).slice(2)}`, bottom = height - margin.bottom;
  const inside = { x: margin.left - 6, y: 0, width: width - margin.left - margin.right + 12, height: bottom + 1 };
  make("rect", inside, make("clipPath", { id: clip }, svg));
  const round = { "stroke-linejoin": "round", "stroke-linecap": "round" };
  const lines = make("g", { "clip-path": `url(#${clip})`, fill: "none", ...round }, svg);
  for (const { style, color, xs, ys } of all) {
    const points = xs.map((value, at) => `${px(value).toFixed(1)} ${py(ys[at]).toFixed(1)}`);
    const look = style === "raw" ? { "stroke-width": 1, opacity: 0.4 } : { "stroke-width": 2, opacity: 1 };
    if (style === "dots") look["stroke-dasharray"] = "1 5";
    if (style !== "dots" || points.length > 1)
      make("path", { d: `M${points.join("L")}`, stroke: color, ...look }, lines);
    if (style === "line" && points.length === 1)
      make("circle", { cx: px(xs[0]), cy: py(ys[0]), r: 3, fill: color }, lines);
    if (style === "dots" && points.length <= 60) {
      const ring = { r: 3.6, fill: "var(--panel)", stroke: color, "stroke-width": 2 };
      xs.forEach((value, at) => make("circle", { cx: px(value), cy: py(ys[at]), ...ring }, lines));
    }
  }
}

/* What a pointer reads off the chart. */
function readout(holder, svg, spec, series, { px, py, margin, width, height }) {
  const create = (name, properties) => Object.assign(document.createElement(name), properties);
  const box = holder.querySelector(".readout") || holder.appendChild(create("div", { className: "readout" }));
  const cross = make("line", { class: "cross", y1: margin.top, y2: height - margin.bottom, visibility: "hidden" }, svg);
  const dot = (one) => make("circle", { class: "read", r: 4.5, fill: one.color, visibility: "hidden" }, svg);
  const marks = series.map(dot);
  const hide = () => {
    for (const node of [cross, ...marks]) node.setAttribute("visibility", "hidden");
    box.style.visibility = "hidden";
  };
  const nearest = (one, at) => {
    let best = 0;
    one.xs.forEach((value, index) => {
      if (Math.abs(px(value) - at) < Math.abs(px(one.xs[best]) - at)) best = index;
    });
    return best;
  };
  const show = (event) => {
    const frame = svg.getBoundingClientRect(), at = (event.clientX - frame.left) * width / frame.width;
    if (at < margin.left - 8 || at > width - margin.right + 8) return hide();
    const anchor = series.reduce((longest, one) => one.xs.length > longest.xs.length ? one : longest);
    const x = anchor.xs[nearest(anchor, at)];
    box.replaceChildren(create("b", { textContent: `${write[spec.xKind](x)} ${spec.xUnit}`.trim() }));
    series.forEach((one, index) => {
      const hit = nearest(one, at), mark = marks[index];
      if (Math.abs(px(one.xs[hit]) - px(x)) > 40) return mark.setAttribute("visibility", "hidden");
      mark.setAttribute("cx", px(one.xs[hit]));
      mark.setAttribute("cy", py(one.ys[hit]));
      mark.setAttribute("visibility", "visible");
      const line = create("div"), chip = create("i");
      chip.style.background = one.color;
      const value = spec.yKind === "percent" ? percent(one.ys[hit]) : trim(one.ys[hit].toPrecision(4));
      line.append(chip, create("span", { textContent: `${one.name} ` }), create("b", { textContent: value }));
      box.append(line);
    });
    cross.setAttribute("x1", px(x));
    cross.setAttribute("x2", px(x));
    cross.setAttribute("visibility", "visible");
    const left = px(x) * frame.width / width, beyond = left + 14 + box.offsetWidth > frame.width;
    box.style.visibility = "visible";
    const start = Math.max(0, beyond ? left - box.offsetWidth - 14 : left + 14);
    box.style.transform = `translate(${start}px, ${margin.top}px)`;
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", hide);
}

/* ---------- the charts of this page ---------- */
const seriesColor = (place) => `var(--series-${place % 20})`;
const axes = { step: { xKind: "number", xUnit: "updates" }, tokens: { xKind: "number", xUnit: "tokens" }, time: { xKind: "time", xUnit: "" } };
const state = { metric: data.metrics[0]?.key, log: false };
function column(rows, x, y) {
  const keep = [...(rows[y] || []).keys()].filter((at) => rows[y][at] !== null && rows[x][at] !== null);
  return { xs: keep.map((at) => rows[x][at]), ys: keep.map((at) => rows[y][at]) };
}
function seriesOf(key, x) {
  const found = [];
  data.runs.forEach((run, place) => {
    const several = data.runs.length > 1 ? `${run.name}, ` : "", hue = seriesColor(place);
    const raw = column(run.train, x, key), smooth = column(run.train, x, `${key}~`), valid = column(run.valid, x, key);
    const add = (name, style, points, color = hue) => {
      if (points.xs.length) found.push({ run: run.name, name: several + name, color, style, ...points });
    };
    if (smooth.xs.length) add("raw", "raw", raw);
    add("training", "line", smooth.xs.length ? smooth : raw);
    add("validation", "dots", valid, several ? hue : seriesColor(1));
  });
  return found;
}
function drawAll() {
  for (const holder of document.querySelectorAll(".chart")) {
    const key = holder.dataset.metric || state.metric;
    const metric = [...data.metrics, ...data.strips].find((one) => one.key === key);
    if (!metric) continue;
    const x = holder.dataset.x;
    draw(holder, {
      ...axes[x],
      yKind: metric.kind,
      log: state.log,
      height: Number(holder.dataset.height),
      fromZero: metric.from_zero,
      label: `${metric.label} against ${x}`,
      series: seriesOf(key, x),
      references: metric.references,
    });
  }
  const legend = document.querySelector("#curve-legend");
  let shown = seriesOf(state.metric, "tokens").filter((one) => one.style !== "raw");
  if (data.runs.length > 1) {  // a run has one entry, as its curves have one colour
    const first = (one, place) => shown.findIndex((other) => other.run === one.run) === place;
    shown = shown.filter(first).map((one) => ({ ...one, name: one.run }));
  }
  legend?.replaceChildren(...shown.map(entry));
}
function entry(one) {
  const item = document.createElement("span"), key = make("svg", { viewBox: "0 0 20 10", "aria-hidden": "true" });
  const dashes = one.style === "dots" ? "1 5" : "none", stroke = { stroke: one.color, "stroke-width": 2 };
  make("line", { x1: 0, x2: 20, y1: 5, y2: 5, ...stroke, "stroke-dasharray": dashes, "stroke-linecap": "round" }, key);
  if (one.style === "dots") make("circle", { cx: 10, cy: 5, r: 3.6, fill: "var(--panel)", ...stroke }, key);
  item.append(key, one.name);
  return item;
}
for (const group of document.querySelectorAll(".choice")) {
  group.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    for (const other of group.querySelectorAll("button"))
      other.setAttribute("aria-pressed", String(other === button));
    if (button.dataset.metric) state.metric = button.dataset.metric;
    if (button.dataset.log) state.log = button.dataset.log === "yes";
    drawAll();
  });
}
let pending = 0;
const redraw = () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(drawAll); };
new ResizeObserver(redraw).observe(document.querySelector("main"));
drawAll();
