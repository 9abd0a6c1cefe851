// An answer's text: paragraphs as they are, code between fences and backticks set apart. Everything else stays as written.

import { announce, button, make } from "./dom.js";

const FENCE = /^(`{3,})([^\n`]*)$/;

/** The text as blocks {code, language, text}; a fence that is still open reaches to the end. */
export function blocksOf(text) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const close = (code) => {
    const joined = lines.join("\n");
    if (code || joined.trim()) blocks.push({ code, language: fence?.language ?? "", text: code ? joined : joined.replace(/^\n+|\n+$/g, "") });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const found = FENCE.exec(line.trimStart());
    if (fence === null && found) {
      close(false);
      fence = { mark: found[1], language: found[2].trim() };
    } else if (fence !== null && found && found[1].length >= fence.mark.length && !found[2].trim()) {
      close(true);
      fence = null;
    } else {
      lines.push(line);
    }
  }
  if (lines.length || fence) close(fence !== null);
  return blocks;
}

/** Shows a growing text; what has not changed since the last time is left alone. */
export class TextView {
  constructor() {
    this.root = make("div", "text");
    this.shown = [];
  }

  show(text) {
    const blocks = blocksOf(text);
    blocks.forEach((block, index) => {
      const before = this.shown[index];
      if (before && before.text === block.text && before.code === block.code && before.language === block.language) return;
      const element = block.code ? codeBlock(block) : paragraph(block.text);
      if (before) before.element.replaceWith(element);
      else this.root.append(element);
      this.shown[index] = { ...block, element };
    });
    for (const left of this.shown.splice(blocks.length)) left.element.remove();
  }
}

function paragraph(text) {
  const parts = text.split(/`([^`\n]+)`/);
  return make("p", "", ...parts.map((part, index) => (index % 2 ? make("code", "", part) : part)));
}

function codeBlock({ language, text }) {
  const copy = button("Copy", "quiet small", async () => {
    await navigator.clipboard.writeText(text);
    announce("Code copied");
  });
  const head = make("div", "code-head", make("span", "", language || "code"), copy);
  const body = make("pre", "", make("code", "", text));
  body.tabIndex = 0;
  return make("div", "code-block", head, body);
}
