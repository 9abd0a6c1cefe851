// The settings: kept in this browser, and as fields of a request. What is left empty is left to the server.

import { byId } from "./dom.js";

const STORE = "fathom.settings";
const NUMBERS = ["temperature", "max_tokens", "top_p", "top_k", "min_p", "seed"];
const TEXTS = ["system", "stop_words", "tools"];
const TOP_LOGPROBS = 5;

const form = byId("settings");

export const wantsLogprobs = () => byId("logprobs").checked;

/** Fill the form with what was kept, and keep what changes; `changed` is called after each change. */
export function startSettings(changed) {
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem(STORE)) ?? {};
  } catch {
    localStorage.removeItem(STORE);
  }
  for (const name of [...NUMBERS, ...TEXTS]) byId(name).value = kept[name] ?? "";
  byId("logprobs").checked = kept.logprobs ?? false;
  byId("settings-fold").open = matchMedia("(min-width: 900px)").matches;
  const update = () => {
    checkTools();
    for (const name of TEXTS) fit(byId(name));
    const values = Object.fromEntries([...NUMBERS, ...TEXTS].map((name) => [name, byId(name).value]));
    localStorage.setItem(STORE, JSON.stringify({ ...values, logprobs: wantsLogprobs() }));
    changed();
  };
  form.addEventListener("input", update);
  form.addEventListener("reset", () => setTimeout(update));
  form.addEventListener("submit", (event) => event.preventDefault());
  update();
}

/** Whether everything is as it should be; if not, the browser says what is wrong. */
export function settingsAreFine() {
  if (form.checkValidity()) return true;
  byId("settings-fold").open = true;
  return form.reportValidity();
}

/** The fields of a request. */
export function requestFields() {
  const fields = { model: byId("model").value };
  for (const name of NUMBERS) {
    if (byId(name).value !== "") fields[name] = byId(name).valueAsNumber;
  }
  const stops = byId("stop_words").value.split("\n").filter(Boolean);
  if (stops.length) fields.stop = stops;
  if (byId("tools").value.trim()) fields.tools = JSON.parse(byId("tools").value);
  if (wantsLogprobs()) Object.assign(fields, { logprobs: true, top_logprobs: TOP_LOGPROBS });
  return fields;
}

export const systemPrompt = () => byId("system").value.trim();

/** Let a text area be as high as its text, up to what its style allows. */
export function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + 2}px`;
}

function checkTools() {
  const area = byId("tools");
  let problem = "";
  if (area.value.trim()) {
    try {
      if (!Array.isArray(JSON.parse(area.value))) problem = "This must be a list.";
    } catch (error) {
      problem = `This is not JSON: ${error.message}`;
    }
  }
  area.setCustomValidity(problem);
}
