// The conversation: what was said, one answer at a time on its way, and the results of tools that the model called.

import { AnswerView } from "./answer.js";
import { call, events } from "./api.js";
import { announce, button, byId, make, plural } from "./dom.js";
import { fit, requestFields, settingsAreFine, startSettings, systemPrompt, wantsLogprobs } from "./settings.js";

let turns = []; // {message} of the user and of tools, {message, view} of the model
let running = null; // the AbortController of the answer on its way

export function startChat() {
  const input = byId("input");
  startSettings(() => {
    byId("scale").hidden = !wantsLogprobs();
    for (const turn of turns) turn.view?.showTokens(wantsLogprobs());
  });
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    say();
  });
  input.addEventListener("input", () => fit(input));
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    say();
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  byId("examples").addEventListener("click", (event) => {
    if (event.target.tagName !== "BUTTON") return;
    input.value = event.target.textContent;
    say();
    input.focus();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("new-chat").addEventListener("click", forget);
}

/** Fill the list of models; whatever is wrong is told where answers stand. */
export async function loadModels() {
  const models = (await (await call("v1/models")).json()).data;
  byId("model").replaceChildren(...models.map(({ id }) => make("option", "", id)));
  byId("model").disabled = models.length < 2;
}

function say() {
  const input = byId("input");
  const text = input.value.trim();
  if (!text || running || !settingsAreFine()) return;
  input.value = "";
  fit(input);
  add({ role: "user", content: text });
  answer();
}

function forget() {
  running?.abort();
  turns = [];
  byId("messages").replaceChildren();
  byId("empty").hidden = false;
  byId("input").focus();
  announce("New chat");
}

/** Put a message of the user or a tool into the conversation and onto the page. */
function add(message) {
  const words = message.role === "tool" ? "Tool" : "You";
  const root = make("article", `message ${message.role}`, make("h2", "role", words), make("div", "body", make("p", "", message.content)));
  byId("messages").append(root);
  byId("empty").hidden = true;
  turns.push({ message, root });
}

/** Ask for the next answer and show it as it comes. */
async function answer() {
  const view = new AnswerView();
  const system = systemPrompt();
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...turns.map((turn) => turn.message)];
  const before = turns.at(-1);
  before?.view?.offer();
  byId("messages").append(view.root);
  setRunning(new AbortController());
  const mine = running;
  scrollDown(true);
  let finish = null;
  let problem = null;
  try {
    const body = { ...requestFields(), messages, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
    for await (const chunk of events(await call("v1/chat/completions", { body, signal: mine.signal }))) {
      view.add(chunk);
      scrollDown(false);
    }
  } catch (error) {
    if (error.name === "AbortError") finish = "stopped";
    else problem = error.message;
  }
  view.end(finish, problem);
  if (running === mine) setRunning(null);
  if (!view.root.isConnected) return; // a new chat was begun
  turns.push({ message: view.message(), view, root: view.root });
  conclude(view);
}

/** What can be done with the answer that has just ended. */
function conclude(view) {
  view.offer(button(view.problem ? "Try again" : "Regenerate", "quiet small regenerate", regenerate));
  for (const call of view.calls) call.element.append(resultForm(call, view));
  scrollDown(false);
  announce(view.problem ?? `Answer finished, ${plural(view.usage?.completion_tokens ?? 0, "token")}`);
  if (document.activeElement === document.body) byId("input").focus();
}

function regenerate() {
  if (running || !settingsAreFine()) return;
  turns.pop().root.remove();
  answer();
}

/** Where the user says what a called tool gives; with all results there, the model goes on. */
function resultForm(call, view) {
  const input = make("textarea");
  input.rows = 1;
  input.placeholder = `Result of ${call.name}`;
  input.setAttribute("aria-label", input.placeholder);
  const give = button("Give result", "quiet small", () => {
    if (running || !input.value.trim()) return;
    call.given = true;
    form.remove();
    add({ role: "tool", tool_call_id: call.id, content: input.value.trim() });
    if (view.calls.every((other) => other.given)) answer();
  });
  const form = make("div", "result", input, give);
  return form;
}

function setRunning(controller) {
  running = controller;
  byId("stop").hidden = !controller;
  byId("send").hidden = Boolean(controller);
  if (controller) announce("The model answers");
}

/** Follow the end of the conversation, unless the reader has scrolled away from it. */
function scrollDown(always) {
  const box = byId("scroll");
  const near = box.scrollHeight - box.scrollTop - box.clientHeight < 120;
  if (always || near) requestAnimationFrame(() => box.scrollTo({ top: box.scrollHeight }));
}
