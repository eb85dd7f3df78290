// What a dot stands for, beside the pointer. Texts are set as text, never as markup.
import { score } from "./words.js";

const tooltip = document.getElementById("tooltip");

export function showTooltip(event, dot) {
  if (!dot || dot.title === undefined) return hideTooltip();
  const name = document.createElement("b");
  name.textContent = dot.title;
  const facts = document.createElement("span");
  const predicted = dot.predicted === null ? "not predicted" : `predicted ${score(dot.predicted)}`;
  facts.textContent = `exact ${score(dot.exact)} · ${predicted} · round ${dot.round}${dot.top ? " · in the top k" : ""}`;
  tooltip.replaceChildren(name, facts);
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const left = Math.max(4, Math.min(event.clientX + 14, document.documentElement.clientWidth - width - 4));
  const below = event.clientY + 18;
  tooltip.style.left = `${left}px`;
  tooltip.style.top = `${below + height > innerHeight ? event.clientY - height - 12 : below}px`;
  return undefined;
}

export function hideTooltip() {
  tooltip.hidden = true;
}

addEventListener("scroll", hideTooltip, { passive: true });
