// An answer's tokens, coloured by how probable each was; pointing at one, or moving to it, shows what else might have come.

import { byId, make, percent } from "./dom.js";

const LEVELS = [0.1, 0.3, 0.6, 0.9];
const decoder = new TextDecoder("utf-8", { fatal: true });

/** Text of some bytes, or null if they end inside of a character. */
function textOf(bytes) {
  try {
    return decoder.decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
}

/** A token's text as it can be seen: ends of line and spaces at its edges have a sign. */
function visible(text) {
  return text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/^ | $/g, "␣") || "∅";
}

export class TokenView {
  constructor() {
    this.root = make("div", "tokens");
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "Tokens; arrow keys move between them");
    this.spans = [];
    this.pending = null;
    this.root.addEventListener("keydown", (event) => this.#move(event));
    this.root.addEventListener("mouseover", (event) => this.#explain(event.target));
    this.root.addEventListener("focusin", (event) => this.#explain(event.target));
    for (const leaving of ["mouseleave", "focusout"]) this.root.addEventListener(leaving, hide);
  }

  /** Add entries of logprobs.content. Tokens that make up one character together become one. */
  add(entries) {
    for (const entry of entries) {
      const bytes = [...(this.pending?.bytes ?? []), ...(entry.bytes ?? new TextEncoder().encode(entry.token))];
      const logprob = (this.pending?.logprob ?? 0) + entry.logprob;
      const top = this.pending?.top ?? entry.top_logprobs;
      const text = textOf(bytes);
      if (text === null && bytes.length < 8) {
        this.pending = { bytes, logprob, top };
        continue;
      }
      this.pending = null;
      this.#append(text ?? entry.token, logprob, top, entry.token);
    }
  }

  #append(text, logprob, top, name) {
    const probability = Math.exp(logprob);
    const level = LEVELS.filter((limit) => probability >= limit).length;
    const span = make("span", `token p${level}`, text || visible(name));
    if (!text) span.classList.add("special");
    span.tabIndex = this.spans.length ? -1 : 0;
    span.details = { text: text || name, probability, top };
    span.setAttribute("aria-describedby", "tooltip");
    this.spans.push(span);
    this.root.append(span);
  }

  #move(event) {
    const at = this.spans.indexOf(event.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: this.spans.length - 1 }[event.key];
    if (event.key === "Escape") hide();
    if (at < 0 || to === undefined || !this.spans[to]) return;
    event.preventDefault();
    this.spans[at].tabIndex = -1;
    this.spans[to].tabIndex = 0;
    this.spans[to].focus();
  }

  #explain(span) {
    if (!span.details) return;
    const { text, probability, top } = span.details;
    const rows = top.map((entry) => row(visible(entry.token), Math.exp(entry.logprob), entry.token === text));
    if (!top.some((entry) => entry.token === text)) rows.push(row(visible(text), probability, true));
    const tip = byId("tooltip");
    tip.replaceChildren(...rows);
    tip.hidden = false;
    const place = span.getClientRects()[0];
    const left = Math.min(Math.max(8, place.left), innerWidth - tip.offsetWidth - 8);
    const above = place.top - tip.offsetHeight - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 8 ? above : place.bottom + 8}px`;
  }
}

function row(words, probability, chosen) {
  const bar = make("span", "tip-bar", make("span"));
  bar.firstChild.style.width = `${100 * probability}%`;
  return make("div", chosen ? "tip-row chosen" : "tip-row", make("span", "tip-token", words), bar, make("span", "tip-share", percent(probability)));
}

function hide() {
  byId("tooltip").hidden = true;
}
