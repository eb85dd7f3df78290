// One search as it happens: hits, scatter, calls and seconds.
import { Chart, dots, roundSign, scatter } from "./charts.js";
import * as words from "./words.js";

export class Panel {
  #panel;
  #find;
  #chart;
  #method;
  #k;
  #line;
  #budget;
  #rounds = [];
  #hits = [];
  #start = null;
  #rows = new Map();
  #calls = null;
  #ticking = null;

  constructor(place, { method, k, line, budget, folded }) {
    const panel = document.getElementById("panel").content.cloneNode(true).firstElementChild;
    place.append(panel);
    this.#panel = panel;
    this.#find = (selector) => panel.querySelector(selector);
    this.#method = method;
    this.#k = k;
    this.#line = line;
    this.#budget = budget;
    this.#find(".method").textContent = words.methodName(method);
    this.#find(".method-explain").textContent = words.methodMeaning(method);
    for (const part of panel.querySelectorAll(".fold")) part.open = !folded;
    this.#chart = new Chart(this.#find(".scatter"));
    panel.addEventListener("keydown", (event) => this.#closeOnEscape(event));
    this.say("Waiting for its turn …");
  }

  get method() {
    return this.#method;
  }

  /** The calls that it ended with; until then those that it may make. */
  get calls() {
    return this.#calls ?? this.#budget;
  }

  get hits() {
    return this.#hits;
  }

  /** What the scorer was asked about, by id. */
  get scored() {
    return new Map(this.#rounds.flatMap((round) => round.items.map((item) => [item.id, item])));
  }

  get ended() {
    return this.#find(".progress").dataset.state === "done";
  }

  /** What the list holds: the best k, or all above the line. */
  get #wanted() {
    return this.#line === null ? `Best ${this.#k}` : `Scored ${words.score(this.#line)} or higher`;
  }

  get #ringed() {
    return this.#line === null ? `the best ${this.#k}` : "those above the line";
  }

  /** Whether dots have a prediction, or may still get one: a find may end with its first round. */
  get #predicting() {
    return words.predicts(this.#method) && (this.#calls === null || this.#rounds.length > 1);
  }

  say(text, state = "") {
    clearInterval(this.#ticking);
    this.#find(".progress").textContent = text;
    this.#find(".progress").dataset.state = state;
  }

  /** A find begins with a replay, the first time that its line is asked for. */
  asking() {
    this.#saySince(this.#line === null ? "Asking" : "Asking: a new line takes a replay of the anchor queries first");
  }

  /** Say what is under way, and for how many seconds. */
  #saySince(text) {
    this.say(`${text} …`);
    const since = performance.now();
    this.#ticking = setInterval(() => {
      this.#find(".progress").textContent = `${text} … ${Math.round((performance.now() - since) / 1000)} s`;
    }, 1000);
  }

  /** What the next round asks the scorer about, as planned. */
  #asking() {
    const number = this.#rounds.length + 1;
    const size = this.#start.settings?.batch_sizes?.[number - 1];
    return `round ${number}: asking the scorer about ${size ? words.plural(size, "item") : "items"}`;
  }

  start(data) {
    this.#start = data;
    this.#find(".hits").closest(".card").querySelector("h3").textContent = `${this.#wanted} so far`;
    if (data.settings?.fuse) this.#find(".hits-explain").textContent = words.FUSED;
    const meaning = words.relevanceMeaning(data.settings?.relevance);
    if (meaning) {
      this.#find(".measure").textContent = "Relevance";
      this.#find(".hits-explain").textContent += ` ${meaning}`;
    }
    this.#find(".scatter-explain").textContent = this.#explainScatter();
    this.#saySince(this.#asking().replace("round", "Round"));
  }

  round(data) {
    this.#rounds.push(data);
    // There is nothing to see before the first result.
    this.#panel.classList.add("started");
    const before = new Set(this.#hits.map((hit) => hit.id));
    this.#showHits(data.hits);
    this.#showDots();
    this.#showCosts(data.calls, total(this.#rounds.map((round) => round.seconds)));
    this.#addRound(data, data.hits.filter((hit) => !before.has(hit.id)).length);
    if (data.expected_recall !== null) this.#expect(data.expected_recall, "for this question");
    const soFar = `Round ${data.number} is in: ${words.count(data.calls)} of ${words.count(this.#start.budget)} calls`;
    if (data.calls < this.#start.budget) this.#saySince(`${soFar}; ${this.#asking()}`);
    else this.say(`${soFar}.`);
  }

  done(data) {
    this.#calls = data.calls;
    this.#panel.classList.add("started");
    this.#showVerdict(data.verdict);
    this.#showHits(data.hits);
    this.#find(".scatter-explain").textContent = this.#explainScatter();
    this.#showDots();
    this.#showCosts(data.calls, data.seconds);
    if (data.expected_recall !== null) this.#expect(data.expected_recall, "for this question");
    this.#showCertificate(data.certificate);
    const n = data.hits.length;
    const nearest = data.verdict === "nothing found" && this.#line === null;
    const found = nearest ? `The ${n} that came nearest` : this.#line === null ? `Best ${n} found` : `${this.#wanted}: ${n} found`;
    this.#find(".hits").closest(".card").querySelector("h3").textContent = n ? found : "Nothing found";
    const rounds = words.plural(this.#rounds.length, "round");
    this.say(`Done after ${rounds} and ${words.plural(data.calls, "call")}. ${words.ending(data.stopped)}`, "done");
  }

  #showCertificate(certificate) {
    const place = this.#find(".certificate");
    place.hidden = !certificate;
    place.dataset.basis = certificate?.basis ?? "";
    place.textContent = certificate?.text ?? "";
  }

  #showVerdict(name) {
    const [verdict, meaning] = words.verdict(name) ?? [];
    const place = this.#find(".verdict");
    place.hidden = !verdict;
    place.dataset.verdict = name ?? "";
    place.querySelector("b").textContent = verdict ?? "";
    place.querySelector("span").textContent = meaning ?? "";
  }

  /** Keep what there is and say why there is no more. */
  fail(message) {
    const kept = this.#hits.length ? ` The ${words.plural(this.#hits.length, "item")} below ${this.#hits.length === 1 ? "was" : "were"} found before that.` : "";
    const trouble = this.#find(".trouble");
    trouble.textContent = message + kept;
    trouble.hidden = false;
    this.say("This search did not end well.", "failed");
  }

  stop() {
    this.say(this.#hits.length ? "Stopped. This is what it had found by then." : "Stopped before the first round was in.", "stopped");
  }

  /** What this budget finds on average; a search that knows more of itself says that instead. */
  expectOfBudget(expected, { measuring }) {
    if (this.#calls !== null && this.#calls >= this.#start.n_items) {
      this.#find(".expected").textContent = "100 %";
      this.#find(".expected-note").textContent = "every item was scored";
      return;
    }
    if (this.#rounds.at(-1)?.expected_recall != null) return;
    // An average of whole searches says nothing of one that is not at its end.
    if (!expected && this.#find(".expected").textContent !== "–") return;
    if (expected && this.ended) this.#expect(expected.recall, "on average");
    else this.#find(".expected-note").textContent = !this.ended ? "known at the end" : measuring ? "being measured" : "not measured for this budget";
  }

  /** Mark the hits that the other method did not find. */
  markOnly(ids) {
    for (const [id, row] of this.#rows) row.querySelector(".only").hidden = !ids.has(id);
  }

  #expect(share, of) {
    this.#find(".expected").textContent = share > 0.995 && share < 1 ? "> 99 %" : `≈ ${words.percent(share)}`;
    this.#find(".expected-note").textContent = this.#line === null ? `of the scorer’s true top ${this.#k}, ${of}` : `of all above the line, by the model`;
  }

  #explainScatter() {
    const first = this.#start.settings?.first;
    if (!this.#predicting) {
      return `Each dot is an item the scorer was asked about: up its exact score, across its place in the first stage’s list${first ? ` (${first})` : ""}. Nothing was predicted. Ringed: ${this.#ringed}.`;
    }
    return `Each dot is an item the scorer was asked about: up its exact score, across the score predicted for it beforehand. On the dashed line both are equal. In the strip: round 1, picked ${first ? `by ${first}` : "at random"} when nothing could be predicted yet. Ringed: ${this.#ringed}.`;
  }

  #showHits(hits) {
    this.#hits = hits;
    const focused = document.activeElement;
    const body = this.#find(".hits tbody");
    const rows = hits.map((hit) => this.#rowOf(hit));
    const shown = new Set(hits.map((hit) => hit.id));
    for (const id of this.#rows.keys()) if (!shown.has(id)) this.#rows.delete(id);
    body.replaceChildren(...rows);
    // Rows that move lose the focus, and a reader their place.
    if (focused instanceof HTMLElement && body.contains(focused)) focused.focus({ preventScroll: true });
  }

  #rowOf(hit) {
    let row = this.#rows.get(hit.id);
    if (!row) {
      row = newRow(hit);
      this.#rows.set(hit.id, row);
    }
    row.dataset.id = hit.id;
    row.querySelector(".rank").textContent = hit.rank;
    row.querySelector(".score").textContent = hit.relevance === undefined ? words.score(hit.score) : hit.relevance.toFixed(2);
    row.querySelector(".why").replaceChildren(
      ...words.reasons(hit).flatMap((line) =>
        line.map((text, at) => {
          const part = document.createElement(at ? "dd" : "dt");
          part.textContent = text;
          return part;
        }),
      ),
    );
    return row;
  }

  #showDots() {
    const items = dots(this.#rounds, new Set(this.#hits.map((hit) => hit.id)));
    if (!items.length) return;
    this.#chart.show(scatter({ items, predicting: this.#predicting, first: this.#start.settings?.first ?? "the first stage" }));
    this.#find(".scatter").setAttribute("aria-label", `Scatter of ${words.plural(items.length, "item")} by predicted and exact score; the table below it holds the same.`);
    this.#find(".legend").replaceChildren(...this.#rounds.map((round) => legendEntry(round)), ringEntry(this.#ringed));
    this.#find(".scored tbody").replaceChildren(
      ...items.map((item) => cells([roundCell(item.round), item.title, words.score(item.predicted), words.score(item.exact)], [2, 3])),
    );
  }

  #showCosts(calls, seconds) {
    const steps = words.STEPS.map((step) => ({
      name: step.name,
      seconds: Object.entries(seconds).reduce((sum, [name, spent]) => sum + (step.of(name) ? spent : 0), 0),
    }));
    const all = steps.reduce((sum, step) => sum + step.seconds, 0);
    this.#find(".calls").textContent = words.count(calls);
    this.#find(".calls-note").textContent = `of ${words.count(this.#start.n_items)} items (${share(calls / this.#start.n_items)})`;
    this.#find(".time").textContent = words.duration(all);
    const scorers = share(all ? steps[0].seconds / all : 0);
    this.#find(".time-note").textContent = `${scorers} of it the scorer`;
    this.#find(".costs-explain").textContent = `Waiting for the scorer took ${scorers} of the time; the rest is the search’s own work.`;
    this.#find(".steps tbody").replaceChildren(
      ...steps.map((step) => {
        const bar = document.createElement("span");
        bar.className = "bar";
        bar.style.width = `${all ? Math.max(0.5, (100 * step.seconds) / all) : 0}%`;
        return cells([step.name, bar, words.duration(step.seconds)], [2]);
      }),
    );
  }

  #addRound(data, entered) {
    const scorer = data.seconds.score ?? 0;
    const rest = Object.values(data.seconds).reduce((sum, spent) => sum + spent, 0) - scorer;
    const expected = data.expected_recall === null ? "–" : words.percent(data.expected_recall);
    if (data.expected_recall !== null) this.#find(".rounds").classList.remove("unjudged");
    this.#find(".rounds tbody").append(
      cells([roundCell(data.number), words.count(data.items.length), words.count(data.calls), entered, words.duration(scorer), words.duration(rest), expected], [1, 2, 3, 4, 5, 6]),
    );
  }

  #closeOnEscape(event) {
    const open = event.key === "Escape" && event.target.closest("details[open]");
    if (!open) return;
    open.open = false;
    open.querySelector("summary").focus();
    event.stopPropagation();
  }
}

const share = (part) => (part > 0 && part < 0.1 ? `${(part * 100).toFixed(1)} %` : words.percent(part));

function total(parts) {
  const sum = {};
  for (const part of parts) for (const [step, spent] of Object.entries(part)) sum[step] = (sum[step] ?? 0) + spent;
  return sum;
}

function cells(contents, numbers = []) {
  const row = document.createElement("tr");
  contents.forEach((content, index) => {
    const cell = row.insertCell();
    cell.append(content instanceof Node ? content : String(content));
    if (numbers.includes(index)) cell.className = "number";
  });
  return row;
}

function roundCell(round) {
  const both = document.createElement("span");
  both.className = "round";
  both.append(roundSign(round), String(round));
  return both;
}

function legendEntry(round) {
  const entry = document.createElement("span");
  entry.append(roundSign(round.number), `round ${round.number}: ${words.plural(round.items.length, "call")}`);
  return entry;
}

function ringEntry(what) {
  const entry = document.createElement("span");
  const ring = document.createElement("i");
  ring.className = "ring";
  entry.append(ring, what);
  return entry;
}

function newRow(hit) {
  const only = document.createElement("span");
  only.className = "only";
  only.textContent = "only here";
  only.hidden = true;
  const title = document.createElement("summary");
  title.textContent = words.titleOf(hit);
  const text = document.createElement("p");
  text.className = "text";
  text.textContent = hit.text ?? "";
  const id = document.createElement("p");
  id.className = "explain";
  id.textContent = `id ${hit.id}`;
  const why = document.createElement("dl");
  why.className = "why";
  const details = document.createElement("details");
  details.append(title, text, why, id);
  const snippet = document.createElement("p");
  snippet.className = "snippet";
  snippet.textContent = words.bodyOf(hit);
  const item = document.createElement("div");
  item.append(details, snippet, only);
  const row = cells(["", item, ""], [2]);
  row.className = "new";
  row.cells[0].className = "rank";
  row.cells[2].classList.add("score");
  return row;
}
