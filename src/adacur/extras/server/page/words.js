// How things are named and numbers written, for people.

const METHODS = {
  find: ["All above the line", "asks until little is expected to be missing, then says what is promised"],
  gaussian: ["adacur", "this library’s search: predicts with uncertainty, asks where a top item may hide"],
  adacur: ["the paper’s ADACUR", "predicts by a CUR decomposition that grows each round"],
  anncur: ["ANNCUR", "predicts once, from one fixed batch of items"],
  rerank: ["Re-ranking", "the usual way: asks about the first stage’s best, and predicts nothing"],
  first: ["First stage alone", "asks the scorer nothing: the order and the scores are the first stage’s"],
  exact: ["Exact", "asks about every item; the budget does not bind it"],
};

export const methodName = (method) => METHODS[method]?.[0] ?? method;
export const methodMeaning = (method) => METHODS[method]?.[1] ?? "";
export const predicts = (method) => !["rerank", "first", "exact"].includes(method);

const FIRST_STAGES = {
  dense: "dense (text embeddings)",
  bm25: "bm25 (shared words)",
  tfidf: "tfidf (shared words)",
  multi_vector: "multi_vector (embeddings per word)",
  random: "random (no first stage)",
};

export const firstName = (first) => FIRST_STAGES[first] ?? first;

/** Steps of a search, gathered into those that a reader can tell apart. */
export const STEPS = [
  { name: "Scorer", of: (step) => step === "score" },
  { name: "First stage", of: (step) => step === "first" },
  { name: "Predicting and choosing", of: (step) => step !== "score" && step !== "first" },
];

const ENDINGS = {
  budget: "The budget is spent.",
  exhausted: "No item is left to ask about.",
  deadline: "The deadline came first.",
  tokens: "What is left of the tokens pays for no more.",
  cost: "What is left of the money pays for no more.",
  settled: "Stopped early: going on was expected to find little.",
};

export const ending = (stopped) => ENDINGS[stopped] ?? "";

const VERDICTS = {
  answered: ["Answered.", "The best item scores like an answer."],
  doubtful: ["Doubtful.", "The best item may or may not answer the question."],
  "nothing found": ["Nothing found.", "No item here scores like an answer."],
};

export const verdict = (name) => VERDICTS[name] ?? null;

export const FUSED = "In the order of the scorer and the first stage together. Select a title to read it and why it is here.";

const RELEVANCE = {
  judgements: "Relevance: the chance that people would judge the item relevant.",
  anchors: "Relevance: of the questions this index was built with, the share whose best item scores lower.",
};

export const relevanceMeaning = (by) => RELEVANCE[by] ?? "";

/** Why an item is among the hits, as terms and what is said of each. */
export function reasons(hit) {
  const told = hit.explanation;
  const lines = [["Score", `${score(hit.score)}, in round ${hit.round}${told?.predicted == null ? "" : `; ${score(told.predicted)} was predicted`}`]];
  for (const one of told?.first ?? []) lines.push([firstName(one.name), one.rank === null ? "not among its best" : `rank ${count(one.rank)}, score ${score(one.score)}`]);
  for (const one of told?.anchors ?? []) lines.push([`To “${one.query.text.length > 70 ? `${one.query.text.slice(0, 70).trim()}…` : one.query.text}”`, `the scorer gave it ${score(one.score)}, rank ${count(one.rank)}`]);
  return lines;
}

export const count = (number) => number.toLocaleString("en");
export const score = (number) => (number === null || number === undefined ? "–" : number.toFixed(2).replace("-", "−"));
export const percent = (share) => `${Math.round(share * 100)} %`;
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return "< 1 ms";
  if (seconds < 0.1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 100 ? `${seconds.toFixed(1)} s` : `${(seconds / 60).toFixed(1)} min`;
}

/** What an item is called: its title, else how its text begins. */
export function titleOf(hit) {
  const title = hit.metadata?.title;
  if (typeof title === "string" && title.trim()) return title.trim();
  const text = (hit.text ?? "").trim();
  return text.length > 80 ? `${text.slice(0, 80).trim()}…` : text || hit.id;
}

/** The text behind the title. */
export function bodyOf(hit) {
  const text = (hit.text ?? "").trim();
  const title = titleOf(hit);
  return text.startsWith(title) ? text.slice(title.length).replace(/^[\s.:–—-]+/, "") : text;
}
