// The engine step by step: figures, the last steps as a chart and a table, and the KV cache as a map.

import { blockMap, forgetColours, slots, sparkline, timeline } from "./charts.js";
import { byId, count, make, milliseconds, percent, plural } from "./dom.js";
import { feed } from "./feed.js";

const SLOTS = 200;
const ROWS = 14;
const WINDOW_S = 2;
const timeOf = (step) => step.schedule_ms + step.model_ms + step.update_ms;

const FIGURES = [
  { title: "Running", value: () => count(feed.state.running), line: (step) => step.state.running },
  { title: "Waiting", value: () => count(feed.state.waiting), line: (step) => step.state.waiting },
  { title: "Decoded per second", value: () => count(perSecond((step) => step.generation_tokens)), line: (step) => (1000 * step.generation_tokens) / timeOf(step) },
  { title: "Prefilled per second", value: () => count(perSecond((step) => step.context_tokens)), line: (step) => (1000 * step.context_tokens) / timeOf(step) },
  { title: "Step time, median", value: () => (feed.steps.length ? milliseconds(median(feed.steps.slice(-50).map(timeOf))) : "–"), line: timeOf },
  { title: "Prefix hits", value: () => (feed.state.prefix_queries ? percent(feed.state.prefix_hits / feed.state.prefix_queries) : "–"), line: (step) => step.prefix_hits },
];

let selected = 0; // number of the step that is looked at; 0: the newest
let frozen = null; // the steps as they were when paused
let due = 0; // the next animation frame

export function startEngineView() {
  for (const figure of FIGURES) {
    figure.output = make("strong", "", "–");
    figure.canvas = make("canvas");
    figure.canvas.setAttribute("aria-hidden", "true");
    byId("figures").append(make("div", "figure", make("span", "", figure.title), figure.output, make("div", "spark", figure.canvas)));
  }
  byId("pause").addEventListener("click", () => {
    frozen = frozen ? null : [...feed.steps];
    byId("pause").setAttribute("aria-pressed", String(Boolean(frozen)));
    byId("pause").textContent = frozen ? "Go on" : "Pause";
    draw();
  });
  const box = byId("timeline");
  box.addEventListener("pointermove", (event) => {
    const { left, width } = box.getBoundingClientRect();
    const back = slots(width, SLOTS).backAt(event.clientX - left);
    select(shown().at(-1 - back)?.number ?? 0);
  });
  box.addEventListener("pointerleave", () => select(0));
  box.addEventListener("keydown", (event) => {
    const steps = shown();
    const at = selectedIndex(steps);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: steps.length - 1 }[event.key];
    if (event.key === "Escape") select(0);
    if (to === undefined) return;
    event.preventDefault();
    select(steps[Math.min(Math.max(to, 0), steps.length - 1)]?.number ?? 0);
  });
  feed.addEventListener("change", () => {
    drawStrip();
    due ||= requestAnimationFrame(draw);
  });
  addEventListener("resize", draw);
}

/** Draw everything anew, in new colours. */
export function redraw() {
  forgetColours();
  draw();
}

const shown = () => frozen ?? feed.steps;

function select(number) {
  selected = number;
  draw();
}

function selectedIndex(steps) {
  const found = steps.findIndex((step) => step.number === selected);
  return found < 0 ? steps.length - 1 : found;
}

function draw() {
  due = 0;
  if (byId("engine-view").hidden || !feed.state) return;
  const steps = shown();
  const state = frozen?.at(-1)?.state ?? feed.state;
  const { engine } = feed;
  byId("limits").textContent =
    `${engine.model} · ${plural(engine.max_num_seqs, "row")} and ${plural(engine.max_num_batched_tokens, "token")} a step at most` +
    ` · context ${count(engine.max_model_len)} · Fathom ${engine.version}`;
  for (const { output, canvas, value, line } of FIGURES) {
    if (!frozen) output.textContent = value();
    sparkline(canvas, steps.map(line));
  }
  const at = selectedIndex(steps);
  timeline(byId("timeline").firstElementChild, steps, SLOTS, selected ? at : -1);
  drawSelected(steps[at], steps);
  drawCache(state, engine);
  drawTable(steps);
}

function drawSelected(step, steps) {
  const slider = byId("timeline");
  if (!step) {
    byId("selected").replaceChildren(make("p", "nothing", "No steps yet. Send a message in the chat, and watch its batches here."));
    return;
  }
  slider.setAttribute("aria-valuemin", steps[0].number);
  slider.setAttribute("aria-valuemax", steps.at(-1).number);
  slider.setAttribute("aria-valuenow", step.number);
  slider.setAttribute("aria-valuetext", `Step ${step.number}, ${step.annotation}, ${milliseconds(timeOf(step))}`);
  const facts = [
    ["Prefill", `${plural(step.context_requests, "row")}, ${plural(step.context_tokens, "token")}`, "prefill"],
    ["Decode", `${plural(step.generation_requests, "row")}, ${plural(step.generation_tokens, "token")}`, "decode"],
    ["Took", milliseconds(timeOf(step))],
    ["Schedule, model, update", [step.schedule_ms, step.model_ms, step.update_ms].map((ms) => ms.toFixed(2)).join(" + ")],
    ["Queue after it", `${step.state.running} running, ${step.state.waiting} waiting`],
    ["Found in the cache", plural(step.prefix_hits, "token")],
    ["Preempted", plural(step.preemptions, "request")],
  ];
  const list = make("dl");
  for (const [name, value, ink] of facts) {
    const term = make("dt", "", ...(ink ? [make("i", `ink ${ink}`)] : []), name);
    list.append(make("div", "", term, make("dd", "", value)));
  }
  byId("selected").replaceChildren(
    make("h3", "", selected ? `Step ${count(step.number)}` : `Newest step, ${count(step.number)}`),
    make("code", "annotation", step.annotation.replaceAll("_", "_\u200b")),
    list,
  );
}

function drawCache(state, engine) {
  const { blocks_used: used, blocks_cached: cached } = state;
  const total = engine.num_blocks;
  const each = blockMap(byId("kv-map").firstElementChild, { used, cached, total });
  const size = `${plural(engine.block_size, "token")} a block, ${bytes(engine.kv_cache_bytes)} in all`;
  byId("kv-words").textContent = each > 1 ? `${size}; a cell is ${count(each)} blocks` : size;
  const parts = [
    ["In use", used, "decode"],
    ["Cached, free", cached, "cached"],
    ["Empty", total - used - cached, "free"],
  ];
  byId("kv-legend").replaceChildren(
    ...parts.map(([name, blocks, ink]) =>
      make("div", "", make("dt", "", make("i", `ink ${ink}`), name), make("dd", "", count(blocks), make("small", "", percent(blocks / total)))),
    ),
  );
}

function drawTable(steps) {
  const rows = steps.slice(-ROWS).reverse().map((step) => {
    const cells = [
      make("td", "", count(step.number)),
      make("td", "", make("code", "", step.annotation.replaceAll("_", "_\u200b"))),
      ...[timeOf(step).toFixed(1), step.state.running, step.state.waiting, count(step.state.blocks_used)].map((value) => make("td", "number", String(value))),
    ];
    return make("tr", step.number === selected ? "here" : "", ...cells);
  });
  byId("rows").replaceChildren(...rows);
}

/** The line below the chat's composer. */
function drawStrip() {
  const { state, engine, steps } = feed;
  const newest = steps.at(-1);
  const busy = state.running + state.waiting > 0;
  const parts = [`${state.running} running`, `${state.waiting} waiting`, `KV cache ${percent(state.blocks_used / engine.num_blocks)}`];
  if (newest) parts.push(`step ${milliseconds(timeOf(newest))}`);
  const strip = byId("strip");
  strip.classList.toggle("busy", busy);
  strip.replaceChildren(make("i", "dot"), make("span", "", parts.join(" · ")), make("code", "", newest?.annotation ?? ""));
}

function perSecond(of) {
  const since = feed.now() - WINDOW_S;
  const recent = feed.steps.filter((step) => step.time > since);
  return Math.round(recent.reduce((sum, step) => sum + of(step), 0) / WINDOW_S);
}

function bytes(number) {
  return number >= 2 ** 30 ? `${(number / 2 ** 30).toFixed(1)} GiB` : `${(number / 2 ** 20).toFixed(0)} MiB`;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}
