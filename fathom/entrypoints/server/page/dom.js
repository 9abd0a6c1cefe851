// Small helpers to build elements. Text is always text: nothing here or elsewhere parses HTML.

export const byId = (id) => document.getElementById(id);

/** An element with a class, and children: elements or texts. */
export function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

export function button(words, className, onClick) {
  const element = make("button", className, words);
  element.type = "button";
  element.addEventListener("click", onClick);
  return element;
}

/** Say something to those who listen to the page rather than look at it. */
export function announce(words) {
  byId("announce").textContent = words;
}

/** A share in percent; near its ends with a decimal, so that little is not nothing and much is not all. */
export const percent = (share) => `${(100 * share).toFixed((share > 0 && share < 0.1) || (share > 0.99 && share < 1) ? 1 : 0)} %`;

export const milliseconds = (ms) => (ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : `${ms.toFixed(ms < 10 ? 2 : ms < 100 ? 1 : 0)} ms`);

export const count = (number) => number.toLocaleString("en-US");

export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
