// The form, the address, the theme, and the searches that the form starts.
import { ApiError, get, search, useKey } from "./api.js";
import { Panel } from "./panel.js";
import { chooseBudget, chooseCurves, expectedOf, isMeasuring, onNews } from "./recall.js";
import { hideTooltip } from "./tooltip.js";
import * as words from "./words.js";

const element = (id) => document.getElementById(id);
const form = element("search");
const BUDGETS = [1, 2, 3, 5, 7.5].flatMap((step) => [10, 100, 1000, 10000].map((size) => step * size)).sort((one, other) => one - other);
// For the index that ships with adacur, whose items are known here; chosen so that now one method finds more, now the other.
const EXAMPLES = { wikivital: ["who discovered penicillin?", "what makes the sky blue?", "who wrote the first novel?", "rivers that do not reach the sea"] };

let indexes = [];
let budgets = BUDGETS;
let panels = [];
let running = null;
// What the curves must be of to speak of the searches shown.
let searched = "";
// Whoever is quicker than the list of indexes is answered as soon as it is there.
let isAsked = false;

// ---- What can be asked

async function open() {
  trouble(null);
  try {
    const { data } = await get("v1/indexes");
    indexes = data.indexes;
    offerIndexes(data.default);
  } catch (error) {
    if (error.status === 401) askForKey();
    trouble(error.status === 401 ? null : error.message);
    return;
  }
  element("key-form").hidden = true;
  element("ask").hidden = element("results").hidden = false;
  fromAddress();
  if (isAsked || new URLSearchParams(location.search).get("q")?.trim()) run();
  formChanged();
}

function askForKey() {
  const asked = !element("key-form").hidden;
  element("key-form").hidden = false;
  // Before the key is known there is nothing to choose from.
  element("ask").hidden = element("results").hidden = !indexes.length;
  element("key-explain").classList.toggle("wrong", asked);
  element("key-explain").textContent = asked
    ? "The server does not know this key. Check it and try again."
    : "This server asks for a key. It is kept in this tab only.";
  element("key").focus();
}

function offerIndexes(first) {
  options(element("index"), indexes.map((index) => [index.name, index.name]));
  element("index").value = first;
  element("index-field").hidden = indexes.length < 2;
}

const chosenIndex = () => indexes.find((index) => index.name === element("index").value);

/** Offer what the chosen index has; choices that it has too are kept. */
function offerSettings() {
  const index = chosenIndex();
  const limits = index.limits ?? {};
  // Exact search asks about every item, which the server's limit may forbid.
  const methods = index.methods.filter((method) => method !== "exact" || index.n_items <= (limits.budget ?? Infinity));
  options(element("method"), methods.map((method) => [method, words.methodName(method)]));
  options(element("compare"), [["", "nothing"], ...methods.map((method) => [method, words.methodName(method)])]);
  const usual = words.firstName(index.default_first ?? "random");
  options(element("first"), [["", usual], ...index.first_stages.filter((first) => first !== index.default_first).map((first) => [first, words.firstName(first)])]);
  const most = Math.min(limits.budget ?? Infinity, index.n_items);
  budgets = BUDGETS.filter((budget) => budget < most).concat(most);
  element("budget-slider").max = budgets.length - 1;
  element("budget").max = most;
  element("k").max = Math.min(limits.k ?? Infinity, index.n_items);
  if (limits.query_chars) element("question").maxLength = limits.query_chars;
  const name = document.createElement("b");
  name.textContent = `${index.name}: ${words.plural(index.n_items, "item")}`;
  element("searched").replaceChildren(name, index.scorer ? ` · the model is ${index.scorer}` : "");
  element("searched").hidden = false;
  element("against-field").hidden = !methods.includes("rerank");
  offerExamples(index);
  // What the visitor may be typing already is left alone, unless this index cannot do it.
  setBudget(Math.min(Number(element("budget").value), most));
  if (Number(element("k").value) > index.n_items) element("k").value = index.n_items;
}

function options(select, choices) {
  const before = select.value;
  select.replaceChildren(
    ...choices.map(([value, label]) => {
      const option = document.createElement("option");
      option.value = value;
      option.textContent = label;
      option.title = words.methodMeaning(value);
      return option;
    }),
  );
  if (choices.some(([value]) => value === before)) select.value = before;
}

function offerExamples(index) {
  const questions = EXAMPLES[Object.keys(EXAMPLES).find((name) => index.name.startsWith(name))] ?? index.examples;
  const place = element("examples");
  place.hidden = !questions.length;
  place.replaceChildren(
    element("examples-label") ?? "",
    ...questions.map((question) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = question;
      button.addEventListener("click", () => {
        element("question").value = question;
        run();
      });
      return button;
    }),
  );
}

// ---- The form

const compareWith = () => (element("compare").value === element("method").value ? "" : element("compare").value);
const curvesShown = () => [element("index").value, element("k").value, element("first").value].join("|");
const isFinding = () => element("all").checked;
const methods = () => (isFinding() ? ["find"] : [element("method").value, compareWith()].filter(Boolean));

function setBudget(calls) {
  if (Number(element("budget").value) !== calls) element("budget").value = calls;
  const nearest = budgets.reduce((best, budget, at) => (Math.abs(budget - calls) < Math.abs(budgets[best] - calls) ? at : best), 0);
  element("budget-slider").value = nearest;
  element("budget-slider").setAttribute("aria-valuetext", words.plural(calls, "call"));
  chooseBudget(calls);
}

/** What only one of the two verbs has is shown with it. */
function verbChanged() {
  element("line-fields").hidden = !isFinding();
  for (const id of ["method-field", "compare-field", "k-field", "recall"]) element(id).hidden = isFinding();
  element("against-field").hidden = isFinding() || !chosenIndex()?.methods.includes("rerank");
  formChanged();
}

function formChanged() {
  for (const option of element("compare").options) option.disabled = option.value === element("method").value;
  if (!compareWith()) element("compare").value = "";
  element("against").checked = compareWith() === "rerank";
  element("against").disabled = element("method").value === "rerank";
  element("method-means").textContent = words.methodMeaning(element("method").value);
  element("compare-means").textContent = words.methodMeaning(compareWith());
  const k = Number(element("k").value);
  element("settings-now").textContent = `: ${methods().map(words.methodName).join(" and ")}, starting from ${element("first").selectedOptions[0]?.textContent ?? "…"}${isFinding() ? "" : `, best ${k}`}`;
  if (!indexes.length || !Number.isInteger(k) || k < 1) return;
  const index = chosenIndex();
  chooseCurves({ index: index.name, items: index.n_items, first: element("first").value, k, methods: curvesOf(index) });
}

/** What the curve compares: the methods chosen, and re-ranking where there is but one. */
function curvesOf(index) {
  const compared = methods().length < 2 && index.methods.includes("rerank") ? [...methods(), "rerank"] : methods();
  return isFinding() ? [] : [...new Set(compared)].filter((method) => method !== "exact");
}

function requestOf(method) {
  if (method === "find") return lineOf({ index: element("index").value, query: element("question").value.trim(), explain: true });
  const asked = { index: element("index").value, query: element("question").value.trim(), k: Number(element("k").value), method, explain: true };
  if (method !== "exact") asked.budget = Number(element("budget").value);
  if (element("first").value && method !== "exact") asked.first = element("first").value;
  return asked;
}

function lineOf(asked) {
  const first = element("first").value;
  return { ...asked, above: Number(element("above").value), recall: Number(element("share").value), budget: Number(element("budget").value), ...(first ? { first } : {}) };
}

// ---- The address

function toAddress() {
  const asked = new URLSearchParams({ q: element("question").value.trim(), k: element("k").value, budget: element("budget").value, method: element("method").value });
  if (isFinding()) for (const [name, id] of [["above", "above"], ["recall", "share"]]) asked.set(name, element(id).value);
  else if (compareWith()) asked.set("compare", compareWith());
  if (element("first").value) asked.set("first", element("first").value);
  if (indexes.length > 1) asked.set("index", element("index").value);
  history.replaceState(null, "", `?${asked}`);
}

function fromAddress() {
  const asked = new URLSearchParams(location.search);
  const pick = (id, value) => {
    if (value !== null && [...element(id).options].some((option) => option.value === value)) element(id).value = value;
  };
  const whole = (name) => (/^[1-9]\d{0,8}$/.test(asked.get(name) ?? "") ? Number(asked.get(name)) : null);
  pick("index", asked.get("index"));
  offerSettings();
  for (const id of ["method", "compare", "first"]) pick(id, asked.get(id));
  pick("share", asked.get("recall"));
  if (asked.has("above") && Number.isFinite(Number(asked.get("above")))) {
    element("all").checked = true;
    element("above").value = Number(asked.get("above"));
  }
  verbChanged();
  if (whole("k")) element("k").value = whole("k");
  if (whole("budget")) setBudget(whole("budget"));
  if (asked.has("q") && !isAsked) element("question").value = asked.get("q");
}

// ---- Searches

/** Search by each method, one after the other: at the same time they would share the scorer, and blur the seconds. */
async function run() {
  isAsked = true;
  if (!indexes.length || !form.reportValidity()) return;
  running?.abort();
  const own = (running = new AbortController());
  trouble(null);
  toAddress();
  busy(true);
  element("primer").hidden = true;
  element("overlap").hidden = true;
  element("panels").replaceChildren();
  element("panels").classList.toggle("two", methods().length > 1);
  searched = curvesShown();
  // Two methods under one another, on a phone: the answers first, the rest on demand.
  const folded = methods().length > 1 && matchMedia("(max-width: 60rem)").matches;
  panels = methods().map((method) => new Panel(element("panels"), { method, k: Number(element("k").value), line: isFinding() ? Number(element("above").value) : null, budget: Number(element("budget").value), folded }));
  showExpected();
  const requests = panels.map((panel) => requestOf(panel.method));
  for (const [at, panel] of panels.entries()) {
    if (own.signal.aborted) panel.stop();
    else await follow(panel, requests[at], own.signal);
    if (running !== own) return;
  }
  busy(false);
  running = null;
}

async function follow(panel, request, signal) {
  const name = words.methodName(panel.method);
  panel.asking();
  try {
    for await (const { event, data } of search(request, { signal, verb: panel.method === "find" ? "find" : "search" })) {
      if (event === "start") panel.start(data);
      if (event === "round") panel.round(data);
      if (event === "done") panel.done(data);
      if (event === "round") status(`${name}: round ${data.number}, ${words.plural(data.calls, "call")} so far.`);
      if (event === "done") status(`${name}: done, ${words.plural(data.hits.length, "hit")} with ${words.plural(data.calls, "call")}.`);
    }
  } catch (error) {
    if (signal.aborted) {
      panel.stop();
      status("Stopped.");
    } else if (error instanceof ApiError) {
      if (error.status === 401) askForKey();
      panel.fail(error.message);
      status(`${name}: ${error.message}`);
    } else throw error;
  }
  showOverlap();
  showExpected();
}

function showExpected() {
  const same = searched === curvesShown();
  for (const panel of panels) panel.expectOfBudget(same ? expectedOf(panel.method, panel.calls) : null, { measuring: same && isMeasuring(panel.method) });
}

/** What only one of two methods found, once both have ended. */
function showOverlap() {
  if (panels.length < 2 || !panels.every((panel) => panel.ended)) return;
  const [one, other] = panels;
  const ids = panels.map((panel) => new Set(panel.hits.map((hit) => hit.id)));
  const only = [one.hits.filter((hit) => !ids[1].has(hit.id)), other.hits.filter((hit) => !ids[0].has(hit.id))];
  const k = Math.max(one.hits.length, other.hits.length);
  // Hits may be ordered with the first stage's help; what was found is what the scorer was asked about.
  const scored = new Map([...one.scored, ...other.scored]);
  const best = [...scored.keys()].sort((first, second) => scored.get(second).exact - scored.get(first).exact).slice(0, k);
  const missed = panels.map((panel) => best.filter((id) => !panel.scored.has(id)));
  const asked = panels.map((panel, at) => `${words.methodName(panel.method)} asked about ${best.length - missed[at].length}`).join(" and ");
  const common = only[0].length + only[1].length === 0 ? `Both list the same ${k}.` : `${one.hits.length - only[0].length} of ${k} in common.`;
  element("overlap-text").textContent = `${common} Of the ${k} that the scorer likes best among all it was asked about, ${asked}.`;
  element("overlap-only").replaceChildren(
    ...panels.flatMap((panel, at) => {
      if (!missed[1 - at].length) return [];
      const line = document.createElement("li");
      const who = document.createElement("b");
      who.textContent = `Only ${words.methodName(panel.method)} asked about: `;
      line.append(who, missed[1 - at].map((id) => `${scored.get(id).title} (${words.score(scored.get(id).exact)})`).join(", "));
      return [line];
    }),
  );
  panels.forEach((panel, at) => panel.markOnly(new Set(only[at].map((hit) => hit.id))));
  element("overlap").hidden = false;
}

function busy(on) {
  const hadFocus = [element("go"), element("stop")].includes(document.activeElement);
  element("stop").hidden = !on;
  element("go").hidden = on;
  element("results").setAttribute("aria-busy", String(on));
  // The button that was pressed is gone; the one in its place takes the focus.
  if (hadFocus) element(on ? "stop" : "go").focus();
}

const status = (text) => (element("status").textContent = text);

function trouble(message) {
  element("trouble").textContent = message ?? "";
  element("trouble").hidden = !message;
}

// ---- The theme

const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";

function themeChanged() {
  element("theme").textContent = isDark() ? "Light theme" : "Dark theme";
  document.dispatchEvent(new Event("themechange"));
}

element("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("adacur-theme", theme);
  } catch {
    // Storage may be forbidden; the choice then lasts as long as the page.
  }
  themeChanged();
});
dark.addEventListener("change", themeChanged);

// ---- Events

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
// A field that is wrong must be seen.
form.addEventListener("invalid", () => (element("settings").open = true), true);
element("stop").addEventListener("click", () => running?.abort());
element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(element("key").value.trim());
  open();
});
element("budget-slider").addEventListener("input", () => setBudget(budgets[Number(element("budget-slider").value)]));
element("budget").addEventListener("input", () => {
  const calls = Number(element("budget").value);
  if (Number.isInteger(calls) && calls > 0) setBudget(calls);
});
element("index").addEventListener("change", () => {
  offerSettings();
  verbChanged();
});
for (const id of ["best", "all"]) {
  element(id).addEventListener("change", () => {
    // A find ends by itself, mostly long before: the budget is a wall, not what is spent.
    setBudget(isFinding() ? budgets.at(-1) : Math.min(100, budgets.at(-1)));
    verbChanged();
  });
}
for (const id of ["method", "compare", "first", "k"]) element(id).addEventListener("change", formChanged);
element("against").addEventListener("change", () => {
  element("compare").value = element("against").checked ? "rerank" : "";
  formChanged();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTooltip();
});
onNews(showExpected);

themeChanged();
open();
