/* What heads read, drawn from the data of the page. Texts are written with textContent, so nothing in them is markup. */
const state = { text: 0, layer: 0, head: 0, asks: null, kept: false, what: "text", measure: "diagonal" };
const MEANING = {
  entropy: "Entropy of attention in nats: 0 if one token is read, the logarithm of the length if all are read equally.",
  distance: "Mean distance in tokens between a token and what it reads.",
  diagonal: "Diagonal concentration: weight within 4 tokens of the token itself, over the weight outside (ConvBERT, table 8); – if all of it is within.",
  importance: "Mean absolute gradient of the pretraining loss with respect to a factor on the head's output (Michel et al., 2019). A head near 0 can be removed with little loss: encoderlab prune.",
};
for (const [name, words] of Object.entries(data.relations)) MEANING[name] = `Share of the weight on ${words}.`;

function make(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value === true) node.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

const decoded = new Map();
function bytes(text) {
  if (!decoded.has(text)) decoded.set(text, Uint8Array.from(atob(text), c => c.charCodeAt(0)));
  return decoded.get(text);
}
function headName(model, head) {
  const attention = model.heads.attention;
  return head < attention ? `head ${head}` : `convolution ${head - attention}`;
}
// The map of the chosen layer and head, as weights (L x M).
function mapOf(model, text, layer, head) {
  const layers = text.layers[Math.min(layer, text.layers.length - 1)];
  return bytes(layers[Math.min(head, layers.length - 1)]);
}
function tip(event, words) {
  const node = document.getElementById("tip");
  node.hidden = !words;
  if (!words) return;
  node.textContent = words;
  const x = event.clientX ?? event.target.getBoundingClientRect().left;
  const y = event.clientY ?? event.target.getBoundingClientRect().bottom;
  node.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - node.offsetWidth - 8))}px`;
  node.style.top = `${Math.min(y + 16, innerHeight - node.offsetHeight - 8)}px`;
}
function choice(label, options, value, change) {
  const select = make("select", { onchange: event => change(event.target.value), "aria-label": label });
  for (const [key, words] of options) {
    const option = make("option", { value: key }, words);
    option.selected = String(key) === String(value);
    select.append(option);
  }
  return make("label", {}, label, select);
}

function drawControls() {
  const longest = Math.max(...data.models.map(model => model.layers));
  const model = data.models.reduce((a, b) => (b.heads.attention + b.heads.convolution > a.heads.attention + a.heads.convolution ? b : a));
  const heads = model.heads.attention + model.heads.convolution;
  const count = Math.min(...data.models.map(model => model.texts.length));
  const parts = [];
  if (count > 1) parts.push(choice("text", [...Array(count).keys()].map(i => [i, `text ${i + 1}`]), state.text, value => update({ text: +value, asks: null, kept: false })));
  parts.push(choice("layer", [...Array(longest).keys()].map(i => [i, i]), state.layer, value => update({ layer: +value })));
  parts.push(choice("head", [...Array(heads).keys()].map(i => [i, headName(model, i)]), state.head, value => update({ head: +value })));
  document.getElementById("controls").replaceChildren(...parts);
  document.getElementById("which").replaceChildren(choice("maps of", [["text", "this text"], ["mean", "all texts, on average"]], state.what, value => update({ what: value })));
  const names = Object.keys(data.models[0].by_head);
  document.getElementById("measures").replaceChildren(choice("number", names.map(name => [name, name]), state.measure, value => update({ measure: value })));
  document.getElementById("meaning").textContent = MEANING[state.measure] || "";
}

function drawTexts() {
  document.getElementById("texts").replaceChildren(...data.models.map(model => {
    const text = model.texts[state.text];
    const line = make("div", { class: "tokens" });
    text.tokens.forEach((token, index) => {
      const asking = index >= text.memory;
      const button = make("button", {
        class: ["token", text.special[index] ? "special" : "", asking ? "" : "memory"].join(" "),
        "data-index": index,
        "aria-label": `token ${token}`,
        onpointerenter: () => state.kept || shade(index),
        onfocus: () => state.kept || shade(index),
        onclick: () => { state.kept = !(state.kept && state.asks === index); shade(index); },
      }, token.replace(/^##/, "‑").replace(/[▁Ġ]/g, "␣"));
      line.append(button);
    });
    return make("div", { class: "panel" }, make("h3", {}, data.models.length > 1 ? model.model : "What the token reads"), line);
  }));
  shade(state.asks ?? firstWord());
}
function firstWord() {
  const text = data.models[0].texts[state.text];
  const index = text.special.findIndex((special, i) => !special && i >= text.memory);
  return Math.max(index, text.memory);
}
/** The background for a share, at most so strong that text stays readable on it. */
const shaded = (share) => `rgb(var(--shade) / calc(var(--most) * ${share.toFixed(3)}))`;
function shade(index) {
  state.asks = index;
  document.querySelectorAll("#texts .panel").forEach((panel, number) => {
    const model = data.models[number], text = model.texts[state.text];
    const keys = text.tokens.length, asks = Math.min(index, keys - 1) - text.memory;
    const weights = mapOf(model, text, state.layer, state.head);
    panel.querySelectorAll(".token").forEach((token, key) => {
      const weight = asks < 0 ? 0 : weights[asks * keys + key] / 255;
      token.style.background = shaded(Math.sqrt(weight));
      token.classList.toggle("asks", key === asks + text.memory && asks >= 0);
      token.title = asks < 0 ? "memory is only read" : `${(100 * weight).toFixed(1)}%`;
    });
  });
}

function paint(canvas, weights, rows, columns) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  const rgb = getComputedStyle(document.documentElement).getPropertyValue("--shade").trim().split(/\s+/).map(Number);
  for (let i = 0; i < rows * columns; i++) {
    image.data.set([rgb[0], rgb[1], rgb[2], Math.round(255 * Math.sqrt(weights[i] / 255))], 4 * i);
  }
  context.putImageData(image, 0, 0);
}
function table(model, cell) {
  const heads = model.heads.attention + model.heads.convolution;
  const head = make("tr", {}, make("th", { scope: "col" }, "layer"), ...[...Array(heads).keys()].map(i => make("th", { scope: "col" }, i < model.heads.attention ? String(i) : `c${i - model.heads.attention}`)));
  const body = [...Array(model.layers).keys()].map(layer => make("tr", {}, make("th", { scope: "row" }, String(layer)), ...[...Array(heads).keys()].map(i => make("td", {}, cell(layer, i)))));
  return make("table", { class: "heads" }, make("thead", {}, head), make("tbody", {}, ...body));
}
function drawMaps() {
  const room = Math.min(data.models.length > 1 ? 420 : 640, document.getElementById("maps").clientWidth - 90);
  document.getElementById("maps").replaceChildren(...data.models.map(model => {
    const text = model.texts[state.text], mean = state.what === "mean";
    const columns = mean ? model.mean.size : text.tokens.length, rows = mean ? columns : columns - text.memory;
    const heads = model.heads.attention + model.heads.convolution;
    const size = Math.max(34, Math.min(140, Math.floor(room / heads)));
    const grid = table(model, (layer, head) => {
      const canvas = make("canvas");
      canvas.style.width = `${size}px`;
      canvas.style.height = `${Math.max(6, Math.round(size * rows / columns))}px`;
      paint(canvas, mean ? bytes(model.mean.layers[layer][head]) : mapOf(model, text, layer, head), rows, columns);
      const words = `layer ${layer}, ${headName(model, head)}: diagonal ${format(model.by_head.diagonal[layer][head])}, distance ${format(model.by_head.distance[layer][head])}`;
      return make("button", {
        "aria-label": words, "aria-pressed": String(layer === state.layer && head === state.head),
        onpointermove: event => tip(event, words), onpointerleave: event => tip(event, ""),
        onclick: () => update({ layer, head }),
      }, canvas);
    });
    return make("div", { class: "panel" }, make("h3", {}, data.models.length > 1 ? model.model : (mean ? "Average over all texts" : "This text")), grid);
  }));
}
function format(value) {
  return value === null ? "–" : value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value >= 0.1 || value === 0 ? value.toFixed(2) : value.toPrecision(2);
}
function drawNumbers() {
  document.getElementById("grids").replaceChildren(...data.models.map(model => {
    const values = model.by_head[state.measure] || [];
    const all = values.flat().filter(x => x !== null);
    const wide = Math.max(...all) > 50 * Math.max(Math.min(...all), 1e-9) && Math.max(...all) > 1;
    const scale = wide ? x => Math.log(Math.max(x, 0.01)) : x => x; // one large number would leave the others white
    const most = Math.max(...all.map(scale)), least = Math.min(...all.map(scale));
    const grid = table(model, (layer, head) => {
      const value = values[layer]?.[head] ?? null, cell = make("div", { class: "cell" }, format(value));
      const share = value === null ? 0 : (scale(value) - least) / Math.max(most - least, 1e-9);
      cell.style.background = shaded(share);
      return cell;
    });
    return make("div", { class: "panel" }, make("h3", {}, `${state.measure}${data.models.length > 1 ? ` · ${model.model}` : ""}`), grid);
  }));
  document.getElementById("strongest").replaceChildren(...data.models.map(model => {
    const rows = Object.entries(model.strongest).map(([name, where]) => make("tr", {},
      make("td", {}, data.relations[name]),
      make("td", {}, make("button", { onclick: () => update({ layer: where.layer, head: where.head }) }, `layer ${where.layer}, ${headName(model, where.head)}`)),
      make("td", { class: "number" }, `${(100 * where.weight).toFixed(1)}%`)));
    const concentration = Object.entries(model.diagonal_concentration).map(([name, value]) => make("tr", {}, make("td", {}, `diagonal concentration, ${name}`), make("td", {}, "all"), make("td", { class: "number" }, format(value))));
    const head = make("tr", {}, ...["most weight on", "head", "weight"].map(words => make("th", { scope: "col" }, words)));
    return make("div", { class: "panel" }, make("h3", {}, `Strongest heads${data.models.length > 1 ? ` · ${model.model}` : ""}`), make("table", { class: "list" }, make("thead", {}, head), make("tbody", {}, ...rows, ...concentration)));
  }));
}
function drawWords() {
  document.getElementById("words").replaceChildren(...data.models.filter(model => Object.keys(model.neighbours).length).map(model => {
    const rows = Object.entries(model.neighbours).map(([word, near]) => make("tr", {}, make("td", { class: "mono" }, word), make("td", { class: "mono" }, near.map(([other, cosine]) => `${other}\u00a0${cosine.toFixed(2)}`).join(" · "))));
    const head = make("tr", {}, make("th", { scope: "col" }, "token"), make("th", { scope: "col" }, "nearest, with cosine"));
    return make("div", { class: "panel" }, make("h3", {}, model.model), make("table", { class: "list" }, make("thead", {}, head), make("tbody", {}, ...rows)));
  }));
}
function update(changes) {
  Object.assign(state, changes);
  drawControls(); drawTexts(); drawMaps(); drawNumbers();
}
update({});
drawWords();
addEventListener("resize", drawMaps);  // maps are as wide as the window allows
new MutationObserver(() => update({})).observe(root, { attributeFilter: ["data-theme"] });  // maps are painted in its colours
