// Drawings on canvas, in the colours of the style sheet.

const INKS = ["prefill", "decode", "cached", "free", "text", "faint", "line", "accent"];
let inks = null;

/** The style sheet's colours as canvas takes them. */
function colours() {
  if (inks) return inks;
  const probe = document.body.appendChild(document.createElement("span"));
  inks = {};
  for (const name of INKS) {
    probe.style.color = `var(--${name})`;
    inks[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return inks;
}

/** Look the colours up again: the theme has changed. */
export function forgetColours() {
  inks = null;
}

/** A canvas's context with its box's size in CSS pixels, cleared. */
function prepare(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas.parentElement;
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height, ink: colours() };
}

/** A small line without axes; its lowest is 0 and its right end is now. */
export function sparkline(canvas, values) {
  const { context, width, height, ink } = prepare(canvas);
  if (values.length < 2) return;
  const top = Math.max(...values, 1e-9);
  const x = (index) => (index * width) / (values.length - 1);
  const y = (value) => height - 2 - (value / top) * (height - 4);
  context.beginPath();
  values.forEach((value, index) => context.lineTo(x(index), y(value)));
  context.strokeStyle = ink.accent;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.stroke();
  context.lineTo(width, height);
  context.lineTo(0, height);
  context.globalAlpha = 0.12;
  context.fillStyle = ink.accent;
  context.fill();
  context.globalAlpha = 1;
}

const LANES = [
  { title: "Prefill tokens", ink: "prefill", of: (step) => step.context_tokens, least: 5 },
  { title: "Decode tokens", ink: "decode", of: (step) => step.generation_tokens, least: 5 },
  { title: "Step time", ink: "text", of: (step) => step.schedule_ms + step.model_ms + step.update_ms, words: (ms) => (ms < 1000 ? `${ms} ms` : `${ms / 1000} s`), least: 1 },
];
const GUTTER = 44;
const LANE_GAP = 26;

/** Where the steps stand: x of the slot of step `index` from the right, and the step at an x. */
export function slots(width, total) {
  const slot = (width - GUTTER) / total;
  return { slot, x: (back) => width - (back + 1) * slot, backAt: (x) => Math.floor((width - x) / slot) };
}

/** Three lanes over the same steps: prefill, decode and time. selected: an index into steps, or -1. */
export function timeline(canvas, steps, total, selected) {
  const { context, width, height, ink } = prepare(canvas);
  const { slot, x } = slots(width, total);
  const lane = (height - LANE_GAP * LANES.length) / LANES.length;
  context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  if (selected >= 0) {
    context.fillStyle = ink.line;
    context.fillRect(x(steps.length - 1 - selected) - 0.5, 0, Math.max(slot, 2), height);
  }
  LANES.forEach((row, number) => {
    const bottom = (number + 1) * (lane + LANE_GAP);
    const values = steps.map(row.of);
    const top = niceTop(Math.max(...values, row.least));
    context.fillStyle = ink.faint;
    context.textAlign = "left";
    context.fillText(row.title, GUTTER, bottom - lane - 8);
    context.textAlign = "right";
    context.fillText(row.words?.(top) ?? top, GUTTER - 8, bottom - lane + 8);
    context.fillText("0", GUTTER - 8, bottom);
    context.strokeStyle = ink.line;
    context.lineWidth = 1;
    for (const y of [bottom - lane, bottom]) {
      context.beginPath();
      context.moveTo(GUTTER, Math.round(y) + 0.5);
      context.lineTo(width, Math.round(y) + 0.5);
      context.stroke();
    }
    values.forEach((value, index) => {
      if (!value) return;
      const tall = Math.max(1.5, (lane * value) / top);
      context.fillStyle = ink[row.ink];
      context.globalAlpha = selected < 0 || selected === index ? 1 : 0.55;
      context.fillRect(x(steps.length - 1 - index), bottom - tall, Math.max(slot - 1, 1), tall);
    });
    context.globalAlpha = 1;
  });
}

/** The next number of one digit and noughts. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return Math.ceil(value / power) * power;
}

const SMALLEST_CELL = 11;
const LARGEST_CELL = 32;
const GAP = 2;

/** Blocks as cells: held ones first, then cached, then free. A cell stands for as many blocks as it must. Returns that. */
export function blockMap(canvas, { used, cached, total }) {
  const { context, width, height, ink } = prepare(canvas);
  const cellsOf = (size) => Math.floor((width + GAP) / size) * Math.floor((height + GAP) / size);
  let pitch = LARGEST_CELL;
  while (pitch > SMALLEST_CELL && cellsOf(pitch) < total) pitch--;
  const columns = Math.floor((width + GAP) / pitch);
  const each = Math.max(1, Math.ceil(total / cellsOf(pitch)));
  const shown = Math.ceil(total / each);
  for (let cell = 0; cell < shown; cell++) {
    const first = cell * each;
    context.fillStyle = first < used ? ink.decode : first < used + cached ? ink.cached : ink.free;
    context.beginPath();
    context.roundRect((cell % columns) * pitch, Math.floor(cell / columns) * pitch, pitch - GAP, pitch - GAP, 2);
    context.fill();
  }
  return each;
}
