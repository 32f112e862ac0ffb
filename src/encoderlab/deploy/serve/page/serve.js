// The page of `encoderlab serve`: every text that comes from a model or a reader is set as text, never as markup.
const $ = (selector, root = document) => root.querySelector(selector);
const make = (name, properties = {}, ...children) => {
  const { data = {}, ...plain } = properties;
  const element = Object.assign(document.createElement(name), plain);
  for (const [key, value] of Object.entries(data)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(Math.abs(value) < 1 ? 3 : 2)}`;
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const PAUSE = 120; // milliseconds without a key before the model is asked

// Words as the server splits texts into them (tasks/forms/plain_words.py): between white space, without the marks around
// them, and Chinese by characters.
const CHINESE = /[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{2ebef}\u{2f800}-\u{2fa1f}]/u;
const MARK = /^(?![-#@%&*/\\])[\p{Ps}\p{Pe}\p{Pi}\p{Pf}\p{Po}\p{Pd}]$/u;
const WIDE = /[\u3000-\u303f\uff00-\uffef]/u;
const SPECIAL = /^\[(?:CLS|MASK|PAD|SEP|UNK)\]/;
const WHOLE = /\[(?:CLS|MASK|PAD|SEP|UNK)\]$|^\p{L}\.$|^(?:\p{L}+\.){2,}$/u;
const wordsOf = (text) => [...text.matchAll(/\S+/gu)].flatMap((found) => {
  const words = [];
  let at = found.index;
  const add = (letters) => { const word = letters.join(""); if (word) words.push({ word, start: at, end: (at += word.length) }); };
  const strip = (letters) => {
    let first = 0, last = letters.length;
    const part = () => letters.slice(first, last).join("");
    while (first < last && MARK.test(letters[first]) && !SPECIAL.test(part())) first++;
    while (last > first && MARK.test(letters[last - 1]) && !WHOLE.test(part())) last--;
    letters.slice(0, first).forEach((letter) => add([letter]));
    add(letters.slice(first, last));
    letters.slice(last).forEach((letter) => add([letter]));
  };
  let run = [];
  for (const letter of found[0]) {
    if (!CHINESE.test(letter) && !(WIDE.test(letter) && MARK.test(letter))) { run.push(letter); continue; }
    strip(run);
    add([letter]);
    run = [];
  }
  strip(run);
  return words;
});
// The server counts characters, JavaScript halves of those beyond the first plane.
const slicer = (text) => { const letters = [...text]; return (start, end) => letters.slice(start, end).join(""); };

class Problem extends Error {}
const state = { key: "", last: null, language: "curl", task: "", panes: [], models: [] };

async function call(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (state.key) headers.Authorization = `Bearer ${state.key}`;
  const answer = await fetch(path, body === undefined ? { headers, signal } : { method: "POST", headers, signal, body: JSON.stringify(body) });
  if (answer.status === 401) $("#key-row").hidden = false;
  const value = await answer.json();
  if (!answer.ok) throw new Problem(value.error?.message ?? value.error ?? value.message ?? `status ${answer.status}`);
  return { value, headers: answer.headers };
}

/* ---------- what the model can be asked ---------- */

const field = (label, { id, rows = 3, hint = "", value = "", line = false }) => ({ label, id, rows, hint, value, line });
const bars = (rows, act) => make("ul", { className: "bars" }, ...rows.map(({ label, share, shown }) => {
  const fill = make("i");
  fill.style.width = `${100 * Math.max(0, Math.min(1, share))}%`;
  const name = act ? make("button", { type: "button", className: "label", textContent: label, onclick: () => act(label) })
    : make("span", { className: "label", textContent: label });
  return make("li", {}, name, make("span", { className: "value", textContent: shown ?? percent(share) }),
    make("span", { className: "track", data: { "aria-hidden": "true" } }, fill));
}));
const marked = (text, spans) => {
  const cut = slicer(text), passage = make("p", { className: "passage" }), kinds = [...new Set(spans.map((one) => one.kind))].sort();
  let at = 0;
  for (const { start, end, kind } of [...spans].sort((a, b) => a.start - b.start)) {
    if (start < at) continue;
    const mark = make("mark", { className: `kind-${kinds.indexOf(kind) % 5}` }, cut(start, end));
    if (kind) mark.append(make("span", { className: "kind", textContent: kind }));
    passage.append(cut(at, start), mark);
    at = end;
  }
  passage.append(cut(at));
  return passage;
};

const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

const TASKS = {
  classes: {
    name: "Labels",
    fields: ({ pairs }) => [
      field("Text", { id: "text", value: "A warm, funny and beautifully acted film." }),
      ...(pairs === false ? [] : [field("Second text", { id: "pair", rows: 2, hint: pairs ? "" : "only if the model reads two",
        value: pairs ? "The film is funny." : "" })]),
    ],
    hides: "text",
    ask: ({ text, pair }) => ({ path: "/predict", body: { inputs: pair ? [text, pair] : text } }),
    show: (answer) => answer.length === 1 && answer[0].label === "number"
      ? make("p", { className: "big", textContent: answer[0].score.toFixed(3) })
      : bars(answer.slice(0, 12).map(({ label, score }) => ({ label, share: score }))),
    why: ({ text, pair }) => (pair ? [text, pair] : text),
  },
  tags: {
    name: "Tags",
    fields: () => [field("Text", { id: "text", rows: 5, value: "Sue Miller moved from Oslo to work for the United Nations in Geneva ." })],
    hides: "text",
    ask: ({ text }) => ({ path: "/", body: { inputs: text } }),
    show: (found, { text }) => make("div", {}, marked(text, found.map((one) => ({ ...one, kind: one.entity_group }))),
      make("p", { className: "small", textContent: found.length ? found.map((one) => `${one.word}: ${one.entity_group}, ${percent(one.score)}`).join("; ") : "No tags found." })),
    why: ({ text }) => text,
  },
  answers: {
    name: "Answers",
    fields: () => [
      field("Question", { id: "question", line: true, value: "Where did Sue move?" }),
      field("Passage", { id: "context", rows: 7, value: "Sue grew up in Bergen. After her studies she moved to Oslo, where she works as a doctor." }),
    ],
    hides: "context",
    ask: ({ question, context }) => ({ path: "/", body: { inputs: { question, context }, parameters: { top_k: 4 } } }),
    show: (found, { context }) => {
      const best = found[0], rows = found.map((one) => ({ label: one.answer || "no answer", share: one.score }));
      return make("div", {}, marked(context, best?.answer ? [{ start: best.start, end: best.end, kind: "" }] : []), make("br"), bars(rows));
    },
    why: ({ question, context }) => ({ question, context }),
  },
  options: {
    name: "Options",
    fields: () => [
      field("Question", { id: "question", rows: 3, value: "Which of these is an animal?" }),
      field("Options", { id: "others", rows: 5, hint: "one per line", value: "A chair.\nA horse.\nA song." }),
    ],
    ask: ({ question, others }) => {
      const texts = linesOf(others);
      return texts.length ? { path: "/rerank", body: { query: question, texts } } : null;
    },
    empty: "Write options, one per line.",
    show: (found, { others }) => bars(found.map(({ index, score }) => ({ label: linesOf(others)[index], share: score }))),
  },
  masks: {
    name: "Masked words",
    fields: () => [field("Text", { id: "text", hint: "write [MASK], or click a word below", value: "The [MASK] of a list is the number of its items." })],
    hides: "text", puts: true,
    ask: ({ text }) => (/\[MASK\]|<mask>/.test(text) ? { path: "/", body: { inputs: text, parameters: { top_k: 8 } } } : null),
    empty: "Click a word below the text to hide it.",
    show: (found, values, pane) => {
      const lists = Array.isArray(found[0]) ? found : [found];
      return make("div", {}, ...lists.flatMap((guesses, number) => [
        ...(lists.length > 1 ? [make("h4", { textContent: `Mask ${number + 1}` })] : []),
        bars(guesses.map((one) => ({ label: one.token_str, share: one.score })), (word) => pane.fill(number, word)),
      ]));
    },
    why: ({ text }) => text,
  },
  near: {
    name: "Near texts",
    fields: () => [
      field("Text", { id: "text", rows: 2, value: "How do I open a file?" }),
      field("Texts to compare", { id: "others", rows: 7, hint: "one per line; paste your own",
        value: "Read a file line by line.\nThe weather is fine today.\nOpen a file for writing.\nA list of numbers." }),
    ],
    ask: ({ text, others }) => {
      const sentences = linesOf(others);
      return sentences.length ? { path: "/similarity", body: { inputs: { source_sentence: text, sentences } } } : null;
    },
    empty: "Paste texts to compare with, one per line.",
    show: (found, { others }) => {
      const sentences = linesOf(others);
      const rows = sentences.map((label, at) => ({ label, share: found[at], shown: found[at].toFixed(3) }));
      return bars(rows.sort((a, b) => b.share - a.share).slice(0, 50));
    },
    why: ({ text, others }) => [text, linesOf(others)[0] ?? text],
  },
};
const HEADS = { classification: "classes", regression: "classes", multilabel: "classes", tagging: "tags", span: "answers", choice: "options" };
const tasksOf = (info) => (HEADS[info.task] ? [HEADS[info.task]] : info.task === "fill-mask" ? ["masks", ...(info.vectors ? ["near"] : [])] : info.task === "states" ? ["near"] : []);

/* ---------- one column: texts in, what the model says, why ---------- */

class Pane {
  constructor(number, values) {
    this.number = number;
    this.root = $("#pane").content.firstElementChild.cloneNode(true);
    this.task = TASKS[state.task];
    this.hidden = new Set();
    this.values = {};
    const ask = $(".ask", this.root), models = state.models;
    this.model = models[Math.min(number, models.length - 1)];
    $(".title", this.root).textContent = number ? "Second" : "First";
    if (models.length > 1) {
      const choice = make("select", { id: `model-${number}`, onchange: () => { this.model = models[choice.selectedIndex]; this.labels(); this.ask(); } },
        ...models.map((one) => make("option", { textContent: one.info.model_id })));
      choice.selectedIndex = models.indexOf(this.model);
      ask.append(make("label", { htmlFor: choice.id, textContent: "Model" }), choice);
    }
    for (const { label, id, rows, hint, value, line } of this.task.fields(this.model.info)) {
      const name = `${id}-${number}`, title = make("label", { htmlFor: name }, label);
      if (hint) title.append(make("span", { className: "hint", textContent: ` (${hint})` }));
      const box = make(line ? "input" : "textarea", { id: name, value: values?.[id] ?? value, spellcheck: false });
      if (!line) box.rows = rows;
      this.values[id] = box.value;
      box.addEventListener("input", () => { this.values[id] = box.value; this.hidden.clear(); this.later(); });
      ask.append(title, box);
    }
    if (this.task.hides) {
      ask.append(make("p", { className: "small", textContent: this.task.puts ? "Click a word to mask it, a guess to put it in." : "Click a word to hide it from the model." }),
        make("ul", { className: "words" }));
    }
    $(".why", this.root).hidden = !this.task.why;
    $(".why", this.root).addEventListener("toggle", () => this.explain());
    for (const name of ["method", "target", "layer", "head"]) $(`.${name}`, this.root).addEventListener("change", () => this.explain());
    this.labels();
  }

  labels() {
    const named = Object.values(this.model.info.model_type)[0]?.id2label, target = $(".target", this.root);
    target.replaceChildren(make("option", { value: "", textContent: "the model’s answer" }));
    const own = this.task === TASKS.classes && named ? Object.values(named).slice(0, 200) : [];
    target.append(...own.map((label) => make("option", { value: label, textContent: label })));
    $(".of", this.root).hidden = own.length < 2;
  }

  /** The values as the model reads them: hidden words are masks. */
  read() {
    const values = { ...this.values }, id = this.task.hides;
    if (id && this.hidden.size) {
      let at = 0, text = "";
      wordsOf(values[id]).forEach(({ start, end }, number) => {
        if (!this.hidden.has(number)) return;
        text += values[id].slice(at, start) + this.model.info.mask_token;
        at = end;
      });
      values[id] = text + values[id].slice(at);
    }
    return values;
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), PAUSE);
  }

  async ask() {
    this.stop?.abort();
    this.stop = new AbortController();
    this.words();
    const values = this.read(), request = Object.values(values)[0].trim() ? this.task.ask(values) : null;
    const [problem, result, meta] = [".problem", ".result", ".meta"].map((name) => $(name, $(".answer", this.root)));
    if (!request) {
      result.replaceChildren(make("p", { className: "small", textContent: this.task.empty ?? "Write a text." }));
      meta.textContent = problem.textContent = "";
      return;
    }
    const path = this.model.lane + request.path;
    state.last = { path, body: request.body };
    code();
    try {
      const { value, headers } = await call(path, request.body, this.stop.signal);
      problem.textContent = "";
      result.replaceChildren(this.task.show(value, values, this));
      const tokens = headers.get("x-compute-tokens"), time = Number(headers.get("x-inference-time")), whole = Number(headers.get("x-total-time"));
      meta.textContent = `${tokens} tokens, ${time.toFixed(1)} ms of computing, ${whole.toFixed(1)} ms in all`;
      this.explain();
    } catch (error) {
      if (error.name === "AbortError") return;
      problem.textContent = error instanceof Problem ? error.message : "The server cannot be reached.";
      result.replaceChildren();
      meta.textContent = "";
    }
  }

  /** A button for every word, which hides it. */
  words() {
    const list = $(".words", this.root);
    if (!list) return;
    const id = this.task.hides, found = wordsOf(this.values[id]).slice(0, 200);
    const active = document.activeElement, focused = list.contains(active) ? [...list.querySelectorAll("button")].indexOf(active) : -1;
    list.replaceChildren(...found.map(({ word, start, end }, number) => {
      const pressed = this.task.puts ? word === this.model.info.mask_token || word === "[MASK]" : this.hidden.has(number);
      const press = () => {
        if (this.task.puts) this.put(start, end, this.model.info.mask_token);
        else { this.hidden.has(number) ? this.hidden.delete(number) : this.hidden.add(number); this.ask(); }
      };
      const button = make("button", { type: "button", textContent: word, onclick: press, data: { "aria-pressed": String(pressed) } });
      return make("li", {}, button);
    }));
    list.querySelectorAll("button")[focused]?.focus();
  }

  put(start, end, word) {
    const id = this.task.hides, box = $(`#${id}-${this.number}`), text = this.values[id];
    this.values[id] = box.value = text.slice(0, start) + word + text.slice(end);
    this.ask();
  }

  /** Put a guess in the place of a mask. */
  fill(number, word) {
    const found = [...this.values.text.matchAll(/\[MASK\]|<mask>/g)][number];
    if (found) this.put(found.index, found.index + found[0].length, word);
  }

  async explain() {
    const why = $(".why", this.root), method = $(".method", why).value;
    for (const one of why.querySelectorAll(".of-layer")) one.hidden = method !== "attention";
    if (!why.open) return;
    this.halt?.abort();
    this.halt = new AbortController();
    const values = this.read(), body = { inputs: this.task.why(values), method };
    if (method === "attention") Object.assign(body, { layer: Number($(".layer", why).value), head: Number($(".head", why).value) });
    else if (!$(".of", why).hidden && $(".target", why).value) body.target = $(".target", why).value;
    const [problem, reason, note] = [".problem", ".reason", ".note"].map((name) => $(name, why));
    try {
      const { value } = await call(`${this.model.lane}/explain`, body, this.halt.signal);
      problem.textContent = "";
      const texts = typeof body.inputs === "string" ? [body.inputs] : Array.isArray(body.inputs) ? body.inputs : [body.inputs.question, body.inputs.context];
      reason.replaceChildren(method === "attention" ? attention(value) : pieces(value, texts));
      note.textContent = NOTES[method](value);
      if (method === "attention") { $(".layer", why).max = value.layers; $(".head", why).max = value.heads; }
    } catch (error) {
      if (error.name === "AbortError") return;
      problem.textContent = error instanceof Problem ? error.message : "The server cannot be reached.";
      reason.replaceChildren();
      note.textContent = "";
    }
  }
}

/* ---------- why ---------- */

const NOTES = {
  gradients: (found) => `${capital(found.of)} of ${found.target}: ${found.number.toFixed(3)} with these words, ${found.baseline.toFixed(3)} with masks in their place. ` +
    `The parts add up to ${signed(found.sum)}; ${signed(found.gap)} is missing for the whole difference (${found.steps} steps). The smaller that gap, the more the colours can be trusted.`,
  words: (found) => `${capital(found.of)} of ${found.target} is ${found.number.toFixed(3)}; each word is coloured by how much it falls when that word is left out. Words without colour were cut off, or are what is explained.`,
  attention: (found) => `Layer ${found.layer} of ${found.layers}, head ${found.head} of ${found.heads}: rows are the tokens that read, columns those that are read. Attention shows where a head looks; it is not the reason for an answer.`,
};

function coloured(text, value, most, title) {
  const piece = make("span", { className: "piece", textContent: text, title });
  if (value !== null && most > 0) {
    const share = Math.round(62 * Math.min(1, Math.abs(value) / most));
    piece.style.background = `color-mix(in srgb, ${value >= 0 ? "#1f8f6b" : "#c4364f"} ${share}%, transparent)`;
  }
  return piece;
}

function pieces(found, texts) {
  const rows = (found.words ?? found.tokens.filter((one) => one.part !== null))
    .map((one) => ({ part: one.part, start: one.start, end: one.end, value: one.effect === undefined ? one.attribution : one.effect }));
  const most = Math.max(1e-9, ...rows.map((one) => Math.abs(one.value ?? 0)));
  const shown = make("div");
  const listed = [];
  texts.forEach((text, part) => {
    const cut = slicer(text), passage = make("p", { className: "passage" });
    let at = 0;
    for (const { start, end, value } of rows.filter((one) => one.part === part && one.end > one.start)) {
      if (start < at) continue;
      const told = value === null ? "" : signed(value);
      passage.append(cut(at, start), coloured(cut(start, end), value, most, told));
      if (value !== null) listed.push([cut(start, end).trim(), value]);
      at = end;
    }
    passage.append(cut(at));
    shown.append(passage);
  });
  shown.append(make("p", { className: "legend" }, make("span", { className: "for", textContent: "speaks for it" }), make("span", { className: "against", textContent: "speaks against it" })));
  listed.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]));
  shown.append(make("p", { className: "small", textContent: `Most: ${listed.slice(0, 6).map(([word, value]) => `“${word}” ${signed(value)}`).join(", ")}.` }));
  return shown;
}

function attention(found) {
  const size = Math.min(40, found.tokens.length), names = found.tokens.slice(0, size).map((one) => one.text);
  const head = make("thead", {}, make("tr", {}, make("td"), ...names.map((name) => make("th", { scope: "col" }, make("span", { textContent: name })))));
  const body = make("tbody", {}, ...names.map((name, row) => make("tr", {}, make("th", { scope: "row", textContent: name }),
    ...names.map((other, column) => {
      const weight = found.weights[row][column], cell = make("td", { title: `${name} reads ${other}: ${percent(weight)}` });
      cell.style.background = `color-mix(in srgb, var(--accent) ${Math.round(100 * Math.min(1, weight))}%, transparent)`;
      return cell;
    }))));
  const caption = make("caption", { className: "small", textContent: found.tokens.length > size ? `The first ${size} of ${found.tokens.length} tokens` : `${size} tokens` });
  return make("table", { className: "grid" }, caption, head, body);
}

/* ---------- the same as code ---------- */

const LANGUAGES = {
  curl: (url, body) => `curl ${url} \\\n  -H 'Content-Type: application/json' \\\n${state.key ? "  -H \"Authorization: Bearer $KEY\" \\\n" : ""}  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`,
  Python: (url, body) => `import json, urllib.request\n${state.key ? "import os\n" : ""}\nbody = ${JSON.stringify(body)}\nheaders = {"Content-Type": "application/json"${state.key ? ", \"Authorization\": f\"Bearer {os.environ['KEY']}\"" : ""}}\nrequest = urllib.request.Request("${url}", json.dumps(body).encode(), headers)\nprint(json.load(urllib.request.urlopen(request)))`,
  JavaScript: (url, body) => `const answer = await fetch("${url}", {\n  method: "POST",\n  headers: { "Content-Type": "application/json"${state.key ? ", Authorization: `Bearer ${process.env.KEY}`" : ""} },\n  body: JSON.stringify(${JSON.stringify(body)}),\n});\nconsole.log(await answer.json());`,
};
function code() {
  if (state.last) $("#code").textContent = LANGUAGES[state.language](location.origin + state.last.path, state.last.body);
}
function choices(place, names, chosen, choose) {
  place.replaceChildren(...names.map(([value, name]) => make("button", {
    type: "button", textContent: name, data: { "aria-pressed": String(value === chosen) },
    onclick: () => { choose(value); $("[aria-pressed=true]", place)?.focus(); },
  })));
}
const pickLanguage = (language) => {
  state.language = language;
  choices($("#languages"), Object.keys(LANGUAGES).map((name) => [name, name]), language, pickLanguage);
  code();
};

/* ---------- the page ---------- */

function pickTask(task) {
  state.task = task;
  const names = tasksOf(state.models[0].info);
  choices($("#tasks"), names.length > 1 ? names.map((name) => [name, TASKS[name].name]) : [], task, pickTask);
  pickSides(state.panes.length || state.models.length, true);
}

function pickSides(count, fresh = false) {
  const before = state.panes;
  state.panes = Array.from({ length: count }, (_, number) => (!fresh && before[number]) || new Pane(number, fresh ? null : before[0]?.values));
  $("#panes").replaceChildren(...state.panes.map((pane) => pane.root));
  $("#panes").classList.toggle("two", count > 1);
  choices($("#sides"), [[1, "One text"], [2, state.models.length > 1 ? "Two texts or models" : "Two texts"]], count, (value) => pickSides(value));
  for (const pane of state.panes) if (fresh || !before.includes(pane)) pane.ask();
}

async function start() {
  const models = [];
  try {
    const { value } = await call("/info");
    models.push({ lane: "", info: value });
    if (value.beside) models.push({ lane: value.beside, info: (await call(`${value.beside}/info`)).value });
  } catch (error) {
    $("#name").textContent = error instanceof Problem ? "Waiting" : "The server cannot be reached";
    $("#about").textContent = error instanceof Problem ? error.message : "";
    return;
  }
  state.models = models;
  const info = models[0].info, names = tasksOf(info);
  document.title = `${info.model_id} at encoderlab serve`;
  $("#name").textContent = models.map((one) => one.info.model_id).join(" and ");
  $("#about").textContent = `${info.family}, ${info.task}; reads up to ${info.max_input_length} tokens. ` +
    (names.length ? "Write a text; the answer changes as you type." : "This page has nothing for its task; POST / takes it.");
  if (names.length) pickTask(names[0]);
  document.documentElement.dataset.ready = "yes";
}

$("#key").addEventListener("change", (event) => { state.key = event.target.value; start(); });
$("#copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText($("#code").textContent);
  $("#copy").textContent = "Copied";
  setTimeout(() => { $("#copy").textContent = "Copy"; }, 1500);
});
pickLanguage("curl");
start();
