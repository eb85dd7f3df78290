// Vega-Lite charts in the page's colours: compiled here, drawn as SVG, evaluated without eval.
import { expressionInterpreter } from "./vendor/vega-interpreter-2.3.2.js";
import { showTooltip } from "./tooltip.js";

const { vega, vegaLite } = globalThis;
const SVG = "http://www.w3.org/2000/svg";

// A round has a colour and a shape, so that neither alone must tell it. Paths lie in the square from −1 to 1.
const SHAPES = [
  "M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0Z",
  "M-.88,-.88H.88V.88H-.88Z",
  "M0,-1.1L1.1,.9H-1.1Z",
  "M0,-1.25L1.25,0L0,1.25L-1.25,0Z",
  "M-.38,-1.1H.38V-.38H1.1V.38H.38V1.1H-.38V.38H-1.1V-.38H-.38Z",
  "M0,1.1L1.1,-.9H-1.1Z",
  "M-1.1,-.6L-.6,-1.1L0,-.5L.6,-1.1L1.1,-.6L.5,0L1.1,.6L.6,1.1L0,.5L-.6,1.1L-1.1,.6L-.5,0Z",
  "M-.55,-1H.55L1.1,0L.55,1H-.55L-1.1,0Z",
];
const cycle = (round) => (Math.max(round, 1) - 1) % SHAPES.length;
export const shapeOf = (round) => SHAPES[cycle(round)];

/** The sign of a round, as in the scatter. */
export function roundSign(round) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "-1.4 -1.4 2.8 2.8");
  svg.setAttribute("class", "sign");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", shapeOf(round));
  path.setAttribute("fill", `var(--round-${cycle(round) + 1})`);
  svg.append(path);
  return svg;
}

/** Colours of the theme that holds now, as the browser resolves them. */
function colours() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const resolved = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const named = Object.fromEntries(["ink", "muted", "line", "accent", "second", "band", "card"].map((name) => [name, resolved(name)]));
  named.rounds = SHAPES.map((_, index) => resolved(`round-${index + 1}`));
  probe.remove();
  return named;
}

const config = (colour) => ({
  background: null,
  font: "system-ui, sans-serif",
  aria: false,
  view: { stroke: colour.line },
  axis: {
    domainColor: colour.line,
    gridColor: colour.line,
    gridOpacity: 0.6,
    tickColor: colour.line,
    labelColor: colour.muted,
    titleColor: colour.ink,
    labelFontSize: 12,
    titleFontSize: 12,
    titleFontWeight: "normal",
    labelOverlap: true,
  },
});

/** A chart in a place of the page; drawn anew when its data, its width or the theme changes. */
export class Chart {
  #host;
  #spec = null;
  #view = null;
  #width = 0;
  #waiting = false;

  constructor(host) {
    this.#host = host;
    new ResizeObserver(() => {
      if (Math.abs(host.clientWidth - this.#width) > 1) this.#redraw();
    }).observe(host);
    document.addEventListener("themechange", () => this.#redraw());
  }

  /** `spec` is a function of the width in pixels and the colours; null clears the chart. */
  show(spec) {
    this.#spec = spec;
    this.#redraw();
  }

  #redraw() {
    if (this.#waiting) return;
    this.#waiting = true;
    // A timer, not an animation frame: a tab in the background must not fall behind.
    setTimeout(() => {
      this.#waiting = false;
      this.#draw();
    }, 0);
  }

  async #draw() {
    const width = this.#host.clientWidth;
    this.#width = width;
    if (this.#spec === null || width < 80) {
      this.#view?.finalize();
      this.#view = null;
      this.#host.replaceChildren();
      return;
    }
    const asked = this.#spec;
    const colour = colours();
    let drawn = await draw(asked(width, colour), colour);
    // How wide axes and titles turn out is known only once they are drawn.
    const over = Math.ceil(drawn.place.firstElementChild.width.baseVal.value) - width;
    if (over > 0) {
      drawn.view.finalize();
      drawn = await draw(asked(width - over, colour), colour);
    }
    if (asked !== this.#spec) return drawn.view.finalize();
    // The old chart stays until the new one is drawn: nothing flickers.
    this.#view?.finalize();
    this.#view = drawn.view;
    this.#host.replaceChildren(drawn.place);
    return undefined;
  }
}

async function draw(spec, colour) {
  const place = document.createElement("div");
  const compiled = vegaLite.compile({ ...spec, config: config(colour) }).spec;
  const view = new vega.View(vega.parse(compiled, null, { ast: true }), {
    expr: expressionInterpreter,
    renderer: "svg",
    container: place,
    hover: true,
    tooltip: (_, event, item, content) => showTooltip(event, content ? item.datum : null),
  });
  await view.runAsync();
  return { place, view };
}

function extent(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  const room = (high - low || 1) * 0.06;
  return [low - room, high + room];
}

/**
 * Exact against predicted scores. Items that were never predicted stand in a strip of their own, in the order in which
 * they were asked about; where nothing is ever predicted, the strip is the whole chart.
 */
export function scatter({ items, predicting, first }) {
  const exact = extent(items.map((item) => item.exact));
  const predicted = items.filter((item) => item.predicted !== null);
  const all = extent(items.flatMap((item) => (item.predicted === null ? [item.exact] : [item.exact, item.predicted])));
  // One scale on both axes lets the diagonal mean "predicted right". Predictions that are far off would squeeze it flat.
  const alike = all[1] - all[0] < 3 * (exact[1] - exact[0]);
  const down = predicted.length && alike ? all : exact;
  const across = predicted.length ? (alike ? all : extent(predicted.map((item) => item.predicted))) : exact;
  const ends = [Math.max(down[0], across[0]), Math.min(down[1], across[1])];

  return (width, colour) => {
    const height = Math.round(Math.min(340, Math.max(240, width * 0.72)));
    const room = width - 52;
    const strip = predicting ? Math.max(44, Math.round(room * 0.17)) : room;
    const y = (axis) => ({
      field: "exact",
      type: "quantitative",
      scale: { domain: down, nice: false, zero: false },
      axis: axis ? { title: "exact score", tickCount: 6 } : { labels: false, ticks: false, title: null, tickCount: 6 },
    });
    const marks = (name, x, axis, of) => {
      const values = items.filter(of);
      const shape = { field: "sign", type: "nominal", scale: { domain: SHAPES.map((_, index) => index), range: SHAPES }, legend: null };
      const fill = { ...shape, scale: { domain: SHAPES.map((_, index) => index), range: colour.rounds } };
      return [
        {
          name,
          data: { values },
          mark: { type: "point", filled: true, size: 62, opacity: 0.9, stroke: colour.card, strokeWidth: 0.6, tooltip: true },
          encoding: { x, y: y(axis), shape, fill },
        },
        {
          name: `${name}_top`,
          data: { values: values.filter((item) => item.top) },
          mark: { type: "point", shape: "circle", filled: false, size: 210, stroke: colour.ink, strokeWidth: 1.6, opacity: 1, tooltip: true },
          encoding: { x, y: y(axis) },
        },
      ];
    };
    const order = {
      field: "order",
      type: "quantitative",
      scale: { nice: false, zero: false, padding: 8 },
      axis: predicting
        ? { title: "round 1", labels: false, ticks: false, grid: false }
        : { title: `place in the list of ${first}`, tickMinStep: 1, grid: false },
    };
    const strips = { width: strip, height, layer: marks("unpredicted", order, true, (item) => item.predicted === null) };
    if (!predicting) return strips;
    const x = {
      field: "predicted",
      type: "quantitative",
      scale: { domain: across, nice: false, zero: false },
      axis: { title: "predicted score", tickCount: 5 },
    };
    const diagonal = {
      name: "diagonal",
      data: { values: ends[0] < ends[1] ? ends.map((end) => ({ predicted: end, exact: end })) : [] },
      mark: { type: "line", strokeDash: [5, 4], color: colour.muted, strokeWidth: 1.4 },
      encoding: { x, y: y(false) },
    };
    const corner = (what, where, mark) => ({
      data: { values: alike && predicted.length && room > 330 ? [{ ...where, what }] : [] },
      mark: { type: "text", color: colour.muted, fontSize: 11, fontStyle: "italic", tooltip: false, ...mark },
      encoding: { x, y: y(false), text: { field: "what" } },
    });
    const corners = [
      corner("better than predicted", { predicted: across[0], exact: down[1] }, { align: "left", baseline: "top", dx: 6, dy: 6 }),
      corner("worse than predicted", { predicted: across[1], exact: down[0] }, { align: "right", baseline: "bottom", dx: -6, dy: -6 }),
    ];
    return {
      spacing: 8,
      hconcat: [strips, { width: room - strip - 16, height, layer: [diagonal, ...corners, ...marks("predicted", x, false, (item) => item.predicted !== null)] }],
    };
  };
}

/** Items as the scatter wants them, from the rounds so far and the ids of the top k. */
export function dots(rounds, top) {
  let order = 0;
  return rounds.flatMap((round) =>
    round.items.map((item) => ({
      title: item.title,
      round: round.number,
      sign: cycle(round.number),
      predicted: item.predicted,
      exact: item.exact,
      top: top.has(item.id),
      order: (order += 1),
    })),
  );
}

/** Recall against budget, a curve with its interval for each method, and what to expect of the budget chosen. */
export function recallCurve({ curves, budget }) {
  return (width, colour) => {
    const tones = [colour.accent, colour.second];
    const low = Math.min(...curves.flatMap((curve) => curve.points.map((point) => point.low)));
    const budgets = curves.flatMap((curve) => curve.points.map((point) => point.budget));
    const shown = [Math.min(...budgets), Math.max(...budgets)];
    const x = {
      field: "budget",
      type: "quantitative",
      scale: { type: "log", domain: shown, nice: false },
      axis: { title: "budget (scorer calls)", values: ticks(budgets, width), format: ",d", grid: false, labelOverlap: "greedy" },
    };
    const y = (field) => ({
      field,
      type: "quantitative",
      scale: { domain: [Math.max(0, Math.floor(low * 10 - 0.5) / 10), 1], nice: false },
      axis: { title: "recall", format: ".0%", tickCount: 4 },
    });
    const layer = curves.flatMap((curve, index) => {
      const tone = tones[index];
      const here = expectedAt(curve.points, budget);
      return [
        { data: { values: curve.points }, mark: { type: "area", color: tone, opacity: 0.18 }, encoding: { x, y: y("low"), y2: { field: "high" } } },
        {
          name: `curve_${index}`,
          data: { values: curve.points },
          mark: { type: "line", color: tone, strokeWidth: 2.2, strokeDash: index ? [6, 4] : [1, 0] },
          encoding: { x, y: y("recall") },
        },
        {
          name: `here_${index}`,
          data: { values: here ? [here] : [] },
          mark: { type: "point", filled: true, shape: index ? "square" : "circle", size: 130, color: tone, stroke: colour.card, strokeWidth: 2, opacity: 1, tooltip: false },
          encoding: { x, y: y("recall") },
        },
      ];
    });
    const rule = {
      data: { values: budget >= shown[0] && budget <= shown[1] ? [{ budget }] : [] },
      mark: { type: "rule", color: colour.muted, strokeDash: [2, 3] },
      encoding: { x },
    };
    return { width: width - 72, padding: { left: 4, top: 6, bottom: 4, right: 14 }, height: Math.round(Math.min(210, Math.max(150, width * 0.42))), layer: [rule, ...layer] };
  };
}

function ticks(budgets, width) {
  const distinct = [...new Set(budgets)].sort((one, other) => one - other);
  const step = Math.ceil(distinct.length / Math.max(2, Math.floor(width / 60)));
  return distinct.filter((_, index) => index % step === 0);
}

/** Recall at a budget that was measured or lies between two that were; null elsewhere. */
export function expectedAt(points, budget) {
  const known = [...points].sort((one, other) => one.budget - other.budget);
  const above = known.findIndex((point) => point.budget >= budget);
  if (above === -1) return null;
  if (known[above].budget === budget) return { ...known[above] };
  if (above === 0) return null;
  const [left, right] = [known[above - 1], known[above]];
  const share = Math.log(budget / left.budget) / Math.log(right.budget / left.budget);
  const between = (field) => left[field] + share * (right[field] - left[field]);
  return { budget, recall: between("recall"), low: between("low"), high: between("high") };
}
