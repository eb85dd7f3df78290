// The index's recall against its budget, and the point that the slider chooses.
import { ApiError, get } from "./api.js";
import { Chart, expectedAt, recallCurve } from "./charts.js";
import * as words from "./words.js";

const text = document.getElementById("recall-text");
const basis = document.getElementById("recall-basis");
const legend = document.getElementById("recall-legend");
const chart = new Chart(document.getElementById("recall-chart"));

let wanted = { index: null, items: 0, first: "", k: 0, methods: [] };
let budget = 0;
let curves = new Map();
let asking = new AbortController();
let listener = () => {};
/** Called whenever more is known of what to expect. */
export const onNews = (callback) => (listener = callback);

/** What to expect of a method at a budget; null where that is not known. */
export const expectedOf = (method, calls) => {
  const curve = curves.get(method);
  return curve?.points ? expectedAt(curve.points, calls) : null;
};

/** Whether a method's curve is still on its way. */
export const isMeasuring = (method) => !curves.get(method)?.ready && !curves.get(method)?.reason;

export function chooseBudget(calls) {
  budget = calls;
  show();
}

/** Fetch the curves of some methods; methods whose curve is there are not asked for again. */
export function chooseCurves({ index, items, first, k, methods }) {
  if (wanted.index !== index || wanted.k !== k || wanted.first !== first) curves = new Map();
  asking.abort();
  asking = new AbortController();
  wanted = { index, items, first, k, methods };
  show();
  for (const method of methods) if (isMeasuring(method)) fetchCurve(method, asking.signal);
}

async function fetchCurve(method, signal) {
  const { index, first, k } = wanted;
  const asked = new URLSearchParams({ k, method, ...(first ? { first } : {}) });
  try {
    for (;;) {
      const answer = await get(`v1/indexes/${encodeURIComponent(index)}/recall?${asked}`, { signal });
      curves.set(method, { points: answer.data.points, queries: answer.data.n_queries, first: answer.data.first, ready: answer.state === "ready" });
      if (answer.state === "ready") break;
      show();
      listener();
      await pause(answer.seconds * 1000, signal);
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    curves.set(method, { reason: error instanceof ApiError ? error.message : "The curve cannot be drawn." });
  }
  show();
  listener();
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("no longer wanted", "AbortError"));
    });
  });
}

function show() {
  const known = wanted.methods.filter((method) => curves.get(method)?.points?.length);
  chart.show(known.length ? recallCurve({ curves: known.map((method) => curves.get(method)), budget }) : null);
  legend.replaceChildren(...(known.length > 1 ? known.map((method, index) => legendEntry(method, index)) : []));
  text.replaceChildren(...wanted.methods.map((method) => sentence(method)));
  basis.textContent = known.length ? `Measured on ${words.plural(curves.get(known[0]).queries, "question")} for which the scorer has scored every item, starting from ${words.firstName(curves.get(known[0]).first)}; the band is a 95 % interval.` : "";
}

function legendEntry(method, index) {
  const entry = document.createElement("span");
  const stroke = document.createElement("i");
  stroke.className = index ? "stroke second" : "stroke";
  entry.append(stroke, words.methodName(method));
  return entry;
}

function sentence(method) {
  const line = document.createElement("span");
  const curve = curves.get(method);
  const expected = expectedOf(method, budget);
  const name = words.methodName(method);
  const measured = curve?.points?.map((point) => point.budget) ?? [];
  if (curve?.reason) line.textContent = `${name}: no curve. ${curve.reason} `;
  else if (budget >= wanted.items) line.textContent = `${name}, ${words.plural(budget, "call")}: every item is scored, so 100 %. `;
  else if (expected) {
    const found = document.createElement("b");
    found.textContent = words.percent(expected.recall);
    line.append(
      `${name}, ${words.plural(budget, "call")}: expect `,
      found,
      ` of the scorer’s true top ${wanted.k}; likely ${Math.round(expected.low * 100)} to ${words.percent(expected.high)}. `,
    );
  } else if (budget < wanted.k) line.textContent = `${name}: a budget of ${words.plural(budget, "call")} cannot find the best ${wanted.k}. `;
  else if (measured.length && curve.ready) line.textContent = `${name}: measured from ${words.count(Math.min(...measured))} to ${words.plural(Math.max(...measured), "call")}, not at ${words.count(budget)}. `;
  else line.textContent = `${name}: trying it out on questions for which every item’s score is known … the curve appears here when that is done. `;
  return line;
}
